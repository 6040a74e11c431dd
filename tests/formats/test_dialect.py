"""Text that is not plain CSV – literal quotes, backslashes, other encodings, numbers and times of other countries – is
read as other libraries read it under the same options, through open, rewrite, split and verify.
"""

import csv
import gzip
import io
import pickle
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.raised import raised

import headrace
from headrace import TextDialect
from headrace.errors import InputError, SettingsError
from headrace.formats import records
from headrace.formats.dialect import dialect_of
from headrace.formats.source import scan, survey

ROWS = 300


class World(NamedTuple):
    """A file as another program writes it. data: its bytes; name: with the extension of its format; expected: its
    columns as they are to be read under `dialect` and `types`, if the others are text.
    """

    name: str
    data: bytes
    dialect: Mapping[str, Any]
    types: Mapping[str, str]
    expected: pa.Table


def imdb() -> World:
    """Titles with literal quotes, and \\N for missing numbers, as IMDb publishes them."""
    titles = ['"Giliap"', 'The "odd" one', '"Unclosed', "Plain", 'Ends"']
    lines = ["tconst\tday\tprimaryTitle\tstartYear"]
    for row in range(ROWS):
        year = "\\N" if row % 7 == 0 else str(1900 + row % 120)
        day = f"2020-{1 + row % 12:02}-01"
        lines.append(f"tt{row:07}\t{day}\t{titles[row % len(titles)]}\t{year}")
    data = ("\n".join(lines) + "\n").encode()
    theirs = pandas.read_csv(
        io.BytesIO(data), sep="\t", quoting=csv.QUOTE_NONE, na_values=["\\N"], keep_default_na=False,
        dtype={"tconst": str, "day": str, "primaryTitle": str, "startYear": "Int32"},
    )  # fmt: skip
    expected = pa.Table.from_pandas(theirs, preserve_index=False)
    return World(
        "title.basics.tsv",
        data,
        {"quoting": "none", "null_values": ["\\N"]},
        {"startYear": "int32"},
        expected,
    )


def mysql() -> World:
    """Rows as `SELECT … INTO OUTFILE` writes them: separators, line ends and backslashes are escaped, null is \\N."""
    notes = [
        "plain",
        "a\ttab",
        "two\nlines",
        "back\\slash",
        'a "quote"',
        None,
        "ends\\",
        "C:\\new\\table",
        "zero\0byte",
    ]
    lines = ["id\tday\tnote\tamount"]
    values = []
    for row in range(ROWS):
        note = notes[row % len(notes)]
        written = "\\N"
        if note is not None:
            written = (
                note.replace("\\", "\\\\")
                .replace("\t", "\\\t")
                .replace("\n", "\\\n")
                .replace("\0", "\\0")
            )
        amount = None if row % 5 == 0 else row / 4
        shown = "\\N" if amount is None else str(amount)
        lines.append(f"{row}\t2020-{1 + row % 12:02}-02\t{written}\t{shown}")
        values.append((str(row), f"2020-{1 + row % 12:02}-02", note, amount))
    columns = [list(column) for column in zip(*values, strict=True)]
    expected = pa.table(dict(zip(("id", "day", "note", "amount"), columns, strict=True)))
    data = ("\n".join(lines) + "\n").encode()
    return World(
        "outfile.tsv", data, {"quoting": "none", "escape": "\\"}, {"amount": "float64"}, expected
    )


def escaped_quotes() -> World:
    """Quoted fields whose quotes are escaped by a backslash, as Spark writes them."""
    lines = ["id,day,note"]
    values = []
    for row in range(ROWS):
        note = ['say "hi", twice', 'a ""b""', "C:\\dir", "", 'x\n"y"'][row % 5]
        written = note.replace("\\", "\\\\").replace('"', '\\"')
        lines.append(f'{row},2020-{1 + row % 12:02}-03,"{written}"')
        values.append((str(row), f"2020-{1 + row % 12:02}-03", note))
    data = ("\r\n".join(lines) + "\r\n").encode()
    theirs = list(
        csv.reader(io.StringIO(data.decode(), newline=""), escapechar="\\", doublequote=False)
    )
    assert [tuple(row) for row in theirs[1:]] == values
    columns = [list(column) for column in zip(*values, strict=True)]
    return World(
        "spark.csv",
        data,
        {"escape": "\\"},
        {},
        pa.table(dict(zip(theirs[0], columns, strict=True))),
    )


