"""Packed sequences as a run: tokenise task by task, choose and pack over the whole set, write shard by shard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.dataset.index import IndexRow
from headrace.dataset.manifest import SplitTotals
from headrace.digest import sha256_hex
from headrace.errors import InputError, StoreError
from headrace.packing.assign import SPLITS, even_cuts, shard_counts
from headrace.packing.chats.rejects import CURES
from headrace.packing.choose import Candidate, Choice, choose
from headrace.packing.config import PackedSequences
from headrace.packing.counts import DROPPED, Counts, summed
from headrace.packing.encode_shard import (
    NOT_BAD,
    TOO_LONG,
    origins_file,
    rejected_file,
    spool_directory,
)
from headrace.packing.encoder import Encoder
from headrace.packing.origins import Origins, read_origins
from headrace.packing.pack_group import Group, pack_group, read_bins
from headrace.packing.storage.joined import JoinedSpool
from headrace.packing.storage.packed_parquet import schema_of
from headrace.packing.storage.spool import Spool
from headrace.packing.tasks import Dataset, datasets_of, encode_task, encode_tasks
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
from headrace.packing.write_shard import EXTENSIONS, Shard, footer, write_shard
from headrace.run.context import RunContext, Task, TaskFiles
from headrace.run.events import Note
from headrace.run.prepare import Outcome
from headrace.run.receipts import Receipt
from headrace.storage import local


def execute(settings: PackedSequences, context: RunContext, files: Sequence[tuple[Path, str]]) -> Outcome:
    """Do the work in the run directory."""
    _refuse_occupied(context)
    encoder, datasets = Encoder(settings), datasets_of(settings)
    tasks = encode_tasks(settings, context, datasets)
    encoded = context.stage(
        "tokenise", [encode_task(settings, task, dataset, encoder) for task, dataset in tasks], durable=False
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
    written = context.stage("materialise", [_write_task(settings, shard, groups, owners, encoder) for shard in shards])
    counts = Counts.of(encoded, choice, packed, written)
    counts.must_add_up(settings)
    if not shards:
        left_out = ", ".join(f"{reason} {rows:,}" for reason, rows in sorted(counts.dropped.items()) if rows)
        raise InputError(f"no bin was made of {counts.rows_read:,} rows: {left_out}; correct the data or the settings")
    _tell(settings, context, choice, counts)
    made = _written(groups, shards, written)
    records = _group_records(groups, packed, shards)
    beside = _publish_tree(settings, context, made, records, len(tasks))
    return Outcome(
        schema=schema_of(settings.declared),
        index=_index(made, written, settings),
        splits=_totals(settings, made, written),
        dropped={reason: counts.dropped[reason] for reason in sorted(DROPPED)},
        source={
            "files": len(files),
            "bytes": sum(path.stat().st_size for path, _ in files),
            "rows": counts.rows_read,
            "empty_shards": _empty_shards(datasets, encoded),
        },
        directories={split: split_directory(split) for split in settings.asked_splits},
        facts=_facts(settings, encoder, encoded, choice, counts, records) | {"files": beside},
    )


def _empty_shards(datasets: Sequence[Dataset], encoded: Sequence[Receipt]) -> list[str]:
    holding = {name for receipt in encoded for name in receipt.result["rows_of"]}
    return sorted(name for dataset in datasets for name in dataset.names if name not in holding)


def _refuse_occupied(context: RunContext) -> None:
    """Names that links will need are asked for before the work, not after it."""
    out = context.run.parents[1]
    for name in (BLEND, METADATA, REJECTED):
        if (out / name).exists() and not (out / name).is_symlink():
            raise StoreError(f"{out / name}: is in the way of a link of that name; move it, or choose another --out")


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


def _origins(context: RunContext, owners: Sequence[int], dataset: int) -> Origins:
    own = [number for number, owner in enumerate(owners) if owner == dataset]
    return Origins.joined([read_origins(context.run / origins_file(number)) for number in own])


def _groups(settings: PackedSequences, datasets: Sequence[Dataset], choice: Choice, encoder: Encoder) -> list[Group]:
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
    shard: Shard,
    groups: Sequence[Group],
    owners: Sequence[int],
    encoder: Encoder,
) -> Task:
    group = groups[shard.group]
    numbers = [number for number, owner in enumerate(owners) if owner == group.dataset]

    pad_id, metadata = encoder.pad_id or 0, footer(settings, group, encoder.fingerprint)

    def work(files: TaskFiles) -> dict[str, Any]:
        spools = JoinedSpool([Spool.open(files.run / spool_directory(number)) for number in numbers])
        bins = read_bins(files.run, shard.group)
        return write_shard(files, settings, shard, bins, spools, pad_id, metadata)

    return Task(shard.target, shard.input_bytes, work)


def _tell(settings: PackedSequences, context: RunContext, choice: Choice, counts: Counts) -> None:
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
) -> dict[str, str]:
    """Make links, blend, metadata and the list of rejected rows; the SHA-256 of each file."""
    run = context.run
    write_links(run, [split_directory(split) for split in settings.asked_splits], links_of(made))
    files = {
        BLEND: blend_json(run.name, settings.asked_splits, made),
        METADATA: metadata_json(records, settings.pack_size),
        REJECTED: b"".join((run / rejected_file(number)).read_bytes() for number in range(tasks)),
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


def _facts(
    settings: PackedSequences,
    encoder: Encoder,
    encoded: Sequence[Receipt],
    choice: Choice,
    counts: Counts,
    records: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    rows = {split: sum(each["rows"] for each in records if each["split"] == split) for split in settings.asked_splits}
    return {
        "source_rows": rows,
        "encoder": encoder.facts(),
        "units": [{"of": what, **units} for what, units in choice.units],
        "encoded": dict(counts.encoded),
        "lost": {reason: dict(loss) for reason, loss in counts.lost.items()},
        **summed(encoded, ("special_text_rows",)),
        "too_long": summed(encoded, ("truncated", "too_long_dropped", "divided")),
        "packed": dict(counts.packed),
        "groups": list(records),
        "published": {name: name for name in (BLEND, METADATA, REJECTED)},
    }
