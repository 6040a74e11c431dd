"""Verify histories from their output alone: every measurement once, in time order, with codes that `encode` gives.

Many rows are read and checked at a time. Each rule is a few vector operations that find the wrong rows, and a message
for the first of them. A row costs a microsecond or two, a measurement about 50 ns and 50 bytes of memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.arrays import I64, U64, Bools
from headrace.dataset.contents import KeptDigests, content_check, map_blocks
from headrace.dataset.indexed import IndexedDataset
from headrace.dataset.open import FinishedRun
from headrace.dataset.verify import Check
from headrace.digest import sha256_file
from headrace.engine.local import default_workers, run_tasks
from headrace.errors import CorruptShard
from headrace.formats.content import NOTHING, Repeated
from headrace.histories.codec.addresses import KINDS, Addresses, as_numbers, render
from headrace.histories.codec.latencies import is_canonical
from headrace.histories.codec.laws import Law, damaged, first_broken
from headrace.histories.codec.rows import Decoded, decode_together
from headrace.histories.codec.values import as_words, stored_type
from headrace.histories.config import Histories
from headrace.histories.dictionary import Dictionary, dictionary_file, hashed_addresses
from headrace.histories.duplicates import content_sums, digests
from headrace.histories.piece import EntityHashes, hash_entities, mixed_peers, mixed_with, multiset_sum, partition_of
from headrace.histories.recipe import is_worth_compiling
from headrace.histories.shard_file import MOST, Blobs, Most, read_pieces
from headrace.histories.write import ROWS, SPLITS
from headrace.settings import Duplicates
from headrace.storage.places import place_of

FACTS = ("src_id", "part", "n_measurements", "first_time", "last_time", "split")


_TEXT = KINDS.index("text")
Texts = dict[str, tuple[Dictionary, U64]]


@dataclass(frozen=True)
class Partition:
    """The partition of a shard: the settings of the run, and its number among all partitions.

    compiled: hash and render texts with numba.
    texts: the dictionaries of the run, and the hashes of their texts.
    """

    settings: Histories
    number: int
    partitions: int
    compiled: bool = False
    texts: Texts = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """The result of checking a shard. problem: the first wrong row.

    content: uint64 [rows], at the first row of each entity the digest of its compared columns, else `NOTHING`.
    order, trains: [rows], of the entity of each row, by its hash alone.
    """

    measurements: int
    sum: int
    problem: str | None
    content: U64 = field(default_factory=lambda: np.empty(0, np.uint64), compare=False)
    order: U64 = field(default_factory=lambda: np.empty(0, np.uint64), compare=False)
    trains: Bools = field(default_factory=lambda: np.empty(0, np.bool_), compare=False)


def verify_histories(run: FinishedRun, workers: int | None = None) -> list[Check]:
    """Decode every row of the output and check it.

    Each worker needs O(the facts of a shard, or its largest row) of memory.
    """
    settings, config = _settings_of(run.root)
    asked: Duplicates = config.get("duplicates", "allow")  # runs of older versions did not look for duplicates
    told = run.manifest.facts
    path = run.root / ROWS
    if not path.is_file() or sha256_file(path) != told["rows_digest"]:
        return [Check("rows", ROWS, f"{path}: is not the file the manifest names")]
    texts: Texts = {}
    for role, known in told.get("dictionaries", {}).items():
        try:
            dictionary = _dictionary(run.root / dictionary_file(role), known)
        except CorruptShard as error:
            return [Check("dictionaries", dictionary_file(role), str(error))]
        texts[role] = (dictionary, dictionary.hashes(settings.seed))
    with place_of(path).local_copy() as here, _opened(here) as file:
        metadata = file.metadata
        compiled = is_worth_compiling(metadata.num_rows)

        def checked(group: int) -> Found:  # a row group has the facts of one shard
            with _opened(here, metadata) as file:
                facts = file.read_row_group(group, [*FACTS, "bytes", "shard"], use_threads=False)
            shard = facts["shard"][0].as_py()
            number = int(re.findall(r"\d+", shard)[-1])
            partition = Partition(settings, number, int(told["partitions"]), compiled, texts)
            return check_shard(run.root / shard, partition, facts)

        tasks = [partial(checked, group) for group in range(metadata.num_row_groups)]
        place = metadata.schema.names.index("split")
        groups = (metadata.row_group(group) for group in range(metadata.num_row_groups))
        splits = [group.column(place).statistics.min for group in groups]
        found = run_tasks(tasks, workers or default_workers())
    problem = next((each.problem for each in found if each.problem is not None), None)
    measurements = sum(each.measurements for each in found)
    total = sum(each.sum for each in found) % (1 << 64)
    expected = sum(told["source_rows"].values())
    once = None
    if problem is None and (measurements, total) != (expected, told["multiset_sum"]):
        once = (
            f"{run.root}: the rows hold {measurements:,} measurements with sum {total:016x}, the source had "
            f"{expected:,} with sum {told['multiset_sum']:016x}"
        )
    return [
        Check("rows", f"{metadata.num_rows:,} rows are as {ROWS} says, times ascend in and across parts", problem),
        Check("exactly once", f"{measurements:,} measurements are those of the source, sum {total:016x}", once),
        *([] if problem else [_content_check(run, asked, found, splits)]),
    ]


def _settings_of(root: Path) -> tuple[Histories, dict[str, Any]]:
    """Return the settings of a run, with defaults, and as they are written."""
    config = json.loads((root / "config.json").read_bytes())
    config.pop("recipe", None)
    return Histories(**config), config


def _dictionary(path: Path, known: Mapping[str, Any]) -> Dictionary:
    """Open a dictionary. Raises `CorruptShard` if it differs from the manifest's entry, `known`, or is not sorted."""
    with place_of(path).local_copy() as here:
        if not here.is_file() or sha256_file(here) != known["digest"]:
            raise CorruptShard(f"{path}: is not the file the manifest names")
        dictionary = Dictionary(here)
    if len(dictionary) != known["texts"] or not dictionary.is_sorted():
        raise CorruptShard(f"{path}: its texts are not {known['texts']:,}, ascending and each once")
    return dictionary


