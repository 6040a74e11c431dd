"""Make the figures shared by all recipes: dropped and kept rows, evenness of shards, sizes of blocks. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from headrace.arrays import F64
from headrace.recipe import recipe_of_run
from headrace.report import charts
from headrace.report.bins import byte_edges, counted, edges_for
from headrace.report.facts import RunFacts
from headrace.report.figure import Figure, Table, Tone
from headrace.report.words import listed, many, share, size, verb

_MOST_SHARDS = 60  # more shards are drawn as a histogram instead of one by one
_MOST_BARS = 14
_FEW_BLOCKS = 8  # fewer blocks are too few for a histogram


def figures(facts: RunFacts) -> list[Figure]:
    """Make the figures of a recipe that has none of its own."""
    return [rows_figure(facts), *shards_figures(facts), *blocks_figures(facts)]


def rows_figure(facts: RunFacts) -> Figure:
    """Draw the number of rows of each split and of each reason to drop rows."""
    manifest = facts.manifest
    read = int(manifest.source["rows"])
    kept = facts.rows_in_splits
    dropped = {reason: rows for reason, rows in manifest.dropped.items() if rows}
    by_size = sorted(dropped, key=lambda reason: (-dropped[reason], reason))
    names = [*facts.splits, *by_size[:_MOST_BARS]]
    values = [kept[name] for name in facts.splits] + [dropped[name] for name in by_size[:_MOST_BARS]]
    roles = [*facts.splits, *["dropped"] * len(by_size[:_MOST_BARS])]
    lost = sum(dropped.values())
    empty = [name for name in facts.splits if not kept[name]]
    if lost:
        most = by_size[0]
        answer = (
            f"Of {many(read, 'row')} read {share(sum(kept.values()), read)} are in a split. {many(lost, 'row')} "
            f"{'was' if lost == 1 else 'were'} dropped, {'most of them ' if len(dropped) > 1 else ''}"
            f"for {most}: {facts.reason_in_words(most)}."
        )
    else:
        answer = f"All {many(read, 'row')} read are in a split; none was dropped."
    if empty:
        answer += f" {listed(empty)} {verb(len(empty), 'is', 'are')} empty."
    if sum(kept.values()) + lost != read:
        answer += f" The counts do not add up to the {read:,} rows read: run `headrace verify`."
    tone: Tone = (
        "warning" if empty or lost > read / 2 or sum(kept.values()) + lost != read else "plain" if lost else "good"
    )
    texts = [f"{value:,} · {share(value, read)}" for value in values]
    chart = charts.bars(names, values, roles, unit="rows", texts=texts) if len(names) > 1 else None
    return Figure("rows", "Where did the rows go?", answer, chart, tone)


def shards_figures(facts: RunFacts, unit: str = "rows") -> list[Figure]:
    """Draw a column for each shard, or a histogram of their rows if there are many; nothing if no split has two."""
    shards = facts.shards
    if not len(shards):
        return [Figure("shards", "Are the shards even?", "There are no shards.", None, "warning")]
    if len(shards) == shards["split"].n_unique():
        return []
    lines = []
    for split in facts.splits:
        rows = shards.filter(pl.col("split") == split)["rows"].to_numpy()
        if len(rows) > 1:
            lines.append(
                f"{split}: {many(len(rows), 'shard')} of {rows.min():,} {unit} each."
                if rows.min() == rows.max()
                else f"{split}: {many(len(rows), 'shard')} of {rows.min():,} to {rows.max():,} {unit}, "
                f"median {np.median(rows):,.0f}."
            )
        elif len(rows):
            lines.append(f"{split}: one shard of {rows[0]:,} {unit}.")
    missing, tone = _missing(facts, shards)
    answer = "\n".join([*lines, *missing])
    by_source = bool((shards["source_shard"] != "").all())
    place = pl.col("source_shard" if by_source else "shard")
    if shards.select(place.n_unique()).item() <= _MOST_SHARDS:
        rank = {split: number for number, split in enumerate(facts.splits)}
        keys = ["source_shard"] if by_source else [pl.col("split").replace_strict(rank), "shard"]
        distinct = shards.sort(*keys).select(place.unique(maintain_order=True)).to_series()
        table = {
            (name, split): rows
            for name, split, rows in shards.group_by(place.alias("name"), "split").agg(pl.col("rows").sum()).iter_rows()
        }
        wanted = distinct.to_list()
        parts = {split: [table.get((name, split), 0) for name in wanted] for split in facts.splits}
        labels = _short(wanted)
        chart = charts.columns(labels, parts, unit=unit, title="source shard" if by_source else "shard")
        return [Figure("shards", "Are the shards even?", answer, chart, tone)]
    values = shards["rows"].to_numpy().astype(np.float64)
    edges, grows = edges_for(np.maximum(values, 1))
    sides = _counted_by_split(facts, shards, "rows", edges)
    chart = charts.histogram(edges, sides, of="shards", title=f"{unit} of a shard", grows=grows)
    return [Figure("shards", "Are the shards even?", answer, chart, tone)]


def _missing(facts: RunFacts, shards: pl.DataFrame) -> tuple[list[str], Tone]:
    """List source shards without rows of a split, and warn if only a few lack them, which is odd.

    Nothing is reported if output shards do not follow source shards.
    """
    known = shards.filter(pl.col("source_shard") != "")
    holds = known.group_by("source_shard").agg(
        ((pl.col("split") == split) & (pl.col("rows") > 0)).any().alias(f"holds {split}") for split in facts.splits
    )
    if len(holds) < 2:
        return [], "plain"
    said: list[str] = []
    empty = facts.manifest.source.get("empty_shards", [])
    if empty:
        verb = "had" if len(empty) > 1 else "has"
        said.append(f"{many(len(empty), 'source shard')} {verb} no rows at all: {listed(sorted(empty))}.")
    if recipe_of_run(facts.manifest.recipe).shards == "of one split":
        return said, "warning" if said else "plain"
    odd = bool(said)
    left = [split for split in facts.splits if holds[f"holds {split}"].any() and not holds[f"holds {split}"].all()]
    while left:
        mask = holds[f"holds {left[0]}"]
        alike = [split for split in left if (holds[f"holds {split}"] == mask).all()]
        left = [split for split in left if split not in alike]
        lacking = holds.filter(~mask)["source_shard"]
        few = len(lacking) <= max(3, len(holds) // 20)
        named = f": {listed(lacking.sort().to_list())}" if few else ""
        verb = "has" if len(lacking) == 1 else "have"
        said.append(
            f"{len(lacking):,} of {many(len(holds), 'source shard')} {verb} no {' or '.join(alike)} rows{named}."
        )
        odd = odd or few
    return said, "warning" if odd else "plain"


def blocks_figures(facts: RunFacts) -> list[Figure]:
    """Draw the sizes of blocks, the least that a reader decodes; nothing if there are few and none is large."""
    blocks = facts.blocks.filter(pl.col("rows") > 0)
    question = "How much is read at a time?"
    if blocks.is_empty():
        return [Figure("blocks", question, "There are no blocks.", None, "warning")]
    sizes = np.maximum(blocks["length"].to_numpy(), 1).astype(np.float64)
    rows = blocks["rows"].to_numpy()
    answer = (
        f"{many(len(blocks), 'block')}, each decoded as a whole: median {np.median(rows):,.0f} rows "
        f"and {size(float(np.median(sizes)))}, at most {size(float(sizes.max()))}."
    )
    large = float(sizes.max()) > 256 << 20
    if len(sizes) < _FEW_BLOCKS and not large:
        return []
    if large:
        answer += " Such large blocks take memory on every reader; `headrace rewrite` cuts them smaller."
    edges, grows = byte_edges(sizes)
    known = charts.SPLITS.issuperset(facts.splits)  # a fold's cells have no colours
    parts = _counted_by_split(facts, blocks, "length", edges) if known else {"all": counted(sizes, edges)}
    chart = charts.histogram(
        edges,
        parts,
        of="blocks",
        title="size of a block in the file",
        grows=grows,
        texts=[size(edge) for edge in edges],
    )
    return [Figure("blocks", question, answer, chart, "warning" if large else "plain")]


def _counted_by_split(facts: RunFacts, table: pl.DataFrame, column: str, edges: F64) -> dict[str, F64]:
    """Count the values of a column, each raised to at least 1, in each bin: float64 [bins] for each split."""
    values = {split: table.filter(pl.col("split") == split)[column].to_numpy() for split in facts.splits}
    return {split: counted(np.maximum(each, 1).astype(np.float64), edges) for split, each in values.items()}


def tables(facts: RunFacts) -> list[Table]:
    """Return the columns, the settings, and what made the run, as tables that are folded away."""
    manifest = facts.manifest
    columns = [
        [each["name"], each["type"], "may hold nulls" if each["nullable"] else "no nulls"] for each in manifest.schema
    ]
    made = {
        "run": manifest.run_id,
        "finished": facts.run.finished_at,
        **{f"library {name}": version for name, version in sorted(manifest.libraries.items())},
        "source fingerprint": manifest.source["fingerprint"],
        "source": f"{many(manifest.source['files'], 'file')}, {size(manifest.source['bytes'])}",
        **{name: value for name, value in sorted(manifest.facts.items()) if not isinstance(value, dict | list)},
    }
    return [
        Table(f"{many(len(columns), 'column')}", ["name", "type", "nulls"], columns),
        Table("settings", ["setting", "value"], [[name, _text(value)] for name, value in sorted(facts.config.items())]),
        Table("how it was made", ["", ""], [[name.replace("_", " "), _text(value)] for name, value in made.items()]),
    ]


def tiles(facts: RunFacts) -> list[tuple[str, str]]:
    """Return the figures at the top of the page: rows of each split, and totals dropped, read and written."""
    manifest = facts.manifest
    unit = recipe_of_run(manifest.recipe).row
    found = [(name, many(manifest.splits[name].rows, unit)) for name in facts.splits]
    if manifest.folds:  # its splits are cells, which several folds share
        found = [("folds", f"{len(manifest.folds):,}"), ("in folds", many(sum(facts.rows_in_splits.values()), unit))]
    total = sum(each.bytes for each in manifest.splits.values())
    shards = sum(each.shards for each in manifest.splits.values())
    return [
        *found,
        ("dropped", many(sum(manifest.dropped.values()), "row")),
        ("read", many(manifest.source["rows"], "row")),
        ("written", f"{size(total)} in {many(shards, 'shard')}"),
    ]


def _short(names: Sequence[str]) -> list[str]:
    """Shorten paths to their last parts if those are distinct, or else to the parts in which they differ."""
    suffixes = {name[name.rfind(".") :] if "." in name.rsplit("/", 1)[-1] else "" for name in names}
    common = suffixes.pop() if len(suffixes) == 1 else ""
    parts = [name.removesuffix(common).split("/") for name in names]
    if len({each[-1] for each in parts}) == len(parts):
        return [each[-1] for each in parts]
    depth = min(map(len, parts))
    differing = [place for place in range(-depth, 0) if len({each[place] for each in parts}) > 1]
    for wanted in ([differing[0], differing[-1]], differing) if differing else ():
        short = ["/".join(each[place] for place in wanted) for each in parts]
        if len(set(short)) == len(short):
            return short
    return list(names)


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return "" if value is None else str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return json.dumps(value, ensure_ascii=False, default=str)
