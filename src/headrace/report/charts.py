"""Make charts: pictures that contain their numbers, with tables of them.

Pure; `picture.svg_of` draws them. `parts` maps a role to its values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

from headrace.arrays import F64
from headrace.dataset.manifest import in_usual_order
from headrace.report.figure import Chart
from headrace.report.picture import (
    Bar,
    Picture,
    PictureAxis,
    RowText,
    Scale,
    Shading,
    Tick,
    number_ticks,
    rounded_up,
    short,
    time_ticks,
)

Parts = Mapping[str, Sequence[float] | F64]
NamedValue = tuple[float, str]

HALF = 440
FULL = 940
SPLITS = frozenset(("train", "val", "valid", "test", "all"))  # roles that the page has a colour for
_HEIGHT = 190
_BAR = 26
_BAR_SHARE = (0.05, 0.95)  # of the height of a row


def bars(
    labels: Sequence[str],
    values: Sequence[float],
    roles: Sequence[str],
    *,
    unit: str,
    texts: Sequence[str] | None = None,
) -> Chart:
    """Draw a horizontal bar for each label, in this order, followed by its number.

    texts: shown after the bars instead of the numbers.
    """
    text_of = texts or [f"{value:,.0f}" for value in values]
    marks = []
    written = []
    for label, value, role, text in zip(labels, values, roles, text_of, strict=True):
        marks.append(Bar(0.0, value, *_BAR_SHARE, role, f"{label}: {text} {unit}", label))
        written.append(RowText(value, label, text))
    # leave room for the texts
    room = max(values, default=0) * (1.15 + max(map(len, text_of), default=0) / 30) or 1
    legend = _legend(roles)
    if len(set(roles)) == len(roles):  # each label has its own role, so a legend adds nothing
        legend = []
    rows = _distinct(labels)
    picture = Picture(
        marks,
        PictureAxis((0.0, room)),
        HALF,
        _BAR * max(1, len(rows)),
        rows=rows,
        legend=legend,
        texts=written,
    )
    return Chart(
        picture, ["", unit], [[label, text] for label, text in zip(labels, text_of, strict=True)]
    )


def stacked_bars(
    labels: Sequence[str], parts: Parts, *, unit: str, names: Mapping[str, str], shares: bool = True
) -> Chart:
    """Draw a horizontal bar of parts for each label, as shares of its total or as they are.

    names: of roles.
    """
    totals = []
    marks = []
    for index, label in enumerate(labels):
        total = sum(float(values[index]) for values in parts.values()) or 1.0
        totals.append(total)
        scale = 1.0
        if shares:
            scale = 100 / total
        before = 0.0
        for role, values in parts.items():
            value = float(values[index])
            hint = f"{label}, {names[role]}: {value:,.0f} {unit}, {100 * value / total:.1f} %"
            end = before + value
            marks.append(Bar(before * scale, end * scale, *_BAR_SHARE, role, hint, label))
            before = end
    title = unit
    high = 100.0
    if shares:
        title = f"% of {unit}"
    else:
        high = rounded_up(max(totals), 5)
    x = PictureAxis((0.0, high), number_ticks(0.0, high, 5), title=title, grid=True)
    rows = _distinct(labels)
    picture = Picture(
        marks, x, HALF, _BAR * max(1, len(rows)), rows=rows, legend=_legend(list(parts), names)
    )
    return Chart(picture, ["", *(names[role] for role in parts)], _rows(labels, parts))


def histogram(  # noqa: PLR0913 - a chart's axis, words and mark
    edges: F64,
    parts: Parts,
    *,
    of: str,
    title: str,
    grows: bool,
    texts: Sequence[str] | None = None,
    mark: NamedValue | None = None,
) -> Chart:
    """Draw how many `of` are in each bin.

    edges: [bins + 1]. parts: counts [bins]. grows: whether the axis is logarithmic. texts: the
    edges in words. mark: a position on the axis and its name.
    """
    if texts is not None:
        text_of = list(texts)
    else:
        text_of = [f"{edge:,.6g}" for edge in edges]
    bounds = edges.tolist()
    if texts is not None:
        every = max(1, (len(bounds) + 6) // 7)
        ticks = list(zip(bounds, text_of, strict=True))[::every]
    elif grows:
        ticks = _growing_ticks(bounds)
    else:
        ticks = number_ticks(bounds[0], bounds[-1], 6)
    scale: Scale = "linear"
    if grows:
        scale = "log"
    x = PictureAxis((bounds[0], bounds[-1]), ticks, scale, title)
    return _binned(x, bounds, parts, text_of, of=of, mark=mark, width=HALF, heading=title)


def _growing_ticks(bounds: Sequence[float]) -> list[Tick]:
    """Return the powers of ten among the bounds, or all if they are few."""
    ticks = []
    for edge in bounds:
        if len(bounds) <= 7 or f"{edge:e}".startswith("1.0"):
            ticks.append((edge, short(edge)))
    return ticks


def over_time(
    edges: F64,
    parts: Parts,
    *,
    of: str,
    texts: Sequence[str],
    mark: NamedValue | None = None,
    shading: tuple[str, str] | None = None,
) -> Chart:
    """Draw rows over time, a column for each interval.

    edges: microseconds since 1970, [bins + 1]. shading: (role, name) of the time from the mark on,
    which is shaded, so that it shows even if its columns are too low to see. Other parameters as in
    `histogram`.
    """
    bounds = (edges / 1000).tolist()
    x = PictureAxis((bounds[0], bounds[-1]), time_ticks(bounds[0], bounds[-1], 8), "time")
    at = None
    if mark is not None:
        at = (mark[0] / 1000, mark[1])
    return _binned(
        x, bounds, parts, texts, of=of, mark=at, shading=shading, width=FULL, heading="time"
    )


def spans(
    rows: Sequence[Mapping[str, Any]],
    *,
    unit: str,
    along: Literal["time", "steps"],
    row_height: int = 20,
    columns: Sequence[str] = ("", "part", ""),
    names: Mapping[str, str] | None = None,
) -> Chart:
    """Draw a horizontal interval for each row {label, from, to, role, hint}; several may share a
    label.

    along="time": from and to are milliseconds since 1970. A row may have a weight, its opacity.
    names: of roles.
    """
    words = dict(names or {})
    marks = []
    for row in rows:
        weight = row.get("weight", 1.0)
        ends = (float(row["from"]), float(row["to"]))
        marks.append(Bar(*ends, 0.1, 0.9, row["role"], row["hint"], str(row["label"]), weight))
    low = min((mark.begin for mark in marks), default=0.0)
    high = max((mark.end for mark in marks), default=1.0)
    if along == "time":
        x = PictureAxis((low, high), time_ticks(low, high, 8), "time", unit, grid=True)
    else:
        x = PictureAxis((low, high), number_ticks(low, high, 8), "linear", unit, grid=True)
    labels = _distinct([mark.row for mark in marks])
    picture = Picture(
        marks,
        x,
        FULL,
        row_height * max(1, len(labels)),
        rows=labels,
        legend=_legend([mark.role for mark in marks], words),
    )
    table = []
    for mark in marks:
        table.append([mark.row, words.get(mark.role, mark.role), mark.hint])
    return Chart(picture, columns, table)


def quantiles(rows: Sequence[tuple[str, str, Sequence[float]]]) -> Chart:
    """Draw the quantiles 5, 25, 50, 75 and 95 % of each row (column, role, quantiles), on a scale
    of each column.

    A scale runs from the lowest to the highest quantile of its column; both are written beside the
    bars.
    """
    scales: dict[str, list[float]] = {}
    for column, _, values in rows:
        scales.setdefault(column, []).extend(values)
    marks: list[Bar] = []
    written = []
    table = []
    for column, role, values in rows:
        label = f"{column} · {role}"
        texts = [f"{value:,.4g}" for value in values]
        marks += _quantile_marks(label, role, values, scales[column])
        written.append(RowText(1.04, label, f"{texts[0]} … {texts[2]} … {texts[4]}"))
        table.append([label, *texts])
    labels = _distinct([text.row for text in written])
    picture = Picture(
        marks,
        PictureAxis((-0.02, 1.9)),  # a median at the lowest end is drawn too
        HALF,
        _BAR * len(rows),
        rows=labels,
        legend=_legend([role for _, role, _ in rows]),
        texts=written,
    )
    return Chart(picture, ["", "5 %", "25 %", "median", "75 %", "95 %"], table)


def _quantile_marks(
    label: str, role: str, values: Sequence[float], of_column: Sequence[float]
) -> list[Bar]:
    """Return the line, bar and median of a row of `quantiles`.

    of_column: all quantiles of its column.
    """
    low = min(of_column)
    width = max(of_column) - low or 1.0
    percents = zip((5, 25, 50, 75, 95), values, strict=True)
    written = ", ".join(f"{percent} % {value:,.4g}" for percent, value in percents)
    hint = f"{label.replace(' · ', ', ')}: {written}"
    p5, p25, p50, p75, p95 = ((value - low) / width for value in values)
    return [
        Bar(p5, p95, 0.46, 0.54, role, hint, label),
        Bar(p25, p75, 0.23, 0.77, role, hint, label),
        Bar(p50, p50, 0.15, 0.85, "ink", hint, label),
    ]


def _binned(  # noqa: PLR0913 - a chart's axis, words and mark
    x: PictureAxis,
    bounds: Sequence[float],
    parts: Parts,
    texts: Sequence[str],
    *,
    of: str,
    mark: NamedValue | None,
    width: int,
    heading: str,
    shading: tuple[str, str] | None = None,
) -> Chart:
    """Draw a rectangle for each nonzero part of each bin, stacked, a line at the mark and what is
    behind it.
    """
    marks = []
    highest = 0.0
    for index in range(len(bounds) - 1):
        below = 0.0
        for role, values in parts.items():
            value = float(values[index])
            if value > 0:
                hint = f"{texts[index]} to {texts[index + 1]}, {role}: {value:,.0f} {of}"
                reach = (bounds[index], bounds[index + 1], below, below + value)
                marks.append(Bar(*reach, role, hint))
                below += value
        highest = max(highest, below)
    ruler = None
    shaded = None
    if mark is not None and bounds[0] <= mark[0] <= bounds[-1]:
        ruler = mark
        if shading is not None and mark[0] < bounds[-1]:
            shaded = Shading(mark[0], *shading)
    top = rounded_up(highest or 1.0, 4)
    picture = Picture(
        marks,
        x,
        width,
        _HEIGHT,
        y=PictureAxis((0.0, top), number_ticks(0.0, top, 4), grid=True),
        legend=_legend(list(parts)),
        title=of,
        ruler=ruler,
        shading=shaded,
    )
    ranges = [f"{low} – {high}" for low, high in pairwise(texts)]
    rows = []
    for row in _rows(ranges, parts):
        if any(cell != "0" for cell in row[1:]):
            rows.append(row)
    return Chart(picture, [heading, *parts], rows)


def _distinct(labels: Sequence[str]) -> list[str]:
    """Return the labels of the rows, in the order of the data."""
    return list(dict.fromkeys(labels))


def _legend(roles: Sequence[str], names: Mapping[str, str] | None = None) -> list[tuple[str, str]]:
    """Return the roles in their usual order with their words, if there is more than one."""
    distinct = _distinct(roles)
    if len(distinct) < 2:
        return []
    splits = iter(in_usual_order(set(distinct) & SPLITS))
    distinct = [next(splits) if role in SPLITS else role for role in distinct]
    words = names or {}
    return [(role, words.get(role, role)) for role in distinct]


def _rows(labels: Sequence[str], parts: Parts) -> list[list[str]]:
    result = []
    for at, label in enumerate(labels):
        result.append([label, *(f"{values[at]:,.0f}" for values in parts.values())])
    return result
