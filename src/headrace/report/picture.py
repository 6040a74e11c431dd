"""Draw pictures as SVG: rectangles over an axis, stacked or in rows, with a legend and texts.

Pure. Colours are roles: custom properties of the page's style, so that one drawing works in light
and dark mode. Every mark has a description, which is its label for screen readers and its text on
hovering.

A browser chooses the font, so widths of texts are estimates; they leave room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import ceil, floor, log, log10
from typing import Literal
from unicodedata import east_asian_width

import numpy as np

from headrace.printable import escape_lines

Scale = Literal["linear", "log", "time"]
Tick = tuple[float, str]
Position = Callable[[float], float]

_FONT = 13  # pixels
_LINE = 20
_TICK = 5
_GAP = 6
_LEFT = 12
_RIGHT = 14
_EDGE = 4
_MOST_LETTERS = 28
_MEDIAN = 2.0  # pixels, of a mark without width
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
# Colours of the page's style. Other roles, such as a split called dev, have the plain one.
_COLOURS = frozenset(
    (
        *("train", "val", "valid", "test", "all", "dropped", "plain", "trained", "context"),
        *("empty", "before", "after", "idle", "shared", "good", "warning", "ink", "soft", "mark"),
    )
)
_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_DAY = 86_400_000
# milliseconds
_CLOCK_STEPS = (
    *(1, 10, 100, 1000, 5000, 15_000, 30_000, 60_000, 300_000, 900_000, 1_800_000),
    *(3_600_000, 10_800_000, 21_600_000, 43_200_000, _DAY, 2 * _DAY, 7 * _DAY),
)


@dataclass(frozen=True)
class PictureAxis:
    """domain: its two ends; of times in milliseconds since 1970. ticks: values and their texts."""

    domain: tuple[float, float]
    ticks: Sequence[Tick] = ()
    scale: Scale = "linear"
    title: str = ""
    grid: bool = False


@dataclass(frozen=True)
class Bar:
    """A rectangle from `begin` to `end` along x.

    low, high: along y; of a picture with rows, shares of the row's height from its top. row: its
    label. A mark without width is a line.
    """

    begin: float
    end: float
    low: float
    high: float
    role: str
    hint: str
    row: str = ""
    opacity: float = 1.0


@dataclass(frozen=True)
class RowText:
    """A text in a row, to the right of a value of x."""

    x: float
    row: str
    text: str


@dataclass(frozen=True)
class Shading:
    """The whole height from `begin` on, in the colour of a role, with a name at its top."""

    begin: float
    role: str
    name: str


@dataclass(frozen=True)
class Picture:
    """Marks over an axis.

    rows: labels from the top; or y: the vertical axis. legend: roles and their words. title: above
    the vertical axis. ruler: a value of x and its name.
    """

    marks: Sequence[Bar]
    x: PictureAxis
    width: int
    height: int
    y: PictureAxis | None = None
    rows: Sequence[str] = ()
    legend: Sequence[tuple[str, str]] = ()
    title: str = ""
    texts: Sequence[RowText] = ()
    ruler: tuple[float, str] | None = None
    shading: Shading | None = None


def short(number: float) -> str:
    """Format a number for an axis: `0.5`, `200`, `1.2k`."""
    for unit, letter in _UNITS:
        if abs(number) >= unit:
            return f"{number / unit:g}{letter}"
    return f"{number:g}"


def number_ticks(low: float, high: float, count: int) -> list[Tick]:
    """Return about `count` round numbers between two."""
    step = _round_step((high - low) / count)
    return [(number, short(number)) for number in _multiples(low, high, step)]


def rounded_up(high: float, count: int) -> float:
    """Return the end of an axis from 0 that is one of its `count` ticks."""
    step = _round_step(high / count)
    return step * ceil(high / step - 1e-9)


def time_ticks(low: float, high: float, count: int) -> list[Tick]:
    """Return about `count` times between two, at round times of the clock and calendar."""
    width = (high - low) / count
    for step in _CLOCK_STEPS:
        if step >= width:
            return [(time, _time_text(time)) for time in _multiples(low, high, float(step))]
    months = max(1, round(width / (30.4 * _DAY)))
    months = next((step for step in (1, 3, 6) if step >= months), 0)
    if not months:
        months = 12 * max(1, round(_round_step(width / (365.25 * _DAY))))
    first, last = np.array([low, high]).astype("datetime64[ms]").astype("datetime64[M]").astype(int)
    # counted from the year 0, so that every fifth year ends in 0 or 5
    years = 1970 * 12
    begin = -(-(first + years) // months) * months - years
    ticks = []
    for month in range(begin, last + 1, months):
        time = float(np.datetime64(month, "M").astype("datetime64[ms]").astype(int))
        if low <= time <= high:
            ticks.append((time, _time_text(time)))
    return ticks


def _round_step(step: float) -> float:
    """Return the nearest of 1, 2, 5 and their multiples by powers of ten."""
    if not step > 0:
        return 1.0
    power = 10.0 ** floor(log10(step))
    for factor, above in ((10, 50), (5, 10), (2, 2)):
        if step / power >= above**0.5:
            return factor * power
    return power


def _multiples(low: float, high: float, step: float) -> list[float]:
    numbers = range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)
    return [number * step for number in numbers]


def _time_text(milliseconds: float) -> str:
    """Return what tells a time from its neighbours: its year, month, day or clock."""
    date, clock = str(np.datetime64(int(milliseconds), "ms")).split("T")
    year, month, day = date.rsplit("-", 2)
    if clock != "00:00:00.000":
        return clock.removesuffix(".000").removesuffix(":00")
    name = _MONTHS[int(month) - 1]
    if day != "01":
        return f"{name} {day}"
    if month != "01":
        return name
    return year


def text_width(text: str) -> float:
    """Estimate the width of a text in pixels."""
    wide = sum(east_asian_width(letter) in "WF" for letter in text)
    return _FONT * (0.52 * (len(text) - wide) + wide)


def svg_of(picture: Picture, label: str) -> str:
    """Draw a picture as an `<svg>` element that fills the available width, up to its designed
    width.

    label: read first by screen readers.
    """
    drawing = _Drawing(picture)
    parts = "".join(drawing.parts())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="group" aria-label="{escape_text(label)}"'
        f' viewBox="0 0 {picture.width} {_px(drawing.bottom)}"'
        f' style="max-width:{picture.width}px" font-family="sans-serif" font-size="{_FONT}">'
        f"{parts}</svg>"
    )


def escape_text(text: str) -> str:
    """Escape text from the data, so that it cannot act as HTML.

    Control characters, which SVG does not allow, are escaped too.
    """
    return escape(escape_lines(text), quote=True)


class _Drawing:
    """The places of a picture's parts."""

    def __init__(self, picture: Picture) -> None:
        self.picture = picture
        self.right = float(picture.width - _RIGHT)
        labels = [_both_ends(row) for row in picture.rows]
        if picture.y is not None:
            labels = [text for _, text in picture.y.ticks]
        self.left = _LEFT + _GAP + max(map(text_width, labels), default=0.0)
        self.legend = _lines_of(picture.legend, picture.width - _LEFT - _RIGHT)
        self.legend_top = float(_EDGE)
        if picture.title:
            self.legend_top += _LINE
        self.top = self.legend_top + _LINE * len(self.legend)
        if self.top > _EDGE:
            self.top += _GAP
        self.base = self.top + picture.height
        self.bottom = self.base + _EDGE
        if picture.x.ticks:
            self.bottom += _LINE
        if picture.x.title:
            self.bottom += _LINE
        self.x = _positions(picture.x, self.left, self.right)
        self.row_height = picture.height / max(1, len(picture.rows))
        self.row_tops = {
            row: self.top + number * self.row_height for number, row in enumerate(picture.rows)
        }

    def parts(self) -> Iterator[str]:
        """Yield the elements from the back to the front."""
        if self.picture.title:
            yield _text(_LEFT, _EDGE + _FONT, self.picture.title)
        yield from self._legend()
        yield from self._horizontal()
        yield from self._vertical()
        yield from self._shading()
        yield from map(self._mark, self.picture.marks)
        for text in self.picture.texts:
            middle = self.row_tops[text.row] + self.row_height / 2
            yield _text(self.x(text.x) + 5, middle + _TICK, text.text)
        yield from self._ruler()

    def _legend(self) -> Iterator[str]:
        for number, line in enumerate(self.legend):
            top = self.legend_top + _LINE * number
            for left, role, word in line:
                yield _rectangle(left, top + 2, 10, 10, _fill(role))
                yield _text(left + 15, top + 12, word)

    def _horizontal(self) -> Iterator[str]:
        """Yield the axis at the bottom."""
        axis = self.picture.x
        if not axis.ticks:
            return
        if not self.picture.rows:
            yield _line(self.left, self.base, self.right, self.base)
        for value, text in _readable_ticks(axis.ticks, self.x):
            at = self.x(value)
            top = self.base
            if axis.grid:
                top = self.top
            yield _line(at, top, at, self.base + _TICK)
            half = text_width(text) / 2
            at = min(max(at, half), self.picture.width - half)
            yield _text(at, self.base + _TICK + _FONT, text, "middle")
        if axis.title:
            middle = (self.left + self.right) / 2
            yield _text(middle, self.base + _LINE + _TICK + _FONT, axis.title, "middle")

    def _vertical(self) -> Iterator[str]:
        """Yield the labels of the rows, or the axis at the left."""
        for row, top in self.row_tops.items():
            middle = top + self.row_height / 2
            yield _text(self.left - _GAP, middle + _TICK, _both_ends(row), "end")
        axis = self.picture.y
        if axis is None:
            return
        y = _positions(axis, self.base, self.top)
        for value, text in axis.ticks:
            yield _line(self.left, y(value), self.right, y(value))
            yield _text(self.left - _GAP, y(value) + _TICK, text, "end")

    def _mark(self, mark: Bar) -> str:
        """Return the rectangle of a mark."""
        if self.picture.y is None:
            top = self.row_tops[mark.row] + mark.low * self.row_height
            bottom = self.row_tops[mark.row] + mark.high * self.row_height
        else:
            y = _positions(self.picture.y, self.base, self.top)
            top = y(mark.high)
            bottom = y(mark.low)
        left = self.x(mark.begin)
        right = self.x(mark.end)
        if mark.begin == mark.end and self.picture.x.domain[0] != mark.end:
            left -= _MEDIAN / 2
            right += _MEDIAN / 2
        look = _fill(mark.role)
        if mark.opacity != 1:
            look += f' opacity="{mark.opacity:g}"'
        if self.picture.y is not None:
            look += ' stroke="var(--card)" stroke-width="0.5"'
        return _rectangle(left, top, right - left, bottom - top, f"{look} {_described(mark.hint)}")

    def _shading(self) -> Iterator[str]:
        shading = self.picture.shading
        if shading is None:
            return
        left = self.x(shading.begin)
        look = f'{_fill(shading.role)} opacity="0.14" {_described(shading.name)}'
        yield _rectangle(left, self.top, self.right - left, self.base - self.top, look)
        yield _text(left + 5, self.top + _FONT, shading.name)

    def _ruler(self) -> Iterator[str]:
        """Yield a vertical line with its name, whose halo keeps it readable over the marks."""
        if self.picture.ruler is None:
            return
        value, name = self.picture.ruler
        at = self.x(value)
        yield (
            f'<path d="M{_px(at)} {_px(self.top)}V{_px(self.base)}" stroke="var(--mark)"'
            f' stroke-width="1.5" stroke-dasharray="5 3" {_described(name)}/>'
        )
        halo = ' stroke="var(--card)" stroke-width="4" stroke-linejoin="round" paint-order="stroke"'
        yield _text(at - 5, self.top + _FONT, name, "end", f'fill="var(--mark)"{halo}')


