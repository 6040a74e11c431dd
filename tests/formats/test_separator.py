"""The separator of a delimited file is found, kept, and never guessed."""

import itertools
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.dataset.plain import open_plain
from headrace.errors import CorruptShard, InputError
from headrace.formats.registry import SEPARATOR_NAMES, index_word, parse_index_word
from headrace.formats.source import file_type_of_word, read_chunks, survey
from laws import examples
from raised import raised
from tables import csv_bytes, fresh, kind, write_bytes

SEPARATORS = sorted(SEPARATOR_NAMES)


def rows(path: Path, signature: list[str] | None = None) -> list[tuple[str | None, ...]]:
    shard = survey(path, path.name, signature)
    return [
        tuple(row.values()) for chunk in read_chunks(shard) for row in chunk.table().to_pylist()
    ]


def streamed(path: Path) -> list[tuple[str | None, ...]]:
    """Every row, through the index of plain files and its readers."""
    dataset = open_plain(path, cache_dir=path.parent / "cache")
    read = dataset.block_reader()
    return [
        tuple(row.values())
        for block in range(len(dataset.split_index().rows))
        for row in read(block, None).to_pylist()
    ]


@pytest.mark.parametrize("name", ["part-0.csv", "part-0.tsv", "part-0.csv.gz", "part-0.tsv.zst"])
@pytest.mark.parametrize("separator", SEPARATORS)
def test_rows_are_the_same_whatever_separates_them(
    tmp_path: Path, separator: str, name: str
) -> None:
    table = [("1,5", "a|b", 'x;"y"\t', "é"), ("2", "", "c,d", "z\nz")]
    path = write_bytes(tmp_path / name, csv_bytes(("a", "b", "c", "d"), table, separator=separator))
    expected = [tuple(value or None for value in row) for row in table]

    assert separator == survey(path, name).dialect.separator
    assert expected == rows(path)
    assert expected == streamed(path)


def test_the_index_keeps_the_separator_of_every_shard(tmp_path: Path) -> None:
    for number, separator in enumerate(SEPARATORS):
        write_bytes(
            tmp_path / f"part-{number}.csv",
            csv_bytes(("a", "b"), [("1", f"{number}")], separator=separator),
        )
    dataset = open_plain(tmp_path, cache_dir=tmp_path / "cache")
    read = dataset.block_reader()

    assert ("csv-tab", "csv", "csv-semicolon", "csv-pipe") == dataset.split_index().formats
    assert [{"a": 1, "b": number} for number in range(4)] == [
        read(n, None).to_pylist()[0] for n in range(4)
    ]


cells = st.text(alphabet=st.sampled_from('ab,;|\t"\n '), max_size=5)


@given(
    st.lists(st.tuples(cells, cells, cells), min_size=1, max_size=8), st.sampled_from(SEPARATORS)
)
@settings(max_examples=examples(150))
def test_a_separator_is_right_or_an_error(
    tmp_path: Path, values: list[tuple[str, str, str]], separator: str
) -> None:
    """Whatever the fields hold; with a name in the header that holds all the others."""
    path = fresh(tmp_path) / "part-0.csv"
    header = ("a", "other: " + "".join(each for each in SEPARATORS if each != separator), "c")
    quoted = [[f'"{cell.replace(chr(34), chr(34) * 2)}"' for cell in row] for row in values]
    lines = [header, *quoted]
    path.write_text("".join(separator.join(line) + "\n" for line in lines))

    assert [tuple(row) for row in values] == rows(path)


@pytest.mark.parametrize(("separator", "other"), [(",", ";"), (";", ","), ("|", ";"), ("\t", ",")])
def test_the_rows_tell_where_the_header_holds_two_separators(
    tmp_path: Path, separator: str, other: str
) -> None:
    lines = [separator.join(("name", f"price{other} EUR", "c")), separator.join("123")]
    path = write_bytes(tmp_path / "p.csv", "\n".join(lines).encode())

    assert ["name", f"price{other} EUR", "c"] == survey(path, path.name).schema.names
    assert [("1", "2", "3")] == rows(path)


