"""Pictures as Vega-Lite specifications with numbers in them. Pure; drawing is `draw`.

Colours are roles: custom properties of the page's style, so that one drawing serves light and dark. Every mark has a
description, which is its label for screen readers and what hovering shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.report.bins import F64
from headrace.report.figure import Chart

HALF, FULL = 440, 940
_HEIGHT, _ROW = 190, 26
_AXIS_Y = {"titleAlign": "left", "titleAngle": 0, "titleX": 0, "titleY": -10, "titleAnchor": "end"}


def bars(labels: Sequence[str], values: Sequence[float], roles: Sequence[str], *, unit: str, texts: Sequence[str] | None = None) -> Chart:  # fmt: skip
    """A horizontal bar for each label, in this order, its number behind it. texts: what stands behind the bars."""
    shown = texts or [f"{value:,.0f}" for value in values]
    data = [
        {"label": label, "value": value, "role": role, "text": text, "hint": f"{label}: {text} {unit}"}
        for label, value, role, text in zip(labels, values, roles, shown, strict=True)
    ]
    y = {"field": "label", "type": "nominal", "sort": None, "title": None, "axis": {"labelLimit": 190, "ticks": False, "domain": False}}  # fmt: skip
    room = max(values, default=0) * 1.3 or 1
    x = {"field": "value", "type": "quantitative", "axis": None, "scale": {"domain": [0, room]}}
    layers = [
        {
            "mark": {"type": "bar", "cornerRadiusEnd": 2, "minBandSize": 1},
            "encoding": {"x": x, "y": y, "color": _colour(roles), "description": {"field": "hint"}},
        },
        {
            "mark": {"type": "text", "align": "left", "dx": 5, "aria": False},
            "encoding": {"x": x, "y": y, "text": {"field": "text"}},
        },
    ]
    spec = _spec(data, HALF, _ROW * max(1, len(labels)), layer=layers)
    return Chart(spec, ["", unit], [[label, text] for label, text in zip(labels, shown, strict=True)])


def stacked_bars(labels: Sequence[str], parts: Mapping[str, Sequence[float]], *, unit: str, names: Mapping[str, str] | None = None) -> Chart:  # fmt: skip
    """A horizontal bar of parts for each label, as shares of its whole. parts: role → a value for each label."""
    words = dict(names or {})
    wholes = [sum(values[place] for values in parts.values()) or 1 for place in range(len(labels))]
    data = [
        {
            "label": label,
            "value": 100 * values[place] / wholes[place],
            "role": role,
            "order": order,
            "name": words.get(role, role),
            "hint": f"{label}, {words.get(role, role)}: {values[place]:,.0f} {unit}, {100 * values[place] / wholes[place]:.1f} %",
        }
        for order, (role, values) in enumerate(parts.items())
        for place, label in enumerate(labels)
    ]
    encoding = {
        "x": {"field": "value", "type": "quantitative", "title": f"% of {unit}", "scale": {"domain": [0, 100]}},
        "y": {"field": "label", "type": "nominal", "sort": None, "title": None, "axis": {"labelLimit": 190, "ticks": False, "domain": False}},  # fmt: skip
        "order": {"field": "order", "type": "quantitative"},
        "color": _colour(list(parts), words),
        "description": {"field": "hint"},
    }
    spec = _spec(data, HALF, _ROW * max(1, len(labels)), mark={"type": "bar"}, encoding=encoding)
    rows = [[label, *(f"{values[place]:,.0f}" for values in parts.values())] for place, label in enumerate(labels)]
    return Chart(spec, ["", *(words.get(role, role) for role in parts)], rows)


def columns(labels: Sequence[str], parts: Mapping[str, Sequence[float]], *, unit: str, title: str, full: bool = False) -> Chart:  # fmt: skip
    """A column of stacked parts for each label, in this order. parts: role → a value for each label."""
    data = [
        {"place": place, "label": label, "value": values[place], "role": role, "order": order, "hint": f"{label}, {role}: {values[place]:,.0f} {unit}"}
        for order, (role, values) in enumerate(parts.items())
        for place, label in enumerate(labels)
    ]  # fmt: skip
    many = len(labels) > 12
    encoding = {
        "x": {
            "field": "label",
            "type": "nominal",
            "sort": None,
            "title": title,
            "axis": {"labels": not many, "ticks": False, "labelAngle": -40 if len(labels) > 4 else 0, "labelLimit": 90},
        },
        "y": {"field": "value", "type": "quantitative", "title": unit, "axis": {"format": "~s", "tickCount": 4, **_AXIS_Y}},  # fmt: skip
        "order": {"field": "order", "type": "quantitative"},
        "color": _colour(list(parts)),
        "description": {"field": "hint"},
    }
    spec = _spec(data, FULL if full else HALF, _HEIGHT, mark={"type": "bar"}, encoding=encoding)
    rows = [[label, *(f"{values[place]:,.0f}" for values in parts.values())] for place, label in enumerate(labels)]
    return Chart(spec, ["", *parts], rows)


def histogram(edges: F64, parts: Mapping[str, F64], *, of: str, title: str, grows: bool, texts: Sequence[str] | None = None, mark: tuple[float, str] | None = None) -> Chart:  # fmt: skip
    """How many `of` are in each bin. parts: role → counts [bins]; grows: the axis is logarithmic.

    texts: the edges as people read them [bins + 1]; mark: a place on the axis and its name.
    """
    shown = list(texts) if texts is not None else [f"{edge:,.6g}" for edge in edges]
    bounds = edges.tolist()
    filled = [place for place in range(len(bounds) - 1) if any(values[place] for values in parts.values())]
    data = []
    for place in filled:
        below = 0.0
        for role, values in parts.items():
            value = float(values[place])
            hint = f"{shown[place]} to {shown[place + 1]}, {role}: {value:,.0f} {of}"
            if value:
                data.append({"from": bounds[place], "to": bounds[place + 1], "low": below, "high": below + value, "role": role, "hint": hint})  # fmt: skip
            below += value
    axis: dict[str, Any] = {"grid": False, "labelOverlap": True, "tickCount": 6}
    if texts is not None:
        step = max(1, (len(bounds) + 6) // 7)
        names = {f"{edge:.12g}": text for edge, text in zip(bounds[::step], shown[::step], strict=True)}
        cases = "".join(f"abs(datum.value-({edge}))<=1e-9*abs({edge}) ? {text!r} : " for edge, text in names.items())
        axis |= {"values": bounds[::step], "labelExpr": f"{cases}''"}
    else:
        axis |= {"format": "~s"}
        if grows:
            axis |= {"values": [edge for edge in bounds if f"{edge:e}"[0] == "1"] if len(bounds) > 7 else bounds}
    scale = {"type": "log" if grows else "linear", "domain": [bounds[0], bounds[-1]], "nice": False}
    encoding = {
        "x": {"field": "from", "type": "quantitative", "title": title, "scale": scale, "axis": axis},
        "x2": {"field": "to"},
        "y": {"field": "low", "type": "quantitative", "title": of, "axis": {"format": "~s", "tickCount": 4, **_AXIS_Y}},
        "y2": {"field": "high"},
        "color": _colour(list(parts)),
        "description": {"field": "hint"},
    }
    layers: list[dict[str, Any]] = [
        {"mark": {"type": "rect", "stroke": "var(--card)", "strokeWidth": 0.5}, "encoding": encoding}
    ]
    if mark is not None and bounds[0] <= mark[0] <= bounds[-1]:
        layers += _ruler(mark[0], mark[1])
    rows = [
        [f"{shown[place]} – {shown[place + 1]}", *(f"{values[place]:,.0f}" for values in parts.values())]
        for place in filled
    ]
    return Chart(_spec(data, HALF, _HEIGHT, layer=layers), [title, *parts], rows)


def over_time(edges: F64, parts: Mapping[str, F64], *, of: str, texts: Sequence[str], mark: tuple[float, str] | None = None) -> Chart:  # fmt: skip
    """Rows over time, a column for each stretch. edges: microseconds since 1970 [bins + 1]; else as `histogram`."""
    milliseconds = (edges / 1000).tolist()
    data, filled = [], []
    for place in range(len(milliseconds) - 1):
        below = 0.0
        for role, values in parts.items():
            value = float(values[place])
            if value <= 0:
                continue
            hint = f"{texts[place]} to {texts[place + 1]}, {role}: about {value:,.0f} {of}"
            data.append({"from": milliseconds[place], "to": milliseconds[place + 1], "low": below, "high": below + value, "role": role, "hint": hint})  # fmt: skip
            below += value
        if below:
            filled.append([f"{texts[place]} – {texts[place + 1]}", *(f"{values[place]:,.0f}" for values in parts.values())])  # fmt: skip
    scale = {"type": "utc", "domain": [milliseconds[0], milliseconds[-1]], "nice": False}
    encoding = {
        "x": {"field": "from", "type": "temporal", "title": None, "scale": scale, "axis": {"grid": False, "labelOverlap": True, "tickCount": 8}},  # fmt: skip
        "x2": {"field": "to"},
        "y": {"field": "low", "type": "quantitative", "title": of, "axis": {"format": "~s", "tickCount": 4, **_AXIS_Y}},
        "y2": {"field": "high"},
        "color": _colour(list(parts)),
        "description": {"field": "hint"},
    }
    layers: list[dict[str, Any]] = [
        {"mark": {"type": "rect", "stroke": "var(--card)", "strokeWidth": 0.3}, "encoding": encoding}
    ]
    if mark is not None:
        layers += _ruler(mark[0] / 1000, mark[1], "temporal")
    return Chart(_spec(data, FULL, _HEIGHT, layer=layers), ["time", *parts], filled)


def spans(rows: Sequence[Mapping[str, Any]], *, unit: str, time: bool, mark: tuple[float, str] | None = None, row_height: int = 20) -> Chart:  # fmt: skip
    """A horizontal stretch for each of rows {label, from, to, role, hint}; several may share a label, and a line.

    time: from and to are milliseconds since 1970.
    """
    labels = list(dict.fromkeys(str(row["label"]) for row in rows))
    kind = "temporal" if time else "quantitative"
    x: dict[str, Any] = {"field": "from", "type": kind, "title": None if time else unit, "axis": {"labelOverlap": True, "tickCount": 8}}  # fmt: skip
    if time:
        x["scale"] = {"type": "utc", "nice": False}
    else:
        x["axis"]["format"] = "~s"
    encoding = {
        "x": x,
        "x2": {"field": "to"},
        "y": {"field": "label", "type": "nominal", "sort": None, "title": None, "axis": {"labelLimit": 150, "ticks": False, "domain": False, "labels": row_height >= 12}, "scale": {"paddingInner": 0.2}},  # fmt: skip
        "color": _colour(list(dict.fromkeys(str(row["role"]) for row in rows))),
        "opacity": {"field": "weight", "type": "quantitative", "scale": None},
        "description": {"field": "hint"},
    }
    layers: list[dict[str, Any]] = [{"mark": {"type": "bar"}, "encoding": encoding}]
    if mark is not None:
        layers += _ruler(mark[0], mark[1], kind)
    data = [{"weight": 1.0, **row} for row in rows]
    spec = _spec(data, FULL, row_height * max(1, len(labels)), layer=layers)
    return Chart(spec, ["", "part", ""], [[row["label"], row["role"], row["hint"]] for row in rows])


def _ruler(place: float, name: str, kind: str = "quantitative") -> list[dict[str, Any]]:
    """A vertical line with its name."""
    data = {"values": [{"at": place, "name": name, "hint": name}]}
    x = {"field": "at", "type": kind}
    return [
        {"data": data, "mark": {"type": "rule", "color": "var(--mark)", "strokeWidth": 1.5, "strokeDash": [5, 3]}, "encoding": {"x": x, "description": {"field": "hint"}}},
        {"data": data, "mark": {"type": "text", "align": "right", "dx": -5, "dy": 0, "baseline": "top", "y": 2, "color": "var(--mark)", "aria": False}, "encoding": {"x": x, "text": {"field": "name"}}},
    ]  # fmt: skip


def _colour(roles: Sequence[str], names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Each role in its own colour of the page; a legend where there is more than one."""
    distinct = list(dict.fromkeys(roles))
    encoding: dict[str, Any] = {
        "field": "name" if names else "role",
        "type": "nominal",
        "scale": {"domain": [(names or {}).get(role, role) for role in distinct], "range": [f"var(--{role})" for role in distinct]},
        "title": None,
    }  # fmt: skip
    encoding["legend"] = {"orient": "top", "symbolType": "square", "offset": 4} if len(distinct) > 1 else None
    return encoding


def _spec(data: Sequence[Mapping[str, Any]], width: int, height: int, **rest: Any) -> dict[str, Any]:
    ink, line = "var(--ink)", "var(--line)"
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "width": width,
        "height": height,
        "background": None,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": {"values": list(data)},
        **rest,
        "config": {
            "font": "sans-serif",
            "view": {"stroke": None},
            "text": {"color": ink, "fontSize": 13},
            "axis": {"labelColor": ink, "titleColor": ink, "gridColor": line, "domainColor": line, "tickColor": line, "labelFontSize": 13, "titleFontSize": 13, "titleFontWeight": "normal"},
            "legend": {"labelColor": ink, "labelFontSize": 13},
        },
    }  # fmt: skip
