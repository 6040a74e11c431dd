"""Make pictures as Vega-Lite specifications that contain their numbers.

Pure; `page.draw` draws them.

Colours are roles: custom properties of the page's style, so that one drawing works in light and
dark mode. Every mark has a description, which is its label for screen readers and its text on
hovering. `parts` maps a role to its values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

from headrace.arrays import F64
from headrace.dataset.manifest import in_usual_order
from headrace.report.figure import Chart

Parts = Mapping[str, Sequence[float] | F64]
Mark = tuple[float, str]

HALF = 440
FULL = 940
SPLITS = frozenset(("train", "val", "valid", "test", "all"))  # roles that the page has a colour for
_HEIGHT = 190
_BAR = 26
_LEFT_OUT = {"ticks": False, "domain": False}
# Each number on its own: Vega would write 0k and 0.2k beside 1k, and d3's ~s writes 500m for a
# half.
_SHORT = (
    "datum.value && abs(datum.value) < 1 ? format(datum.value, '~g') : format(datum.value, '~s')"
)
_BOTH_ENDS = (
    "length(datum.label) > 28 ? slice(datum.label, 0, 14) + '…' + slice(datum.label, -13) :"
    " datum.label"
)


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
    data = []
    for label, value, role, text in zip(labels, values, roles, text_of, strict=True):
        data.append(
            {
                "label": label,
                "value": value,
                "role": role,
                "text": text,
                "hint": f"{label}: {text} {unit}",
            }
        )
    # leave room for the texts
    room = max(values, default=0) * (1.15 + max(map(len, text_of), default=0) / 30) or 1
    x = {"field": "value", "type": "quantitative", "axis": None, "scale": {"domain": [0, room]}}
    y = _names()
    colour = _colour(roles)
    if len(set(roles)) == len(roles):  # each label has its own role, so a legend adds nothing
        colour["legend"] = None
    layers = [
        {
            "mark": {"type": "bar", "cornerRadiusEnd": 2},
            "encoding": {"x": x, "y": y, "color": colour, "description": {"field": "hint"}},
        },
        {
            "mark": {"type": "text", "align": "left", "dx": 5, "aria": False},
            "encoding": {"x": x, "y": y, "text": {"field": "text"}},
        },
    ]
    spec = _spec(data, HALF, _BAR * max(1, len(labels)), layer=layers)
    return Chart(
        spec, ["", unit], [[label, text] for label, text in zip(labels, text_of, strict=True)]
    )


def stacked_bars(
    labels: Sequence[str], parts: Parts, *, unit: str, names: Mapping[str, str], shares: bool = True
) -> Chart:
    """Draw a horizontal bar of parts for each label, as shares of its total or as they are.

    names: of roles.
    """
    wholes = []
    for index in range(len(labels)):
        wholes.append(sum(float(values[index]) for values in parts.values()) or 1.0)
    data = _parts_of_labels(labels, parts, unit, names)
    for bar in data:
        percent = 100 * bar["value"] / wholes[bar.pop("index")]
        bar["hint"] += f", {percent:.1f} %"
        if shares:
            bar["value"] = percent
    x = {**_numbers(f"% of {unit}" if shares else unit, tickCount=5), "field": "value"}
    x["scale"] = {"domain": [0, 100 if shares else max(wholes)], "nice": not shares}
    encoding = {"x": x, "y": _names(), **_STACKED, "color": _colour(list(parts), names)}
    spec = _spec(data, HALF, _BAR * max(1, len(labels)), mark={"type": "bar"}, encoding=encoding)
    return Chart(spec, ["", *(names[role] for role in parts)], _rows(labels, parts))


_STACKED = {"order": {"field": "order", "type": "quantitative"}, "description": {"field": "hint"}}


def _parts_of_labels(
    labels: Sequence[str], parts: Parts, unit: str, names: Mapping[str, str]
) -> list[dict[str, Any]]:
    result = []
    for order, (role, values) in enumerate(parts.items()):
        for index, label in enumerate(labels):
            result.append(
                {
                    "label": label,
                    "index": index,
                    "value": float(values[index]),
                    "role": names[role],
                    "order": order,
                    "hint": f"{label}, {names[role]}: {values[index]:,.0f} {unit}",
                }
            )
    return result


def histogram(  # noqa: PLR0913 - a chart's axis, words and mark
    edges: F64,
    parts: Parts,
    *,
    of: str,
    title: str,
    grows: bool,
    texts: Sequence[str] | None = None,
    mark: Mark | None = None,
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
    axis: dict[str, Any] = {
        "grid": False,
        "labelOverlap": True,
        "labelSeparation": 8,
        "tickCount": 6,
    }
    if texts is not None:
        ticks = []
        for index in range(0, len(bounds), max(1, (len(bounds) + 6) // 7)):
            ticks.append((bounds[index], text_of[index]))
        cases = [
            f"abs(datum.value-{edge!r})<=1e-9*abs({edge!r}) ? {text!r}" for edge, text in ticks
        ]
        axis |= {"values": [edge for edge, _ in ticks], "labelExpr": " : ".join([*cases, "''"])}
    else:
        axis["labelExpr"] = _SHORT
        if grows:
            tens = []
            for edge in bounds:
                if f"{edge:e}".startswith("1.0"):
                    tens.append(edge)
            if len(bounds) > 7:
                axis["values"] = tens
            else:
                axis["values"] = bounds
    scale = {"type": "log" if grows else "linear", "domain": [bounds[0], bounds[-1]], "nice": False}
    x = {"field": "from", "type": "quantitative", "title": title, "scale": scale, "axis": axis}
    return _binned(x, bounds, parts, text_of, of=of, mark=mark, width=HALF, heading=title)


def over_time(
    edges: F64,
    parts: Parts,
    *,
    of: str,
    texts: Sequence[str],
    mark: Mark | None = None,
    shading: tuple[str, str] | None = None,
) -> Chart:
    """Draw rows over time, a column for each interval.

    edges: microseconds since 1970, [bins + 1]. shading: (role, name) of the time from the mark on,
    which is shaded, so that it shows even if its columns are too low to see. Other parameters as in
    `histogram`.
    """
    bounds = (edges / 1000).tolist()  # Vega uses milliseconds
    scale = {"type": "utc", "domain": [bounds[0], bounds[-1]], "nice": False}
    x = {
        "field": "from",
        "type": "temporal",
        "title": None,
        "scale": scale,
        "axis": {"grid": False, **_TIME_AXIS},
    }
    if mark is None:
        at = None
    else:
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
    labels = list(dict.fromkeys(str(row["label"]) for row in rows))
    scale = "quantitative"
    if along == "time":
        scale = "temporal"
    x: dict[str, Any] = {
        "field": "from",
        "type": scale,
        "title": unit or None,
        "axis": dict(_TIME_AXIS),
    }
    if along == "time":
        x["scale"] = {"type": "utc", "nice": False}
    else:
        x["axis"]["labelExpr"] = _SHORT
        x["scale"] = {"nice": False}
    y = _names()
    encoding = {
        "x": x,
        "x2": {"field": "to"},
        "y": {**y, "scale": {"paddingInner": 0.2}},
        "color": _colour([str(row["role"]) for row in rows], words),
        "opacity": {"field": "weight", "type": "quantitative", "scale": None},
        "description": {"field": "hint"},
    }
    layers = [{"mark": {"type": "bar"}, "encoding": encoding}]
    data = [{"weight": 1.0, **row, "role": words.get(row["role"], row["role"])} for row in rows]
    spec = _spec(data, FULL, row_height * max(1, len(labels)), layer=layers)
    # for long labels, which a wide picture would cut off
    spec["padding"] = {**spec["padding"], "left": 24}
    return Chart(spec, columns, [[row["label"], row["role"], row["hint"]] for row in data])


def quantiles(rows: Sequence[tuple[str, str, Sequence[float]]]) -> Chart:
    """Draw the quantiles 5, 25, 50, 75 and 95 % of each row (column, role, quantiles), on a scale
    of each column.

    A scale runs from the lowest to the highest quantile of its column; both are written beside the
    bars.
    """
    scales: dict[str, list[float]] = {}
    for column, _, values in rows:
        scales.setdefault(column, []).extend(values)
    data = [_quantile_bar(row, scales[row[0]]) for row in rows]
    table = []
    for column, role, values in rows:
        table.append([f"{column} · {role}", *(f"{value:,.4g}" for value in values)])
    x = {"type": "quantitative", "axis": None, "scale": {"domain": [0, 1.9], "nice": False}}
    colour = _colour([role for _, role, _ in rows])
    described = {"y": _names(), "description": {"field": "hint"}}
    layers: list[dict[str, Any]] = []
    for begin, end, height in (("p5", "p95", 2), ("p25", "p75", 14)):
        layers.append(
            {
                "mark": {"type": "bar", "height": height, "aria": height > 2},
                "encoding": {
                    "x": {"field": begin, **x},
                    "x2": {"field": end},
                    "color": colour,
                    **described,
                },
            }
        )
    ink = {"type": "tick", "color": "var(--ink)", "thickness": 2, "height": 18, "aria": False}
    written = {"type": "text", "align": "left", "aria": False}
    layers += [
        {"mark": ink, "encoding": {"x": {"field": "p50", **x}, "y": _names()}},
        {
            "mark": written,
            "encoding": {"x": {"field": "end", **x}, "y": _names(), "text": {"field": "text"}},
        },
    ]
    return Chart(
        _spec(data, HALF, _BAR * len(rows), layer=layers),
        ["", "5 %", "25 %", "median", "75 %", "95 %"],
        table,
    )


def _quantile_bar(
    row: tuple[str, str, Sequence[float]], of_column: Sequence[float]
) -> dict[str, Any]:
    """Return the datum of a row of `quantiles`. of_column: all quantiles of its column."""
    column, role, values = row
    low = min(of_column)
    width = max(of_column) - low or 1.0
    texts = [f"{value:,.4g}" for value in values]
    percents = zip((5, 25, 50, 75, 95), texts, strict=True)
    hint = ", ".join(f"{percent} % {value}" for percent, value in percents)
    ends = [(value - low) / width for value in values]
    return {
        "label": f"{column} · {role}",
        "role": role,
        "text": f"{texts[0]} … {texts[2]} … {texts[4]}",
        "end": 1.04,
        "hint": f"{column}, {role}: {hint}",
        **dict(zip(("p5", "p25", "p50", "p75", "p95"), ends, strict=True)),
    }


_TIME_AXIS = {"labelOverlap": True, "labelSeparation": 8, "tickCount": 8}


def _binned(  # noqa: PLR0913 - a chart's axis, words and mark
    x: Mapping[str, Any],
    bounds: Sequence[float],
    parts: Parts,
    texts: Sequence[str],
    *,
    of: str,
    mark: Mark | None,
    width: int,
    heading: str,
    shading: tuple[str, str] | None = None,
) -> Chart:
    """Draw a rectangle for each nonzero part of each bin, stacked, a line at the mark and what is
    behind it.
    """
    data = []
    for index in range(len(bounds) - 1):
        below = 0.0
        for role, values in parts.items():
            value = float(values[index])
            if value > 0:
                hint = f"{texts[index]} to {texts[index + 1]}, {role}: {value:,.0f} {of}"
                reach = {
                    "from": bounds[index],
                    "to": bounds[index + 1],
                    "low": below,
                    "high": below + value,
                }
                data.append({**reach, "role": role, "hint": hint})
                below += value
    encoding = {
        "x": x,
        "x2": {"field": "to"},
        "y": {**_numbers(None, tickCount=4), "field": "low"},
        "y2": {"field": "high"},
        "color": _colour(list(parts)),
        "description": {"field": "hint"},
    }
    layers = [
        {
            "mark": {"type": "rect", "stroke": "var(--card)", "strokeWidth": 0.5},
            "encoding": encoding,
        }
    ]
    if mark is not None and bounds[0] <= mark[0] <= bounds[-1]:
        if shading is not None and mark[0] < bounds[-1]:
            layers = [*_shade(mark[0], bounds[-1], shading, x["type"]), *layers]
        layers += _ruler(mark, x["type"])
    ranges = [f"{low} – {high}" for low, high in pairwise(texts)]
    rows = []
    for row in _rows(ranges, parts):
        if any(cell != "0" for cell in row[1:]):
            rows.append(row)
    return Chart(_spec(data, width, _HEIGHT, title=of, layer=layers), [heading, *parts], rows)


def _shade(begin: float, end: float, named: tuple[str, str], scale: str) -> list[dict[str, Any]]:
    """Shade the whole height from begin to end in the colour of a role, with a name at its top."""
    role, name = named
    data = {"values": [{"begin": begin, "end": end, "name": name}]}
    x = {"field": "begin", "type": scale}
    area = {"type": "rect", "color": f"var(--{role})", "opacity": 0.14}
    text = {
        "type": "text",
        "align": "left",
        "dx": 5,
        "baseline": "top",
        "y": 2,
        "color": "var(--ink)",
        "aria": False,
    }
    return [
        {
            "data": data,
            "mark": area,
            "encoding": {"x": x, "x2": {"field": "end"}, "description": {"field": "name"}},
        },
        {"data": data, "mark": text, "encoding": {"x": x, "text": {"field": "name"}}},
    ]


def _ruler(mark: Mark, scale: str) -> list[dict[str, Any]]:
    """Draw a vertical line with its name."""
    data = {"values": [{"at": mark[0], "name": mark[1]}]}
    x = {"field": "at", "type": scale}
    line = {"type": "rule", "color": "var(--mark)", "strokeWidth": 1.5, "strokeDash": [5, 3]}
    text = {
        "type": "text",
        "align": "right",
        "dx": -5,
        "baseline": "top",
        "y": 2,
        "color": "var(--mark)",
    }
    # The halo keeps the text readable over the marks.
    halo = {**text, "stroke": "var(--card)", "strokeWidth": 4, "strokeJoin": "round"}
    names = []
    for mark_options in (halo, text):
        names.append(
            {
                "data": data,
                "mark": {**mark_options, "aria": False},
                "encoding": {"x": x, "text": {"field": "name"}},
            }
        )
    return [
        {"data": data, "mark": line, "encoding": {"x": x, "description": {"field": "name"}}},
        *names,
    ]


def _names() -> dict[str, Any]:
    """Return the vertical axis of labels, in the order of the data."""
    axis = {"labelLimit": 190, "labels": True, "labelExpr": _BOTH_ENDS, **_LEFT_OUT}
    return {"field": "label", "type": "nominal", "sort": None, "title": None, "axis": axis}


def _numbers(title: str | None, **axis: Any) -> dict[str, Any]:
    return {"type": "quantitative", "title": title, "axis": {"labelExpr": _SHORT, **axis}}


def _colour(roles: Sequence[str], names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Give each role its own colour of the page, with a legend if there is more than one."""
    distinct = list(dict.fromkeys(roles))
    splits = iter(in_usual_order(set(distinct) & SPLITS))
    distinct = [next(splits) if role in SPLITS else role for role in distinct]
    words = names or {}
    scale = {
        "domain": [words.get(role, role) for role in distinct],
        "range": [f"var(--{role})" for role in distinct],
    }
    legend = {
        "orient": "top",
        "symbolType": "square",
        "offset": 4,
        "columnPadding": 18,
        "labelLimit": 300,
    }
    text_of = None
    if len(distinct) > 1:
        text_of = legend
    return {"field": "role", "type": "nominal", "title": None, "scale": scale, "legend": text_of}


