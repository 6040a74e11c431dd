"""Figures of histories: how large entities and rows are, when they lie, what contexts will be made of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from headrace.arrays import F64, I32, I64, Bools
from headrace.errors import CorruptShard
from headrace.histories.contexts.contexts import open_contexts
from headrace.report import charts, common
from headrace.report.bins import counted, edges_for, span_edges, time_edges
from headrace.report.facts import RunFacts
from headrace.report.figure import Figure
from headrace.report.words import many, moment, share, size, span

_MOST_ROWS = 5_000_000
_MOST_CONTEXT_ROWS = 5_000  # small rows are read to know how they share contexts
_SAMPLE = 64


def figures(facts: RunFacts) -> list[Figure]:
    """In the order of the page."""
    rows = _rows(facts)
    return [
        *_timeline_figures(facts, rows),
        common.rows_figure(facts),
        *_size_figures(facts, rows),
        *_context_figures(facts),
        common.shards_figure(facts, "big rows"),
        common.blocks_figure(facts),
    ]


@dataclass(frozen=True)
class _Rows:
    """rows.parquet but for names, [R]; those of an entity stand together. Times in seconds since 1970."""

    path: Path
    splits: list[str]
    split: I32
    part: I32
    measurements: I64
    first_time: I64
    last_time: I64
    bytes: I64

    def of(self, split: str) -> Bools:
        """Which rows are of a split."""
        return np.equal(self.split, self.splits.index(split) if split in self.splits else -1)

    def name(self, row: int) -> str:
        """The entity of a row."""
        with pq.ParquetFile(self.path) as file:
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if row < rows:
                    return str(file.read_row_group(group, columns=["src_id"])["src_id"][row].as_py())
                row -= rows
        raise IndexError(row)


def _rows(facts: RunFacts) -> _Rows | None:
    """None where there are none, or more than pictures need."""
    path = facts.run.root / "rows.parquet"
    if sum(each.rows for each in facts.manifest.splits.values()) > _MOST_ROWS:
        return None
    names = ["split", "part", "n_measurements", "first_time", "last_time", "bytes"]
    try:
        table = pq.read_table(path, columns=names, read_dictionary=["split"])
    except (OSError, ValueError) as error:
        raise CorruptShard(f"{path}: cannot be read ({error}); restore it or prepare the run again") from error
    if not table.num_rows:
        return None
    split = table["split"].unify_dictionaries().combine_chunks()
    return _Rows(
        path, split.dictionary.to_pylist(), split.indices.to_numpy(), *(table[name].to_numpy() for name in names[1:])
    )


def _timeline_figures(facts: RunFacts, rows: _Rows | None) -> list[Figure]:
    if rows is None:
        return []
    begins, ends = (each.astype(np.float64) * 1e6 for each in (rows.first_time, rows.last_time))
    edges = time_edges(float(begins.min()), float(ends.max()))
    parts, lines = {}, []
    for split in facts.splits:
        own = rows.of(split)
        parts[split] = counted(begins[own], edges, rows.measurements[own].astype(np.float64))
        if own.any():
            lines.append(f"{split} from {moment(begins[own].min())} to {moment(ends[own].max())}")
    answer = (
        f"{'; '.join(lines)}. Splits are by entity, so both may cover all times. All measurements of a row are counted "
        "where the first of them is."
    )
    chart = charts.over_time(
        edges, parts, of="measurements of rows that begin then", texts=[moment(edge) for edge in edges]
    )
    return [Figure("timeline", "When are the measurements?", answer, chart, "plain", "full")]


def _size_figures(facts: RunFacts, rows: _Rows | None) -> list[Figure]:
    if rows is None:
        answer = f"There are more than {_MOST_ROWS:,} big rows, too many to read for a picture."
        return [Figure("entities", "How large are the entities?", answer)]
    starts = np.flatnonzero(rows.part == 0)
    sizes = np.add.reduceat(rows.measurements, starts).astype(np.float64)
    several = int(np.count_nonzero(np.diff(starts, append=len(rows.part)) > 1))
    largest = rows.name(int(starts[np.argmax(sizes)]))
    answer = (
        f"{many(len(sizes), 'entity', 'entities')}: {np.median(sizes):,.0f} measurements in the middle, "
        f"{sizes.max():,.0f} at most (of {largest}, {share(float(sizes.max()), float(sizes.sum()))} of all). "
        f"{many(several, 'entity is', 'entities are') if several else 'None is'} cut into several rows."
    )
    long = (rows.last_time - rows.first_time).astype(np.float64)
    long_answer = (
        f"{span(float(np.median(long)))} in the middle, {span(float(long.max()))} at most; "
        f"{many(int((long == 0).sum()), 'row')} of a single moment. A row takes "
        f"{size(float(np.median(rows.bytes)))} in the middle."
    )
    of_rows = {split: rows.of(split) for split in facts.splits}
    of_entities = {split: own[starts] for split, own in of_rows.items()}
    return [
        _spread(
            "entities",
            "How large are the entities?",
            answer,
            sizes,
            of_entities,
            "entities",
            "measurements of an entity",
        ),
        _spread(
            "time-spans",
            "How much time does a row cover?",
            long_answer,
            np.maximum(long, 1.0),
            of_rows,
            "rows",
            "from first to last",
        ),
    ]


def _spread(key: str, question: str, answer: str, values: F64, splits: dict[str, Bools], of: str, title: str) -> Figure:
    edges, grows = span_edges(values) if key == "time-spans" else edges_for(values)
    parts = {name: counted(values[own], edges) for name, own in splits.items()}
    texts = [span(float(edge)) for edge in edges] if key == "time-spans" else None
    return Figure(key, question, answer, charts.histogram(edges, parts, of=of, title=title, grows=grows, texts=texts))


def _context_figures(facts: RunFacts) -> list[Figure]:
    """What the contexts of an epoch will be with the options that are usual."""
    question = "What will training see of it?"
    rows = {split: facts.manifest.splits[split].rows for split in facts.splits if facts.manifest.splits[split].rows}
    if not rows:
        return []
    if max(rows.values()) > _MOST_CONTEXT_ROWS:
        answer = (
            f"There are too many rows to make contexts for a picture; `headrace histories plan {facts.run.root}` does."
        )
        return [Figure("contexts", question, answer)]
    shares: dict[str, list[float]] = {"trained": [], "empty": []}
    per_row, lines = {}, []
    for split in rows:
        contexts = open_contexts(facts.run.root, split, kernel="numpy", verify="never")
        plan = contexts.plan(sample=_SAMPLE)
        per_row[split] = np.diff(contexts.index.ends, prepend=0).astype(np.float64)
        tokens = plan.contexts * contexts.options.context_tokens
        shares["trained"].append((1 - plan.padding) * tokens)
        shares["empty"].append(plan.padding * tokens)
        lines.append(
            f"{split}: {many(plan.contexts, 'context')} of {contexts.options.context_tokens:,} tokens an epoch, "
            f"{share(plan.coverage, 1)} of the measurements seen, {share(plan.padding, 1)} padding"
        )
    answer = f"With the usual options, estimated from {_SAMPLE} contexts: {'; '.join(lines)}."
    names = {"trained": "measurements", "empty": "padding"}
    found = [Figure("contexts", question, answer, charts.stacked_bars(list(rows), shares, unit="tokens", names=names))]
    sampled = {split: each for split, each in per_row.items() if len(each)}
    if sampled:
        every = np.concatenate(list(sampled.values()))
        edges, grows = edges_for(every)
        said = (
            f"{many(len(every), 'row')} larger than a context {'is' if len(every) == 1 else 'are'} sampled: "
            f"{every.mean():,.1f} contexts a row on average, {every.max():,.0f} at most. Smaller rows share contexts."
        )
        parts = {split: counted(each, edges) for split, each in sampled.items()}
        chart = None
        if every.min() < every.max():
            chart = charts.histogram(edges, parts, of="rows", title="contexts of a row in an epoch", grows=grows)
        found.append(Figure("contexts-of-rows", "How many contexts does a large row give?", said, chart))
    return found
