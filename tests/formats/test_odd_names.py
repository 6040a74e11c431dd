"""File names that are legal and odd: they are read like others, or refused by a message of one line."""

import os
from pathlib import Path

import pytest

import headrace
from headrace.errors import InputError
from raised import raised
from tables import small_rows, split, split_rows

LEGAL = [
    "part\n0.csv",
    "\npart-0.csv",
    "part-0\r.csv",
    "part-0\x1b[31m.csv",
    "part-0\t\n.csv",
    "part-0\u2028.csv",
]


def written(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text("id,date,row\n" + "".join(",".join(row) + "\n" for row in small_rows(60)))
    return path


@pytest.mark.parametrize("name", LEGAL)
def test_a_name_may_hold_line_ends_and_escapes(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / "in" / name)
    run = split(path.parent, tmp_path / "out").run

    assert (
        60 == headrace.open(path).split_rows["all"] == headrace.open(path.parent).split_rows["all"]
    )
    assert split_rows(run, "train")
    assert [] == headrace.verify(tmp_path / "out").problems


@pytest.mark.parametrize("name", ["part-0.csv\n", "part-0.\ncsv", "part-0.csv\n.bak"])
def test_a_line_end_is_no_part_of_an_extension(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / "in" / name)

    for source in (path, path.parent):
        with pytest.raises(InputError, match=r"cannot tell the format|holds no .*\.csv"):
            headrace.open(source)


@pytest.mark.parametrize("name", [b"in/part-\xff.csv", b"in-\xff/part-0.csv"])
def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path, name: bytes) -> None:
    path = written(tmp_path / os.fsdecode(name))

    for read in (
        lambda: headrace.open(path),
        lambda: headrace.open(path.parent),
        lambda: split(path.parent, tmp_path / "out"),
    ):
        with raised(InputError, remedy="rename the file or directory"):
            read()