def _rows(labels: Sequence[str], parts: Parts) -> list[list[str]]:
    result = []
    for at, label in enumerate(labels):
        result.append([label, *(f"{values[at]:,.0f}" for values in parts.values())])
    return result


def _spec(
    data: Sequence[Mapping[str, Any]], width: int, height: int, **encoding: Any
) -> dict[str, Any]:
    ink = "var(--ink)"
    line = "var(--line)"
    colours = {
        "labelColor": ink,
        "titleColor": ink,
        "gridColor": line,
        "domainColor": line,
        "tickColor": line,
    }
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "width": width,
        "height": height,
        "background": None,
        "autosize": {"type": "fit-x", "contains": "padding"},
        # fonts may be wider than when it was drawn
        "padding": {"left": 12, "right": 14, "top": 4, "bottom": 4},
        "data": {"values": list(data)},
        **encoding,
        "config": {
            "font": "sans-serif",
            "view": {"stroke": None},
            "text": {"color": ink, "fontSize": 13},
            "axis": {
                **colours,
                "labelFontSize": 13,
                "titleFontSize": 13,
                "titleFontWeight": "normal",
            },
            "legend": {"labelColor": ink, "labelFontSize": 13},
            "title": {
                "color": ink,
                "fontSize": 13,
                "fontWeight": "normal",
                "anchor": "start",
                "offset": 6,
            },
        },
    }
