"""Numbers straight from the bytes: what parsing to text and casting give, bit for bit, or nothing."""

import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.errors import NO_VALUE, HeadraceError, InputError
from headrace.formats.delimited import parse_block
from headrace.formats.delimited_rows import parse_numbers
from headrace.formats.dialect import TextDialect
from headrace.formats.registry import file_type_of_name
from headrace.formats.shard import Dialect, Shard
from headrace.formats.text_columns import typed
from laws import examples
from raised import raised

INTEGERS = [
    "0",
    "1",
    "-1",
    "-0",
    "007",
    "255",
    "256",
    "32768",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775808",
]
BEYOND = [
    "9223372036854775808",
    "18446744073709551616",
    "1" * 40,
    "0x1F",
    "0XfF",
    "+1",
    "1_000",
    "1,5",
    "--1",
    "-",
    "TRUE",
]
DECIMALS = [
    "1.5",
    "-.5",
    "1.",
    ".",
    "1e5",
    "1E-7",
    "-2.5e+3",
    "1e",
    "1e400",
    "-1e-400",
    "1e38",
    "3.5e38",
    "0.1",
    "1.0.0",
]
LONG = [
    "0.1000000000000000055511151231257827021181583404541015625",
    "9007199254740993",
    "1.00000005960464477539062500001",  # just beyond half way between two float32
    "8.589973e9",
    "2.2250738585072011e-308",
    "4.9e-324",
    "7.0064923216240853546186479164495806564013097093825788587853e-46",
    "123456789" * 30,
]
WORDS = [
    "nan",
    "NaN",
    "-nan",
    "inf",
    "-inf",
    "+inf",
    "Infinity",
    "INF",
    "NA",
    "null",
    "None",
    "é",
    "x",
    "\x00",
    "1\x00",
]
EDGES = [
    "",
    " ",
    "\t",
    " 1",
    "1 ",
    "\t1",
    "1\t",
    "1 2",
    "1 \t",
    "a b",
    "\xa01",
    "\ufeff1",
    "1\r",
    "\r",
    '""',
    '"',
    '1"',
    '"1',
]
TEXTS = [*INTEGERS, *BEYOND, *DECIMALS, *LONG, *WORDS, *EDGES]

KINDS = [
    pa.int8(),
    pa.uint8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.uint64(),
    pa.float32(),
    pa.float64(),
]
OTHERS = [
    pa.string(),
    pa.large_string(),
    pa.bool_(),
    pa.date32(),
    pa.float16(),
    pa.decimal128(20, 3),
]
SEPARATORS = {",": "csv", ";": "csv-semicolon", "\t": "tsv"}


