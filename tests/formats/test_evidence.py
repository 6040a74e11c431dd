"""The type of a column of text is the first that holds every value, and values are written again by its rule."""

import math
import re
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.csv
import pytest
import torch
from hypothesis import given
from hypothesis import settings as settings_of
from hypothesis import strategies as st

import headrace
from headrace.dataset.open import find_run
from headrace.dataset.plain import open_plain
from headrace.errors import InputError, SettingsError
from headrace.formats.dialect import TextDialect
from headrace.formats.registry import compress_block
from headrace.formats.text_columns import cast_text
from headrace.formats.types import TYPES, type_named
from laws import examples
from raised import raised

NULLS = ("NA",)
WHOLE = re.compile(r"0|-?[1-9][0-9]*")
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?")
INSTANT = re.compile(
    r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d(:?\d\d)?)", re.ASCII
)
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
        if word == "datetime_utc":
            zoned = INSTANT.fullmatch(text) is not None
            return zoned and bool(datetime.fromisoformat(text).astimezone(UTC))
        return MOMENT.fullmatch(text) is not None and bool(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        return False


def expected(values: list[str]) -> str:
    texts = [each for each in values if each not in ("", *NULLS)]
    words = ("bool", "int64", "uint64", "float64", "date", "datetime", "datetime_utc")
    return next(
        (word for word in words if texts and all(holds(word, each) for each in texts)), "text"
    )


def shards_of(directory: Path, parts: list[list[str]]) -> Path:
    directory.mkdir(exist_ok=True)
    for number, values in enumerate(parts):
        rows = "".join(f'{row},"{value}"\n' for row, value in enumerate(values))
        (directory / f"part-{number}.csv").write_text("row,value\n" + rows)
    return directory


def found(directory: Path, parts: list[list[str]], **options: Any) -> str:
    """The type in the index; files without rows have none, and a source of them alone is text."""
    source = shards_of(directory, parts)
    dataset = open_plain(
        source, dialect=TextDialect(null_values=NULLS), cache_dir=directory / "cache", **options
    )
    type_ = dataset.schema.field("value").type
    return {each: word for word, each in TYPES.items()}[type_]


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
INSTANTS = st.datetimes().flatmap(
    lambda each: st.sampled_from(
        [
            each.isoformat() + "Z",
            each.isoformat(" ", "minutes") + "+0200",
            each.replace(tzinfo=timezone(timedelta(hours=-5, minutes=-30))).isoformat(),
        ]
    )
)
ODD = st.sampled_from(["007", "-0", "+5", "1.50", ".5", "5.", "1e5", "0x1", "True", "2024-02-30", "2024-1-1", "x", "NaN", "inf", "", "NA", "2024-01-01T10:00Z", "1,5", " 1", "1_0"])  # fmt: skip


@pytest.mark.slow
@settings_of(max_examples=examples(200))
@given(
    st.sampled_from(
        [INTEGERS, FLOATS, DATES, TIMES, INSTANTS, st.sampled_from(["true", "false"])]
    ).flatmap(
        lambda kind: st.lists(
            st.lists(st.one_of(kind, kind, kind, st.sampled_from(["", "NA"]), kind), max_size=6),
            min_size=1,
            max_size=3,
        )
    ),
    st.one_of(st.none(), ODD, INTEGERS, FLOATS, DATES, TIMES, INSTANTS),
)
def test_the_type_is_the_first_that_holds_all_values(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[str]], odd: str | None
) -> None:
    parts = [*parts[:-1], [*parts[-1], *([] if odd is None else [odd])]]
    values = [value for part in parts for value in part]
    directory = tmp_path_factory.mktemp("shards")
    if not values:
        return
    word = found(directory / "a", parts)

    assert expected(values) == word
    assert word == found(directory / "b", [values], workers=1)
    assert word == found(directory / "c", parts[::-1], workers=3)


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
        ("2024-01-01T10:00Z", "2024-01-01 10:00:00.5+05:30", "datetime_utc"),
        ("2024-01-01T10:00Z", "2024-01-01", "text"),
        ("2024-01-01T10:00Z", "0001-01-01T00:00+01:00", "text"),
    ],
)
def test_one_value_in_the_last_row_of_the_last_shard_decides(
    tmp_path: Path, column: str, odd: str, word: str
) -> None:
    parts = [[column] * 20_000 for _ in range(3)]

    assert expected([column]) == found(tmp_path / "a", parts)
    parts[-1][-1] = odd
    assert word == found(tmp_path / "b", parts) == expected([column, odd])


def test_missing_values_are_no_values_and_a_column_of_them_stays_text(tmp_path: Path) -> None:
    assert "int64" == found(tmp_path / "a", [["", "NA", "7"], [""]])
    assert "int64" == found(tmp_path / "b", [["7"], [""]])
    assert "bool" == found(tmp_path / "c", [["", "true"]])
    assert "date" == found(tmp_path / "d", [["2024-01-01"], ["NA"]])
    assert "int64" == found(tmp_path / "e", [["", str(2**63 - 1)]])
    assert "text" == found(tmp_path / "f", [["", "NA"], []])


