"""What a source holds: its files, each once, of one schema; a shard that differs is an error naming both files."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.errors import InputError, SettingsError
from headrace.formats.common_schema import common_schema, join_shards
from headrace.formats.shard import Shard
from headrace.formats.source import find_files, read_chunks, read_signature, survey
from raised import raised
from tables import write_bytes


def surveyed(*paths: Path) -> list[Shard]:
    return [survey(path, path.name) for path in paths]


def names(source: list[object]) -> list[str]:
    return [name for _, name in find_files(source)]


@pytest.fixture
def three(tmp_path: Path) -> Path:
    for number in (2, 0, 1):
        write_bytes(tmp_path / f"part-{number}.csv", b"a,b\n1,2\n")
    for other in ("_SUCCESS", ".part-9.csv", "notes.txt", ".tmp-part-0.csv-ab"):
        (tmp_path / other).write_bytes(b"x")
    (tmp_path / "sub").mkdir()
    write_bytes(tmp_path / "sub" / "part-7.csv", b"a,b\n1,2\n")
    return tmp_path


def test_a_directory_is_its_data_files_in_name_order(three: Path) -> None:
    assert ["part-0.csv", "part-1.csv", "part-2.csv"] == names([three])


def test_a_file_is_itself(three: Path) -> None:
    assert ["part-1.csv"] == names([three / "part-1.csv"])


def test_a_pattern_is_its_matches(three: Path) -> None:
    assert ["part-0.csv", "part-2.csv"] == names([three / "part-[02].csv"])


def test_a_recursive_pattern_names_files_below_their_root(three: Path) -> None:
    assert ["part-0.csv", "part-1.csv", "part-2.csv", "sub/part-7.csv"] == names(
        [three / "**" / "*.csv"]
    )


def test_a_file_found_several_ways_is_one_file(three: Path) -> None:
    source = [
        three,
        three / "part-1.csv",
        three / "*.csv",
        three / "sub" / ".." / "part-1.csv",
        str(three / "part-1.csv"),
    ]

    assert ["part-0.csv", "part-1.csv", "part-2.csv"] == names(source)


def test_names_do_not_depend_on_where_the_source_lies(
    three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(three)

    assert names([three]) == names(["."]) == names(["part-*.csv"])


def test_a_file_name_with_pattern_characters_is_found(tmp_path: Path) -> None:
    path = write_bytes(tmp_path / "part-[1].csv", b"a\n1\n")

    assert [(path, "part-[1].csv")] == find_files([path])


@pytest.mark.parametrize("source", ["nowhere", "nowhere/*.csv", "part-9*.csv"])
def test_an_entry_that_gives_no_file_is_an_error(three: Path, source: str) -> None:
    with raised(InputError, remedy="check the path"):
        find_files([three, three / source])


def test_a_directory_without_data_is_an_error(tmp_path: Path) -> None:
    with raised(InputError, remedy="give the directory of the shards"):
        find_files([tmp_path])


def test_a_signature_is_one_line_of_names(tmp_path: Path) -> None:
    (tmp_path / "signature").write_text("\ufeffid, date ,x\r\n\n")

    assert ["id", "date", "x"] == read_signature(tmp_path / "signature")


@pytest.mark.parametrize("text", ["", "\n", "a,b\nc,d\n"])
def test_a_signature_of_other_than_one_line_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "signature").write_text(text)

    with raised(SettingsError, setting="signature", remedy="give a file of one line"):
        read_signature(tmp_path / "signature")


def test_a_signature_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with raised(SettingsError, setting="signature", remedy="check the path"):
        read_signature(tmp_path / "signature")


def test_a_signature_that_is_not_utf8_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "signature").write_bytes(b"caf\xe9,b\n")

    with raised(SettingsError, setting="signature", remedy="convert it to UTF-8"):
        read_signature(tmp_path / "signature")


def parquet(path: Path, **columns: pa.Array) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


I64, I32, I8, U64, TEXT = pa.int64(), pa.int32(), pa.int8(), pa.uint64(), pa.string()
BASE = {"id": pa.array(["007"]), "n": pa.array([1], I32), "t": pa.array([0], pa.timestamp("ms"))}
# kind of drift: (columns of the second shard, the type that widening gives the drifting column, or None)
DRIFTS = {
    "wider integer": (BASE | {"n": pa.array([2**40], I64)}, ("n", I64)),
    "narrower integer": (BASE | {"n": pa.array([2], I8)}, ("n", I32)),
    "unsigned beyond all": (BASE | {"n": pa.array([2**64 - 1], U64)}, ("n", None)),
    "float for integer": (BASE | {"n": pa.array([0.5])}, ("n", pa.float64())),
    "text for integer": (BASE | {"n": pa.array(["7"])}, ("n", TEXT)),
    "integer for text": (BASE | {"id": pa.array([7])}, ("id", TEXT)),
    "bool for integer": (BASE | {"n": pa.array([True])}, ("n", None)),
    "finer time": (BASE | {"t": pa.array([0], pa.timestamp("us"))}, ("t", pa.timestamp("us"))),
    "zoned time": (BASE | {"t": pa.array([0], pa.timestamp("ms", "UTC"))}, ("t", None)),
    "column less": ({"id": BASE["id"], "t": BASE["t"]}, ("n", I32)),
    "column more": (BASE | {"x": pa.array([1])}, ("x", I64)),
    "other order": ({"t": BASE["t"], "n": BASE["n"], "id": BASE["id"]}, ("n", I32)),
}


@pytest.mark.parametrize("drift", DRIFTS)
def test_a_shard_that_differs_is_an_error_that_names_both_files(tmp_path: Path, drift: str) -> None:
    shards = surveyed(
        parquet(tmp_path / "a.parquet", **BASE), parquet(tmp_path / "b.parquet", **DRIFTS[drift][0])
    )

    with pytest.raises(InputError) as caught:
        common_schema(shards, "error")
    assert str(tmp_path / "a.parquet") in str(caught.value)
    assert str(tmp_path / "b.parquet") in str(caught.value)


@pytest.mark.parametrize("drift", DRIFTS)
def test_widening_loses_nothing_or_is_an_error_that_names_both_files(
    tmp_path: Path, drift: str
) -> None:
    columns, (name, kind) = DRIFTS[drift]
    shards = surveyed(
        parquet(tmp_path / "a.parquet", **BASE), parquet(tmp_path / "b.parquet", **columns)
    )

    if kind is None:
        with raised(InputError, path=tmp_path / "b.parquet", column=name) as caught:
            common_schema(shards, "widen")
        assert str(tmp_path / "a.parquet") in str(caught.value)
        return
    schema, shards, _ = join_shards(shards, "widen")
    fitted = [
        chunk.table(schema.names).to_pylist()[0] for shard in shards for chunk in read_chunks(shard)
    ]

    assert kind == schema.field(name).type
    assert [
        {
            key: each[key].cast(schema.field(key).type)[0].as_py() if key in each else None
            for key in schema.names
        }
        for each in (BASE, columns)
    ] == fitted


@pytest.mark.parametrize("header", [b"a,c", b"b,a", b"a", b"a,b,c"])
def test_text_shards_of_other_columns_are_an_error_that_names_both(
    tmp_path: Path, header: bytes
) -> None:
    one = write_bytes(tmp_path / "a.csv", b"a,b\n")
    two = write_bytes(tmp_path / "b.csv", header + b"\n")

    with pytest.raises(
        InputError,
        match=(
            r"b\.csv: (lacks|adds|has its columns in another order).*a\.csv; .*"
            r'or use schema_drift="widen" to match columns by name'
        ),
    ):
        common_schema(surveyed(one, two), "error")


def test_json_shards_match_by_name_and_absent_keys_are_null(tmp_path: Path) -> None:
    one = write_bytes(tmp_path / "a.jsonl", b'{"a": 1, "b": 1}\n')
    two = write_bytes(tmp_path / "b.jsonl", b'{"b": 2, "c": "x"}\n')
    schema = common_schema(surveyed(one, two), "error")

    assert (
        pa.schema([pa.field("a", I64), pa.field("b", I64, nullable=False), pa.field("c", TEXT)])
        == schema
    )


def test_json_shards_of_other_types_are_an_error_that_names_both(tmp_path: Path) -> None:
    one = write_bytes(tmp_path / "a.jsonl", b'{"a": 1}\n')
    two = write_bytes(tmp_path / "b.jsonl", b'{"a": "007"}\n')

    with raised(InputError, path=tmp_path / "b.jsonl", column="a", value="string"):
        common_schema(surveyed(one, two), "error")
    assert TEXT == common_schema(surveyed(one, two), "widen").field("a").type


def test_a_column_of_nulls_takes_the_type_of_other_shards(tmp_path: Path) -> None:
    one = write_bytes(tmp_path / "a.jsonl", b'{"a": null}\n')
    two = write_bytes(tmp_path / "b.jsonl", b'{"a": 7}\n')

    for paths in ((one, two), (two, one)):
        assert pa.schema([pa.field("a", I64)]) == common_schema(surveyed(*paths), "error")


def test_a_column_is_without_nulls_only_if_it_is_in_all_shards(tmp_path: Path) -> None:
    required = [pa.field(name, I64, nullable=False) for name in "xyz"]
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    pq.write_table(pa.table({"x": [1], "y": [1], "z": [1]}, pa.schema(required)), paths[0])
    second = pa.schema([required[0], pa.field("y", I64)])
    pq.write_table(pa.table({"x": [1], "y": [None]}, second), paths[1])
    shards = surveyed(*paths)

    assert {"x": False, "y": True, "z": True} == {
        field.name: field.nullable for field in common_schema(shards, "widen")
    }


def test_a_shard_that_changes_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = write_bytes(tmp_path / "a.csv", b"a,b\n1,2\n")
    shard = survey(path, path.name)
    os.utime(path, ns=(1, 1))

    with raised(InputError, path=tmp_path / "a.csv", remedy="run again once it is complete"):
        list(read_chunks(shard))


def test_a_shard_that_disappears_is_an_error(tmp_path: Path) -> None:
    path = write_bytes(tmp_path / "a.csv", b"a,b\n1,2\n")
    shard = survey(path, path.name)
    path.unlink()

    with pytest.raises(InputError, match=r"a\.csv"):
        list(read_chunks(shard))
    with pytest.raises(InputError, match=r"a\.csv: is gone"):
        survey(path, path.name)
