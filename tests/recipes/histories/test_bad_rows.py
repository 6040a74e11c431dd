"""Rows that are no measurements: an error naming file, row, column and value, or dropped and counted, as asked."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pings import SPLITS, decoded, histories

import headrace
from headrace.errors import NO_VALUE
from headrace.histories.config import Histories
from headrace.run.events import StageBegan
from headrace.run.prepare import prepare
from raised import raised
from tables import write_rows

HEADER = ["src_addr", "event_time", "dst_addr", "rtt"]
GOOD = ["10.0.0.1", "2024-01-01 00:00:00", "10.0.0.2", "1.5"]

BAD = {
    "null_time": ("event_time", ""),
    "unreadable_time": ("event_time", "14/10/2016 21:17"),
    "null_entity": ("src_addr", ""),
    "unreadable_entity": ("src_addr", "10.0.0.256"),
    "null_peer": ("dst_addr", ""),
    "unreadable_peer": ("dst_addr", "fe80::1%eth0"),
    "unreadable_value": ("rtt", "fast"),
}


def bad_row(reason: str) -> list[str]:
    name, value = BAD[reason]
    row = list(GOOD)
    row[HEADER.index(name)] = value
    return row


@pytest.mark.parametrize("reason", BAD)
@pytest.mark.parametrize("extension", ["csv", "csv.gz", "jsonl"])
def test_a_bad_row_is_an_error_that_names_file_row_column_and_value(
    tmp_path: Path, reason: str, extension: str
) -> None:
    write_rows(tmp_path / "in" / f"a.{extension}", HEADER, [GOOD])
    path = write_rows(
        tmp_path / "in" / f"b.{extension}",
        HEADER,
        [GOOD, GOOD, [value or None for value in bad_row(reason)], GOOD],
    )
    name, value = BAD[reason]

    fields = {"column": name, "value": value or NO_VALUE, "remedy": 'bad_rows="drop"'}
    with raised(headrace.InputError, path=path, row=3, **fields):
        histories(tmp_path / "in", tmp_path / "out")

    assert not list((tmp_path / "out").rglob("manifest.json"))


def test_bad_rows_may_be_dropped_and_are_counted_with_their_first_place(tmp_path: Path) -> None:
    rows = [GOOD, *(bad_row(reason) for reason in BAD for _ in range(2)), GOOD]
    write_rows(tmp_path / "in" / "part-0.csv", HEADER, rows)
    write_rows(tmp_path / "in" / "part-1.csv", HEADER, [bad_row("null_peer")])
    prepared = histories(tmp_path / "in", tmp_path / "out", bad_rows="drop")

    expected = dict.fromkeys(BAD, 2) | {
        "null_peer": 3,
        "missing_value": 0,
        "negative_value": 0,
        "zero_value": 0,
        "ambiguous_time": 0,
        "skipped_time": 0,
    }
    assert expected | {"not_sampled": 0} == prepared.manifest.dropped
    first = prepared.manifest.metadata["first_dropped"]
    assert set(BAD) == set(first)
    for number, (reason, (name, value)) in enumerate(BAD.items()):
        where = f"part-0.csv: row {2 + 2 * number}, column {name!r}"
        if value:
            where += f" is {value!r}"
        assert first[reason].startswith(f"{where}: ")
    assert sum(prepared.manifest.metadata["source_rows"].values()) == 2
    assert headrace.verify(tmp_path / "out").problems == []


def test_a_row_has_one_reason_the_first(tmp_path: Path) -> None:
    write_rows(tmp_path / "in" / "a.csv", HEADER, [GOOD, ["x", "y", "z", "w"]])
    prepared = histories(tmp_path / "in", tmp_path / "out", bad_rows="drop")

    assert {"unreadable_time": 1} == {
        word: count for word, count in prepared.manifest.dropped.items() if count
    }


VALUES = [
    ("", "missing"),
    ("nan", "missing"),
    ("-3", "negative"),
    ("-0.001", "negative"),
    ("0", "zero"),
    ("-0.0", "zero"),
]


@pytest.mark.parametrize(("value", "rule"), VALUES)
def test_values_that_are_no_latency_are_what_their_rule_says(
    tmp_path: Path, value: str, rule: str
) -> None:
    write_rows(tmp_path / "in" / "a.csv", HEADER, [GOOD, [*GOOD[:3], value]])

    def rtts(word: str) -> list[float | None]:
        prepared = histories(tmp_path / "in", tmp_path / word, **{rule: word})
        return [each.rtt for measurements in decoded(prepared).values() for each in measurements]

    assert {1.5, None} == set(rtts("failed"))
    assert [1.5] == rtts("drop")
    with raised(headrace.InputError, row=2, column="rtt", remedy=f"give {rule}="):
        rtts("error")
    if rule == "zero":
        assert {1.5, 0.001} == set(rtts("value"))


def test_infinite_values_are_unreadable_and_huge_ones_clamp_and_are_counted(tmp_path: Path) -> None:
    rows = [GOOD, [*GOOD[:3], "inf"], [*GOOD[:3], "1e12"], [*GOOD[:3], "1e300"]]
    write_rows(tmp_path / "in" / "a.csv", HEADER, rows)
    prepared = histories(tmp_path / "in", tmp_path / "out", bad_rows="drop")

    assert prepared.manifest.dropped["unreadable_value"] == 1
    assert prepared.manifest.metadata["clamped"] == 2
    rtts = sorted(
        each.rtt or 0 for measurements in decoded(prepared).values() for each in measurements
    )
    assert [1.5, (2047 << 31) / 1000, (2047 << 31) / 1000] == rtts


@pytest.mark.parametrize(
    ("form", "values"),
    [
        ("epoch_s", ["1700000000", "1700000001"]),
        ("epoch_ms", ["1700000000000", "1700000001999"]),
        ("iso", ["2023-11-14T22:13:20Z", "2023-11-14T23:13:21+01:00"]),
        ("%d.%m.%Y %H:%M:%S", ["14.11.2023 22:13:20", "14.11.2023 22:13:21"]),
    ],
)
@pytest.mark.parametrize("extension", ["csv", "parquet", "jsonl", "tsv"])
def test_times_of_every_declared_form(
    tmp_path: Path, form: str, values: list[str], extension: str
) -> None:
    typed: list[Any] = (
        [int(value) for value in values]
        if form.startswith("epoch") and extension != "csv"
        else values
    )
    write_rows(
        tmp_path / "in" / f"a.{extension}",
        HEADER,
        [[GOOD[0], value, GOOD[2], 1.0] for value in typed],
    )
    prepared = histories(tmp_path / "in", tmp_path / "out", dialect={"time_format": form})

    times = [
        each.event_time for measurements in decoded(prepared).values() for each in measurements
    ]
    assert [1_700_000_000, 1_700_000_001] == times


def test_numbers_need_a_declared_unit(tmp_path: Path) -> None:
    write_rows(tmp_path / "in" / "a.parquet", HEADER, [[GOOD[0], 1_700_000_000, GOOD[2], 1.0]])

    with raised(headrace.InputError, row=1, column="event_time", value=1700000000):
        histories(tmp_path / "in", tmp_path / "out")


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_timestamps_of_every_unit_and_zone(tmp_path: Path, unit: str) -> None:
    (tmp_path / "in").mkdir()
    for zone in (None, "Europe/Berlin"):
        times = (
            pa.array([1_700_000_000], pa.int64())
            .cast(pa.timestamp("s"))
            .cast(pa.timestamp(unit, zone))
        )
        table = pa.table(
            {"src_addr": [GOOD[0]], "event_time": times, "dst_addr": [GOOD[2]], "rtt": [1.0]}
        )
        pq.write_table(table, tmp_path / "in" / f"{zone is None}.parquet")
    prepared = histories(tmp_path / "in", tmp_path / "out")

    assert [1_700_000_000] * 2 == [
        each.event_time for split in SPLITS for each in decoded(prepared)[split]
    ]


@pytest.mark.parametrize(("unit", "factor"), [("us", 0.001), ("ms", 1), ("s", 1000)])
def test_values_of_every_unit(tmp_path: Path, unit: str, factor: float) -> None:
    write_rows(tmp_path / "in" / "a.csv", HEADER, [[*GOOD[:3], "12"]])
    prepared = histories(tmp_path / "in", tmp_path / "out", value_unit=unit)

    (rtt,) = [each.rtt for split in SPLITS for each in decoded(prepared)[split]]
    assert rtt == pytest.approx(12 * factor, rel=0.00049)


def test_a_missing_column_names_those_that_are_there(tmp_path: Path) -> None:
    path = write_rows(
        tmp_path / "in" / "a.csv", ["src_addr", "when", "rtt"], [["10.0.0.1", "x", "1"]]
    )

    with raised(headrace.InputError, path=path, value="event_time", remedy="time="):
        histories(tmp_path / "in", tmp_path / "out", peer=None)


def test_a_column_that_cannot_hold_values_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    table = pa.table({"src_addr": [GOOD[0]], "event_time": [GOOD[1]], "rtt": [[1.0]]})
    pq.write_table(table, tmp_path / "in" / "a.parquet")

    with raised(headrace.InputError, column="rtt", remedy="name a column of numbers"):
        histories(tmp_path / "in", tmp_path / "out", peer=None)


def test_empty_shards_are_fine_and_named_in_the_manifest(tmp_path: Path) -> None:
    write_rows(tmp_path / "in" / "a.csv", HEADER, [GOOD])
    write_rows(tmp_path / "in" / "b.csv", HEADER, [])
    prepared = histories(tmp_path / "in", tmp_path / "out")

    assert ["b.csv"] == prepared.manifest.source["empty_shards"]
    assert headrace.verify(tmp_path / "out").problems == []


def test_a_source_without_any_measurement_gives_empty_splits(tmp_path: Path) -> None:
    write_rows(tmp_path / "in" / "a.csv", HEADER, [])
    prepared = histories(tmp_path / "in", tmp_path / "out", partitions=None)

    assert {"train": 0, "test": 0} == {
        split: totals.rows for split, totals in prepared.manifest.splits.items()
    }
    assert headrace.verify(tmp_path / "out").problems == []
    assert pq.read_table(prepared.run / "rows.parquet").num_rows == 0


def test_numbers_as_entities_and_peers_from_columns_and_file_names(tmp_path: Path) -> None:
    for name in ("7", "4294967295"):
        write_rows(
            tmp_path / "in" / f"{name}.csv", ["event_time", "to", "rtt"], [[GOOD[1], "99", "1"]]
        )
    asked = {
        "entity_from": "file_name",
        "entity_kind": "number",
        "peer": "to",
        "peer_kind": "number",
    }
    found = decoded(histories(tmp_path / "in", tmp_path / "out", **asked))

    both = {(each.src_addr, each.dst_addr) for split in SPLITS for each in found[split]}
    assert {("7", "99"), ("4294967295", "99")} == both
    write_rows(tmp_path / "in" / "host.csv", ["event_time", "to", "rtt"], [[GOOD[1], "99", "1"]])
    path = tmp_path / "in" / "host.csv"
    with raised(headrace.InputError, path=path, row=1, remedy='entity_kind="text"'):
        histories(tmp_path / "in", tmp_path / "out", **asked)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"dialect": {"time_format": "dmy"}}, "time_format is 'dmy'"),
        ({"sample_rate": 0}, "sample_rate"),
        ({"train_ratio": 1.5}, "train_ratio"),
        ({"memory_limit": "lots"}, "memory_limit"),
        ({"memory_limit": 1000}, "memory_limit"),
        ({"max_row_bytes": 0}, "max_row_bytes"),
        ({"zero": "maybe"}, "zero"),
        ({"peers": "x"}, "did you mean 'peer'"),
    ],
)
def test_settings_that_cannot_work_say_so(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(headrace.SettingsError, match=says):
        Histories(source="in", **settings)


@pytest.mark.parametrize(
    ("settings", "setting"),
    [({"entity": "rtt"}, "entity"), ({"peer_kind": "number"}, "peer_kind")],
)
def test_settings_that_do_not_fit_together_name_the_first(
    settings: dict[str, Any], setting: str
) -> None:
    with raised(headrace.SettingsError, setting=setting):
        Histories(source="in", **settings)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2GiB", 2 << 30), ("512 MB", 512 << 20), ("1.5g", 3 << 29), (4096 << 10, 4 << 20)],
)
def test_sizes_may_have_units(text: str | int, expected: int) -> None:
    assert expected == Histories(source="in", memory_limit=text).memory_limit


def test_settings_come_back_from_their_json() -> None:
    settings = Histories(
        source="in",
        peer="dst_addr",
        dialect={"time_format": ("iso", "%d/%m/%Y")},
        memory_limit="1GiB",
    )
    record = json.loads(json.dumps(settings.config()))

    assert settings == Histories(
        **{name: value for name, value in record.items() if name != "recipe"}
    )


def test_a_source_that_vanishes_is_no_error_of_the_output(tmp_path: Path) -> None:
    write_rows(tmp_path / "in" / "a.csv", HEADER, [GOOD])
    path = write_rows(tmp_path / "in" / "b.csv", HEADER, [GOOD])

    def remove(event: object) -> None:
        if isinstance(event, StageBegan):
            path.unlink(missing_ok=True)

    with pytest.raises((headrace.InputError, FileNotFoundError), match=r"b\.csv"):
        prepare(
            Histories(source=tmp_path / "in", peer="dst_addr"),
            tmp_path / "out",
            workers=1,
            on_event=remove,
        )
