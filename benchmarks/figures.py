"""What the programs here give: tables of texts and figures, as Markdown and as JSON.

A figure is the median of its rounds with the least and the most of them; a ratio is taken within each round first, as a
machine's speed drifts by more than many differences.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

WIDE = 0.3


@dataclass(frozen=True, slots=True)
class Figure:
    """The median of so many rounds and their range, with so many digits behind the point.

    † marks a range that is wider than `WIDE` of the median: such a figure says little.
    """

    median: float
    least: float
    most: float
    rounds: int
    digits: int = 2

    def __str__(self) -> str:
        middle, least, most = (
            _number(each, self.digits) for each in (self.median, self.least, self.most)
        )
        mark = "†" if self.most - self.least > WIDE * abs(self.median) else ""
        return middle if least == most else f"{middle} [{least}–{most}]{mark}"


def figure(values: Iterable[float], digits: int = 2) -> Figure:
    """Of one value a round."""
    found = list(values)
    return Figure(
        _kept(statistics.median(found)), _kept(min(found)), _kept(max(found)), len(found), digits
    )


def ratio(values: Sequence[float], to: Sequence[float], digits: int = 2) -> Figure:
    """values / to, each in its round. Rounds of one that the other does not have are left out."""
    return figure([a / b for a, b in zip(values, to, strict=False)], digits)


Cell = str | Figure


@dataclass(frozen=True, slots=True)
class Table:
    """name: in words of a file name. rows: as many cells as heads. missing: who was not measured, and why."""

    name: str
    title: str
    heads: tuple[str, ...]
    rows: list[tuple[Cell, ...]]
    note: str = ""
    missing: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.heads):
                raise ValueError(
                    f"table {self.name} has the heads {self.heads} and a row of {len(row)} cells: {row}"
                )


def markdown(table: Table) -> str:
    """The table, without its title, then its note and who is missing."""
    columns = list(zip(*table.rows, strict=True)) or [()] * len(table.heads)
    lines = [_line(table.heads), _line("---" if _is_text(each) else "--:" for each in columns)]
    lines += [_line([_escaped(str(cell)) for cell in row]) for row in table.rows]
    below = [table.note] if table.note else []
    below += [f"Not measured: {name} ({why})." for name, why in table.missing.items()]
    return "\n".join(lines) + "".join(f"\n\n{each}" for each in below)


def as_json(table: Table) -> dict[str, Any]:
    """What `of_json` takes."""
    return {
        "name": table.name,
        "title": table.title,
        "heads": list(table.heads),
        "rows": [[_cell_as_json(cell) for cell in row] for row in table.rows],
        "note": table.note,
        "missing": dict(table.missing),
    }


def of_json(value: Mapping[str, Any]) -> Table:
    """What `as_json` gave."""
    rows = [
        tuple(Figure(**cell) if isinstance(cell, dict) else str(cell) for cell in row)
        for row in value["rows"]
    ]
    return Table(
        value["name"], value["title"], tuple(value["heads"]), rows, value["note"], value["missing"]
    )


def _cell_as_json(cell: Cell) -> str | dict[str, float]:
    if isinstance(cell, str):
        return cell
    return {
        "median": cell.median,
        "least": cell.least,
        "most": cell.most,
        "rounds": cell.rounds,
        "digits": cell.digits,
    }


def _number(value: float, digits: int) -> str:
    """Thousands apart; what rounds to nothing keeps two digits that say something."""
    if value and abs(value) < 0.5 * 10**-digits:
        digits = 1 - math.floor(math.log10(abs(value)))
    return f"{value:,.{digits}f}"


def _kept(value: float) -> float:
    """Six digits are more than any clock here says."""
    return float(f"{value:.6g}")


def _is_text(cells: Sequence[Cell]) -> bool:
    """Whether a column is read rather than compared."""
    return not any(isinstance(cell, Figure) or cell[:1].isdigit() for cell in cells)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
