"""Packed sequences as a run: tokenise task by task, choose and pack over the whole set, write shard by shard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from headrace.arrays import I64
from headrace.dataset.index import IndexRow
from headrace.dataset.manifest import SplitTotals
from headrace.digest import sha256_hex
from headrace.errors import HeadraceError, InputError, StoreError
from headrace.packing import choose as choosing
from headrace.packing.blend import SPLITS
from headrace.packing.chats.words import CURES, REASONS
from headrace.packing.choose import Candidate, Choice, choose
from headrace.packing.config import PackedSequences
from headrace.packing.encode import (
    NO_SPLIT_KEY,
    NOT_BAD,
    SAMPLED_OUT,
    TOO_LONG,
    TOO_SHORT,
    Dataset,
    Encoder,
    EncodeTask,
    datasets_of,
    encode_task,
    encode_tasks,
)
from headrace.packing.sequences import Origins, read_origins
from headrace.packing.shards import EXTENSIONS, Group, Shard, even_cuts, pack_group, shard_counts, write_shard
from headrace.packing.storage.packed_parquet import schema_of
from headrace.packing.storage.spool import JoinedSpool, Spool
from headrace.packing.tree import (
    BLEND,
    METADATA,
    REJECTED,
    Written,
    blend_json,
    dataset_directory,
    links_of,
    metadata_json,
    split_directory,
    write_links,
)
from headrace.run.context import RunContext, Task, TaskFiles
from headrace.run.events import Note
from headrace.run.prepare import Outcome
from headrace.run.receipts import Receipt
from headrace.storage import local

_KINDS = ("sequences", "tokens", "labels")
_BIN_WITHOUT_LABEL = "bin_without_label"
_DROPPED = (*REASONS, NO_SPLIT_KEY, TOO_SHORT, TOO_LONG, SAMPLED_OUT, *choosing.REASONS, _BIN_WITHOUT_LABEL)


def execute(settings: PackedSequences, context: RunContext, files: Sequence[tuple[Path, str]]) -> Outcome:
    """Do the work in the run directory."""
    for name in (BLEND, METADATA, REJECTED):  # names that links will need, asked for before the work
        taken = context.run.parents[1] / name
        if taken.exists() and not taken.is_symlink():
            raise StoreError(f"{taken}: is in the way of a link of that name; move it, or choose another --out")
    encoder, datasets = Encoder(settings), datasets_of(settings)
    tasks = encode_tasks(settings, context, datasets)
    encoded = context.stage("tokenise", [encode_task(settings, task, encoder) for task in tasks], durable=False)
    _refuse_bad(settings, context, encoded)
    origins = []
    for owner in range(len(datasets)):
        names = [task.file(".origins.arrow") for task in tasks if task.owner == owner]
        origins.append(Origins.joined([read_origins(context.run / name) for name in names]))
    choice = choose(
        [
            Candidate(each.source.name, each.split, each.source.weight, own)
            for each, own in zip(datasets, origins, strict=True)
        ],
        ratios=settings.ratios,
        keyed=settings.entity is not None,
        seed=settings.seed,
    )
    groups = _groups(settings, datasets, choice, encoder)
    packed = context.stage(
        "pack",
        [
            Task(
                f"{group.split}/{group.name}",
                8 * len(sequences),
                partial(
                    pack_group, settings=settings, group=group, sequences=sequences, origins=origins[group.dataset]
                ),
            )
            for group, sequences in groups.items()
        ],
        durable=False,
    )
    shards = _shards(settings, list(groups), packed)
    written = context.stage("materialise", [_write_task(settings, shard, tasks, encoder) for shard in shards])
    counts = _Counts.of(encoded, choice, packed, written)
    counts.must_add_up(settings)
    if not shards:
        left_out = ", ".join(f"{reason} {rows:,}" for reason, rows in sorted(counts.dropped.items()) if rows)
        raise InputError(f"no bin was made of {counts.rows_read:,} rows: {left_out}; correct the data or the settings")
    _tell(settings, context, choice, counts)
    made = [
        Written(shard.group.split, shard.group.name, shard.target, result["bins"], result["stored_tokens"])
        for shard, result in zip(shards, (receipt.result for receipt in written), strict=True)
    ]
    records = [
        {
            "split": group.split,
            "dataset": group.name,
            **{name: value for name, value in receipt.result.items() if name not in ("rows_read", "dropped")},
            "shards": [shard.target for shard in shards if shard.group == group],
        }
        for group, receipt in zip(groups, packed, strict=True)
    ]
    holding = {name for receipt in encoded for name in receipt.result["rows_of"]}
    return Outcome(
        schema=schema_of(settings.declared),
        index=_index(made, written, settings),
        splits=_totals(settings, made, written),
        dropped={reason: counts.dropped[reason] for reason in sorted(_DROPPED)},
        source={
            "files": len(files),
            "bytes": sum(path.stat().st_size for path, _ in files),
            "rows": counts.rows_read,
            "empty_shards": sorted(name for dataset in datasets for name in dataset.names if name not in holding),
        },
        directories={split: split_directory(split) for split in settings.asked_splits},
        facts={
            "source_rows": {
                split: sum(each["rows"] for each in records if each["split"] == split)
                for split in settings.asked_splits
            },
            "encoder": encoder.facts(),
            "units": [{"of": what, **units} for what, units in choice.units],
            "encoded": dict(counts.encoded),
            "lost": {reason: dict(loss) for reason, loss in counts.lost.items()},
            **_summed(encoded, "special_text_rows"),
            "too_long": _summed(encoded, "truncated", "too_long_dropped", "divided"),
            "packed": dict(counts.packed),
            "groups": records,
            "published": {name: name for name in (BLEND, METADATA, REJECTED)},
            "files": _publish_tree(settings, context, made, records, tasks),
        },
    )


def _refuse_bad(settings: PackedSequences, context: RunContext, encoded: Sequence[Receipt]) -> None:
    """Rows that nobody chose to leave out must be few."""
    read = sum(receipt.result["rows_read"] for receipt in encoded)
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}
    for receipt in encoded:
        for reason, rows in receipt.result["dropped"].items():
            if reason not in NOT_BAD:
                counts[reason] += rows
                first.setdefault(reason, receipt.result["first"][reason])
    bad = counts.total()
    if bad > settings.max_bad_share * read:
        listed = "; ".join(f"{reason} {rows:,}, first {first[reason]}" for reason, rows in sorted(counts.items()))
        most = max(sorted(counts), key=counts.__getitem__)
        raise InputError(
            f"{bad:,} of {read:,} rows are bad, more than max_bad_share {settings.max_bad_share:g}: {listed}; all are "
            f"listed in {context.run / 'stage'}/*.rejected.jsonl: {CURES.get(most, 'correct them')}, or raise "
            "max_bad_share"
        )


def _groups(
    settings: PackedSequences, datasets: Sequence[Dataset], choice: Choice, encoder: Encoder
) -> dict[Group, I64]:
    """What is packed on its own, with its sequences: every dataset in every split, in the order of splits."""
    shared = settings.model_dump(mode="json", exclude={"blend", "tokenizer", "chat_template", "max_bad_share"})
    groups: dict[Group, I64] = {}
    for number, split in enumerate(SPLITS):
        for place, dataset in enumerate(datasets):
            sequences = np.flatnonzero(choice.splits[place] == number)
            if not len(sequences):
                continue
            source = dataset.source.model_dump(mode="json", exclude={"path"})
            parts = [dataset.split, source, list(zip(dataset.names, dataset.sizes, strict=True)), shared]
            directory = dataset_directory(dataset.source.name, [*parts, encoder.fingerprint])
            groups[Group(len(groups), place, dataset.source.name, split, directory)] = sequences
    return groups


def _shards(settings: PackedSequences, groups: Sequence[Group], packed: Sequence[Receipt]) -> list[Shard]:
    """The output shards of all groups; those of one directory are numbered through, train first."""
    counts: dict[int, int] = {}
    for directory in dict.fromkeys(group.directory for group in groups):
        own = [group for group in groups if group.directory == directory]
        bins = {group.split: packed[group.number].result["bins"] for group in own}
        tokens = {group.split: packed[group.number].result["stored_tokens"] for group in own}
        shares = shard_counts(bins, tokens, settings.num_shards)
        counts |= {group.number: shares[group.split] for group in own}
    shards, used = [], Counter[str]()
    for group, receipt in zip(groups, packed, strict=True):
        bins, tokens = receipt.result["bins"], receipt.result["stored_tokens"]
        for start, stop in even_cuts(bins, counts[group.number]):
            name = f"shard_{used[group.directory]:06d}.{EXTENSIONS[settings.packed_storage]}"
            used[group.directory] += 1
            shards.append(
                Shard(group, start, stop, f"{group.directory}/{name}", tokens * 5 * (stop - start) // max(1, bins))
            )
    return shards


def _write_task(settings: PackedSequences, shard: Shard, tasks: Sequence[EncodeTask], encoder: Encoder) -> Task:
    spools = [task.file() for task in tasks if task.owner == shard.group.dataset]
    pad_id, fingerprint = encoder.pad_id or 0, encoder.fingerprint

    def work(files: TaskFiles) -> dict[str, Any]:
        joined = JoinedSpool([Spool.open(files.run / directory) for directory in spools])
        return write_shard(files, settings, shard, joined, pad_id, fingerprint)

    return Task(shard.target, shard.input_bytes, work)


def _tell(settings: PackedSequences, context: RunContext, choice: Choice, counts: _Counts) -> None:
    for what, units in choice.units:
        listed = ", ".join(f"{split} {units[split]:,}" for split in settings.asked_splits)
        context.on_event(Note("info", f"{what}: {listed} {'keys' if what == 'keys' else 'rows'}"))
    for split in settings.asked_splits:
        if not any((side == SPLITS.index(split)).any() for side in choice.splits):
            context.on_event(Note("warning", f"{split} is empty: no row is left for it; see the dropped rows"))
    lost = counts.lost.get(TOO_LONG, {})
    if lost.get("tokens"):
        what = f"{lost['tokens']:,} tokens, {lost['labels']:,} of them trained"
        context.on_event(Note("warning", f"too_long={settings.too_long!r} left out {what}"))


def _publish_tree(
    settings: PackedSequences,
    context: RunContext,
    made: Sequence[Written],
    records: Sequence[Mapping[str, Any]],
    tasks: Sequence[EncodeTask],
) -> dict[str, str]:
    """Make links, blend, metadata and the list of rejected rows; the SHA-256 of each file."""
    run = context.run
    write_links(run, [split_directory(split) for split in settings.asked_splits], links_of(made))
    files = {
        BLEND: blend_json(run.name, settings.asked_splits, made),
        METADATA: metadata_json(records, settings.pack_size),
        REJECTED: b"".join((run / task.file(".rejected.jsonl")).read_bytes() for task in tasks),
    }
    for name, data in files.items():
        local.write_new(run / name, data)
    local.sync_directory(run)
    return {name: sha256_hex(data) for name, data in files.items()}


def _index(made: Sequence[Written], written: Sequence[Receipt], settings: PackedSequences) -> list[IndexRow]:
    rows = [
        IndexRow(
            split=shard.split,
            shard=shard.path,
            format=EXTENSIONS[settings.packed_storage],
            block=block,
            digest=receipt.files[0].digest,
            checksum=receipt.files[0].checksum,
            source_shard="",
            **facts,
        )
        for shard, receipt in zip(made, written, strict=True)
        for block, facts in enumerate(receipt.result["blocks"])
    ]
    return sorted(rows, key=lambda row: (row.split, row.shard, row.block))


def _totals(settings: PackedSequences, made: Sequence[Written], written: Sequence[Receipt]) -> dict[str, SplitTotals]:
    totals: dict[str, SplitTotals] = {}
    for split in settings.asked_splits:
        own = [(shard, receipt) for shard, receipt in zip(made, written, strict=True) if shard.split == split]
        totals[split] = SplitTotals(
            rows=sum(shard.bins for shard, _ in own),
            shards=len(own),
            bytes=sum(record.bytes for _, receipt in own for record in receipt.files),
        )
    return totals


@dataclass(frozen=True)
class _Counts:
    """Rows, tokens and labels of the whole run, each from the stage that saw them."""

    rows_read: int
    rows: int
    dropped: Counter[str]
    encoded: Mapping[str, int]
    lost: Mapping[str, Mapping[str, int]]
    packed: Mapping[str, int]
    written: Mapping[str, int]

    @classmethod
    def of(
        cls,
        encoded: Sequence[Receipt],
        choice: Choice,
        packed: Sequence[Receipt],
        written: Sequence[Receipt],
    ) -> _Counts:
        """Count from the receipts of the stages, and the choice between the first two."""
        dropped: Counter[str] = Counter()
        lost: dict[str, Counter[str]] = {}
        for receipt in encoded:
            dropped.update(receipt.result["dropped"])
            for reason, loss in receipt.result["lost"].items():
                lost.setdefault(reason, Counter()).update(loss)
        for reason, each in choice.left_out.items():
            dropped[reason] += each["rows"]
            lost[reason] = each
        empty = Counter[str]()
        for receipt in packed:
            empty.update(receipt.result["dropped"])
        dropped[_BIN_WITHOUT_LABEL] += empty.pop("rows", 0)
        lost[_BIN_WITHOUT_LABEL] = empty
        return cls(
            rows_read=sum(receipt.result["rows_read"] for receipt in encoded),
            rows=sum(receipt.result["rows"] for receipt in packed),
            dropped=dropped,
            encoded=_summed(encoded, "encoded_sequences", "encoded_tokens", "encoded_labels"),
            lost={reason: {name: loss[name] for name in _KINDS} for reason, loss in lost.items()},
            packed=_summed(packed, "bins", "sequences", "tokens", "stored_tokens", "labels", "bins_without_label"),
            written=_summed(written, "bins", "sequences", "stored_tokens", "mask_sum"),
        )

    def must_add_up(self, settings: PackedSequences) -> None:
        """Check that rows read = in splits + dropped, and tokens and labels encoded = written + lost."""
        facts = [("rows", self.rows_read, self.rows, self.dropped.total())]
        for name in ("tokens", "labels"):
            gone = sum(loss[name] for loss in self.lost.values())
            facts.append((name, self.encoded[f"encoded_{name}"], self.packed[name], gone))
        for name in ("bins", "sequences", "stored_tokens"):
            facts.append((f"written {name}", self.packed[name], self.written[name], 0))
        if settings.loss_mask_alignment == "shift_left":
            facts.append(("written labels", self.packed["labels"], self.written["mask_sum"], 0))
        for name, before, kept, gone in facts:
            if before != kept + gone:
                raise HeadraceError(
                    f"{name} are not conserved: {before:,} before, {kept:,} kept and {gone:,} left out; this is a "
                    f"fault of headrace, nothing was published: please report it with config.json of the run"
                )


def _summed(receipts: Sequence[Receipt], *names: str) -> dict[str, int]:
    return {name: sum(receipt.result[name] for receipt in receipts) for name in names}
