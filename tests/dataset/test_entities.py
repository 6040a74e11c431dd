"""The index of entities finds the rows that have them, whatever the entities are and however the rows are cut."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace
from headrace.dataset.entities import (
    _RECORD,
    _grouped,
    _Part,
    entity_column,
    entity_index,
    find_entities,
    map_entities,
)
from headrace.errors import CorruptShard, InputError, SettingsError
from raised import raised


def write(root: Path, parts: list[pa.Array], group_rows: int = 7) -> None:
    root.mkdir()
    for number, values in enumerate(parts):
        pq.write_table(
            pa.table({"who": values}), root / f"part-{number}.parquet", row_group_size=group_rows
        )


def found(index, names, split="all"):
    which, rows = index.rows_of(split, names)
    return {name: rows[which == number].tolist() for number, name in enumerate(names)}


@pytest.mark.slow
@given(
    names=st.lists(
        st.one_of(st.none(), st.sampled_from(["a", "b", "Ä", "a ", "", "17"])),
        min_size=1,
        max_size=60,
    ),
    part_rows=st.sampled_from([1, 5, 1000]),
)
def test_every_entity_has_the_rows_that_name_it(tmp_path_factory, names, part_rows):
    root = tmp_path_factory.mktemp("entities")
    half = len(names) // 2
    write(
        root / "data",
        [pa.array(part, pa.string()) for part in (names[:half], names[half:]) if part],
    )

    index = entity_index(
        headrace.open(root / "data", cache_dir=root), "who", cache_dir=root, part_rows=part_rows
    )
    asked = ["b", "a", "Ä", "a ", "17", "other"]
    assert {
        name: [row for row, each in enumerate(names) if each == name] for name in asked
    } == found(index, asked)
    dataset = headrace.open(root / "data", cache_dir=root)
    for cache in (root, root / "none"):  # by the index, and by reading the column
        which, rows = find_entities(dataset, "who", asked, cache_dir=cache)["all"]
        assert [each.tolist() for each in index.rows_of("all", asked)] == [
            which.tolist(),
            rows.tolist(),
        ]
    named = [each for each in names if each]
    assert (len(set(named)), len(named)) == index.count("all")


@pytest.mark.parametrize(
    ("values", "name"),
    [
        (pa.array([3, 17, None, 17], pa.int32()), "17"),
        (pa.array([3.0, 17.0, float("nan"), 17.0]), "17"),
        (pa.array(["x", "17", "y", "17"]).dictionary_encode(), "17"),
        (pa.array([b"x", b"17", b"y", b"17"]), "17"),
    ],
)
def test_numbers_and_other_texts_are_asked_for_as_text(tmp_path, values, name):
    write(tmp_path / "data", [values])
    index = headrace.open(tmp_path / "data", cache_dir=tmp_path).entity_index("who")

    assert {name: [1, 3]} == found(index, [name])


def test_an_index_is_made_once_and_again_when_it_is_damaged_or_the_rows_are_others(tmp_path):
    write(tmp_path / "data", [pa.array(["a", "b", "a"])])
    asked = []

    def indexed():
        dataset = headrace.open(tmp_path / "data", cache_dir=tmp_path)
        return dataset.entity_index("who", on_progress=lambda done, total: asked.append(done))

    first = indexed()
    assert ([1], first.path) == (asked, indexed().path)

    data = bytearray(first.path.read_bytes())
    data[len(data) // 2] ^= 1
    first.path.write_bytes(data)
    with raised(CorruptShard, path=first.path, remedy="delete it"):
        map_entities(first.path, "who", bytes.fromhex(first.path.stem.partition("-")[2]))
    assert {"a": [0, 2]} == found(indexed(), ["a"])
    assert [1, 1] == asked

    write(tmp_path / "more", [pa.array(["a"])])
    (tmp_path / "more" / "part-0.parquet").rename(tmp_path / "data" / "part-1.parquet")
    assert {"a": [0, 2, 3]} == found(indexed(), ["a"])
    assert b"who" not in first.path.read_bytes()


def test_entities_whose_hashes_begin_alike_stay_apart():
    records = np.array([(5, 9, 0), (5, 2, 1), (5, 9, 2), (1, 7, 3), (5, 2, 4), (8, 0, 5)], _RECORD)
    part = _Part(*_grouped(records))
    places = part.find(
        np.array([5, 5, 5, 1, 8, 9], np.uint64), np.array([9, 2, 3, 7, 0, 0], np.uint64)
    )

    rows = [
        part.rows[int(part.ends[place - 1]) if place else 0 : int(part.ends[place])].tolist()
        for place in places
        if place >= 0
    ]
    assert [[0, 2], [1, 4], [3], [5]] == rows
    assert [2, 5] == np.flatnonzero(places < 0).tolist()


def test_a_column_that_is_no_key_or_not_there_is_refused(tmp_path):
    write(tmp_path / "data", [pa.array([[1], [2]])])
    dataset = headrace.open(tmp_path / "data", cache_dir=tmp_path)

    with raised(InputError, path=tmp_path / "data", remedy="name a column of text"):
        dataset.entity_index("who")
    with raised(SettingsError, setting="entity_column", remedy="give one of who"):
        entity_column(dataset, None)
    with raised(SettingsError, column="what", remedy="use one of who"):
        entity_column(dataset, "what")