GAPS = {
    "csv": "id,n,yes,day\n0,7,true,2024-01-01\n1,,,\n2,9,false,2024-01-02\n",
    "jsonl": '{"id": 0, "n": 7, "yes": true}\n{"id": 1, "n": null}\n{"id": 2, "n": 9, "yes": false}\n',
}


@pytest.mark.parametrize("suffix", GAPS)
def test_whole_numbers_with_gaps_are_null_in_tables_and_nan_in_tensors(
    tmp_path: Path, suffix: str
) -> None:
    # The first shard has no gap, and its batches are of the same type as those of the second.
    (tmp_path / f"a.{suffix}").write_text(
        GAPS[suffix].replace("1,,,", "1,8,true,2024-01-01").replace("null", '8, "yes": true')
    )
    (tmp_path / f"b.{suffix}").write_text(GAPS[suffix])
    dataset = headrace.open(tmp_path, cache_dir=tmp_path / "cache")
    table = dataset["all"].to_arrow()
    batches = list(
        dataset.stream(
            batch_size=3, shuffle=False, columns=["id", "n", "yes"], batch_format="numpy"
        )
    )

    assert [7, 8, 9, 7, None, 9] == table["n"].to_pylist()
    assert [True, True, False, True, None, False] == table["yes"].to_pylist()
    assert [pa.int64(), pa.int64(), pa.bool_()] == table.schema.types[:3]
    for batch in batches:
        assert ["int64", "float64", "float64"] == [
            batch[name].dtype.name for name in ("id", "n", "yes")
        ]
    assert [7, 8, 9] == batches[0]["n"].tolist()
    assert math.isnan(batches[1]["n"][1])
    assert math.isnan(batches[1]["yes"][1])
    if suffix == "csv":
        assert pa.date32() == table.schema.field("day").type
        assert date(2024, 1, 2) == table["day"][5].as_py()


def test_a_whole_number_that_float64_cannot_hold_beside_a_gap_is_refused_in_tensors(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.csv").write_text(f"n,m\n{2**53 + 1},1\n,2\n")
    dataset = headrace.open(tmp_path / "a.csv", cache_dir=tmp_path / "cache")

    assert [2**53 + 1, None] == dataset["all"].to_arrow()["n"].to_pylist()
    with raised(InputError, column="n"):
        next(iter(dataset.stream(batch_size=2)))


@settings_of(max_examples=examples(60))
@given(st.lists(st.one_of(INTEGERS, FLOATS, DATES, TIMES, INSTANTS), min_size=1, max_size=4))
def test_values_are_read_as_what_they_say_and_written_again(
    tmp_path_factory: pytest.TempPathFactory, values: list[str]
) -> None:
    word = found(tmp_path_factory.mktemp("shards"), [values])
    if word == "text":
        return
    read = pa.chunked_array([values]).cast(type_named(word)).to_pylist()
    for text, value in zip(values, read, strict=True):
        if word in ("int64", "uint64", "date"):
            assert text == str(value)
        elif word == "float64":
            assert Decimal(text) == Decimal(repr(value))
        else:
            moment = datetime.fromisoformat(text)
            assert (moment if value.tzinfo is None else moment.astimezone(UTC)) == value


DAYS = [f"2024-0{month}-01" for month in range(1, 10)]


def table(rows: int = 9) -> str:
    lines = ["day,who,zip,n,f,m,yes,word"]
    for row, day in zip(range(rows), DAYS, strict=False):
        missing = "" if row == 3 else str(row)
        lines.append(f"{day},{row % 3},0{row},{row},{row}.50,{missing},true,w{row}")
    return "\n".join(lines) + "\n"


STREAMED = {
    "day": pa.date32(),
    "who": pa.int64(),
    "zip": pa.string(),
    "n": pa.int64(),
    "f": pa.float64(),
    "m": pa.int64(),
    "yes": pa.bool_(),
    "word": pa.string(),
}


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "csv.zst", "tsv"])
def test_a_stream_of_text_files_has_tensors(tmp_path: Path, suffix: str) -> None:
    data = table().replace(",", "\t" if suffix == "tsv" else ",").encode()
    for number in range(2):
        path = tmp_path / f"part-{number}.{suffix}"
        path.write_bytes(compress_block(data, suffix.removeprefix("csv").lstrip(".") or "none"))
    dataset = headrace.open(tmp_path)
    batch = next(iter(dataset.stream(batch_size=18)))

    assert STREAMED == dict(
        zip(dataset["all"].schema.names, dataset["all"].schema.types, strict=True)
    )
    for name, type_ in STREAMED.items():
        assert isinstance(batch[name], list if type_ == pa.string() else torch.Tensor), name
    assert [*range(9)] * 2 == batch["n"].tolist()
    assert math.isnan(batch["m"][3])


