"""The first stage: rows of the datasets, tokenised and made to fit, into spools and the origins beside them.

A task reads whole files, or every n-th row of one. Rows that give no sequence are written down one by one with file,
line and reason. Every row is in the spool, or written down, or was left out by `sample` or a filter and is counted;
every token is in the spool or counted as lost.
"""

from __future__ import annotations

import heapq
import json
import platform
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrays import I64, U64
from headrace.bins.rows import shift_left
from headrace.digest import canonical_json, derive_key, hash_texts, hash_words
from headrace.errors import InputError, SettingsError
from headrace.formats.listing import list_files
from headrace.machine import library_version
from headrace.packing.blend import Source, Split
from headrace.packing.chats.reader import BrokenRow, Row, RowBatch, read_rows
from headrace.packing.chats.settings import RowForm, fingerprint_of
from headrace.packing.chats.tokenise import ChatEncoder, Encoded
from headrace.packing.chats.words import CHOSEN
from headrace.packing.config import PackedSequences
from headrace.packing.sequences import Origins, Pieces, fit, label_counts, sequence_prints, write_origins
from headrace.packing.storage.spool import SpoolWriter
from headrace.run.context import RunContext, Task, TaskFiles

NO_SPLIT_KEY, TOO_SHORT, TOO_LONG, SAMPLED_OUT = "no_split_key", "too_short", "too_long", "sampled_out"
NOT_BAD = frozenset((*CHOSEN, TOO_LONG, SAMPLED_OUT))  # rows that somebody chose to leave out; the others are bad

_TASK_BYTES = 8 << 20
_COUNTED = ("rows_read", "rows", "sequences", "tokens", "labels", "truncated", "too_long_dropped", "divided")
_ENCODED = ("special_text_rows", "encoded_sequences", "encoded_tokens", "encoded_labels")

Encode = Callable[[Sequence[Row]], Encoded]


@dataclass(frozen=True)
class Dataset:
    """A source with its files. split: of a blend per split. names: of the files, unique in the run."""

    source: Source
    split: Split | None
    paths: Sequence[Path]
    names: Sequence[str]
    sizes: Sequence[int]


@dataclass(frozen=True)
class Part:
    """The rows of one file that a task reads: those whose number, from 0, is `remainder` modulo `modulus`."""

    file: int
    remainder: int = 0
    modulus: int = 1


