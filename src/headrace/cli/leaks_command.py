"""Define the command that looks for data shared between splits or with benchmarks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.output import emit, printer, say, table
from headrace.cli.settings_flags import Json, unless_given, with_groups
from headrace.cli.stream_flags import PlainShards, Source
from headrace.errors import HeadraceError, setting
from headrace.near import LEAST_NEAR
from headrace.printable import printable
from headrace.report.words import many_entities, moment, pluralise, verb

if TYPE_CHECKING:
    from headrace.stream.audit.leaks import LeakReport
    from headrace.stream.audit.near import NearDuplicates

_NAMED = 6  # number of columns named
_SHOWN = 20  # number of overlaps listed; --json has all
_TRIED = {
    "values": "by their values",
    "numbers": "in bins of their numbers",
    "words": "by whole texts, which hardly return, and by their first and last words",
    "unique": "in vain, as each row has its own value",
    "constant": "in vain, as they have one value",
    "nested": "not at all, as they are nested",
    "too many classes": "not at all, as it has too many classes",
}


@dataclass(frozen=True, kw_only=True)
class LeakOptions:
    """Options of `headrace leaks`: what to compare, and the share above which to fail."""

    content: Annotated[
        list[str] | None,
        unless_given(
            help="A column to compare; may be repeated. Default: all but time, entity, label."
        ),
    ] = None
    entity: Annotated[
        str | None, unless_given(help="Column that names the entity; default: the one of the run.")
    ] = None
    label: Annotated[
        str | None, unless_given(help="Column to predict; default: the one of the run.")
    ] = None
    time: Annotated[
        str | None, unless_given(help="Column of the time of a row; default: the one of the run.")
    ] = None
    label_horizon: Annotated[
        str | None,
        unless_given(
            help=(
                "How far past its row a label looks, e.g. 30d; labels that look past the cutoff are"
                " counted."
            )
        ),
    ] = None
    against: Annotated[
        list[Path] | None,
        unless_given(
            help=(
                "A file or directory of benchmark items that the data should not contain; may be"
                " repeated."
            )
        ),
    ] = None
    near: Annotated[
        float | None,
        unless_given(
            min=LEAST_NEAR,
            max=1,
            help=(
                "Also look for near duplicates: rows whose word trigrams have at least this Jaccard"
                " index (for packed rows, sequences by token 5-grams). 0.8 is usual."
            ),
        ),
    ] = None
    ngram: Annotated[
        int,
        typer.Option(
            min=3,
            help="Length in words of the passages that a benchmark item and a row must share.",
        ),
    ] = 13
    max_share: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help=(
                "Largest share allowed before the command fails: of a split's rows that repeat or"
                " nearly repeat an earlier split or whose labels look past the cutoff; of its"
                " entities that have another name there; of a benchmark's items. Shared time and"
                " columns that give the label away do not count."
            ),
        ),
    ] = 0.001


@with_groups
def leaks(
    path: Source, *, options: LeakOptions, shards: PlainShards, as_json: Json = False
) -> None:
    """Look for what splits share: rows of the same content, one entity under several names, a
    column that gives the label away, calendar time; and for benchmark items in the data. Exit 1 if
    more than --max-share of a split or benchmark is found.

    Of packed rows, sequences are compared; of histories, all that an entity has.

    Example:  headrace leaks out --label-horizon 30d

    Example:  headrace leaks out --near 0.8

    Example:  headrace leaks chats.jsonl --against gsm8k_test.jsonl
    """
    from headrace.stream.audit.leaks import find_leaks

    report = find_leaks(
        shards.open(path),
        content=options.content or (),
        entity=options.entity,
        label=options.label,
        time=options.time,
        label_horizon=options.label_horizon,
        against=options.against or (),
        ngram=options.ngram,
        near=options.near,
    )
    if as_json:
        emit(
            {
                "ok": report.worst <= options.max_share,
                "max_share": options.max_share,
                **report.to_dict(),
            }
        )
    else:
        _print(report)
    if report.worst > options.max_share:
        raise HeadraceError(
            f"{report.worst:.2%} of a split or benchmark was found elsewhere, but at most"
            f" {options.max_share:.2%} is allowed",
            path=path,
            remedy=f"prepare the data without it, or raise {setting('max_share')}",
        )


def _print(report: LeakReport) -> None:
    if len(report.content) <= _NAMED:
        columns = ", ".join(report.content)
    else:
        columns = f"{len(report.content)} columns"
    first = [[" = ".join(pair.examples[0]) if pair.examples else ""] for pair in report.shared]
    _print_pairs(f"same {report.units}: {columns}", report, report, ["first"], first)
    _print_compared(report)
    blank = sum(report.blank.values())
    if blank:
        say(
            f"{pluralise(blank, report.unit, report.units)} with no value in these columns: not"
            " compared"
        )
    _print_near(report)
    _print_near_ids(report)
    for column in report.telling:
        right = (
            f"it is right for {column.accuracy:.2%}, the most frequent class for"
            f" {column.most_frequent:.2%}"
        )
        say(f"{printable(column.column)} alone predicts the label: {right}")
    _print_tried(report)
    _print_times(report)
    _print_late(report)
    _print_items(report)


def _print_compared(report: LeakReport) -> None:
    """Say what the comparison of contents left out, rounded and judged by chance."""
    if report.left_out:
        say(
            f"not compared, as no two rows have the same value: {_names(report.left_out)}; name"
            f" columns with {setting('content')} to compare others"
        )
    if report.distinguishing:
        say(
            f"no two rows looked at have the same {_names(report.distinguishing)}, so rows that"
            " differ in it alone are not found"
        )
    if report.constant:
        say(f"one value in the rows looked at: {_names(report.constant)}")
    _print_units(report)
    for pair in report.shared:
        if pair.rounded:
            say(
                f"{pluralise(pair.rounded, 'more row')} of {pair.split}"
                f" {verb(pair.rounded, 'is', 'are')} in {pair.earlier} with rounded numbers, or"
                " with texts in another case or Unicode form"
            )
        if pair.by_chance is not None and pair.rows:
            say(
                f"{pair.split} in {pair.earlier}: chance gives up to {pair.by_chance:.2%}; what is"
                " above that counts"
            )


def _print_units(report: LeakReport) -> None:
    """Say which columns of a copy are in other units, and of which units were not looked at."""
    converted = set()
    units = report.other_units
    if units is not None:
        say(
            f"{pluralise(units.rows, 'row')} of {units.split} {verb(units.rows, 'is', 'are')} in"
            f" {units.earlier} in other units ({units.fraction:.2%})"
        )
        for conversion in units.conversions:
            converted.add(conversion.column)
            say(
                f"{printable(conversion.column)} of {units.split}: that of {units.earlier} ×"
                f" {conversion.scale:.6g} {conversion.offset:+.6g}"
            )
    as_written = [name for name in report.numbers if name not in converted]
    if as_written:
        say(f"compared as written, other units not looked at: {_names(as_written)}")


def _print_tried(report: LeakReport) -> None:
    """Say how each column was tried as one that gives the label away."""
    columns: dict[str, list[str]] = {}
    for tried in report.tried:
        columns.setdefault(tried.how, []).append(tried.column)
    for how, names in columns.items():
        say(f"tried to tell the label, {_TRIED[how]}: {_names(names)}")


def _names(names: Sequence[str]) -> str:
    listed = printable(", ".join(names[:_SHOWN]))
    if len(names) > _SHOWN:
        listed += f" and {len(names) - _SHOWN:,} more"
    return listed


def _print_near(report: LeakReport) -> None:
    near = report.near
    if near is None:
        return
    examples: list[list[str]] = []
    for pair in near.shared:
        example = ["", ""]
        if pair.examples:
            one, other, jaccard = pair.examples[0]
            example = [f"{one} ~ {other}", f"{jaccard:.2f}"]
        examples.append(example)
    title = f"near or same {report.units}, Jaccard {near.threshold:g} or more"
    _print_pairs(title, report, near, ["example", "Jaccard"], examples)
    if near.groups:
        say(f"groups of near {report.units}: {near.groups:,}, the largest of {near.largest:,}")
    if near.not_compared:
        say(f"up to {near.not_compared:,} pairs were not compared: they resemble too many others")


def _print_near_ids(report: LeakReport) -> None:
    """Print names of one entity, by case and form or by a looser rule, and values that entities
    share.
    """
    for split, count in report.same_entities.items():
        if count:
            say(f"{many_entities(count)} of {split} {verb(count, 'is', 'are')} in an earlier split")
    rules = ((report.near_ids, "has", "have"), (report.spellings, "may have", "may have"))
    for ids, has, have in rules:
        if ids is None or not ids.entities:
            continue
        names = printable(
            "; ".join(" / ".join(map(repr, names_of_one)) for names_of_one in ids.examples)
        )
        several = f"{many_entities(ids.entities)} {verb(ids.entities, has, have)} several names"
        say(
            f"{several}, {ids.separate:,} of them in different splits ({ids.fraction:.2%} of a"
            f" split's entities): {names}"
        )
    for link in report.links:
        one, other = link.example
        entities = many_entities(link.entities)
        shares = verb(link.entities, "shares", "share")
        say(
            f"{entities} {shares} the {printable(link.column)} of another entity of an earlier"
            f" split ({link.fraction:.2%} of a split's): {printable(one)} and {printable(other)}"
        )
        if link.hubs:
            say(
                f"{pluralise(link.hubs, 'value')} of {printable(link.column)} of up to"
                f" {link.largest_hub:,} entities link nothing"
            )


def _print_times(report: LeakReport) -> None:
    """Print unreadable times, rows at the same time as others, and labels past the cutoff."""
    for period in report.periods:
        if period.unread:
            say(f"{pluralise(period.unread, 'row')} of {period.split} have an unreadable time")
    same = [pair for pair in report.concurrent if pair.rows]
    if same:
        rows_table = table(
            "other entities at the same time",
            ("split", "as in", "rows", "share", "from", "to"),
            numbers_from=2,
        )
        for one in same:
            span = []
            for time_us in (one.first_us, one.last_us):
                if time_us is not None:
                    span.append(moment(time_us))
            rows_table.add_row(
                one.split, one.earlier, f"{one.rows:,}", f"{one.fraction:.2%}", *span
            )
        printer().print(rows_table)
    for past in report.past_cut:
        say(
            f"labels of {pluralise(past.rows, 'row')} of {past.split} look past the cutoff:"
            f" {past.fraction:.2%}"
        )
    for later in report.later_dates:
        say(
            f"{pluralise(later.rows, 'row')} of {later.split} ({later.fraction:.2%}), before the"
            f" cutoff, {verb(later.rows, 'holds', 'hold')} a later {printable(later.column)}"
        )


def _print_late(report: LeakReport) -> None:
    """Print dates that are not before their row."""
    late: Counter[str] = Counter()
    for value in report.late_values:
        late[value.column] += value.rows
    for column, rows in late.items():
        say(
            f"{pluralise(rows, 'row')} {verb(rows, 'holds', 'hold')} a {printable(column)} that is"
            " not before the row: what it dates may be from later. Preparing with"
            f" {setting('known_at', column)} would refuse them"
        )


def _print_items(report: LeakReport) -> None:
    """Print the items of benchmarks that rows hold."""
    for source, count in report.items.items():
        overlaps = [overlap for overlap in report.overlaps if overlap.source == source]
        items = len({overlap.item for overlap in overlaps})
        complete = len({overlap.item for overlap in overlaps if overlap.fraction == 1})
        say(f"{printable(source)}: {items:,} of {count:,} items found, {complete:,} of them whole")
        if short := report.short_items[source]:
            say(
                f"{printable(source)}: {pluralise(short, 'item')} with fewer than five words:"
                " not looked for"
            )
    if report.overlaps:
        rows_table = table("items in rows", ("item", "split", "row", "share", "text"))
        for overlap in sorted(report.overlaps, key=lambda other: -other.fraction)[:_SHOWN]:
            item = f"{Path(overlap.source).name}:{overlap.item}"
            rows_table.add_row(
                printable(item),
                overlap.split,
                printable(overlap.location),
                f"{overlap.fraction:.0%}",
                printable(overlap.text),
            )
        printer().print(rows_table)
        if len(report.overlaps) > _SHOWN:
            say(f"{len(report.overlaps) - _SHOWN:,} more; --json has all")


def _print_pairs(
    title: str,
    report: LeakReport,
    comparison: LeakReport | NearDuplicates,
    heads: Sequence[str],
    examples: Sequence[Sequence[str]],
) -> None:
    """Print how many rows of each split repeat rows of it, or of earlier splits.

    examples: of each pair of splits.
    """
    rows_table = table(title, ("split", "also in", report.units, "share", *heads), numbers_from=2)
    for split, count in comparison.repeated.items():
        rows_table.add_row(
            split,
            "itself",
            f"{count:,}",
            f"{count / max(1, report.rows[split]):.2%}",
            *[""] * len(heads),
        )
    rows = []
    for pair in comparison.shared:
        rows.append((pair.split, pair.earlier, f"{pair.rows:,}", f"{pair.fraction:.2%}"))
    for row, cells in zip(rows, examples, strict=True):
        rows_table.add_row(*row, *map(printable, cells))
    printer().print(rows_table)
