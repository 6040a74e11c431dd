"""Write a page as one HTML file that contains its style, script and drawings, and loads nothing.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from headrace.report.figure import Figure, Page
from headrace.report.picture import escape_text, svg_of

_MOST_ROWS = 200
_NUMBER = re.compile(r"[-+–]?[\d,.]+( %)?")
_SENTENCE = re.compile(r"(?<=[.])\s+(?=[A-Z`0-9])|\n")  # borders; decimals have no blank
_CODE = re.compile(r"`([^`]+)`")
# A name in the data may look like markup or an address, but the page must never load anything.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def html_of(page: Page) -> str:
    """Return the whole page. Every text from the data is escaped."""
    part = files("headrace.report")
    style, script = (part.joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    tiles = "".join(
        f"<div><dt>{escape_text(name)}</dt><dd>{escape_text(value)}</dd></div>"
        for name, value in page.tiles
    )
    tables = "".join(
        f'<section class="table">{_folded(part.title, part.columns, part.rows)}</section>'
        for part in page.tables
    )
    figures = "".join(_figure(figure) for figure in page.figures)
    head = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        '<link rel="icon" href="data:,">',
        f"<title>{escape_text(page.title)}</title>",
        f"<style>{style}</style>",
    ]
    body = [
        "<main>",
        f"<header><h1>{escape_text(page.title)}</h1><p>{escape_text(page.subtitle)}</p>",
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


def _figure(figure: Figure) -> str:
    # an answer without a picture takes the full width
    picture = ""
    width = "full"
    if figure.chart is not None:
        width = figure.width
        drawn = svg_of(figure.chart.picture, figure.question)
        picture = f'<div class="picture">{drawn}</div>'
        picture += f"{_folded('numbers', figure.chart.columns, figure.chart.rows)}"
    heading, *remainder = _SENTENCE.split(figure.answer, maxsplit=1)
    more = ""
    if remainder:
        lines = "<br>".join(map(_with_code, remainder[0].splitlines()))
        more = f'<p class="more">{lines}</p>'
    return (
        f'<section class="figure {width}" id="{escape_text(figure.key)}">'
        f'<p class="question">{escape_text(figure.question)}</p>'
        f'<h2 class="answer {figure.tone}">{_with_code(heading)}</h2>{more}{picture}</section>'
    )


def _with_code(text: str) -> str:
    """Escape a text; what is between backticks is shown as code."""
    return _CODE.sub(r"<code>\1</code>", escape_text(text))


def _folded(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    head = "".join(f"<th>{escape_text(str(name))}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(map(_cell, map(str, row)))}</tr>" for row in rows[:_MOST_ROWS])
    more = ""
    if len(rows) > _MOST_ROWS:
        more = f"<p>and {len(rows) - _MOST_ROWS:,} more</p>"
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    summary = f"<summary>{escape_text(title)}</summary>"
    return f'<details>{summary}<div class="grid">{table}</div>{more}</details>'


def _cell(text: str) -> str:
    """Return a table cell; numbers get a class that keeps them on one line."""
    class_attribute = ""
    if _NUMBER.fullmatch(text):
        class_attribute = ' class="number"'
    return f"<td{class_attribute}>{escape_text(text)}</td>"
