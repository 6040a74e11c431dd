"""The first stage: the rows of one task, tokenised and made to fit, into a spool and the origins beside it.

Rows that give no sequence are written down one by one with file, line and reason. Every row is in the spool, or written
down, or was left out by `sample` or a filter and is counted; every token is in the spool or counted as lost.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrays import I64
from headrace.bins.alignment import shift_left
from headrace.digest import canonical_json, derive_key, hash_texts, sha256_file
from headrace.errors import InputError
from headrace.formats.write import Written
from headrace.packing.assign import Part, row_hashes
from headrace.packing.chats.reader import BrokenRow, Row, RowBatch, read_rows
from headrace.packing.chats.rejects import CHOSEN
from headrace.packing.chats.tokenise import Encoded
from headrace.packing.config import PackedSequences
from headrace.packing.fingerprint import sequence_prints
from headrace.packing.origins import Origins, write_origins
from headrace.packing.storage.spool import SpoolWriter
from headrace.packing.too_long import Pieces, fit, label_counts
from headrace.run.context import TaskFiles
from headrace.storage.local import storing

NO_SPLIT_KEY, TOO_SHORT, TOO_LONG, SAMPLED_OUT = "no_split_key", "too_short", "too_long", "sampled_out"
NOT_BAD = frozenset((*CHOSEN, TOO_LONG, SAMPLED_OUT))  # rows that somebody chose to leave out; the others are bad


Encode = Callable[[Sequence[Row]], Encoded]


@dataclass(frozen=True)
class EncodeTask:
    """What one task reads: parts of the files of a dataset.

    names: of the dataset's files, as the run knows them.
    sample_below: rows whose sample hash is at most this are taken; None: all.
    """

    number: int
    dataset: str
    paths: Sequence[Path]
    names: Sequence[str]
    parts: Sequence[Part]
    sample_below: int | None = None


def spool_directory(number: int) -> str:
    """Where the spool of a task lies, relative to the run."""
    return f"stage/tokenise-{number:05d}"


def origins_file(number: int) -> str:
    """Where its origins lie."""
    return f"stage/tokenise-{number:05d}.origins.arrow"


def rejected_file(number: int) -> str:
    """Where the rows that gave nothing are written down."""
    return f"stage/tokenise-{number:05d}.rejected.jsonl"


def sample_hashes(files: TaskFiles, settings: PackedSequences, task: EncodeTask) -> dict[str, Any]:
    """The `sample` smallest sample hashes of a task's rows, kept in a file: nothing is tokenised for that."""
    found, rows_read = [np.empty(0, np.uint64)], 0
    for part in task.parts:
        for batch in _batches(task, part):
            rows_read += len(batch.rows)
            found.append(_sample_hash(settings, task, part, np.array(batch.numbers, np.int64)))
    smallest = np.sort(np.concatenate(found))[: settings.sample]
    target = sample_file(task.number)
    temporary = files.temporary(target)
    with storing(temporary.parent), temporary.open("xb") as file:
        np.save(file, smallest, allow_pickle=False)
    files.finished(temporary, target, Written(len(smallest), temporary.stat().st_size, sha256_file(temporary), ()))
    return {"rows_read": rows_read}


def sample_file(number: int) -> str:
    """Where the sample hashes of a task lie."""
    return f"stage/sample-{number:05d}.npy"


def encode_shard(
    files: TaskFiles, settings: PackedSequences, task: EncodeTask, encode: Encode, blank: int | None
) -> dict[str, Any]:
    """Tokenise a task. blank: the padding token where sequences will be padded. O(batch) of memory, and O(sequences).

    Raises `InputError` for a sequence that fits no bin where that is an error.
    """
    with SpoolWriter(spool_directory(task.number), files=files) as spool:
        shard = _Shard(settings, task, encode, blank, spool)
        for part in task.parts:
            for batch in _batches(task, part):
                shard.take(part, batch)
        spool.finish({"dataset": task.dataset})
        write_origins(files, origins_file(task.number), Origins.joined(shard.origins))
        _write_rejected(files, rejected_file(task.number), shard.rejected)
    return shard.result()


def _batches(task: EncodeTask, part: Part) -> Iterator[RowBatch]:
    path = task.paths[part.file]
    yield from read_rows(path, name=task.names[part.file], part=(part.remainder, part.modulus))


def _sample_hash(settings: PackedSequences, task: EncodeTask, part: Part, rows: I64) -> npt.NDArray[np.uint64]:
    return row_hashes(settings.seed, "packed_sequences.sample", _name_digest(task.names[part.file]), rows)[0]