@dataclass(frozen=True)
class EncodeTask:
    """What one task reads: parts of the files of a dataset, whose place in the blend `owner` is.

    sample_below: rows whose sample hash is at most this are taken; None: all.
    """

    number: int
    owner: int
    dataset: Dataset
    parts: Sequence[Part]
    sample_below: int | None = None

    def file(self, suffix: str = "") -> str:
        """Name a file of the task, relative to the run; without a suffix the directory of its spool."""
        return f"stage/tokenise-{self.number:05d}{suffix}"

    def batches(self) -> Iterator[tuple[Part, RowBatch]]:
        """Read the rows."""
        for part in self.parts:
            path, name = self.dataset.paths[part.file], self.dataset.names[part.file]
            for batch in read_rows(path, name=name, part=(part.remainder, part.modulus)):
                yield part, batch

    def hashes(self, seed: int, purpose: str, part: Part, rows: I64) -> tuple[U64, U64]:
        """Hash the row numbers [N] of a file."""
        name = blake2b(self.dataset.names[part.file].encode(), digest_size=8).digest()
        return row_hashes(seed, f"packed_sequences.{purpose}", int.from_bytes(name, "little"), rows)

    def task(self, work: Callable[[TaskFiles], dict[str, Any]]) -> Task:
        """Make a task of a stage of it."""
        part, names, sizes = self.parts[0], self.dataset.names, self.dataset.sizes
        share = f" rows {part.remainder} mod {part.modulus}" if part.modulus > 1 else ""
        more = f" and {len(self.parts) - 1} more" if len(self.parts) > 1 else ""
        return Task(
            f"{names[part.file]}{share}{more}",
            sum(sizes[each.file] // each.modulus for each in self.parts),
            work,
            [self.dataset.paths[number] for number in sorted({each.file for each in self.parts})],
        )


def datasets_of(settings: PackedSequences) -> list[Dataset]:
    """List the datasets with a weight above 0 and their files, in the order of the blend."""
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


def encode_tasks(settings: PackedSequences, context: RunContext, datasets: Sequence[Dataset]) -> list[EncodeTask]:
    """List every task, numbered through. With `sample`, a stage of its own finds out whom to take."""
    tasks: list[EncodeTask] = []
    for owner, dataset in enumerate(datasets):
        shards = settings.num_shards or max(1, -(-sum(dataset.sizes) // _TASK_BYTES))
        for parts in assign_files(dataset.sizes, dataset.names, shards):
            tasks.append(EncodeTask(len(tasks), owner, dataset, parts))
    if settings.sample is None:
        return tasks
    context.stage(
        "sample", [each.task(partial(_sample_hashes, settings=settings, task=each)) for each in tasks], durable=False
    )
    sampled = []
    for owner in range(len(datasets)):
        own = [task for task in tasks if task.owner == owner]
        hashes = np.sort(np.concatenate([_read_hashes(context.run / task.file(".sample.arrow")) for task in own]))
        below = int(hashes[min(settings.sample, len(hashes)) - 1]) if len(hashes) else None
        sampled += [replace(task, sample_below=below) for task in own]
    return sampled


def assign_files(sizes: Sequence[int], names: Sequence[str], shards: int) -> list[list[Part]]:
    """Give each of `shards` tasks its files: every file whole in one task, or its rows dealt out to several.

    Largest file first (equal sizes by name), each to the task with the fewest bytes so far (then the lowest number);
    inside a task files are in name order. Fewer files than tasks: every file gets one task, and each further task goes
    to the file with the most bytes per task. Every row of every file is in exactly one task.
    """
    if len(sizes) >= shards:
        tasks: list[list[Part]] = [[] for _ in range(shards)]
        loads = [(0, number) for number in range(shards)]
        for file in sorted(range(len(sizes)), key=lambda each: (-sizes[each], names[each])):
            load, number = heapq.heappop(loads)
            tasks[number].append(Part(file))
            heapq.heappush(loads, (load + sizes[file], number))
        return [sorted(parts, key=lambda part: names[part.file]) for parts in tasks]
    order = sorted(range(len(sizes)), key=lambda each: names[each])
    counts = dict.fromkeys(order, 1)
    heap = [(Fraction(-max(sizes[file], 1)), place, file) for place, file in enumerate(order)]
    heapq.heapify(heap)
    for _ in range(shards - len(sizes)):
        _, place, file = heapq.heappop(heap)
        counts[file] += 1
        heapq.heappush(heap, (Fraction(-max(sizes[file], 1), counts[file]), place, file))
    return [[Part(file, remainder, counts[file])] for file in order for remainder in range(counts[file])]


def row_hashes(seed: int, purpose: str, name_digest: int, rows: I64) -> tuple[U64, U64]:
    """Make a keyed 128-bit hash for each row number [N] of a file known by a 64-bit digest of its name."""
    words = np.empty((len(rows), 2), np.uint64)
    words[:, 0] = np.uint64(name_digest)
    words[:, 1] = rows
    return hash_words(derive_key(seed, purpose), words)


def _sample_hashes(files: TaskFiles, settings: PackedSequences, task: EncodeTask) -> dict[str, Any]:
    """Keep the `sample` smallest sample hashes of a task's rows in a file: nothing is tokenised for that."""
    found, rows_read = [np.empty(0, np.uint64)], 0
    for part, batch in task.batches():
        rows_read += len(batch.rows)
        found.append(task.hashes(settings.seed, "sample", part, np.array(batch.numbers, np.int64))[0])
    smallest = np.sort(np.concatenate(found))[: settings.sample]
    files.write_arrow(task.file(".sample.arrow"), pa.table({"hash": smallest}))
    return {"rows_read": rows_read}


def _read_hashes(path: Path) -> npt.NDArray[np.uint64]:
    with pa.memory_map(str(path)) as source:
        hashes: npt.NDArray[np.uint64] = pa.ipc.open_file(source).read_all()["hash"].to_numpy()
    return hashes


class Encoder:
    """Encodes the rows of any dataset, from any thread. The tokenizer is loaded once, when it is first needed."""

    def __init__(self, settings: PackedSequences) -> None:
        self.settings = settings
        self.fingerprint = fingerprint_of(settings, RowForm())
        self._first: ChatEncoder | None = None
        self._loading = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return _in_this_process, (self.settings, self.fingerprint)

    def of(self, source: Source) -> ChatEncoder:
        """Give the encoder of this dataset."""
        return self._chat.sharing(self.settings, source)

    @property
    def pad_id(self) -> int | None:
        """The token to pad with: as it was asked for, else the end token."""
        return self._chat.eos_id if self.settings.pad_id is None else self.settings.pad_id

    def facts(self) -> dict[str, Any]:
        """List what the manifest says of it: digest, vocabulary, padding token, and the libraries that made tokens."""
        names = () if self.settings.tokenizer is None else ("tokenizers", "jinja2")
        return {
            "fingerprint": self.fingerprint,
            "vocabulary": self._chat.vocabulary,
            "pad_id": self.pad_id,
            "libraries": {name: library_version(name) for name in names},
        }

    def must_pad(self) -> int | None:
        """Give the padding token where sequences are padded, else None. Raises `SettingsError` where none is known."""
        if self.settings.pad_multiple == 1:
            return None
        if self.pad_id is None:
            raise SettingsError(
                f"pad_multiple is {self.settings.pad_multiple}, and no tokenizer names an end token to pad with; "
                f"give pad_id="
            )
        return self.pad_id

    @property
    def _chat(self) -> ChatEncoder:
        with self._loading:
            if self._first is None:
                self._first = ChatEncoder(self.settings)
            return self._first


def _in_this_process(settings: PackedSequences, fingerprint: str) -> Encoder:
    """The encoder of another process, made anew: tokenizers do not travel. Raises `InputError` if it is another one."""
    encoder = Encoder(settings)
    if encoder.fingerprint != fingerprint:
        raise InputError(
            f"{settings.tokenizer}: tokenizer or template on {platform.node()} is not the one that the run began with "
            f"(digest {encoder.fingerprint[:12]}, not {fingerprint[:12]}); give all machines the same files"
        )
    return encoder


def encode_task(settings: PackedSequences, task: EncodeTask, encoder: Encoder) -> Task:
    """Make the task that tokenises."""
    blank = encoder.must_pad()
    return task.task(lambda files: _encode(files, settings, task, encoder.of(task.dataset.source).encode, blank))


def _encode(
    files: TaskFiles, settings: PackedSequences, task: EncodeTask, encode: Encode, blank: int | None
) -> dict[str, Any]:
    """Tokenise. blank: the padding token where sequences will be padded. O(batch) of memory, and O(sequences).

    Raises `InputError` for a sequence that fits no bin where that is an error.
    """
    with SpoolWriter(task.file(), files=files) as spool:
        shard = _Shard(settings, task, encode, blank, spool)
        for part, batch in task.batches():
            shard.take(part, batch)
        spool.finish()
        write_origins(files, task.file(".origins.arrow"), Origins.joined(shard.origins))
        lines = (json.dumps(each, ensure_ascii=True, sort_keys=True) + "\n" for each in shard.rejected)
        files.write(task.file(".rejected.jsonl"), "".join(lines).encode())
    return shard.result()


class _Shard:
    """The running state of one task."""

    def __init__(
        self, settings: PackedSequences, task: EncodeTask, encode: Encode, blank: int | None, spool: SpoolWriter
    ) -> None:
        self.settings, self.task, self.encode, self.blank, self.spool = settings, task, encode, blank, spool
        self.origins: list[Origins] = []
        self.rejected: list[dict[str, Any]] = []
        self.dropped: Counter[str] = Counter()
        self.first: dict[str, str] = {}
        self.count: Counter[str] = Counter()
        self.rows_of: Counter[str] = Counter()
        self.lost: dict[str, Counter[str]] = {TOO_LONG: Counter(), TOO_SHORT: Counter()}

    def take(self, part: Part, batch: RowBatch) -> None:
        self.count["rows_read"] += len(batch.rows)
        self.rows_of[self.task.dataset.names[part.file]] += len(batch.rows)
        numbers, entity = np.array(batch.numbers, np.int64), self.settings.entity
        taken = np.ones(len(numbers), np.bool_)
        if self.task.sample_below is not None:
            hashes, _ = self.task.hashes(self.settings.seed, "sample", part, numbers)
            taken = hashes <= np.uint64(self.task.sample_below)
            self.dropped[SAMPLED_OUT] += int((~taken).sum())
        places, rows, keys = [], [], []
        for place in np.flatnonzero(taken).tolist():
            row = batch.rows[place]
            if isinstance(row, BrokenRow):
                self._reject(batch, place, row.reason, row.detail)
                continue
            if entity is not None:
                key = row.get(entity)
                if key in (None, ""):
                    self._reject(batch, place, NO_SPLIT_KEY, f"{entity} is {key!r}")
                    continue
                keys.append(key if isinstance(key, str) else canonical_json(key).decode())
            places.append(place)
            rows.append(row)
        if not rows:
            return
        encoded = self.encode(rows)
        self.count["special_text_rows"] += encoded.special_text
        for each in encoded.rejected:
            self._reject(batch, places[each.row], each.reason, each.detail)
        if len(encoded.lengths):
            self._keep(part, batch, np.array(places), keys, encoded)

    def _keep(self, part: Part, batch: RowBatch, places: I64, keys: list[str], encoded: Encoded) -> None:
        lengths = encoded.lengths
        starts = np.cumsum(lengths) - lengths
        self.count["encoded_sequences"] += len(lengths)
        self.count["encoded_tokens"] += int(lengths.sum())
        self.count["encoded_labels"] += int(label_counts(encoded.mask, starts, lengths).sum())
        pieces = self._fitting(batch, places, encoded)
        short = pieces.lengths < 2
        self.lost[TOO_SHORT].update(sequences=int(short.sum()), tokens=int(pieces.lengths[short].sum()), labels=0)
        kept = np.flatnonzero(~short)
        rows = encoded.rows[pieces.sequence[kept]]
        for row in np.setdiff1d(encoded.rows, rows).tolist():
            longest = int(lengths[encoded.rows == row].max())
            reason = TOO_LONG if longest > self.settings.longest else TOO_SHORT
            self._reject(batch, int(places[row]), reason, f"its longest sequence has {longest:,} tokens")
        if len(kept):
            self._write(part, np.array(batch.numbers, np.int64)[places[rows]], rows, keys, encoded, pieces, kept)

    def _fitting(self, batch: RowBatch, places: I64, encoded: Encoded) -> Pieces:
        longest, policy, lengths = self.settings.longest, self.settings.too_long, encoded.lengths
        over = np.flatnonzero(lengths > longest)
        if policy == "error":
            if len(over):
                where = batch.where(int(places[encoded.rows[over[0]]]))
                raise InputError(
                    f"{where}: gives a sequence of {lengths[over[0]]:,} tokens, a bin holds {longest:,}; choose what "
                    f"becomes of such rows with too_long='truncate', 'drop' or 'split', or a larger pack_size"
                )
            policy = "drop"
        pieces = fit(encoded.mask, lengths, longest, policy)
        self.count.update(truncated=pieces.truncated, too_long_dropped=pieces.dropped, divided=pieces.divided)
        self.lost[TOO_LONG].update(sequences=pieces.dropped, tokens=pieces.lost_tokens, labels=pieces.lost_labels)
        return pieces

    def _write(
        self, part: Part, numbers: I64, rows: I64, keys: list[str], encoded: Encoded, pieces: Pieces, kept: I64
    ) -> None:
        """Keep these pieces. numbers: of their rows in the file; rows: their places among the encoded rows."""
        tokens, mask, lengths = encoded.tokens, encoded.mask, pieces.lengths[kept]
        if int(lengths.sum()) != len(tokens):
            at = np.arange(lengths.sum()) + np.repeat(pieces.starts[kept] - (np.cumsum(lengths) - lengths), lengths)
            tokens, mask = tokens[at], mask[at]
        self.spool.add(tokens, mask, lengths)
        if self.settings.entity is None:
            high, low = self.task.hashes(self.settings.seed, "row", part, numbers)
        else:
            texts = pa.array(keys, pa.large_string())
            units = hash_texts(derive_key(self.settings.seed, "packed_sequences.key"), texts)
            high, low = (each[rows] for each in units)
        aligned = shift_left(mask, np.cumsum(lengths)) if self.settings.loss_mask_alignment == "shift_left" else None
        self.origins.append(
            Origins(
                file=np.full(len(lengths), part.file, np.int32),
                row=numbers,
                unit_high=high,
                unit_low=low,
                lengths=lengths,
                labels=pieces.labels[kept],
                prints=sequence_prints(tokens, aligned, lengths, self.blank),
            )
        )
        self.count.update(rows=len(np.unique(rows)), sequences=len(lengths))
        self.count.update(tokens=int(lengths.sum()), labels=int(pieces.labels[kept].sum()))

    def _reject(self, batch: RowBatch, place: int, reason: str, detail: str) -> None:
        name = self.task.dataset.source.name
        if reason == "preference_data":  # one row tells that the file was made for another kind of training
            raise InputError(f"dataset {name}: {batch.where(place)}: {detail}")
        self.dropped[reason] += 1
        self.first.setdefault(reason, f"{batch.where(place)}: {detail}")
        if reason not in CHOSEN:
            record = {"dataset": name, "file": batch.file, batch.unit: batch.numbers[place]}
            self.rejected.append({**record, "reason": reason, "detail": detail})

    def result(self) -> dict[str, Any]:
        def ordered(counts: Mapping[str, Any]) -> dict[str, Any]:
            return dict(sorted(counts.items()))

        return {
            **{name: self.count[name] for name in (*_COUNTED, *_ENCODED)},
            "dataset": self.task.dataset.source.name,
            "rows_of": ordered(self.rows_of),
            "inputs": [self.task.dataset.names[part.file] for part in self.task.parts],
            "dropped": ordered(self.dropped),
            "first": ordered(self.first),
            "lost": {reason: ordered(lost) for reason, lost in self.lost.items()},
        }
