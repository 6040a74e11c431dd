"""Static tables joined on the entity: any number of them, in any form, none of them silently against another."""

from pathlib import Path

import numpy as np
import pytest
from basins import settings

import headrace
from headrace.series.statics import read_statics
from raised import raised

ASKED = {"static_entity": "gauge", "static_features": ["height", "area"]}


def read(directory: Path, *names: str, entities: tuple[str, ...] = ("a", "b", "007")):
    files = [(directory / name, name) for name in names]
    return read_statics(
        settings(directory, static=[path for path, _ in files], **ASKED), files, entities
    )


def test_tables_of_several_kinds_are_one(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("gauge,area,name\na,1.5,Alpha\n007,3,Bond\nstranger,9,X\n")
    (tmp_path / "two.txt").write_text("gauge;height\nb;20\na;10\n007; 30\n")
    (tmp_path / "three.txt").write_text("area\tgauge\n2\tb\n1.5\ta\n")
    found = read(tmp_path, "one.csv", "two.txt", "three.txt")

    assert (["007", "a", "b"], ("height", "area"), 1) == (
        found.entities,
        tuple(found.table.columns),
        found.unused,
    )
    np.testing.assert_array_equal([[30, 3], [10, 1.5], [20, 2]], found.table.to_numpy())
    assert {} == found.lacking()


def test_what_no_table_says_is_lacking(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("gauge,area,height\na,1.5,NaN\nb,,\n")
    found = read(tmp_path, "one.csv")

    assert {"a": "has no static height", "b": "has no static height, area", "007": "has no static height, area"} == found.lacking()  # fmt: skip


@pytest.mark.parametrize(
    ("second", "fields"),
    [
        ("gauge,area\na,2\n", {"column": "area", "value": 2.0, "remedy": "correct one"}),
        ("gauge,area\nb,2\nb,3\n", {"column": "area", "value": 3.0, "remedy": "correct one"}),
        ("gauge,area\nb,wet\n", {"column": "area", "remedy": "leave it out, or encode it"}),
        ("gauge,area\nb,inf\n", {"column": "area", "row": 1}),
        ("id,area\nb,2\n", {"column": "gauge", "setting": "static_entity"}),
    ],
)
def test_tables_that_contradict_or_cannot_be_read_are_errors(
    tmp_path: Path, second: str, fields: dict[str, object]
) -> None:
    (tmp_path / "first.csv").write_text("gauge,area,height\na,1,2\n")
    (tmp_path / "second.csv").write_text(second)

    with raised(headrace.InputError, path=tmp_path / "second.csv", **fields):
        read(tmp_path, "first.csv", "second.csv")


def test_the_same_said_twice_is_no_contradiction(tmp_path: Path) -> None:
    (tmp_path / "first.csv").write_text("gauge,area,height\na,1,2\na,1,2\n")
    (tmp_path / "second.csv").write_text("gauge,area\na,1.0\n")

    assert (2.0, 1.0) == read(tmp_path, "first.csv", "second.csv").table.row(1)


def test_a_feature_that_no_table_has_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "first.csv").write_text("gauge,area\na,1\n")

    with raised(headrace.InputError, setting="static_features", column="height"):
        read(tmp_path, "first.csv")
