"""Draw the result of `find_leaks` as a page: content, ids, columns, benchmarks and time that splits
share. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.report import charts
from headrace.report.figure import Chart, Figure, Page, Table, Tone
from headrace.report.words import listed, many_entities, moment, percentage, pluralise, verb
from headrace.stream.audit.leaks import LeakReport

if TYPE_CHECKING:
    from headrace.stream.audit.near import NearDuplicates

_OWN_COLOUR = ("train", "val", "valid", "test")
_FOUND = {"mark": "found whole", "shared": "found in part", "empty": "not found"}
_PAST = {"shared": "looks past the cutoff", "empty": "does not"}
_NAMED = 6  # number of columns named


def page_of_leaks(report: LeakReport, name: str, max_share: float) -> Page:
    """Make the page of a report.

    name: of the dataset. max_share: the largest share allowed before a warning.
    """
    figures = [
        content_figure(report, max_share),
        *_near_figures(report, max_share),
        *_ids_figures(report, max_share),
        *_columns_figures(report),
        *_benchmark_figures(report, max_share),
        *_time_figures(report),
        *_horizon_figures(report, max_share),
    ]
    if len(report.content) <= _NAMED:
        columns = ", ".join(report.content)
    else:
        columns = f"{len(report.content)} columns"
    verdict = (
        f"{report.worst:.2%} of a split or benchmark was found elsewhere; at most"
        f" {max_share:.2%} may be."
    )
    tiles = []
    for split, rows in report.rows.items():
        tiles.append((split, pluralise(rows, report.unit, report.units)))
    return Page(
        title=f"leaks: {name}",
        subtitle=f"{report.units.capitalize()} are compared by {columns}. {verdict}",
        tiles=tiles,
        figures=figures,
        tables=_tables(report),
    )


def content_figure(report: LeakReport, max_share: float) -> Figure:
    """Draw how much of each split has the same content as an earlier row or an earlier split."""
    lines, tone, pairs = _repeats(
        report, report, max_share, "in {} too", "in another one", "the same as"
    )
    blank = sum(report.blank.values())
    if blank:
        text = pluralise(blank, report.unit, report.units)
        lines.append(
            f"{text} without any value in the compared columns {verb(blank, 'is', 'are')} left out."
        )
    chart = _matrix(report, pairs, report.units, "also in")
    return Figure(
        "content", "Is the content of a split in another one?", "\n".join(lines), chart, tone
    )


def _near_figures(report: LeakReport, max_share: float) -> list[Figure]:
    """Draw how much of each split has near duplicates in itself and in the splits before it."""
    near = report.near
    units = report.units
    if near is None:
        return []
    lines, tone, pairs = _repeats(
        report, near, max_share, "near one of {}", "near one of another", "near"
    )
    lines.append(
        f"{units.capitalize()} are near if their shingles have a Jaccard index of"
        f" {near.threshold:g} or more."
    )
    if near.not_compared:
        lines.append(
            f"At most {near.not_compared:,} pairs were not compared, as they look like too many"
            " others."
        )
    chart = _matrix(report, pairs, units, "near or the same in")
    return [Figure("near", f"Are {units} nearly the same?", "\n".join(lines), chart, tone)]


def _repeats(
    report: LeakReport,
    repeats: LeakReport | NearDuplicates,
    max_share: float,
    earlier: str,
    other: str,
    opening: str,
) -> tuple[list[str], Tone, dict[tuple[str, str], tuple[int, float]]]:
    """Return sentences about rows that repeat others, their tone, and the count and share of each
    pair of splits.

    earlier, other, opening: how a row is to those of an earlier split, of any other, and of its
    own.
    """
    unit = report.unit
    units = report.units
    shared = [item for item in repeats.shared if item.rows]
    lines = []
    for item in shared:
        lines.append(
            f"{pluralise(item.rows, unit, units)} of {item.split} ({percentage(item.fraction, 1)})"
            f" {verb(item.rows, 'is', 'are')} {earlier.format(item.earlier)}."
        )
    if not shared:
        lines = [
            f"No {unit} of a split is {other}." if len(report.rows) > 1 else "There is one split."
        ]
    pairs = {(item.split, item.earlier): (item.rows, item.fraction) for item in repeats.shared}
    again = []
    for split, rows in repeats.repeated.items():
        pairs[split, split] = (rows, rows / max(1, report.rows[split]))
        if rows:
            again.append(f"{pluralise(rows, unit, units)} of {split}")
    if again:
        are = verb(sum(repeats.repeated.values()), "is", "are")
        lines.append(f"Within a split, {listed(again)} {are} {opening} an earlier one.")
    tone: Tone = "plain" if shared or again else "good"
    if any(item.fraction > max_share for item in shared):
        tone = "warning"
    return lines, tone, pairs


def _matrix(
    report: LeakReport, pairs: Mapping[tuple[str, str], tuple[int, float]], units: str, across: str
) -> Chart:
    """Draw the counts and shares of pairs of splits, in the order of splits."""
    cells = []
    for split in report.rows:
        for other in report.rows:
            if (split, other) in pairs:
                count, part = pairs[split, other]
                cells.append((split, other, part, f"{count:,} · {percentage(part, 1)}"))
    return charts.matrix(
        cells,
        down=f"{units} of",
        across=across,
        columns=[f"{units} of", across, "count"],
        role="shared",
    )


def _ids_figures(report: LeakReport, max_share: float) -> list[Figure]:
    """Draw the entities that have several names."""
    ids = report.near_ids
    question = "Does one entity have several names?"
    if ids is None:
        return []
    if not ids.entities:
        answer = "No two names are the same without case, blanks and Unicode form."
        return [Figure("ids", question, answer, tone="good")]
    names = "; ".join(" = ".join(map(repr, item)) for item in ids.examples)
    answer = f"{many_entities(ids.entities)} may: {names}."
    if ids.separate:
        answer += (
            f"\n{ids.separate:,} of them {verb(ids.separate, 'has', 'have')} names in different"
            f" splits: up to {percentage(ids.fraction, 1)} of the entities of a split have another"
            " name in an earlier one."
        )
    chart = charts.bars(
        ["in different splits", "in one split"],
        [ids.separate, ids.entities - ids.separate],
        ["shared", "empty"],
        unit="entities",
    )
    return [
        Figure("ids", question, answer, chart, "warning" if ids.fraction > max_share else "plain")
    ]


def _columns_figures(report: LeakReport) -> list[Figure]:
    """Draw the columns that alone predict the label."""
    if not report.telling:
        return []
    best = sorted(report.telling, key=lambda item: -item.accuracy)
    usual = best[0].most_frequent
    verb = "does" if len(best) == 1 else "do, each alone"
    columns = [item.column for item in best]
    answer = (
        f"{listed(columns)} {verb}."
        f" The most frequent label is right for {percentage(usual, 1)}. It may be a legitimate"
        " feature, so nothing was left out."
    )
    shares = [*(item.accuracy for item in best), usual]
    chart = charts.bars(
        [*columns, "most frequent label"],
        [100 * part for part in shares],
        [*["shared"] * len(best), "empty"],
        unit="right",
        texts=[percentage(part, 1) for part in shares],
        names={"shared": "column", "empty": "guess"},
    )
    return [Figure("columns", "Which column gives the label away?", answer, chart, "warning")]


def _best_shares(report: LeakReport) -> dict[str, dict[int, float]]:
    """Return the largest share of each item that a row holds, by benchmark and item."""
    best: dict[str, dict[int, float]] = {source: {} for source in report.items}
    for overlap in report.overlaps:
        shares = best[overlap.source]
        shares[overlap.item] = max(overlap.fraction, shares.get(overlap.item, 0.0))
    return best


def _benchmark_figures(report: LeakReport, max_share: float) -> list[Figure]:
    """Draw how much of each benchmark occurs in rows."""
    if not report.items:
        return []
    best = _best_shares(report)
    parts: dict[str, list[float]] = {role: [] for role in _FOUND}
    lines = []
    bad = False
    for source, count in report.items.items():
        shares = list(best[source].values())
        if count and len(shares) / count > max_share:
            bad = True
        complete = sum(value == 1 for value in shares)
        for role, value in zip(
            _FOUND, (complete, len(shares) - complete, count - len(shares)), strict=True
        ):
            parts[role].append(value)
        lines.append(
            f"{Path(source).name}: {len(shares):,} of {pluralise(count, 'item')} found"
            f" ({percentage(len(shares), count)}), {complete:,} of them whole."
        )
    names = [Path(source).name for source in report.items]
    # paths, if two files have the same name
    if len(set(names)) == len(names):
        labels = names
    else:
        labels = list(report.items)
    chart = charts.stacked_bars(labels, parts, unit="items", names=_FOUND)
    if bad:
        tone: Tone = "warning"
    elif report.overlaps:
        tone = "plain"
    else:
        tone = "good"
    return [Figure("benchmarks", "Are benchmark items in the rows?", "\n".join(lines), chart, tone)]


def _time_figures(report: LeakReport) -> list[Figure]:
    """Draw the period of each split, and its rows at times at which an earlier split has other
    entities.
    """
    dated = [item for item in report.periods if item.first_us is not None]
    if not dated:
        return []
    rows = []
    for item in dated:
        rows.append(
            {
                "label": item.split,
                "from": (item.first_us or 0) / 1000,
                "to": (item.last_us or 0) / 1000,
                "role": item.split if item.split in _OWN_COLOUR else "all",
                "hint": f"{moment(item.first_us or 0)} to {moment(item.last_us or 0)}",
            }
        )
    lines = [f"{row['label']} from {row['hint']}." for row in rows]
    for item in report.periods:
        if item.unread:
            have = verb(item.unread, "has", "have")
            unread = pluralise(item.unread, "row")
            lines.append(f"{unread} of {item.split} {have} no readable time.")
    chart = charts.spans(
        rows, unit="", along="time", row_height=34, columns=("split", "split", "from and to")
    )
    figures = [Figure("periods", "When are the splits?", "\n".join(lines), chart, width="full")]
    if report.concurrent:
        shared = [item for item in report.concurrent if item.rows]
        text = []
        for together in shared:
            rows_of_split = f"{pluralise(together.rows, 'row')} of {together.split}"
            text.append(
                f"{rows_of_split} ({percentage(together.fraction, 1)})"
                f" {verb(together.rows, 'is', 'are')} at a time at which {together.earlier} has"
                " other entities."
            )
        text = text or ["No row is at a time at which another split has other entities."]
        pairs = {
            (item.split, item.earlier): (item.rows, item.fraction) for item in report.concurrent
        }
        chart = _matrix(report, pairs, "rows", "at the time of other entities in")
        question = "Do splits share calendar time?"
        figures.append(
            Figure("concurrent", question, "\n".join(text), chart, "plain" if shared else "good")
        )
    return figures


def _horizon_figures(report: LeakReport, max_share: float) -> list[Figure]:
    """Draw how many labels look past the cutoff."""
    if not report.past_cut:
        return []
    past = [float(item.rows) for item in report.past_cut]
    names = [item.split for item in report.past_cut]
    others = []
    for item in report.past_cut:
        others.append(
            item.rows / item.fraction - item.rows if item.fraction else report.rows[item.split]
        )
    text = []
    for item in report.past_cut:
        text.append(
            f"{pluralise(item.rows, 'row')} of {item.split} ({percentage(item.fraction, 1)})"
        )
    answer = f"Labels of {listed(text)} do."
    chart = charts.stacked_bars(names, {"shared": past, "empty": others}, unit="rows", names=_PAST)
    bad = any(item.fraction > max_share for item in report.past_cut)
    if bad:
        tone: Tone = "warning"
    elif any(past):
        tone = "plain"
    else:
        tone = "good"
    return [Figure("horizon", "Do labels look past the cutoff?", answer, chart, tone)]


def _tables(report: LeakReport) -> list[Table]:
    """List examples of the findings in tables that are folded away."""
    folded = []
    pairs = []
    for item in report.shared:
        for pair in item.examples:
            pairs.append([f"{item.earlier} and {item.split}", *pair])
    if pairs:
        folded.append(
            Table(f"examples of the same {report.units}", ["splits", "first", "second"], pairs)
        )
    near = () if report.near is None else report.near.shared
    alike = []
    for near_item in near:
        for first, second, jaccard in near_item.examples:
            splits = f"{near_item.earlier} and {near_item.split}"
            alike.append([splits, first, second, f"{jaccard:.2f}"])
    if alike:
        columns = ["splits", "first", "second", "Jaccard"]
        folded.append(Table(f"examples of near or the same {report.units}", columns, alike))
    if report.overlaps:
        rows = []
        for overlap in sorted(report.overlaps, key=lambda overlap: -overlap.fraction):
            rows.append(
                [
                    f"{Path(overlap.source).name}:{overlap.item}",
                    overlap.split,
                    overlap.location,
                    percentage(overlap.fraction, 1),
                    overlap.text,
                ]
            )
        columns = ["item", "split", "row", "share", "text"]
        folded.append(
            Table(
                f"{pluralise(len(rows), 'place')} in which a row holds a benchmark item",
                columns,
                rows,
            )
        )
    return folded
