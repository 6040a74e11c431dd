"""Render small tables for notebooks, in the notebook's own colours. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

_MOST_ROWS = 40
_NUMBERS = re.compile(r"[\d,.]+( to [\d,.]+)?")


def table_html(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a heading and a table as HTML, with escaped text and grouped numbers; only the first
    of many rows.
    """
    head = "".join(f"<th style='text-align:left'>{escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(_cell(cell) for cell in row)}</tr>" for row in rows[:_MOST_ROWS])
    more = ""
    if len(rows) > _MOST_ROWS:
        more = f"<p>and {len(rows) - _MOST_ROWS:,} more</p>"
    heading = f"<p><b>{escape(title)}</b></p>"
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div>{heading}{table}{more}</div>"


def _cell(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"<td style='text-align:right'>{value:,}</td>"
    if isinstance(value, str) and _NUMBERS.fullmatch(value):
        return f"<td style='text-align:right'>{value}</td>"
    return f"<td style='text-align:left'>{escape(str(value))}</td>"