def test_types_that_are_declared_come_before_evidence(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(table())
    kept = headrace.open(tmp_path / "a.csv", types="text")["all"].schema
    some = headrace.open(tmp_path / "a.csv", types={"*": "text", "n": "int8"})["all"].schema
    one = headrace.open(tmp_path / "a.csv", types={"n": "text"})["all"].schema

    assert {pa.string()} == set(kept.types)
    assert {pa.string(), pa.int8()} == set(some.types)
    assert {**STREAMED, "n": pa.string()} == dict(zip(one.names, one.types, strict=True))
    for types in ("int64", "infer", {"*": "float64"}):
        with raised(SettingsError, setting="types"):
            headrace.open(tmp_path / "a.csv", types=types)


def test_the_types_are_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.csv").write_text(table())
    with caplog.at_level("INFO", "headrace"):
        for _ in range(2):
            headrace.open(tmp_path / "a.csv", cache_dir=tmp_path / "cache")

    said = [
        each.message for each in caplog.records if "types that every value fits" in each.message
    ]
    assert 1 == len(said)
    assert "n int64, f double" in said[0]
    assert said[0].endswith('; types="text" keeps text')


def test_a_row_of_another_width_is_named_when_the_file_is_opened(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n3\n")

    with raised(InputError, path=tmp_path / "a.csv", row=2):
        headrace.open(tmp_path / "a.csv")


@pytest.mark.parametrize("written", ["same", "parquet", "jsonl"])
def test_a_split_keeps_its_text_and_streams_its_types(tmp_path: Path, written: Any) -> None:
    (tmp_path / "a.csv").write_text(table())
    options: dict[str, Any] = {
        "source": tmp_path / "a.csv",
        "time": "day",
        "split_date": "2024-06-01",
        "format": written,
    }
    headrace.prepare(headrace.TemporalSplit(**options), tmp_path / "out")
    headrace.prepare(headrace.TemporalSplit(**options, types="text"), tmp_path / "kept")
    run = headrace.open(tmp_path / "out")
    kept = headrace.open(tmp_path / "kept")
    (stored,) = find_run(tmp_path / "out")[0].glob("training_data/train/*")
    (stored_kept,) = find_run(tmp_path / "kept")[0].glob("training_data/train/*")

    assert stored.read_bytes() == stored_kept.read_bytes()
    assert STREAMED == dict(zip(run["train"].schema.names, run["train"].schema.types, strict=True))
    assert {pa.string()} == set(kept["train"].schema.types)
    assert [0, 1, 2, 3, 4] == next(iter(run.stream("train", batch_size=8)))["n"].tolist()[:5]
    texts = kept["train"].to_arrow()
    for name, type_ in STREAMED.items():
        assert cast_text(texts[name], type_).equals(run["train"].to_arrow()[name]), name
    assert not headrace.verify(tmp_path / "out").problems


def test_types_of_a_split_do_not_depend_on_its_shards(tmp_path: Path) -> None:
    for number, odd in enumerate(["1", "", "x"]):
        (tmp_path / f"part-{number}.csv").write_text(
            "day,a,b\n" + "".join(f"{day},{odd or 2},{odd}\n" for day in DAYS)
        )

    def types(*numbers: int) -> list[pa.DataType]:
        split = headrace.TemporalSplit(
            source=[tmp_path / f"part-{number}.csv" for number in numbers],
            time="day",
            split_date="2024-06-01",
            duplicates="allow",
        )
        headrace.prepare(split, tmp_path / "out")
        return headrace.open(tmp_path / "out")["train"].schema.types

    assert [pa.date32(), pa.int64(), pa.int64()] == types(0)
    assert [pa.date32(), pa.int64(), pa.string()] == types(1)
    assert [pa.date32(), pa.int64(), pa.int64()] == types(0, 1)
    assert [pa.date32(), pa.string(), pa.string()] == types(0, 1, 2)


ODD_TEXTS = st.one_of(
    st.none(), ODD, INTEGERS, FLOATS, DATES, TIMES, st.text("0123456789.-+eE xX:T", max_size=8)
)


@settings_of(max_examples=examples(60), deadline=None)
@given(
    st.one_of(
        *(
            st.lists(st.one_of(kind, st.none()), min_size=1, max_size=5)
            for kind in (INTEGERS, FLOATS, DATES, TIMES)
        ),
        st.lists(ODD_TEXTS, min_size=1, max_size=5),
    )
)
def test_values_are_those_of_other_readers_under_the_types_shown(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str | None]
) -> None:
    path = tmp_path_factory.mktemp("a") / "a.csv"
    rows = "".join("," + ("" if text is None else f'"{text}"') + "\n" for text in texts)
    path.write_text("row,value\n" + rows)
    ours = headrace.open(path, cache_dir=path.parent)["all"].to_arrow()["value"]
    typed = not pa.types.is_string(ours.type)
    read = pa.csv.read_csv(
        path,
        convert_options=pa.csv.ConvertOptions(
            column_types={"value": ours.type},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=typed,
        ),
    )["value"]
    assert ours.to_pylist() == read.to_pylist()
    if pa.types.is_integer(ours.type) or pa.types.is_floating(ours.type):
        overrides = {"value": pl.Series(ours).dtype}
        assert ours.to_pylist() == pl.read_csv(path, schema_overrides=overrides)["value"].to_list()
