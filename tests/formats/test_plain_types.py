"""Every Arrow type is read as a plain type with the same values, or refused by name."""

import base64
import datetime as dt
import re
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

import headrace
from headrace.errors import InputError, SettingsError
from headrace.formats.plain_types import cast_array, converted, plain, settled
from headrace.packing.chats.reader import read_rows
from headrace.run.events import silent
from raised import raised

IDS = [uuid.UUID(int=number * 0x0123_4567_89AB_CDEF_0123) for number in range(4)]
DAY = dt.date(2024, 2, 29)
ODD = {  # arrays of four values, and what they are read as
    "uuid": (
        pa.array([IDS[0].bytes, None, IDS[2].bytes, IDS[3].bytes], pa.uuid()),
        pa.array([str(IDS[0]), None, str(IDS[2]), str(IDS[3])]),
    ),
    "bool8": (
        pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, 1, None, 7], pa.int8())),
        pa.array([False, True, None, True]),
    ),
    "json": (
        pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}", None, "[1]", "1"])),
        pa.array(["{}", None, "[1]", "1"]),
    ),
    "run ends": (
        pa.RunEndEncodedArray.from_arrays(
            pa.array([1, 3, 4], pa.int16()), pa.array(["a", None, "b"])
        ),
        pa.array(["a", None, None, "b"]),
    ),
    "categories of views": (
        pa.DictionaryArray.from_arrays([1, None, 0, 1], pa.array(["x", "y"], pa.string_view())),
        pa.array(["y", None, "x", "y"]),
    ),
    "categories of numbers": (
        pa.DictionaryArray.from_arrays([1, None, 0, 1], pa.array([5, 6])),
        pa.array([6, None, 5, 6]),
    ),
    "views of lists": (
        pa.ListViewArray.from_arrays([2, 0, 0, 1], [3, 1, 0, 2], pa.array([1, 2, 3, 4, 5])),
        pa.array([[3, 4, 5], [1], [], [2, 3]]),
    ),
    "structs without fields": (
        pa.array([{}, None, {}, {}], pa.struct([])),
        pa.array(["{}", None, "{}", "{}"]),
    ),
    "days in milliseconds": (
        pa.array([DAY, None, DAY, DAY], pa.date64()),
        pa.array([DAY, None, DAY, DAY], pa.date32()),
    ),
    "short decimals": (
        pa.array([None] * 4, pa.decimal32(5, 2)),
        pa.array([None] * 4, pa.decimal128(5, 2)),
    ),
}
UNION = pa.UnionArray.from_sparse(
    pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])]
)
INTERVALS = pa.array([(1, 2, 3), None], pa.month_day_nano_interval())


def inside(values: pa.Array, depth: str) -> pa.Array:
    """The values as a field, as items of lists, as items of maps."""
    offsets = pa.array([0, 3, 3, 4], pa.int32())
    if depth == "struct":
        missing = pa.array([False, False, False, True])
        return pa.StructArray.from_arrays([values], names=["f"], mask=missing)
    if depth == "list":
        return pa.ListArray.from_arrays(offsets, values)
    if depth == "map":
        return pa.MapArray.from_arrays(offsets, pa.array(list("abcd")), values)
    if depth == "vector":
        return pa.FixedSizeListArray.from_arrays(values, 2)
    return values


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("depth", ["column", "struct", "list", "map", "vector"])
@pytest.mark.parametrize("kind", ODD)
def test_odd_types_are_read_at_any_depth(kind: str, depth: str, start: int) -> None:
    odd, expected = (inside(values, depth)[start:] for values in ODD[kind])
    type_ = settled(plain(odd.type))

    read = converted(pa.chunked_array([odd]), type_)

    read.validate(full=True)
    assert expected.type == type_ == read.type
    assert expected.to_pylist() == read.to_pylist()


@pytest.mark.parametrize("kind", ODD)
def test_odd_types_pass_through_files_and_tables(kind: str, tmp_path: Path) -> None:
    odd, expected = ODD[kind]
    table = pa.table({"row": [0, 1, 2, 3], "x": odd})
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)

    for source in (tmp_path / "a.arrow", table):
        out = tmp_path / f"out-{type(source).__name__}"
        headrace.rewrite(source, out)
        opened = headrace.open(source, cache_dir=tmp_path / "cache")

        assert expected.equals(opened["all"].to_arrow()["x"].combine_chunks())
        assert expected.equals(headrace.open(out)["all"].to_arrow()["x"].combine_chunks())


