"""Packed sequences as a run: tokenise task by task, choose and pack over the whole set, write shard by shard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.dataset.index import IndexRow
from headrace.dataset.manifest import SplitTotals
from headrace.errors import HeadraceError, InputError
from headrace.formats.listing import list_files
from headrace.recipes.packed_sequences import choose as choosing
from headrace.recipes.packed_sequences.assign import SPLITS, Split, assign_files, even_cuts, shard_counts
from headrace.recipes.packed_sequences.blend import Source
from headrace.recipes.packed_sequences.choose import Candidate, Choice, choose
from headrace.recipes.packed_sequences.config import PackedSequences
from headrace.recipes.packed_sequences.encode_shard import (
    NO_SPLIT_KEY,
    NOT_BAD,
    SAMPLED_OUT,
    TOO_LONG,
    TOO_SHORT,
    EncodeTask,
    encode_shard,
    origins_file,
    rejected_file,
    sample_file,
    sample_hashes,
    spool_directory,
)
from headrace.recipes.packed_sequences.encoder import Encoder, encoder_of
from headrace.recipes.packed_sequences.joined import JoinedSpool
from headrace.recipes.packed_sequences.origins import Origins, read_origins
from headrace.recipes.packed_sequences.pack_group import Group, pack_group, read_bins
from headrace.recipes.packed_sequences.packed_parquet import SCHEMA
from headrace.recipes.packed_sequences.rejects import REASONS
from headrace.recipes.packed_sequences.spool import Spool
from headrace.recipes.packed_sequences.tree import (
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
from headrace.recipes.packed_sequences.write_shard import EXTENSIONS, Shard, footer, write_shard
from headrace.run.context import RunContext, Task, TaskFiles
from headrace.run.events import Note
from headrace.run.prepare import Outcome
from headrace.run.receipts import Receipt
from headrace.storage import local

BIN_WITHOUT_LABEL = "bin_without_label"
DROPPED = (*REASONS, NO_SPLIT_KEY, TOO_SHORT, TOO_LONG, SAMPLED_OUT, *choosing.REASONS, BIN_WITHOUT_LABEL)

_TASK_BYTES = 8 << 20


@dataclass(frozen=True)
class Dataset:
    """A source with its files. split: of a blend per split. names: of the files, unique in the run."""

    source: Source
    split: Split | None
    paths: Sequence[Path]
    names: Sequence[str]
    sizes: Sequence[int]


def datasets_of(settings: PackedSequences) -> list[Dataset]:
    """The datasets with a weight above 0 and their files, in the order of the blend."""
    found = []
    for split, sources in settings.blend.groups():
        for source in sources:
            if source.weight == 0:
                continue
            listing = list_files(source.path)
            prefix = source.name if split is None else f"{split}/{source.name}"
            names = [f"{prefix}/{name}" for name in listing.names]
            paths = [listing.path(place) for place in range(len(names))]
            found.append(Dataset(source, split, paths, names, listing.sizes.tolist()))
    return found


def source_files(settings: PackedSequences) -> list[tuple[Path, str]]:
    """The files of all datasets and their names in the run, sorted by name."""
    pairs = [pair for each in datasets_of(settings) for pair in zip(each.paths, each.names, strict=True)]
    return sorted(pairs, key=lambda pair: pair[1])


def encoder_fingerprint(settings: PackedSequences) -> str:
    """A digest of tokenizer, template and what else decides which tokens a row becomes."""
    return encoder_of(settings).fingerprint


def execute(settings: PackedSequences, context: RunContext, files: Sequence[tuple[Path, str]]) -> Outcome:
    """Do the work in the run directory."""
    encoder, datasets = encoder_of(settings), datasets_of(settings)
    tasks = _encode_tasks(settings, context, datasets)
    encoded = context.stage(
        "tokenise", [_encode_task(settings, task, dataset, encoder) for task, dataset in tasks], durable=False
    )
    _refuse_bad(settings, context, encoded)
    owners = [datasets.index(dataset) for _, dataset in tasks]
    origins = [_origins(context, owners, place) for place in range(len(datasets))]
    choice = choose(
        [
            Candidate(each.source.name, each.split, each.source.weight, own)
            for each, own in zip(datasets, origins, strict=True)
        ],
        ratios=settings.ratios,
        keyed=settings.split_key is not None,
        seed=settings.seed,
    )
    groups = _groups(settings, datasets, choice, encoder)
    packed = context.stage(
        "pack", [_pack_task(settings, group, origins, number) for number, group in enumerate(groups)], durable=False
    )
    shards = _shards(settings, groups, packed)
    written = context.stage(
        "materialise", [_write_task(settings, context, shard, groups, owners, encoder) for shard in shards]
    )
    counts = _Counts.of(encoded, choice, groups, packed, shards, written)
    counts.must_add_up(settings)
    _tell(settings, context, choice, counts)
    made = _written(groups, shards, written)
    records = _group_records(groups, packed, shards)
    _publish_tree(settings, context, made, records, len(tasks))
    return Outcome(
        schema=SCHEMA,
        index=_index(made, written, settings),
        splits=_totals(settings, made, written),
        dropped={reason: counts.dropped[reason] for reason in sorted(DROPPED)},
        source={
            "files": len(files),
            "bytes": sum(path.stat().st_size for path, _ in files),
            "rows": counts.rows_read,
            "empty_shards": [],
        },
        directories={split: split_directory(split) for split in settings.asked_splits},
        facts=_facts(settings, encoder, encoded, choice, counts, records),
    )


def _encode_tasks(
    settings: PackedSequences, context: RunContext, datasets: Sequence[Dataset]
) -> list[tuple[EncodeTask, Dataset]]:
    tasks: list[tuple[EncodeTask, Dataset]] = []
    for dataset in datasets:
        shards = settings.num_shards or max(1, -(-sum(dataset.sizes) // _TASK_BYTES))
        below = None
        assigned = [
            EncodeTask(len(tasks) + place, dataset.source.name, dataset.paths, dataset.names, parts)
            for place, parts in enumerate(assign_files(dataset.sizes, dataset.names, shards))
        ]
        tasks += [(task, dataset) for task in assigned]
        del below
    if settings.sample is None:
        return tasks
    context.stage("sample", [_sample_task(settings, task, dataset) for task, dataset in tasks], durable=False)
    sampled = []
    for dataset in datasets:
        own = [task for task, owner in tasks if owner is dataset]
        hashes = np.sort(np.concatenate([np.load(context.run / sample_file(task.number)) for task in own]))
        below = int(hashes[min(settings.sample, len(hashes)) - 1]) if len(hashes) else None
        sampled += [
            (EncodeTask(task.number, task.dataset, task.paths, task.names, task.parts, below), dataset) for task in own
        ]
    return sampled


def _bytes_of(task: EncodeTask, dataset: Dataset) -> int:
    return sum(dataset.sizes[part.file] // part.modulus for part in task.parts)


def _subject(task: EncodeTask) -> str:
    part = task.parts[0]
    more = f" and {len(task.parts) - 1} more" if len(task.parts) > 1 else ""
    share = f" rows {part.remainder} mod {part.modulus}" if part.modulus > 1 else ""
    return f"{task.names[part.file]}{share}{more}"


def _sample_task(settings: PackedSequences, task: EncodeTask, dataset: Dataset) -> Task:
    return Task(_subject(task), _bytes_of(task, dataset), lambda files: sample_hashes(files, settings, task))


def _encode_task(settings: PackedSequences, task: EncodeTask, dataset: Dataset, encoder: Encoder) -> Task:
    encode = encoder.for_source(dataset.source)
    blank = encoder.pad_id if settings.pad_multiple > 1 else None
    return Task(
        _subject(task), _bytes_of(task, dataset), lambda files: encode_shard(files, settings, task, encode, blank)
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
        raise InputError(
            f"{bad:,} of {read:,} rows are bad, more than max_bad_share {settings.max_bad_share:g}: {listed}; all are "
            f"listed in {context.run / 'stage'}/*.rejected.jsonl: correct them, or raise max_bad_share"
        )


def _origins(context: RunContext, owners: Sequence[int], dataset: int) -> Origins:
    own = [number for number, owner in enumerate(owners) if owner == dataset]
    return Origins.joined([read_origins(context.run / origins_file(number)) for number in own])


def _groups(
    settings: PackedSequences, datasets: Sequence[Dataset], choice: Choice, encoder: Encoder
) -> list[Group]:
    """What is packed on its own: every dataset in every split, in the order of splits, then of the blend."""
    shared = settings.model_dump(mode="json", exclude={"blend", "tokenizer", "chat_template", "max_bad_share"})
    groups = []
    for number, split in enumerate(SPLITS):
        for place, dataset in enumerate(datasets):
            sequences = np.flatnonzero(choice.splits[place] == number)
            if not len(sequences):
                continue
            source = dataset.source.model_dump(mode="json", exclude={"path"})
            parts = [dataset.split, source, list(zip(dataset.names, dataset.sizes, strict=True)), shared]
            directory = dataset_directory(dataset.source.name, [*parts, encoder.fingerprint])
            groups.append(Group(place, dataset.source.name, split, directory, sequences))
    return groups


def _pack_task(settings: PackedSequences, group: Group, origins: Sequence[Origins], number: int) -> Task:
    own = origins[group.dataset]
    return Task(
        f"{group.split}/{group.name}",
        8 * len(group.sequences),
        lambda files: pack_group(files, settings, group, own, number),
    )


def _shards(settings: PackedSequences, groups: Sequence[Group], packed: Sequence[Receipt]) -> list[Shard]:
    """The output shards of all groups; those of one directory are numbered through, train first."""
    counts: dict[int, int] = {}
    for directory in dict.fromkeys(group.directory for group in groups):
        own = [number for number, group in enumerate(groups) if group.directory == directory]
        bins = {groups[number].split: packed[number].result["bins"] for number in own}
        tokens = {groups[number].split: packed[number].result["stored_tokens"] for number in own}
        shares = shard_counts(bins, tokens, settings.num_shards)
        counts |= {number: shares[groups[number].split] for number in own}
    shards, used = [], Counter[str]()
    for number, group in enumerate(groups):
        result = packed[number].result
        for start, stop in even_cuts(result["bins"], counts[number]) if counts[number] else []:
            name = f"shard_{used[group.directory]:06d}.{EXTENSIONS[settings.packed_storage]}"
            used[group.directory] += 1
            size = result["stored_tokens"] * 5 * (stop - start) // max(1, result["bins"])
            shards.append(Shard(number, start, stop, f"{group.directory}/{name}", size))
    return shards


def _write_task(
    settings: PackedSequences,
    context: RunContext,
    shard: Shard,
    groups: Sequence[Group],
    owners: Sequence[int],
    encoder: Encoder,
) -> Task:
    group = groups[shard.group]
    numbers = [number for number, owner in enumerate(owners) if owner == group.dataset]

    def work(files: TaskFiles) -> dict[str, Any]:
        spools = JoinedSpool([Spool.open(context.run / spool_directory(number)) for number in numbers])
        bins = read_bins(context.run, shard.group)
        metadata = footer(settings, group, encoder.fingerprint)
        return write_shard(files, settings, shard, bins, spools, encoder.pad_id or 0, metadata)

    return Task(shard.target, shard.input_bytes, work)


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
        groups: Sequence[Group],
        packed: Sequence[Receipt],
        shards: Sequence[Shard],
        written: Sequence[Receipt],
    ) -> _Counts:
        dropped: Counter[str] = Counter()
        lost: dict[str, Counter[str]] = {}
        for receipt in encoded:
            dropped.update(receipt.result["dropped"])
            for reason, loss in receipt.result["lost"].items():
                lost.setdefault(reason, Counter()).update(loss)
        for reason, each in choice.left_out.items():
            dropped[reason] += each.rows
            lost[reason] = Counter(sequences=each.sequences, tokens=each.tokens, labels=each.labels)
        empty = Counter[str]()
        for receipt in packed:
            empty.update(receipt.result["dropped"])
        dropped[BIN_WITHOUT_LABEL] += empty.pop("rows", 0)
        lost[BIN_WITHOUT_LABEL] = empty
        return cls(
            rows_read=sum(receipt.result["rows_read"] for receipt in encoded),
            rows=sum(receipt.result["rows"] for receipt in packed),
            dropped=dropped,
            encoded=_summed(encoded, ("encoded_sequences", "encoded_tokens", "encoded_labels")),
            lost={reason: {name: loss[name] for name in ("sequences", "tokens", "labels")} for reason, loss in lost.items()},
            packed=_summed(packed, ("bins", "sequences", "tokens", "stored_tokens", "labels", "bins_without_label")),
            written=_summed(written, ("bins", "sequences", "stored_tokens", "mask_sum")),
        )

    def must_add_up(self, settings: PackedSequences) -> None:
        """Rows read = rows in splits + rows dropped, tokens encoded = tokens written + tokens lost, and so of labels."""
        facts = [("rows", self.rows_read, self.rows, self.dropped.total())]
        for name in ("tokens", "labels"):
            gone = sum(loss[name] for loss in self.lost.values())
            facts.append((name, self.encoded[f"encoded_{name}"], self.packed[name], gone))
        facts += [(f"written {name}", self.packed[name], self.written[name], 0) for name in ("bins", "sequences", "stored_tokens")]
        if settings.loss_mask_alignment == "shift_left":
            facts.append(("written labels", self.packed["labels"], self.written["mask_sum"], 0))
        for name, before, kept, gone in facts:
            if before != kept + gone:
                raise HeadraceError(
                    f"{name} are not conserved: {before:,} before, {kept:,} kept and {gone:,} left out; this is a fault "
                    f"of headrace, nothing was published: please report it with config.json of the run"
                )


def _summed(receipts: Sequence[Receipt], names: Sequence[str]) -> dict[str, int]:
    return {name: sum(receipt.result[name] for receipt in receipts) for name in names}


def _tell(settings: PackedSequences, context: RunContext, choice: Choice, counts: _Counts) -> None:
    for what, units in choice.units:
        listed = ", ".join(f"{split} {units[split]:,}" for split in settings.asked_splits)
        context.on_event(Note("info", f"{what}: {listed} {'keys' if what == 'keys' else 'rows'}"))
    for split in settings.asked_splits:
        if not any((side == SPLITS.index(split)).any() for side in choice.splits):
            context.on_event(Note("warning", f"{split} is empty: no row is left for it; see the counts of dropped rows"))
    lost = counts.lost.get(TOO_LONG, {})
    if lost.get("tokens"):
        context.on_event(
            Note(
                "warning",
                f"too_long={settings.too_long!r} left out {lost['tokens']:,} tokens, {lost['labels']:,} of them trained",
            )
        )


def _written(groups: Sequence[Group], shards: Sequence[Shard], written: Sequence[Receipt]) -> list[Written]:
    return [
        Written(
            groups[shard.group].split,
            groups[shard.group].name,
            shard.target,
            receipt.result["bins"],
            receipt.result["stored_tokens"],
        )
        for shard, receipt in zip(shards, written, strict=True)
    ]


def _group_records(groups: Sequence[Group], packed: Sequence[Receipt], shards: Sequence[Shard]) -> list[dict[str, Any]]:
    """What the manifest says of every dataset in every split."""
    return [
        {
            "split": group.split,
            "dataset": group.name,
            **{name: value for name, value in receipt.result.items() if name not in ("rows_read", "dropped")},
            "shards": [shard.target for shard in shards if shard.group == number],
        }
        for number, (group, receipt) in enumerate(zip(groups, packed, strict=True))
    ]


def _publish_tree(
    settings: PackedSequences,
    context: RunContext,
    made: Sequence[Written],
    records: Sequence[Mapping[str, Any]],
    tasks: int,
) -> None:
    run = context.run
    write_links(run, [split_directory(split) for split in settings.asked_splits], links_of(made))
    local.write_new(run / BLEND, blend_json(run.name, settings.asked_splits, made))
    local.write_new(run / METADATA, metadata_json(records, settings.pack_size))
    rejected = b"".join((run / rejected_file(number)).read_bytes() for number in range(tasks))
    local.write_new(run / REJECTED, rejected)
    local.sync_directory(run)


def _index(made: Sequence[Written], written: Sequence[Receipt], settings: PackedSequences) -> list[IndexRow]:
    rows = [
        IndexRow(
            split=shard.split,
            shard=shard.path,
            format=EXTENSIONS[settings.packed_storage],
            block=block,
            digest=receipt.files[0].digest,
            source_shard="",
            **facts,
        )
        for shard, receipt in zip(made, written, strict=True)
        for block, facts in enumerate(receipt.result["blocks"])
    ]
    return sorted(rows, key=lambda row: (row.split, row.shard, row.block))


def _totals(
    settings: PackedSequences, made: Sequence[Written], written: Sequence[Receipt]
) -> dict[str, SplitTotals]:
    totals = {}
    for split in settings.asked_splits:
        own = [(shard, receipt) for shard, receipt in zip(made, written, strict=True) if shard.split == split]
        totals[split] = SplitTotals(
            rows=sum(shard.bins for shard, _ in own),
            shards=len(own),
            bytes=sum(record.bytes for _, receipt in own for record in receipt.files),
        )
    return totals


def _facts(
    settings: PackedSequences,
    encoder: Encoder,
    encoded: Sequence[Receipt],
    choice: Choice,
    counts: _Counts,
    records: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    rows = {split: sum(each["rows"] for each in records if each["split"] == split) for split in settings.asked_splits}
    return {
        "source_rows": rows,
        "encoder": {"fingerprint": encoder.fingerprint, "vocabulary": encoder.vocabulary, "pad_id": encoder.pad_id},
        "units": [{"of": what, **units} for what, units in choice.units],
        "encoded": dict(counts.encoded),
        "lost": {reason: dict(loss) for reason, loss in counts.lost.items()},
        "too_long": _summed(encoded, ("truncated", "too_long_dropped", "divided")),
        "packed": dict(counts.packed),
        "groups": list(records),
        "published": {name: name for name in (BLEND, METADATA, REJECTED)},
    }
