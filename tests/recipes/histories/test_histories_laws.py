"""Laws of histories: every measurement once, in time order, the same bytes for any sharding, workers and memory."""

import itertools
import json
import random
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from pings import (
    SPLITS,
    dealt,
    decoded,
    expected_measurements,
    histories,
    in_order,
    random_pings,
    shards_of,
    without_part,
    write_pings,
)

import headrace

PINGS = random_pings(1, 1800)


@pytest.mark.parametrize("format_", ["array_record", "arrow"])
@pytest.mark.parametrize("max_row_bytes", [1, 300, 2000, 8 << 20])
def test_every_measurement_is_in_one_row_in_time_order(
    tmp_path: Path, format_: str, max_row_bytes: int
) -> None:
    source = write_pings(tmp_path / "in", dealt(PINGS, 3))
    prepared = histories(source, tmp_path / "out", format=format_, max_row_bytes=max_row_bytes)
    found = decoded(prepared)

    assert in_order(expected_measurements(PINGS)) == in_order(
        without_part([*found["train"], *found["test"]])
    )
    for split in SPLITS:
        for _, group in itertools.groupby(found[split], key=lambda each: each.src_addr):
            history = list(group)
            assert [each.event_time for each in history] == sorted(
                each.event_time for each in history
            )
            assert [each.part for each in history] == sorted(each.part for each in history)
            assert set(range(history[-1].part + 1)) == {each.part for each in history}
    sides = [{each.src_addr for each in found[split]} for split in SPLITS]
    assert not sides[0] & sides[1]
    assert all(sides)
    groups = [
        name
        for split in SPLITS
        for name, _ in itertools.groupby(found[split], key=lambda each: each.src_addr)
    ]
    assert len(groups) == len(set(groups))
    assert headrace.verify(tmp_path / "out").problems == []


@pytest.mark.parametrize("max_row_bytes", [1, 100, 300, 2000])
def test_rows_are_as_long_as_the_limit_lets_them_be(tmp_path: Path, max_row_bytes: int) -> None:
    source = write_pings(tmp_path / "in", dealt(PINGS, 3))
    prepared = histories(source, tmp_path / "out", max_row_bytes=max_row_bytes)
    rows = pq.read_table(prepared.run / "rows.parquet").to_pylist()

    last_part = {row["src_id"]: row["part"] for row in rows}
    for row in rows:
        assert row["bytes"] <= max_row_bytes or row["n_measurements"] == 1
        if (
            row["part"] < last_part[row["src_id"]]
        ):  # one more measurement: at most 26 bytes and the rounding of columns
            assert row["bytes"] + 26 + 16 > max_row_bytes or row["n_measurements"] in (256, 65_536)
    if max_row_bytes == 1:
        assert len(rows) == len(PINGS)


@pytest.mark.slow
def test_any_sharding_and_any_number_of_workers_gives_the_same_bytes(tmp_path: Path) -> None:
    shuffled = random.Random(2).sample(PINGS, len(PINGS))
    sources = {
        "three": write_pings(tmp_path / "three", dealt(PINGS, 3)),
        "one": write_pings(tmp_path / "one", [PINGS]),
        "seventeen shuffled": write_pings(tmp_path / "seventeen", [*dealt(shuffled, 17), []]),
    }
    made = {
        (name, workers): shards_of(
            histories(source, tmp_path / f"out {name} {workers}", workers=workers)
        )
        for name, source in sources.items()
        for workers in (1, 2, 8)
    }

    assert all(files == made["three", 1] for files in made.values())
    assert len(made["three", 1]) >= 6


