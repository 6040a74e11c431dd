"""Pictures of the documentation, drawn from finished runs as their reports draw them.

    python docs/site/pictures.py OUT FIGURE docs/pictures/NAME.svg

FIGURE is the id of a figure on the report's page. The picture brings its colours along, light and dark, so that it can
stand on any page. Those in docs/pictures are of what `make demo` leaves in `out`.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from headrace.report.picture import svg_of
from headrace.report.report_data import read_run
from headrace.report.write import page_of

_WIDTH = 620


def picture(out: str, figure: str) -> str:
    """One figure of a run as a file of its own."""
    (found,) = (each for each in page_of(read_run(out)).figures if each.key == figure)
    if found.chart is None:
        sys.exit(f"{figure} has no picture")
    # narrower than in a report, so that its words can be read where a phone shrinks the whole picture
    drawn = svg_of(replace(found.chart.picture, width=_WIDTH), found.question)
    css = files("headrace.report").joinpath("page.css").read_text("utf-8")
    colours = "".join(
        each[0]
        for each in re.finditer(
            r":root \{.*?\}|@media \(prefers[^{]*\{\s*:root \{.*?\}\s*\}", css, re.DOTALL
        )
    )
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawn)
    assert size is not None
    head, _, body = drawn.partition(">")
    head = re.sub(r' style="max-width:[^"]*"', f' width="{size[1]}" height="{size[2]}"', head)
    return f"{head}><style>{colours} svg {{ background: var(--card); }}</style>{body}\n"


if __name__ == "__main__":
    Path(sys.argv[3]).write_text(picture(sys.argv[1], sys.argv[2]), "utf-8")
