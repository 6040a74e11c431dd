"""Read rows of the datasets, tokenise them and make them fit: the first stage.

A task reads whole files, or every n-th row of one file. It writes the sequences to a spool and
their origins to a file beside it. It lists each row that gives no sequence with its file, line and
reason. Every row is in the spool, is listed, or is counted because `sample` or a filter leaves it
out. Every token is in the spool or is counted as lost.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.arrays import I32, I64, U8, U64
from headrace.bins.rows import shift_left
from headrace.digest import canonical_json, derive_key
from headrace.errors import InputError, setting, setting_name
from headrace.formats.column_paths import value_at
from headrace.keyed_hash import hash_texts, hash_words
from headrace.packing.blend import BlendDataset
from headrace.packing.chat_recipe import ChatRecipe
from headrace.packing.chats.backends import BackendDiffers
from headrace.packing.chats.layouts import digest_of_texts, layout_of
from headrace.packing.chats.reader import NPY, BrokenRow, RowBatch, read_rows
from headrace.packing.chats.rejections import CHOSEN, RowRejected
from headrace.packing.chats.settings import ChatForm
from headrace.packing.chats.tokenise import ChatEncoder, EncodedChats
from headrace.packing.chats.words import WHOLE, RowWords, Words, left_out
from headrace.packing.config import PackedSequences
from headrace.packing.sequences import (
    Origins,
    Pieces,
    fit,
    label_counts,
    sequence_prints,
)
from headrace.packing.storage.spool import SpoolWriter
from headrace.run.context import RunContext, Task, TaskFiles, read_arrow
from headrace.stream.audit.exclude import IN_BENCHMARK
from headrace.stream.audit.overlap import Benchmarks, texts_in

NO_SPLIT_KEY = "no_split_key"
TOO_SHORT = "too_short"
TOO_LONG = "too_long"
SAMPLED_OUT = "sampled_out"
NOT_BAD = frozenset(
    (*CHOSEN, TOO_LONG, SAMPLED_OUT, IN_BENCHMARK)
)  # rows that are left out on request; rows with other reasons are bad

_TASK_BYTES = 8 << 20
_COUNTED = (
    *(
        "rows_in",
        "rows",
        "sequences",
        "tokens",
        "labels",
        "truncated",
        "too_long_dropped",
        "divided",
    ),
    *("special_text_rows", "encoded_sequences", "encoded_tokens", "encoded_labels"),
    *("backend_compared", "backend_different"),
    *("chat_sequences", "read_sequences", "transcripts", "empty_answers"),
)


@dataclass(frozen=True)
class FilePart:
    """The rows of one file that a task reads: those whose number, from 0, is `remainder` modulo
    `modulus`.
    """

    file: int
    remainder: int = 0
    modulus: int = 1


@dataclass(frozen=True)
class EncodeTask:
    """The parts of a dataset's files that one task reads. owner: index of the dataset in the blend.

    sample_below: the task takes rows whose sample hash is at most this value; None takes all rows.
    """

    number: int
    owner: int
    dataset: BlendDataset
    parts: Sequence[FilePart]
    sample_below: int | None = None

    def file(self, suffix: str = "") -> str:
        """Name a file of the task, relative to the run; without a suffix the directory of its
        spool.
        """
        return f"stage/tokenise-{self.number:05d}{suffix}"

    def batches(self, settings: ChatRecipe) -> Iterator[tuple[FilePart, RowBatch]]:
        """Read the rows of the task in batches."""
        named = settings.named_columns(self.dataset.source)
        for part in self.parts:
            path = self.dataset.paths[part.file]
            name = self.dataset.names[part.file]
            alignment = self.dataset.source.alignment
            for batch in read_rows(
                path,
                name=name,
                part=(part.remainder, part.modulus),
                alignment=alignment,
                named=named,
                unread=settings.unread_columns,
                dialect=settings.dialect,
            ):
                yield part, batch

    def hashes(self, seed: int, purpose: str, part: FilePart, rows: I64) -> tuple[U64, U64]:
        """Hash the row numbers [N] of a file."""
        name = blake2b(self.dataset.names[part.file].encode(), digest_size=8).digest()
        return row_hashes(seed, f"packed_sequences.{purpose}", int.from_bytes(name, "little"), rows)

    def task(self, work: Callable[[EncodeTask, TaskFiles], dict[str, Any]]) -> Task:
        """Make a stage's task that runs `work` on this one."""
        part = self.parts[0]
        names = self.dataset.names
        sizes = self.dataset.sizes
        rows = ""
        if part.modulus > 1:
            rows = f" rows {part.remainder} mod {part.modulus}"
        more = ""
        if len(self.parts) > 1:
            more = f" and {len(self.parts) - 1} more"
        return Task(
            f"{names[part.file]}{rows}{more}",
            sum(sizes[part.file] // part.modulus for part in self.parts),
            partial(work, self),
            [self.dataset.paths[number] for number in sorted({part.file for part in self.parts})],
        )


def encode_tasks(
    settings: ChatRecipe, context: RunContext, datasets: Sequence[BlendDataset]
) -> list[EncodeTask]:
    """List all tasks, numbered in order.

    With `sample`, a stage before it finds which rows to take.
    """
    tasks: list[EncodeTask] = []
    for owner, dataset in enumerate(datasets):
        shards = settings.num_shards or max(1, -(-sum(dataset.sizes) // _TASK_BYTES))
        # which only one task should have in memory
        if any(path.suffix == NPY for path in dataset.paths):
            shards = min(shards, len(dataset.paths))
        for parts in assign_files(dataset.sizes, dataset.names, shards):
            tasks.append(EncodeTask(len(tasks), owner, dataset, parts))
    if settings.sample is None:
        return tasks
    context.stage(
        "sample", [task.task(partial(_sample, settings=settings)) for task in tasks], durable=False
    )
    sampled = []
    for owner in range(len(datasets)):
        of_dataset = [task for task in tasks if task.owner == owner]
        hash_parts = []
        for task in of_dataset:
            hash_parts.append(
                read_arrow(context.run / task.file(".sample.arrow"))["hash"].to_numpy()
            )
        hashes = np.sort(np.concatenate(hash_parts))
        below = None
        if len(hashes):
            below = int(hashes[min(settings.sample, len(hashes)) - 1])
        sampled += [replace(task, sample_below=below) for task in of_dataset]
    return sampled


def assign_files(sizes: Sequence[int], names: Sequence[str], shards: int) -> list[list[FilePart]]:
    """Assign files to `shards` tasks: each file goes whole to one task, or its rows are divided
    among several.

    The largest file comes first (equal sizes in order of name). Each file goes to the task with the
    fewest bytes so far, then to the lowest number. Inside a task, files are in order of name. With
    fewer files than tasks, every file gets one task, and each further task goes to the file with
    the most bytes per task. Every row of every file is in exactly one task.
    """
    if len(sizes) >= shards:
        tasks: list[list[FilePart]] = [[] for _ in range(shards)]
        loads = [(0, number) for number in range(shards)]
        for file in sorted(range(len(sizes)), key=lambda number: (-sizes[number], names[number])):
            load, number = heapq.heappop(loads)
            tasks[number].append(FilePart(file))
            heapq.heappush(loads, (load + sizes[file], number))
        return [sorted(parts, key=lambda part: names[part.file]) for parts in tasks]
    order = sorted(range(len(sizes)), key=lambda number: names[number])
    counts = dict.fromkeys(order, 1)
    heap = [(Fraction(-max(sizes[file], 1)), rank, file) for rank, file in enumerate(order)]
    heapq.heapify(heap)
    for _ in range(shards - len(sizes)):
        _, rank, file = heap[0]
        counts[file] += 1
        heapq.heapreplace(heap, (Fraction(-max(sizes[file], 1), counts[file]), rank, file))
    return [
        [FilePart(file, remainder, counts[file])]
        for file in order
        for remainder in range(counts[file])
    ]


def row_hashes(seed: int, purpose: str, name_digest: int, rows: I64) -> tuple[U64, U64]:
    """Compute a keyed 128-bit hash for each row number [N] of a file.

    name_digest: 64-bit digest of its name.
    """
    words = np.stack([np.full(len(rows), name_digest, np.uint64), rows.astype(np.uint64)], axis=1)
    return hash_words(derive_key(seed, purpose), words)


def _sample(task: EncodeTask, files: TaskFiles, settings: ChatRecipe) -> dict[str, Any]:
    """Keep the `sample` smallest sample hashes of a task's rows in a file. Tokenises nothing."""
    hash_parts = [np.empty(0, np.uint64)]
    rows_in = 0
    for part, batch in task.batches(settings):
        rows_in += len(batch.rows)
        hash_parts.append(
            task.hashes(settings.seed, "sample", part, np.array(batch.numbers, np.int64))[0]
        )
    smallest = np.sort(np.concatenate(hash_parts))[: settings.sample]
    files.write_arrow(task.file(".sample.arrow"), pa.table({"hash": smallest}))
    return {"rows_in": rows_in}


def encode(
    task: EncodeTask,
    files: TaskFiles,
    settings: PackedSequences,
    encoder: ChatEncoder,
    blank: int | None,
    benchmarks: Benchmarks | None = None,
) -> dict[str, Any]:
    """Tokenise the rows of a task. O(batch) of memory, and O(sequences).

    blank: the padding token if sequences will be padded. benchmarks: rows that overlap these are
    left out. The task begins again with `tokenizers` if a backend gives other ids than `tokenizers`
    does.

    Raises `InputError` for a sequence that fits no bin if the settings make that an error.
    """
    aligned = settings.loss_mask_alignment == "shift_left"
    start = partial(_Cutting, settings, task, encoder, benchmarks, blank=blank, aligned=aligned)
    return run_encoding(task, files, start)


def run_encoding(
    task: EncodeTask, files: TaskFiles, start: Callable[..., Encoding]
) -> dict[str, Any]:
    """Encode the rows of a task, and encode them again with `tokenizers` if a backend gave other
    ids.

    The encoder uses `tokenizers` from then on. start: makes the state of the task, given `spool`.
    """

    def encoded() -> dict[str, Any]:
        with SpoolWriter(files, task.file()) as spool:
            state = start(spool=spool)
            for part, batch in task.batches(state.settings):
                state.take(part, batch)
        return state.written(files)

    try:
        return encoded()
    except BackendDiffers:
        return {**encoded(), "backend_different": 1}


@dataclass(frozen=True, slots=True)
class ChosenRow:
    """A row of a batch to encode.

    index: in the batch. key: its entity. named: digest of the columns to compare, None if no
    columns are named.
    """

    index: int
    row: Mapping[str, Any]
    key: str
    named: bytes | None


@dataclass(frozen=True)
class Chosen:
    """Rows of a batch to encode."""

    part: FilePart
    batch: RowBatch
    rows: Sequence[ChosenRow]

    @property
    def values(self) -> list[Mapping[str, Any]]:
        """The rows themselves."""
        return [row.row for row in self.rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceBatch:
    """Sequences that lie end to end, to be stored.

    tokens int32 and mask uint8 [sum of sizes]. rows: index among the chosen rows, per sequence.
    contents: digest of its content, see `content_of`. sizes: tokens. labels: tokens that are
    labels.
    """

    rows: I64
    contents: Sequence[bytes]
    tokens: I32
    mask: U8
    sizes: I64
    labels: I64


@dataclass
class Encoding:
    """The running state of one task.

    words: the account of all texts. faults: rows that lose words. excluded: rows by benchmark.
    messages: by role and weight. rows_of: rows by file. blank: a token that fingerprints ignore.
    aligned: whether fingerprints cover tokens and labels, or tokens alone.
    """

    settings: ChatRecipe
    task: EncodeTask
    encoder: ChatEncoder
    benchmarks: Benchmarks | None
    spool: SpoolWriter
    blank: int | None = None
    aligned: bool = True
    excluded: Counter[str] = field(default_factory=Counter)
    messages: Counter[tuple[str, int]] = field(default_factory=Counter)
    origins: list[Origins] = field(default_factory=list)
    rejected: list[dict[str, Any]] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)
    words: Words = field(default_factory=Words)
    faults: Counter[str] = field(default_factory=Counter)
    first_fault: dict[str, str] = field(default_factory=dict)
    count: Counter[str] = field(default_factory=Counter)
    rows_of: Counter[str] = field(default_factory=Counter)
    lost: dict[str, Counter[str]] = field(
        default_factory=lambda: {TOO_LONG: Counter(), TOO_SHORT: Counter()}
    )

    def encode(self, chosen: Chosen) -> None:
        """Encode these rows, `store` their sequences, and `reject` the others."""
        raise NotImplementedError

    def encoded(self, rows: Sequence[Mapping[str, Any]], form: ChatForm) -> EncodedChats:
        """Encode rows, and count what the encoder reports."""
        encoded = self.encoder.encode(rows, form)
        self.count.update(backend_compared=encoded.compared, special_text_rows=encoded.special_text)
        self.count.update(chat_sequences=encoded.chats, read_sequences=len(encoded.lengths))
        self.count.update(transcripts=encoded.transcripts, empty_answers=encoded.empty_answers)
        self.messages.update(encoded.messages)
        return encoded

    def account(self, chosen: Chosen, words: Sequence[RowWords]) -> None:
        """Account for the texts of chosen rows."""
        self.words.add(words)
        for row, row_words in zip(chosen.rows, words, strict=True):
            if row_words.faults:
                where = chosen.batch.where(row.index)
                for fault, what in row_words.faults.items():
                    self.faults[fault] += 1
                    self.first_fault.setdefault(fault, f"{where}: {what}")

    def written(self, files: TaskFiles) -> dict[str, Any]:
        """Write the files beside the spool and return the task's result."""
        files.write_arrow(
            self.task.file(".origins.arrow"), pa.table(vars(Origins.joined(self.origins)))
        )
        lines = (
            json.dumps(record, ensure_ascii=True, sort_keys=True) + "\n" for record in self.rejected
        )
        files.write(self.task.file(".rejected.jsonl"), "".join(lines).encode())
        return {
            **{name: self.count[name] for name in _COUNTED},
            "rows_of": dict(self.rows_of),
            "messages": sorted([*key, count] for key, count in self.messages.items()),
            "words": self.words.record(),
            "faults": dict(self.faults),
            "first_fault": self.first_fault,
            "dropped": dict(self.dropped),
            "excluded": {
                name: self.excluded[name]
                for name in (() if self.benchmarks is None else self.benchmarks.digests)
            },
            "first": self.first,
            "lost": {reason: dict(lost) for reason, lost in self.lost.items()},
        }

    def take(self, part: FilePart, batch: RowBatch) -> None:
        """Encode the wanted rows of a batch that have a key."""
        self.count["rows_in"] += len(batch.rows)
        self.rows_of[self.task.dataset.names[part.file]] += len(batch.rows)
        chosen = []
        for index in self._sampled(part, batch):
            row = self._choose_row(batch, index)
            if row is not None:
                chosen.append(row)
        if self.benchmarks is not None and chosen:
            chosen = self._not_in_benchmarks(self.benchmarks, batch, chosen)
        if len(chosen) < len(batch.rows):
            indices = {row.index for row in chosen}
            others = [row for index, row in enumerate(batch.rows) if index not in indices]
            self.words.add(map(left_out, others))
        if chosen:
            self.encode(Chosen(part, batch, chosen))

    def _sampled(self, part: FilePart, batch: RowBatch) -> list[int]:
        """Return the rows of a batch that are in the sample, and count the others."""
        selected = np.ones(len(batch.rows), np.bool_)
        if self.task.sample_below is not None:
            numbers = np.array(batch.numbers, np.int64)
            hashes, _ = self.task.hashes(self.settings.seed, "sample", part, numbers)
            selected = hashes <= np.uint64(self.task.sample_below)
            self.dropped[SAMPLED_OUT] += int((~selected).sum())
        indices: list[int] = np.flatnonzero(selected).tolist()
        return indices

    def _choose_row(self, batch: RowBatch, index: int) -> ChosenRow | None:
        """Find the key and the named content of a row; `reject` a row that has no key."""
        row = batch.rows[index]
        if isinstance(row, BrokenRow):
            self.reject(batch, index, row.reason, row.detail)
            return None
        entity = self.settings.entity
        key = "" if entity is None else value_at(row, entity)
        if entity is not None and key in (None, ""):
            self.reject(batch, index, NO_SPLIT_KEY, f"{entity} is {key!r}")
            return None
        if not isinstance(key, str):
            key = canonical_json(key).decode()
        values = [value_at(row, name) for name in self.settings.content]
        named = None
        if any(value not in (None, "") for value in values):
            named = digest_of_texts([canonical_json(values).decode()])
        return ChosenRow(index, row, key, named)

    def _not_in_benchmarks(
        self, benchmarks: Benchmarks, batch: RowBatch, chosen: Sequence[ChosenRow]
    ) -> list[ChosenRow]:
        """Return the rows that overlap no benchmark and count the others.

        Raises `InputError` for rows of token ids.
        """
        source = self.task.dataset.source
        layout = source.layout
        if layout == "auto":
            with suppress(RowRejected):
                layout = layout_of(chosen[0].row, source.mapping)
        if layout == "tokens":
            raise InputError(
                f"it holds token ids, and {setting('exclude')} compares words",
                path=batch.file,
                row=batch.row_words(chosen[0].index),
                remedy="exclude rows of text",
            )
        out = benchmarks.mask(texts_in([row.row for row in chosen]), len(chosen), self.excluded)
        self.dropped[IN_BENCHMARK] += int(out.sum())
        return [chosen[index] for index in np.flatnonzero(~out).tolist()]

    def store(self, chosen: Chosen, stored: SequenceBatch) -> None:
        """Write sequences to the spool, with their origins."""
        sizes = stored.sizes
        self.count.update(
            rows=len(np.unique(stored.rows)),
            sequences=len(sizes),
            tokens=int(sizes.sum()),
            labels=int(stored.labels.sum()),
        )
        if not len(sizes):
            return
        self.spool.add(stored.tokens, stored.mask, sizes)
        indices = np.array([row.index for row in chosen.rows])
        numbers = np.array(chosen.batch.numbers, np.int64)[indices[stored.rows]]
        seed = self.settings.seed
        if self.settings.entity is None:
            high, low = self.task.hashes(seed, "row", chosen.part, numbers)
        else:
            texts = pa.array([row.key for row in chosen.rows], pa.large_string())
            units = hash_texts(derive_key(seed, "packed_sequences.key"), texts)
            high, low = (half[stored.rows] for half in units)
        digests = []
        for row, content in zip(stored.rows.tolist(), stored.contents, strict=True):
            digests.append(chosen.rows[int(row)].named or content)
        halves = np.frombuffer(b"".join(digests), "<u8").astype(np.uint64).reshape(-1, 2)
        aligned = shift_left(stored.mask, np.cumsum(sizes)) if self.aligned else None
        self.origins.append(
            Origins(
                file=np.full(len(sizes), chosen.part.file, np.int32),
                row=numbers,
                unit_high=high,
                unit_low=low,
                content_high=halves[:, 0],
                content_low=halves[:, 1],
                lengths=sizes,
                labels=stored.labels,
                prints=sequence_prints(stored.tokens, aligned, sizes, self.blank),
            )
        )

    def reject(self, batch: RowBatch, index: int, reason: str, detail: str) -> None:
        """Count and list a row that gives no sequence. Raises `InputError` for preference data."""
        name = self.task.dataset.source.name
        # one such row shows that the file is for another kind of training
        if reason == "preference_data":
            raise InputError(detail, path=batch.file, row=batch.row_words(index))
        self.dropped[reason] += 1
        self.first.setdefault(reason, f"{batch.where(index)}: {detail}")
        if reason not in CHOSEN:
            record = {"dataset": name, "file": batch.file, batch.unit: batch.numbers[index]}
            self.rejected.append({**record, "reason": reason, "detail": detail})


@dataclass
class _Cutting(Encoding):
    """The state of a task that cuts sequences longer than a bin, as the settings say, and keeps the
    pieces.
    """

    settings: PackedSequences

    def encode(self, chosen: Chosen) -> None:
        longest = self.settings.longest
        encoded = self._encode_uncut(chosen)
        if not len(encoded.lengths):
            self.account(chosen, encoded.words)
            return
        cut_off = dict[int, list[tuple[I32, U8]]]()  # by row
        if self.settings.too_long == "error":
            self._refuse_too_long(chosen, encoded)
        cut = fit(encoded.mask, encoded.lengths, longest, self.settings.too_long)
        self._count_lost(cut)
        if cut.truncated:
            for number in np.flatnonzero(encoded.lengths > longest).tolist():
                begin = int(encoded.offsets[number]) + longest
                end = int(encoded.offsets[number + 1])
                tokens = (encoded.tokens[begin:end], encoded.mask[begin:end])
                cut_off.setdefault(int(encoded.rows[number]), []).append(tokens)
        stored = _without_short(encoded, cut)
        for row in np.setdiff1d(encoded.rows, stored.rows).tolist():
            most = int(encoded.lengths[encoded.rows == row].max())
            reason = TOO_LONG if most > longest else TOO_SHORT
            detail = f"its longest sequence has {most:,} tokens"
            self.reject(chosen.batch, chosen.rows[row].index, reason, detail)
            encoded.words[row].cut(WHOLE, WHOLE)
            cut_off.pop(row, None)
        for row, parts in cut_off.items():
            self._cut_words(encoded.words[row], parts)
        self.account(chosen, encoded.words)
        self.store(chosen, stored)

    def _cut_words(self, words: RowWords, parts: Sequence[tuple[I32, U8]]) -> None:
        """Account for the texts of a row's tokens that are in no bin."""
        if self.encoder.settings.tokenizer is None:
            return
        trained, context = 0, 0
        for ids, mask in parts:
            trained += len(self.encoder.tokenizer.decode(ids[mask == 1].tolist()))
            context += len(self.encoder.tokenizer.decode(ids[mask == 0].tolist()))
        words.cut(trained, context)

    def _encode_uncut(self, chosen: Chosen) -> EncodedChats:
        """Encode rows without cutting, reject those without a sequence, and count the rest."""
        encoded = self.encoded(chosen.values, self.task.dataset.source)
        for wrong in encoded.rejected:
            self.reject(chosen.batch, chosen.rows[wrong.row].index, wrong.reason, wrong.detail)
        lengths = encoded.lengths
        if len(lengths):
            labels = label_counts(encoded.mask, np.cumsum(lengths) - lengths, lengths)
            self.count.update(
                encoded_sequences=len(lengths),
                encoded_tokens=int(lengths.sum()),
                encoded_labels=int(labels.sum()),
            )
        return encoded

    def _refuse_too_long(self, chosen: Chosen, encoded: EncodedChats) -> None:
        """Raise `InputError` for the first sequence that fits no bin."""
        over = np.flatnonzero(encoded.lengths > self.settings.longest)
        if not len(over):
            return
        others = setting("too_long", "truncate", "drop", "split")
        row = chosen.rows[int(encoded.rows[over[0]])]
        raise InputError(
            f"it gives a sequence of {encoded.lengths[over[0]]:,} tokens, a bin holds"
            f" {self.settings.longest:,}",
            path=chosen.batch.file,
            row=chosen.batch.row_words(row.index),
            remedy=(
                f"choose what becomes of such rows with {others}, or a larger"
                f" {setting_name('pack_size')}"
            ),
        )

    def _count_lost(self, cut: Pieces) -> None:
        """Count the tokens and labels that cutting leaves out."""
        short = cut.lengths < 2
        self.lost[TOO_LONG].update(
            sequences=cut.dropped, tokens=cut.lost_tokens, labels=cut.lost_labels
        )
        self.lost[TOO_SHORT].update(
            sequences=int(short.sum()), tokens=int(cut.lengths[short].sum()), labels=0
        )
        self.count.update(
            truncated=cut.truncated, too_long_dropped=cut.dropped, divided=cut.divided
        )


def _without_short(encoded: EncodedChats, cut: Pieces) -> SequenceBatch:
    """Return the pieces that have something to predict: those of two tokens and more."""
    remaining = np.flatnonzero(cut.lengths >= 2)
    sequences = cut.sequence[remaining]
    sizes = cut.lengths[remaining]
    tokens = encoded.tokens
    mask = encoded.mask
    if int(sizes.sum()) != len(tokens):
        shifts = cut.starts[remaining] - (np.cumsum(sizes) - sizes)
        positions = np.arange(sizes.sum()) + np.repeat(shifts, sizes)
        tokens = tokens[positions]
        mask = mask[positions]
    return SequenceBatch(
        rows=encoded.rows[sequences],
        contents=[encoded.contents[sequence] for sequence in sequences.tolist()],
        tokens=tokens,
        mask=mask,
        sizes=sizes,
        labels=cut.labels[remaining],
    )
