"""`report.html` of a run: read its facts, draw, publish. The one module of the report that writes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from headrace.report import REPORT
from headrace.report.build import page_of
from headrace.report.draw import draw
from headrace.report.facts import read_run
from headrace.report.figure import Page
from headrace.report.page import html_of
from headrace.storage import local
from headrace.storage.places import local_path_of


def write_report(path: str | Path, *, run: str | None = None, to: str | Path | None = None) -> Path:
    """Write the report of the finished run behind a path; where it lies: `report.html` in the run, or `to`.

    The page appears whole or not at all, and replaces an older one: it is no part of the run's contents. Raises
    `InputError` without a finished run, `MissingExtra` without vl-convert, `StoreError` if it cannot be written.
    """
    facts = read_run(path, run)
    return publish(page_of(facts), facts.run.root / REPORT if to is None else to)


def publish(page: Page, to: str | Path) -> Path:
    """Draw a page and give it its name in one step."""
    target = local_path_of(to, "the page's file")
    html = html_of(page, draw)
    local.make_directory(target.parent)
    temporary = local.temporary_for(target)
    try:
        with local.storing(target):
            temporary.write_text(html, "utf-8")
        local.replace(temporary, target)
    finally:
        with suppress(OSError):
            temporary.unlink()
    return target
