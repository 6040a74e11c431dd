"""Write a page as one HTML file that contains its style, script and drawings, and loads nothing.

Charts are drawn as SVG by Vega (vl-convert), without a browser, a network or a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from html import escape
from importlib.resources import files
from importlib.util import find_spec
from typing import Any

from headrace.errors import HeadraceError, MissingExtra, StoreError
from headrace.printable import escape_lines
from headrace.report.figure import Chart, Figure, Page
from headrace.shortage import has_room_for_pictures

Draw = Callable[[Chart, str, str], str]

_MOST_ROWS = 200
_NUMBER = re.compile(r"[-+–]?[\d,.]+( %)?")
_SENTENCE = re.compile(r"(?<=[.])\s+(?=[A-Z`0-9])|\n")  # borders; decimals have no blank
_CODE = re.compile(r"`([^`]+)`")
# A name in the data may look like markup or an address, but the page must never load anything.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"

_ID = re.compile(r'\sid="([^"]+)"')
_REFERENCE = re.compile(r'(\sid="|url\(#|href="#)([^")]+)')
_SVG = re.compile(r'<svg(?=[^>]*?\swidth="([\d.]+)")(?=[^>]*?viewBox="([^"]+)")[^>]*?>')


def can_draw() -> bool:
    """Return True if the extra `report` is installed."""
    return find_spec("vl_convert") is not None


def draw(chart: Chart, key: str, label: str) -> str:
    """Draw the chart as an `<svg>` element that fills the available width, up to its designed
    width.

    key: unique on the page; the prefix of all ids inside. label: read first by screen readers.
    Raises `MissingExtra`, and `StoreError` where drawing would end the process.
    """
    if not has_room_for_pictures():
        raise StoreError(
            "the address space of this process is limited (ulimit -v), and drawing reserves more",
            remedy="raise that limit; `headrace inspect --json` has the figures",
        )
    try:
        import vl_convert
    except ImportError:
        raise MissingExtra("vl-convert-python", "report") from None
    try:
        drawn: str = vl_convert.vegalite_to_svg(
            _drawable(chart.spec), vl_version="5.20", allowed_base_urls=[]
        )
    except ValueError as error:  # vl-convert raises it for every internal error
        raise HeadraceError(
            f"figure {key!r} could not be drawn ({error})",
            remedy="report it: this is a fault of headrace",
        ) from error
    opening = _SVG.search(drawn)
    if opening is None:
        raise HeadraceError(
            f"figure {key!r}: vl-convert gave no SVG", remedy="install another vl-convert-python"
        )
    # Make ids unique on the page and independent of earlier drawings.
    names = {name: f"{key}-{number}" for number, name in enumerate(_ID.findall(drawn))}
    inside = _REFERENCE.sub(
        lambda reference: f"{reference[1]}{names.get(reference[2], reference[2])}",
        drawn[opening.end() :],
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="group" aria-label="{_shown(label)}"'
        f' viewBox="{opening[2]}" style="max-width:{float(opening[1]):g}px">{inside}'
    )


def _drawable(part: Any) -> Any:
    """Escape control characters in all texts of a specification.

    SVG does not allow them, and vl-convert ends the process.
    """
    if isinstance(part, str):
        return escape_lines(part)
    if isinstance(part, dict):
        return {escape_lines(name): _drawable(part) for name, part in part.items()}
    if isinstance(part, list | tuple):
        return [_drawable(inner) for inner in part]
    return part


def html_of(page: Page, draw: Draw = draw) -> str:
    """Return the whole page. Every text from the data is escaped."""
    part = files("headrace.report")
    style, script = (part.joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    tiles = "".join(
        f"<div><dt>{_shown(name)}</dt><dd>{_shown(value)}</dd></div>" for name, value in page.tiles
    )
    tables = "".join(
        f'<section class="table">{_folded(part.title, part.columns, part.rows)}</section>'
        for part in page.tables
    )
    figures = "".join(_figure(figure, draw) for figure in page.figures)
    head = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        '<link rel="icon" href="data:,">',
        f"<title>{_shown(page.title)}</title>",
        f"<style>{style}</style>",
    ]
    body = [
        "<main>",
        f"<header><h1>{_shown(page.title)}</h1><p>{_shown(page.subtitle)}</p>",
        f"<dl>{tiles}</dl></header>",
        f'<div class="figures">{figures}</div>',
        tables,
        "</main>",
        '<div id="hint" role="status" hidden></div>',
        f"<script>{script}</script>",
    ]
    return (
        f'<!doctype html>\n<html lang="en"><head>{"".join(head)}</head>'
        f"<body>{''.join(body)}</body></html>\n"
    )


def _shown(text: str) -> str:
    """Escape text from the data, so that it cannot act as HTML."""
    return escape(escape_lines(text), quote=True)


def _figure(figure: Figure, draw: Draw) -> str:
    # an answer without a picture takes the full width
    picture = ""
    width = "full"
    if figure.chart is not None:
        width = figure.width
        drawn = f'<div class="picture">{draw(figure.chart, figure.key, figure.question)}</div>'
        picture = f"{drawn}{_folded('numbers', figure.chart.columns, figure.chart.rows)}"
    heading, *remainder = _SENTENCE.split(figure.answer, maxsplit=1)
    more = ""
    if remainder:
        lines = "<br>".join(map(_with_code, remainder[0].splitlines()))
        more = f'<p class="more">{lines}</p>'
    return (
        f'<section class="figure {width}" id="{_shown(figure.key)}">'
        f'<p class="question">{_shown(figure.question)}</p>'
        f'<h2 class="answer {figure.tone}">{_with_code(heading)}</h2>{more}{picture}</section>'
    )


def _with_code(text: str) -> str:
    """Escape a text; what is between backticks is shown as code."""
    return _CODE.sub(r"<code>\1</code>", _shown(text))


def _folded(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    head = "".join(f"<th>{_shown(str(name))}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(map(_cell, map(str, row)))}</tr>" for row in rows[:_MOST_ROWS])
    more = ""
    if len(rows) > _MOST_ROWS:
        more = f"<p>and {len(rows) - _MOST_ROWS:,} more</p>"
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return (
        f"<details><summary>{_shown(title)}</summary>"
        f'<div class="grid">{table}</div>{more}</details>'
    )


def _cell(text: str) -> str:
    """Return a table cell; numbers get a class that keeps them on one line."""
    class_attribute = ""
    if _NUMBER.fullmatch(text):
        class_attribute = ' class="number"'
    return f"<td{class_attribute}>{_shown(text)}</td>"
