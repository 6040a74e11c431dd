"""A temporal split end to end: what is asked for is made, and what cannot be made is an error that says why."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.errors import InputError, SettingsError
from headrace.run.events import Note
from raised import raised
from tables import (
    HEADER,
    digests,
    read_rows,
    shards,
    small_rows,
    small_source,
    split,
    split_column,
    split_rows,
    write_bytes,
    write_rows,
)

SPLITS = ("train", "val", "test")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return small_source(tmp_path / "in")


def everything(run: Path) -> dict[str, list[tuple[Any, ...]]]:
    return {name: split_rows(run, name) for name in SPLITS}


def test_the_sharded_layout_keeps_shard_numbers_with_gaps(tmp_path: Path) -> None:
    early = [(f"{n}", "2024-06-01", "0") for n in range(8)]
    late = [(f"x{n}", "2025-06-01", "0") for n in range(8)]
    for number, rows in ((2, early), (5, late), (11, early), (40, [*early, *late])):
        write_rows(tmp_path / "in" / f"part-{number}.csv.gz", HEADER, rows)
    run = split(tmp_path / "in", tmp_path / "out").run
    names = {name: [path.name for path in shards(run, name)] for name in (*SPLITS, "oot")}

    assert (
        ["part-00002.csv.gz", "part-00011.csv.gz", "part-00040.csv.gz"]
        == names["train"]
        == names["val"]
    )
    assert ["part-00005.csv.gz", "part-00040.csv.gz"] == names["test"] == names["oot"]


@pytest.mark.parametrize("layout", ["sharded", "single"])
def test_oot_data_is_the_same_files_as_test(tmp_path: Path, source: Path, layout: str) -> None:
    run = split(source, tmp_path / "out", layout=layout).run
    tests, oots = shards(run, "test"), shards(run, "oot")

    assert len(tests) == len(oots) > 0
    assert all(os.path.samefile(one, other) for one, other in zip(tests, oots, strict=True))


def test_the_single_layout_makes_one_file_a_split(tmp_path: Path, source: Path) -> None:
    run = split(source, tmp_path / "out", layout="single").run
    expected = [
        "oot_data/oot_data.csv",
        *(f"training_data/{name}/{name}_processed_data.csv" for name in ("test", "train", "val")),
    ]

    assert expected == sorted(path.relative_to(run).as_posix() for path in run.rglob("*.csv"))


def test_both_layouts_hold_the_same_rows_in_the_same_order(tmp_path: Path, source: Path) -> None:
    sharded, single = (
        split(source, tmp_path / layout, layout=layout) for layout in ("sharded", "single")
    )

    assert everything(sharded.run) == everything(single.run)


def test_splits_are_linked_to_the_newest_run(tmp_path: Path, source: Path) -> None:
    first = split(source, tmp_path / "out", seed=1)
    second = split(source, tmp_path / "out", seed=2)
    links = {path.name: path for path in (tmp_path / "out" / "splits").iterdir()}

    assert {"train", "val", "test", "oot"} == set(links)
    assert (second.run / "training_data" / "train").resolve() == links["train"].resolve()
    assert not os.readlink(links["train"]).startswith("/")
    split(source, tmp_path / "out", seed=1)
    assert (first.run / "training_data" / "train").resolve() == links["train"].resolve()


def test_a_split_date_is_an_instant_and_belongs_to_test(tmp_path: Path) -> None:
    rows = [
        (f"{n}", date, str(n))
        for n, date in enumerate(
            [
                "2024-12-31 23:59:59.999999",
                "2025-01-01 00:00:00",
                "2024-12-30",
                "2025-01-01 00:00:00.000001",
            ]
        )
    ]
    write_rows(tmp_path / "in" / "part-0.csv", HEADER, rows)
    run = split(tmp_path / "in", tmp_path / "out").run

    assert ["1", "3"] == split_column(run, "test", "row")


def test_a_split_date_with_offset_is_compared_with_naive_dates_of_the_zone(tmp_path: Path) -> None:
    rows = [(f"{n}", f"2025-01-01 {hour:02d}:00:00", str(n)) for n, hour in enumerate((0, 1, 2, 3))]
    write_rows(tmp_path / "in" / "part-0.csv", HEADER, rows)
    run = split(
        tmp_path / "in",
        tmp_path / "out",
        split_date="2025-01-01T01:00:00+00:00",
        time_zone="Europe/Berlin",
    ).run

    assert ["2", "3"] == split_column(run, "test", "row")


def test_an_hour_that_happens_twice_around_the_split_date_is_an_error(tmp_path: Path) -> None:
    rows = [
        (str(n), f"2025-10-26 {hour}:30:00", "0") for n, hour in enumerate(("00", "01", "02", "03"))
    ]
    write_rows(tmp_path / "in" / "part-0.csv", HEADER, rows)
    asked = {"split_date": "2025-10-26T01:00:00Z", "time_zone": "Europe/Berlin"}

    with raised(
        InputError,
        path=tmp_path / "in" / "part-0.csv",
        row=3,
        column="date",
        value="2025-10-26 02:30:00",
    ):
        split(tmp_path / "in", tmp_path / "out", **asked)
    assert (
        1
        == split(tmp_path / "in", tmp_path / "out", bad_rows="drop", **asked).manifest.dropped[
            "unreadable_time"
        ]
    )


@pytest.mark.parametrize(
    ("bad", "value"), [("soon", "soon"), ("", None), ("2025-02-30", "2025-02-30")]
)
def test_a_row_without_a_readable_date_is_an_error_with_file_row_and_value(
    tmp_path: Path, bad: str, value: str | None
) -> None:
    write_rows(tmp_path / "in" / "part-0.csv", HEADER, small_rows(50))
    write_rows(tmp_path / "in" / "part-1.csv", HEADER, [*small_rows(6), ("7", bad, "0")])

    with raised(
        InputError,
        path=tmp_path / "in" / "part-1.csv",
        row=7,
        column="date",
        value=value,
        remedy='bad_rows="drop"',
    ):
        split(tmp_path / "in", tmp_path / "out")


def test_a_row_without_entity_is_an_error_with_file_and_row(tmp_path: Path) -> None:
    write_rows(tmp_path / "in" / "part-0.csv", HEADER, [*small_rows(9), ("", "2024-01-01", "0")])

    path = tmp_path / "in" / "part-0.csv"
    with raised(InputError, path=path, row=10, column="id", remedy='null_entity="drop"'):
        split(tmp_path / "in", tmp_path / "out")


@pytest.mark.parametrize("place", ["one shard", "two shards"])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2024-01-01", "20240101"),
        ("2024-01-01", "2024-01-01T00:00:00Z"),
        ("1704067200", "20240101"),
        ("1704067200", "1704067200000"),
    ],
)
def test_dates_in_two_forms_are_an_error(tmp_path: Path, one: str, other: str, place: str) -> None:
    parts = [[("a", one, "0")], [("b", other, "0")]]
    if place == "one shard":
        parts = [parts[0] + parts[1]]
    for number, rows in enumerate(parts):
        write_rows(tmp_path / "in" / f"part-{number}.csv", HEADER, rows)

    path = tmp_path / "in" / f"part-{len(parts) - 1}.csv"
    with raised(InputError, path=path, column="date", remedy="time_format"):
        split(tmp_path / "in", tmp_path / "out")


def test_a_train_split_without_rows_is_an_error(tmp_path: Path) -> None:
    write_rows(
        tmp_path / "in" / "part-0.csv", HEADER, [("a", "2024-01-01", "0"), ("b", "2025-01-01", "0")]
    )

    with pytest.raises(
        InputError,
        match=r"train has no rows: 1 entity has rows before 2025-01-01.*choose a later split_date=",
    ):
        split(tmp_path / "in", tmp_path / "out")


def test_a_source_without_rows_before_the_split_date_is_an_error(tmp_path: Path) -> None:
    write_rows(tmp_path / "in" / "part-0.csv", HEADER, [("b", "2025-01-01", "0")])

    with raised(InputError, remedy="choose a later split_date"):
        split(tmp_path / "in", tmp_path / "out")


@pytest.mark.parametrize("name", ["train", "val"])
def test_a_split_that_loses_all_its_rows_to_missing_labels_is_an_error(
    tmp_path: Path, name: str
) -> None:
    rows = [("a", "2024-01-01", ""), ("b", "2024-01-01", "y")]
    write_rows(tmp_path / "in" / "part-0.csv", ("id", "date", "label"), rows)
    messages = []
    for each in range(8):
        with pytest.raises(InputError, match="has no rows") as caught:
            split(tmp_path / "in", tmp_path / "out", label="label", seed=each)
        messages.append(str(caught.value))

    assert any(message.startswith(f"{name} has no rows") for message in messages)


def test_a_test_split_without_rows_is_a_warning(tmp_path: Path) -> None:
    rows = [(f"{n}", "2024-01-01", f"{n}") for n in range(10)]
    write_rows(tmp_path / "in" / "part-0.csv", HEADER, rows)
    notes: list[Any] = []
    prepared = split(tmp_path / "in", tmp_path / "out", on_event=notes.append)

    assert 0 == prepared.manifest.splits["test"].rows
    (warning,) = [each.text for each in notes if isinstance(each, Note) and each.level == "warning"]
    assert (
        "test is empty: no row that counts is from 2025-01-01 on, and the last date is 2024-01-01 00:00:00; "
        "give an earlier split_date=" == warning
    )


def test_a_test_split_whose_entities_all_train_says_so(tmp_path: Path) -> None:
    rows = [(f"{n}", date, f"{n}{date}") for n in range(2) for date in ("2024-01-01", "2026-01-01")]
    write_rows(tmp_path / "in" / "part-0.csv", HEADER, rows)
    notes: list[Any] = []
    split(
        tmp_path / "in",
        tmp_path / "out",
        on_event=notes.append,
        train_ratio=0.5,
        val_in_test="drop",
    )

    (warning,) = [each.text for each in notes if isinstance(each, Note) and each.level == "warning"]
    assert (
        "test is empty: of 2 rows from 2025-01-01 on, 1 belong to entities in train and 1 to entities in val; "
        "give an earlier split_date= or a smaller train_ratio=" == warning
    )


def test_labels_have_one_map_for_all_shards(tmp_path: Path) -> None:
    header = ("id", "date", "label")
    for number, label in enumerate(("cat", "dog", "ant")):
        rows = [(f"{n}", f"202{4 + n // 6}-01-01", label if n else "") for n in range(12)]
        write_rows(tmp_path / "in" / f"part-{number}.csv", header, rows)
    prepared = split(tmp_path / "in", tmp_path / "out", label="label")
    found = {
        path.name: {row[2] for row in read_rows(path)[1]}
        for name in SPLITS
        for path in shards(prepared.run, name)
    }

    assert {"ant": 0, "cat": 1, "dog": 2} == prepared.manifest.metadata["label_map"]
    assert {"part-00000.csv": {"1"}, "part-00001.csv": {"2"}, "part-00002.csv": {"0"}} == found
    assert 3 == prepared.manifest.dropped["missing_label"]


def test_the_label_of_a_parquet_output_is_a_number_without_nulls(tmp_path: Path) -> None:
    write_rows(
        tmp_path / "in" / "part-0.csv",
        ("id", "date", "label"),
        [(f"{n}", f"202{4 + n // 6}-01-01", "yn"[n % 2]) for n in range(12)],
    )
    run = split(tmp_path / "in", tmp_path / "out", label="label", format="parquet").run
    schema = pq.read_schema(shards(run, "train")[0])

    assert pa.field("label", pa.int64(), nullable=False) == schema.field("label")


@pytest.mark.parametrize("extension", [".csv", ".parquet", ".jsonl"])
def test_the_main_target_is_the_greatest_of_the_others(tmp_path: Path, extension: str) -> None:
    text = extension == ".csv"
    rows = [
        (f"{n}", f"202{4 + n // 6}-01-01", *(str(v) if text else v for v in (9, n % 2, n % 3)))
        for n in range(12)
    ]
    write_rows(tmp_path / "in" / f"part-0{extension}", ("id", "date", "main", "a", "b"), rows)
    run = split(
        tmp_path / "in", tmp_path / "out", targets=["main", "a", "b"], main_task_index=0
    ).run

    for name in SPLITS:
        mains, ids = split_column(run, name, "main"), split_column(run, name, "id")
        expected = [max(int(i) % 2, int(i) % 3) for i in ids]
        assert ([str(v) for v in expected] if text else expected) == mains


@pytest.mark.parametrize(
    ("extension", "format_"),
    [(".csv", "same"), (".csv.gz", "parquet"), (".parquet", "same"), (".jsonl", "csv")],
)
def test_lineage_points_at_the_source_row(tmp_path: Path, extension: str, format_: str) -> None:
    source = small_source(tmp_path / "in", extension=extension)
    run = split(source, tmp_path / "out", lineage="columns", format=format_).run
    originals = {path.name: read_rows(path)[1] for path in source.iterdir()}

    for name in SPLITS:
        for path in shards(run, name):
            header, rows = read_rows(path)
            shard, row = header.index("source_shard"), header.index("source_row")
            assert [originals[each[shard]][int(each[row])] for each in rows] == [
                each[:3] for each in rows
            ]


def test_declared_types_are_those_of_the_parquet_output(tmp_path: Path) -> None:
    rows = [(f"{n:03d}", f"202{4 + n // 6}-01-01", str(n) if n else "NA") for n in range(12)]
    write_rows(tmp_path / "in" / "part-0.csv", HEADER, rows)
    run = split(
        tmp_path / "in",
        tmp_path / "out",
        format="parquet",
        types={"row": "int16"},
        dialect={"null_values": ["NA"]},
    ).run

    assert pa.int16() == pq.read_schema(shards(run, "train")[0]).field("row").type
    assert [None, *range(1, 12)] == sorted(
        (v for name in SPLITS for v in split_column(run, name, "row")),
        key=lambda v: -1 if v is None else v,
    )


@pytest.mark.parametrize(
    "asked",
    [{}, {"lineage": "columns"}, {"format": "tsv"}, {"format": "parquet"}, {"layout": "single"}],
)
def test_a_value_of_another_than_its_declared_type_is_an_error(
    tmp_path: Path, asked: dict[str, Any]
) -> None:
    rows = [(f"{n}", f"202{4 + n // 6}-01-01", "x" if n == 7 else str(n)) for n in range(12)]
    write_rows(tmp_path / "in" / "part-0.csv", HEADER, rows)

    with pytest.raises(
        InputError, match=r"part-0\.csv: row 8, column 'row' is 'x': it is declared int32"
    ):
        split(tmp_path / "in", tmp_path / "out", types={"row": "int32"}, **asked)


def test_dot_words_in_column_names_are_dots_everywhere(tmp_path: Path) -> None:
    write_rows(tmp_path / "in" / "part-0.csv", ("id", "order__DOT__date", "row"), small_rows(50))
    run = split(tmp_path / "in", tmp_path / "out", time="order.date").run

    assert ["id", "order.date", "row"] == read_rows(shards(run, "train")[0])[0]


def test_headerless_shards_take_their_names_from_the_signature(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    write_bytes(raw / "signature.csv", b"id,date,row\n")
    write_bytes(
        raw / "part-0.csv", b"".join(f"{','.join(row)}\n".encode() for row in small_rows(60))
    )
    write_bytes(raw / "part-1.csv", b"")
    prepared = split(raw, tmp_path / "out", signature=raw / "signature.csv")

    assert ["part-1.csv"] == prepared.manifest.source["empty_shards"]
    assert 60 == sum(prepared.manifest.dropped.values()) + sum(
        t.rows for t in prepared.manifest.splits.values()
    )


def test_a_source_of_a_signature_only_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "signature.csv").write_text("id,date,row\n")

    with raised(InputError, remedy="give the directory of the shards"):
        split(tmp_path, tmp_path / "out", signature=tmp_path / "signature.csv")


@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_a_header_only_shard_is_recorded_as_empty(tmp_path: Path, place: str) -> None:
    number = {"first": 0, "middle": 5, "last": 9}[place]
    for full in (1, 8):
        write_rows(tmp_path / "in" / f"part-{full}.csv", HEADER, small_rows(50))
    write_rows(tmp_path / "in" / f"part-{number}.csv", HEADER, [])
    prepared = split(tmp_path / "in", tmp_path / "out")

    assert [f"part-{number}.csv"] == prepared.manifest.source["empty_shards"]
    assert 3 == prepared.manifest.source["files"]


@pytest.mark.parametrize(
    "names", [["part-1.csv", "part-00001.csv"], ["part-1.csv", "part-1.csv.gz"]]
)
def test_colliding_shard_numbers_are_an_error(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        write_rows(tmp_path / "in" / name, HEADER, small_rows(20))

    with raised(InputError, path=max(names), remedy='shard_numbers="dense"'):
        split(tmp_path / "in", tmp_path / "out")
    assert (
        40
        == split(tmp_path / "in", tmp_path / "out", shard_numbers="dense").manifest.source["rows"]
    )


@pytest.mark.parametrize("role", ["time", "entity", "label"])
def test_a_column_that_is_not_there_is_an_error_with_those_that_are(
    tmp_path: Path, source: Path, role: str
) -> None:
    with raised(InputError, setting=role, value="nope"):
        split(source, tmp_path / "out", **{role: "nope"})


def test_a_mixed_source_needs_an_output_format(tmp_path: Path) -> None:
    write_rows(tmp_path / "in" / "part-0.csv", HEADER, small_rows(20))
    write_rows(tmp_path / "in" / "part-1.jsonl", HEADER, small_rows(20))

    with raised(SettingsError, setting="format", value="same"):
        split(tmp_path / "in", tmp_path / "out")
    assert 40 == split(tmp_path / "in", tmp_path / "out", format="parquet").manifest.source["rows"]


@pytest.mark.parametrize("format_", ["csv", "tsv"])
def test_nested_columns_have_no_place_in_text(tmp_path: Path, format_: str) -> None:
    rows = [(f"{n}", f"202{4 + n // 6}-01-01", [n]) for n in range(12)]
    write_rows(tmp_path / "in" / "part-0.jsonl", HEADER, rows)

    with raised(InputError, column="row", remedy='format="parquet"'):
        split(tmp_path / "in", tmp_path / "out", format=format_)


def test_parquet_keeps_types_and_required_columns(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    table = pa.table(
        {
            "id": [7, 8, 9, 10],
            "date": pa.array([0, 1, 2, 2**31 - 1], pa.timestamp("s")),
            "x": pa.array([1, None, 2, 3], pa.int8()),
            "d": pa.array(["a", "b", "a", "b"]).dictionary_encode(),
        }
    )
    place = table.schema.get_field_index("d")
    required = table.schema.set(place, table.schema.field(place).with_nullable(False))
    pq.write_table(table.cast(required), tmp_path / "in" / "part-0.parquet")
    run = split(tmp_path / "in", tmp_path / "out").run
    schema = pq.read_schema(shards(run, "train")[0])

    assert {"id": (pa.int64(), False), "x": (pa.int8(), True), "d": (pa.string(), False)} == {
        name: (schema.field(name).type, schema.field(name).nullable) for name in ("id", "x", "d")
    }
    assert not schema.field("date").nullable


def test_widened_shards_are_written_in_one_schema(tmp_path: Path) -> None:
    rows = small_rows(40)
    write_rows(tmp_path / "in" / "part-0.csv", HEADER, rows)
    write_rows(
        tmp_path / "in" / "part-1.csv",
        ("row", "id", "extra", "date"),
        [(row[2], row[0], "e", row[1]) for row in rows],
    )
    run = split(tmp_path / "in", tmp_path / "out", schema_drift="widen").run

    assert {("date", "row", "id", "extra")} == {
        tuple(read_rows(path)[0]) for name in SPLITS for path in shards(run, name)
    }
    assert sorted(set(split_column(run, "train", "extra"))) == ["", "e"]


@pytest.mark.slow
def test_text_ids_are_allocated_alike_in_every_format(tmp_path: Path) -> None:
    sides = []
    for extension in (".csv", ".tsv.zst", ".jsonl", ".json.gz", ".parquet"):
        run = split(
            small_source(tmp_path / extension, extension=extension), tmp_path / f"out{extension}"
        ).run
        sides.append({name: set(split_column(run, name, "id")) for name in SPLITS})

    assert [sides[0]] * 5 == sides


# --- the same bytes ---

ASKED: dict[str, dict[str, Any]] = {
    "csv": {},
    "single gz": {"layout": "single", "format": "tsv", "compression": "gz"},
    "parquet": {"format": "parquet", "lineage": "columns"},
    "single parquet": {"format": "parquet", "layout": "single"},
}


@pytest.mark.slow
@pytest.mark.parametrize("asked", ASKED)
def test_any_number_of_workers_makes_the_same_bytes(tmp_path: Path, asked: str) -> None:
    source = small_source(tmp_path / "in", count=7)
    runs = [
        split(source, tmp_path / f"out{workers}", workers=workers, **ASKED[asked]).run
        for workers in (1, 2, 4)
    ]

    assert digests(runs[0]) == digests(runs[1]) == digests(runs[2])
    assert runs[0].name == runs[1].name == runs[2].name


def test_the_order_that_files_were_made_in_plays_no_part(tmp_path: Path) -> None:
    runs = []
    for name, order in (("a", (0, 1, 2, 3)), ("b", (3, 1, 0, 2))):
        for number in order:
            path = write_rows(
                tmp_path / name / f"part-{number}.csv", HEADER, small_rows(100, first=100 * number)
            )
            os.utime(path, ns=(10**18, 10**18))
        runs.append(split(tmp_path / name, tmp_path / f"out-{name}").run)
    one, two = digests(runs[0]), digests(runs[1])

    del (
        one["config.json"],
        two["config.json"],
        one["manifest.json"],
        two["manifest.json"],
    )  # they name the source's path
    assert one == two
    assert runs[0].name == runs[1].name


CHILD = """
import sys
from tables import split
print(split(sys.argv[1], sys.argv[2], label="row", lineage="columns").run)
"""


@pytest.mark.slow
def test_the_hash_seed_of_python_plays_no_part(tmp_path: Path, source: Path) -> None:
    path = os.pathsep.join(
        [str(Path(headrace.__file__).parents[1]), str(Path(__file__).parents[2])]
    )
    found = []
    for seed in ("1", "2"):
        out = tmp_path / seed
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": path}
        result = subprocess.run(
            [sys.executable, "-c", CHILD, str(source), str(out)],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        found.append(digests(Path(result.stdout.strip())))

    assert found[0] == found[1]
