"""A date is read alike whatever stands beside it, and as Python's datetime reads it."""

import datetime as dt
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.formats.dates import MISSING, Dates, parse_dates
from laws import examples

EPOCH = dt.datetime(1970, 1, 1)


def micros(moment: dt.datetime) -> int:
    naive = moment if moment.tzinfo is None else moment.astimezone(dt.UTC).replace(tzinfo=None)
    return (naive - EPOCH) // dt.timedelta(microseconds=1)


def read(values: list[object], kind: pa.DataType | None = None, date_format: str = "auto") -> Dates:
    return parse_dates(pa.chunked_array([pa.array(values, kind)]), date_format)


def one(
    value: object, kind: pa.DataType | None = None, date_format: str = "auto"
) -> tuple[int | None, str | None]:
    """The microseconds and form of one value, (None, None) if it is unreadable."""
    dates = read([value], kind, date_format)
    assert bool(dates.unreadable[0]) == (dates.micros[0] == MISSING)
    return (None, None) if dates.unreadable[0] else (int(dates.micros[0]), next(iter(dates.forms)))


NOON = micros(dt.datetime(2025, 1, 5, 12, 30))
DAY = micros(dt.datetime(2025, 1, 5))


@pytest.mark.smoke(every=5)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2025-01-05", (DAY, "iso")),
        ("2025-1-5", (DAY, "iso")),
        ("2025-01-05 12:30", (NOON, "iso")),
        ("2025-01-05T12:30", (NOON, "iso")),
        ("2025-1-5 12:30", (NOON, "iso")),
        ("2025-01-05 12:30:00", (NOON, "iso")),
        ("2025-01-05T12:30:00.5", (NOON + 500_000, "iso")),
        ("2025-01-05T12:30:00.123456", (NOON + 123_456, "iso")),
        ("2025-01-05T12:30:00.123456789", (NOON + 123_456, "iso")),
        ("2025-01-05T12:30:00Z", (NOON, "iso_zoned")),
        ("2025-01-05T12:30Z", (NOON, "iso_zoned")),
        ("2025-01-05 14:30:00+02:00", (NOON, "iso_zoned")),
        ("2025-01-05 14:30:00+0200", (NOON, "iso_zoned")),
        ("2025-01-05 14:30:00+02", (NOON, "iso_zoned")),
        ("2025-01-05 14:30+02", (NOON, "iso_zoned")),
        ("2025-01-05 14:30:00 +02:00", (NOON, "iso_zoned")),
        ("2025-01-05 12", (NOON - 1_800_000_000, "iso")),
        ("2025-01-05T12Z", (NOON - 1_800_000_000, "iso_zoned")),
        ("2025-01-05 14+02", (NOON - 1_800_000_000, "iso_zoned")),
        ("2025-01-05 9:05", (DAY + 32_700_000_000, "iso")),
        ("2025-01-05 18:00:00+05:30", (NOON, "iso_zoned")),
        ("2025-01-05 03:30:00.5-09:00", (NOON + 500_000, "iso_zoned")),
        ("20250105", (DAY, "yyyymmdd")),
        ("20250105.0", (DAY, "yyyymmdd")),
        ("1736080200", (NOON, "epoch_s")),
        ("1736080200.5", (NOON + 500_000, "epoch_s")),
        ("1736080200000", (NOON, "epoch_ms")),
        ("1969-12-31 23:59:59.999999", (-1, "iso")),
        ("0001-01-01", (micros(dt.datetime(1, 1, 1)), "iso")),
        ("9999-12-31", (micros(dt.datetime(9999, 12, 31)), "iso")),
        ("2025-02-30", (None, None)),
        ("2025-13-01", (None, None)),
        ("20250230", (None, None)),
        ("20251301", (None, None)),
        ("2025-01-05 24:00", (None, None)),
        ("2025-01-05 12:60", (None, None)),
        ("05/01/2025", (None, None)),
        ("yesterday", (None, None)),
        ("2025", (None, None)),
        ("2025-01", (None, None)),
        ("nan", (None, None)),
        ("inf", (None, None)),
        ("-1", (None, None)),
        ("", (None, None)),
    ],
)
def test_a_text_is_read_alike_whatever_stands_beside_it(
    text: str, expected: tuple[int | None, str | None]
) -> None:
    micros, form = expected
    neighbours: list[list[str | None]] = [
        [],
        [None],
        ["2025-01-05"],
        ["no date"],
        ["2025-01-05T00:00:00Z"],
    ]
    for beside in neighbours:
        dates = read([text, *beside], pa.string())

        assert micros == (None if dates.unreadable[0] else dates.micros[0]), beside
        assert form is None or form in dates.forms, beside


