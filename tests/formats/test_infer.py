"""Types are inferred from all rows: a type holds every value of a column, and values are written again by its rule."""

import gzip
import math
import re
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as settings_of
from hypothesis import strategies as st

import headrace
from headrace.errors import InputError, SettingsError
from headrace.formats.common_schema import infer_types
from headrace.formats.dialect import TextDialect
from headrace.formats.types import type_named
from laws import examples
from raised import raised

NULLS = ("NA",)
WHOLE = re.compile(r"0|-?[1-9][0-9]*")
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?")
MOMENT = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?", re.ASCII)


def holds(word: str, text: str) -> bool:
    """Tell whether a type holds a text, by the rule of the documentation, in plain Python."""
    if word == "bool":
        return text in ("true", "false")
    if word in ("int64", "uint64"):
        low, high = (-(2**63), 2**63 - 1) if word == "int64" else (0, 2**64 - 1)
        return WHOLE.fullmatch(text) is not None and low <= int(text) <= high
    if word == "float64":
        known = NUMBER.fullmatch(text) is not None and math.isfinite(float(text))
        return known and Decimal(repr(float(text))) == Decimal(text)
    try:
        if word == "date":
            return re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII) is not None and bool(
                date.fromisoformat(text)
            )
        return MOMENT.fullmatch(text) is not None and bool(datetime.fromisoformat(text))
    except ValueError:
        return False


def expected(values: list[str]) -> str:
    texts = [each for each in values if each not in ("", *NULLS)]
    words = ("bool", "int64", "uint64", "float64", "date", "datetime")
    return next(
        (word for word in words if texts and all(holds(word, each) for each in texts)), "text"
    )


def shards_of(directory: Path, parts: list[list[str]]) -> list[tuple[Path, str]]:
    directory.mkdir(exist_ok=True)
    files = []
    for number, values in enumerate(parts):
        path = directory / f"part-{number}.csv"
        path.write_text(
            "row,value\n" + "".join(f'{row},"{value}"\n' for row, value in enumerate(values))
        )
        files.append((path, path.name))
    return files


def inferred(directory: Path, parts: list[list[str]], **options: Any) -> str:
    found = infer_types(
        shards_of(directory, parts), dialect=TextDialect(null_values=NULLS), **options
    )
    return found.get("value", "text")


INTEGERS = st.one_of(st.integers(-30, 30), st.integers(-(2**64), 2**65)).map(str)
FLOATS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(allow_nan=False, allow_infinity=False, places=2).map(str),
    st.from_regex(NUMBER, fullmatch=True),
)
DATES = st.dates(min_value=date(1, 1, 1)).map(date.isoformat)
TIMES = st.datetimes().flatmap(
    lambda each: st.sampled_from(
        [
            each.isoformat(),
            each.isoformat(" "),
            each.isoformat(" ", "minutes"),
            each.isoformat("T", "milliseconds"),
        ]
    )
)
ODD = st.sampled_from(["007", "-0", "+5", "1.50", ".5", "5.", "1e5", "0x1", "True", "2024-02-30", "2024-1-1", "x", "NaN", "inf", "", "NA", "2024-01-01T10:00Z", "1,5", " 1", "1_0"])  # fmt: skip


@pytest.mark.slow
@settings_of(max_examples=examples(200))
@given(
    st.sampled_from([INTEGERS, FLOATS, DATES, TIMES, st.sampled_from(["true", "false"])]).flatmap(
        lambda kind: st.lists(
            st.lists(st.one_of(kind, kind, kind, st.sampled_from(["", "NA"]), kind), max_size=6),
            min_size=1,
            max_size=3,
        )
    ),
    st.one_of(st.none(), ODD, INTEGERS, FLOATS, DATES, TIMES),
)
def test_the_type_is_the_first_that_holds_all_values(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[str]], odd: str | None
) -> None:
    parts = [*parts[:-1], [*parts[-1], *([] if odd is None else [odd])]]
    values = [value for part in parts for value in part]
    directory = tmp_path_factory.mktemp("shards")
    found = inferred(directory, parts)

    assert expected(values) == found
    assert found == inferred(directory, [values], workers=1)
    assert found == inferred(directory, parts[::-1], workers=3)


