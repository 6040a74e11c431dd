"""Dates as other systems write them: read as the instant they mean, or refused with the word that would read them."""

import datetime as dt
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.errors import InputError, SettingsError
from headrace.formats.dates import MISSING, parse_dates
from raised import raised
from tables import HEADER, split, split_rows, write_rows

EPOCH = dt.datetime(1970, 1, 1)
NOON = (dt.datetime(2025, 1, 5, 12, 30) - EPOCH) // dt.timedelta(microseconds=1)
DAY = (dt.datetime(2025, 1, 5) - EPOCH) // dt.timedelta(microseconds=1)


def micros(value: object, date_format: str = "auto", kind: pa.DataType | None = None) -> int | None:
    """The instant of one value; None where it is refused."""
    dates = parse_dates(pa.chunked_array([pa.array([value], kind)]), date_format)
    assert bool(dates.unreadable[0]) == (dates.micros[0] == MISSING)
    return None if dates.unreadable[0] else int(dates.micros[0])


@pytest.mark.parametrize(
    "text",
    [
        "2025-01-05t12:30:00z",
        "2025-01-05T12:30:00,0Z",
        "2025-01-05 12:30:00+00",
        "2025-01-05 12:30:00+0000",
        "2025-01-05 12:30:00-00:00",
        "2025-01-05 12:30:00 UTC",
        "2025-01-05t12:30:00,000",
    ],
)
def test_every_way_to_write_an_iso_instant_is_read(text: str) -> None:
    assert NOON == micros(text, "iso")


@pytest.mark.parametrize(
    "text",
    [
        "2016-12-31 23:59:60",
        "2016-12-31T23:59:60Z",
        "0000-01-01",
        "0000-00-00 00:00:00",
        "10000-01-01",
        "25-01-05",
        "2025-W01-7",
        "2025-005",
        "2025-01-05T24:00:00",
        "٢٠٢٥-٠١-٠٥",
        "0001-01-01T00:00:00+05:00",
        "9999-12-31T23:59:59-05:00",
    ],
)
def test_what_is_no_iso_date_of_a_year_from_1_to_9999_is_refused(text: str) -> None:
    assert micros(text, "iso") is None


@pytest.mark.parametrize(
    ("value", "date_format"),
    [
        (1_736_080_200_000_000, "auto"),
        (1_736_080_200_000_000_999, "auto"),
        ("1736080200000000", "auto"),
        ("1736080200000000999", "auto"),
        (1_736_080_200_000_000, "epoch_us"),
        (1_736_080_200_000_000_999, "epoch_ns"),
        (1.7360802e9, "auto"),
        ("1.7360802e9", "auto"),
        (20_093.520_833_333_332, "epoch_days"),
        (45_662.520_833_333_336, "excel_days"),
        ("2025010512", "%Y%m%d%H"),
        (202_501_051_230, "%Y%m%d%H%M"),
    ],
)
def test_an_epoch_of_any_unit_is_the_instant_it_counts_to(value: object, date_format: str) -> None:
    expected = DAY + 12 * 3_600_000_000 if date_format == "%Y%m%d%H" else NOON

    assert expected == micros(value, date_format)


def test_nanoseconds_keep_every_microsecond_beyond_53_bits() -> None:
    assert 1_736_080_200_123_457 == micros(1_736_080_200_123_457_999, "epoch_ns")
    assert 1_736_080_200_123_457 == micros("1736080200123457999", "auto")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (2**40, pa.timestamp("s")),
        (2**62, pa.timestamp("ms")),
        (2**62, pa.timestamp("us")),
        (-(2**62), pa.timestamp("us", "UTC")),
        (2**31 - 1, pa.date32()),
        (2**50, pa.date64()),
    ],
)
def test_a_typed_time_that_does_not_fit_is_refused_and_never_wraps(
    value: int, kind: pa.DataType
) -> None:
    width = pa.int32() if kind == pa.date32() else pa.int64()
    dates = parse_dates(pa.chunked_array([pa.array([value], width).cast(kind)]), "auto")

    assert [True] == dates.unreadable.tolist()


def test_a_year_of_two_digits_is_not_a_year_of_the_first_century() -> None:
    assert micros("05/01/25", "%d/%m/%Y") is None
    assert DAY == micros("05/01/25", "%d/%m/%y")


