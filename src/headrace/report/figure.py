"""Define the data of a report: figures that answer a question in words and with a picture, tables,
pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headrace.report.picture import Picture

Tone = Literal["plain", "good", "warning"]
Width = Literal["half", "full"]


@dataclass(frozen=True)
class Chart:
    """A picture and its numbers as a table."""

    picture: Picture
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Figure:
    """A question and its answer, with a picture if there is one.

    key: unique on the page, lower case with dashes. tone: of the answer. chart: None if words are
    enough; they then take the full width. width: of the picture.
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
    """A page before it becomes HTML. tiles: (name, value) at the top. tables: below the figures."""

    title: str
    subtitle: str
    tiles: Sequence[tuple[str, str]]
    figures: Sequence[Figure]
    tables: Sequence[Table] = ()