def _content_check(run: FinishedRun, asked: Duplicates, found: Sequence[Found], splits: Sequence[str]) -> Check:
    """Compare the contents of all entities, and count duplicates if the run did not. splits: of each shard."""
    nothing = Found(0, 0, None)
    of_split = {
        split: [nothing, *(each for each, own in zip(found, splits, strict=True) if own == split)] for split in SPLITS
    }
    content = {split: np.concatenate([each.content for each in parts]) for split, parts in of_split.items()}
    with KeptDigests(SPLITS) as kept:
        for split, own in content.items():
            kept.keep(split, own)
        found_again = kept.count()
    said = run.manifest.facts.get("duplicates")
    if said is None:  # counted and none found, or not looked for
        known = found_again if asked == "allow" else Repeated({"test": 0}, dict.fromkeys(SPLITS, 0))
        said = {"in_earlier_split": dict(known.earlier), "repeated": dict(known.own)}
    word = "count" if asked == "allow" else asked
    check = content_check(run, word, said, found_again, lambda: content, unit="entities")
    if asked != "group" or check.problem is not None:
        return check
    # The hash of the first entity, in hash order, decides the split of all with its content.
    contents = np.concatenate(list(content.values()))
    orders, sides = (
        np.concatenate([getattr(each, name) for parts in of_split.values() for each in parts])
        for name in ("order", "trains")
    )
    trains = np.repeat([split == "train" for split in content], [len(each) for each in content.values()])
    by_order = np.argsort(orders, kind="stable")
    by_order = by_order[contents[by_order] != NOTHING]
    _, original, unit = np.unique(contents[by_order], return_index=True, return_inverse=True)
    astray = int((sides[by_order][original][unit] != trains[by_order]).sum())
    told = f"{run.root}: {astray:,} entities are not where the first one of their content belongs"
    return replace(check, problem=told if astray else None)