def encoded(encoding: str) -> World:
    """City names in another encoding."""
    far = "Łódź 😀" if encoding.startswith("utf") else "Málaga"
    rows = [
        (str(row), f"2020-{1 + row % 12:02}-04", ["München", "Köln, Dom", "Østerbro", far][row % 4])
        for row in range(ROWS)
    ]
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([("id", "day", "Straße"), *rows])
    data = text.getvalue().encode(encoding)
    theirs = pandas.read_csv(io.BytesIO(data), encoding=encoding, dtype=str)
    return World(
        "cities.csv",
        data,
        {"encoding": encoding},
        {},
        pa.Table.from_pandas(theirs, preserve_index=False),
    )


def german() -> World:
    """Numbers with a decimal comma and points between thousands, and days as they are written there."""
    lines = ["id;day;betrag;anzahl"]
    for row in range(ROWS):
        amount = f"{row * 1234.56:,.2f}".replace(",", "_").replace(".", ",").replace("_", ".")
        lines.append(
            f"{row};{1 + row % 28:02}.0{1 + row % 9}.2020;{amount if row % 6 else 'k.A.'};{row * 1000:,}".replace(
                ",000", ".000"
            )
        )
    data = ("\n".join(lines) + "\n").encode()
    theirs = pandas.read_csv(
        io.BytesIO(data), sep=";", decimal=",", thousands=".", na_values=["k.A."], dtype={"id": str, "day": str},
    )  # fmt: skip
    days = pa.array([datetime.strptime(day, "%d.%m.%Y").date() for day in theirs["day"]])
    expected = pa.Table.from_pandas(theirs, preserve_index=False)
    return World(
        "umsatz.csv",
        data,
        {"decimal": ",", "thousands": ".", "null_values": ["k.A."], "time_format": "%d.%m.%Y"},
        {"betrag": "float64", "anzahl": "int64", "day": "date"},
        expected.set_column(1, "day", days),
    )


def titled(word: str = "utf-8") -> World:
    """A title with one quote and a comment stand above the line of names."""
    world = german()
    title = 'Umsatz "2020\r\n# exported; by hand\n\n'
    data = (title + world.data.decode()).encode(word)
    return world._replace(data=data, dialect={**world.dialect, "skip_rows": 3, "encoding": word})


