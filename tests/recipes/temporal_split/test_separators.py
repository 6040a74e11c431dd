"""Delimited sources with other separators: rows keep their bytes, and what was written is streamed and verified."""

from pathlib import Path

import pytest

import headrace
from tables import HEADER, csv_bytes, shards, small_rows, split, write_bytes

SPLITS = ("train", "val", "test")
SEPARATORS = [",", ";", "|", "\t"]


def mixed_source(directory: Path, separators: list[str]) -> Path:
    for number, separator in enumerate(separators):
        rows = [(*row, f"{row[2]},5") for row in small_rows(200, first=number * 200)]
        write_bytes(
            directory / f"part-{number:05d}.csv",
            csv_bytes((*HEADER, "x"), rows, separator=separator),
        )
    return directory


def delivered(out: Path) -> dict[str, list[tuple[str, ...]]]:
    """Every row of every split, as readers of the run get it."""
    dataset = headrace.open(out)
    found = {}
    for name in SPLITS:
        read = dataset.block_reader(name)
        blocks = range(len(dataset.split_index(name).rows))
        found[name] = [
            tuple(row.values()) for block in blocks for row in read(block, None).to_pylist()
        ]
    return found


@pytest.mark.parametrize("layout", ["sharded", "single"])
@pytest.mark.parametrize(
    "separators", [[";", ";", ";"], SEPARATORS, [";", ",", ";"], [",", "\t", ","]]
)
def test_a_split_is_the_same_whatever_separates_the_source(
    tmp_path: Path, layout: str, separators: list[str]
) -> None:
    plain = mixed_source(tmp_path / "plain", [","] * len(separators))
    other = mixed_source(tmp_path / "other", separators)
    split(plain, tmp_path / "a", layout=layout)
    split(other, tmp_path / "b", layout=layout)

    assert delivered(tmp_path / "a") == delivered(tmp_path / "b")
    assert headrace.verify(tmp_path / "b").problems == []


def test_rows_keep_their_bytes(tmp_path: Path) -> None:
    source = mixed_source(tmp_path / "in", SEPARATORS)
    run = split(source, tmp_path / "out").run
    lines = {
        path.name: path.read_bytes().splitlines(keepends=True) for path in sorted(source.iterdir())
    }
    written = {name: [] for name in lines}
    for name in SPLITS:
        for path in shards(run, name):
            header, *rows = path.read_bytes().splitlines(keepends=True)
            written[path.name] += rows

            assert lines[path.name][0] == header

    for name, (_, *rows) in lines.items():
        assert set(written[name]) <= set(rows)
        assert len(written[name]) == len(set(written[name])) > 0


@pytest.mark.parametrize("layout", ["sharded", "single"])
def test_made_columns_are_written_with_the_separator_of_the_source(
    tmp_path: Path, layout: str
) -> None:
    split(
        mixed_source(tmp_path / "in", [";", ";"]),
        tmp_path / "out",
        layout=layout,
        lineage="columns",
    )
    dataset = headrace.open(tmp_path / "out")

    for name in SPLITS:
        assert {"csv-semicolon"} == set(dataset.split_index(name).formats)
        assert all(
            b"id;date;row;x;source_shard;source_row" in path.read_bytes()
            for path in shards(dataset.root, name)
        )
    assert all(
        row[3].endswith(",5") for rows in delivered(tmp_path / "out").values() for row in rows
    )


def test_another_format_is_written_plainly(tmp_path: Path) -> None:
    source = mixed_source(tmp_path / "in", [";", "|"])
    split(source, tmp_path / "out", format="tsv")

    assert {"tsv"} == {
        word
        for name in SPLITS
        for word in headrace.open(tmp_path / "out").split_index(name).formats
    }
    assert headrace.verify(tmp_path / "out").problems == []