def _opened(path: Path, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
    return pq.ParquetFile(path, metadata=metadata, page_checksum_verification=True)


def check_shard(path: Path, partition: Partition, facts: pa.Table, most: Most = MOST) -> Found:
    """Check every row of a shard. The problem is the first wrong row, however many are checked at once.

    facts: the rows of `rows.parquet` for this shard.
    most: limit on the rows checked at once.
    """
    check = _ShardCheck(path, partition, facts)
    try:
        with place_of(path).local_copy() as file:
            try:
                for piece in read_pieces(file, facts["bytes"].to_numpy(), most):
                    check.piece(piece)
                if check.rows < facts.num_rows:
                    raise CorruptShard(f"{path}: has {check.rows} rows, {ROWS} has {facts.num_rows} of it")
            except CorruptShard as error:
                return Found(check.measurements, check.sum, str(error).replace(str(file), str(path)))
    except FileNotFoundError:
        return Found(0, 0, f"{path}: is missing")
    return Found(
        check.measurements, check.sum, None, check.content(), np.concatenate(check.orders), np.concatenate(check.trains)
    )


class _ShardCheck:
    """The running check of one shard: the counts so far, and the row to compare the next one with."""

    def __init__(self, path: Path, partition: Partition, facts: pa.Table) -> None:
        self._path, self._partition, self._facts = path, partition, facts
        self.rows = self.measurements = self.sum = 0
        self._name, self._order, self._part, self._last_time = "", 0, 0, 0
        self.orders, self.trains = [np.empty(0, np.uint64)], [np.empty(0, np.bool_)]
        self._sums = [np.empty(0, np.uint64)]  # content sums of each row

    def content(self) -> U64:
        """Return a digest of each entity's compared columns, at its first row; `NOTHING` at the others."""
        found, first = np.full(self.rows, NOTHING, np.uint64), np.flatnonzero(self._facts["part"].to_numpy() == 0)
        if len(first):
            counts = np.add.reduceat(self._facts["n_measurements"].to_numpy(), first)
            found[first] = digests(np.add.reduceat(np.concatenate(self._sums), first), counts)
        return found

    def piece(self, piece: Blobs) -> None:
        """Check the next rows. Raises `CorruptShard` for the first wrong row."""
        sizes = piece.sizes[: self._facts.num_rows - self.rows]
        found = decode_together(piece.data[: int(sizes.sum())], sizes)
        if len(found.n):
            self._check(found, self._facts.slice(self.rows, len(found.n)).combine_chunks())
        where = f"{self._path}: row {self.rows + 1}"
        if found.damage is not None:
            raise CorruptShard(damaged(where, found.damage))
        if len(found.n) < len(piece.sizes):
            raise CorruptShard(f"{where}: is not in {ROWS}")

    def _check(self, found: Decoded, facts: pa.Table) -> None:
        head, n, settings = found.head, found.n, self._partition.settings
        part, first_time = head["part"].astype(np.int64), head["first_time"].astype(np.int64)
        last_time = first_time + head["time_span"]
        entities = Addresses(head["entity_family"].copy(), np.ascontiguousarray(head["entity"]))
        self._check_kinds(found)
        names, hashes = self._entities(entities)
        order, trains = hashes.order, hashes.train(settings.train_ratio)

        holds = {"part": part, "n_measurements": n, "first_time": first_time, "last_time": last_time}
        other = _mask(pc.not_equal(facts["src_id"], names))
        if settings.duplicates != "group":  # else another entity may decide the split, which is checked at the end
            other |= _mask(pc.equal(facts["split"], "train")) != trains
        other |= ~_mask(pc.is_in(facts["split"], pa.array(["train", "test"])))
        for name, values in holds.items():
            other |= facts[name].to_numpy() != values

        def not_as_told(row: int) -> str:
            numbers = (int(values[row]) for values in holds.values())
            told = tuple(facts[name][row].as_py() for name in FACTS)
            return f"holds {(names[row].as_py(), *numbers, 'train' if trains[row] else 'test')}, {ROWS} says {told}"

        before = np.append(np.uint64(self._order), order[:-1])
        part_before, time_before = np.append(self._part, part[:-1]), np.append(self._last_time, last_time[:-1])
        new = np.ones(len(n), np.bool_)
        new[0] = names[0].as_py() != self._name
        new[1:] = _mask(pc.not_equal(names[1:], names[:-1]))
        strange = np.flatnonzero(~is_canonical(found.codes))
        strange_row = np.searchsorted(found.starts, strange, side="right") - 1

        def strange_code(row: int) -> str:
            at = int(strange[np.searchsorted(strange_row, row)])
            measurement = at - int(found.starts[row]) + 1
            return f"measurement {measurement} has code {int(found.codes[at])}, which encodes no latency"

        self._obey(
            [
                (other, not_as_told),
                # A repeated entity would be out of order.
                (
                    new & (order < before),
                    lambda row: f"its entity {names[row]} is out of order, so it may come twice",
                ),
                (
                    new & (part != 0),
                    lambda row: f"is part {part[row]} of {names[row]}, and the parts before are missing",
                ),
                (
                    ~new & (part != part_before + 1),
                    lambda row: f"is part {part[row]} of {names[row]} after part {part_before[row]}",
                ),
                (
                    ~new & (first_time < time_before),
                    lambda row: f"begins at {first_time[row]}, the part before ends at {time_before[row]}",
                ),
                (np.isin(np.arange(len(n)), strange_row), strange_code),
                (
                    partition_of(order, self._partition.partitions) != self._partition.number,
                    lambda row: f"its entity {names[row]} belongs to another partition",
                ),
            ]
        )
        self.rows += len(n)
        self.measurements += int(n.sum())
        mixed = mixed_peers(found.peers)
        if settings.peer_kind == "text":
            mixed = mixed_peers(hashed_addresses(self._partition.texts["peer"][1][as_numbers(found.peers)]))
        seconds, peer = _measured(found, first_time, mixed)
        words = self._words(found)
        self.sum += multiset_sum(_spread(order, n), seconds, mixed_with(peer, words), found.codes)
        self.orders.append(order)
        self.trains.append(trains)
        self._sums.append(content_sums(settings, seconds, peer, found.codes, found.starts, words))
        self._name, self._order = names[-1].as_py(), int(order[-1])
        self._part, self._last_time = int(part[-1]), int(last_time[-1])

    def _entities(self, entities: Addresses) -> tuple[pa.Array, EntityHashes]:
        """Return the text and the hashes of each entity."""
        settings, hashed = self._partition.settings, entities
        if settings.entity_kind == "text":
            dictionary, known = self._partition.texts["entity"]
            names = dictionary.names(entities)
            hashed = hashed_addresses(known[as_numbers(entities)])
        else:
            names = render(entities, settings.entity_kind)
        return names, hash_entities(hashed, settings.entity_kind, settings.seed, compiled=self._partition.compiled)

    def _check_kinds(self, found: Decoded) -> None:
        """Raise `CorruptShard` for rows whose columns differ from the settings, or with unknown codes."""
        settings, texts, head = self._partition.settings, self._partition.texts, found.head
        count = {name: len(texts[role][0]) for name, role in settings.categories().items()}
        types = [stored_type(kind, count.get(name, 0)).name for name, kind in settings.values.items()]

        def unknown(role: str, codes: I64, rows: I64) -> Bools:
            strange = np.zeros(len(found.n), np.bool_)
            strange[rows[codes >= len(texts[role][0])]] = True
            return strange

        every = np.arange(len(found.n))
        laws: list[Law] = [
            (
                np.full(len(every), [each.dtype.name for each in found.values] != types)
                | (head["no_latency"].astype(np.bool_) == (settings.value is not None))
                | ((head["entity_kind"] == _TEXT) != (settings.entity_kind == "text"))
                | ((head["peer_kind"] == _TEXT) != (settings.peer_kind == "text")),
                lambda _row: "has other columns than the settings of the run say",
            )
        ]
        told = "has a code of {} that is not in its dictionary"
        if settings.entity_kind == "text":
            codes = as_numbers(Addresses(head["entity_family"], head["entity"]))
            laws.append((unknown("entity", codes, every), lambda _row: told.format(settings.entity)))
        if settings.peer_kind == "text":
            rows = np.repeat(every, found.peers4 + found.peers6)
            laws.append((unknown("peer", as_numbers(found.peers), rows), lambda _row: told.format(settings.peer)))
        columns = dict(zip(settings.values, found.values, strict=False))  # other columns break the first law
        for column, role in settings.categories().items():
            if column in columns:
                strange = unknown(role, columns[column].astype(np.int64) - 1, np.repeat(every, found.n))
                laws.append((strange, lambda _row, column=column: told.format(column)))  # type: ignore[misc]
        self._obey(laws)

    def _obey(self, laws: Sequence[Law]) -> None:
        """Raise `CorruptShard` for the first row that breaks a law."""
        broken = first_broken(laws)
        if broken is not None:
            raise CorruptShard(f"{self._path}: row {self.rows + broken[0] + 1}: {broken[1]}")

    def _words(self, found: Decoded) -> U64 | None:
        """Return the words of the values, as they were when the measurements were gathered."""
        if not found.values:
            return None
        columns = dict(zip(self._partition.settings.values, found.values, strict=True))
        words = {name: as_words(each) for name, each in columns.items()}
        for name, role in self._partition.settings.categories().items():
            words[name] = np.append(np.uint64(0), self._partition.texts[role][1])[columns[name]]
        return np.column_stack(list(words.values()))


def contents_of_split(dataset: IndexedDataset, split: str, workers: int) -> tuple[tuple[str, ...], I64, U64]:
    """Digest the history of each entity of a split, as `duplicates` compares them.

    Returns the compared columns, the first row of each entity, int64, and its digest, uint64. Raises `CorruptShard` for
    a damaged row.
    """
    settings, _ = _settings_of(dataset.root)

    def sums(table: pa.Table) -> U64:
        blobs, found = table["measurements"].combine_chunks(), [np.empty(0, np.uint64)]
        for first, stop in MOST.cut(np.asarray(pc.binary_length(blobs), np.int64)):
            part = blobs.slice(first, stop - first)
            offsets = np.frombuffer(part.buffers()[1], np.int64, len(part) + 1, 8 * part.offset)
            data = np.frombuffer(part.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
            rows = decode_together(data, np.diff(offsets))
            if rows.damage is not None:
                raise CorruptShard(damaged(f"{dataset.root}: split {split}", rows.damage))
            # Codes are as good as their texts, because a run has one dictionary.
            seconds, peer = _measured(rows, rows.head["first_time"].astype(np.int64), mixed_peers(rows.peers))
            words = np.column_stack([as_words(each) for each in rows.values]) if rows.values else None
            found.append(content_sums(settings, seconds, peer, rows.codes, rows.starts, words))
        return np.concatenate(found)

    def looked_at(table: pa.Table) -> tuple[U64, I64, I64]:
        return sums(table), table["n_measurements"].to_numpy(), table["part"].to_numpy().astype(np.int64)

    parts = map_blocks(dataset, split, workers, ["part", "n_measurements", "measurements"], looked_at)
    if not parts:
        return settings.compared(), np.empty(0, np.int64), np.empty(0, np.uint64)
    total, counts, part = (np.concatenate(each) for each in zip(*parts, strict=True))
    first = np.flatnonzero(part == 0)
    return settings.compared(), first, digests(np.add.reduceat(total, first), np.add.reduceat(counts, first))


def _mask(words: pa.Array | pa.ChunkedArray) -> Bools:
    return np.asarray(words, np.bool_)


def _measured(found: Decoded, first_time: I64, mixed: U64) -> tuple[I64, U64 | None]:
    """Return the seconds of the measurements of rows, and their peers. mixed: of each peer, see `mixed_peers`."""
    n, peer = found.n, None
    if found.index is not None:
        peers = found.peers4 + found.peers6
        mixed = np.append(mixed, np.uint64(0))
        begin = np.where(peers > 0, np.cumsum(peers) - peers, len(mixed) - 1)
        peer = mixed[_spread(begin, n) + found.index]
    return _spread(first_time, n) + found.seconds, peer


def _spread(values: npt.NDArray[Any], n: I64) -> Any:
    """Repeat a row's value for each of its n measurements."""
    return np.repeat(values, n) if len(n) > 1 else np.broadcast_to(values, int(n[0]))