def test_a_leap_second_is_not_moved_to_the_next_minute() -> None:
    assert micros("31/12/2016 23:59:60", "%d/%m/%Y %H:%M:%S") is None
    assert micros("31/12/2016 23:60", "%d/%m/%Y %H:%M") is None


def test_seconds_of_a_pattern_are_an_instant() -> None:
    dates = parse_dates(pa.chunked_array([["1736080200"]]), "%s")

    assert ([NOON], [True]) == (dates.micros.tolist(), dates.instant.tolist())


@pytest.mark.parametrize("pattern", ["%d/%m/%Y %Q", "%d/%m/%Y %H:%M %p", "%H:%M", "50%"])
def test_a_pattern_that_can_read_no_date_is_refused_when_settings_are_built(pattern: str) -> None:
    with pytest.raises(SettingsError, match="time_format"):
        headrace.TemporalSplit(
            source="raw",
            time="date",
            entity="id",
            split_date="2025-01-01",
            dialect={"time_format": pattern},
        )


def rows_of(dates: list[str], first: int = 0) -> list[tuple[str, str, str]]:
    return [(f"e{first + number}", date, str(first + number)) for number, date in enumerate(dates)]


EARLY = [f"2024-0{month}-01 00:00:00" for month in range(1, 9)]


@pytest.mark.parametrize("extension", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("where", ["one shard", "two shards"])
def test_naive_and_zoned_iso_dates_mix(tmp_path: Path, extension: str, where: str) -> None:
    """The split date is 2024-12-31 23:00 UTC: what is naive is on Berlin's clock."""
    naive = rows_of([*EARLY, "2024-12-31 23:59:59", "2025-01-01 00:00:00"])
    zoned = rows_of(
        ["2024-12-31T22:59:59Z", "2024-12-31T23:00:00Z", "2025-01-01T00:59:59+02:00"], 100
    )
    if where == "one shard":
        write_rows(tmp_path / "in" / f"part-0{extension}", HEADER, naive + zoned)
    else:
        write_rows(tmp_path / "in" / f"part-0{extension}", HEADER, naive)
        write_rows(tmp_path / "in" / f"part-1{extension}", HEADER, zoned)
    prepared = split(
        tmp_path / "in", tmp_path / "out", dialect={"time_format": "iso"}, time_zone="Europe/Berlin"
    )

    assert {"e9", "e101"} == {str(row[0]) for row in split_rows(prepared.run, "test")}
    before = {str(row[0]) for name in ("train", "val") for row in split_rows(prepared.run, name)}
    assert {*(f"e{number}" for number in range(9)), "e100", "e102"} == before
    assert "iso_mixed" == prepared.manifest.metadata["date_form"]
    assert headrace.verify(tmp_path / "out").problems == []


def test_the_index_of_mixed_dates_is_on_one_clock(tmp_path: Path) -> None:
    rows = rows_of([*EARLY, "2025-01-01 01:00:00", "2025-01-01T00:30:00Z"])
    write_rows(tmp_path / "in" / "part-0.csv", HEADER, rows)
    prepared = split(
        tmp_path / "in", tmp_path / "out", dialect={"time_format": "iso"}, time_zone="Europe/Berlin"
    )
    index = headrace.open(tmp_path / "out").split_index("test")
    keys = pq.read_table(
        prepared.run / "index.parquet", columns=["split", "key_min", "key_max"]
    ).to_pylist()
    utc = (dt.datetime(2025, 1, 1) - EPOCH) // dt.timedelta(microseconds=1)

    assert 2 == int(index.rows.sum())
    assert [(utc, utc + 1_800_000_000)] == [
        (row["key_min"], row["key_max"]) for row in keys if row["split"] == "test"
    ]


def test_a_naive_date_in_a_repeated_hour_is_refused_beside_zoned_ones(tmp_path: Path) -> None:
    rows = rows_of([*EARLY, "2024-10-27T00:30:00Z", "2024-10-27 02:30:00"])
    write_rows(tmp_path / "in" / "part-0.csv", HEADER, rows)
    asked = {
        "dialect": {"time_format": "iso"},
        "time_zone": "Europe/Berlin",
        "split_date": "2024-10-27T02:30:00+01:00",
    }

    with raised(InputError, row=10, column="date", value="2024-10-27 02:30:00"):
        split(tmp_path / "in", tmp_path / "out", **asked)


@pytest.mark.parametrize("where", ["one shard", "two shards"])
def test_a_mix_is_refused_without_a_word_of_the_user_and_the_word_is_named(
    tmp_path: Path, where: str
) -> None:
    naive, zoned = rows_of(EARLY), rows_of(["2025-01-01T00:00:00Z"], 100)
    write_rows(
        tmp_path / "in" / "part-0.csv", HEADER, naive + zoned if where == "one shard" else naive
    )
    write_rows(tmp_path / "in" / "part-1.csv", HEADER, zoned)

    with raised(InputError, column="date", remedy='dialect={"time_format": "iso"}'):
        split(tmp_path / "in", tmp_path / "out")


def epochs(unit: int, days: range) -> list[str]:
    return [str((20_000 + 30 * day) * 86_400 * unit) for day in days]  # from 2024-10-04 on


@pytest.mark.parametrize("date_format", ["auto", "epoch_s", "epoch_ms", "epoch_us", "epoch_ns"])
@pytest.mark.parametrize(
    "units", [(1, 1_000), (1_000, 1), (1_000, 1_000_000), (1_000_000, 10**9), (10**9, 1)]
)
@pytest.mark.parametrize("bad_rows", ["error", "drop"])
def test_shards_of_two_units_are_refused_by_name(
    tmp_path: Path, date_format: str, units: tuple[int, int], bad_rows: str
) -> None:
    for number, unit in enumerate(units):
        write_rows(
            tmp_path / "in" / f"part-{number}.csv",
            HEADER,
            rows_of(epochs(unit, range(12)), 100 * number),
        )

    with raised(InputError, column="date") as caught:
        split(
            tmp_path / "in",
            tmp_path / "out",
            dialect={"time_format": [] if date_format == "auto" else date_format},
            bad_rows=bad_rows,
        )
    assert "epoch_" in str(caught.value)


def test_two_units_in_one_shard_are_refused_by_row(tmp_path: Path) -> None:
    rows = rows_of([*epochs(1_000, range(6)), *epochs(1, range(6))])
    write_rows(tmp_path / "in" / "part-0.csv", HEADER, rows)

    with raised(InputError, column="date", remedy="write one unit throughout"):
        split(tmp_path / "in", tmp_path / "out", dialect={"time_format": "epoch_ms"})


def test_a_source_in_another_unit_than_declared_is_refused(tmp_path: Path) -> None:
    write_rows(tmp_path / "in" / "part-0.csv", HEADER, rows_of(epochs(1, range(12))))

    with raised(InputError, column="date", remedy='give dialect={"time_format": "epoch_s"}'):
        split(tmp_path / "in", tmp_path / "out", dialect={"time_format": "epoch_ms"})


def test_birthdays_around_1970_are_milliseconds_if_that_is_what_was_declared(
    tmp_path: Path,
) -> None:
    days = [-400, -20, 10, 20, 50, 200, 400, 9_000]
    rows = rows_of([str(day * 86_400_000) for day in days])
    write_rows(tmp_path / "in" / "part-0.csv", HEADER, rows)
    prepared = split(
        tmp_path / "in",
        tmp_path / "out",
        dialect={"time_format": "epoch_ms"},
        split_date="1971-01-01",
    )

    assert 2 == prepared.manifest.splits["test"].rows


def test_hours_written_as_ten_digits_are_not_taken_for_seconds(tmp_path: Path) -> None:
    rows = rows_of([f"20240{1 + number // 9}0{1 + number % 9}{number:02d}" for number in range(12)])
    write_rows(tmp_path / "in" / "part-0.csv", HEADER, [*rows, ("late", "2025010100", "99")])

    with raised(InputError, column="date", remedy='give dialect={"time_format": "%Y%m%d%H"}'):
        split(tmp_path / "in", tmp_path / "out")
    assert (
        1
        == split(tmp_path / "in", tmp_path / "out", dialect={"time_format": "%Y%m%d%H"})
        .manifest.splits["test"]
        .rows
    )


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("-86400", "epoch_s"),
        ("20093", r"epoch_days.*excel_days"),
        ("45662", r"excel_days"),
        ("20250105123000", '"%Y%m%d%H%M%S"'),
        ("Sun, 05 Jan 2025 12:30:00 +0000", r'"%a, %d %b %Y %H:%M:%S %z"'),
        ("5 Jan 2025 12:30:00 +0000", r'"%d %b %Y %H:%M:%S %z"'),
        ("2025-W01-7", '"%G-W%V-%u"'),
        ("2025-005", '"%Y-%j"'),
        ("20250105T123000Z", '"%Y%m%dT%H%M%S%#z"'),
        ("25-01-05", '"%y-%m-%d"'),
        ("03/04/2024", r'"%d/%m/%Y".*"%m/%d/%Y"'),
        ("03.04.2024 12:30", r'"%d\.%m\.%Y %H:%M"'),
        ("2016-12-31 23:59:60", "leap second"),
        ("2025-01-05 24:00:00", "00:00 of the next day"),
        ("0000-00-00", "years run from 0001 to 9999"),
        ("10000-01-01", "years run from 0001 to 9999"),
        (" 2025-01-05", "blanks around"),
        ("NA", r'"null_values": \["NA"\]'),
        ("yesterday", "correct it"),
    ],
)
def test_the_error_names_the_word_that_reads_the_value(
    tmp_path: Path, value: str, told: str
) -> None:
    write_rows(tmp_path / "in" / "part-0.csv", HEADER, [*rows_of(EARLY), ("x", value, "1")])

    with raised(InputError, row=9, column="date", value=value) as caught:
        split(tmp_path / "in", tmp_path / "out", dialect={"time_format": "iso"})
    assert re.search(told, str(caught.value))


