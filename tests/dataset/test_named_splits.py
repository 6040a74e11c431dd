"""Directories and files that are named after splits become splits, and are never merged by accident."""

import json
import sys
from pathlib import Path

import pytest

import headrace
from headrace.cli import main
from headrace.errors import InputError
from headrace.formats.listing import list_files
from headrace.formats.names import splits_of


def write(root: Path, *names: str) -> Path:
    """Files of two rows each."""
    for number, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"id\n{number}0\n{number}1\n")
    return root


def rows_of(dataset: headrace.Dataset, split: str) -> list[str]:
    return [each for batch in dataset.stream(split, batch_size=1) for each in batch["id"]]


def opened(given: object, tmp_path: Path) -> headrace.Dataset:
    return headrace.open(given, cache_dir=tmp_path / "cache")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["train/a.csv", "val/a.csv"], {"train": 2, "val": 2}),
        (
            ["train/a.csv", "train/b.csv", "validation/a.csv", "test/a.csv"],
            {"train": 4, "validation": 2, "test": 2},
        ),
        (["Train/a.csv", "oot/a.csv"], {"train": 2, "oot": 2}),
        (["train/a.csv"], {"train": 2}),
        (
            ["train-00000-of-00002.csv", "train-00001-of-00002.csv", "test-00000-of-00001.csv"],
            {"train": 4, "test": 2},
        ),
        (["train.csv", "valid.csv"], {"train": 2, "valid": 2}),
        (["mnist_train.csv", "mnist_test.csv"], {"train": 2, "test": 2}),
        (["a.csv", "b.csv"], {"all": 4}),
        (["latest.csv", "trainer.csv"], {"all": 4}),
        (["test-1.csv", "other.csv"], {"all": 4}),
    ],
)
def test_names_decide_the_splits_of_a_directory(
    tmp_path: Path, names: list[str], splits: dict[str, int]
) -> None:
    dataset = opened(write(tmp_path / "own", *names), tmp_path)

    assert splits == dict(dataset.split_rows)
    assert list(splits) == list(dataset.splits)
    assert sum(splits.values()) == sum(len(rows_of(dataset, split)) for split in splits)


def test_a_split_has_the_rows_of_its_directory_alone(tmp_path: Path) -> None:
    own = write(tmp_path / "own", "train/a.csv", "val/a.csv", "train/b.csv")
    for given in (own, own / "*" / "*.csv", own / "**" / "*.csv", [own]):
        dataset = opened(given, tmp_path)

        assert ["00", "01", "20", "21"] == rows_of(dataset, "train")
        assert ["10", "11"] == rows_of(dataset, "val") == rows_of(dataset, "validation")


def test_the_index_in_the_cache_has_the_same_splits(tmp_path: Path) -> None:
    own = write(tmp_path / "own", "train/a.csv", "val/a.csv")
    first, again = opened(own, tmp_path), opened(own, tmp_path)

    assert dict(first.split_rows) == dict(again.split_rows)
    assert {"all": 4} == dict(opened([own / "train", own / "val"], tmp_path).split_rows)


