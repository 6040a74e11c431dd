"""Tables keep what they say from a program to a file to the page, and the page says what the kept results say."""

import json
import math
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def benchmarks_on_path():
    """Its modules are imported by their bare names, as the programs there do it."""
    kept = set(sys.modules)
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))
    for name in set(sys.modules) - kept:
        if name in {"figures", "reporting", "performance_page"}:
            del sys.modules[name]


@pytest.fixture(scope="module")
def page() -> Any:
    import performance_page

    return performance_page


@pytest.fixture(scope="module")
def figures() -> Any:
    import figures

    return figures


VALUES = st.floats(1e-9, 1e9)
WORDS = st.text(
    st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=12
)


@given(st.lists(VALUES, min_size=1, max_size=7), st.integers(0, 4))
def test_a_figure_says_the_median_within_the_range(values: list[float], digits: int) -> None:
    import figures

    made = figures.figure(values, digits)

    assert made.least <= made.median <= made.most
    assert math.isclose(statistics.median(values), made.median, rel_tol=1e-5)
    assert len(values) == made.rounds


@given(st.lists(st.tuples(WORDS, st.lists(VALUES, min_size=1, max_size=3)), max_size=4), WORDS)
def test_a_table_is_the_same_after_json(lines: list[tuple[str, list[float]]], why: str) -> None:
    import figures

    rows = [(name, figures.figure(values, 3)) for name, values in lines]
    table = figures.Table("one", "One", ("who", "seconds"), rows, "A note.", {"lance": why})

    assert table == figures.of_json(json.loads(json.dumps(figures.as_json(table))))


def test_ratios_are_taken_within_rounds(figures: Any) -> None:
    ratio = figures.ratio([1.0, 20.0, 3.0], [1.0, 10.0, 1.0])

    assert (2.0, 1.0, 3.0) == (ratio.median, ratio.least, ratio.most)


@pytest.mark.parametrize(
    ("values", "digits", "said"),
    [
        ([1234.5], 0, "1,234"),
        ([1.0, 2.0, 3.0], 1, "2.0 [1.0–3.0]†"),
        ([10.0, 10.0, 13.0], 0, "10 [10–13]"),
        ([0.001, 0.001, 0.0011], 2, "0.0010 [0.0010–0.0011]"),
        ([1.001, 1.002], 2, "1.00"),
        ([0.0], 2, "0.00"),
    ],
)
def test_what_a_cell_says(figures: Any, values: list[float], digits: int, said: str) -> None:
    assert said == str(figures.figure(values, digits))


def test_whoever_is_missing_is_named_below_the_table(figures: Any) -> None:
    table = figures.Table(
        "one",
        "One",
        ("who", "CPU s"),
        [("a|b", figures.figure([1.0]))],
        missing={"lance": "no wheel"},
    )

    assert (
        "| who | CPU s |\n| --- | --: |\n| a\\|b | 1.00 |\n\nNot measured: lance (no wheel)."
        == figures.markdown(table)
    )


def test_a_row_has_as_many_cells_as_there_are_heads(figures: Any) -> None:
    with pytest.raises(ValueError, match="table one has the heads"):
        figures.Table("one", "One", ("who", "CPU s"), [("a",)])


def result(figures: Any, *values: float) -> dict[str, Any]:
    rows = [
        ("headrace", figures.figure(values)),
        ("the pandas design", "9"),
        ("a bare rewrite", "0.8"),
    ]
    return {
        "command": "python benchmarks/split.py --rounds 5",
        "date": "2026-11-22",
        "machine": "2 cores",
        "versions": {
            "Python": "3.11.7",
            "headrace": "1",
            "numpy": "2",
            "pyarrow": "26",
            "polars": "2.1.0",
        },
        "wall_s": 90.0,
        "cpu_s": 80.0,
        "tables": [
            figures.as_json(figures.Table("csv", "CSV", ("what", "times headrace's"), rows))
        ],
    }


TEXT = (
    "Words.\n\n<!-- table: split/csv -->\nold\n<!-- end -->\n\n<!-- table: scale/plan -->\nkept\n<!-- end -->\n\n"
    "<!-- headline -->\nold\n<!-- end -->\n\n<!-- runs -->\nold\n<!-- end -->\nMore words.\n"
)


def test_the_page_shows_the_results_and_keeps_its_words(page: Any, figures: Any) -> None:
    made = page.compose(TEXT, {"split": result(figures, 1.0, 2.0, 4.0)})

    assert "| headrace | 2.00 [1.00–4.00]† |" in made
    assert "`python benchmarks/split.py --rounds 5` | 2026-11-22 | 1.5 | polars 2.1.0 |" in made
    assert "old" not in made
    assert "-->\nkept\n<!--" in made
    assert made.startswith("Words.\n")
    assert made.endswith("<!-- end -->\nMore words.\n")
    assert made == page.compose(made, {"split": result(figures, 1.0, 2.0, 4.0)})


