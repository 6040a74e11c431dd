"""The pages as a reader sees them: in a real browser, light and dark, on a desk and on a phone.

Screenshots are left in build/screenshots for people to look at.
"""

from pathlib import Path

import pytest
from browser import Tab
from report_cases import RUNS

from headrace.report.write import write_report

SHOTS = Path(__file__).parents[2] / "build" / "screenshots"
MARKS = """[...document.querySelectorAll('.figure')].filter(each => each.querySelector('.picture')).map(each => [each.id,
  [...each.querySelectorAll('[role="graphics-symbol"][aria-label]')].filter(mark => {
    const box = mark.getBoundingClientRect();
    return box.width > 0 || box.height > 0;
  }).length, each.querySelectorAll('tbody tr').length])"""
COLOURS = """[...document.querySelectorAll('.picture rect[role="graphics-symbol"]')]
  .map(mark => getComputedStyle(mark).fill)"""
DOUBLES = "(ids => ids.length - new Set(ids).size)([...document.querySelectorAll('[id]')].map(each => each.id))"


def check(tab: Tab, page: Path, name: str) -> None:
    tab.look(width=1100, scheme="light")
    tab.open(page)
    figures = tab.evaluate(MARKS)
    light = tab.evaluate(COLOURS)
    tab.screenshot(SHOTS / f"{name}-light.png")
    tab.look(width=1100, scheme="dark")
    dark = tab.evaluate(COLOURS)
    tab.screenshot(SHOTS / f"{name}-dark.png")
    tab.look(width=390, scheme="light")
    wide = tab.evaluate("document.documentElement.scrollWidth")
    tab.screenshot(SHOTS / f"{name}-phone.png")

    assert [page.resolve().as_uri()] == [
        each for each in tab.requests if not each.startswith("data:")
    ]
    assert [] == tab.complaints
    assert figures
    assert [] == [key for key, marks, rows in figures if not marks or not rows]
    assert 0 == tab.evaluate(DOUBLES)
    assert all(fill.startswith("rgb") for fill in light)
    assert light != dark, "dark pages have colours of their own"
    assert wide <= 390, "a phone shows the page without moving it sideways"


@pytest.mark.smoke("temporal_split")
@pytest.mark.parametrize("recipe", RUNS)
def test_the_report_opens_without_network_or_complaint_and_every_figure_has_data(
    recipe: str, runs: dict[str, Path], tab: Tab, tmp_path: Path
) -> None:
    check(tab, write_report(runs[recipe], to=tmp_path / "report.html"), recipe)


@pytest.mark.slow
def test_hovering_a_mark_shows_its_numbers(runs: dict[str, Path], tab: Tab, tmp_path: Path) -> None:
    tab.look(width=1100, scheme="light")
    tab.open(write_report(runs["temporal_split"], to=tmp_path / "report.html"))
    mark = "document.querySelector('#rows [role=\"graphics-symbol\"]')"
    x, y = tab.evaluate(
        f"({mark}.scrollIntoView({{block: 'center'}}), (box => [box.x + 3, box.y + 3])({mark}.getBoundingClientRect()))"
    )
    hidden = tab.evaluate("document.getElementById('hint').hidden")
    tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    shown = tab.evaluate(
        "[document.getElementById('hint').hidden, document.getElementById('hint').textContent]"
    )

    assert hidden
    assert [False, tab.evaluate(f"{mark}.getAttribute('aria-label')")] == shown
    assert shown[1].startswith("train: ")


def test_names_in_the_data_stay_text(tab: Tab, tmp_path: Path) -> None:
    nasty = "<img src=x onerror=alert(1)>"
    (tmp_path / "case").mkdir()
    out = RUNS["temporal_split"](tmp_path / "case" / "run", nasty=nasty)
    tab.open(write_report(out, to=tmp_path / "report.html"))

    assert [] == tab.complaints
    assert 1 == len(tab.requests)
    assert 0 == tab.evaluate("document.querySelectorAll('img').length")
    assert nasty in tab.evaluate("document.body.textContent")