def in_quotes(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def strange(text: str) -> str:
    """As it stands, which may break its row or quote what follows."""
    return text


def shard_of(names: list[str], separator: str) -> Shard:
    schema = pa.schema([(name, pa.string()) for name in names])
    return Shard(
        path=Path("part-0.csv"),
        name="part-0.csv",
        size=0,
        mtime_ns=0,
        file_type=file_type_of_name("part-0.csv"),
        schema=schema,
        null_columns=frozenset(),
        dialect=Dialect(separator, "\n"),
    )


def by_way_of_text(
    data: bytes, names: list[str], separator: str, wanted: pa.Schema, absent: list[str]
) -> pa.Table:
    """The declared columns, or why they cannot be read."""
    table = parse_block(data, shard_of(names, separator), wanted.names)
    return with_numbers(table, wanted, absent)


def with_numbers(table: pa.Table, wanted: pa.Schema, absent: list[str]) -> pa.Table:
    types = {field.name: field.type for field in wanted if field.type in KINDS}
    return typed(table, types, TextDialect(null_values=tuple(absent)), "part-0.csv", 0)


def bits(table: pa.Table) -> dict[str, object]:
    """Types and values, of floats their bits."""
    found: dict[str, object] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        values: object = column.to_pylist()
        if pa.types.is_floating(column.type):
            raw = column.fill_null(0).to_numpy()
            values = raw.view(f"u{raw.itemsize}").tolist(), column.is_null().to_pylist()
        found[name] = str(column.type), values
    return found


def agree(
    data: bytes, names: list[str], separator: str, wanted: pa.Schema, absent: list[str]
) -> bool:
    """Whether numbers were made straight; if so they are those made by way of text."""
    found = parse_numbers(data, separator=separator, names=names, schema=wanted, null_values=absent)
    if found is None:
        return False
    try:
        expected = by_way_of_text(data, names, separator, wanted, absent)
    except InputError as error:
        with pytest.raises(InputError, match=re.escape(str(error))):
            with_numbers(found, wanted, absent)
        return True
    assert bits(expected) == bits(with_numbers(found, wanted, absent))
    return True


@st.composite
def blocks(draw: st.DrawFn) -> tuple[bytes, list[str], str, pa.Schema, list[str]]:
    separator = draw(st.sampled_from(sorted(SEPARATORS)))
    width = draw(st.integers(1, 6))
    odd = draw(st.sampled_from(["none", "quoted", "any"]))
    texts = (
        st.sampled_from(TEXTS)
        if odd != "none"
        else st.sampled_from([*INTEGERS, *DECIMALS, *LONG, ""])
    )
    if odd == "any":
        texts |= st.text('1.-e+ ,;\t\r\n"x', max_size=4)
    dress = st.just(strange) if odd == "none" else st.sampled_from([strange, in_quotes])
    field = st.builds(lambda make, text: make(text), dress, texts)
    ends = st.just("\n") if odd == "none" else st.sampled_from(["\n", "\n", "\r\n", "\n\n"])
    rows = draw(
        st.lists(
            st.tuples(st.lists(field, min_size=width, max_size=width), ends), min_size=1, max_size=6
        )
    )
    data = "".join(separator.join(fields) + end for fields, end in rows).encode()
    if draw(st.booleans()):
        data = data.removesuffix(b"\n")
    names = [f"n{place}" for place in range(width)]
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    kinds = st.sampled_from([*KINDS, *KINDS, *OTHERS])
    wanted = pa.schema([(name, draw(kinds)) for name in chosen])
    absent = draw(
        st.lists(st.sampled_from(["NA", "-1", " ", '""', "", "x", "null", "1 "]), max_size=2)
    )
    return data, names, separator, wanted, absent


@pytest.mark.slow
@settings(max_examples=examples(400), deadline=None)
@given(blocks())
def test_numbers_made_straight_are_those_made_by_way_of_text(block):
    agree(*block)


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.int64(), pa.uint64(), pa.float32(), pa.float64()], ids=str
)
def test_each_odd_text_is_read_as_by_way_of_text_or_left_to_it(kind):
    wanted = pa.schema([("a", kind), ("b", pa.float64())])
    for text in TEXTS:
        rows = []
        for field in (text, in_quotes(text)):
            rows += [f"{field},1\n", f"1,2\n{field},1\r\n", f"1,2\n\n{field},\n3,4"]
        for row, absent in product(rows, ([], [text], ["NA"])):
            try:
                agree(row.encode(), ["a", "b"], ",", wanted, absent)
            except AssertionError as error:
                raise AssertionError(f"{row!r} with {absent} as missing") from error


@settings(deadline=None)
@given(
    st.lists(st.floats(width=32, allow_infinity=False) | st.none(), min_size=1),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1),
)
def test_plain_numbers_are_made_straight(floats, integers):
    rows = list(zip(floats, integers * len(floats), strict=False))
    data = "".join(
        f"{'' if number is None else repr(number)},{whole}\n" for number, whole in rows
    ).encode()
    wanted = pa.schema([("b", pa.int64()), ("a", pa.float32())])

    assert agree(data, ["a", "b"], ",", wanted, [])


@pytest.mark.parametrize(
    "data",
    [
        b'1,"x, y",2.5\n,"say ""no""",\n3,,1e5\n',
        b'"1","","2.5"\r\n"","x","NA"\r\n',
        b"1,a b,2.5\n\n4,\xc3\xa9,NA\n",
        b'1,"two\n\nlines",2.5\n\n4,a,NA',
    ],
)
@pytest.mark.parametrize(
    "kinds", [[pa.int16(), pa.large_string(), pa.float32()], [pa.int16(), None, pa.float64()]]
)
@pytest.mark.parametrize("absent", [["NA", "x"], ["x", "2.5"]])
def test_text_quotes_and_absent_values_beside_numbers_are_made_straight(data, kinds, absent):
    wanted = pa.schema(
        [(name, kind) for name, kind in zip("abc", kinds, strict=True) if kind is not None]
    )
    straight = b"NA" not in data or "NA" in absent

    assert straight == agree(data, ["a", "b", "c"], ",", wanted, absent)


@pytest.mark.parametrize("separator", [",", "\t"])
@pytest.mark.parametrize("text", [" 1", "1 ", "1\t", '" 1"', '"1\t"'])
def test_a_number_with_space_at_an_edge_is_left_to_the_other_path(separator, text):
    wanted = pa.schema([("a", pa.int64()), ("b", pa.float64())])
    rows = [f"{text}{separator}2", f"1{separator}{text}"]

    assert [None] * 4 == [
        parse_numbers(
            row.encode() + end, separator=separator, names=["a", "b"], schema=wanted, null_values=()
        )
        for row in rows
        for end in (b"", b"\n")
    ]