@pytest.mark.parametrize("values", [UNION, INTERVALS], ids=["union", "interval"])
@pytest.mark.parametrize("depth", ["column", "list"])
def test_what_no_plain_type_holds_is_refused_by_name(
    values: pa.Array, depth: str, tmp_path: Path
) -> None:
    if depth == "list":
        values = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), values)
    path = tmp_path / "a.arrow"
    table = pa.table({"row": [0, 1], "x": values})
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)

    with raised(InputError, path="a Table", column="x", remedy="columns="):
        headrace.open(table, cache_dir=tmp_path / "cache")
    opened = headrace.open(path, cache_dir=tmp_path / "cache")
    for read in (opened["all"].to_arrow, opened.map_dataset):
        with raised(InputError, column="x", remedy="columns="):
            read()
    with raised(InputError, path=path, column="x", remedy="columns="):
        opened.stream(batch_size=1)
    with raised(InputError, column="x", remedy="columns="):
        opened.filter([("x", "==", 1)])
    with raised(InputError, path=path, column="x", remedy="columns="):
        headrace.rewrite(path, tmp_path / "whole")
    with raised(InputError, path=path, column="x", remedy="columns="):
        headrace.prepare(headrace.RandomSplit(source=path), tmp_path / "whole", on_event=silent)


@pytest.mark.parametrize("values", [UNION, INTERVALS], ids=["union", "interval"])
def test_what_no_plain_type_holds_stops_nothing_that_leaves_it_out(
    values: pa.Array, tmp_path: Path
) -> None:
    path = tmp_path / "a.arrow"
    table = pa.table(
        {
            "row": [0, 1],
            "x": values,
            "who": ["a", "b"],
            "at": ["2024-01-01", "2024-01-02"],
            "text": ["apples", "pears"],
        }
    )
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    opened = headrace.open(path, cache_dir=tmp_path / "cache")
    plain = table.drop_columns(["x"])

    assert opened["all"].to_arrow(["row", "who"]).equals(table.select(["row", "who"]))
    assert [0, 1] == [
        n
        for batch in opened.stream(
            batch_size=1, columns=["row"], filter=[("who", "!=", "c")], shuffle=False
        )
        for n in batch["row"].tolist()
    ]
    assert plain.equals(opened["all"].to_arrow(drop_columns=["x"]))
    assert plain.column_names == list(opened["all"].to_pandas(drop_columns=["x"]).columns)
    assert [*plain.column_names, "valid"] == list(opened.map_dataset(drop_columns=["x"])[0])
    for read in (opened["all"].to_arrow, opened.map_dataset):
        with raised(SettingsError, setting="drop_columns", value=["y"]):
            read(drop_columns=["x", "y"])
        with raised(SettingsError, setting="drop_columns", remedy="one of them"):
            read(columns=["row"], drop_columns=["x"])
    run = headrace.rewrite(path, tmp_path / "rewritten", columns=plain.column_names)
    assert plain.to_pylist() == headrace.open(run.run)["all"].to_arrow().to_pylist()
    chosen = headrace.RandomSplit(source=path, columns=["row", "who"], by="who", test_ratio=0)
    run = headrace.prepare(chosen, tmp_path / "split", on_event=silent)
    assert 2 == sum(split.rows for split in run.manifest.splits.values())
    histories = headrace.Histories(
        source=path,
        entity="who",
        entity_kind="text",
        time="at",
        values={"row": "int8"},
        format="arrow",
    )
    headrace.prepare(histories, tmp_path / "histories", on_event=silent)
    assert [] == headrace.verify(tmp_path / "histories").problems
    rows = [row for batch in read_rows(path, named=["who"]) for row in batch.rows]
    assert plain.to_pylist() == rows
    with raised(InputError, path=path, column="x", remedy="columns="):
        list(read_rows(path, named=["x.y"]))


def test_values_of_one_size_too_large_to_write_are_refused_by_name() -> None:
    widest = pa.binary((1 << 28) - 1)
    assert widest == plain(widest)

    table = pa.table({"row": pa.array([], pa.int8()), "x": pa.array([], pa.binary(1 << 28))})
    with raised(InputError, path="a Table", column="x", remedy="columns="):
        headrace.open(table)