def test_another_figure_makes_another_page(page: Any, figures: Any) -> None:
    pages = {page.compose(TEXT, {"split": result(figures, value)}) for value in (1.0, 2.0)}

    assert len(pages) == 2


def test_the_headline_takes_the_ratios_of_the_tables(page: Any, figures: Any) -> None:
    rows = [
        ("headrace", figures.figure([1.0])),
        ("the pandas design it replaces", figures.figure([9.0, 8.0, 9.5], 1)),
    ]
    table = figures.Table(
        "csv", "CSV", ("what", "times headrace's"), rows, missing={"a bare rewrite": "no polars"}
    )
    made = page.headline({"split/csv": table}, {"split": result(figures, 1.0)})

    assert made.note.startswith("Measured on 2026-11-22. Machine: 2 cores.")
    assert [("9.0 [8.0–9.5]", "`split`")] == [
        (str(ratio), section) for _, ratio, section in made.rows
    ]


def test_a_headline_of_no_such_column_is_refused(page: Any, figures: Any) -> None:
    table = figures.Table(
        "csv", "CSV", ("what", "seconds"), [("the pandas design", figures.figure([1.0]))]
    )

    with pytest.raises(ValueError, match="the headline asks split/csv for the row 'the pandas'"):
        page.headline({"split/csv": table}, {"split": result(figures, 1.0)})


def test_a_table_that_its_program_does_not_make_is_refused(page: Any, figures: Any) -> None:
    with pytest.raises(
        ValueError, match="asks for the table split/parquet, which .* make bench-split"
    ):
        page.compose(
            "<!-- table: split/parquet -->\n<!-- end -->\n", {"split": result(figures, 1.0)}
        )


def test_the_pages_say_what_the_kept_results_say(page: Any) -> None:
    results = page.read_results(page.RESULTS)

    assert all(written == page.compose(written, results) for written in page.read_pages().values())


def tables_of_all_pages(page: Any) -> set[str]:
    return set().union(*map(page.asked_for, page.read_pages().values()))


def test_every_program_that_make_runs_is_on_the_page_and_no_other(page: Any) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    quick, long = (
        set(line.split()) for line in re.findall(r"^(?:BENCHES|LONG) := (.*)$", makefile, re.M)
    )
    programs = quick | long

    assert {name.partition("/")[0] for _, name, _, _ in page.HEADLINE} <= quick

    assert programs == {name.partition("/")[0] for name in tables_of_all_pages(page)}
    assert [] == [name for name in programs if not (BENCHMARKS / f"{name}.py").exists()]
    assert {path.stem for path in page.RESULTS.glob("*.json")} <= programs


def test_every_kept_table_is_on_the_page(page: Any) -> None:
    kept = {
        f"{name}/{each['name']}"
        for name, result in page.read_results(page.RESULTS).items()
        for each in result["tables"]
    }

    assert set() == kept - tables_of_all_pages(page)


def test_a_table_of_a_busy_machine_is_told_and_not_published(
    tmp_path: Path, page: Any, figures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import reporting

    monkeypatch.setattr(reporting, "SHORT_S", 0.0)
    spent = iter([0.0, 0.0, 1e6])
    made = [figures.Table(name, "", ("a",), []) for name in ("quiet", "busy")]
    reporting.publish(iter(made), tmp_path / "a.json", others=lambda: next(spent))
    kept = json.loads((tmp_path / "a.json").read_text("utf-8"))

    assert kept["busy"]["quiet"] == 0
    (found,) = page.too_busy({"a": kept})
    assert found.startswith("a/busy ")


@pytest.mark.slow
def test_a_program_prints_and_keeps_the_same_tables(tmp_path: Path, figures: Any) -> None:
    kept = tmp_path / "kept" / "plan.json"
    command = [
        sys.executable,
        str(BENCHMARKS / "plan.py"),
        "--blocks",
        "100",
        "--ranks",
        "4",
        "--rounds",
        "1",
    ]
    done = subprocess.run(
        [*command, "--distributions", "balanced", "--json", str(kept)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    result = json.loads(kept.read_text("utf-8"))
    assert str(tmp_path) not in kept.read_text("utf-8")
    assert (
        "python benchmarks/plan.py --blocks 100 --ranks 4 --rounds 1 --distributions balanced"
        == result["command"]
    )
    assert all(figures.markdown(figures.of_json(each)) in done.stdout for each in result["tables"])
    assert "Python" in result["versions"]
    assert result["machine"] in done.stdout