@pytest.mark.parametrize(
    ("value", "date_format"),
    [
        ("Sun, 05 Jan 2025 12:30:00 +0000", "%a, %d %b %Y %H:%M:%S %z"),
        ("2025-W01-7", "%G-W%V-%u"),
        ("2025-005", "%Y-%j"),
        ("20250105T123000Z", "%Y%m%dT%H%M%S%#z"),
        ("20250105123000", "%Y%m%d%H%M%S"),
        ("25-01-05", "%y-%m-%d"),
    ],
)
def test_the_words_in_errors_read_what_they_are_named_for(value: str, date_format: str) -> None:
    assert micros(value, date_format) in (DAY, NOON)


def int96(path: Path, dates: list[dt.datetime], **columns: list[Any]) -> None:
    table = pa.table(
        {"id": [f"e{number}" for number in range(len(dates))], "date": dates, **columns}
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)


def test_an_int96_time_beyond_2262_does_not_come_back_as_1816(tmp_path: Path) -> None:
    """Spark writes INT96, and 9999-12-31 for "valid until revoked"."""
    early = [dt.datetime(2024, 1, day) for day in range(1, 9)]
    late = [dt.datetime(9999, 12, 31), dt.datetime(2500, 1, 1)]
    int96(tmp_path / "in" / "part-0.parquet", [*early, dt.datetime(1, 1, 1), *late])
    prepared = split(tmp_path / "in", tmp_path / "out")

    assert {"e9", "e10"} == {row[0] for row in split_rows(prepared.run, "test")}
    assert late == [row[1] for row in split_rows(prepared.run, "test")]


def test_a_stream_of_plain_shards_gives_int96_times_as_they_are(tmp_path: Path) -> None:
    int96(tmp_path / "in" / "part-0.parquet", [dt.datetime(9999, 12, 31), dt.datetime(2025, 1, 5)])
    dataset = headrace.open(tmp_path / "in", cache_dir=tmp_path / "cache")
    table = dataset.block_reader("all")(0, ["date"])

    assert [dt.datetime(9999, 12, 31), dt.datetime(2025, 1, 5)] == table["date"].to_pylist()


def test_dropped_dates_are_told_with_the_first_of_them(tmp_path: Path) -> None:
    told: list[Any] = []
    write_rows(
        tmp_path / "in" / "part-0.csv",
        HEADER,
        [*rows_of([*EARLY, "2025-01-02"]), ("x", "03/04/2024", "1")],
    )
    prepared = split(tmp_path / "in", tmp_path / "out", bad_rows="drop", on_event=told.append)
    warnings = [event.text for event in told if getattr(event, "level", "") == "warning"]

    assert 1 == prepared.manifest.dropped["unreadable_time"]
    assert any(
        "part-0.csv: row 10, column 'date' is '03/04/2024'" in text and '"%d/%m/%Y"' in text
        for text in warnings
    )
