"""Polars parses plain delimited text to what Arrow parses it to, or leaves it to Arrow."""

from decimal import Decimal

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.formats import decoders, polars_csv
from headrace.formats.delimited_rows import _parsed_by_arrow, parse_numbers
from laws import examples

TYPES = [
    pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(),
    pa.uint64(), pa.float32(), pa.float64(),
]  # fmt: skip
NUMBER = (
    st.floats(allow_infinity=False).map(repr)
    | st.floats(width=32).map(str)
    | st.integers().map(str)
    | st.integers(-200, 300).map(str)
    | st.decimals(allow_nan=False, allow_infinity=False).map(Decimal.__str__)
    | st.text("0123456789.eE-xinfaINFy_ ,;+", max_size=7)
    | st.sampled_from(["", "1.", ".5", "1.0", "1e3", "-0", "00012", "1_0", "-nan", "Infinity"])
    | st.sampled_from(["0x1", "1e400", "1e-400", "4.9e-324", "1f", "1e5.", "16777217"])
    | st.sampled_from(["18446744073709551616", "3.4028236e38", "1.17549435e-38", "\u0663", "true"])
)


@given(
    type_=st.sampled_from(TYPES),
    rows=st.lists(st.tuples(NUMBER, st.text("ab\u00e9 1-", max_size=4)), min_size=1, max_size=5),
    end=st.sampled_from(["", "\n"]),
)
@settings(max_examples=examples(400))
@example(type_=pa.float64(), rows=[("1", "a")], end="\n\n")
def test_polars_parses_what_arrow_parses(
    type_: pa.DataType, rows: list[tuple[str, str]], end: str
) -> None:
    data = ("\n".join(f"{number},{text},{number}" for number, text in rows) + end).encode()
    names = ["n", "x", "m"]
    schema = pa.schema([("x", pa.string()), ("m", type_)])
    wanted = {"x": pa.large_string(), "m": type_}
    assert pl.__name__ in decoders.sys.modules
    fast = polars_csv.parse(data, ",", names, wanted)
    if fast is None or not (data.isascii() or "\u00e9".encode() in data):
        return
    found = parse_numbers(data, separator=",", names=names, schema=schema, null_values=())
    usual = _parsed_by_arrow(data, ",", names, schema, (), quoted=False)
    if found is None:  # the path through text decides
        return

    assert usual is not None
    assert found.schema == usual.schema
    assert found.equals(usual)  # no NaN is among them


@pytest.mark.parametrize("text", ["1,2\n3\n", "1\n2,3,4\n", "1,2\n\n3,4\n", "1,2\n3,4,5\n6\n"])
def test_rows_of_other_widths_are_left_to_arrow(text: str) -> None:
    assert polars_csv.parse(text.encode(), ",", ["a", "b"], {"a": pa.int64()}) is None
    assert polars_csv.parse(text.encode(), ",", ["a", "b"], {"b": pa.int64()}) is None
