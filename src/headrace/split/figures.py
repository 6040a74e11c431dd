"""Draw when rows of each split occur, how its classes and numbers are distributed and how large its
entities are.

Reads the columns of the label and of the entity, and a sample of the numeric columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.arrays import F64
from headrace.report import charts, common
from headrace.report.bins import counted, edges_for
from headrace.report.figure import Figure, Tone
from headrace.report.run_facts import RunFacts
from headrace.report.words import listed, many_entities, moment, percentage, pluralise, verb
from headrace.split import reasons

_TIMELINE = "Is the split clean in time?"
_SHARED = "Do splits share content?"
# above either, entities are not counted for a figure
_MOST_ROWS = 3_000_000
_MOST_BYTES = 48 << 20
# rows; labels are counted block by block, so time is the limit and not memory
_MOST_LABELS = 100_000_000
_MOST_CLASSES = 6
# of a split, and of all its columns, in memory at once
_DRIFT_ROWS = 131_072
_DRIFT_VALUES = 1 << 24
_MOST_DRIFTS = 10
_SMALL_DRIFT = 0.05
_MOST_QUANTILES = 4
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_BEHIND = {  # why rows from the cutoff on are in no split
    reasons.TRAIN_ENTITY_LATE: "belong to entities that train",
    reasons.VAL_ENTITY_LATE: "belong to entities that validate",
    reasons.CONTENT_BEFORE_CUTOFF: "have the content of train or val rows",
}


def figures(data: RunFacts) -> list[Figure]:
    """Return the figures in the order of the page."""
    if data.manifest.folds:
        return [folds_figure(data)]
    drawn = [timeline_figure(data), common.rows_figure(data), shared_figure(data)]
    drawn += [*label_figures(data), *entity_figures(data), *drift_figures(data)]
    return [figure for figure in drawn if figure is not None]


def timeline_figure(data: RunFacts) -> Figure | None:
    """Draw rows by time, from the counts made while the run was prepared."""
    blocks = data.blocks.filter(pl.col("key_min").is_not_null() & (pl.col("rows") > 0))
    cutoff = data.manifest.metadata.get("cutoff_us")
    if blocks.is_empty() or cutoff is None:
        return None
    before = blocks.filter(pl.col("split") != "test")
    after = blocks.filter(pl.col("split") == "test")
    if before.is_empty():
        late = 0
    else:
        late = int((before["key_max"] >= cutoff).sum())
    early = int((after["key_min"] < cutoff).sum())
    lines = []
    for split in data.splits:
        split_blocks = blocks.filter(pl.col("split") == split)
        if not split_blocks.is_empty():
            first, last = split_blocks.select(pl.col("key_min").min(), pl.col("key_max").max()).row(
                0
            )
            lines.append(f"{split} from {moment(first)} to {moment(last)}")
    if late or early:
        answer = (
            f"No: {pluralise(late + early, 'block')} span the cutoff {moment(cutoff)}; run"
            " `headrace verify`."
        )
    else:
        early_splits = " and ".join(split for split in data.splits if split != "test")
        ends = "ends"
        if " and " in early_splits:
            ends = "end"
        answer = f"Yes: {early_splits} {ends} before {moment(cutoff)}, test begins there."
        if after.is_empty():
            answer = (
                f"Test is empty: {_why_empty(data)}. {early_splits} {ends} before {moment(cutoff)}."
            )
    answer = "\n".join([answer, f"{'; '.join(lines)}."])
    if late or early or after.is_empty():
        tone: Tone = "warning"
    else:
        tone = "good"
    counted_dates = data.manifest.metadata["dates"]
    parts = {split: np.array(counted_dates["rows"][split], np.float64) for split in data.splits}
    edges = counted_dates["first_us"] + counted_dates["width_us"] * np.arange(
        len(parts["train"]) + 1, dtype=np.float64
    )
    texts = [moment(edge) for edge in edges]
    late_label = ("test", "test: none" if after.is_empty() else "test")
    chart = charts.over_time(
        edges, parts, of="rows", texts=texts, mark=(float(cutoff), "cutoff"), shading=late_label
    )
    return Figure("timeline", _TIMELINE, answer, chart, tone, "full")


def _why_empty(data: RunFacts) -> str:
    """Say why no row tests, and what to change."""
    late_rows = {reason: data.manifest.dropped.get(reason, 0) for reason in _BEHIND}
    if not any(late_rows.values()):
        return "no row is from the cutoff on; choose an earlier cutoff"
    causes = [f"{count:,} {_BEHIND[reason]}" for reason, count in late_rows.items() if count]
    cure = "val_in_test: keep"
    if late_rows[reasons.TRAIN_ENTITY_LATE]:
        cure = "a smaller train_ratio"
    rows = pluralise(sum(late_rows.values()), "row")
    return f"of {rows} from the cutoff on, {listed(causes)}; choose an earlier cutoff, or {cure}"


def folds_figure(data: RunFacts) -> Figure:
    """Draw the rows of each split of each fold, and of the rows in no split of it."""
    manifest = data.manifest
    folds = [manifest.fold(number) for number in range(len(manifest.folds))]
    every = sum(data.rows_in_splits.values())
    labels = [f"fold {number}" for number in range(len(folds))]
    if "cutoff_us" in manifest.metadata["folds"][0]:
        labels = [
            f"{label}, {fold.metadata['split_date'][:10]}"
            for label, fold in zip(labels, folds, strict=True)
        ]
    parts = {
        split: np.array([fold.splits[split].rows for fold in folds], np.float64)
        for split in manifest.folds[0]
    }
    left = np.array(
        [every - sum(totals.rows for totals in fold.splits.values()) for fold in folds], np.float64
    )
    if left.any():
        parts["dropped"] = left
    tests = parts["test"]
    answer = (
        f"Each of {pluralise(len(folds), 'fold')} tests {tests.min():,.0f} to {tests.max():,.0f} of"
        f" {pluralise(every, 'row')}, {tests.sum():,.0f} in all."
    )
    lost = {reason: rows for reason, rows in manifest.dropped.items() if rows}
    for reason, rows in sorted(lost.items(), key=lambda totals: (-totals[1], totals[0])):
        answer += f"\n{pluralise(rows, 'row')} dropped: {data.reason_in_words(reason)}."
    names = {name: "left out" if name == "dropped" else name for name in parts}
    chart = charts.stacked_bars(labels, parts, unit="rows", names=names)
    return Figure("folds", "What does each fold train and test?", answer, chart)


def shared_figure(data: RunFacts) -> Figure | None:
    """Draw how many rows have the content of an earlier split, if the run counted them."""
    counts = data.manifest.metadata.get("duplicates")
    if not counts or "in_earlier_split" not in counts:
        return None
    rows = data.rows_in_splits
    shared = {}
    for split in data.splits:
        if split in counts["in_earlier_split"]:
            shared[split] = int(counts["in_earlier_split"][split])
    compared = f"compared by {listed(counts['content'])}"
    if not any(shared.values()):
        return Figure(
            "shared",
            _SHARED,
            f"No row has the content of an earlier split, {compared}.",
            None,
            "good",
        )
    lines = []
    for split, count in shared.items():
        if count:
            lines.append(f"{pluralise(count, 'row')} of {split} ({percentage(count, rows[split])})")
    answer = (
        f"{listed(lines)} have the content of an earlier split, {compared}. `headrace leaks` shows"
        " them."
    )
    texts = [f"{count:,} · {percentage(count, rows[split])}" for split, count in shared.items()]
    chart = charts.bars(list(shared), list(shared.values()), list(shared), unit="rows", texts=texts)
    return Figure("shared", _SHARED, answer, chart, "warning")


def label_figures(data: RunFacts) -> list[Figure]:
    """Draw the share of the most frequent classes in each split, counted in the shards one block at
    a time.

    Nothing is drawn without two classes, or where the shards are too much to read.
    """
    column = data.config.get("label")
    classes = data.manifest.metadata.get("label_map") or {}
    if column is None or len(classes) < 2 or _much_to_read(data, _MOST_LABELS):
        return []
    counts = {split: np.zeros(len(classes), np.int64) for split in data.splits}
    for split, class_rows in counts.items():
        index = data.run.split_index(split)
        read = data.run.block_reader(split, verify="never")
        for block in range(len(index.rows)):
            class_rows += np.bincount(
                read(block, [column])[column].to_numpy(), minlength=len(classes)
            )
    counts = {split: class_rows for split, class_rows in counts.items() if class_rows.any()}
    if not counts:
        return []
    names = sorted(classes, key=classes.__getitem__)
    total = np.sum(list(counts.values()), axis=0)
    order = np.argsort(-total, kind="stable")
    shares = {split: class_rows / class_rows.sum() for split, class_rows in counts.items()}
    every = np.stack(list(shares.values()))
    widest = int(np.argmax(np.ptp(every, axis=0)))
    common_class = int(order[0])
    answer = (
        f"{column} has {pluralise(len(names), 'class', 'classes')}. Most frequent is"
        f" {names[common_class]} with {percentage(int(total[common_class]), int(total.sum()))} of"
        " all rows."
    )
    if len(shares) > 1:
        fractions = [
            f"{percentage(int(class_rows[widest]), int(class_rows.sum()))} of {split}"
            for split, class_rows in counts.items()
        ]
        answer += f" The share of {names[widest]} differs most between splits: {listed(fractions)}."
    train = counts.get("train")
    if train is None:
        unseen = []
    else:
        unseen = [names[number] for number in order if total[number] and not train[number]]
    if unseen:
        answer += f" {listed(unseen)} {verb(len(unseen), 'has', 'have')} no row in train."
    drawn = order[:_MOST_CLASSES].tolist()
    if len(names) > len(drawn):
        answer += f" The {len(drawn)} most frequent are drawn."
    bars = [
        (f"{names[number]} · {split}", int(class_rows[number]), split)
        for number in drawn
        for split, class_rows in counts.items()
    ]
    chart = charts.bars(
        [label for label, _, _ in bars],
        [100 * count / int(counts[split].sum()) for _, count, split in bars],
        [split for _, _, split in bars],
        unit="of the rows",
        texts=[
            f"{percentage(count, int(counts[split].sum()))} · {count:,}" for _, count, split in bars
        ],
    )
    return [
        Figure(
            "labels",
            "Are the classes alike in all splits?",
            answer,
            chart,
            "warning" if unseen else "plain",
        )
    ]


def drift_figures(data: RunFacts) -> list[Figure]:
    """Draw the numeric columns whose distributions differ most between train and the other splits.

    The difference is the Kolmogorov-Smirnov statistic: the largest difference between the shares of
    rows up to a value. Missing values do not count. Large splits are sampled by blocks that are
    spread evenly over them.
    """
    others = [split for split in data.splits if split != "train"]
    if "train" not in data.splits or not others or _much_to_read(data, _MOST_LABELS):
        return []
    roles = {data.config.get(role) for role in ("time", "entity", "label")} | {
        "source_shard",
        "source_row",
    }
    schema = data.run.split_index(data.splits[0]).schema
    numeric = []
    for field in schema:
        if pa.types.is_integer(field.type) or pa.types.is_floating(field.type):
            numeric.append(field.name)
    names = [name for name in numeric if name not in roles]
    samples = {}
    if names:
        samples = {split: _sampled(data, split, names) for split in ("train", *others)}
    gaps = [
        (_largest_gap(samples["train"][name], samples[split][name]), name, split)
        for name, split in product(names, others)
        if samples and len(samples["train"][name]) and len(samples[split][name])
    ]
    if not gaps:
        return []
    drawn = sorted(gaps, key=lambda item: -item[0])[:_MOST_DRIFTS]
    gap, name, split = drawn[0]
    counted_columns = pluralise(len({column for _, column, _ in gaps}), "numeric column")
    answer = (
        f"{name} differs most of {counted_columns}: the shares of rows up to a value differ by up"
        f" to {100 * gap:.1f} percentage points between train and {split}."
    )
    if gap < _SMALL_DRIFT:
        answer = f"Hardly. {answer}"
    if any(data.manifest.splits[sampled].rows > _DRIFT_ROWS for sampled in samples):
        answer += f" Of larger splits, a sample of about {_DRIFT_ROWS:,} rows was counted."
    if len(gaps) > len(drawn):
        answer += f" The {len(drawn)} largest differences are drawn."
    chart = charts.bars(
        [f"{column} · {other}" for _, column, other in drawn],
        [100 * difference for difference, _, _ in drawn],
        [other for _, _, other in drawn],
        unit="percentage points from train",
        texts=[f"{100 * difference:.1f}" for difference, _, _ in drawn],
    )
    moved = list(dict.fromkeys(column for _, column, _ in drawn))[:_MOST_QUANTILES]
    return [
        Figure("drift", "Do columns drift between splits?", answer, chart),
        _quantiles_figure(samples, moved),
    ]


def _quantiles_figure(samples: Mapping[str, Mapping[str, F64]], names: Sequence[str]) -> Figure:
    """Draw quantiles of columns in each split, side by side."""
    rows = [
        (name, split, [float(value) for value in np.quantile(sample[name], _QUANTILES)])
        for name in names
        for split, sample in samples.items()
        if len(sample[name])
    ]
    first = {split: values for name, split, values in rows if name == names[0]}
    medians = listed([f"{values[2]:,.4g} in {split}" for split, values in first.items()])
    answer = (
        f"The median of {names[0]} is {medians}. A bar holds the middle half of the rows, a line 90"
        " % of them, a mark the median; beside them are the ends of the line and the median. Each"
        " column has a scale of its own."
    )
    return Figure("quantiles", "Which values do the splits hold?", answer, charts.quantiles(rows))


def _sampled(data: RunFacts, split: str, names: list[str]) -> dict[str, F64]:
    """Read the sorted values of columns, in evenly spread blocks of a split; missing ones are left
    out.
    """
    index = data.run.split_index(split)
    read = data.run.block_reader(split, verify="never")
    most = min(_DRIFT_ROWS, _DRIFT_VALUES // len(names))
    blocks = np.flatnonzero(index.rows)
    if index.total_rows > most:
        count = max(1, len(blocks) * most // index.total_rows)
        blocks = blocks[np.linspace(0, len(blocks) - 1, count).astype(np.int64)]
    tables = [read(block, names) for block in blocks.tolist()]
    values = {
        name: [table[name].drop_null().to_numpy().astype(np.float64) for table in tables]
        for name in names
    }
    joined = {name: np.concatenate([np.empty(0), *parts]) for name, parts in values.items()}
    return {name: np.sort(column[~np.isnan(column)]) for name, column in joined.items()}


def _largest_gap(first: F64, second: F64) -> float:
    """Return the largest difference between the empirical distribution functions of two sorted
    samples, 0 to 1.
    """
    at = np.concatenate([first, second])
    shares = [np.searchsorted(sample, at, side="right") / len(sample) for sample in (first, second)]
    return float(np.max(np.abs(shares[0] - shares[1])))


def _much_to_read(data: RunFacts, most_rows: int) -> bool:
    """Return True if a column has more rows than that, or lies in large shards that are
    read whole.
    """
    totals = data.manifest.splits.values()
    parquet = data.blocks["format"].is_in(["parquet"]).all()
    return sum(split_totals.rows for split_totals in totals) > most_rows or (
        not parquet and sum(split_totals.bytes for split_totals in totals) > _MOST_BYTES
    )


def entity_figures(data: RunFacts) -> list[Figure]:
    """Draw how many entities there are and how many rows each has, and state whether one is on both
    sides.
    """
    known = data.manifest.metadata
    if "entity" in known and known["entity"] is None:
        return []
    train = int(known.get("train_entities") or 0)
    val = int(known.get("val_entities") or 0)
    question = "How large are the entities?"
    sizes = _entity_rows(data)
    if sizes is None:
        answer = (
            f"{many_entities(train)} train and {many_entities(val)} validate. "
            "There are too many rows to count each entity's for a picture."
        )
        return [Figure("entities", question, answer)]
    parts = {}
    lines = []
    values = np.concatenate(
        [entity_rows["rows"].to_numpy() for entity_rows in sizes.values()]
    ).astype(np.float64)
    if not len(values):
        return []
    edges, grows = edges_for(values)
    for split, table in sizes.items():
        rows = table["rows"].to_numpy().astype(np.float64)
        parts[split] = counted(rows, edges)
        if len(rows):
            lines.append(
                f"{split}: {many_entities(len(rows))} with a median of {np.median(rows):,.0f} rows"
                " and at most"
                f" {rows.max():,.0f} ({percentage(float(rows.max()), float(rows.sum()))} of"
                f" {split})."
            )
    both = 0
    if "train" in sizes and "test" in sizes:
        shared = sizes["train"].join(sizes["test"], on="entity", how="semi")
        both = shared.filter(pl.col("entity").is_not_null()).height
    column = known.get("entity", "the entity")
    if not both:
        leak = f"Counted in the shards: no {column} both trains and tests."
    else:
        leak = (
            f"{many_entities(both)} of {column} both train and test, a leak: run `headrace verify`."
        )
    chart = charts.histogram(edges, parts, of="entities", title="rows of an entity", grows=grows)
    return [
        Figure(
            "entities", question, "\n".join([leak, *lines]), chart, "warning" if both else "good"
        )
    ]


def _entity_rows(data: RunFacts) -> dict[str, pl.DataFrame] | None:
    """Read entity and rows of every split from the entity column of the shards; None if that is too
    much to read.
    """
    column = data.manifest.metadata.get("entity")
    if column is None or _much_to_read(data, _MOST_ROWS) or column not in data.run.schema.names:
        return None
    by_split = {}
    # the right type even if a split has no rows
    none = pl.from_arrow(data.run.schema.empty_table().select([column]))
    assert isinstance(none, pl.DataFrame)
    for split in data.splits:
        index = data.run.split_index(split)
        read = data.run.block_reader(split, verify="never")
        parts = [pl.from_arrow(read(block, [column])) for block in range(len(index.rows))]
        frames = []
        for frame in parts:
            if isinstance(frame, pl.DataFrame):
                frames.append(frame)
        entities = pl.concat(frames or [none])
        by_split[split] = (
            entities.select(pl.col(column).alias("entity"))
            .group_by("entity")
            .agg(pl.len().alias("rows"))
        )
    return by_split