def test_one_split_given_by_its_own_name_is_plain(tmp_path: Path) -> None:
    own = write(tmp_path / "own", "train/a.csv", "val/a.csv")

    assert ("all",) == opened(own / "train", tmp_path).splits
    assert ("all",) == opened(own / "train" / "*.csv", tmp_path).splits


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["train/a.csv", "val/a.csv", "more.csv"],
            r"train, val are splits.* more\.csv belongs to none",
        ),
        (
            ["train/a.csv", "val/a.csv", "train2/b.csv"],
            r"train, val are splits.* train2/b\.csv belongs to none",
        ),
        (["train.csv", "test.csv", "sample_submission.csv"], "sample_submission.csv to none"),
    ],
)
def test_data_that_belongs_to_no_split_is_not_left_out_silently(
    tmp_path: Path, names: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        opened(write(tmp_path / "own", *names), tmp_path)


def test_a_pattern_over_splits_and_other_data_is_refused(tmp_path: Path) -> None:
    own = write(tmp_path / "own", "train/a.csv", "test/a.csv", "raw/a.csv")

    with pytest.raises(InputError, match=r"belongs to a split by its name, and raw/a\.csv to none"):
        opened(own / "*" / "*.csv", tmp_path)


@pytest.mark.parametrize("names", [["train/a.csv", "val/a.csv"], ["train.csv", "test.csv"]])
@pytest.mark.parametrize("pattern", ["", "**/*.csv"])
def test_recipes_never_merge_splits_by_accident(
    tmp_path: Path, names: list[str], pattern: str
) -> None:
    own = write(tmp_path / "own", *names)
    recipe = headrace.TemporalSplit(
        source=own / pattern, time="t", entity="id", split_date="2024-01-01"
    )
    with pytest.raises(
        InputError, match="holds several splits, train, (val|test).* are not merged"
    ):
        headrace.prepare(recipe, tmp_path / "out")


def test_splits_given_one_by_one_are_used_together(tmp_path: Path) -> None:
    own = write(tmp_path / "own", "train/a.csv", "val/a.csv")

    assert ["train/a.csv", "val/a.csv"] == list_files([own / "train", own / "val"]).names
    assert ["train/a.csv", "val/a.csv"] == list_files(
        [own / "t*" / "*.csv", own / "v*" / "*.csv"]
    ).names


def test_rewrite_keeps_the_splits(tmp_path: Path) -> None:
    own = write(tmp_path / "own", "train/a.csv", "val/a.csv")
    made = headrace.prepare(
        headrace.Rewrite(source=own, cache_dir=tmp_path / "cache"), tmp_path / "out"
    )

    assert {"train": 2, "val": 2} == {
        name: each.rows for name, each in made.manifest.splits.items()
    }
    assert [] == headrace.verify(tmp_path / "out").problems
    assert ["00", "01"] == rows_of(headrace.open(tmp_path / "out"), "train")


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["headrace", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


@pytest.mark.parametrize(
    "arguments",
    [
        ("peek", "{own}", "--split", "val"),
        ("plan", "{own}", "--split", "val", "--batch-size", "1", "--ranks", "1"),
        (
            "where",
            "{own}",
            "--split",
            "val",
            "--row",
            "a.csv:1",
            "--batch-size",
            "1",
            "--ranks",
            "1",
        ),
    ],
)
def test_commands_take_the_splits(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
) -> None:
    own = str(write(tmp_path / "own", "train/a.csv", "val/a.csv"))
    given = [each.replace("{own}", own) for each in arguments]
    cache = ["--cache-dir", str(tmp_path / "cache")]

    assert 0 == command(monkeypatch, *given, *cache, "--json")
    assert json.loads(capfd.readouterr().out)
    without = [each for each in given if each not in ("--split", "val")]
    status = command(monkeypatch, *without, *cache)
    shown = capfd.readouterr()
    if arguments[0] == "peek":
        assert (0, True) == (status, shown.out.startswith("train: 2 of 2 rows"))
    else:
        assert 0 != status
        assert "has 2 splits, train, val, and --split names none" in shown.err


def test_verify_says_that_nobody_prepared_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    own = write(tmp_path / "own", "train/a.csv", "val/a.csv")

    assert 1 == command(monkeypatch, "verify", own)
    assert "holds no finished run" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["train-0.csv", "test-0.csv"], ["train", "test"]),
        (["x/train.csv"], ["train"]),
        (["2024/train/a.csv", "2025/test/a.csv"], ["train", "test"]),
        (["users_valid_train.csv", "a.csv"], []),
        (["dev-1.csv", "dev-2.csv"], ["dev", "dev"]),
        ([], []),
    ],
)
def test_splits_told_by_names(names: list[str], expected: list[str]) -> None:
    assert expected == splits_of(names)
