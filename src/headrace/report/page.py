"""A page as one HTML file: style, script and drawings inside it, nothing from anywhere else. Pure but for its parts."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

from headrace.printable import escape_lines
from headrace.report.figure import Chart, Figure, Page, Table

Draw = Callable[[Chart, str, str], str]

_MOST_ROWS = 200
_NUMBER = re.compile(r"[-+–]?[\d,.]+( %)?")
_CODE = re.compile(r"`([^`]+)`")
# Nothing may be loaded from anywhere, whatever a name in the data looks like.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def html_of(page: Page, draw: Draw) -> str:
    """The whole page. Every text of the data is escaped."""
    part = files("headrace.report")
    style, script = (part.joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    tiles = "".join(f"<div><dt>{_shown(name)}</dt><dd>{_shown(value)}</dd></div>" for name, value in page.tiles)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{_shown(page.title)}</title><style>{style}</style></head><body><main>"
        f"<header><h1>{_shown(page.title)}</h1><p>{_shown(page.subtitle)}</p><dl>{tiles}</dl></header>"
        f'<div class="figures">{"".join(_figure(each, draw) for each in page.figures)}</div>'
        f"{''.join(_table(each) for each in page.tables)}"
        f'</main><div id="hint" role="status" hidden></div><script>{script}</script></body></html>\n'
    )


def _shown(text: str, *, quote: bool = True) -> str:
    """Text of the data as HTML, on which it has no effect."""
    return html.escape(escape_lines(text), quote=quote)


def _figure(figure: Figure, draw: Draw) -> str:
    picture, width = "", "full"  # words alone take a line
    if figure.chart is not None:
        width = figure.width
        drawn = draw(figure.chart, figure.key, figure.question)
        picture = f'<div class="picture">{drawn}</div>{_folded("numbers", figure.chart.columns, figure.chart.rows)}'
    return (
        f'<section class="figure {width}" id="{_shown(figure.key)}"><h2>{_shown(figure.question)}</h2>'
        f'<p class="answer {figure.tone}">{"<br>".join(map(_text, figure.answer.splitlines()))}</p>{picture}</section>'
    )


def _text(line: str) -> str:
    """A line of an answer; what stands between backticks is set as code."""
    return _CODE.sub(r"<code>\1</code>", _shown(line))


def _table(table: Table) -> str:
    return f'<section class="table">{_folded(table.title, table.columns, table.rows)}</section>'


def _folded(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    return f"<details><summary>{_shown(title)}</summary>{_grid(columns, rows, _MOST_ROWS)}</details>"


def _grid(columns: Sequence[str], rows: Sequence[Sequence[Any]], most: int) -> str:
    head = "".join(f"<th>{_shown(str(name))}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(map(_cell, map(str, row)))}</tr>" for row in rows[:most])
    more = f"<p>and {len(rows) - most:,} more</p>" if len(rows) > most else ""
    return f'<div class="grid"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}'


def _cell(text: str) -> str:
    """A cell; numbers are not broken into lines."""
    kind = ' class="number"' if _NUMBER.fullmatch(text) else ""
    return f"<td{kind}>{_shown(text)}</td>"
