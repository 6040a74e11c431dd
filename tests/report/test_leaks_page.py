"""The page of a leak report shows the counts of the report, and asks one question per picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from browser import Tab
from test_browser import check

import headrace
from commands import headrace as command
from headrace.report.figure import Page
from headrace.report.leaks import page_of_leaks
from headrace.report.page import html_of

ITEM = "a farmer sells nine eggs at the market every day for two dollars each how much does he make"


@pytest.fixture(scope="module")
def leaky(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two splits that share rows, names, time and a benchmark item, and a column that gives the label away."""
    root = tmp_path_factory.mktemp("leaky")
    for split, first, count in (("train", 0, 400), ("test", 380, 60)):
        numbers = range(first, first + count)
        rows = pa.table(
            {
                "when": [f"2025-0{1 + n % 4}-11" for n in numbers],
                "who": [f"User <b>{n}" if split == "train" else f"user  <b>{n}" for n in numbers],
                "text": [
                    f"{ITEM} <b>{n}</b>" if n == 7 else f"review number {n} of it" for n in numbers
                ],
                "stars": [n % 5 for n in numbers],
                "good": [n % 5 > 2 for n in numbers],
            }
        )
        (root / "data" / split).mkdir(parents=True)
        pq.write_table(rows, root / "data" / split / "part-0.parquet")
    (root / "items.txt").write_text(
        f"{ITEM}\n{ITEM} twice over and again\nwhat is the rarest colour of all\n"
    )
    return root


def page(leaky: Path, **asked: Any) -> Page:
    report = headrace.find_leaks(headrace.open(leaky / "data"), content=["text"], **asked)
    return page_of_leaks(report, "data", 0.001)


def test_every_finding_has_a_picture_with_its_counts(leaky: Path) -> None:
    asked = {"entity": "who", "label": "good", "time": "when", "label_horizon": "30d", "near": 0.8}
    found = page(leaky, against=[leaky / "items.txt"], **asked)
    numbers = {each.key: each.chart.rows for each in found.figures if each.chart is not None}

    assert list(numbers) == [
        "content",
        "near",
        "ids",
        "columns",
        "benchmarks",
        "periods",
        "concurrent",
        "horizon",
    ]
    assert ["test", "train", "20 · 33.3 %"] in numbers["content"]
    assert numbers["ids"] == [["in different splits", "20"], ["in one split", "0"]]
    assert numbers["columns"] == [["stars", "100 %"], ["most frequent label", "60 %"]]
    assert numbers["benchmarks"] == [["items.txt", "1", "1", "1"]]
    assert numbers["concurrent"] == [["test", "train", "60 · 100 %"]]
    assert [row[0] for row in numbers["periods"]] == ["train", "test"]
    assert {each.key: each.tone for each in found.figures}["content"] == "warning"
    assert (
        "100.00% of a split or benchmark was found elsewhere; at most 0.10% may be."
        in found.subtitle
    )
    assert "<b>" not in html_of(found, lambda *_: "")


def test_near_rows_are_listed_by_their_places(leaky: Path) -> None:
    report = headrace.find_leaks(headrace.open(leaky / "data"), content=["text"], near=0.5)
    [listed] = [
        each
        for each in page_of_leaks(report, "data", 0.001).tables
        if each.columns[-1] == "Jaccard"
    ]

    assert report.near is not None
    [shared] = report.near.shared
    assert (
        listed.rows
        == [["train and test", a, b, f"{jaccard:.2f}"] for a, b, jaccard in shared.examples]
        != []
    )


def test_what_was_not_asked_for_has_no_picture(leaky: Path) -> None:
    assert [each.key for each in page(leaky).figures] == ["content"]


def test_the_command_draws_the_page_and_still_exits_by_the_threshold(
    leaky: Path, tmp_path: Path
) -> None:
    done = command("leaks", leaky / "data", "--content", "text", "--html", tmp_path / "leaks.html")

    assert done.returncode == 1
    assert "<h1>leaks: data</h1>" in (tmp_path / "leaks.html").read_text("utf-8")


@pytest.mark.slow
def test_the_page_opens_in_a_browser(leaky: Path, tmp_path: Path, tab: Tab) -> None:
    target = tmp_path / "leaks.html"
    asked = ("--entity", "who", "--label", "good", "--time", "when", "--label-horizon", "30d")
    command(
        "leaks",
        leaky / "data",
        "--content",
        "text",
        "--html",
        target,
        "--against",
        leaky / "items.txt",
        *asked,
    )
    check(tab, target, "leaks")
