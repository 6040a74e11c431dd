"""Verify histories from their output alone: every measurement once, in time order, with codes that
latencies have.

Many rows are read and checked at a time. Each rule is a few vector operations that find the wrong
rows, and a message for the first of them. A row costs a microsecond or two, a measurement about 50
ns and 50 bytes of memory.
"""

from __future__ import annotations

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

from headrace.arrays import I64, U64, Bools
from headrace.dataset.contents import StoredDigests, content_check, map_blocks
from headrace.dataset.indexed import IndexedDataset
from headrace.dataset.manifest import read_settings
from headrace.dataset.open import FinishedRun
from headrace.dataset.verify import Check
from headrace.digest import sha256_file
from headrace.engine.local import default_workers, run_tasks
from headrace.errors import CorruptShard
from headrace.formats.content import NOTHING, Repeated
from headrace.gate.parquet import open_run_table
from headrace.histories import ID_KINDS, US_PER
from headrace.histories.codec.addresses import Addresses, render, to_numbers
from headrace.histories.codec.rows import (
    Decoded,
    Rule,
    damaged,
    decode_together,
    first_violation,
)
from headrace.histories.codec.values import is_canonical, stored_type, to_words
from headrace.histories.config import Histories
from headrace.histories.dictionary import Dictionary, address_placeholders, dictionary_file
from headrace.histories.duplicates import content_sums, digests
from headrace.histories.reuse import DICTIONARY_RUNS, REUSED
from headrace.histories.shard_file import READ_LIMIT, Blobs, ReadLimit, read_blobs
from headrace.histories.spill import (
    EntityHashes,
    hash_entities,
    mix_measured,
    mix_peers,
    multiset_sum,
    partition_of,
)
from headrace.histories.write import ROWS, ROWS_SCHEMA, SPLITS
from headrace.recipe import SplitContents
from headrace.report.words import pluralise
from headrace.settings import Duplicates
from headrace.storage.places import place_of

FACTS = ("src_id", "part", "n_measurements", "first_time", "last_time", "split")
_TEXT = ID_KINDS.index("text")


@dataclass(frozen=True)
class RunTexts:
    """A dictionary of a run, and the hashes of its texts."""

    dictionary: Dictionary
    hashes: U64


@dataclass(frozen=True)
class ShardContext:
    """What a shard is checked against: the settings of the run, and the number of its partition
    among all.

    texts: the dictionaries of the run, by role.
    """

    settings: Histories
    number: int
    partitions: int
    texts: Mapping[str, RunTexts] = field(default_factory=dict)


@dataclass(frozen=True)
class ShardResult:
    """The result of checking a shard. problem: the first wrong row.

    content: uint64 [rows], at the first row of each entity the digest of its compared columns, else
    `NOTHING`. order, in_train: [rows], of the entity of each row, by its hash alone.
    """

    measurements: int
    sum: int
    problem: str | None
    content: U64 = field(default_factory=lambda: np.empty(0, np.uint64), compare=False)
    order: U64 = field(default_factory=lambda: np.empty(0, np.uint64), compare=False)
    in_train: Bools = field(default_factory=lambda: np.empty(0, np.bool_), compare=False)


def verify_histories(run: FinishedRun, workers: int | None = None) -> list[Check]:
    """Decode every row of the output and check it.

    Each worker needs O(the facts of a shard, or its largest row) of memory.
    """
    settings = read_settings(run.root, run.manifest, Histories)
    manifest_metadata = run.manifest.metadata
    path = run.root / ROWS
    if not path.is_file() or sha256_file(path) != manifest_metadata["rows_digest"]:
        return [Check("rows", ROWS, f"{path}: is not the file the manifest names")]
    texts: dict[str, RunTexts] = {}
    for role, entry in manifest_metadata.get("dictionaries", {}).items():
        try:
            dictionary = _open_dictionary(run.root / dictionary_file(role), entry)
        except CorruptShard as error:
            return [Check("dictionaries", dictionary_file(role), str(error))]
        texts[role] = RunTexts(dictionary, dictionary.hashes(settings.seed))
    with open_run_table(path) as file:
        row_count = file.num_rows
        columns = pa.schema([ROWS_SCHEMA.field(name) for name in [*FACTS, "bytes", "shard"]])

        def check(group: int) -> tuple[str, ShardResult]:  # a row group is of one shard
            rows = file.read(columns, group)
            shard = rows["shard"][0].as_py()
            number = int(re.findall(r"\d+", shard)[-1])
            context = ShardContext(settings, number, int(manifest_metadata["partitions"]), texts)
            return rows["split"][0].as_py(), check_shard(run.root / shard, context, rows)

        groups = range(file.num_row_groups)
        checked = run_tasks(
            [partial(check, group) for group in groups], workers or default_workers()
        )
    results = [result for _, result in checked]
    problem = next(filter(None, (result.problem for result in results)), None)
    detail = f"{row_count:,} rows are as {ROWS} says, times ascend in and across parts"
    checks = [
        Check("rows", detail, problem),
        _check_sum(run, results, compare=problem is None),
    ]
    if settings.dictionaries_from is not None:
        checks.append(_check_codes(run, settings, texts))
    if problem is None:
        splits = [split for split, _ in checked]
        checks.append(_check_contents(run, settings.duplicates, results, splits))
    return checks


