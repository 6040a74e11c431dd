"""`columns=` writes a choice of columns and reads no other; `drop_columns=` leaves some out."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.errors import SettingsError
from raised import raised

ROWS = [
    {
        "extra": f"e{n},",
        "id": n,
        "time": f"2024-01-{n % 28 + 1:02d}",
        "user": f"u{n % 9}",
        "x": n / 4,
    }
    for n in range(40)
]
CHOICE = ("x", "time", "user", "id")


def write(folder, kind):
    folder.mkdir()
    for part in range(2):
        rows = ROWS[part::2]
        path = folder / f"part-{part}.{kind}"
        if kind == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        elif kind == "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            lines = [",".join(rows[0])]
            lines += [
                f'"{row["extra"]}",{row["id"]},{row["time"]},{row["user"]},{row["x"]}'
                for row in rows
            ]
            path.write_text("\n".join(lines) + "\n")
    return folder


def split(source, out, **settings):
    recipe = headrace.TemporalSplit(
        source=source, time="time", entity="user", split_date="2024-01-20", **settings
    )
    return headrace.prepare(recipe, out)


def rows_of(out):
    dataset = headrace.open(out)
    tables = [dataset[name].to_arrow() for name in dataset.splits]
    return {name: table.to_pylist() for name, table in zip(dataset.splits, tables, strict=True)}


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_the_rows_are_those_of_the_complete_split_without_the_other_columns(tmp_path, kind):
    source = write(tmp_path / "source", kind)
    split(source, tmp_path / "complete")
    split(source, tmp_path / "chosen", columns=CHOICE)

    complete, chosen = rows_of(tmp_path / "complete"), rows_of(tmp_path / "chosen")

    for name, rows in complete.items():
        assert chosen[name] == [{column: row[column] for column in CHOICE} for row in rows]
        assert all(tuple(row) == CHOICE for row in chosen[name])
    assert headrace.verify(tmp_path / "chosen").problems == []


def test_shards_that_differ_in_other_columns_fit(tmp_path):
    source = write(tmp_path / "source", "parquet")
    other = pq.read_table(source / "part-1.parquet")
    other = other.set_column(0, "extra", pa.array(range(len(other))))
    pq.write_table(other, source / "part-1.parquet")

    split(source, tmp_path / "out", columns=CHOICE)

    assert sum(map(len, rows_of(tmp_path / "out").values())) <= len(ROWS)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_columns_that_are_left_out_are_in_no_file(tmp_path, kind):
    source = write(tmp_path / "source", kind)
    split(source, tmp_path / "complete")
    without = split(source, tmp_path / "without", drop_columns=["extra", "id"])

    for name, rows in rows_of(tmp_path / "complete").items():
        left = [{column: row[column] for column in ("time", "user", "x")} for row in rows]
        assert left == rows_of(tmp_path / "without")[name]
    written = [path.read_bytes() for path in without.run.rglob("part-*")]
    assert written
    assert not any(b"e7," in data for data in written)
    assert headrace.verify(tmp_path / "without").problems == []


def test_a_column_of_a_type_that_is_not_read_can_be_left_out(tmp_path):
    table = pa.Table.from_pylist(ROWS)
    union = pa.UnionArray.from_dense(
        pa.array([0, 1] * 20, pa.int8()),
        pa.array([n // 2 for n in range(40)], pa.int32()),
        [pa.array(range(20)), pa.array(["a"] * 20)],
    )
    source = tmp_path / "part-0.arrow"
    with pa.ipc.new_file(source, table.append_column("u", union).schema) as writer:
        writer.write_table(table.append_column("u", union))
    split(source, tmp_path / "out", drop_columns="u")
    stream = headrace.open(source, cache_dir=tmp_path).stream(
        batch_size=40, batch_format="arrow", drop_columns=["u"]
    )

    assert [table.column_names] == [batch.column_names[:-1] for batch in stream]
    assert table.column_names == headrace.open(tmp_path / "out").schema.names


@pytest.mark.parametrize(
    ("settings", "name", "value"),
    [
        ({"columns": ["nothing", "time", "user"]}, "columns", ["nothing"]),
        ({"columns": ["id", "user"]}, "columns", ["id", "user"]),
        ({"drop_columns": ["nothing", "x"]}, "drop_columns", ["nothing"]),
        ({"drop_columns": ["x", "user"]}, "drop_columns", ["x", "user"]),
    ],
)
def test_an_unknown_column_and_one_with_a_role_are_refused(tmp_path, settings, name, value):
    source = write(tmp_path / "source", "csv")
    with raised(SettingsError, setting=name, value=value):
        split(source, tmp_path / "out", **settings)


def test_columns_are_chosen_or_left_out(tmp_path):
    with raised(SettingsError, setting="drop_columns"):
        split(tmp_path, tmp_path / "out", columns=CHOICE, drop_columns="extra")