def _positions(axis: PictureAxis, begin: float, end: float) -> Position:
    """Return the function from the axis' values to pixels."""
    low, high = axis.domain
    if axis.scale == "log":
        reach = log(high / low)
        return lambda value: begin + (end - begin) * (log(value / low) / reach)
    reach = (high - low) or 1.0
    return lambda value: begin + (end - begin) * ((value - low) / reach)


def _readable_ticks(ticks: Sequence[Tick], x: Position) -> Sequence[Tick]:
    """Leave out every other tick until no texts touch."""

    def touch(first: Tick, second: Tick) -> bool:
        room = x(second[0]) - x(first[0])
        return room < (text_width(first[1]) + text_width(second[1])) / 2 + 8

    while any(touch(first, second) for first, second in pairwise(ticks)):
        ticks = ticks[::2]
    return ticks


def _lines_of(
    legend: Sequence[tuple[str, str]], width: float
) -> list[list[tuple[float, str, str]]]:
    """Return the lines of a legend: the left edge, role and word of each entry."""
    lines: list[list[tuple[float, str, str]]] = []
    left = 0.0
    for role, word in legend:
        needed = 15 + text_width(word) + 24
        if not lines or left + needed - 24 > width:
            lines.append([])
            left = 0.0
        lines[-1].append((_LEFT + left, role, word))
        left += needed
    return lines