@pytest.mark.parametrize(
    "damage",
    [
        b"1,2,3\n",
        b"1\n",
        b'1,"2\n',
        b"1,\xff\n",
        b"1,2\r3,4\n",
        b'1,2"\n',
        b"x,1\n",
        b"300,1\n",
        b'"1"2,3\n',
    ],
)
def test_a_damaged_block_is_left_to_the_path_that_names_the_row(damage):
    wanted = pa.schema([("a", pa.int8())])
    data = b"1,2\n" + damage + b"5,6\n"

    assert (
        parse_numbers(data, separator=",", names=["a", "b"], schema=wanted, null_values=()) is None
    )


@pytest.mark.parametrize(
    ("line", "column", "value", "told"),
    [
        ("7, 1", "b", " 1", "row 3, column 'b' is ' 1': it is declared int64"),
        ("7,x", "b", "x", "row 3, column 'b' is 'x': it is declared int64"),
        ("7", None, NO_VALUE, "row 3: it has 1 fields on line 4, the header 2: '7'"),
    ],
)
def test_a_stream_tells_the_row_the_column_and_the_value(tmp_path, line, column, value, told):
    (tmp_path / "part-0.csv").write_text("a,b\n1,2\n3,4\n" + line + "\n5,6\n")

    with raised(HeadraceError, column=column, value=value) as error:
        types = {"a": "float64", "b": "int64"}
        for _ in headrace.open(tmp_path, types=types, cache_dir=tmp_path / "index").stream(
            batch_size=2
        ):
            pass

    assert told in str(error.value)


def test_a_stream_of_many_blocks_is_the_numbers_that_were_written(tmp_path):
    random = np.random.default_rng(7)
    a = random.standard_normal(70_000).astype(np.float32)
    b = random.integers(-(2**62), 2**62, 70_000)
    lines = [f"{x!r},{y},t" for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    (tmp_path / "part-0.csv").write_text("a,b,c\n" + "\n".join(lines))
    dataset = headrace.open(
        tmp_path, types={"a": "float32", "b": "int64"}, cache_dir=tmp_path / "index"
    )
    batches = list(
        dataset.stream(batch_size=1000, batch_format="numpy", shuffle=False, columns=["b", "a"])
    )

    assert len(dataset.split_index().block) > 1
    assert np.array_equal(a, np.concatenate([batch["a"] for batch in batches]))
    assert np.array_equal(b, np.concatenate([batch["b"] for batch in batches]))


@pytest.mark.slow
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("text", ["t", '"two\nlines, ""and"" more"', '"x\r\n\r\ny"'])
def test_blocks_that_are_parsed_in_several_goes_lose_no_row(newline, text):
    rows = [
        f"{row},{row / 7},{text}{'x' * (row % 3) if text == 't' else ''}" for row in range(60_000)
    ]
    data = newline.join(rows).encode()
    wanted = pa.schema([("c", pa.large_string()), ("a", pa.int32()), ("b", pa.float64())])

    assert len(data) > 1 << 20
    assert agree(data, ["a", "b", "c"], ",", wanted, [])
    assert agree(data, ["a", "b", "c"], ",", wanted, ["NA"])


def test_a_row_longer_than_what_is_parsed_at_once_is_left_to_the_other_path():
    wanted = pa.schema([("a", pa.int32())])
    data = f"1,{'x' * (3 << 20)}\n2,y\n".encode()

    assert (
        parse_numbers(data, separator=",", names=["a", "b"], schema=wanted, null_values=()) is None
    )
    assert [1, 2] == by_way_of_text(data, ["a", "b"], ",", wanted, [])["a"].to_pylist()


SIGNALLED = """
import os, queue, signal, threading
import pyarrow as pa
from headrace.formats.delimited_rows import parse, parse_numbers

seen = []
signal.signal(signal.SIGTERM, lambda *_: seen.append(1))
data = b"".join(b"%d,%d.5\\n" % (row, row) for row in range(20_000))
schema = pa.schema([("a", pa.int64()), ("b", pa.float64())])
reads = queue.Queue()
sends = lambda: [os.kill(os.getpid(), signal.SIGTERM) for _ in iter(reads.get, "end")]
sender = threading.Thread(target=sends, daemon=True)
sender.start()
for _ in range(40):
    reads.put("begins")
    table = parse_numbers(data, separator=",", names=["a", "b"], schema=schema, null_values=())
    assert table is None or table.num_rows == 20_000
    reads.put("begins")
    assert parse(data, ",", 2, {0: pa.large_string()}).num_rows == 20_000
reads.put("end")
sender.join()
print("signals were handled" if seen else "no signal")
os.sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent as on POSIX")
def test_a_signal_that_a_program_handles_does_not_end_reading_in_its_main_thread():
    ended = subprocess.run(
        [sys.executable, "-c", SIGNALLED], capture_output=True, text=True, check=False
    )

    assert (0, "signals were handled\n") == (ended.returncode, ended.stdout), ended.stderr
