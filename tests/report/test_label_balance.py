"""The shares of classes in the report are those of an independent count over the shards."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from report_cases import split_run

import headrace
from headrace.report.figure import Figure
from headrace.report.picture import svg_of
from headrace.report.report_data import read_run
from headrace.report.write import page_of
from headrace.split import figures


def labelled_run(
    root: Path, classes: list[str], *, test_only: str | None = None, **settings
) -> Path:
    """1200 rows of two years, whose classes are the rarer the later they are listed."""
    raw = root / "raw"
    raw.mkdir(parents=True)
    rng = np.random.default_rng(7)
    weights = 1 / np.arange(1, len(classes) + 1)
    drawn = rng.choice(classes, 1200, p=weights / weights.sum()).tolist()
    years = rng.integers(2023, 2026, 1200).tolist()
    if test_only is not None:
        drawn = [
            test_only if year == 2025 and row % 5 == 0 else drawn[row]
            for row, year in enumerate(years)
        ]
    for part in range(3):
        own = range(part, 1200, 3)
        lines = [f"e{row % 97},{years[row]}-03-0{1 + row % 9} 10:00:00,{drawn[row]}" for row in own]
        (raw / f"part-{part}.csv").write_text("entity,time,kind\n" + "\n".join(lines) + "\n")
    recipe = headrace.TemporalSplit(
        source=raw,
        time="time",
        entity="entity",
        split_date="2025-01-01",
        train_ratio=0.7,
        label="kind",
        **settings,
    )
    headrace.prepare(recipe, root / "out")
    return root / "out"


def labels(out: Path) -> Figure | None:
    return next((each for each in page_of(read_run(out)).figures if each.key == "labels"), None)


@pytest.mark.parametrize("shards", ["csv", "parquet"])
def test_drawn_shares_equal_a_count_over_the_shards(tmp_path: Path, shards: str) -> None:
    out = labelled_run(tmp_path, list("abcdefgh"), format=shards)
    metadata = read_run(out)
    read = pl.read_csv if shards == "csv" else pl.read_parquet
    names = {number: name for name, number in metadata.manifest.metadata["label_map"].items()}
    found = {
        split: pl.concat(
            [read(path) for path in sorted((metadata.run.root / "training_data" / split).iterdir())]
        )["kind"]
        for split in metadata.splits
    }
    by_count = (
        pl.concat(list(found.values()))
        .value_counts()
        .sort("count", "kind", descending=[True, False])
    )
    most = by_count["kind"].head(6).to_list()

    figure = labels(out)

    assert figure is not None
    assert figure.chart is not None
    drawn = {bar.row: bar.end for bar in figure.chart.picture.marks}
    expected = {
        f"{names[kind]} · {split}": 100 * (column == kind).sum() / len(column)
        for kind in most
        for split, column in found.items()
    }
    assert expected == pytest.approx(drawn)
    assert list(expected) == list(drawn)
    assert "<svg" in svg_of(figure.chart.picture, figure.question)


def test_a_class_that_train_lacks_is_a_warning(tmp_path: Path) -> None:
    figure = labels(labelled_run(tmp_path, ["a", "b"], test_only="new"))

    assert figure is not None
    assert figure.tone == "warning"
    assert "new has no row in train." in figure.answer


@pytest.mark.slow
def test_nothing_is_drawn_without_two_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = labelled_run(tmp_path / "two", ["a", "b"])

    assert labels(split_run(tmp_path / "none")) is None
    assert labels(labelled_run(tmp_path / "one", ["a"])) is None
    assert labels(two) is not None
    monkeypatch.setattr(figures, "_MOST_LABELS", 10)
    assert labels(two) is None
