"""Laws of the times of histories: a split by time, zones, and times of every resolution and age."""

import random
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from pings import Ping, dealt, decoded, histories, random_pings, write_pings

import headrace
from headrace.errors import InputError, SettingsError
from headrace.histories.config import Histories
from headrace.histories.verify import verify_histories
from raised import raised
from resealed import change_settings
from tables import write_rows

HEADER = ["src_addr", "event_time", "dst_addr", "rtt"]
FIRST = 1_700_000_000


def instant(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


@pytest.mark.parametrize("train_ratio", [1.0, 0.6])
@pytest.mark.parametrize("limits", [{}, {"max_row_bytes": 200, "memory_limit": "1MiB"}])
@pytest.mark.parametrize("duplicates", ["count", "drop"])
def test_every_measurement_is_on_its_side_of_train_end(
    tmp_path: Path, train_ratio: float, limits: dict[str, object], duplicates: str
) -> None:
    pings = random_pings(3, 2000)
    source = write_pings(tmp_path / "in", dealt(pings, 3))
    cut = FIRST + 2000
    settings = {"train_ratio": train_ratio, "duplicates": duplicates, **limits}
    prepared = histories(source, tmp_path / "out", train_end=instant(cut), **settings)
    found = decoded(prepared)
    whole = decoded(histories(source, tmp_path / "whole", **settings))
    by_hash = {each.src_addr: split for split, held in whole.items() for each in held}

    for split, held in found.items():
        assert held
        assert all((each.event_time < cut) == (split == "train") for each in held)
        keys = [(each.src_addr, each.part) for each in held]
        assert len({*keys}) == sum(a != b for a, b in zip(keys, [None, *keys], strict=False))
    expected = [
        ping
        for ping in pings
        if train_ratio == 1
        or (ping.event_time < cut * 1_000_000) == (by_hash[ping.src_addr] == "train")
    ]
    assert len(expected) == sum(map(len, found.values()))
    dropped = prepared.manifest.dropped
    assert len(pings) - len(expected) == dropped.get("other_period", 0)
    assert headrace.verify(tmp_path / "out").problems == []


def test_train_end_alone_holds_out_no_entity() -> None:
    settings = {"source": "pings", "train_end": "2024-01-01"}

    assert 1.0 == Histories(**settings).train_ratio
    assert 0.8 == Histories(**settings, train_ratio=0.8).train_ratio
    assert 0.9 == Histories(source="pings").train_ratio


@pytest.mark.parametrize(
    "wrong",
    [
        {"train_end": "soon"},
        {"train_end": "2024-01-01 00:00:00.5"},
        {"train_end": "2024-01-01", "duplicates": "group"},
        {"time_zone": "Europe/Atlantis"},
    ],
)
def test_settings_that_decide_no_split_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        Histories(source="pings", **wrong)


def test_verify_finds_a_measurement_on_the_other_side(tmp_path: Path) -> None:
    source = write_pings(tmp_path / "in", [random_pings(3, 300)])
    cut = FIRST + 2000
    prepared = histories(source, tmp_path / "out", train_end=instant(cut))
    run = change_settings(prepared.run, train_end=instant(cut + 300))
    problems = [check.problem for check in verify_histories(run, 1)]

    assert any("rows.parquet says" in (problem or "") for problem in problems)


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_times_of_every_age_come_back_in_their_unit(tmp_path: Path, unit: str) -> None:
    draw = random.Random(1)
    size = {"s": 1_000_000, "ms": 1_000, "us": 1}[unit]
    pings = [
        Ping(
            f"10.0.0.{draw.randrange(5)}",
            "10.0.1.1",
            draw.randrange(-(10**15), 10**15) if number % 2 else draw.randrange(-3000, 3000),
            1.0,
        )
        for number in range(600)
    ]
    source = write_pings(tmp_path / "in", dealt(pings, 2))
    for name, limits in (("out", {}), ("merged", {"memory_limit": "1MiB", "partitions": 1})):
        prepared = histories(source, tmp_path / name, time_unit=unit, format="arrow", **limits)
        found = {}
        for split in ("train", "test"):
            for batch in headrace.contexts.read_measurements(tmp_path / name, split):
                for row in batch.to_pylist():
                    moment = row["event_time"].timestamp() * 1_000_000
                    found.setdefault(row["src_addr"], []).append(round(moment))
        for entity, times in found.items():
            own = [ping.event_time // size * size for ping in pings if ping.src_addr == entity]
            assert sorted(own) == times
        assert headrace.verify(tmp_path / name).problems == []
        contexts = headrace.contexts.open_contexts(tmp_path / name, "train", shuffle="none")
        told = {
            each.time
            for position in range(min(len(contexts), 20))
            for segment in headrace.contexts.decode_context(contexts[position])
            for each in segment
        }
        known = {ping.event_time // size for ping in pings}
        assert told - {None} <= known
        assert min(told - {None}) < 0
        assert prepared.manifest.metadata["source_rows"]


def test_times_without_an_offset_are_of_the_zone(tmp_path: Path) -> None:
    times = ["2024-07-01 12:00:00", "2024-01-01 12:00:00", "2024-07-01T12:00:00+02:00"]
    rows = [["10.0.0.1", time, "10.0.0.2", "1"] for time in times]
    write_rows(tmp_path / "in" / "a.csv", HEADER, rows)
    zone = {"time_zone": "Europe/Berlin"}
    prepared = histories(
        tmp_path / "in", tmp_path / "out", **zone, train_end="2024-07-01", train_ratio=1
    )
    found = {split: [each.event_time for each in held] for split, held in decoded(prepared).items()}
    noon = int(datetime(2024, 7, 1, 10, tzinfo=UTC).timestamp())
    winter = int(datetime(2024, 1, 1, 11, tzinfo=UTC).timestamp())

    assert {"train": [winter], "test": [noon, noon]} == found
    assert 1_719_784_800 == Histories(source="x", **zone, train_end="2024-07-01").cut


@pytest.mark.parametrize(
    ("time", "reason", "rules"),
    [
        ("2024-10-27 02:30:00", "ambiguous_time", {"earlier": 1, "later": 2}),
        ("2024-03-31 02:30:00", "skipped_time", {}),
    ],
)
def test_times_where_clocks_change_need_a_word(
    tmp_path: Path, time: str, reason: str, rules: dict[str, int]
) -> None:
    rows = [["10.0.0.1", "2024-07-01", "10.0.0.2", "1"], ["10.0.0.1", time, "10.0.0.2", "1"]]
    write_rows(tmp_path / "in" / "a.csv", HEADER, rows)
    zone = {"time_zone": "Europe/Berlin"}
    with raised(InputError, row=2, column="event_time", value=time):
        histories(tmp_path / "in", tmp_path / "out", **zone)
    dropped = histories(tmp_path / "in", tmp_path / "out", **zone, bad_rows="drop")
    first = int(datetime(2024, 10, 27, tzinfo=UTC).timestamp()) + 1800

    assert 1 == dropped.manifest.dropped[reason]
    for word, hours in rules.items():
        read = histories(tmp_path / "in", tmp_path / word, **zone, ambiguous_times=word)
        last = [held[-1].event_time for held in decoded(read).values() if held]
        assert [first + (hours - 1) * 3600] == last


def test_a_year_before_the_first_is_shown(tmp_path: Path) -> None:
    early = pl.Series("event_time", [-62_300_000_000_000_000]).cast(pl.Datetime("us"))
    table = pl.DataFrame({"src_addr": "10.0.0.1", "dst_addr": "10.0.0.2", "rtt": 1.0})
    table.with_columns(early).write_parquet(tmp_path / "a.parquet")

    with raised(InputError, row=1, column="event_time", value="-0005-10-17 04:26:40.000000"):
        histories(tmp_path / "a.parquet", tmp_path / "out")