def _both_ends(label: str) -> str:
    """Shorten a long label in its middle."""
    if len(label) > _MOST_LETTERS:
        return f"{label[:14]}…{label[-13:]}"
    return label


def _fill(role: str) -> str:
    """Return the attribute of a fill. A role may be a name from the data."""
    name = "plain"
    if role in _COLOURS:
        name = role
    return f'fill="var(--{name})"'


def _described(hint: str) -> str:
    return f'role="graphics-symbol" aria-roledescription="bar" aria-label="{escape_text(hint)}"'


def _rectangle(left: float, top: float, width: float, height: float, look: str) -> str:
    return (
        f'<rect x="{_px(left)}" y="{_px(top)}" width="{_px(width)}" height="{_px(height)}" {look}/>'
    )


def _line(left: float, top: float, right: float, bottom: float) -> str:
    return f'<path d="M{_px(left)} {_px(top)}L{_px(right)} {_px(bottom)}" stroke="var(--line)"/>'


def _text(
    x: float,
    y: float,
    text: str,
    anchor: Literal["start", "middle", "end"] = "start",
    look: str = 'fill="var(--ink)"',
) -> str:
    """Return a text on a baseline."""
    return (
        f'<text x="{_px(x)}" y="{_px(y)}" text-anchor="{anchor}" {look}>{escape_text(text)}</text>'
    )


def _px(number: float) -> str:
    """Format pixels, to a hundredth."""
    return f"{number:.2f}".rstrip("0").rstrip(".")
