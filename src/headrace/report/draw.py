"""A chart's specification drawn as SVG by Vega (vl-convert), without a browser, a network or a file."""

from __future__ import annotations

import re
from typing import Any

from headrace.errors import HeadraceError, MissingExtra
from headrace.printable import escape_lines
from headrace.report.figure import Chart

_ID = re.compile(r'\sid="([^"]+)"')
_REFERENCE = re.compile(r'(\sid="|url\(#|href="#)([^")]+)')
_OPENING = re.compile(r"<svg[^>]*?>")
_VIEW = re.compile(r'viewBox="([^"]+)"')
_WIDTH = re.compile(r'\swidth="([\d.]+)"')


def can_draw() -> bool:
    """Whether the extra `report` is installed."""
    from importlib.util import find_spec

    return find_spec("vl_convert") is not None


def draw(chart: Chart, key: str, label: str) -> str:
    """The chart as an `<svg>` element as wide as its place allows, at most as it was laid out.

    key: unique on the page; ids inside begin with it. label: what a screen reader says first. Raises `MissingExtra`.
    """
    converter = _converter()
    try:
        drawn: str = converter.vegalite_to_svg(_drawable(chart.spec), vl_version="5.20", allowed_base_urls=[])
    except ValueError as error:  # what vl-convert raises of anything that goes wrong inside it
        raise HeadraceError(
            f"figure {key!r} could not be drawn ({error}); please report it, this is a fault of headrace"
        ) from error
    opening = _OPENING.search(drawn)
    view, width = _VIEW.search(drawn), _WIDTH.search(drawn)
    if opening is None or view is None or width is None:
        raise HeadraceError(f"figure {key!r}: vl-convert gave no SVG; install another vl-convert-python")
    inside = _own_ids(drawn[opening.end() :], key)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="group" aria-label="{_escaped(label)}" viewBox="{view[1]}" '
        f'style="max-width:{float(width[1]):g}px">{inside}'
    )


def _drawable(part: Any) -> Any:
    """The specification with control characters of its texts escaped: SVG has none, and vl-convert ends the process."""
    if isinstance(part, str):
        return escape_lines(part)
    if isinstance(part, dict):
        return {escape_lines(name): _drawable(each) for name, each in part.items()}
    return [_drawable(each) for each in part] if isinstance(part, list | tuple) else part


def _own_ids(drawn: str, key: str) -> str:
    """Ids that no other drawing on the page has, and that do not depend on what was drawn before."""
    names = {name: f"{key}-{number}" for number, name in enumerate(_ID.findall(drawn))}
    return _REFERENCE.sub(lambda found: f"{found[1]}{names.get(found[2], found[2])}", drawn)


def _converter() -> Any:
    try:
        import vl_convert
    except ImportError:
        raise MissingExtra("vl-convert-python", "report") from None
    return vl_convert


def _escaped(text: str) -> str:
    from html import escape

    return escape(escape_lines(text), quote=True)