def _check_sum(run: FinishedRun, results: Sequence[ShardResult], *, compare: bool) -> Check:
    """Compare the measurements of all rows with those of the source, as the manifest counts them.

    compare: False if some rows are known to be wrong, which says enough.
    """
    recorded = run.manifest.metadata
    measurements = sum(result.measurements for result in results)
    total = sum(result.sum for result in results) % (1 << 64)
    expected = sum(recorded["source_rows"].values())
    difference = None
    if compare and (measurements, total) != (expected, recorded["multiset_sum"]):
        difference = (
            f"{run.root}: the rows hold {measurements:,} measurements with sum {total:016x}, the"
            f" source had {expected:,} with sum {recorded['multiset_sum']:016x}"
        )
    sentence = f"{measurements:,} measurements are those of the source, sum {total:016x}"
    return Check("exactly once", sentence, difference)


def _open_dictionary(path: Path, entry: Mapping[str, Any]) -> Dictionary:
    """Open a dictionary.

    Raises `CorruptShard` if it differs from the manifest's entry or is not sorted.
    """
    with place_of(path).local_copy() as local:
        if not local.is_file() or sha256_file(local) != entry["digest"]:
            raise CorruptShard("is not the file the manifest names", path=path)
        dictionary = Dictionary(local)
    if len(dictionary) != entry["texts"] or not dictionary.is_sorted(entry.get("earlier", 0)):
        raise CorruptShard(
            f"its texts are not {entry['texts']:,}, ascending and each once", path=path
        )
    return dictionary


def _check_codes(run: FinishedRun, settings: Histories, texts: Mapping[str, RunTexts]) -> Check:
    """Check that the dictionaries begin with those of the named run, if that run still exists."""
    name = "codes are of the named run"
    named = run.manifest.metadata[REUSED]
    problem: str | None = None
    for role, run_texts in texts.items():
        if len(np.unique(run_texts.hashes)) < len(run_texts.hashes):
            return Check(name, "", f"{run.root / dictionary_file(role)}: has a text twice")
    assert settings.dictionaries_from is not None
    earlier = DICTIONARY_RUNS.find_again(settings.dictionaries_from, named["run"])
    if isinstance(earlier, str):
        return Check(name, earlier, category="unchecked")
    count = 0
    for role, digest in named["dictionaries"].items():
        entry = earlier.manifest.metadata["dictionaries"].get(role, {})
        if entry.get("digest") != digest:
            problem = f"{run.root}: names another dictionary than {earlier.root} has"
            break
        try:
            earlier_dictionary = _open_dictionary(earlier.root / dictionary_file(role), entry)
        except CorruptShard as error:
            return Check(name, f"not compared: {error}", category="unchecked")
        path = run.root / dictionary_file(role)
        if (
            not texts[role]
            .dictionary.texts[: len(earlier_dictionary)]
            .equals(earlier_dictionary.texts)
        ):
            problem = f"{path}: does not begin with the one of {earlier.root}"
            break
        count += len(earlier_dictionary)
    codes = pluralise(count, "text has its code", "texts have their codes")
    return Check(name, f"{codes} of run {named['run']}", problem)