# word of the page → a type, what it is read as, and how the page says so
SAME = "the same"
PAGE = {
    **{
        str(type_): (type_, type_, SAME)
        for type_ in (pa.bool_(), pa.int8(), pa.int64(), pa.uint8(), pa.uint64())
    },
    "halffloat": (pa.float16(), pa.float16(), SAME),
    "double": (pa.float64(), pa.float64(), SAME),
    "large_string": (pa.large_string(), pa.string(), "`string`"),
    "string_view": (pa.string_view(), pa.string(), "`string`"),
    "large_binary": (pa.large_binary(), pa.binary(), "`binary`"),
    "binary_view": (pa.binary_view(), pa.binary(), "`binary`"),
    "fixed_size_binary": (pa.binary(3), pa.binary(3), SAME),
    "date64": (pa.date64(), pa.date32(), "`date32`"),
    "timestamp": (pa.timestamp("ns", "UTC"), pa.timestamp("ns", "UTC"), SAME),
    "time32": (pa.time32("s"), pa.time32("s"), SAME),
    "time64": (pa.time64("ns"), pa.time64("ns"), SAME),
    "duration": (pa.duration("ms"), pa.duration("ms"), SAME),
    "decimal32": (pa.decimal32(5, 2), pa.decimal128(5, 2), "`decimal128`"),
    "decimal64": (pa.decimal64(5, 2), pa.decimal128(5, 2), "`decimal128`"),
    "decimal256": (pa.decimal256(50, 2), pa.decimal256(50, 2), SAME),
    "large_list": (pa.large_list(pa.int8()), pa.list_(pa.int8()), "`list`"),
    "list_view": (pa.list_view(pa.int8()), pa.list_(pa.int8()), "`list`"),
    "large_list_view": (pa.large_list_view(pa.int8()), pa.list_(pa.int8()), "`list`"),
    "fixed_size_list": (pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 2), SAME),
    "map": (
        pa.map_(pa.string_view(), pa.int8()),
        pa.map_(pa.string(), pa.int8()),
        "the same, of plain types",
    ),
    "struct": (pa.struct({"a": pa.date64()}), pa.struct({"a": pa.date32()}), SAME),
    "dictionary": (pa.dictionary(pa.int8(), pa.int16()), pa.int16(), "the type of their values"),
    "run_end_encoded": (
        pa.run_end_encoded(pa.int32(), pa.int16()),
        pa.int16(),
        "the type of their values",
    ),
    "null": (pa.null(), pa.string(), "text"),
    "arrow.uuid": (pa.uuid(), pa.string(), "text"),
    "arrow.bool8": (pa.bool8(), pa.bool_(), "`bool`"),
    "arrow.json": (pa.json_(), pa.string(), "text"),
    "sparse_union": (UNION.type, None, "refused"),
    "month_day_nano_interval": (INTERVALS.type, None, "refused"),
}


@pytest.mark.parametrize("word", PAGE)
def test_the_page_of_types_says_what_becomes_of_each(word: str) -> None:
    type_, expected, told = PAGE[word]
    page = (Path(__file__).parents[2] / "docs" / "types.md").read_text("utf-8")
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", page, re.MULTILINE)
    (said,) = [words for types, words in rows if word in _words_of(types)]

    assert said.startswith(told)
    if expected is None:
        with raised(InputError, value=str(type_)):
            plain(type_)
    else:
        assert expected == settled(plain(type_))


def _words_of(types: str) -> list[str]:
    """The types of a row of the page; it names the first and the last of a range."""
    return re.findall(r"`([^`]+)`", types)


class Registered(pa.ExtensionType):
    """A type of a library that a process has imported."""

    def __init__(self) -> None:
        super().__init__(pa.list_(pa.large_string()), "tests.registered")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, data: bytes) -> "Registered":
        return cls()


def test_types_that_a_process_has_registered_change_nothing(tmp_path: Path) -> None:
    storage = pa.array([["a"], None], pa.list_(pa.large_string()))
    table = pa.table({"x": pa.ExtensionArray.from_storage(Registered(), storage)})
    nested = pa.StructArray.from_arrays([table["x"].combine_chunks()], names=["f"])
    table = table.append_column("y", nested)
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    pq.write_table(table.select(["x"]), tmp_path / "b.parquet")

    def read(name: str) -> list[Any]:
        dataset = headrace.open(tmp_path / name, cache_dir=tmp_path / "cache" / str(registered))
        run = headrace.rewrite(tmp_path / name, tmp_path / f"out-{name}-{registered}")
        return [
            dataset.schema,
            dataset.contents,
            dataset["all"].to_arrow().to_pylist(),
            run.run.name,
        ]

    registered = False
    without = [read("a.arrow"), read("b.parquet")]
    pa.register_extension_type(Registered())
    try:
        registered = True
        assert without == [read("a.arrow"), read("b.parquet")]
    finally:
        pa.unregister_extension_type("tests.registered")