def _name_digest(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


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
        self.rows_of[self.task.names[part.file]] += len(batch.rows)
        numbers = np.array(batch.numbers, np.int64)
        taken = np.ones(len(numbers), np.bool_)
        if self.task.sample_below is not None:
            taken = _sample_hash(self.settings, self.task, part, numbers) <= np.uint64(self.task.sample_below)
            self.dropped[SAMPLED_OUT] += int((~taken).sum())
        places, rows, keys = [], [], []
        for place in np.flatnonzero(taken).tolist():
            row = batch.rows[place]
            if isinstance(row, BrokenRow):
                self._reject(batch, place, row.reason, row.detail)
                continue
            key = None if self.settings.split_key is None else row.get(self.settings.split_key)
            if self.settings.split_key is not None and key in (None, ""):
                self._reject(batch, place, NO_SPLIT_KEY, f"{self.settings.split_key} is {key!r}")
                continue
            places.append(place)
            rows.append(row)
            keys.append(key)
        if not rows:
            return
        encoded = self.encode(rows)
        self.count["special_text_rows"] += encoded.special_text
        for each in encoded.rejected:
            self._reject(batch, places[each.row], each.reason, each.detail)
        if len(encoded.lengths):
            self._keep(part, batch, np.array(places), keys, encoded)

    def _keep(self, part: Part, batch: RowBatch, places: I64, keys: list[Any], encoded: Encoded) -> None:
        lengths = np.asarray(encoded.lengths, np.int64)
        starts = np.cumsum(lengths) - lengths
        self.count["encoded_sequences"] += len(lengths)
        self.count["encoded_tokens"] += int(lengths.sum())
        self.count["encoded_labels"] += int(label_counts(encoded.mask, starts, lengths).sum())
        pieces = self._fitting(batch, places, encoded, lengths)
        short = pieces.lengths < 2
        self.lost[TOO_SHORT].update(sequences=int(short.sum()), tokens=int(pieces.lengths[short].sum()), labels=0)
        kept = np.flatnonzero(~short)
        rows_kept = encoded.rows[pieces.sequence[kept]]
        for row in np.setdiff1d(encoded.rows, rows_kept).tolist():
            own = np.flatnonzero(encoded.rows == row)
            over = int(lengths[own].max()) > self.settings.longest
            detail = f"its longest sequence has {int(lengths[own].max()):,} tokens"
            self._reject(batch, int(places[row]), TOO_LONG if over else TOO_SHORT, detail)
        if not len(kept):
            return
        self._write(part, batch, places, keys, encoded, pieces, kept)

    def _fitting(self, batch: RowBatch, places: I64, encoded: Encoded, lengths: I64) -> Pieces:
        longest, policy = self.settings.longest, self.settings.too_long
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
        self,
        part: Part,
        batch: RowBatch,
        places: I64,
        keys: list[Any],
        encoded: Encoded,
        pieces: Pieces,
        kept: I64,
    ) -> None:
        tokens, mask, lengths = encoded.tokens, encoded.mask, pieces.lengths[kept]
        if int(lengths.sum()) != len(tokens):
            at = _ranges(pieces.starts[kept], lengths)
            tokens, mask = tokens[at], mask[at]
        self.spool.add(tokens, mask, lengths)
        rows = encoded.rows[pieces.sequence[kept]]
        numbers = np.array(batch.numbers, np.int64)[places[rows]]
        if self.settings.split_key is None:
            name = _name_digest(self.task.names[part.file])
            high, low = row_hashes(self.settings.seed, "packed_sequences.row", name, numbers)
        else:
            texts = pa.array([_key_text(key) for key in keys], pa.large_string())
            each_high, each_low = hash_texts(derive_key(self.settings.seed, "packed_sequences.key"), texts)
            high, low = each_high[rows], each_low[rows]
        aligned = None
        if self.settings.loss_mask_alignment == "shift_left":
            aligned = shift_left(mask, np.cumsum(lengths))
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
        if reason == "preference_data":  # one row tells that the file was made for another kind of training
            raise InputError(f"dataset {self.task.dataset}: {batch.where(place)}: {detail}")
        self.dropped[reason] += 1
        self.first.setdefault(reason, f"{batch.where(place)}: {detail}")
        if reason not in CHOSEN:
            record = {"dataset": self.task.dataset, "file": batch.file, batch.unit: batch.numbers[place]}
            self.rejected.append({**record, "reason": reason, "detail": detail})

    def result(self) -> dict[str, Any]:
        names: tuple[str, ...] = (
            "rows_read",
            "rows",
            "sequences",
            "tokens",
            "labels",
            "truncated",
            "too_long_dropped",
            "divided",
        )
        names += ("special_text_rows", "encoded_sequences", "encoded_tokens", "encoded_labels")
        return {
            **{name: self.count[name] for name in names},
            "dataset": self.task.dataset,
            "rows_of": dict(sorted(self.rows_of.items())),
            "inputs": [self.task.names[part.file] for part in self.task.parts],
            "dropped": dict(sorted(self.dropped.items())),
            "first": dict(sorted(self.first.items())),
            "lost": {reason: dict(sorted(lost.items())) for reason, lost in self.lost.items()},
        }


def _ranges(starts: I64, lengths: I64) -> I64:
    """All places of the ranges, end to end."""
    ends = np.cumsum(lengths)
    return np.asarray(np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths), np.int64)


def _key_text(key: object) -> str:
    return key if isinstance(key, str) else canonical_json(key).decode()


def _write_rejected(files: TaskFiles, target: str, rejected: Sequence[Mapping[str, Any]]) -> None:
    temporary = files.temporary(target)
    with storing(temporary.parent), temporary.open("x", encoding="utf-8") as file:
        for each in rejected:
            file.write(json.dumps(each, ensure_ascii=True, sort_keys=True) + "\n")
    size = temporary.stat().st_size
    files.finished(temporary, target, Written(len(rejected), size, sha256_file(temporary), ()))
