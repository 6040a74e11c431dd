"""The cutoff is one moment, told by two clocks; a wall-clock hour that happens twice has no side."""

import datetime as dt
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.split.cutoff import Cutoff, cutoff_at
from laws import examples

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "America/St_Johns", "Australia/Lord_Howe", "Asia/Kolkata", "Pacific/Apia", "Africa/Casablanca", "Asia/Kathmandu"]  # fmt: skip


def micros(moment: dt.datetime) -> int:
    return (moment - EPOCH) // dt.timedelta(microseconds=1)


def wall(moment: dt.datetime) -> int:
    return micros(moment.replace(tzinfo=dt.UTC))


@given(st.sampled_from(ZONES), st.datetimes(dt.datetime(1975, 1, 1), dt.datetime(2037, 1, 1)))
@settings(max_examples=examples(300))
def test_an_instant_has_the_wall_clock_time_that_zoneinfo_gives_it(
    key: str, moment: dt.datetime
) -> None:
    zone = ZoneInfo(key)
    cutoff = cutoff_at(moment.replace(tzinfo=dt.UTC), key)

    assert micros(moment.replace(tzinfo=dt.UTC)) == cutoff.instant_us
    assert (
        wall(moment.replace(tzinfo=dt.UTC).astimezone(zone).replace(tzinfo=None)) == cutoff.wall_us
    )


@given(
    st.sampled_from(ZONES),
    st.datetimes(dt.datetime(1975, 1, 1), dt.datetime(2037, 1, 1)),
    st.integers(-7200, 7200),
)
@settings(max_examples=examples(300))
def test_a_wall_clock_time_is_before_the_cutoff_when_both_its_moments_are(
    key: str, at: dt.datetime, seconds: int
) -> None:
    check_sides(key, at.replace(tzinfo=dt.UTC), at + dt.timedelta(seconds=seconds))


# (zone, the UTC moment that clocks are set back)
FOLDS = [
    ("Europe/Berlin", dt.datetime(2025, 10, 26, 1)),
    ("America/New_York", dt.datetime(2025, 11, 2, 6)),
    ("America/St_Johns", dt.datetime(2010, 11, 7, 2, 31)),
    ("Australia/Lord_Howe", dt.datetime(2025, 4, 5, 15)),
    ("Africa/Casablanca", dt.datetime(2025, 2, 23, 2)),
    ("Pacific/Apia", dt.datetime(2021, 4, 3, 14)),
]


@pytest.mark.parametrize(("key", "change"), FOLDS)
@given(cut=st.integers(-5400, 5400), row=st.integers(-12_600, 12_600))
@settings(max_examples=examples(200))
def test_sides_hold_around_clocks_set_back(
    key: str, change: dt.datetime, cut: int, row: int
) -> None:
    moment = change.replace(tzinfo=dt.UTC) + dt.timedelta(seconds=cut)
    shown = (
        (change.replace(tzinfo=dt.UTC) + dt.timedelta(seconds=row))
        .astimezone(ZoneInfo(key))
        .replace(tzinfo=None)
    )

    check_sides(key, moment, shown)


def check_sides(key: str, moment: dt.datetime, shown: dt.datetime) -> None:
    """A wall-clock time outside the repeated hour is on the side of its moments; one that has both sides is inside."""
    zone = ZoneInfo(key)
    cutoff = cutoff_at(moment, key)
    both = [shown.replace(tzinfo=zone, fold=fold).astimezone(dt.UTC) for fold in (0, 1)]
    if any(each.astimezone(zone).replace(tzinfo=None) != shown for each in both):
        return  # a time that clocks skip
    sides = {each < moment for each in both}
    if cutoff.fold_start_us <= wall(shown) < cutoff.fold_end_us:
        return
    assert {wall(shown) < cutoff.wall_us} == sides


@pytest.mark.parametrize(("key", "change"), FOLDS)
def test_the_repeated_hour_is_exactly_what_happens_twice(key: str, change: dt.datetime) -> None:
    zone = ZoneInfo(key)
    at = change.replace(tzinfo=dt.UTC)
    before, after = (at - dt.timedelta(minutes=1)).astimezone(zone), at.astimezone(zone)
    span = before.utcoffset() - after.utcoffset()
    cutoff = cutoff_at(at, key)
    start = wall(after.replace(tzinfo=None))

    assert (start, start + span // dt.timedelta(microseconds=1)) == (
        cutoff.fold_start_us,
        cutoff.fold_end_us,
    )


@pytest.mark.parametrize("key", ZONES)
def test_an_ordinary_day_has_no_repeated_hour(key: str) -> None:
    cutoff = cutoff_at(dt.datetime(2025, 6, 15, 12), key)

    assert cutoff.fold_start_us == cutoff.fold_end_us


def test_a_date_without_offset_is_wall_clock_time_of_the_zone() -> None:
    cutoff = cutoff_at(dt.datetime(2025, 1, 1), "Europe/Berlin")

    assert (
        Cutoff(
            micros(dt.datetime(2024, 12, 31, 23, tzinfo=dt.UTC)),
            *[wall(dt.datetime(2025, 1, 1))] * 3,
        )
        == cutoff
    )


@pytest.mark.parametrize(
    ("when", "why"),
    [
        (dt.datetime(2025, 3, 30, 2, 30), "does not exist"),
        (dt.datetime(2025, 10, 26, 2, 30), "happens twice"),
    ],
)
def test_a_cutoff_that_clocks_skip_or_repeat_is_an_error_unless_it_has_an_offset(
    when: dt.datetime, why: str
) -> None:
    zone = "Europe/Berlin"

    with pytest.raises(ValueError, match=rf"{why} in Europe/Berlin.*give it with an offset"):
        cutoff_at(when, zone)
    assert (
        wall(when) - 3_600_000_000
        == cutoff_at(when.replace(tzinfo=dt.timezone(dt.timedelta(hours=1))), zone).instant_us
    )
