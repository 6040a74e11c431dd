"""Entities of text files that are one value in two spellings are never two entities without a word."""

from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.errors import InputError
from raised import raised

SPELLINGS = {
    "float64": ["12", "12.0", "14.5", "1e1", "10"],
    "datetime": ["2024-01-01 00:00", "2024-01-01T00:00:00", "2024-01-02 12:30", "2024-01-03"],
    "datetime_utc": [
        "2024-01-01T00:00Z",
        "2024-01-01T02:00+02:00",
        "2024-01-02T12:30Z",
        "2024-01-03T12:30Z",
    ],
}
# of each, a text whose value another one has too
ODD = {"float64": {"12.0", "1e1"}, "datetime": {*SPELLINGS["datetime"][:2]}, "datetime_utc": {*SPELLINGS["datetime_utc"][:2]}}  # fmt: skip


def shards(directory: Path, texts: list[str]) -> Path:
    """Write each text in a shard of its own: once before the split date and once behind it."""
    directory.mkdir()
    for number, text in enumerate(texts):
        rows = "".join(f"{day},{text},{number}{day[5]}\n" for day in ("2024-01-01", "2024-09-01"))
        (directory / f"part-{number}.csv").write_text("day,id,x\n" + rows)
    return directory


def splits(source: Path, **options: Any) -> list[headrace.TemporalSplit | headrace.RandomSplit]:
    return [
        headrace.TemporalSplit(
            source=source, time="day", entity="id", split_date="2024-06-01", **options
        ),
        headrace.RandomSplit(source=source, by="id", val_ratio=0, test_ratio=0.4, **options),
    ]


@pytest.mark.parametrize("word", SPELLINGS)
def test_two_spellings_of_one_entity_are_refused_or_grouped_as_declared(
    tmp_path: Path, word: str
) -> None:
    source = shards(tmp_path / "in", SPELLINGS[word])
    for split in splits(source):
        with raised(InputError, column="id") as caught:
            headrace.prepare(split, tmp_path / "out")
        assert caught.value.value in ODD[word]
        assert Path(caught.value.path).parent == source

    for number, split in enumerate(splits(source, types={"id": word})):
        headrace.prepare(split, tmp_path / f"values-{number}")
        run = headrace.open(tmp_path / f"values-{number}")
        ids = {name: {*run[name].to_arrow()["id"].to_pylist()} for name in ("train", "test")}
        assert not ids["train"] & ids["test"]
        assert not headrace.verify(tmp_path / f"values-{number}").problems

    for number, split in enumerate(splits(source, types={"id": "text"})):
        headrace.prepare(split, tmp_path / f"texts-{number}")


@pytest.mark.parametrize("texts", [["12.0", "13.0", "14.5"], ["12", "13.50"], ["007", "7", "7.0"]])
def test_one_spelling_of_each_entity_is_kept(tmp_path: Path, texts: list[str]) -> None:
    for number, split in enumerate(splits(shards(tmp_path / "in", texts))):
        headrace.prepare(split, tmp_path / f"out-{number}")
