"""Every source shard has a number of its own, its own one where its name says so."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InputError
from headrace.split.recipe import number_shards
from raised import raised


@given(st.lists(st.integers(0, 99_999), unique=True, min_size=1))
def test_a_shard_keeps_its_number(numbers: list[int]) -> None:
    assert numbers == number_shards([f"part-{number:05d}.csv" for number in numbers], "keep")


def test_numbers_are_read_from_the_file_name_of_any_writer() -> None:
    names = ["part-00003-8c1f-c000.snappy.parquet", "day/part-12.csv.gz", "part-7"]

    assert [3, 12, 7] == number_shards(names, "keep")


def test_a_directory_called_part_is_no_number() -> None:
    assert [0, 1] == number_shards(["part-5/a.csv", "part-5/b.csv"], "keep")


@pytest.mark.parametrize(
    "names",
    [
        ["part-1.csv", "part-00001.csv"],
        ["part-1.csv", "part-1.parquet"],
        ["part-00000-aa.parquet", "part-00000-bb.parquet"],
        ["a/part-1.csv", "b/part-1.csv"],
    ],
)
def test_two_shards_of_one_number_are_an_error_that_names_both(names: list[str]) -> None:
    with raised(InputError, path=names[1], remedy="rename one, or number all with shard_numbers="):
        number_shards(names, "keep")
    assert [0, 1] == number_shards(names, "dense")


def test_a_shard_without_number_beside_numbered_ones_is_an_error() -> None:
    with raised(InputError, path="extra.csv", remedy="rename it, or number all with"):
        number_shards(["extra.csv", "part-1.csv"], "keep")


def test_shards_without_numbers_are_counted_in_name_order() -> None:
    assert [0, 1, 2] == number_shards(["2024-01-01.csv", "2024-01-02.csv", "b.csv"], "keep")