def spelled(moment: dt.datetime) -> st.SearchStrategy[str]:
    if moment.tzinfo is not None:
        return st.sampled_from([moment.isoformat(), moment.isoformat(" ")])
    plain = f"{moment.year}-{moment.month}-{moment.day} {moment:%H:%M:%S.%f}".replace(
        f"{moment.year}-", f"{moment.year:04d}-"
    )
    return st.sampled_from([moment.isoformat(), moment.isoformat(" "), plain])


offsets = st.none() | st.integers(-23 * 60, 23 * 60).map(
    lambda minutes: dt.timezone(dt.timedelta(minutes=minutes))
)
moments = st.builds(
    lambda at, zone: at.replace(tzinfo=zone),
    st.datetimes(dt.datetime(2, 1, 1), dt.datetime(9998, 1, 1)),
    offsets,
)


@pytest.mark.slow
@given(
    st.lists(
        moments.flatmap(lambda at: st.tuples(st.just(at), spelled(at))), min_size=1, max_size=5
    )
)
@settings(max_examples=examples(400))
def test_iso_texts_are_what_datetime_says(pairs: list[tuple[dt.datetime, str]]) -> None:
    dates = read([text for _, text in pairs], pa.string())

    assert [micros(at) for at, _ in pairs] == dates.micros.tolist()
    assert {"iso" if at.tzinfo is None else "iso_zoned" for at, _ in pairs} == dates.forms


shapes = r"\A20[0-9]{2}-(0?[1-9]|1[0-2])-([012]?[0-9]|3[01])([ T][01]?[0-9](:[0-5][0-9](:[0-5][0-9](\.[0-9]{1,9})?)?)?)?( ?(Z|[+-][01][0-9](:?[0-5][0-9])?))?\Z"  # fmt: skip
texts = st.from_regex(shapes) | st.text(alphabet="0123456789.-:TZ+e ", max_size=14)


@pytest.mark.slow
@given(st.lists(texts, min_size=1, max_size=6))
@settings(max_examples=examples(500))
def test_a_column_is_read_as_its_values_are_one_by_one(values: list[str]) -> None:
    together = read(list(values), pa.string())

    assert [one(value, pa.string())[0] for value in values] == [
        None if bad else int(at)
        for bad, at in zip(together.unreadable, together.micros, strict=True)
    ]


@given(
    st.dates(dt.date(1000, 1, 1), dt.date(9999, 12, 31)),
    st.sampled_from([pa.int32(), pa.int64(), pa.float64(), pa.string()]),
)
def test_yyyymmdd_is_the_day_it_says(day: dt.date, kind: pa.DataType) -> None:
    number = int(f"{day:%Y%m%d}")
    value = (
        str(number) if kind == pa.string() else float(number) if kind == pa.float64() else number
    )

    assert (micros(dt.datetime.combine(day, dt.time())), "yyyymmdd") == one(value, kind)


@given(st.integers(10**7, 10**8 - 1))
def test_a_number_of_8_digits_that_is_no_day_is_unreadable(number: int) -> None:
    try:
        day = dt.datetime.strptime(str(number), "%Y%m%d")
    except ValueError:
        assert (None, None) == one(number)
        return
    assert (micros(day), "yyyymmdd") == one(number)


@given(
    st.datetimes(dt.datetime(2001, 9, 10), dt.datetime(2100, 1, 1)),
    st.sampled_from(["epoch_s", "epoch_ms"]),
)
def test_epochs_are_told_apart_by_their_digits_and_keep_microseconds(
    moment: dt.datetime, form: str
) -> None:
    at = micros(moment)
    value = at / (1e6 if form == "epoch_s" else 1e3)

    assert (at, form) == one(value)
    assert (at, form) == one(repr(value), pa.string())


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (-86400, "epoch_s"),
        (-86400000, "epoch_ms"),
        (0, "epoch_s"),
        (-0.5, "epoch_s"),
        (99, "epoch_ms"),
    ],
)
def test_a_declared_epoch_may_be_any_number_also_negative(value: float, form: str) -> None:
    assert (round(value * (1e6 if form == "epoch_s" else 1e3)), form) == one(
        value, date_format=form
    )
    assert (round(value * (1e6 if form == "epoch_s" else 1e3)), form) == one(
        str(value), pa.string(), form
    )


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), 1e300, -1e300, 2.0**63])
@pytest.mark.parametrize("date_format", ["auto", "epoch_s", "epoch_ms", "yyyymmdd", "iso"])
def test_a_number_beyond_time_is_unreadable(value: float, date_format: str) -> None:
    assert (None, None) == one(value, date_format=date_format)


