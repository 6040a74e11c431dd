"""Packed sequences as a run: tokenise task by task, choose and pack over the whole set, write shard by shard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from headrace.arrays import I64
from headrace.digest import canonical_json, sha256_hex
from headrace.errors import HeadraceError, InputError, SettingsError, StoreError
from headrace.machine import library_version
from headrace.packing.blend import SPLITS, Dataset
from headrace.packing.chat_recipe import ChatRecipe
from headrace.packing.chats.hub import record_of
from headrace.packing.chats.tokenise import ChatEncoder
from headrace.packing.chats.words import CURES
from headrace.packing.choose import Choice, choose
from headrace.packing.config import PackedSequences
from headrace.packing.encode import NOT_BAD, TOO_LONG, EncodeTask, encode, encode_tasks
from headrace.packing.near import of_task
from headrace.packing.registration import REGISTRATION
from headrace.packing.sequences import Origins
from headrace.packing.shards import (
    EXTENSIONS,
    PUBLISHED,
    Group,
    Linked,
    Pool,
    Shard,
    even_cuts,
    pack_group,
    publish_tree,
    shard_counts,
    split_directory,
    write_shard,
)
from headrace.packing.storage.packed_parquet import schema_of
from headrace.packing.storage.spool import JoinedSpool, Spool
from headrace.run.context import RunContext, Task, TaskFiles, read_arrow
from headrace.run.events import Note
from headrace.run.near import find_near
from headrace.run.prepare import Outcome
from headrace.run.receipts import Receipt
from headrace.run.tally import ShardRecord, tally
from headrace.stream.audit.exclude import exclusion_identity, read_excluded

_SEEN_SHARE, _LARGE_UNIT = 0.001, 0.01  # of all rows, above which a note is a warning
_KINDS = ("sequences", "tokens", "labels")
_NOT_OF_GROUPS = {"blend", "pack_across", "tokenizer", "chat_template", "max_bad_share", "exclude", "exclude_ngram"}
_BIN_WITHOUT_LABEL = "bin_without_label"
_ENCODED = ("encoded_sequences", "encoded_tokens", "encoded_labels")
_PACKED = ("bins", "sequences", "tokens", "stored_tokens", "labels", "bins_without_label")


def execute(settings: PackedSequences, context: RunContext, files: Sequence[tuple[Path, str]]) -> Outcome:
    """Do the work in the run directory."""
    run = context.run
    for name in PUBLISHED:  # names that links will need, asked for before the work
        taken = run.parents[1] / name
        if taken.exists() and not taken.is_symlink():
            raise StoreError(f"{taken}: is in the way of a link of that name; move it, or choose another --out")
    encoder, datasets = ChatEncoder(settings), settings.blend.find_files()
    pad_id, fingerprint = encoder.eos_id if settings.pad_id is None else settings.pad_id, encoder.fingerprint
    if settings.pad_multiple > 1 and pad_id is None:
        raise SettingsError(
            f"pad_multiple is {settings.pad_multiple}, and no tokenizer names an end token to pad with; give pad_id="
        )
    tasks = encode_tasks(settings, context, datasets)
    benchmarks = read_excluded(settings.exclude, settings.exclude_ngram)
    blank = pad_id if settings.pad_multiple > 1 else None
    work = partial(encode, settings=settings, encoder=encoder, blank=blank, benchmarks=benchmarks)
    encoded = context.stage("tokenise", [task.task(work) for task in tasks], durable=False)
    refuse_bad(settings, context, encoded)
    origins, choice = _choose(settings, context, datasets, tasks, blank)
    pools = [Pool(each.source.name, [each], [owner], origins[owner]) for owner, each in enumerate(datasets)]
    if settings.packs_across:
        joined = Origins.joined(origins, [len(each.names) for each in datasets])
        pools = [Pool("blend", datasets, range(len(datasets)), joined)]
    groups = _groups(settings, pools, choice, fingerprint)
    packing = []
    for group, sequences in groups.items():
        own = partial(pack_group, settings=settings, group=group, sequences=sequences, pool=pools[group.pool])
        packing.append(Task(f"{group.split}/{group.name}", 8 * len(sequences), own))
    packed = context.stage("pack", packing, durable=False)
    shards = _shards(settings, list(groups), packed)
    owners, sources = [each.owners for each in pools], [each.files for each in pools]

    def write(shard: Shard, files: TaskFiles) -> dict[str, Any]:
        spools = [Spool.open(files.run / task.file()) for task in tasks if task.owner in owners[shard.group.pool]]
        names = sources[shard.group.pool]
        return write_shard(files, settings, shard, JoinedSpool(spools), pad_id or 0, fingerprint, names)

    written = context.stage(
        "materialise", [Task(shard.target, shard.input_bytes, partial(write, shard)) for shard in shards]
    )
    dropped, lost = _left_out(encoded, choice, packed)
    repeated: dict[str, Mapping[str, int]] = {"repeat": choice.repeated}
    repeated[TOO_LONG] = {"tokens": _summed(encoded, "repeated_tokens")["repeated_tokens"], "labels": 0}
    _check_conserved(settings, encoded, packed, written, dropped, lost, repeated)
    rows_read = sum(receipt.result["rows_read"] for receipt in encoded)
    if not shards:
        left_out = ", ".join(f"{reason} {rows:,}" for reason, rows in sorted(dropped.items()) if rows)
        raise InputError(f"no bin was made of {rows_read:,} rows: {left_out}; correct the data or the settings")
    tell_splits(settings, context, choice)
    too_long = lost.get(TOO_LONG, {})
    if too_long.get("tokens"):
        what = f"{too_long['tokens']:,} tokens, {too_long['labels']:,} of them trained"
        context.warn([f"too_long={settings.too_long!r} left out {what}"])

    records = [
        {
            "split": group.split,
            "dataset": group.name,
            **{name: value for name, value in receipt.result.items() if name not in ("rows_read", "dropped")},
            "shards": [shard.target for shard in shards if shard.group == group],
        }
        for group, receipt in zip(groups, packed, strict=True)
    ]
    made, tallied = [], []
    for shard, receipt in zip(shards, written, strict=True):
        split, result, word = shard.group.split, receipt.result, EXTENSIONS[settings.packed_storage]
        made.append(Linked(split, shard.group.name, shard.target, result["stored_tokens"]))
        tallied.append(ShardRecord(split, receipt.files[0], result["blocks"], word))
    index, totals = tally(tallied, settings.asked_splits)
    rejected = b"".join((run / task.file(".rejected.jsonl")).read_bytes() for task in tasks)
    excluded = [each.result["excluded"] for each in encoded]
    return Outcome(
        schema=schema_of(settings.parquet["declared"], traced=settings.traced),
        index=index,
        splits=totals,
        dropped={reason: dropped[reason] for reason in sorted(REGISTRATION.reasons)},
        source=source_facts(files, datasets, encoded),
        directories={split: split_directory(split) for split in settings.asked_splits},
        facts={
            "source_rows": {
                split: sum(each["rows"] for each in records if each["split"] == split)
                for split in settings.asked_splits
            },
            "encoder": {**made_with(settings, encoder, pad_id), **backend_facts(settings, context, encoded)},
            "duplicates": choice.duplicates,
            **({} if benchmarks is None else {"benchmarks": benchmarks.facts(excluded)}),
            "units": [{"of": what, **units} for what, units in choice.units],
            "encoded": _summed(encoded, *_ENCODED),
            "lost": lost,
            **({"repeated": repeated} if any(more["tokens"] for more in repeated.values()) else {}),
            **_summed(encoded, "special_text_rows"),
            "too_long": _summed(encoded, "truncated", "too_long_dropped", "divided"),
            "packed": _summed(packed, *_PACKED),
            "groups": records,
            "published": {name: name for name in PUBLISHED},
            "files": publish_tree(run, settings, made, records, rejected),
        },
    )


def _choose(
    settings: PackedSequences,
    context: RunContext,
    datasets: Sequence[Dataset],
    tasks: Sequence[EncodeTask],
    blank: int | None,
) -> tuple[list[Origins], Choice]:
    """Choose a split for each sequence; also return where the sequences of each dataset come from.

    blank: the token of padding inside sequences, if there is one.
    """
    run = context.run
    origins = []
    for owner in range(len(datasets)):
        names = [task.file(".origins.arrow") for task in tasks if task.owner == owner]
        origins.append(Origins.joined([Origins.of_table(read_arrow(run / name)) for name in names]))
    near = None
    if settings.near is not None:
        near = find_near(context, [of_task(settings, run, task, blank) for task in tasks], settings.near)
    choice = choose(
        datasets,
        origins,
        ratios=settings.ratios,
        keyed=settings.entity is not None,
        seed=settings.seed,
        duplicates=settings.duplicates_are,
        least_tokens=settings.least_compared,
        near=near,
    )
    return origins, choice


def source_facts(
    files: Sequence[tuple[Path, str]], datasets: Sequence[Dataset], encoded: Sequence[Receipt]
) -> dict[str, Any]:
    """Return what the manifest says of the source: files, bytes, rows, and the files without a row."""
    holding = {name for receipt in encoded for name in receipt.result["rows_of"]}
    return {
        "files": len(files),
        "bytes": sum(path.stat().st_size for path, _ in files),
        "rows": sum(receipt.result["rows_read"] for receipt in encoded),
        "empty_shards": sorted(name for dataset in datasets for name in dataset.names if name not in holding),
    }


def made_with(settings: ChatRecipe, encoder: ChatEncoder, pad_id: int | None) -> dict[str, Any]:
    """Return what the manifest says of the tokenizer, the template and the libraries that ran them."""
    libraries = () if settings.tokenizer is None else ("tokenizers", "jinja2")
    return {
        "fingerprint": encoder.fingerprint,
        "vocabulary": encoder.vocabulary,
        "pad_id": pad_id,
        "libraries": {name: library_version(name) for name in libraries},
        **({"tokenizer": record_of(settings.tokenizer)} if isinstance(settings.tokenizer, str) else {}),
    }


def backend_facts(settings: ChatRecipe, context: RunContext, encoded: Sequence[Receipt]) -> dict[str, Any]:
    """Count how often a library that made the ids was compared with `tokenizers`, and warn if it ever differed."""
    if settings.tokenizer_backend in ("auto", "tokenizers"):
        return {}
    names = ("compared", "different", "instead")
    summed = _summed(encoded, *(f"backend_{name}" for name in names))
    counts = {name: summed[f"backend_{name}"] for name in names}
    if counts["different"]:
        what = f"{settings.tokenizer_backend} gave other ids than tokenizers in {counts['different']} tasks"
        again = f"tokenizers did them again, {counts['instead']:,} conversations in all"
        cure = (
            "to be certain of the others, which were compared in part, delete the run and give tokenizer_backend='auto'"
        )
        context.warn([f"{what}; {again}; {cure}"])
    return {"backend": {"name": settings.tokenizer_backend, **counts}}


def _check_conserved(
    settings: PackedSequences,
    encoded: Sequence[Receipt],
    packed: Sequence[Receipt],
    written: Sequence[Receipt],
    dropped: Counter[str],
    lost: Mapping[str, Mapping[str, int]],
    repeated: Mapping[str, Mapping[str, int]],
) -> None:
    """Raise `HeadraceError` unless rows, tokens and labels that were read are in bins or counted as left out.

    repeated: tokens and labels that bins hold more than once.
    """
    rows = sum(receipt.result["rows_read"] for receipt in encoded)
    counts, kept = _summed(encoded, *_ENCODED), _summed(packed, *_PACKED)
    held = _summed(written, "bins", "sequences", "stored_tokens", "mask_sum")
    conserved = [("rows", rows, sum(receipt.result["rows"] for receipt in packed), dropped.total())]
    for name in ("tokens", "labels"):
        before = counts[f"encoded_{name}"] + sum(more[name] for more in repeated.values())
        conserved.append((name, before, kept[name], sum(loss[name] for loss in lost.values())))
    conserved += [(f"written {name}", kept[name], held[name], 0) for name in ("bins", "sequences", "stored_tokens")]
    if settings.loss_mask_alignment == "shift_left":
        conserved.append(("written labels", kept["labels"], held["mask_sum"], 0))
    for name, before, there, gone in conserved:
        if before != there + gone:
            raise HeadraceError(
                f"{name} are not conserved: {before:,} before, {there:,} kept and {gone:,} left out; this is a "
                f"fault of headrace, nothing was published: please report it with config.json of the run"
            )


def refuse_bad(settings: ChatRecipe, context: RunContext, encoded: Sequence[Receipt]) -> None:
    """Raise `InputError` if more rows are bad than `max_bad_share` allows, or if none is left."""
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
    if read and not any(receipt.result["sequences"] for receipt in encoded):
        dropped: Counter[str] = Counter()
        for receipt in encoded:
            dropped.update(receipt.result["dropped"])
            first = receipt.result["first"] | first
        listed = "; ".join(
            f"{reason} {rows:,}" + (f", first {first[reason]}" if reason in first else "")
            for reason, rows in sorted(dropped.items())
            if rows
        )
        raise InputError(f"no row of {read:,} gives a sequence to pack: {listed}; correct the data or the settings")


def _groups(settings: PackedSequences, pools: Sequence[Pool], choice: Choice, fingerprint: str) -> dict[Group, I64]:
    """List what is packed on its own, with its sequences: every pool in every split, in the order of splits."""
    shared = settings.model_dump(mode="json", exclude=_NOT_OF_GROUPS) | exclusion_identity(settings)
    groups: dict[Group, I64] = {}
    for number, split in enumerate(SPLITS):
        for place, pool in enumerate(pools):
            side, copies = (
                np.concatenate([of[owner] for owner in pool.owners]) for of in (choice.splits, choice.copies)
            )
            here = np.flatnonzero(side == number)
            sequences = np.concatenate([here[copies[here] > turn] for turn in range(int(copies[here].max(initial=1)))])
            if not len(sequences):
                continue
            parts: list[Any] = []
            for dataset in pool.datasets:
                source = dataset.source.model_dump(mode="json", exclude={"path"})
                files = list(zip(dataset.names, dataset.sizes, strict=True))
                parts += [dataset.source.name, dataset.split, source, files]
            digest = sha256_hex(canonical_json([*parts, shared, fingerprint]))
            groups[Group(len(groups), place, pool.name, split, f"datasets/{pool.name}/{digest[:16]}")] = sequences
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


def tell_splits(settings: ChatRecipe, context: RunContext, choice: Choice) -> None:
    """Say how rows were split and what repeats, and warn of what a user would rather not have."""
    for what, units in choice.units:
        listed = ", ".join(f"{split} {units[split]:,}" for split in settings.asked_splits)
        context.on_event(Note("info", f"{what}: {listed} {'keys' if what == 'keys' else 'rows'}"))
    for split in settings.asked_splits:
        if not any((side == SPLITS.index(split)).any() for side in choice.splits):
            context.warn([f"{split} is empty: no row is left for it; see the dropped rows"])
    found = choice.duplicates
    if found is not None:
        again, rows, seen = found["same_content"], found["rows"], found["seen_in_earlier_splits"]
        if again:
            context.on_event(Note("info", f"{again:,} of {rows:,} rows ask what an earlier row asks"))
        if found.get("near_pairs"):
            context.on_event(Note("info", f"{found['near_pairs']:,} pairs of sequences are near"))
        if found.get("near_not_compared"):
            most = f"at most {found['near_not_compared']:,} pairs of sequences were not compared"
            context.warn([f"near: {most}: they look like too many others"])
        if seen > _SEEN_SHARE * rows and settings.duplicates_are == "count":
            what = f"{seen:,} rows of valid and test ask, or say, what rows of train or valid do"
            context.warn([f'{what}; choose duplicates="group" to keep them apart'])
        elif found["largest"] > max(100, _LARGE_UNIT * rows):
            what = f"{found['largest']:,} of {rows:,} rows are joined by what they ask, and are in one split"
            cure = 'name the columns that tell them apart with content=, or choose duplicates="allow"'
            context.warn([f"{what}; {cure}"])


def _left_out(
    encoded: Sequence[Receipt], choice: Choice, packed: Sequence[Receipt]
) -> tuple[Counter[str], dict[str, dict[str, int]]]:
    """Rows that were dropped, and what was lost of `_KINDS`, by reason: each from the stage that saw it."""
    dropped: Counter[str] = Counter()
    lost: dict[str, Counter[str]] = {}
    for receipt in encoded:
        dropped.update(receipt.result["dropped"])
        for reason, loss in receipt.result["lost"].items():
            lost.setdefault(reason, Counter()).update(loss)
    for reason, each in choice.left_out.items():
        dropped[reason] += each["rows"]
        lost[reason] = each
    lost[_BIN_WITHOUT_LABEL] = sum((Counter(receipt.result["dropped"]) for receipt in packed), Counter[str]())
    dropped[_BIN_WITHOUT_LABEL] += lost[_BIN_WITHOUT_LABEL]["rows"]
    return dropped, {reason: {name: loss[name] for name in _KINDS} for reason, loss in lost.items()}


def _summed(receipts: Sequence[Receipt], *names: str) -> dict[str, int]:
    return {name: sum(receipt.result[name] for receipt in receipts) for name in names}
