"""The timeline of a temporal split draws rows as they were counted, not as blocks suggest them."""

import datetime
import random
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from report_cases import histories_run, packed_run, split_run

import headrace
from headrace.report.figure import Figure
from headrace.report.picture import svg_of
from headrace.report.report_data import read_run
from headrace.report.write import page_of
from headrace.split.cutoff import DateBins


def timeline(out: Path) -> Figure:
    return next(each for each in page_of(read_run(out)).figures if each.key == "timeline")


def uneven_run(root: Path, *, test_rows: int = 400, **settings) -> Path:
    """Rows that crowd in spring and are scarce in autumn, so that no block's rows lie evenly between its dates."""
    root.mkdir(parents=True)
    rng = random.Random(5)
    begin, lines = datetime.datetime(2024, 1, 1), ["entity,time"]
    for number in range(3000):
        day = int(365 * rng.random() ** 3)
        lines.append(
            f"e{number},{begin + datetime.timedelta(days=day, hours=rng.randrange(24)):%Y-%m-%d %H:%M:%S}"
        )
    lines += [f"t{number},2025-0{1 + number % 9}-01 00:00:00" for number in range(test_rows)]
    (root / "part-0.csv").write_text("\n".join(lines) + "\n")
    recipe = headrace.TemporalSplit(
        source=root, time="time", entity="entity", split_date="2025-01-01", train_ratio=0.7
    )
    headrace.prepare(recipe, root.parent / "out", **settings)
    return root.parent / "out"


def dates_of(out: Path, split: str) -> np.ndarray:
    files = sorted((read_run(out).run.root / "training_data" / split).iterdir())
    texts = pl.concat([pl.read_csv(path)["time"] for path in files])
    return texts.str.to_datetime("%Y-%m-%d %H:%M:%S").dt.timestamp("us").to_numpy()


def test_the_columns_of_the_timeline_are_counted(tmp_path: Path) -> None:
    out = uneven_run(tmp_path / "raw")
    drawn = timeline(out).chart
    assert drawn is not None
    blocks = drawn.picture.marks

    for split in ("train", "val", "test"):
        dates = dates_of(out, split)
        for each in (block for block in blocks if block.role == split):
            inside = (dates >= round(each.begin * 1000)) & (dates < round(each.end * 1000))
            assert inside.sum() == each.high - each.low
        assert len(dates) == sum(each.high - each.low for each in blocks if each.role == split)


def test_counts_are_the_same_for_any_number_of_workers(tmp_path: Path) -> None:
    one, many = (
        read_run(uneven_run(tmp_path / name / "raw", workers=n)) for name, n in (("a", 1), ("b", 4))
    )

    assert one.manifest.metadata["dates"] == many.manifest.metadata["dates"]


def test_verify_counts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = split_run(tmp_path / "run")
    assert [] == headrace.verify(out).problems
    monkeypatch.setattr(DateBins, "counts", lambda bins, micros: np.zeros(bins.count, np.int64))

    wrong = [check for check in headrace.verify(out).checks if check.problem is not None]
    assert ["rows by date"] == [check.name for check in wrong]


def drawn(out: Path) -> list[str]:
    """The figures of a run's page; each picture is really drawn."""
    figures = page_of(read_run(out)).figures
    for each in figures:
        if each.chart is not None:
            assert svg_of(each.chart.picture, each.question).startswith("<svg")
    return [each.key for each in figures]


@pytest.mark.slow
def test_a_split_without_rows_has_a_page(tmp_path: Path) -> None:
    """Of the run itself, and of a run made of it."""
    out = uneven_run(tmp_path / "raw", test_rows=0)
    headrace.prepare(headrace.Rewrite(source=out), tmp_path / "again")

    found = timeline(out)

    assert "timeline" in drawn(out)
    assert "entities" in drawn(out)
    assert ("warning", True) == (
        found.tone,
        "Test is empty: no row is from the cutoff on" in found.answer,
    )
    assert "rows" in drawn(tmp_path / "again")


def test_an_empty_test_split_is_explained_by_what_was_dropped(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    rows = [f"e{n},{year}-05-01" for n in range(20) for year in (2024, 2025)]
    (raw / "part-0.csv").write_text("\n".join(["who,when", *rows]) + "\n")
    split = headrace.TemporalSplit(
        source=raw,
        time="when",
        entity="who",
        split_date="2025-01-01",
        train_ratio=0.75,
        val_in_test="drop",
    )
    headrace.prepare(split, tmp_path / "out")
    found = timeline(tmp_path / "out")

    told = "of 20 rows from the cutoff on, 15 belong to entities in train and 5 belong to entities in val"
    assert told in found.answer
    assert found.chart is not None
    assert found.chart.picture.shading is not None
    assert "test: none" == found.chart.picture.shading.name


def test_the_time_of_the_test_split_is_shaded(tmp_path: Path) -> None:
    chart = timeline(uneven_run(tmp_path / "raw", test_rows=5)).chart
    assert chart is not None
    shading = chart.picture.shading

    assert shading is not None
    assert ("test", 1735689600000) == (shading.role, shading.begin)
    assert shading.begin < chart.picture.x.domain[1]


@pytest.mark.slow
def test_other_recipes_have_a_page_without_a_test_split(tmp_path: Path) -> None:
    packed = packed_run(tmp_path / "packed", train_ratio=0.9, val_ratio=0.1, test_ratio=0.0)
    histories = histories_run(tmp_path / "histories", train_ratio=0.5)

    assert drawn(packed)
    assert drawn(histories)


def test_rows_with_the_content_of_an_earlier_split_are_drawn(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    rows = [
        f"c{n},{'2024-01-01' if n < 20 else '2025-02-01'},{n % 20 if n < 30 else n}"
        for n in range(40)
    ]
    (raw / "part-0.csv").write_text("\n".join(["who,when,x", *rows]) + "\n")
    split = headrace.TemporalSplit(
        source=raw, time="when", entity="who", split_date="2025-01-01", train_ratio=0.5
    )
    headrace.prepare(split, tmp_path / "out")
    shared = next(
        each for each in page_of(read_run(tmp_path / "out")).figures if each.key == "shared"
    )

    assert shared.chart is not None
    assert ["test", "10 · 50 %"] == list(shared.chart.rows[-1])
    assert "warning" == shared.tone