def test_a_declared_form_reads_no_other() -> None:
    values = ["2025-01-05", "20250105", "1736080200", "1736080200000"]
    for place, date_format in enumerate(["iso", "yyyymmdd", "epoch_s", "epoch_ms"]):
        readable = [not bad for bad in read(values, pa.string(), date_format).unreadable]
        assert readable[place]
        assert (
            date_format in ("epoch_s", "epoch_ms") or [place] == np.flatnonzero(readable).tolist()
        )


@pytest.mark.parametrize(
    ("text", "pattern", "expected"),
    [
        ("05/01/2025", "%d/%m/%Y", (DAY, "pattern")),
        ("05.01.25 12:30", "%d.%m.%y %H:%M", (NOON, "pattern")),
        ("Jan 5 2025 12:30:00", "%b %d %Y %H:%M:%S", (NOON, "pattern")),
        ("05/01/2025 12:30:00 +0000", "%d/%m/%Y %H:%M:%S %z", (NOON, "pattern_zoned")),
        ("05/01/2025 14:30:00 +0200", "%d/%m/%Y %H:%M:%S %z", (NOON, "pattern_zoned")),
        ("05/01/2025 12:30 PM", "%d/%m/%Y %I:%M %p", (NOON, "pattern")),
        ("2025-01-05", "%F", (DAY, "pattern")),
        ("20250105", "%Y%m%d", (DAY, "pattern")),
        ("31/02/2025", "%d/%m/%Y", (None, None)),
        ("2025-01-05", "%d/%m/%Y", (None, None)),
    ],
)
def test_a_pattern_reads_what_it_says(
    text: str, pattern: str, expected: tuple[int | None, str | None]
) -> None:
    assert expected == one(text, pa.string(), pattern)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
@given(moment=st.datetimes(dt.datetime(1678, 1, 1), dt.datetime(2262, 1, 1)))
@settings(max_examples=examples(30))
def test_timestamps_of_any_unit_are_the_same_moment(
    unit: str, zone: str | None, moment: dt.datetime
) -> None:
    step = {"s": 10**6, "ms": 10**3}.get(unit, 1)
    moment = moment.replace(microsecond=moment.microsecond // step * step)
    value = moment if zone is None else moment.replace(tzinfo=dt.UTC).astimezone(ZoneInfo(zone))

    assert (micros(moment), "iso" if zone is None else "iso_zoned") == one(
        value, pa.timestamp(unit, zone)
    )


def test_nanoseconds_are_rounded_down_also_before_1970() -> None:
    column = pa.chunked_array([pa.array([-1, 999, 1001], pa.int64()).cast(pa.timestamp("ns"))])

    assert [-1, 0, 1] == parse_dates(column, "auto").micros.tolist()


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64()])
def test_dates_are_their_midnight(kind: pa.DataType) -> None:
    assert (DAY, "iso") == one(dt.date(2025, 1, 5), kind)
    assert (-86_400_000_000, "iso") == one(dt.date(1969, 12, 31), kind)


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.int64(), pa.float64(), pa.date32(), pa.timestamp("ns"), pa.null()]
)
def test_a_null_is_missing_and_not_unreadable(kind: pa.DataType) -> None:
    dates = read([None], kind)

    assert ([MISSING], [False], frozenset()) == (
        dates.micros.tolist(),
        dates.unreadable.tolist(),
        dates.forms,
    )


@pytest.mark.parametrize("value", [True, [1], {"a": 1}, b"2025"])
def test_a_value_of_another_kind_is_unreadable(value: object) -> None:
    assert (None, None) == one(value)


def test_a_not_a_number_is_missing() -> None:
    dates = read([float("nan")])

    assert ([MISSING], [False]) == (dates.micros.tolist(), dates.unreadable.tolist())


def test_several_chunks_are_one_column() -> None:
    column = pa.chunked_array([pa.array(["2025-01-05"]), pa.array(["2025-01-05 12:30", None])])

    assert [DAY, NOON, MISSING] == parse_dates(column, "auto").micros.tolist()


@pytest.mark.parametrize("form", ["epoch_s", "epoch_ms"])
def test_large_numbers_are_unreadable_without_a_warning(form: str) -> None:
    read = parse_dates(pa.chunked_array([[2.0**53 - 1, 20_240_629_000_001.0 * 100]]), form)

    assert [True] == read.unreadable.tolist()[:1]
