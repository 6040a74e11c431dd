"""Erase entities from a finished run by making a new run in which only the shards with their rows
are rewritten.

The new run is prepared like any other. Its identity consists of the old run and the digests of the
erased entities. Each touched shard is a task with a receipt. Every other file of the old run gets a
second name in the new one, by hard link if possible. The index and the manifest follow, and one
rename publishes the run. A killed run therefore resumes, and readers see either the old run or the
new one.

No file of the new run names an entity: its manifest has one digest of all entity digests, and
`forgotten.json` lists them. An entity digest is a keyed hash with a known key. It reveals no name,
but anyone with a list of names can test them against it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from headrace.arrays import I64
from headrace.checks import check_word
from headrace.dataset.entities import entity_column, find_entities
from headrace.dataset.index import IndexRow
from headrace.dataset.manifest import read_config
from headrace.dataset.open import FinishedRun, find_run
from headrace.dataset.pointer import RUN_ID
from headrace.dataset.sound import damaged
from headrace.dataset.vouched import read_vouched, tree_of
from headrace.digest import canonical_json, derive_key, sha256_hex
from headrace.errors import SettingsError
from headrace.gate.json import find_object
from headrace.keyed_hash import hash_texts
from headrace.recipe import recipe_of_run
from headrace.run import in_store
from headrace.run.context import RunContext, Task
from headrace.run.erase import Erased, Erasure, ShardEraser
from headrace.run.events import OnEvent
from headrace.run.prepare import Outcome, prepare
from headrace.run.receipts import FileRecord, Receipt
from headrace.run.tally import ShardRecord, tally
from headrace.storage import local
from headrace.storage.cache_room import cache_directory
from headrace.storage.places import path_of, place_of
from headrace.storage.run_lock import RunRemoved, only_writer, remove_run

FORGOTTEN = "forgotten.json"
REASON = "forgotten"  # in the manifest's counts of dropped rows
_KEY = derive_key(0, "forgotten entity")


@dataclass(frozen=True, kw_only=True)
class Forgotten:
    """Result of `forget`.

    run: the run that readers see now. old: the run that was read. other_runs: the remaining runs of
    `out`, not read. entities: the number asked for. matched: how many of them the run knows. rows:
    how many were erased. shards: how many were rewritten; bytes_before, bytes: their size before
    and after. how: "computed", "reused" if the run existed already, "nothing" if these entities
    have no rows.
    """

    run: Path
    old: Path
    other_runs: tuple[str, ...]
    entities: int
    matched: int
    rows: int = 0
    shards: int = 0
    bytes_before: int = 0
    bytes: int = 0
    how: Literal["computed", "reused", "nothing"] = "nothing"


def forget(  # noqa: PLR0913 - the arguments are settings
    out: str | Path,
    entities: Sequence[str],
    *,
    entity_column: str | None = None,
    old_run: Literal["keep", "delete"] = "keep",
    workers: int | None = None,
    work_dir: str | Path | None = None,
    on_event: OnEvent | None = None,
) -> Forgotten:
    """Make a run of `out` without the rows of these entities, and let readers see it instead of the
    old one.

    entities: texts. entity_column: the column whose values name entities; None for the one in the
    run's settings. old_run: "delete" removes the run that was read, once the new one is published.
    work_dir, on_event: as in `prepare`. If these entities have no rows, nothing is written. With
    old_run="delete", the run that the present one was made from is then removed, if the present one
    erased some of these entities.

    The rows still exist until the old run, other runs and copies of it, caches of decoded blocks
    and models trained on them are deleted too. A run prepared from the source again has the rows
    again.
    Raises `SettingsError` for a recipe whose runs cannot be rewritten in part, and whatever
    `prepare` raises.
    """
    check_word("old_run", old_run, ("keep", "delete"))
    out_path = path_of(out)
    names = _checked_names(entities)
    while True:
        root, manifest = find_run(out_path)
        if root == out_path:
            raise SettingsError(
                "is a run, not a dataset directory",
                path=out,
                remedy="give the directory that has it in runs/",
            )
        with suppress(RunRemoved), _only_erasure(root, out_path, work_dir):
            # another erasure may have ended since, whose result this one must not undo
            if find_run(out_path)[0] != root:
                continue
            run = FinishedRun(root, manifest)
            recipe = _Without(run, _find(run, names, entity_column, workers))
            if not recipe.names:
                return _nothing_to_erase(out_path, root, names, old_run)
            prepared = prepare(recipe, out, workers=workers, work_dir=work_dir, on_event=on_event)
            if old_run == "delete":
                remove_run(root)
            record = _record(prepared.run)
            return Forgotten(
                run=prepared.run,
                old=root,
                other_runs=_other_runs(out_path, prepared.run, root),
                entities=len(names),
                matched=len(recipe.names),
                rows=record["rows"],
                shards=len(record["shards"]),
                bytes_before=record["bytes_before"],
                bytes=record["bytes"],
                how=prepared.how,
            )


def _checked_names(entities: Sequence[str]) -> list[str]:
    """Return the distinct names, sorted."""
    if not isinstance(entities, str):
        entities = list(entities)
    if isinstance(entities, str) or not all(isinstance(name, str) and name for name in entities):
        raise SettingsError(
            "this is not a list of texts",
            setting="entities",
            remedy="give texts, as they name entities in their column",
        )
    return sorted(set(entities))


@contextmanager
def _only_erasure(root: Path, out: Path, work_dir: str | Path | None) -> Iterator[None]:
    """Hold the lock of the run that entities are erased from.

    In an object store, it is in the local work directory, and keeps only erasures of this machine
    apart.
    """
    if place_of(root).writes == "in place":
        with only_writer(root, "erases entities from this run"):
            yield
        return
    base = cache_directory(work_dir, "work_dir")
    directory = in_store.work_directory(base, out, root.name)
    local.make_directory(directory)
    with only_writer(directory, "erases entities from this run"):
        yield
        remove_run(directory)


def _nothing_to_erase(
    out: Path, root: Path, names: Sequence[str], old_run: Literal["keep", "delete"]
) -> Forgotten:
    """Return the result for entities without rows.

    An earlier call may have been killed before it deleted the old run.
    """
    if old_run == "delete":
        record = _record(root)
        if set(_digests(names)) & set(record.get("entities", ())):
            _delete(out, str(record.get("of")))
    others = _other_runs(out, root)
    return Forgotten(run=root, old=root, other_runs=others, entities=len(names), matched=0)


def _find(
    run: FinishedRun, names: Sequence[str], column: str | None, workers: int | None
) -> Erased:
    erasure = recipe_of_run(run.manifest.recipe).erasure()
    if erasure is None:
        raise SettingsError(
            f"a run of {run.manifest.recipe!r} cannot be written again in part, as its files"
            " mix what was made of many rows",
            path=run.root,
            remedy="erase the entities in its source and prepare again",
        )
    name = entity_column(run, column)
    matches = find_entities(run, name, names, workers=workers)
    entities = {}
    for split, (which, _) in matches.items():
        entities[split] = [names[number] for number in np.unique(which).tolist()]
    rows = {split: np.sort(rows) for split, (_, rows) in matches.items()}
    others: Sequence[str] = ()
    if erasure.knows is not None:
        matched = set().union(*entities.values())
        others = erasure.knows(run, name, [text for text in names if text not in matched])
    return Erased(name, entities, rows, others)


def _digests(names: Sequence[str]) -> list[str]:
    """Return the digests of entities, sorted."""
    high, low = hash_texts(_KEY, pa.array(names, pa.large_string()))
    return sorted(f"{h:016x}{lo:016x}" for h, lo in zip(high.tolist(), low.tolist(), strict=True))


def _record(run: Path) -> dict[str, Any]:
    """Read `forgotten.json` of a run; empty if there is none.

    Raises `CorruptShard` if it was changed.
    """
    record = find_object(run / FORGOTTEN)
    if record is None:
        return {}
    if record.pop("digest", None) != sha256_hex(canonical_json(record)):
        raise damaged(run / FORGOTTEN)
    return record


def _delete(out: Path, run: str) -> None:
    """Delete a run of a dataset directory if it exists."""
    path = out / "runs" / run
    if not RUN_ID.fullmatch(run) or not path.is_dir():
        return
    with only_writer(path) if place_of(path).writes == "in place" else nullcontext():
        remove_run(path)


def _other_runs(out: Path, *known: Path) -> tuple[str, ...]:
    directories, _ = place_of(out / "runs").children()
    return tuple(
        sorted(
            {name for name in directories if RUN_ID.fullmatch(name)} - {run.name for run in known}
        )
    )


@dataclass(frozen=True)
class _Without:
    """A recipe that makes a run without some rows of another run; its name and settings are those
    of the other run.
    """

    run: FinishedRun
    erased: Erased

    @property
    def recipe_name(self) -> str:
        return self.run.manifest.recipe

    @property
    def names(self) -> list[str]:
        """The erased entities, sorted."""
        matched = {name for names in self.erased.entities.values() for name in names}
        return sorted(matched | {*self.erased.others})

    @cached_property
    def digests(self) -> list[str]:
        """The digests of the erased entities, sorted."""
        return _digests(self.names)

    def identity_settings(self) -> dict[str, Any]:
        manifest = self.run.manifest
        old = {"run": manifest.run_id, "index": manifest.index_digest}
        return {**old, "entity_column": self.erased.column, "without": self.digests}

    def config(self) -> dict[str, Any]:
        return read_config(self.run.root, self.run.manifest)

    def source_files(self) -> list[tuple[Path, str]]:
        # the shards of a finished run never change, and each is checked against its digest
        return []

    def source_places(self) -> Sequence[str | Path]:
        return []

    def execute(self, context: RunContext, files: Sequence[tuple[Path, str]]) -> Outcome:
        """Write the touched shards, link the others, and write `forgotten.json`."""
        assert not files
        run, manifest = self.run, self.run.manifest
        shards = _shards_of(run)
        touched = {split: _touched(run, split, rows) for split, rows in self.erased.rows.items()}
        erasure = recipe_of_run(manifest.recipe).erasure()
        assert erasure is not None  # checked before the entities were looked for
        eraser = ShardEraser(run, self.erased.column, self.names, erasure)
        work: list[tuple[ShardRecord, int]] = []
        for counts in touched.values():
            work += [(shards[name], count) for name, count in counts.items()]
        tasks = []
        for old, count in work:
            tasks.append(Task(old.file.path, old.file.bytes, partial(eraser.task, old, count)))
        receipts = context.stage("forget", tasks)
        written = {old.file.path: receipt for (old, _), receipt in zip(work, receipts, strict=True)}
        retained = _link(context, run, written, shards, self._replace_files(context, erasure))
        index, totals = tally(_records(shards, work, written), run.splits)
        erased_rows = sum(receipt.extra["forgotten"] for receipt in receipts)
        outcome = Outcome(
            schema=run.schema,
            index=index,
            splits=totals,
            dropped={**manifest.dropped, REASON: manifest.dropped.get(REASON, 0) + erased_rows},
            source=manifest.source,
            directories=manifest.metadata["directories"],
            metadata=self._metadata(context, erasure, touched, written),
            dialect=run.dialect,
            texts=run.index.texts,
            gaps=run.index.gaps,
            retained=retained,
        )
        local.write_new(context.run / FORGOTTEN, self._receipt(context.run.name, work, written))
        return outcome

    def _replace_files(self, context: RunContext, erasure: Erasure) -> Collection[str]:
        """Write the files that are no shards and change; return the names of these in the old
        run.
        """
        replaced = {} if erasure.files is None else erasure.files(self.run, self.erased)
        for name, data in replaced.items():
            if data is not None:
                local.make_directory((context.run / name).parent)
                local.write_new(context.run / name, data)
        return replaced.keys()

    def _metadata(
        self,
        context: RunContext,
        erasure: Erasure,
        touched: Mapping[str, Mapping[str, int]],
        written: Mapping[str, Receipt],
    ) -> dict[str, Any]:
        """Return the metadata of the old run, as the erasure changes it, with this step added."""
        metadata = dict(self.run.manifest.metadata)
        del metadata["directories"]
        if erasure.metadata is not None:
            counts = {}
            for split, shards in touched.items():
                counts_of_shards = [
                    np.array(written[name].extra["counts"], np.int64) for name in shards
                ]
                counts[split] = sum(counts_of_shards, np.zeros(1, np.int64))
            metadata |= erasure.metadata(self.run, self.erased, counts, context.workers)
        step = {
            "run": self.run.manifest.run_id,
            "entities": len(self.digests),
            "digest": sha256_hex(canonical_json(self.digests)),
        }
        return {**metadata, "forgotten": [*metadata.get("forgotten", ()), step]}

    def _receipt(
        self, name: str, work: Sequence[tuple[ShardRecord, int]], written: Mapping[str, Any]
    ) -> bytes:
        shards = []
        for old, _ in work:
            shards.append(
                {
                    "shard": old.file.path,
                    "rows_before": written[old.file.path].rows_in,
                    "rows": written[old.file.path].extra["rows"],
                    "bytes_before": old.file.bytes,
                    "bytes": sum(file.bytes for file in written[old.file.path].files),
                }
            )
        record = {
            "run": name,
            "of": self.run.manifest.run_id,
            "entity_column": self.erased.column,
            "entities": self.digests,
            "rows": sum(shard["rows_before"] - shard["rows"] for shard in shards),
            "bytes_before": sum(shard["bytes_before"] for shard in shards),
            "bytes": sum(shard["bytes"] for shard in shards),
            "shards": shards,
        }
        record["digest"] = sha256_hex(canonical_json(record))
        return (json.dumps(record, sort_keys=True, indent=1) + "\n").encode()


def _records(
    shards: Mapping[str, ShardRecord],
    work: Sequence[tuple[ShardRecord, int]],
    written: Mapping[str, Receipt],
) -> list[ShardRecord]:
    """Return the shards of the new run: those that stay, then the ones written again."""
    records = [old for name, old in shards.items() if name not in written]
    for old, _ in work:
        receipt = written[old.file.path]
        blocks = receipt.extra["blocks"]
        for file in receipt.files:
            records.append(ShardRecord(old.split, file, blocks, old.format, old.source_shard))
    return records


def _shards_of(run: FinishedRun) -> dict[str, ShardRecord]:
    """Return the shards of a run by path, in the order of its index."""
    rows = run.index.table.to_pylist()
    sizes = {fact.name: fact.size for fact in place_of(run.root).files_below()}
    blocks: dict[str, list[dict[str, Any]]] = {}
    shards = {}
    for row in rows:
        blocks_of_shard = blocks.setdefault(row["shard"], [])
        blocks_of_shard.append(
            {
                name: row[name]
                for name in ("first_row", "rows", "offset", "length", "key_min", "key_max")
            }
        )
        if row["shard"] not in shards:
            block = IndexRow(**row)
            if block.shard not in sizes:
                raise damaged(run.root / block.shard, "is missing")
            file = FileRecord(block.shard, sizes[block.shard], block.digest, block.checksum)
            shards[block.shard] = ShardRecord(
                block.split, file, blocks_of_shard, block.format, block.source_shard
            )
    return shards


def _touched(run: FinishedRun, split: str, rows: I64) -> dict[str, int]:
    """Count the given rows of a split in each shard that holds some of them."""
    index = run.split_index(split)
    shard = index.shard_of_block[np.searchsorted(index.first_row, rows, side="right") - 1]
    numbers, counts = np.unique(shard, return_counts=True)
    result = {}
    for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
        result[index.shards[number]] = count
    return result


def _link(
    context: RunContext,
    run: FinishedRun,
    written: Mapping[str, Receipt],
    shards: Mapping[str, ShardRecord],
    replaced: Collection[str],
) -> list[FileRecord]:
    """Give every other file that the old run's manifest vouches for a name in the new one; return
    those that are no shards.

    written: of each touched shard, with one new file or none. replaced: files that are not linked.
    A file that is a second name or a
    copy of a touched shard becomes a second name of the new shard.
    """
    twins = {shards[name].file.digest: receipt for name, receipt in written.items()}
    records = dict(read_vouched(run, tree_of(run.root), context.workers).records)
    records |= {name: shard.file for name, shard in shards.items()}
    retained = []
    linked: set[Path] = set()
    for name in sorted(records.keys() - written.keys() - {FORGOTTEN, *replaced}):
        path = run.root / name
        target = context.run / name
        twin = twins.get(records[name].digest)
        if twin is not None and name not in shards:
            for new in twin.files:
                local.make_directory(target.parent)
                local.alias(context.run / new.path, target)
        elif context.store is not None:
            in_store.copy(path, context.store / name, records[name].checksum)
        else:
            if not path.exists():
                raise damaged(path, "is missing")
            local.make_directory(target.parent)
            local.alias(path, target)
        if twin is None and name not in shards:
            retained.append(records[name])
        linked.add(target.parent)
    for directory in sorted(name_ for name_ in linked if name_.is_dir()):
        local.sync_directory(directory)
    return retained