WORLDS = {
    "imdb": imdb,
    "mysql": mysql,
    "spark": escaped_quotes,
    "german": german,
    "titled": titled,
    "titled utf-16": lambda: titled("utf-16"),
    **{word: (lambda word=word: encoded(word)) for word in ("latin-1", "cp1252", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp037")},
}  # fmt: skip


@pytest.fixture(params=sorted(WORLDS))
def world(request: pytest.FixtureRequest) -> World:
    return WORLDS[request.param]()


SOME = [(world, "copied") for world in WORLDS] + [
    (world, how) for world in ("imdb", "mysql", "spark", "german", "titled", "utf-16") for how in ("derived", "parquet")
]  # fmt: skip


def same(table: pa.Table, expected: pa.Table) -> None:
    """Compare values; text of any offsets is the same."""
    assert table.column_names == expected.column_names
    for name in expected.column_names:
        assert table[name].to_pylist() == expected[name].to_pylist(), name


def in_order(table: pa.Table) -> pa.Table:
    return table.sort_by([(table.column_names[0], "ascending")])


@pytest.mark.parametrize("compression", ["", ".gz"])
def test_plain_shards_are_read_as_their_dialect_says(
    world: World, compression: str, tmp_path: Path
) -> None:
    data = gzip.compress(world.data) if compression else world.data
    (tmp_path / f"{world.name}{compression}").write_bytes(data)
    opened = headrace.open(
        tmp_path / f"{world.name}{compression}",
        types={"*": "text", **world.types},
        dialect=world.dialect,
        cache_dir=tmp_path / "cache",
    )

    same(opened["all"].to_arrow(), world.expected)
    stream = opened.stream("all", batch_size=7, shuffle=False, batch_format="arrow")
    same(
        pa.concat_tables(stream).select(world.expected.column_names).slice(0, ROWS), world.expected
    )


def test_a_rewrite_holds_the_same_values(world: World, tmp_path: Path) -> None:
    (tmp_path / world.name).write_bytes(world.data)
    headrace.rewrite(
        tmp_path / world.name,
        tmp_path / "out",
        types={"*": "text", **world.types},
        dialect=world.dialect,
        cache_dir=tmp_path / "cache",
    )

    same(headrace.open(tmp_path / "out")["all"].to_arrow(), world.expected)
    assert not headrace.verify(tmp_path / "out").problems


@pytest.mark.parametrize(("word", "how"), SOME)
def test_a_split_keeps_the_text_of_every_row(word: str, how: str, tmp_path: Path) -> None:
    world = WORLDS[word]()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / world.name).write_bytes(world.data)
    more: dict[str, Any] = {
        "derived": {"lineage": "columns"},
        "parquet": {"format": "parquet"},
    }.get(how, {})
    entity = world.expected.column_names[0]
    settings = headrace.TemporalSplit(
        source=tmp_path / "in",
        time="day",
        entity=entity,
        split_date="2020-07-01",
        types={name: word for name, word in world.types.items() if name != "day"},
        dialect=world.dialect,
        **more,
    )
    headrace.prepare(settings, tmp_path / "out")
    opened = headrace.open(tmp_path / "out")
    rows = pa.concat_tables([opened[split].to_arrow() for split in ("train", "val", "test")])
    expected = world.expected
    if "day" in world.types:
        days = [f"{day:%d.%m.%Y}" for day in expected["day"].to_pylist()]
        expected = expected.set_column(1, "day", pa.array(days))

    same(
        in_order(rows.select(expected.column_names)),
        in_order(expected.cast(rows.select(expected.column_names).schema)),
    )
    assert not headrace.verify(tmp_path / "out").problems
    if how == "copied":
        source = TextDialect(**world.dialect).of_file(world.data[:4])
        lines = set(world.data.decode(source).removeprefix("\ufeff").split("\n"))
        for file in (tmp_path / "out" / "splits").rglob("*.[ct]sv"):
            assert set(file.read_bytes().decode().split("\n")) <= lines


@pytest.mark.parametrize("word", ["latin-1", "utf-16", "utf-16-be", "utf-32"])
def test_blocks_of_another_encoding_are_ranges_of_the_file(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.formats.delimited.BLOCK_BYTES", 1 << 9)
    world = encoded(word)
    path = tmp_path / world.name
    path.write_bytes(world.data)
    spans = scan(survey(path, path.name, dialect=TextDialect(encoding=word)))

    assert len(spans) > 10
    assert len(world.data) == spans[-1].offset + spans[-1].length
    opened = headrace.open(
        path, types="text", dialect={"encoding": word}, cache_dir=tmp_path / "cache"
    )
    same(opened["all"].to_arrow(), world.expected)


REFUSED = {
    "quotes": (b"a\tb\n1\tx\n2\t\"y\n3\tz\n", {}, {"quoting": "none"}),
    "pairs of quotes": (b"a\tb\n1\tx\"y\n2\tz\"\n", {}, {"quoting": "none"}),
    "escaped quotes": (b'a,b\n1,"x\\",y"\n', {}, {"escape": "\\"}),
    "Latin-1": ("a,b\n1,é\n".encode("latin-1"), {}, {"encoding": "latin-1"}),
    "UTF-16": ("a,b\n1,é\n".encode("utf-16"), {}, {"encoding": "utf-16"}),
    "German numbers": (b"a;b\n1;1.234,56\n", {"b": "float64"}, {"decimal": ",", "thousands": "."}),
    "English numbers": (b'a;b\n1;1,234.56\n', {"b": "float64"}, {"thousands": ","}),
    "French numbers": ("a;b\n1;1\u202f234,5\n".encode(), {"b": "float64"}, {"decimal": ",", "thousands": " "}),
    "NA": (b"a,b\n1,NA\n", {"b": "int32"}, {"null_values": ["NA"]}),
    "dates": (b"a,b\n1,31/12/2020\n", {"b": "date"}, {"time_format": "%d/%m/%Y"}),
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(REFUSED))
def test_a_refusal_names_the_setting_that_reads_the_file(kind: str, tmp_path: Path) -> None:
    data, types, dialect = REFUSED[kind]
    (tmp_path / "x.csv").write_bytes(data)

    with pytest.raises(InputError) as told:
        headrace.open(tmp_path / "x.csv", types=types, cache_dir=tmp_path / "cache")[
            "all"
        ].to_arrow()

    for name, value in dialect.items():
        assert f'"{name}": {__import__("json").dumps(value, ensure_ascii=False)}' in str(told.value)
    assert str(tmp_path / "x.csv") in str(told.value)
    opened = headrace.open(
        tmp_path / "x.csv", types=types, dialect=dialect, cache_dir=tmp_path / "cache"
    )
    assert opened["all"].to_arrow().num_rows >= 1


@pytest.mark.parametrize(
    ("text", "line"),
    [("a,b\n1,2\n1,2,3\n", 3), ('a,b\n1,"x\ny"\n1\n', 4), ("a,b\n\n1,2\n1,2,3\n", 4)],
)
def test_a_ragged_row_is_told_with_its_line(text: str, line: int, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(text)

    with raised(InputError, path=tmp_path / "x.csv", row=2):
        headrace.open(tmp_path / "x.csv", cache_dir=tmp_path / "cache")["all"].to_arrow()
    with pytest.raises(InputError, match=f"fields on line {line}, the header 2"):
        headrace.open(tmp_path / "x.csv", cache_dir=tmp_path / "cache")["all"].to_arrow()


@pytest.mark.parametrize(
    ("values", "setting", "remedy"),
    [
        ({"encoding": "latin-99"}, "encoding", None),
        ({"encoding": "hex"}, "encoding", None),
        ({"decimal": ",", "thousands": ","}, "thousands", None),
        ({"time_format": "dmy"}, "time_format", None),
        ({"time_format": "%Y-%m-%d %H:%M %Z"}, "time_format", None),
        ({"quotes": "none"}, None, None),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(
    values: dict[str, Any], setting: str | None, remedy: str | None
) -> None:
    with pytest.raises(SettingsError) as told:
        TextDialect(**values)
    if setting is not None:
        assert told.value.setting == setting
    with pytest.raises(SettingsError):
        headrace.Rewrite(source="x", dialect=values)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("quoting=none,encoding=latin-1", {"quoting": "none", "encoding": "latin-1"}),
        ("decimal=,,thousands=.", {"decimal": ",", "thousands": "."}),
        ("null_values=NA,-,time_format=%a, %d %b %Y", {"null_values": ("NA", "-"), "time_format": ("%a, %d %b %Y",)}),
        ("time_format=iso,time_format=%d/%m/%Y", {"time_format": ("iso", "%d/%m/%Y")}),
        ("escape=\\", {"escape": "\\"}),
    ],
)  # fmt: skip
def test_a_flag_is_the_same_dialect(text: str, values: dict[str, Any]) -> None:
    assert dialect_of(text) == TextDialect(**values)
    assert headrace.Rewrite(source="x", dialect=text).dialect == TextDialect(**values)


FIELD = st.text(st.sampled_from(list('a\\"\t\n,Nn0 é')), max_size=6)


def test_what_was_asked_of_a_dialect_leaves_it_as_it_was() -> None:
    for word, width in (("quoting=none", 1), ("encoding=utf-16,quoting=none", 2)):
        asked = dialect_of(word)
        assert (width, 1) == (asked.bytes_of_character, asked.written.bytes_of_character)
        again = pickle.loads(pickle.dumps(asked))

        assert again == asked == dialect_of(word)
        assert again.written == asked.written == dialect_of("quoting=none")


@pytest.mark.parametrize("encoding", ["shift_jis", "gb18030", "iso2022_jp", "utf-7"])
def test_characters_of_other_widths_have_none(encoding: str) -> None:
    assert TextDialect(encoding=encoding).bytes_of_character is None


@given(st.lists(st.lists(FIELD, min_size=2, max_size=2), min_size=1, max_size=8))
def test_escaped_text_survives_the_way_out_and_in(rows: Sequence[Sequence[str]]) -> None:
    def written(text: str) -> bytes:
        for raw, shown in (("\\", "\\\\"), ("\t", "\\\t"), ("\n", "\\\n"), ('"', '\\"')):
            text = text.replace(raw, shown)
        return text.encode()

    data = b"".join(b"\t".join(map(written, row)) + b"\n" for row in rows)
    marked = records.mark(data, TextDialect(escape="\\"))
    assert len(records.record_ends(marked.marks, marked.quotes)) == len(rows)
    assert not len(marked.quotes)


@pytest.mark.parametrize(
    ("mark", "decimal"), [(".", ","), (",", "."), ("'", "."), (" ", ","), ("_", ".")]
)
def test_only_groups_of_three_digits_are_thousands(mark: str, decimal: str, tmp_path: Path) -> None:
    dialect = {"thousands": mark, "decimal": decimal}
    (tmp_path / "x.tsv").write_text(
        f"a\tb\n1\t1{mark}234{decimal}5\n2\t-12{mark}345{mark}678\n3\t42\n"
    )
    opened = headrace.open(
        tmp_path / "x.tsv", types={"b": "float64"}, dialect=dialect, cache_dir=tmp_path
    )
    assert [1234.5, -12345678.0, 42.0] == opened["all"].to_arrow()["b"].to_pylist()
    (tmp_path / "y.tsv").write_text(f"a\tb\n1\t1{mark}23\n2\t5\n")
    opened = headrace.open(
        tmp_path / "y.tsv", types={"b": "float64"}, dialect=dialect, cache_dir=tmp_path
    )
    with raised(InputError, column="b", value=f"1{mark}23"):
        opened["all"].to_arrow()


def test_memory_of_decoding_is_that_of_a_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.formats.decoding._PIECE_BYTES", 61)
    world = encoded("utf-16")
    (tmp_path / world.name).write_bytes(world.data)
    opened = headrace.open(
        tmp_path / world.name,
        types="text",
        dialect={"encoding": "utf-16"},
        cache_dir=tmp_path / "cache",
    )
    same(opened["all"].to_arrow(), world.expected)
    assert np.array_equal(
        opened["all"].to_arrow()["id"].to_pylist(), world.expected["id"].to_pylist()
    )


def clocks(how: str) -> tuple[str, str, dict[str, Any]]:
    """Return a day, a clock and the dialect of their form."""
    if how == "iso":
        return "2020-{month:02}-05", "12:{minute:02}", {}
    return "05.{month:02}.2020", "12:{minute:02}:30", {"time_format": "%d.%m.%Y %H:%M:%S"}


@pytest.mark.parametrize("how", ["iso", "german"])
def test_a_date_and_a_clock_in_two_columns_are_one_time(how: str, tmp_path: Path) -> None:
    day, clock, dialect = clocks(how)
    lines = ["id,date,clock,x"]
    for row in range(120):
        form = {"month": 1 + row % 12, "minute": row % 60}
        lines.append(f"e{row // 2},{day.format(**form)},{clock.format(**form)},{row}")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/part-0.csv").write_text("\n".join([*lines, "e1,,12:00,0"]) + "\n")
    asked: dict[str, Any] = {
        "source": tmp_path / "in",
        "time": ["date", "clock"],
        "entity": "id",
        "split_date": "2020-07-05T12:30",
        "dialect": dialect,
    }

    with raised(InputError, row=121, column="date and clock"):
        headrace.prepare(headrace.TemporalSplit(**asked), tmp_path / "out")
    prepared = headrace.prepare(headrace.TemporalSplit(**asked, bad_rows="drop"), tmp_path / "out")
    tested = set(headrace.open(tmp_path / "out")["test"].to_arrow()["x"].to_pylist())

    late = {row for row in range(120) if (1 + row % 12, 5, 12, row % 60) >= (7, 5, 12, 30)}
    assert tested
    assert tested <= late
    assert prepared.manifest.dropped["null_time"] == 1
    assert not headrace.verify(tmp_path / "out").problems
    assert headrace.find_leaks(headrace.open(tmp_path / "out")).periods[0].unread == 0


def test_series_join_a_date_and_a_clock(tmp_path: Path) -> None:
    lines = ["Tag;Uhr;Last"]
    lines += [f"{1 + hour // 24:02}.01.2020;{hour % 24:02}:00;{hour},5" for hour in range(24 * 30)]
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.csv").write_bytes(("\n".join(lines) + "\n").encode("utf-16"))
    settings = headrace.Series(
        source=tmp_path / "in",
        time=["Tag", "Uhr"],
        target="Last",
        min_train_years=0,
        dialect={"encoding": "utf-16", "decimal": ",", "time_format": "%d.%m.%Y %H:%M"},
    )
    prepared = headrace.prepare(settings, tmp_path / "out")

    assert prepared.manifest.metadata["frequency"] == "1h"
    assert not headrace.verify(tmp_path / "out").problems


@pytest.mark.parametrize("time", [["date", "date"], ["date", ""], list("abcde"), ["date", "id"]])
def test_columns_that_are_no_time_are_refused(time: list[str]) -> None:
    with pytest.raises(SettingsError):
        headrace.TemporalSplit(source="in", time=time, entity="id", split_date="2020-07-05")
