"""The rows of entities are found, whatever the entities are and however the rows are cut."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.dataset.entities import entity_column, find_entities
from headrace.errors import InputError, SettingsError
from raised import raised


def write(root: Path, parts: list[pa.Array], group_rows: int = 7) -> None:
    root.mkdir()
    for number, values in enumerate(parts):
        pq.write_table(
            pa.table({"who": values}), root / f"part-{number}.parquet", row_group_size=group_rows
        )


def rows_of(root: Path, names: list[str]) -> dict[str, list[int]]:
    dataset = headrace.open(root, cache_dir=root.parent)
    which, rows = find_entities(dataset, "who", names)["all"]
    return {name: rows[which == number].tolist() for number, name in enumerate(names)}


def test_every_entity_has_the_rows_that_name_it(tmp_path: Path) -> None:
    values = [None, "a", "b", "\u00c4", "a ", "", "17"]
    names = [values[n] for n in np.random.default_rng(0).integers(0, len(values), 90)]
    write(tmp_path / "data", [pa.array(names[:40]), pa.array(names[40:])])
    asked = ["b", "a", "\u00c4", "a ", "17", "other"]
    expected = {}
    for name in asked:
        expected[name] = [row for row, other in enumerate(names) if other == name]

    assert rows_of(tmp_path / "data", asked) == expected


@pytest.mark.parametrize(
    ("values", "name"),
    [
        (pa.array([3, 17, None, 17], pa.int32()), "17"),
        (pa.array([3.0, 17.0, float("nan"), 17.0]), "17"),
        (pa.array(["x", "17", "y", "17"]).dictionary_encode(), "17"),
        (pa.array([b"x", b"17", b"y", b"17"]), "17"),
    ],
)
def test_numbers_and_other_texts_are_asked_for_as_text(
    tmp_path: Path, values: pa.Array, name: str
) -> None:
    write(tmp_path / "data", [values])

    assert {name: [1, 3]} == rows_of(tmp_path / "data", [name])


def test_a_column_that_is_no_key_or_not_there_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "data", [pa.array([[1], [2]])])
    dataset = headrace.open(tmp_path / "data", cache_dir=tmp_path)

    with raised(InputError, path=tmp_path / "data", remedy="name a column of text"):
        find_entities(dataset, "who", ["1"])
    with raised(SettingsError, setting="entity_column", remedy="give one of who"):
        entity_column(dataset, None)
    with raised(SettingsError, column="what", remedy="use one of who"):
        entity_column(dataset, "what")
