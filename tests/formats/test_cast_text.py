"""A text becomes a declared type only if the type holds what the text says, whichever parser reads it."""

import math
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.errors import InputError
from headrace.formats.text_columns import cast_text
from laws import examples
from raised import raised

TOO_LARGE = [
    ("float32", "1e39"),
    ("float32", "-1e39"),
    ("float32", "1e400"),
    ("float64", "1e400"),
    ("float64", "-1e400"),
    ("int64", "0x10"),
    ("int64", "0XfF"),
    ("uint8", "0x1"),
    ("int64", "9223372036854775808"),
]


@pytest.mark.parametrize(("word", "text"), TOO_LARGE)
@pytest.mark.parametrize("rest", ["1", '"a ""quoted"" text"', " blank "])
def test_a_stream_refuses_what_the_type_cannot_hold(
    tmp_path: Path, word: str, text: str, rest: str
) -> None:
    """The other column decides which of the parsers of a block reads the numbers."""
    rows = [f"{number},{rest}" for number in range(5)]
    rows[3] = f"{text},{rest}"
    (tmp_path / "a.csv").write_text("x,other\n" + "\n".join(rows) + "\n")

    with raised(InputError, column="x", value=text):
        headrace.open(tmp_path / "a.csv", types={"x": word})["all"].to_arrow()


@pytest.mark.parametrize(("word", "text"), TOO_LARGE)
@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
@pytest.mark.parametrize("written", ["same", "parquet"])
def test_a_split_refuses_what_the_type_cannot_hold(
    tmp_path: Path, word: str, text: str, suffix: str, written: str
) -> None:
    days = [f"2024-0{month}-01" for month in range(1, 7)]
    if suffix == "csv":
        lines = ["day,x", *(f"{day},{text}" for day in days)]
    else:
        lines = [f'{{"day":"{day}","x":"{text}"}}' for day in days]
    (tmp_path / f"a.{suffix}").write_text("\n".join(lines) + "\n")
    split = headrace.TemporalSplit(
        source=tmp_path / f"a.{suffix}",
        time="day",
        split_date="2024-05-01",
        types={"x": word},
        format=written,
    )

    if suffix == "jsonl" and written == "same":
        pytest.skip("JSON lines keep their text")
    with raised(InputError, column="x", value=text, row=1):
        headrace.prepare(split, tmp_path / "out")


@pytest.mark.parametrize("text", ["inf", "-Infinity", "+INF"])
def test_an_infinity_that_is_written_as_one_is_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.csv").write_text(f"x,y\n{text},1\n")
    read = headrace.open(tmp_path / "a.csv", types={"x": "float32"})["all"].to_arrow()

    assert [math.copysign(math.inf, -1 if "-" in text else 1)] == read["x"].to_pylist()


@settings(max_examples=examples(200))
@given(
    st.lists(
        st.one_of(
            st.none(),
            st.integers(-(2**70), 2**70).map(str),
            st.floats().map(repr),
            st.decimals(allow_nan=False, allow_infinity=False).map(str),
            st.from_regex("[+-]?0?[xX]?[0-9a-fA-F]{1,4}", fullmatch=True),
        ),
        max_size=5,
    ),
    st.sampled_from([pa.int64(), pa.uint8(), pa.float32(), pa.float64()]),
)
def test_a_cast_value_is_the_number_that_its_text_says(
    texts: list[str | None], type_: pa.DataType
) -> None:
    column = pa.chunked_array([texts[:2], texts[2:]], pa.string())
    try:
        values = cast_text(column, type_).to_pylist()
    except pa.ArrowInvalid:
        return
    for text, value in zip(texts, values, strict=True):
        if text is None:
            assert value is None
        elif pa.types.is_integer(type_):
            assert int(text, 10) == value
        else:
            said = Decimal(text)
            assert said.is_infinite() == math.isinf(value)
            assert said.is_nan() == math.isnan(value)
