"""Entities with the same measurements are counted, kept in one split or left out, as a plain implementation says."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pings import (
    SPLITS,
    Measurement,
    Ping,
    dealt,
    decoded,
    expected_measurements,
    histories,
    random_pings,
    shards_of,
    write_pings,
)

import headrace
from headrace.errors import SettingsError
from headrace.histories import duplicates, recipe
from headrace.run.prepare import Prepared
from raised import raised

COLUMNS = ("event_time", "dst_addr", "rtt")


def with_twins(seed: int, *, late_s: int = 0) -> list[Ping]:
    """Pings of entities, some of which have them under three other names, each later than the one before."""
    pings = random_pings(seed, 1500, entities=12)
    names = sorted({ping.src_addr for ping in pings})
    again = [
        replace(
            ping,
            src_addr=f"10.{copy}.0.{names.index(ping.src_addr)}",
            event_time=ping.event_time + late * 1_000_000,
        )
        for copy in range(3)
        for late in [late_s * (copy + 1)]
        for ping in pings
        if ping.src_addr in names[::2]
    ]
    near = [ping for ping in pings if ping.src_addr == names[1]][
        1:
    ]  # one measurement less is another history
    return pings + again + [replace(ping, src_addr="172.16.0.1") for ping in near]


def contents(measurements: list[Measurement], columns: tuple[str, ...] = COLUMNS) -> dict[str, Any]:
    """Of each entity how often it has each measurement, by these columns."""
    held: dict[str, Counter[tuple[Any, ...]]] = defaultdict(Counter)
    for each in measurements:
        held[each.src_addr][tuple(getattr(each, name) for name in columns)] += 1
    return {entity: frozenset(counts.items()) for entity, counts in held.items()}


def entity_of_place(run: Path, split: str) -> dict[str, str]:
    """The entity of each row of a split, by shard and number there."""
    dataset = headrace.open(run)
    index, read = dataset.split_index(split), dataset.block_reader(split)
    rows = [
        (int(index.shard_of_block[block]), read(block, ["src_id"])["src_id"])
        for block in range(len(index.rows))
    ]
    found: dict[str, str] = {}
    for shard, names in ((shard, name.as_py()) for shard, own in rows for name in own):
        found[
            f"{index.shards[shard]}:{sum(key.startswith(index.shards[shard]) for key in found)}"
        ] = names
    return found


def by_split(prepared: Prepared, columns: tuple[str, ...] = COLUMNS) -> dict[str, dict[str, Any]]:
    return {split: contents(own, columns) for split, own in decoded(prepared).items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "late_s"),
    [((), 0), (("rtt",), 100), (("rtt", "dst_addr"), 100)],
    ids=["all", "values", "values_of_peers"],
)
def test_entities_with_one_content_are_counted_share_a_split_or_go(
    tmp_path: Path, content: tuple[str, ...], late_s: int
) -> None:
    columns = content or COLUMNS
    pings = with_twins(3, late_s=late_s)
    source = write_pings(tmp_path / "raw", dealt(pings, 3))
    made = {
        word: histories(
            source,
            tmp_path / word,
            duplicates=word,
            max_row_bytes=400,
            content=content,
            format="arrow",
        )
        for word in ("allow", "count", "group", "drop")
    }
    held = {word: by_split(each, columns) for word, each in made.items()}
    train, test = (held["count"][split] for split in SPLITS)
    first = {split: set(held["count"][split].values()) for split in SPLITS}

    for word, each in made.items():
        assert headrace.verify(tmp_path / word).problems == [], word
        lost = Counter(astuple(own)[:4] for own in sum(decoded(made["count"]).values(), []))
        lost.subtract(astuple(own)[:4] for own in sum(decoded(each).values(), []))
        assert sum(lost.values()) == each.manifest.dropped.get("duplicate", 0)
    assert shards_of(made["allow"]) == shards_of(made["count"])
    assert made["count"].manifest.metadata["duplicates"] == {
        "are": "count",
        "content": list(columns),
        "in_earlier_split": {"test": sum(own in first["train"] for own in test.values())},
        "repeated": {
            "train": len(train) - len(first["train"]),
            "test": len(test) - len(first["test"]),
        },
    }
    counted = headrace.find_leaks(headrace.open(tmp_path / "count"))
    (shared,) = counted.shared
    assert (counted.unit, counted.content) == ("entity", columns)
    assert counted.rows == {"train": len(train), "test": len(test)}
    assert {"test": shared.rows} == made["count"].manifest.metadata["duplicates"][
        "in_earlier_split"
    ]
    assert counted.repeated == made["count"].manifest.metadata["duplicates"]["repeated"]
    one, other = (entity_of_place(tmp_path / "count", split) for split in SPLITS)
    assert all(train[one[first]] == test[other[second]] for first, second in shared.examples)
    assert headrace.find_leaks(headrace.open(tmp_path / "group")).worst == 0
    assert first["train"] & first["test"]
    assert not set(held["group"]["train"].values()) & set(held["group"]["test"].values())
    assert {**held["group"]["train"], **held["group"]["test"]} == {**train, **test}
    alone = [
        entity
        for own in (train, test)
        for entity in own
        if [*train.values(), *test.values()].count(own[entity]) < 2
    ]
    assert all((entity in train) == (entity in held["group"]["train"]) for entity in alone)
    kept = [*held["drop"]["train"].values(), *held["drop"]["test"].values()]
    assert len(kept) == len(set(kept))
    assert set(kept) == first["train"] | first["test"]
    if late_s:  # of each content the entity that begins first stays
        assert not [name for own in held["drop"].values() for name in own if name.startswith("10.")]


@pytest.mark.slow
@pytest.mark.parametrize("word", ["count", "group", "drop"])
def test_workers_shards_and_memory_change_nothing(tmp_path: Path, word: str) -> None:
    pings = with_twins(4)
    one = histories(
        write_pings(tmp_path / "one", [pings]),
        tmp_path / "out_one",
        duplicates=word,
        max_row_bytes=300,
    )
    source = write_pings(tmp_path / "many", dealt(pings[::-1], 4))
    settings = {"max_row_bytes": 300, "memory_limit": 1 << 20}
    many = histories(source, tmp_path / "out_many", workers=2, duplicates=word, **settings)

    assert shards_of(one) == shards_of(many)
    assert one.manifest.metadata["duplicates"] == many.manifest.metadata["duplicates"]
    assert one.manifest.metadata["multiset_sum"] == many.manifest.metadata["multiset_sum"]
    assert headrace.verify(tmp_path / "out_many").problems == []


def test_a_run_without_copies_has_the_same_rows_either_way(tmp_path: Path) -> None:
    source = write_pings(tmp_path / "raw", dealt(random_pings(5, 800), 2))
    counted = histories(source, tmp_path / "count")
    allowed = histories(source, tmp_path / "allow", duplicates="allow")

    assert counted.manifest.metadata == allowed.manifest.metadata
    assert counted.manifest.dropped == allowed.manifest.dropped
    assert len(decoded(counted)["train"]) + len(decoded(counted)["test"]) == len(
        expected_measurements([ping for own in dealt(random_pings(5, 800), 2) for ping in own])
    )


@pytest.mark.parametrize("word", ["group", "drop"])
def test_verify_names_a_content_that_is_not_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    source = write_pings(tmp_path / "raw", dealt(with_twins(6), 2))
    monkeypatch.setattr(recipe, "decide", lambda run, partitions, asked: [None] * partitions)
    histories(source, tmp_path / "out", duplicates=word)
    (problem,) = headrace.verify(tmp_path / "out").problems

    assert "its content is that of" in problem


def test_verify_finds_a_group_on_the_side_of_another_entity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = duplicates.decide
    source = write_pings(tmp_path / "raw", dealt(with_twins(6), 2))

    def all_train(run: Path, partitions: int, asked: Any) -> list[duplicates.Decision]:
        return [
            replace(each, in_train=np.ones_like(each.in_train))
            for each in right(run, partitions, asked)
        ]

    monkeypatch.setattr(recipe, "decide", all_train)
    histories(source, tmp_path / "out", duplicates="group")
    (problem,) = headrace.verify(tmp_path / "out").problems

    assert "entities are not where the first one of their content belongs" in problem


def test_content_names_columns_of_measurements() -> None:
    with raised(SettingsError, setting="content"):
        headrace.Histories(source="pings", content="src_addr")
