"""Make the parts of a page that all recipes share: dropped and kept rows, tiles, tables. Pure."""

from __future__ import annotations

import json
from typing import Any

from headrace.recipe import recipe_of_run
from headrace.report import charts
from headrace.report.facts import RunFacts
from headrace.report.figure import Figure, Table, Tone
from headrace.report.words import listed, many, share, size, verb

_MOST_BARS = 14


def figures(facts: RunFacts) -> list[Figure]:
    """Make the figures of a recipe that has none of its own."""
    return [rows_figure(facts)]


def rows_figure(facts: RunFacts) -> Figure:
    """Draw the number of rows of each split and of each reason to drop rows."""
    manifest = facts.manifest
    read = int(manifest.source["rows"])
    kept = facts.rows_in_splits
    dropped = {reason: rows for reason, rows in manifest.dropped.items() if rows}
    by_size = sorted(dropped, key=lambda reason: (-dropped[reason], reason))
    names = [*facts.splits, *by_size[:_MOST_BARS]]
    values = [kept[name] for name in facts.splits] + [
        dropped[name] for name in by_size[:_MOST_BARS]
    ]
    roles = [*facts.splits, *["dropped"] * len(by_size[:_MOST_BARS])]
    lost = sum(dropped.values())
    empty = [name for name in facts.splits if not kept[name]]
    if lost:
        most = by_size[0]
        answer = (
            f"Of {many(read, 'row')} read {share(sum(kept.values()), read)} are in a split."
            f" {many(lost, 'row')} {'was' if lost == 1 else 'were'} dropped,"
            f" {'most of them ' if len(dropped) > 1 else ''}for {most}:"
            f" {facts.reason_in_words(most)}."
        )
    else:
        answer = f"All {many(read, 'row')} read are in a split; none was dropped."
    if empty:
        answer += f" {listed(empty)} {verb(len(empty), 'is', 'are')} empty."
    if sum(kept.values()) + lost != read:
        answer += f" The counts do not add up to the {read:,} rows read: run `headrace verify`."
    if empty or lost > read / 2 or sum(kept.values()) + lost != read:
        tone: Tone = "warning"
    elif lost:
        tone = "plain"
    else:
        tone = "good"
    texts = [f"{value:,} · {share(value, read)}" for value in values]
    chart = None
    if len(names) > 1:
        chart = charts.bars(names, values, roles, unit="rows", texts=texts)
    return Figure("rows", "Where did the rows go?", answer, chart, tone)


def tables(facts: RunFacts) -> list[Table]:
    """Return the columns, the settings, and what made the run, as tables that are folded away."""
    manifest = facts.manifest
    columns = [
        [each["name"], each["type"], "may hold nulls" if each["nullable"] else "no nulls"]
        for each in manifest.schema
    ]
    made = {
        "run": manifest.run_id,
        "finished": facts.run.finished_at,
        **{f"library {name}": version for name, version in sorted(manifest.libraries.items())},
        "source fingerprint": manifest.source["fingerprint"],
        "source": f"{many(manifest.source['files'], 'file')}, {size(manifest.source['bytes'])}",
        **{
            name: value
            for name, value in sorted(manifest.facts.items())
            if not isinstance(value, dict | list)
        },
    }
    return [
        Table(f"{many(len(columns), 'column')}", ["name", "type", "nulls"], columns),
        Table(
            "settings",
            ["setting", "value"],
            [[name, _text(value)] for name, value in sorted(facts.config.items())],
        ),
        Table(
            "how it was made",
            ["", ""],
            [[name.replace("_", " "), _text(value)] for name, value in made.items()],
        ),
    ]


def tiles(facts: RunFacts) -> list[tuple[str, str]]:
    """Return the figures at the top of the page: rows of each split, and totals dropped, read and
    written.
    """
    manifest = facts.manifest
    unit = recipe_of_run(manifest.recipe).row
    found = [(name, many(manifest.splits[name].rows, unit)) for name in facts.splits]
    if manifest.folds:  # its splits are cells, which several folds share
        found = [
            ("folds", f"{len(manifest.folds):,}"),
            ("in folds", many(sum(facts.rows_in_splits.values()), unit)),
        ]
    total = sum(each.bytes for each in manifest.splits.values())
    shards = sum(each.shards for each in manifest.splits.values())
    return [
        *found,
        ("dropped", many(sum(manifest.dropped.values()), "row")),
        ("read", many(manifest.source["rows"], "row")),
        ("written", f"{size(total)} in {many(shards, 'shard')}"),
    ]


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        if value is None:
            return ""
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return json.dumps(value, ensure_ascii=False, default=str)
