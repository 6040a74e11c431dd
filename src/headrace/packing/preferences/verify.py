"""Check the laws of preferences and prompts again from the output alone.

Prompts and answers have tokens, all inside the vocabulary, and no more than `max_tokens` together.
For every split: its rows, its labels, and the fingerprints of its sequences, which were taken when
they were tokenised. So every prompt is there with its own answers. Across splits: no prompt of one
is in another, if the settings ask for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.arrays import U64
from headrace.bins.rows import shift_left
from headrace.dataset.manifest import CONFIG, MANIFEST, in_usual_order, read_config
from headrace.dataset.open import FinishedRun
from headrace.dataset.verify import Check
from headrace.engine.local import default_workers, run_tasks
from headrace.gate.json import interpreting
from headrace.packing.preferences.settings import id_columns
from headrace.packing.sequences import sequence_prints
from headrace.packing.verify import (
    SeenStops,
    check_content,
    check_files,
    check_stops,
    check_tokenizer,
)
from headrace.storage.places import place_of


@dataclass(frozen=True, slots=True)
class _Limits:
    """What rows must keep to. ids: columns of tokens, the prompt's first. most: tokens of a prompt
    and an answer. known: size of the vocabulary. stops: ids that end an answer.
    """

    ids: list[str]
    most: int | None
    known: int
    stops: Sequence[int]


@dataclass
class _SeenRows(SeenStops):
    """Results of a shard.

    prints: sum of its sequences' fingerprints, by answer. prompts: fingerprints of prompts.
    """

    rows: int = 0
    labels: int = 0
    prints: list[int] = field(default_factory=lambda: [0, 0])
    prompts: list[U64] = field(default_factory=list)
    problem: str | None = None


def verify_preferences(run: FinishedRun, workers: int | None = None) -> list[Check]:
    """Read every shard once and check it.

    O(row group) of memory per worker, and 8 bytes per row.
    """
    config = read_config(run.root, run.manifest)
    with interpreting(run.root / CONFIG):
        most = config["max_tokens"]
        columns = id_columns(config["kind"])
        duplicates = config["duplicates"] or ("group" if config["blend"]["datasets"] else "count")
        if not isinstance(most, int | None):
            raise TypeError(f"max_tokens is {most!r}")
    with interpreting(run.root / MANIFEST):
        known = int(run.manifest.metadata["encoder"]["vocabulary"])
        templates = run.manifest.metadata.get("templates")
        stops = [int(stop) for stop in templates["stop_ids"]] if templates else []
    limits = _Limits(columns, most, known, stops)
    seen: dict[str, list[_SeenRows]] = {}
    for split in in_usual_order(run.splits):
        shards = run.split_index(split).shards
        looks = [partial(_look_at_shard, run, limits, name) for name in shards]
        seen[split] = run_tasks(looks, workers or default_workers())
    stop_checks = list[Check]()
    if config["kind"] != "prompts":
        stop_checks = check_stops(run, [shard for shards in seen.values() for shard in shards])
    prompts = {
        split: [prints for shard in shards for prints in shard.prompts]
        for split, shards in seen.items()
    }
    return [
        _rows_check(run, seen),
        *stop_checks,
        check_content(prompts, "prompts", "no prompt of a split is in another", duplicates),
        check_files(run),
        *check_tokenizer(run),
    ]


def _rows_check(run: FinishedRun, seen: dict[str, list[_SeenRows]]) -> Check:
    rows = sum(shard.rows for shards in seen.values() for shard in shards)
    check = partial(
        Check, "every row once", f"{rows:,} rows have the prompts and answers that were tokenised"
    )
    for group in run.manifest.metadata["groups"]:
        shards = seen.get(group["split"], [])
        problem = next((shard.problem for shard in shards if shard.problem is not None), None)
        if problem is not None:
            return check(problem)
        for name in ("rows", "labels"):
            counted = sum(getattr(shard, name) for shard in shards)
            if counted != group[name]:
                return check(
                    f"{run.root}: {group['split']} has {counted:,} {name}, the manifest says"
                    f" {group[name]:,}"
                )
        for answer, expected in enumerate(group["prints"]):
            total = sum(shard.prints[answer] for shard in shards) % (1 << 64)
            if f"{group['rows']}:{total:016x}" != expected:
                return check(
                    f"{run.root}: {group['split']} has other prompts or answers than those that"
                    " were tokenised"
                )
    return check()


def _look_at_shard(run: FinishedRun, limits: _Limits, name: str) -> _SeenRows:
    path = run.root / name
    seen = _SeenRows()
    try:
        with (
            place_of(path).local_copy() as file,
            pq.ParquetFile(file, page_checksum_verification=True) as shard,
        ):
            for group in range(shard.metadata.num_row_groups):
                table = shard.read_row_group(group, columns=limits.ids, use_threads=False)
                where = f"{path}: row group {group}"
                problem = _look_at_rows(table, limits, seen, where)
                if problem is not None:
                    return _SeenRows(problem=f"{where}: {problem}")
    except (OSError, KeyError, pa.ArrowException) as error:
        return _SeenRows(problem=f"{path}: cannot be read ({error})")
    return seen


def _look_at_rows(table: pa.Table, limits: _Limits, seen: _SeenRows, where: str) -> str | None:
    """Add the results of some rows; return what is wrong with them."""
    lists = [table[name].combine_chunks() for name in limits.ids]
    (prompts, prompt_lengths), *answers = [
        (column.flatten().to_numpy(), np.diff(column.offsets).astype(np.int64)) for column in lists
    ]
    for values, lengths in ((prompts, prompt_lengths), *answers):
        if lengths.min(initial=1) < 1:
            return f"row {int(lengths.argmin())} has a list without tokens"
        if len(values) and not 0 <= values.min() <= values.max() < limits.known:
            return f"ids are {values.min()} to {values.max()}, the vocabulary has {limits.known:,}"
    seen.rows += len(table)
    seen.prompts.append(sequence_prints(prompts, None, prompt_lengths))
    for name, (values, lengths) in zip(limits.ids[1:], answers, strict=True):
        seen.add(
            values[np.cumsum(lengths) - 1],
            limits.stops,
            partial("{}: {} of row {}".format, where, name),
        )
    for answer, (values, lengths) in enumerate(
        answers or [(np.empty(0, np.int32), np.zeros(len(prompt_lengths), np.int64))]
    ):
        sizes = prompt_lengths + lengths
        longest = int(sizes.max(initial=0))
        if limits.most is not None and longest > limits.most:
            return f"a prompt and its answer have {longest:,} tokens, max_tokens is {limits.most:,}"
        ends = np.cumsum(sizes)
        of_prompt = np.arange(sizes.sum()) < np.repeat(ends - sizes + prompt_lengths, sizes)
        joined = np.empty(len(of_prompt), np.int32)
        joined[of_prompt], joined[~of_prompt] = prompts, values
        labels = shift_left((~of_prompt).astype(np.uint8), ends)
        prints = sequence_prints(joined, labels, sizes)
        seen.prints[answer] += int(prints.sum(dtype=np.uint64))
        seen.labels += int(labels.sum())
    return None