class Keys(pe.KmsClient):
    """Keeps no secrets."""

    def __init__(self, _config: object) -> None:
        super().__init__()

    def wrap_key(self, key: bytes, _name: str) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, wrapped: bytes, _name: str) -> bytes:
        return base64.b64decode(wrapped)


@pytest.mark.parametrize("footer", ["plain", "encrypted"])
@pytest.mark.parametrize("columns", ["one", "all"])
def test_encrypted_files_are_refused_by_name(footer: str, columns: str, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    config = pe.EncryptionConfiguration(
        footer_key="footer",
        column_keys={"key": ["s.x"]} if columns == "one" else None,
        uniform_encryption=columns == "all",
        plaintext_footer=footer == "plain",
    )
    properties = pe.CryptoFactory(Keys).file_encryption_properties(pe.KmsConnectionConfig(), config)
    table = pa.table({"a": [1, 2], "s": pa.array([{"x": 1}, {"x": 2}])})
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)

    column = "s.x" if (footer, columns) == ("plain", "one") else None
    with raised(InputError, path=path, column=column, remedy="decryption_properties") as caught:
        headrace.open(path, cache_dir=tmp_path / "cache")
    assert "encrypted" in str(caught.value)


def test_no_other_file_is_taken_for_encrypted(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    maps = pa.array([[("k", 1)]] * 2, pa.map_(pa.string(), pa.int8()))
    table = pa.table({f"c{number}": maps for number in range(300)})
    pq.write_table(table, path, row_group_size=1)

    assert 2 == headrace.open(path, cache_dir=tmp_path / "cache").split_rows["all"]


@pytest.mark.faults  # 6 GiB of memory, and minutes
@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform == "darwin", reason="takes more memory than runners have")
def test_more_than_two_gigabytes_of_nested_text_in_a_row_group_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rows, length = 2200, 1 << 20
    text = "x" * length
    lists = pa.ListArray.from_arrays(
        pa.array(range(rows + 1), pa.int32()), pa.DictionaryArray.from_arrays([0] * rows, [text])
    )
    pq.write_table(pa.table({"row": range(rows), "x": lists}), path, store_schema=False)

    reader = headrace.open(path, cache_dir=tmp_path / "cache")["all"].reader()
    lengths = [len(row[0]) for batch in reader for row in batch["x"].to_pylist()]

    assert rows == len(lengths)
    assert {length} == {*lengths}


NULLS_IN_LISTS = pa.array([[None, None], [None], None, []], pa.list_(pa.null()))
NULLS_IN_MAPS = pa.MapArray.from_arrays([0, 1, 2, 4, 4], pa.array(list("abcd")), pa.nulls(4))
NULLS_IN_STRUCTS = pa.ListArray.from_arrays(
    pa.array([0, 1, 4], pa.int32()),
    pa.StructArray.from_arrays([NULLS_IN_LISTS, pa.nulls(4)], ["list", "null"]),
)


@pytest.mark.parametrize("inner", [pa.null(), pa.string(), pa.list_(pa.int8())], ids=str)
@pytest.mark.parametrize(
    ("values", "holding"),
    [
        (NULLS_IN_LISTS, pa.list_),
        (NULLS_IN_MAPS, lambda inner: pa.map_(pa.string(), inner)),
        (NULLS_IN_STRUCTS, lambda t: pa.list_(pa.struct([("list", pa.list_(t)), ("null", t)]))),
    ],
    ids=["lists", "maps", "structs"],
)
def test_nulls_inside_take_any_type(
    values: pa.Array, holding: Callable[[pa.DataType], pa.DataType], inner: pa.DataType
) -> None:
    type_ = holding(inner)
    for part in (values, values[1:], values[:1]):
        cast = cast_array(part, type_)
        cast.validate(full=True)

        assert type_ == cast.type
        assert part.to_pylist() == cast.to_pylist()
