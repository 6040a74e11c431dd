"""Run packed sequences: tokenise task by task, choose and pack over the whole set, write shard by
shard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from headrace.arrays import I64
from headrace.digest import canonical_json, sha256_hex
from headrace.errors import InputError, SettingsError, setting, setting_name
from headrace.near.stages import find_near
from headrace.packing.blend import SPLITS
from headrace.packing.chats.tokenise import ChatEncoder
from headrace.packing.choose import Choice
from headrace.packing.config import PackedSequences
from headrace.packing.encode import TOO_LONG, encode
from headrace.packing.near import of_task
from headrace.packing.shards import (
    EXTENSIONS,
    PUBLISHED,
    BinShard,
    Linked,
    PackGroup,
    PackPool,
    even_cuts,
    pack_group,
    publish_tree,
    shard_counts,
    split_directory,
    write_shard,
)
from headrace.packing.storage.packed_parquet import schema_of
from headrace.packing.tokenised import Tokenised, check_conserved, report_splits, summed, tokenise
from headrace.recipe import recipe_of_run
from headrace.run.context import RunContext, Task, TaskFiles
from headrace.run.prepare import Outcome
from headrace.run.receipts import Receipt
from headrace.run.tally import ShardRecord, tally
from headrace.stream.audit.exclude import exclusion_identity

_KINDS = ("sequences", "tokens", "labels")
_NOT_OF_GROUPS = {
    *(
        "blend",
        "pack_across",
        "tokenizer",
        "chat_template",
        "max_bad_share",
        "max_lost_share",
        "unread",
        "exclude",
        "exclude_ngram",
    ),
}
_BIN_WITHOUT_LABEL = "bin_without_label"
_ENCODED = ("encoded_sequences", "encoded_tokens", "encoded_labels")
_PACKED = ("bins", "sequences", "tokens", "stored_tokens", "labels", "bins_without_label")


@dataclass(frozen=True)
class _PackedRun:
    """What the stages of a run made.

    sequences: of each group, as indices in its pool. packed: a receipt for each group. written: a
    receipt for each shard.
    """

    settings: PackedSequences
    tokenised: Tokenised
    choice: Choice
    sequences: Mapping[PackGroup, I64]
    packed: Sequence[Receipt]
    shards: Sequence[BinShard]
    written: Sequence[Receipt]

    @cached_property
    def dropped(self) -> Counter[str]:
        """The rows that are in no bin, by reason."""
        dropped = self.tokenised.dropped(self.choice)
        dropped[_BIN_WITHOUT_LABEL] += sum(
            receipt.extra["dropped"]["rows"] for receipt in self.packed
        )
        return dropped

    @cached_property
    def lost(self) -> dict[str, dict[str, int]]:
        """The losses of each of `_KINDS`, by reason: each from the stage that dropped them."""
        lost: dict[str, Counter[str]] = {}
        for receipt in self.tokenised.receipts:
            for reason, loss in receipt.extra["lost"].items():
                lost.setdefault(reason, Counter()).update(loss)
        lost |= {reason: Counter(loss) for reason, loss in self.choice.left_out.items()}
        lost[_BIN_WITHOUT_LABEL] = Counter()
        for receipt in self.packed:
            lost[_BIN_WITHOUT_LABEL].update(receipt.extra["dropped"])
        return {reason: {name: loss[name] for name in _KINDS} for reason, loss in lost.items()}

    @property
    def repeated(self) -> dict[str, Mapping[str, int]]:
        """The tokens and labels that bins hold more than once, by reason."""
        return {"repeat": self.choice.repeated}


def execute(
    settings: PackedSequences, context: RunContext, files: Sequence[tuple[Path, str]]
) -> Outcome:
    """Do the work of the run in its directory."""
    encoder = ChatEncoder(settings)
    pad_id = _pad_token(settings, encoder)
    run = _run_stages(settings, context, encoder, pad_id)
    _check_conserved(run)
    if not run.shards:
        left_out = ", ".join(
            f"{reason} {rows:,}" for reason, rows in sorted(run.dropped.items()) if rows
        )
        raise InputError(
            f"no bin was made of {run.tokenised.rows_read:,} rows: {left_out}",
            remedy="correct the data or the settings",
        )
    report_splits(settings, context, run.choice)
    too_long = run.lost.get(TOO_LONG, {})
    if too_long.get("tokens"):
        what = f"{too_long['tokens']:,} tokens, {too_long['labels']:,} of them in the loss"
        context.warn([f"{setting('too_long', settings.too_long)} left out {what}"])
    return _outcome(run, files, pad_id)


def _pad_token(settings: PackedSequences, encoder: ChatEncoder) -> int | None:
    """Return the token to pad with. Raises `SettingsError` if one is needed and not known."""
    pad_id = encoder.eos_id if settings.pad_id is None else settings.pad_id
    if settings.pad_multiple > 1 and pad_id is None:
        raise SettingsError(
            f"{setting_name('pad_multiple')} is {settings.pad_multiple}, and no tokenizer has an"
            f" end token to pad with, nor is {setting_name('pad_id')} given",
            setting="pad_id",
            remedy="give a token to pad with",
        )
    return pad_id


def _run_stages(
    settings: PackedSequences, context: RunContext, encoder: ChatEncoder, pad_id: int | None
) -> _PackedRun:
    """Tokenise, choose, pack and write."""
    blank = pad_id if settings.pad_multiple > 1 else None
    work = partial(encode, settings=settings, encoder=encoder, blank=blank)
    tokenised = tokenise(settings, context, encoder, work, PUBLISHED)
    near = None
    if settings.near is not None:
        parts = [of_task(settings, context.run, task, blank) for task in tokenised.tasks]
        near = find_near(context, parts, settings.near)
    choice = tokenised.choice(least_tokens=settings.least_compared, near=near)
    pools = _pools(settings, tokenised)
    groups = _groups(settings, pools, choice, encoder.fingerprint)
    packing = []
    for group, sequences in groups.items():
        pack_task = partial(
            pack_group, settings=settings, group=group, sequences=sequences, pool=pools[group.pool]
        )
        packing.append(Task(f"{group.split}/{group.name}", 8 * len(sequences), pack_task))
    packed = context.stage("pack", packing, durable=False)
    shards = _shards(settings, list(groups), packed)
    written = _written(settings, tokenised, pools, shards, pad_id or 0)
    return _PackedRun(settings, tokenised, choice, groups, packed, shards, written)


def _pools(settings: PackedSequences, tokenised: Tokenised) -> list[PackPool]:
    """List the sets of datasets whose sequences may share a bin."""
    datasets = tokenised.datasets
    if settings.packs_across:
        return [PackPool("blend", datasets, range(len(datasets)), tokenised.joined_origins)]
    result = []
    for owner, dataset in enumerate(datasets):
        result.append(PackPool(dataset.source.name, [dataset], [owner], tokenised.origins[owner]))
    return result


def _outcome(run: _PackedRun, files: Sequence[tuple[Path, str]], pad_id: int | None) -> Outcome:
    """Publish the links and describe the run for its manifest."""
    settings = run.settings
    tokenised = run.tokenised
    records, links, tallied = _records(run)
    index, totals = tally(tallied, settings.requested_splits)
    repeated = {}
    if any(more["tokens"] for more in run.repeated.values()):
        repeated = {"repeated": run.repeated}
    source_rows = {}
    for split in settings.requested_splits:
        source_rows[split] = sum(record["rows"] for record in records if record["split"] == split)
    reasons = recipe_of_run(settings.recipe_name).reasons
    return Outcome(
        schema=schema_of(settings.parquet["declared"], traced=settings.traced),
        index=index,
        splits=totals,
        dropped={reason: run.dropped[reason] for reason in sorted(reasons)},
        source=tokenised.source_facts(files),
        directories={split: split_directory(split) for split in settings.requested_splits},
        metadata={
            "source_rows": source_rows,
            **tokenised.metadata(run.choice, pad_id),
            "encoded": tokenised.summed(*_ENCODED),
            "lost": run.lost,
            **repeated,
            **tokenised.summed("special_text_rows"),
            "too_long": tokenised.summed("truncated", "too_long_dropped", "divided"),
            "packed": summed(run.packed, *_PACKED),
            "groups": records,
            "published": {name: name for name in PUBLISHED},
            "files": publish_tree(
                tokenised.context.run, settings, links, records, tokenised.rejected()
            ),
        },
    )


def _written(
    settings: PackedSequences,
    tokenised: Tokenised,
    pools: Sequence[PackPool],
    shards: Sequence[BinShard],
    pad_id: int,
) -> list[Receipt]:
    """Write the shards and return their receipts."""
    tasks_of = []
    for pool in pools:
        tasks_of.append([task for task in tokenised.tasks if task.owner in pool.owners])
    sources_of = [pool.files for pool in pools]
    encoder = tokenised.encoder.fingerprint

    def write(shard: BinShard, files: TaskFiles) -> dict[str, Any]:
        tasks = tasks_of[shard.group.pool]
        sources = sources_of[shard.group.pool]
        return write_shard(
            files, settings, shard, tasks=tasks, sources=sources, pad_id=pad_id, encoder=encoder
        )

    return tokenised.context.stage(
        "materialise",
        [Task(shard.target, shard.input_bytes, partial(write, shard)) for shard in shards],
    )


def _records(
    run: _PackedRun,
) -> tuple[list[dict[str, Any]], list[Linked], list[ShardRecord]]:
    """Return the manifest's record of each group, and the link and record of each shard."""
    records: list[dict[str, Any]] = []
    for group, receipt in zip(run.sequences, run.packed, strict=True):
        record = {"split": group.split, "dataset": group.name, **receipt.extra}
        del record["dropped"]
        record["shards"] = [shard.target for shard in run.shards if shard.group == group]
        records.append(record)
    links = []
    tallied = []
    word = EXTENSIONS[run.settings.packed_storage]
    for shard, receipt in zip(run.shards, run.written, strict=True):
        split = shard.group.split
        result = receipt.extra
        links.append(Linked(split, shard.group.name, shard.target, result["stored_tokens"]))
        tallied.append(ShardRecord(split, receipt.files[0], result["blocks"], word))
    return records, links, tallied