def _check_contents(
    run: FinishedRun,
    duplicates: Duplicates,
    results: Sequence[ShardResult],
    splits: Sequence[str],
) -> Check:
    """Compare the contents of all entities, and count duplicates if the run did not.

    splits: of each shard.
    """
    of_split: dict[str, list[ShardResult]] = {split: [] for split in SPLITS}
    for result, split in zip(results, splits, strict=True):
        of_split[split].append(result)
    contents = {}
    for split, shards in of_split.items():
        digests = [np.empty(0, np.uint64), *(result.content for result in shards)]
        contents[split] = np.concatenate(digests)
    with StoredDigests(SPLITS) as stored_digests:
        for split, content in contents.items():
            stored_digests.keep(split, content)
        counted = stored_digests.count()
    manifest = run.manifest.metadata.get("duplicates")
    if manifest is None:  # counted and none found, or not looked for
        repeats = Repeated({"test": 0}, dict.fromkeys(SPLITS, 0))
        if duplicates == "allow":
            repeats = counted
        manifest = {"in_earlier_split": dict(repeats.earlier), "repeated": dict(repeats.same_split)}
    word = duplicates
    if duplicates == "allow":
        word = "count"
    check = content_check(run, word, manifest, counted, lambda: contents, unit="entities")
    if duplicates != "group" or check.problem is not None:
        return check
    astray = _count_astray(of_split)
    if not astray:
        return check
    message = (
        f"{run.root}: {astray:,} entities are not where the first one of their content belongs"
    )
    return replace(check, problem=message)


def _count_astray(of_split: Mapping[str, Sequence[ShardResult]]) -> int:
    """Count the entities in another split than the first one of their content.

    The hash of the first entity, in hash order, decides the split of all with its content.
    """
    content = [np.empty(0, np.uint64)]
    order = [np.empty(0, np.uint64)]
    by_hash = [np.empty(0, np.bool_)]
    in_train = [np.empty(0, np.bool_)]
    for split, shards in of_split.items():
        for result in shards:
            content.append(result.content)
            order.append(result.order)
            by_hash.append(result.in_train)
            in_train.append(np.full(len(result.content), split == "train"))
    contents = np.concatenate(content)
    rows = np.argsort(np.concatenate(order), kind="stable")
    rows = rows[contents[rows] != NOTHING]
    _, first, group = np.unique(contents[rows], return_index=True, return_inverse=True)
    expected = np.concatenate(by_hash)[rows][first][group]
    return int((expected != np.concatenate(in_train)[rows]).sum())


def check_shard(
    path: Path, context: ShardContext, listed: pa.Table, limit: ReadLimit = READ_LIMIT
) -> ShardResult:
    """Check every row of a shard.

    The problem is the first wrong row, however many are checked at once.

    listed: the rows of `rows.parquet` for this shard.
    limit: of the rows checked at once.
    """
    check = _ShardCheck(path, context, listed)
    try:
        with place_of(path).local_copy() as file:
            try:
                for blobs in read_blobs(file, listed["bytes"].to_numpy(), limit):
                    check.add(blobs)
                if check.rows < listed.num_rows:
                    raise CorruptShard(
                        f"has {check.rows} rows, {ROWS} has {listed.num_rows} of it", path=path
                    )
            except CorruptShard as error:
                message = str(error).replace(str(file), str(path))
                return ShardResult(check.measurements, check.sum, message)
    except FileNotFoundError:
        return ShardResult(0, 0, f"{path}: is missing")
    return check.result()


