"""Numbers in words say neither more nor less than they are."""

from headrace.report.words import listed, moment, percentage, pluralise, size, span, written


def test_shares_never_read_as_none_or_all_unless_they_are() -> None:
    assert ["0 %", "under 0.1 %", "12.5 %", "over 99.9 %", "100 %"] == [
        percentage(n, 10_000) for n in (0, 1, 1250, 9999, 10_000)
    ]
    assert "0 %" == percentage(0, 0)


def test_counts_have_the_right_noun() -> None:
    assert ["1 shard", "0 shards", "1,234 shards"] == [pluralise(n, "shard") for n in (1, 0, 1234)]
    assert "2 entities" == pluralise(2, "entity", "entities")


def test_sizes_and_spans_have_round_units() -> None:
    assert ["1 byte", "1 KiB", "1.5 MiB"] == [size(n) for n in (1, 1024, 1.5 * 2**20)]
    assert ["1 second", "10 minutes", "1 hour", "2.5 days", "1 year"] == [
        span(n) for n in (1, 600, 3600, 216_000, 365.25 * 86400)
    ]


def test_moments_show_the_clock_where_it_matters() -> None:
    assert ["2025-01-01", "2025-01-01 08:30"] == [
        moment(n) for n in (1_735_689_600_000_000, 1_735_720_200_000_000)
    ]
    assert "1,000,000,000,000,000,000,000 µs" == moment(1e21)


def test_instants_of_manifests_are_told_in_utc_and_other_texts_as_they_are() -> None:
    assert "2026-11-22 12:24 UTC" == written("2026-11-22T14:24:35+02:00")
    assert "yesterday" == written("yesterday")


def test_long_lists_are_cut() -> None:
    assert ["", "a", "a and b", "a, b and c", "a, b, c and 2 more"] == [
        listed("abcde"[:n]) for n in (0, 1, 2, 3, 5)
    ]