@pytest.mark.parametrize("format_", ["array_record", "arrow"])
def test_a_partition_that_is_merged_from_runs_has_the_bytes_of_one_sorted_in_memory(
    tmp_path: Path, format_: str
) -> None:
    pings = random_pings(5, 5000, entities=4, span_s=200)
    source = write_pings(tmp_path / "in", dealt(pings, 4))
    settings = {"partitions": 1, "max_row_bytes": 3000, "format": format_}
    in_memory = histories(source, tmp_path / "large", memory_limit="2GiB", **settings)
    merged = histories(
        source, tmp_path / "small", memory_limit=1 << 20, **settings
    )  # slices of 512 measurements

    assert shards_of(in_memory) == shards_of(merged)
    assert in_memory.run.name != merged.run.name


def test_one_entity_with_one_time_is_merged_too(tmp_path: Path) -> None:
    pings = random_pings(6, 3000, entities=1, span_s=1)
    source = write_pings(tmp_path / "in", dealt(pings, 2))
    in_memory = histories(source, tmp_path / "large", partitions=1)
    merged = histories(source, tmp_path / "small", partitions=1, memory_limit=1 << 20)

    assert shards_of(in_memory) == shards_of(merged)


@pytest.mark.parametrize("peer", ["dst_addr", None])
def test_memory_and_workers_change_no_run(tmp_path: Path, peer: str | None) -> None:
    odd = [
        replace(PINGS[0], src_addr="no address"),
        replace(PINGS[1], dst_addr=""),
        replace(PINGS[2], event_time=-1),
    ]
    pings = [*odd, *random_pings(7, 4000, entities=4, span_s=200)]
    source = write_pings(tmp_path / "in", dealt(pings, 3))
    settings = {"partitions": 2, "max_row_bytes": 3000, "peer": peer, "bad_rows": "drop"}
    in_memory = histories(source, tmp_path / "memory", **settings)
    merged = histories(source, tmp_path / "merged", workers=2, memory_limit=1 << 20, **settings)

    assert shards_of(in_memory) == shards_of(merged)
    assert in_memory.manifest.metadata == merged.manifest.metadata
    assert in_memory.manifest.dropped == merged.manifest.dropped
    assert headrace.verify(tmp_path / "merged").problems == []


def test_without_peers_rows_have_none(tmp_path: Path) -> None:
    source = write_pings(tmp_path / "in", dealt(PINGS, 2))
    prepared = histories(source, tmp_path / "out", peer=None)
    found = decoded(prepared)

    assert {None} == {each.dst_addr for split in SPLITS for each in found[split]}
    expected = [{**each, "dst_addr": None} for each in expected_measurements(PINGS)]
    assert in_order(expected) == in_order(without_part([*found["train"], *found["test"]]))


def test_the_rows_file_tells_what_the_shards_hold(tmp_path: Path) -> None:
    source = write_pings(tmp_path / "in", dealt(PINGS, 2))
    prepared = histories(source, tmp_path / "out", max_row_bytes=2000)
    rows = pq.read_table(prepared.run / "rows.parquet").to_pylist()
    found = decoded(prepared)

    places = [(row["shard"], row["position"]) for row in rows]
    assert sorted(places) == places
    assert len(set(places)) == len(places)
    for split in SPLITS:
        mine = [row for row in rows if row["split"] == split]
        sizes = [row["n_measurements"] for row in mine]
        assert np.cumsum([0, *sizes])[:-1].tolist() == [row["measurements_before"] for row in mine]
        for row in mine:
            own = found[split][
                row["measurements_before"] : row["measurements_before"] + row["n_measurements"]
            ]
            assert {(row["src_id"], row["part"])} == {(each.src_addr, each.part) for each in own}
            assert (row["first_time"], row["last_time"]) == (own[0].event_time, own[-1].event_time)


def test_entities_keep_their_side_when_others_come(tmp_path: Path) -> None:
    by_entity = defaultdict(list)
    for ping in PINGS:
        by_entity[ping.src_addr].append(ping)
    some = [ping for name in sorted(by_entity)[::2] for ping in by_entity[name]]
    all_of_them = decoded(
        histories(write_pings(tmp_path / "all", [PINGS]), tmp_path / "out all", train_ratio=0.5)
    )
    few = decoded(
        histories(write_pings(tmp_path / "few", [some]), tmp_path / "out few", train_ratio=0.5)
    )

    for split in SPLITS:
        assert {each.src_addr for each in few[split]} <= {
            each.src_addr for each in all_of_them[split]
        }