class _ShardCheck:
    """The running check of one shard: the counts so far, and the row to compare the next
    one with.
    """

    def __init__(self, path: Path, context: ShardContext, listed: pa.Table) -> None:
        self._path = path
        self._settings = context.settings
        self._context = context
        self._listed = listed
        self._name = ""
        self._order = self._part = self._last_time = 0
        self._orders = [np.empty(0, np.uint64)]
        self._in_train = [np.empty(0, np.bool_)]
        self._sums = [np.empty(0, np.uint64)]  # content sums of each row
        self.rows = self.measurements = self.sum = 0

    def result(self) -> ShardResult:
        """Return the result of a shard without a problem."""
        content = np.full(self.rows, NOTHING, np.uint64)
        first = np.flatnonzero(self._listed["part"].to_numpy() == 0)
        if len(first):
            counts = np.add.reduceat(self._listed["n_measurements"].to_numpy(), first)
            sums = np.add.reduceat(np.concatenate(self._sums), first)
            content[first] = digests(sums, counts)
        orders = np.concatenate(self._orders)
        in_train = np.concatenate(self._in_train)
        return ShardResult(self.measurements, self.sum, None, content, orders, in_train)

    def add(self, blobs: Blobs) -> None:
        """Check the next rows. Raises `CorruptShard` for the first wrong row."""
        sizes = blobs.sizes[: self._listed.num_rows - self.rows]
        decoded = decode_together(blobs.data[: int(sizes.sum())], sizes)
        if len(decoded.n):
            listed = self._listed.slice(self.rows, len(decoded.n)).combine_chunks()
            self._check_rows(decoded, listed)
        if decoded.damage is not None:
            raise damaged(self._path, decoded.damage, self.rows + 1)
        if len(decoded.n) < len(blobs.sizes):
            raise CorruptShard(f"is not in {ROWS}", path=self._path, row=self.rows + 1)

    def _check_rows(self, decoded: Decoded, listed: pa.Table) -> None:
        n = decoded.n
        part = decoded.headers["part"].astype(np.int64)
        first_time = decoded.headers["first_time"].astype(np.int64)
        last_time = first_time + decoded.headers["time_span"]
        self._check_columns(decoded)
        names, hashes = self._entities(decoded.entities)
        order = hashes.order
        by_hash = hashes.in_train(self._settings.train_ratio)
        in_train = self._expected(by_hash, first_time)
        values = {
            "part": part,
            "n_measurements": n,
            "first_time": first_time,
            "last_time": last_time,
        }
        order_before = np.append(np.uint64(self._order), order[:-1])
        part_before = np.append(self._part, part[:-1])
        time_before = np.append(self._last_time, last_time[:-1])
        new = np.ones(len(n), np.bool_)
        new[0] = names[0].as_py() != self._name
        new[1:] = _mask(pc.not_equal(names[1:], names[:-1]))
        self._refuse_first(
            [
                self._rows_rule(listed, names, values, in_train),
                # A repeated entity would be out of order.
                Rule(
                    new & (order < order_before),
                    lambda row: f"its entity {names[row]} is out of order, so it may come twice",
                ),
                Rule(
                    new & (part != 0),
                    lambda row: (
                        f"is part {part[row]} of {names[row]}, and the parts before are missing"
                    ),
                ),
                Rule(
                    ~new & (part != part_before + 1),
                    lambda row: (
                        f"is part {part[row]} of {names[row]} after part {part_before[row]}"
                    ),
                ),
                Rule(
                    ~new & (first_time < time_before),
                    lambda row: (
                        f"begins at {first_time[row]}, the part before ends at {time_before[row]}"
                    ),
                ),
                _codes_rule(decoded),
                *self._period_rules(by_hash, first_time, last_time),
                Rule(
                    partition_of(order, self._context.partitions) != self._context.number,
                    lambda row: f"its entity {names[row]} belongs to another partition",
                ),
            ]
        )
        self._count(decoded, order)
        self._orders.append(order)
        self._in_train.append(by_hash)
        self._name = names[-1].as_py()
        self._order = int(order[-1])
        self._part = int(part[-1])
        self._last_time = int(last_time[-1])

    def _expected(self, by_hash: Bools, first_time: I64) -> Bools:
        """Return which rows should be in train."""
        if self._settings.cut is None:
            return by_hash
        return first_time < self._settings.cut

    def _rows_rule(
        self, listed: pa.Table, names: pa.Array, values: Mapping[str, I64], in_train: Bools
    ) -> Rule:
        """Compare rows with `rows.parquet`."""
        differs = _mask(pc.not_equal(listed["src_id"], names))
        if (
            self._settings.duplicates != "group"
        ):  # else another entity may decide the split, which is checked at the end
            differs |= _mask(pc.equal(listed["split"], "train")) != in_train
        differs |= ~_mask(pc.is_in(listed["split"], pa.array(SPLITS)))
        for name, column in values.items():
            differs |= listed[name].to_numpy() != column

        def message(row: int) -> str:
            numbers = [int(column[row]) for column in values.values()]
            split = "test"
            if in_train[row]:
                split = "train"
            expected = tuple(listed[name][row].as_py() for name in FACTS)
            return f"holds {(names[row].as_py(), *numbers, split)}, {ROWS} says {expected}"

        return Rule(differs, message)

    def _period_rules(self, by_hash: Bools, first_time: I64, last_time: I64) -> list[Rule]:
        """Find rows that lie on both sides of `train_end`, or on that of other entities."""
        settings = self._settings
        if settings.cut is None:
            return []
        early = first_time < settings.cut
        astride = Rule(
            early != (last_time < settings.cut),
            lambda row: f"ends at {last_time[row]}, after train_end, and begins before",
        )
        if settings.train_ratio == 1:
            return [astride]
        return [
            astride,
            Rule(early != by_hash, lambda _row: "its entity is in the other split at that time"),
        ]

    def _count(self, decoded: Decoded, order: U64) -> None:
        """Add the measurements of rows to the sums."""
        mixed = mix_peers(decoded.peers)
        if self._settings.peer_kind == "text":
            hashes = self._context.texts["peer"].hashes[to_numbers(decoded.peers)]
            mixed = mix_peers(address_placeholders(hashes))
        times = _times(decoded)
        peer = _peers(decoded, mixed)
        words = self._value_words(decoded)
        entity = _repeat(order, decoded.n)
        self.rows += len(decoded.n)
        self.measurements += int(decoded.n.sum())
        self.sum += multiset_sum(entity, times, mix_measured(peer, words), decoded.codes)
        sums = content_sums(self._settings, times, peer, decoded.codes, decoded.starts, words)
        self._sums.append(sums)

    def _entities(self, entities: Addresses) -> tuple[pa.Array, EntityHashes]:
        """Return the text and the hashes of each entity."""
        settings = self._settings
        gathered = entities
        if settings.entity_kind == "text":
            texts = self._context.texts["entity"]
            names = texts.dictionary.names(entities)
            gathered = address_placeholders(texts.hashes[to_numbers(entities)])
        else:
            names = render(entities, settings.entity_kind)
        return names, hash_entities(gathered, settings.entity_kind, settings.seed)

    def _check_columns(self, decoded: Decoded) -> None:
        """Raise `CorruptShard` for rows whose columns differ from the settings, or with unknown
        codes.
        """
        settings = self._settings
        headers = decoded.headers
        categories = settings.categories()
        types = []
        for name, word in settings.values.items():
            texts = 0
            if name in categories:
                texts = len(self._context.texts[categories[name]].dictionary)
            types.append(stored_type(word, texts).name)
        other_values = [column.dtype.name for column in decoded.values] != types
        every = np.arange(len(decoded.n))
        known = partial(self._known_codes, len(every))
        rules = [
            Rule(
                np.full(len(every), other_values)
                | (decoded.has_latency != (settings.value is not None))
                | (decoded.time_units != list(US_PER).index(settings.time_unit))
                | ((headers["entity_kind"] == _TEXT) != (settings.entity_kind == "text"))
                | ((headers["peer_kind"] == _TEXT) != (settings.peer_kind == "text")),
                lambda _row: "has other columns than the settings of the run say",
            )
        ]
        if settings.entity_kind == "text":
            codes = to_numbers(decoded.entities)
            rules.append(known("entity", settings.entity, codes, every))
        if settings.peer_kind == "text":
            rows = np.repeat(every, decoded.peers4 + decoded.peers6)
            codes = to_numbers(decoded.peers)
            rules.append(known("peer", settings.peer, codes, rows))
        # other columns break the first rule
        columns = dict(zip(settings.values, decoded.values, strict=False))
        for name, role in categories.items():
            if name in columns:
                codes = columns[name].astype(np.int64) - 1
                rules.append(known(role, name, codes, np.repeat(every, decoded.n)))
        self._refuse_first(rules)

    def _known_codes(
        self, count: int, role: str, column: str | None, codes: I64, rows: I64
    ) -> Rule:
        """Find rows with a code that is not in its dictionary.

        count: of all rows; rows: of each code.
        """
        unknown = np.zeros(count, np.bool_)
        unknown[rows[codes >= len(self._context.texts[role].dictionary)]] = True
        return Rule(unknown, lambda _row: f"has a code of {column} that is not in its dictionary")

    def _refuse_first(self, rules: Sequence[Rule]) -> None:
        """Raise `CorruptShard` for the first row that breaks a rule."""
        violation = first_violation(rules)
        if violation is not None:
            row = self.rows + violation.row + 1
            raise CorruptShard(violation.message, path=self._path, row=row)

    def _value_words(self, decoded: Decoded) -> U64 | None:
        """Return the words of the values, as they were when the measurements were gathered."""
        if not decoded.values:
            return None
        categories = self._settings.categories()
        words = []
        for name, column in zip(self._settings.values, decoded.values, strict=True):
            if name in categories:
                hashes = np.append(np.uint64(0), self._context.texts[categories[name]].hashes)
                words.append(hashes[column])
            else:
                words.append(to_words(column))
        return np.column_stack(words)


