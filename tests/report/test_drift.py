"""The drift in the report is the Kolmogorov-Smirnov statistic of an independent implementation over the shards."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import headrace
from headrace.report.figure import Figure
from headrace.report.picture import svg_of
from headrace.report.report_data import read_run
from headrace.report.write import page_of
from headrace.split import figures


def run_of(
    root: Path, *, header: str = "entity,time,steady,moving,note", **settings: object
) -> Path:
    """900 rows of two years; `moving` grows with time and has gaps, `steady` does not, `note` is text."""
    raw = root / "raw"
    raw.mkdir(parents=True)
    rng = np.random.default_rng(3)
    lines = [header]
    for row in range(900):
        year = 2024 + row // 450
        moving = "" if row % 7 == 0 else f"{rng.normal(0.001 * row):.6f}"
        lines.append(f"e{row % 83},{year}-0{1 + row % 9}-11,{rng.integers(0, 50)},{moving},text")
    (raw / "part-0.csv").write_text("\n".join(lines) + "\n")
    recipe = headrace.TemporalSplit(
        source=raw,
        time="time",
        entity="entity",
        split_date="2025-01-01",
        train_ratio=0.7,
        types={"steady": "int32", "moving": "float64"},
        **settings,
    )
    headrace.prepare(recipe, root / "out")
    return root / "out"


def drift(out: Path) -> Figure | None:
    return next((each for each in page_of(read_run(out)).figures if each.key == "drift"), None)


def statistic(first: np.ndarray, second: np.ndarray) -> float:
    """Count the rows up to each value, one value at a time."""
    return max(
        abs((first <= value).mean() - (second <= value).mean()) for value in [*first, *second]
    )


@pytest.mark.parametrize("shards", ["csv", "parquet"])
def test_drawn_differences_are_those_of_a_count_over_the_shards(
    tmp_path: Path, shards: str
) -> None:
    out = run_of(tmp_path, format=shards)
    read = pl.read_csv if shards == "csv" else pl.read_parquet
    root = read_run(out).run.root / "training_data"
    found = {
        split: pl.concat([read(path) for path in sorted((root / split).iterdir())])[
            ["steady", "moving"]
        ]
        for split in ("train", "val", "test")
    }
    expected = {
        f"{name} · {split}": 100
        * statistic(
            found["train"][name].drop_nulls().to_numpy(), found[split][name].drop_nulls().to_numpy()
        )
        for name in ("steady", "moving")
        for split in ("val", "test")
    }

    figure = drift(out)

    assert figure is not None
    assert figure.chart is not None
    drawn = {bar.row: bar.end for bar in figure.chart.picture.marks}
    assert expected == pytest.approx(drawn)
    assert sorted(drawn.values(), reverse=True) == list(drawn.values())
    assert figure.answer.startswith("moving differs most of 2 numeric columns")
    assert "<svg" in svg_of(figure.chart.picture, figure.question)


def test_quantiles_are_those_of_the_shards(tmp_path: Path) -> None:
    out = run_of(tmp_path, format="parquet")
    root = read_run(out).run.root / "training_data"
    found = next(each for each in page_of(read_run(out)).figures if each.key == "quantiles")

    assert found.chart is not None
    assert "<svg" in svg_of(found.chart.picture, found.question)
    for label, *texts in found.chart.rows:
        name, split = label.split(" · ")
        values = pl.concat([pl.read_parquet(path) for path in sorted((root / split).iterdir())])[
            name
        ].drop_nulls()
        assert [
            f"{np.quantile(values, share):,.4g}" for share in (0.05, 0.25, 0.5, 0.75, 0.95)
        ] == texts
    assert {"moving · train", "steady · test"} <= {row[0] for row in found.chart.rows}


def test_large_splits_are_sampled_and_the_answer_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "_DRIFT_ROWS", 100)
    figure = drift(run_of(tmp_path))

    assert figure is not None
    assert "a sample of about 100 rows was counted" in figure.answer


def test_a_run_without_numbers_has_no_such_picture(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    rows = [f"e{row % 9},202{4 + row % 2}-01-01,text" for row in range(60)]
    (raw / "part-0.csv").write_text("entity,time,note\n" + "\n".join(rows) + "\n")
    recipe = headrace.TemporalSplit(
        source=raw, time="time", entity="entity", split_date="2025-01-01"
    )
    headrace.prepare(recipe, tmp_path / "out")

    assert drift(tmp_path / "out") is None
