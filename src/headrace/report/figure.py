"""Data of a report: figures that answer a question in words and with a picture, tables, pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Tone = Literal["plain", "good", "warning"]
Width = Literal["half", "full"]


@dataclass(frozen=True)
class Chart:
    """A picture as a Vega-Lite specification, and its numbers as a table for those who want to read them."""

    spec: dict[str, Any]
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Figure:
    """key: unique on the page, lower case with dashes. tone: how the answer is meant.

    chart None: words are enough, and take a line of their own. width: of a picture.
    """

    key: str
    question: str
    answer: str
    chart: Chart | None = None
    tone: Tone = "plain"
    width: Width = "half"


@dataclass(frozen=True)
class Table:
    """Rows behind a heading, folded away."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Page:
    """A page before it is HTML. tiles: (name, value) at the top; tables: below the figures."""

    title: str
    subtitle: str
    tiles: Sequence[tuple[str, str]]
    figures: Sequence[Figure]
    tables: Sequence[Table] = ()
