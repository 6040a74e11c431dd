"""Draw when rows of each split occur, how its classes and numbers are distributed and how large its
entities are.

Reads the columns of the label and of the entity, and a sample of the numeric columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import F64, I64, Bools
from headrace.report import charts, common
from headrace.report.bins import counted, edges_for
from headrace.report.figure import Chart, Figure, Tone
from headrace.report.report_data import ReportData
from headrace.report.words import listed, many_entities, moment, percentage, pluralise, verb
from headrace.split.reasons import Reason

_TIMELINE = "Is the split clean in time?"
_SHARED = "Do splits share content?"
_ENTITIES = "How large are the entities?"
# above either, entities are not counted for a figure
_MOST_ROWS = 3_000_000
_MOST_BYTES = 48 << 20
# rows; labels are counted block by block, so time is the limit and not memory
_MOST_LABELS = 100_000_000
_MOST_CLASSES = 6
# of a split, and of all its columns, in memory at once
_DRIFT_ROWS = 32_768  # the difference found is off by about 0.75 percentage points
_DRIFT_VALUES = 1 << 24
_MOST_DRIFTS = 10
_SMALL_DRIFT = 0.05
_MOST_QUANTILES = 4
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_BEHIND = {  # why rows from the cutoff on are in no split
    Reason.TRAIN_ENTITY_LATE: "belong to entities in train",
    Reason.VAL_ENTITY_LATE: "belong to entities in val",
    Reason.CONTENT_BEFORE_CUTOFF: "have the content of train or val rows",
}


def figures(data: ReportData) -> list[Figure]:
    """Return the figures in the order of the page."""
    if data.manifest.folds:
        return [folds_figure(data)]
    drawn = [timeline_figure(data), common.rows_figure(data), shared_figure(data)]
    drawn += [*label_figures(data), *entity_figures(data), *drift_figures(data)]
    return [figure for figure in drawn if figure is not None]


def timeline_figure(data: ReportData) -> Figure | None:
    """Draw rows by time, from the counts made while the run was prepared."""
    blocks = data.blocks.filter(pc.is_valid(data.blocks["key_min"]))
    blocks = blocks.filter(pc.greater(blocks["rows"], 0))
    cutoff = data.manifest.metadata.get("cutoff_us")
    if not len(blocks) or cutoff is None:
        return None
    is_test = blocks["split"].to_numpy() == "test"
    early = blocks["key_min"].to_numpy() < cutoff
    late = blocks["key_max"].to_numpy() >= cutoff
    crossing = int(np.where(is_test, early, late).sum())
    tested = bool(is_test.any())
    answer = f"{_timeline_answer(data, cutoff, crossing, tested)}\n{_time_spans(data, blocks)}."
    tone: Tone = "warning"
    if tested and not crossing:
        tone = "good"
    return Figure(
        "timeline", _TIMELINE, answer, _timeline_chart(data, cutoff, tested), tone, "full"
    )


def _timeline_answer(data: ReportData, cutoff: int, crossing: int, tested: bool) -> str:
    """Say whether the splits are on their side of the cutoff.

    crossing: number of blocks that are not. tested: whether test has rows.
    """
    if crossing:
        return (
            f"No: {pluralise(crossing, 'block')} span the cutoff {moment(cutoff)}; run"
            " `headrace verify`."
        )
    early = [split for split in data.splits if split != "test"]
    ends = f"{' and '.join(early)} {verb(len(early), 'ends', 'end')} before {moment(cutoff)}"
    if tested:
        return f"Yes: {ends}, test begins there."
    return f"Test is empty: {_why_empty(data)}. {ends}."


def _time_spans(data: ReportData, blocks: pa.Table) -> str:
    """Say from when to when the rows of each split are."""
    spans = []
    for split in data.splits:
        split_blocks = blocks.filter(pc.equal(blocks["split"], split))
        if len(split_blocks):
            first = int(split_blocks["key_min"].to_numpy().min())
            last = int(split_blocks["key_max"].to_numpy().max())
            spans.append(f"{split} from {moment(first)} to {moment(last)}")
    return "; ".join(spans)


def _timeline_chart(data: ReportData, cutoff: int, tested: bool) -> Chart:
    dates = data.manifest.metadata["dates"]
    parts = {split: np.array(dates["rows"][split], np.float64) for split in data.splits}
    bins = np.arange(len(parts["train"]) + 1, dtype=np.float64)
    edges = dates["first_us"] + dates["width_us"] * bins
    late_label = "test"
    if not tested:
        late_label = "test: none"
    return charts.over_time(
        edges,
        parts,
        of="rows",
        texts=list(map(moment, edges)),
        mark=(float(cutoff), "cutoff"),
        shading=("test", late_label),
    )


def _why_empty(data: ReportData) -> str:
    """Say why test is empty, and what to change."""
    late_rows = {reason: data.manifest.dropped.get(reason, 0) for reason in _BEHIND}
    if not any(late_rows.values()):
        return "no row is from the cutoff on; choose an earlier cutoff"
    causes = [f"{count:,} {_BEHIND[reason]}" for reason, count in late_rows.items() if count]
    cure = "val_in_test: keep"
    if late_rows[Reason.TRAIN_ENTITY_LATE]:
        cure = "a smaller train_ratio"
    rows = pluralise(sum(late_rows.values()), "row")
    return f"of {rows} from the cutoff on, {listed(causes)}; choose an earlier cutoff, or {cure}"


def folds_figure(data: ReportData) -> Figure:
    """Draw the rows of each split of each fold, and of the rows in no split of it."""
    manifest = data.manifest
    folds = [manifest.fold(number) for number in range(len(manifest.folds))]
    every = sum(data.rows_in_splits.values())
    rolls = "cutoff_us" in manifest.metadata["folds"][0]
    labels = []
    parts = {split: np.zeros(len(folds)) for split in manifest.folds[0]}
    left = np.full(len(folds), every, np.float64)
    for number, fold in enumerate(folds):
        label = f"fold {number}"
        if rolls:
            label += f", {fold.metadata['split_date'][:10]}"
        labels.append(label)
        for split, rows in parts.items():
            rows[number] = fold.splits[split].rows
            left[number] -= rows[number]
    if left.any():
        parts["dropped"] = left
    tests = parts["test"]
    answer = (
        f"Each of {pluralise(len(folds), 'fold')} tests {tests.min():,.0f} to {tests.max():,.0f} of"
        f" {pluralise(every, 'row')}, {tests.sum():,.0f} in all."
    )
    lost = {reason: rows for reason, rows in manifest.dropped.items() if rows}
    for reason, count in sorted(lost.items(), key=lambda totals: (-totals[1], totals[0])):
        answer += f"\n{pluralise(count, 'row')} dropped: {data.reason_in_words(reason)}."
    names = {name: "left out" if name == "dropped" else name for name in parts}
    chart = charts.stacked_bars(labels, parts, unit="rows", names=names)
    return Figure("folds", "Which rows are in train and test of each fold?", answer, chart)


def shared_figure(data: ReportData) -> Figure | None:
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
    shares = [count / max(1, rows[split]) for split, count in shared.items()]
    chart = charts.bars(list(shared), shares, list(shared), unit="rows", texts=texts)
    return Figure("shared", _SHARED, answer, chart, "warning")


def label_figures(data: ReportData) -> list[Figure]:
    """Draw the share of the most frequent classes in each split, counted in the shards one block at
    a time.

    Nothing is drawn without two classes, or where the shards are too much to read.
    """
    column = data.config.get("label")
    classes = data.manifest.metadata.get("label_map") or {}
    if column is None or len(classes) < 2 or _much_to_read(data, _MOST_LABELS):
        return []
    counts = _class_counts(data, column, len(classes))
    if not counts:
        return []
    names = sorted(classes, key=classes.__getitem__)
    order = np.argsort(-np.sum(list(counts.values()), axis=0), kind="stable")
    unseen = _absent_in_train(counts, order)
    lines = [_most_frequent(column, names, counts)]
    if len(unseen):
        listed_names = listed([names[number] for number in unseen])
        lines.append(f"{listed_names} {verb(len(unseen), 'has', 'have')} no row in train.")
    drawn = order[:_MOST_CLASSES].tolist()
    if len(names) > len(drawn):
        lines.append(f"The {len(drawn)} most frequent are drawn.")
    tone: Tone = "plain"
    if len(unseen):
        tone = "warning"
    chart = _class_chart({number: names[number] for number in drawn}, counts)
    return [Figure("labels", "Are the classes alike in all splits?", " ".join(lines), chart, tone)]


def _class_counts(data: ReportData, column: str, classes: int) -> dict[str, I64]:
    """Count the rows of each class in each split that has any."""
    counts: dict[str, I64] = {}
    for split in data.splits:
        class_rows = np.zeros(classes, np.int64)
        read = data.run.block_reader(split, verify="never")
        for block in range(len(data.run.split_index(split).rows)):
            numbers = read(block, [column])[column].to_numpy()
            class_rows += np.bincount(numbers, minlength=classes)
        if class_rows.any():
            counts[split] = class_rows
    return counts


def _absent_in_train(counts: Mapping[str, I64], order: I64) -> I64:
    """Return the classes that have rows, but none in train, in this order."""
    if "train" not in counts:
        return order[:0]
    absent: Bools = (np.sum(list(counts.values()), axis=0) > 0) & (counts["train"] == 0)
    return order[absent[order]]


def _most_frequent(column: str, names: Sequence[str], counts: Mapping[str, I64]) -> str:
    """Say which class is most frequent, and which share differs most between splits."""
    total = np.sum(list(counts.values()), axis=0)
    most = int(np.argmax(total))
    answer = (
        f"{column} has {pluralise(len(names), 'class', 'classes')}. Most frequent is"
        f" {names[most]} with {percentage(int(total[most]), int(total.sum()))} of all rows."
    )
    if len(counts) == 1:
        return answer
    shares = [class_rows / class_rows.sum() for class_rows in counts.values()]
    widest = int(np.argmax(np.ptp(np.stack(shares), axis=0)))
    fractions = []
    for split, class_rows in counts.items():
        part = percentage(int(class_rows[widest]), int(class_rows.sum()))
        fractions.append(f"{part} of {split}")
    return (
        f"The share of {names[widest]} differs most between splits: {listed(fractions)}. {answer}"
    )


def _class_chart(names: Mapping[int, str], counts: Mapping[str, I64]) -> Chart:
    """Draw these classes. names: by number."""
    labels = []
    shares = []
    splits = []
    texts = []
    for number, name in names.items():
        for split, class_rows in counts.items():
            count = int(class_rows[number])
            rows = int(class_rows.sum())
            labels.append(f"{name} · {split}")
            shares.append(100 * count / rows)
            splits.append(split)
            texts.append(f"{percentage(count, rows)} · {count:,}")
    return charts.bars(labels, shares, splits, unit="of the rows", texts=texts)


def _numeric_features(data: ReportData) -> list[str]:
    """Name the columns of numbers that have no role of their own."""
    roles: set[object] = {"source_shard", "source_row"}
    for role in ("time", "entity", "label"):
        named = data.config.get(role)
        roles |= set(named) if isinstance(named, list) else {named}
    names = []
    for field in data.run.split_index(data.splits[0]).schema:
        numeric = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        if numeric and field.name not in roles:
            names.append(field.name)
    return names


def drift_figures(data: ReportData) -> list[Figure]:  # noqa: PLR0914 - of one picture and its words
    """Draw the numeric columns whose distributions differ most between train and the other splits.

    The difference is the Kolmogorov-Smirnov statistic: the largest difference between the shares of
    rows up to a value. Missing values do not count. Large splits are sampled by blocks that are
    spread evenly over them.
    """
    others = [split for split in data.splits if split != "train"]
    if "train" not in data.splits or not others or _much_to_read(data, _MOST_LABELS):
        return []
    names = _numeric_features(data)
    samples = {}
    if names:
        samples = {split: _sampled(data, split, names) for split in ("train", *others)}
    gaps = []
    for name, split in product(names, others):
        train = samples["train"][name]
        other = samples[split][name]
        if len(train) and len(other):
            gaps.append((_largest_gap(train, other), name, split))
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
    differences, columns, drawn_splits = zip(*drawn, strict=True)
    points = [100 * difference for difference in differences]
    chart = charts.bars(
        [f"{column} · {other}" for _, column, other in drawn],
        points,
        drawn_splits,
        unit="percentage points from train",
        texts=[f"{value:.1f}" for value in points],
    )
    moved = list(dict.fromkeys(columns))[:_MOST_QUANTILES]
    return [
        Figure("drift", "Do columns drift between splits?", answer, chart),
        _quantiles_figure(samples, moved),
    ]


def _quantiles_figure(samples: Mapping[str, Mapping[str, F64]], names: Sequence[str]) -> Figure:
    """Draw quantiles of columns in each split, side by side."""
    rows = []
    medians = []
    for name in names:
        for split, sample in samples.items():
            if len(sample[name]):
                values = np.quantile(sample[name], _QUANTILES).tolist()
                rows.append((name, split, values))
                if name == names[0]:
                    medians.append(f"{values[2]:,.4g} in {split}")
    answer = (
        f"The median of {names[0]} is {listed(medians)}. A bar holds the middle half of the rows,"
        " a line 90 % of them, a mark the median; beside them are the ends of the line and the"
        " median. Each column has a scale of its own."
    )
    return Figure("quantiles", "Which values do the splits hold?", answer, charts.quantiles(rows))


def _sampled(data: ReportData, split: str, names: list[str]) -> dict[str, F64]:
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
    sampled = {}
    for name in names:
        parts = [np.empty(0)]
        for table in tables:
            parts.append(table[name].drop_null().to_numpy().astype(np.float64))
        column = np.concatenate(parts)
        sampled[name] = np.sort(column[np.isfinite(column)])
    return sampled


def _largest_gap(first: F64, second: F64) -> float:
    """Return the largest difference between the empirical distribution functions of two sorted
    samples, 0 to 1.
    """
    at = np.concatenate([first, second])
    shares = [np.searchsorted(sample, at, side="right") / len(sample) for sample in (first, second)]
    return float(np.max(np.abs(shares[0] - shares[1])))


def _much_to_read(data: ReportData, most_rows: int) -> bool:
    """Return True if a column has more rows than that, or lies in large shards that are
    read whole.
    """
    totals = data.manifest.splits.values()
    parquet = set(data.blocks["format"].to_pylist()) <= {"parquet"}
    return sum(split_totals.rows for split_totals in totals) > most_rows or (
        not parquet and sum(split_totals.bytes for split_totals in totals) > _MOST_BYTES
    )


def entity_figures(data: ReportData) -> list[Figure]:
    """Draw how many entities there are and how many rows each has, and state whether one is on both
    sides.
    """
    known = data.manifest.metadata
    if "entity" in known and known["entity"] is None:
        return []
    sizes = _entity_rows(data)
    if sizes is None:
        train = int(known.get("train_entities") or 0)
        val = int(known.get("val_entities") or 0)
        answer = (
            f"{many_entities(train)} are in train and {many_entities(val)} in val. "
            "There are too many rows to count each entity's for a picture."
        )
        return [Figure("entities", _ENTITIES, answer)]
    rows = {split: entities.rows.astype(np.float64) for split, entities in sizes.items()}
    values = np.concatenate(list(rows.values()))
    if not len(values):
        return []
    lines = [
        f"Counted in the shards: no {known.get('entity', 'the entity')} is in both train and test."
    ]
    tone: Tone = "good"
    both = _in_train_and_test(sizes)
    if both:
        tone = "warning"
        lines = [
            f"{many_entities(both)} of {known.get('entity', 'the entity')} both train and test, a"
            " leak: run `headrace verify`."
        ]
    for split, split_rows in rows.items():
        if len(split_rows):
            largest = float(split_rows.max())
            lines.append(
                f"{split}: {many_entities(len(split_rows))}, median"
                f" {pluralise(round(float(np.median(split_rows))), 'row')}, at most {largest:,.0f}"
                f" ({percentage(largest, float(split_rows.sum()))} of {split})."
            )
    edges, grows = edges_for(values)
    parts = {split: counted(split_rows, edges) for split, split_rows in rows.items()}
    chart = charts.histogram(edges, parts, of="entities", title="rows of an entity", grows=grows)
    return [Figure("entities", _ENTITIES, "\n".join(lines), chart, tone)]


@dataclass(frozen=True)
class _Entities:
    """The distinct entities of a split and their rows, int64 [entities]."""

    names: pa.Array
    rows: I64


def _in_train_and_test(sizes: Mapping[str, _Entities]) -> int:
    """Count the entities that both splits have."""
    if "train" not in sizes or "test" not in sizes:
        return 0
    names = sizes["train"].names.drop_null()
    return int(pc.sum(pc.is_in(names, value_set=sizes["test"].names)).as_py() or 0)


def _entity_rows(data: ReportData) -> dict[str, _Entities] | None:
    """Count the rows of each entity of every split in the entity column of the shards; None if that
    is too much to read.
    """
    column = data.manifest.metadata.get("entity")
    if column is None or _much_to_read(data, _MOST_ROWS) or column not in data.run.schema.names:
        return None
    by_split = {}
    # the right type even if a split has no rows
    none = data.run.schema.empty_table().select([column])
    for split in data.splits:
        index = data.run.split_index(split)
        read = data.run.block_reader(split, verify="never")
        tables = [read(block, [column]) for block in range(len(index.rows))]
        entities = pa.concat_tables(tables or [none])[column]
        if pa.types.is_dictionary(entities.type):
            entities = entities.cast(entities.type.value_type)
        counts = entities.value_counts()
        rows = counts.field("counts").to_numpy()
        by_split[split] = _Entities(counts.field("values"), rows)
    return by_split
