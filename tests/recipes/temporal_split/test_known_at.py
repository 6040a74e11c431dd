"""A joined value is known strictly before the time of its row, or the row is refused or counted."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from commands import headrace as command
from headrace.dataset.open import FinishedRun, find_run
from headrace.errors import InputError, SettingsError
from headrace.split.settings import TemporalSplit
from headrace.split.verify import checks_of, settings_of
from laws import examples
from raised import raised
from tables import fresh, write_rows

DAY = dt.timedelta(days=1)
MOMENT = dt.datetime(2024, 12, 28)
ASKED: dict[str, Any] = {
    "time": "time",
    "entity": "id",
    "split_date": "2025-01-01",
    "train_ratio": 0.5,
}

ALONE: dict[str, Any] = {"entity": None, "train_ratio": 0.9}

# Hours after MOMENT; None is missing, and a date names the day without a clock.
times = st.integers(0, 200)
knowns = st.none() | st.integers(-50, 250) | st.dates(dt.date(2024, 12, 26), dt.date(2025, 1, 8))
rows = st.lists(
    st.tuples(st.sampled_from("abcdef"), times, knowns, knowns), min_size=1, max_size=25
)


def written(known: int | dt.date | None) -> str:
    if known is None:
        return ""
    return str(MOMENT + dt.timedelta(hours=known)) if isinstance(known, int) else str(known)


def holds(time: int, known: int | dt.date | None, equal: str = "late") -> bool:
    """The law in words."""
    if known is None:
        return False
    moment = MOMENT + dt.timedelta(hours=time)
    if isinstance(known, int):
        instant = MOMENT + dt.timedelta(hours=known)
        return instant < moment or (equal == "keep" and instant == moment)
    end_of_day = dt.datetime.combine(known, dt.time()) + DAY
    return end_of_day <= moment  # the last instant of the day lies before it


def prepare(source: Any, out: Path, **asked: Any) -> headrace.Prepared:
    return headrace.prepare(TemporalSplit(source=source, **{**ASKED, **asked}), out)


def ids_of(out: Path) -> list[int]:
    dataset = headrace.open(out)
    return sorted(
        int(row) for split in dataset.splits for row in dataset[split].to_arrow()["row"].to_pylist()
    )


@given(rows, st.sampled_from(["late", "keep"]), st.sampled_from([".csv", ".jsonl"]))
@settings(max_examples=examples(80))
def test_the_rows_that_break_the_law_are_dropped_and_counted(
    tmp_path: Path, table: list[Any], equal: str, extension: str
) -> None:
    directory = fresh(tmp_path)
    table = [("y", 0, -40, -40), *table]  # a row that always counts, so that train is never empty
    lines = [
        (id_, written(time), written(one), written(other), str(number))
        for number, (id_, time, one, other) in enumerate(table)
    ]
    write_rows(
        directory / "in" / f"part-0{extension}", ("id", "time", "one", "other", "row"), lines
    )
    expected = [
        number
        for number, (_, time, one, other) in enumerate(table)
        if holds(time, one, equal) and holds(time, other, equal)
    ]
    asked = {**ALONE, "known_at": ["one", "other"], "known_equal": equal}
    made = prepare(directory / "in", directory / "out", known_late="drop", **asked)

    assert expected == ids_of(directory / "out")
    assert len(table) - len(expected) == made.manifest.dropped["known_late"]
    assert not headrace.verify(directory / "out").problems
    if len(expected) < len(table):
        first = min(set(range(len(table))) - set(expected))
        with pytest.raises(InputError) as refused:
            prepare(directory / "in", directory / "refused", **asked)
        assert (refused.value.row, refused.value.path) == (
            first + 1,
            str(directory / "in" / f"part-0{extension}"),
        )
        assert refused.value.column in ("one", "other")


def table_of(time: Any, known: Any) -> pa.Table:
    """Four entities with a row long before the cutoff, and one row of these values."""
    count = 5
    return pa.table(
        {
            "id": [f"e{number}" for number in range(count)],
            "row": list(range(count)),
            "time": pa.array([*[dt.datetime(2024, 6, 1)] * (count - 1), time]),
            "known": pa.array([*[dt.datetime(2024, 1, 1)] * (count - 1), known])
            if not isinstance(known, str)
            else pa.array([*["2024-01-01 00:00"] * (count - 1), known]),
        }
    )


NOON = dt.datetime(2024, 11, 3, 12)


@pytest.mark.parametrize(
    ("known", "equal", "allowed"),
    [
        (NOON - dt.timedelta(microseconds=1), "late", True),
        (NOON, "late", False),
        (NOON, "keep", True),
        (NOON + dt.timedelta(microseconds=1), "keep", False),
        ("2024-11-02", "late", True),
        ("2024-11-03", "late", False),
        ("2024-11-03", "keep", False),
        ("20241102", "late", False),  # the file writes times in another form
        ("2024-11-03 11:59:59", "late", True),
        ("2024-11-03 12:00", "late", False),
        ("soon", "late", False),
        (None, "keep", False),
    ],
)
def test_each_clause_of_the_law(tmp_path: Path, known: Any, equal: str, allowed: bool) -> None:
    pq.write_table(table_of(NOON, known), tmp_path / "part-0.parquet")
    asked = {"known_at": "known", "known_equal": equal}
    if allowed:
        assert [0, 1, 2, 3, 4] == ids_of_run(
            prepare(tmp_path / "part-0.parquet", tmp_path / "out", **asked)
        )
        return
    fields = {"row": 5, "value": known, "remedy": "known_late"}
    if known == "20241102":
        fields = {"remedy": "write one form"}
    with raised(InputError, path=tmp_path / "part-0.parquet", column="known", **fields):
        prepare(tmp_path / "part-0.parquet", tmp_path / "out", **asked)


def ids_of_run(made: headrace.Prepared) -> list[int]:
    return ids_of(made.out)


def test_a_typed_date_counts_as_the_end_of_its_day_and_a_timestamp_does_not(tmp_path: Path) -> None:
    midnight = dt.datetime(2024, 11, 3)
    for known, allowed in [(pa.date32(), False), (pa.date64(), False), (pa.timestamp("us"), True)]:
        table = table_of(NOON, midnight)
        column = table["known"].cast(known)
        source = tmp_path / f"{known}.parquet".replace("[", "-").replace("]", "")
        pq.write_table(table.set_column(3, "known", column), source)
        if allowed:
            assert (
                prepare(source, tmp_path / source.stem, known_at="known").manifest.source["rows"]
                == 5
            )
            continue
        with raised(InputError, row=5, column="known"):
            prepare(source, tmp_path / source.stem, known_at="known")


@pytest.mark.parametrize(
    ("time_format", "time", "known", "allowed"),
    [
        ("%d/%m/%Y", "03/11/2024", "02/11/2024", True),
        ("%d/%m/%Y", "03/11/2024", "03/11/2024", False),
        ("%d/%m/%Y %H:%M", "03/11/2024 12:00", "03/11/2024 00:00", True),
        ("yyyymmdd", "20241103", "20241102", True),
        ("yyyymmdd", "20241103", "20241103", False),
        ("epoch_s", "1730635200", "1730635199", True),
        ("epoch_s", "1730635200", "1730635200", False),
        ("epoch_days", "20030", "20029", True),
        ("epoch_days", "20030", "20030", False),
        ("epoch_days", "20030.5", "20030.25", True),
        ("auto", "20241103", "20241102", True),
        ("auto", "20241103", "20241103", False),
    ],
)
def test_texts_are_read_like_the_time(
    tmp_path: Path, time_format: str, time: str, known: str, allowed: bool
) -> None:
    early = {
        "%d/%m/%Y": "01/06/2024",
        "%d/%m/%Y %H:%M": "01/06/2024 00:00",
        "epoch_s": "1717200000",
    }
    early |= {"yyyymmdd": "20240601", "auto": "20240601", "epoch_days": "19875"}
    before = {
        "%d/%m/%Y": "01/05/2024",
        "%d/%m/%Y %H:%M": "01/05/2024 00:00",
        "epoch_s": "1714521600",
    }
    before |= {"yyyymmdd": "20240501", "auto": "20240501", "epoch_days": "19844"}
    lines = [(f"e{number}", early[time_format], before[time_format]) for number in range(4)]
    write_rows(
        tmp_path / "in" / "part-0.csv", ("id", "time", "known"), [*lines, ("e4", time, known)]
    )
    asked = {
        "known_at": "known",
        "dialect": {"time_format": [] if time_format == "auto" else time_format},
        "known_late": "drop",
    }
    made = prepare(tmp_path / "in", tmp_path / "out", **asked)

    assert (0 if allowed else 1) == made.manifest.dropped["known_late"]
    assert not headrace.verify(tmp_path / "out").problems


def test_a_repeated_hour_lets_no_value_in(tmp_path: Path) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    moments = {"02:15": False, "01:59": True, "02:45": False}
    for known, allowed in moments.items():
        table = table_of(dt.datetime(2024, 10, 27, 2, 30), f"2024-10-27 {known}")
        source = tmp_path / f"{known[:2]}{known[3:]}.parquet"
        pq.write_table(table, source)
        asked = {"known_at": "known", "known_late": "drop", "time_zone": berlin.key}
        made = prepare(source, tmp_path / source.stem, **asked)
        assert made.manifest.dropped["known_late"] == (not allowed)


def test_an_instant_and_a_wall_clock_time_are_compared_in_utc(tmp_path: Path) -> None:
    table = table_of(dt.datetime(2024, 7, 1, 12), NOON)
    moments = [
        *[dt.datetime(2024, 1, 1, tzinfo=dt.UTC)] * 4,
        dt.datetime(2024, 7, 1, 10, tzinfo=dt.UTC),
    ]
    for zone, dropped in (("Europe/Berlin", 1), ("UTC", 0)):  # noon in Berlin is ten in UTC
        column = pa.array(moments, pa.timestamp("us", "UTC"))
        pq.write_table(table.set_column(3, "known", column), tmp_path / "part-0.parquet")
        made = prepare(
            tmp_path / "part-0.parquet",
            tmp_path / zone[:3],
            known_at="known",
            known_late="drop",
            time_zone=zone,
        )
        assert dropped == made.manifest.dropped["known_late"]


def test_folds_drop_the_rows_that_were_known_late(tmp_path: Path) -> None:
    start = dt.datetime(2024, 1, 1)
    table = pl.DataFrame(
        {
            "id": [f"e{number % 9}" for number in range(90)],
            "row": list(range(90)),
            "time": [start + number * DAY for number in range(90)],
            "known": [start + (number - 1 + number % 2) * DAY for number in range(90)],
        }
    )
    for word in ("rolling:n=2,step=10d", "group-kfold:k=3"):
        out = tmp_path / word[:5]
        asked = {
            **ASKED,
            "folds": word,
            "known_at": "known",
            "known_late": "drop",
            "split_date": "2024-03-01",
        }
        if word.startswith("group"):
            del asked["split_date"], asked["train_ratio"]
            made = headrace.prepare(TemporalSplit(source=table, **asked), out)
        else:
            made = headrace.prepare(TemporalSplit(source=table, **asked), out)

        assert 45 == made.manifest.dropped["known_late"]
        assert not headrace.verify(out).problems
        assert [each.name for each in headrace.verify(out).checks].count(
            "known before the row"
        ) == 1


def test_verify_proves_it_from_the_written_splits(tmp_path: Path) -> None:
    """A run that was prepared without the law is judged with it."""
    pq.write_table(table_of(NOON, NOON), tmp_path / "part-0.parquet")
    prepare(tmp_path / "part-0.parquet", tmp_path / "out")
    run = FinishedRun(*find_run(tmp_path / "out"))
    lawful = settings_of(run).model_copy(update={"known_at": ("known",)})
    keeping = lawful.model_copy(update={"known_equal": "keep"})

    (check,) = [each for each in checks_of(run, lawful, 1) if each.name == "known before the row"]
    assert check.problem is not None
    assert "part-00000.parquet" in check.problem
    assert "row 1" in check.problem or "row 2" in check.problem or "'known'" in check.problem
    (check,) = [each for each in checks_of(run, keeping, 1) if each.name == "known before the row"]
    assert check.problem is None


def test_the_columns_are_never_null_and_keep_their_values(tmp_path: Path) -> None:
    pq.write_table(table_of(NOON, NOON - DAY), tmp_path / "part-0.parquet")
    made = prepare(tmp_path / "part-0.parquet", tmp_path / "out", known_at="known")
    schema = headrace.open(tmp_path / "out").schema

    assert not schema.field("known").nullable
    assert made.manifest.dropped.get("known_late") is None


@pytest.mark.parametrize(
    ("asked", "setting"),
    [
        ({"known_at": "time"}, "known_at"),
        ({"known_late": "drop"}, "known_late"),
        ({"known_equal": "keep"}, "known_equal"),
        ({"known_at": "known", "label": "known"}, "label"),
    ],
)
def test_settings_that_cannot_work_are_refused(asked: dict[str, Any], setting: str) -> None:
    with raised(SettingsError, setting=setting):
        TemporalSplit(source="in", **ASKED, **asked)


def test_a_column_that_is_not_there_is_refused(tmp_path: Path) -> None:
    pq.write_table(table_of(NOON, NOON - DAY), tmp_path / "part-0.parquet")
    with raised(InputError, setting="known_at", value="unknown"):
        prepare(tmp_path / "part-0.parquet", tmp_path / "out", known_at="unknown")


def test_the_command_has_the_flags(tmp_path: Path) -> None:
    pq.write_table(table_of(NOON, NOON), tmp_path / "part-0.parquet")
    flags = [
        "--time",
        "time",
        "--entity",
        "id",
        "--split-date",
        "2025-01-01",
        "--train-ratio",
        "0.5",
    ]
    words = [
        "split",
        str(tmp_path / "part-0.parquet"),
        "--out",
        str(tmp_path / "out"),
        *flags,
        "--known-at",
        "known",
    ]
    refused = command(*words)
    done = command(*words, "--known-late", "drop", "--json")

    assert refused.returncode == 1
    assert "--known-late drop" in refused.stderr
    assert 1 == json.loads(done.stdout)["dropped"]["known_late"]