def test_the_share_of_entities_that_train_is_near_the_ratio(tmp_path: Path) -> None:
    pings = [ping for seed in range(10) for ping in random_pings(seed, 400, entities=200)]
    found = decoded(
        histories(write_pings(tmp_path / "in", [pings]), tmp_path / "out", train_ratio=0.7)
    )
    sides = [len({each.src_addr for each in found[split]}) for split in SPLITS]

    assert abs(sides[0] / sum(sides) - 0.7) < 0.15


@pytest.mark.parametrize("ratio", [0, 1])
def test_all_entities_may_be_on_one_side(tmp_path: Path, ratio: int) -> None:
    prepared = histories(
        write_pings(tmp_path / "in", [PINGS[:50]]), tmp_path / "out", train_ratio=ratio
    )

    assert prepared.manifest.splits[SPLITS[ratio]].rows == 0
    assert headrace.verify(tmp_path / "out").problems == []


def test_a_sample_is_the_same_every_time_and_all_of_it_is_in_the_source(tmp_path: Path) -> None:
    source = write_pings(tmp_path / "in", dealt(PINGS, 3))
    first = histories(source, tmp_path / "out", sample_rate=0.25)
    again = histories(source, tmp_path / "again", sample_rate=0.25, workers=2)
    found = decoded(first)
    kept = in_order(without_part([*found["train"], *found["test"]]))

    assert shards_of(first) == shards_of(again)
    assert abs(len(kept) / len(PINGS) - 0.25) < 0.05
    assert len(PINGS) - len(kept) == first.manifest.dropped["not_sampled"]
    whole = {json.dumps(each) for each in expected_measurements(PINGS)}
    assert {json.dumps(each) for each in kept} <= whole
    assert headrace.verify(tmp_path / "out").problems == []


def test_arrow_histories_stream_as_a_table_and_array_records_say_what_they_are(
    tmp_path: Path,
) -> None:
    source = write_pings(tmp_path / "in", [PINGS])
    prepared = histories(source, tmp_path / "arrow", format="arrow", max_row_bytes=500)
    loader = headrace.open(tmp_path / "arrow").stream(
        "train", batch_size=7, columns=["n_measurements"]
    )
    counts = [n for batch in loader for n in batch["n_measurements"].tolist()]

    rows = pq.read_table(prepared.run / "rows.parquet", filters=[("split", "=", "train")])
    assert rows["n_measurements"].to_pylist() == counts
    histories(source, tmp_path / "records")
    with pytest.raises(
        headrace.InputError, match="histories in ArrayRecord shards cannot be streamed as a table"
    ):
        next(iter(headrace.open(tmp_path / "records").stream("train", batch_size=7)))


@pytest.mark.parametrize(
    ("train_ratio", "told"),
    [
        (0.9999, ["test has no rows: the keyed hash puts none of 20 entities in test; give a smaller train_ratio (now 0.9999) or another seed"]),
        (0.0001, ["train has no rows: the keyed hash puts none of 20 entities in train; give a larger train_ratio (now 0.0001) or another seed"]),
        (1.0, []),
        (0.0, []),
        (0.5, []),
    ],
)  # fmt: skip
def test_a_split_that_hashes_leave_empty_is_told(
    tmp_path: Path, train_ratio: float, told: list[str]
) -> None:
    source, events = write_pings(tmp_path / "in", dealt(PINGS, 3)), []
    settings = headrace.Histories(source=source, peer="dst_addr", train_ratio=train_ratio)
    headrace.prepare(settings, tmp_path / "out", workers=1, on_event=events.append)

    assert told == [each.text for each in events if "has no rows" in getattr(each, "text", "")]
