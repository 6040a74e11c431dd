"""Check the laws of preferences again, from the output alone.

For every shard: prompts and answers have tokens, all inside the vocabulary, and no more than `max_tokens` together. For
every split: its rows, its labels, and the fingerprints of its sequences, which were taken when they were tokenised. So
every prompt is there with its own answers. Across splits: no prompt of one is in another, if the settings ask for that.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.arrays import I32, I64, U64
from headrace.dataset.manifest import in_usual_order
from headrace.dataset.open import FinishedRun
from headrace.dataset.verify import Check
from headrace.engine.local import default_workers, run_tasks
from headrace.packing.preferences.settings import id_columns
from headrace.packing.sequences import sequence_prints
from headrace.packing.verify import files_check, tokenizer_checks
from headrace.storage.places import place_of


@dataclass
class _Seen:
    """Results of a shard. prints: sum of its sequences' fingerprints, by answer. prompts: fingerprints of prompts."""

    rows: int = 0
    labels: int = 0
    prints: list[int] = field(default_factory=lambda: [0, 0])
    prompts: list[U64] = field(default_factory=list)
    problem: str | None = None


def verify_preferences(run: FinishedRun, workers: int | None = None) -> list[Check]:
    """Read every shard once and check it. O(row group) of memory per worker, and 8 bytes per row."""
    config = json.loads((run.root / "config.json").read_bytes())
    most, known = config["max_tokens"], run.manifest.facts["encoder"]["vocabulary"]
    seen: dict[str, list[_Seen]] = {}
    for split in in_usual_order(run.splits):
        shards = run.split_index(split).shards
        looks = [partial(_look_at, run, id_columns(config["kind"]), name, most, known) for name in shards]
        seen[split] = run_tasks(looks, workers or default_workers())
    return [_rows_check(run, seen), _content_check(config, seen), files_check(run), *tokenizer_checks(run)]


def _rows_check(run: FinishedRun, seen: dict[str, list[_Seen]]) -> Check:
    rows = sum(each.rows for shards in seen.values() for each in shards)
    check = partial(Check, "every row once", f"{rows:,} rows have the prompts and answers that were tokenised")
    for group in run.manifest.facts["groups"]:
        shards = seen.get(group["split"], [])
        problem = next((each.problem for each in shards if each.problem is not None), None)
        if problem is not None:
            return check(problem)
        for name in ("rows", "labels"):
            found = sum(getattr(each, name) for each in shards)
            if found != group[name]:
                return check(f"{run.root}: {group['split']} has {found:,} {name}, the manifest says {group[name]:,}")
        for answer, expected in enumerate(group["prints"]):
            total = sum(each.prints[answer] for each in shards) % (1 << 64)
            if f"{group['rows']}:{total:016x}" != expected:
                return check(
                    f"{run.root}: {group['split']} has other prompts or answers than those that were tokenised"
                )
    return check()


def _content_check(config: dict[str, Any], seen: dict[str, list[_Seen]]) -> Check:
    """Compare the prompts of each split with those of the others, token for token."""
    prompts: dict[str, U64] = {}
    for split, shards in seen.items():
        own = [prints for shard in shards for prints in shard.prompts]
        prompts[split] = np.unique(np.concatenate([np.empty(0, np.uint64), *own]))
    again = {
        f"{late} and {early}": len(np.intersect1d(prompts[late], prompts[early], assume_unique=True))
        for early, late in combinations(prompts, 2)
    }
    listed = "; ".join(f"{count:,} prompts are in {where}" for where, count in again.items() if count)
    apart = "no prompt of a split is in another"
    asked = config["duplicates"] or ("group" if config["blend"]["datasets"] else "count")
    if asked in ("group", "drop"):
        return Check("content apart", apart, listed or None)
    return Check("content apart", f"not asked for: {listed or apart}", kind="count")


def _look_at(run: FinishedRun, ids: list[str], name: str, most: int | None, known: int) -> _Seen:
    path, seen = run.root / name, _Seen()
    try:
        with place_of(path).local_copy() as file, pq.ParquetFile(file, page_checksum_verification=True) as shard:
            for group in range(shard.metadata.num_row_groups):
                table = shard.read_row_group(group, columns=ids, use_threads=False)
                problem = _look_at_rows(table, ids, most, known, seen)
                if problem is not None:
                    return _Seen(problem=f"{path}: row group {group}: {problem}")
    except (OSError, KeyError, pa.ArrowException) as error:
        return _Seen(problem=f"{path}: cannot be read ({error})")
    return seen


def _look_at_rows(table: pa.Table, ids: list[str], most: int | None, known: int, seen: _Seen) -> str | None:
    """Add the results of some rows; return what is wrong with them."""
    (prompts, asked), *answers = [_lists(table[name]) for name in ids]
    for values, lengths in ((prompts, asked), *answers):
        if lengths.min(initial=1) < 1:
            return f"row {int(lengths.argmin())} has a list without tokens"
        if len(values) and not 0 <= values.min() <= values.max() < known:
            return f"ids are {values.min()} to {values.max()}, the vocabulary has {known:,}"
    seen.rows += len(table)
    seen.prompts.append(sequence_prints(prompts, None, asked))
    for answer, (values, lengths) in enumerate(answers or [(np.empty(0, np.int32), np.zeros(len(asked), np.int64))]):
        sizes = asked + lengths
        longest = int(sizes.max(initial=0))
        if most is not None and longest > most:
            return f"a prompt and its answer have {longest:,} tokens, max_tokens is {most:,}"
        starts = np.cumsum(sizes) - sizes
        whole, labels = np.empty(int(sizes.sum()), np.int32), np.zeros(int(sizes.sum()), np.uint8)
        at = np.arange(len(whole)) - np.repeat(starts, sizes)
        of_prompt = at < np.repeat(asked, sizes)
        whole[of_prompt], whole[~of_prompt] = prompts, values
        labels[:-1] = ~of_prompt[1:]
        labels[starts + sizes - 1] = 0
        prints = sequence_prints(whole, labels, sizes)
        seen.prints[answer] += int(prints.sum(dtype=np.uint64))
        seen.labels += int(labels.sum())
    return None


def _lists(column: pa.ChunkedArray) -> tuple[I32, I64]:
    lists = column.combine_chunks()
    return lists.flatten().to_numpy(), np.diff(lists.offsets.to_numpy()).astype(np.int64)