def _check_conserved(run: _PackedRun) -> None:
    """Raise `HeadraceError` unless rows, tokens and labels that were read are in bins or counted as
    left out.
    """
    counts = run.tokenised.summed(*_ENCODED)
    packed = summed(run.packed, "rows", *_PACKED)
    written = summed(run.written, "bins", "sequences", "stored_tokens", "mask_sum")
    conserved = [("rows", run.tokenised.rows_read, packed["rows"], run.dropped.total())]
    for name in ("tokens", "labels"):
        before = counts[f"encoded_{name}"] + sum(more[name] for more in run.repeated.values())
        left_out = sum(loss[name] for loss in run.lost.values())
        conserved.append((name, before, packed[name], left_out))
    for name in ("bins", "sequences", "stored_tokens"):
        conserved.append((f"written {name}", packed[name], written[name], 0))
    if run.settings.loss_mask_alignment == "shift_left":
        conserved.append(("written labels", packed["labels"], written["mask_sum"], 0))
    check_conserved(conserved)


def _groups(
    settings: PackedSequences, pools: Sequence[PackPool], choice: Choice, fingerprint: str
) -> dict[PackGroup, I64]:
    """List the groups with their sequences: every pool in every split is packed separately, in the
    order of splits.
    """
    shared = settings.model_dump(mode="json", exclude=_NOT_OF_GROUPS) | exclusion_identity(settings)
    groups: dict[PackGroup, I64] = {}
    for number, split in enumerate(SPLITS):
        for pool_number, pool in enumerate(pools):
            side = np.concatenate([choice.splits[owner] for owner in pool.owners])
            copies = np.concatenate([choice.copies[owner] for owner in pool.owners])
            here = np.flatnonzero(side == number)
            sequences = np.concatenate(
                [here[copies[here] > turn] for turn in range(int(copies[here].max(initial=1)))]
            )
            if not len(sequences):
                continue
            parts: list[Any] = []
            for dataset in pool.datasets:
                source = dataset.source.model_dump(mode="json", exclude={"path"})
                files = list(zip(dataset.names, dataset.sizes, strict=True))
                parts += [dataset.source.name, dataset.split, source, files]
            digest = sha256_hex(canonical_json([*parts, shared, fingerprint]))
            directory = f"datasets/{pool.name}/{digest[:16]}"
            group = PackGroup(len(groups), pool_number, pool.name, split, directory)
            groups[group] = sequences
    return groups


def _shards(
    settings: PackedSequences, groups: Sequence[PackGroup], packed: Sequence[Receipt]
) -> list[BinShard]:
    """List the output shards of all groups; numbers run through each directory, train first."""
    counts: dict[int, int] = {}
    for directory in dict.fromkeys(group.directory for group in groups):
        in_directory = [group for group in groups if group.directory == directory]
        bins = {group.split: packed[group.number].extra["bins"] for group in in_directory}
        tokens = {
            group.split: packed[group.number].extra["stored_tokens"] for group in in_directory
        }
        shares = shard_counts(bins, tokens, settings.num_shards)
        counts |= {group.number: shares[group.split] for group in in_directory}
    shards = []
    used = Counter[str]()
    for group, receipt in zip(groups, packed, strict=True):
        bins = receipt.extra["bins"]
        tokens = receipt.extra["stored_tokens"]
        for start, stop in even_cuts(bins, counts[group.number]):
            name = f"shard_{used[group.directory]:06d}.{EXTENSIONS[settings.packed_storage]}"
            used[group.directory] += 1
            shards.append(
                BinShard(
                    group,
                    start,
                    stop,
                    f"{group.directory}/{name}",
                    tokens * 5 * (stop - start) // max(1, bins),
                )
            )
    return shards