@pytest.mark.parametrize(
    ("column", "odd", "word"),
    [
        ("7", "007", "text"),
        ("7", "-0", "float64"),
        ("7", "+7", "text"),
        ("7", str(2**63 - 1), "int64"),
        ("7", str(2**63), "uint64"),
        ("-7", str(2**63), "text"),
        ("7", str(2**64), "text"),
        ("7", "0.1", "float64"),
        ("7", "1e400", "text"),
        ("0.1", str(2**63 - 1), "text"),
        ("0.1", "0.1234567890123456789", "text"),
        ("0.1", "0.30000000000000004", "float64"),
        ("0.1", "5e-324", "float64"),
        ("1.50", "x", "text"),
        ("true", "True", "text"),
        ("2024-01-01", "2024-01-02 10:00", "datetime"),
        ("2024-01-01", "2024-01-02T10:00:00.1234567", "text"),
        ("2024-01-01", "2024-02-30", "text"),
        ("2024-01-01 10:00", "2024-01-01 10:00Z", "text"),
    ],
)
def test_one_value_in_the_last_row_of_the_last_shard_decides(
    tmp_path: Path, column: str, odd: str, word: str
) -> None:
    parts = [[column] * 20_000 for _ in range(3)]

    assert expected([column]) == inferred(tmp_path, parts)
    parts[-1][-1] = odd
    assert word == inferred(tmp_path, parts) == expected([column, odd])


def test_missing_values_are_no_values_and_a_column_of_them_stays_text(tmp_path: Path) -> None:
    assert "int64" == inferred(tmp_path, [["", "NA", "7"], [""]])
    assert "text" == inferred(tmp_path, [["", "NA"], []])


@settings_of(max_examples=examples(60))
@given(st.lists(st.one_of(INTEGERS, FLOATS, DATES, TIMES), min_size=1, max_size=4))
def test_values_are_read_as_what_they_say_and_written_again(
    tmp_path_factory: pytest.TempPathFactory, values: list[str]
) -> None:
    word = inferred(tmp_path_factory.mktemp("shards"), [values])
    if word == "text":
        return
    read = pa.chunked_array([values]).cast(type_named(word)).to_pylist()
    for text, value in zip(values, read, strict=True):
        if word in ("int64", "uint64", "date"):
            assert text == str(value)
        elif word == "float64":
            assert Decimal(text) == Decimal(repr(value))
        else:
            assert datetime.fromisoformat(text) == value


def settings(source: Path, **more: Any) -> headrace.Rewrite:
    return headrace.Rewrite(source=source, dialect={"null_values": NULLS}, **more)


def test_a_run_of_inferred_types_is_the_run_of_the_types_written_out(tmp_path: Path) -> None:
    shards_of(tmp_path / "raw", [["1", "NA"], ["2.5"]])
    asked = settings(tmp_path / "raw", types="infer")
    first = headrace.prepare(asked, tmp_path / "out")
    written = headrace.prepare(
        settings(tmp_path / "raw", types={"row": "int64", "value": "float64"}), tmp_path / "out"
    )
    rows = headrace.open(tmp_path / "out")["all"].to_arrow()

    assert {"row": "int64", "value": "float64"} == dict(asked.types) == asked.inferred_types
    assert "reused" == written.how
    assert first.manifest.run_id == written.manifest.run_id
    assert [1.0, None, 2.5] == rows["value"].to_pylist()


def test_types_that_are_given_come_before_inferred_ones(tmp_path: Path) -> None:
    shards_of(tmp_path / "raw", [["1"], ["2"]])

    assert {"row": "int64", "value": "text"} == dict(
        settings(tmp_path / "raw", types={"*": "infer", "value": "text"}).types
    )


def test_a_later_value_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    shards_of(tmp_path / "raw", [["1"], ["2"]])
    types = dict(settings(tmp_path / "raw", types="infer").types)
    shards_of(tmp_path / "raw", [["1"], ["2", "007x"]])

    with raised(InputError, column="value", value="007x", remedy="declare another type"):
        headrace.prepare(settings(tmp_path / "raw", types=types), tmp_path / "out")


def test_columns_of_a_role_stay_text(tmp_path: Path) -> None:
    rows = pl.DataFrame(
        {
            "who": range(40),
            "when": [f"2024-01-{1 + n % 28:02}" for n in range(40)],
            "n": range(40),
            "y": [0, 1] * 20,
        }
    )
    rows.write_csv(tmp_path / "rows.csv")
    split = headrace.TemporalSplit(
        source=tmp_path / "rows.csv",
        time="when",
        entity="who",
        label="y",
        split_date="2024-01-20",
        types="infer",
    )

    assert {"n": "int64"} == dict(split.types)


def test_columns_of_other_formats_have_their_own_types(tmp_path: Path) -> None:
    pl.DataFrame({"a": [1], "b": ["1"]}).write_parquet(tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_text("a,b,c\n1,2,3\n")

    assert {"c": "int64"} == infer_types(
        [(tmp_path / name, name) for name in ("a.parquet", "b.csv")]
    )


def test_opening_refuses_it_and_says_what_to_do(tmp_path: Path) -> None:
    shards_of(tmp_path / "raw", [["1"]])

    with pytest.raises(SettingsError, match="headrace init rewrite … --types infer"):
        headrace.open(tmp_path / "raw", types={"*": "infer"})


def test_compressed_shards_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"a,b\n1,x\n"))

    assert {"a": "int64"} == infer_types([(tmp_path / "a.csv.gz", "a.csv.gz")])