def test_nothing_is_guessed_where_two_separators_would_do(tmp_path: Path) -> None:
    path = write_bytes(tmp_path / "p.csv", b"a;b,c\n1;2,3\n4;5,6\n")

    with pytest.raises(
        InputError,
        match=r"p\.csv: line 1: it can be separated by commas and semicolons, .*'a;b,c'; put quotes around",
    ):
        survey(path, path.name)


def test_quotes_around_a_field_tell(tmp_path: Path) -> None:
    path = write_bytes(tmp_path / "p.csv", b'a;"b,c"\n1;2,3\n4;5,6\n')

    assert [("1", "2,3"), ("4", "5,6")] == rows(path)


def test_a_header_without_rows_is_separated_as_the_name_says(tmp_path: Path) -> None:
    path = write_bytes(tmp_path / "p.csv", b"share (a|b),c\n")

    assert ["share (a|b)", "c"] == survey(path, path.name).schema.names


def test_a_damaged_file_is_an_error_of_its_row(tmp_path: Path) -> None:
    path = write_bytes(tmp_path / "p.csv", b"a,b|c\n1,2\n3\n")

    with raised(InputError, row=2, remedy="complete or remove that row"):
        rows(path)


def test_a_row_that_the_first_bytes_cut_is_no_witness(tmp_path: Path) -> None:
    """The header holds two separators; every whole row speaks for one of them."""
    lines = [b"a;b,c;d", *(b"%07d;x;y" % number for number in range(20_000))]
    path = write_bytes(tmp_path / "p.csv", b"\n".join(lines))

    assert ["a", "b,c", "d"] == survey(path, path.name).schema.names


@pytest.mark.parametrize("separator", SEPARATORS)
def test_files_without_header_are_separated_as_their_signature_fits(
    tmp_path: Path, separator: str
) -> None:
    other = next(each for each in SEPARATORS if each != separator)
    data = csv_bytes(None, [("1", "2", "3"), ("4", f"a{other}b", "5")], separator=separator)
    path = write_bytes(tmp_path / "p.csv", data)

    assert [("1", "2", "3"), ("4", f"a{other}b", "5")] == rows(path, ["a", "b", "c"])


def test_one_column_of_a_signature_needs_no_separator(tmp_path: Path) -> None:
    path = write_bytes(tmp_path / "p.csv", b"a;b\nc|d\n")

    assert [("a;b",), ("c|d",)] == rows(path, ["text"])


@pytest.mark.parametrize(
    ("format_", "compression"), list(itertools.product(["csv", "tsv"], ["", ".gz", ".zst"]))
)
def test_a_word_of_the_index_says_format_compression_and_separator(
    format_: str, compression: str
) -> None:
    own = kind(f"x.{format_}{compression}")
    for separator in SEPARATORS:
        word = index_word(own, separator)

        assert (own, separator) == parse_index_word(word)
        assert own == file_type_of_word(word)
    assert f"{format_}{compression}" == index_word(own, own.format.separator)


def test_a_separator_that_is_not_known_is_another_version(tmp_path: Path) -> None:
    with raised(CorruptShard, value="csv-tilde", remedy="upgrade headrace"):
        file_type_of_word("csv-tilde")


def test_types_of_columns_hold_with_any_separator(tmp_path: Path) -> None:
    path = write_bytes(tmp_path / "p.csv", b"a;b\n1;2,5\n")
    dataset = open_plain(path, types={"a": "int64"}, cache_dir=tmp_path / "cache")

    assert pa.table({"a": [1], "b": ["2,5"]}).equals(
        dataset.block_reader()(0, None).cast(pa.schema([("a", "int64"), ("b", "string")]))
    )