def _codes_rule(decoded: Decoded) -> Rule:
    """Find rows with a latency code that no latency has."""
    strange = np.flatnonzero(~is_canonical(decoded.codes))
    rows = np.searchsorted(decoded.starts, strange, side="right") - 1

    def message(row: int) -> str:
        at = int(strange[np.searchsorted(rows, row)])
        measurement = at - int(decoded.starts[row]) + 1
        return (
            f"measurement {measurement} has code {int(decoded.codes[at])}, which encodes no latency"
        )

    return Rule(np.isin(np.arange(len(decoded.n)), rows), message)


def contents_of_split(dataset: IndexedDataset, split: str, workers: int) -> SplitContents:
    """Digest the history of each entity of a split, as `duplicates` compares them.

    Raises `CorruptShard` for a damaged row.
    """
    manifest = getattr(dataset, "manifest", None)
    assert manifest is not None  # only runs have this recipe
    settings = read_settings(dataset.root, manifest, Histories)

    def sum_rows(table: pa.Table) -> U64:
        blobs = table["measurements"].combine_chunks()
        sums = [np.empty(0, np.uint64)]
        for first, stop in READ_LIMIT.cut(np.asarray(pc.binary_length(blobs), np.int64)):
            part = blobs.slice(first, stop - first)
            offsets = np.frombuffer(part.buffers()[1], np.int64, len(part) + 1, 8 * part.offset)
            data = np.frombuffer(part.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
            decoded = decode_together(data, np.diff(offsets))
            if decoded.damage is not None:
                raise damaged(f"{dataset.root}: split {split}", decoded.damage)
            # Codes are as good as their texts, because a run has one dictionary.
            peer = _peers(decoded, mix_peers(decoded.peers))
            words = None
            if decoded.values:
                words = np.column_stack([to_words(column) for column in decoded.values])
            times = _times(decoded)
            sums.append(content_sums(settings, times, peer, decoded.codes, decoded.starts, words))
        return np.concatenate(sums)

    def read_block(table: pa.Table) -> tuple[U64, I64, I64]:
        part = table["part"].to_numpy().astype(np.int64)
        return sum_rows(table), table["n_measurements"].to_numpy(), part

    columns = ["part", "n_measurements", "measurements"]
    blocks = map_blocks(dataset, split, workers, columns, read_block)
    if not blocks:
        return SplitContents(settings.compared(), np.empty(0, np.int64), np.empty(0, np.uint64))
    sums, counts, part = (np.concatenate(column) for column in zip(*blocks, strict=True))
    first = np.flatnonzero(part == 0)
    digest = digests(np.add.reduceat(sums, first), np.add.reduceat(counts, first))
    return SplitContents(settings.compared(), first, digest)


def _mask(words: pa.Array | pa.ChunkedArray) -> Bools:
    return np.asarray(words, np.bool_)


def _times(decoded: Decoded) -> I64:
    """Return the time of each measurement of rows, in the unit of the run."""
    times: I64 = _repeat(decoded.headers["first_time"], decoded.n) + decoded.offsets
    return times


def _peers(decoded: Decoded, mixed: U64) -> U64 | None:
    """Return the peer of each measurement of rows. mixed: of each peer, see `mix_peers`."""
    if decoded.index is None:
        return None
    counts = decoded.peers4 + decoded.peers6
    mixed = np.append(mixed, np.uint64(0))
    begin = np.where(counts > 0, np.cumsum(counts) - counts, len(mixed) - 1)
    peers: U64 = mixed[_repeat(begin, decoded.n) + decoded.index]
    return peers


def _repeat(values: npt.NDArray[Any], n: I64) -> Any:
    """Repeat a row's value for each of its n measurements."""
    if len(n) == 1:
        return np.broadcast_to(values, int(n[0]))
    return np.repeat(values, n)
