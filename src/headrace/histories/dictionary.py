"""Build and read the dictionaries of texts of a run: of entities, of peers and of each category
column.

A text is hashed where it is parsed, with a key derived from the seed; spill files and sorting use
only hashes of 64 bits. Each shard writes its distinct texts in sorted batches. These are merged by
ranges of texts, each of which fits in memory, into one sorted Arrow file in the run. The code of a
text is its index in that file. A table of the hashes, by ranges of hashes, maps a hash to its code.
Memory is O(memory limit) for any number of texts.

If the codes of an earlier run are kept, the file begins with the texts of that run in their order,
and the new ones follow, sorted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I64, U32, U64
from headrace.digest import derive_key
from headrace.errors import CorruptShard, InputError, setting, setting_name
from headrace.formats.dialect import TextDialect
from headrace.formats.evidence import Evidence, in_one_form, spelled_type
from headrace.formats.types import type_word
from headrace.formats.write import HashingFile
from headrace.gate.arrow import open_arrow
from headrace.gate.mapped import map_bytes
from headrace.histories.codec.addresses import Addresses, from_numbers, from_words, to_numbers
from headrace.keyed_hash import hash_texts
from headrace.run.context import STAGE_DIRECTORY, TaskFiles
from headrace.storage.local import storing

if TYPE_CHECKING:
    from headrace.histories.config import Histories

MOST_TEXTS = (1 << 32) - 1
SCHEMA = pa.schema([pa.field("text", pa.large_string(), nullable=False)])
_BATCH = 1 << 20  # texts that a shard collects before it sorts them
_TEXT_BYTES = 512  # memory per text during the merge
_SAMPLE_EVERY = 256
_NUMBERED = np.dtype([("hash", "<u8"), ("code", "<u4"), ("zero", "u1", 4)])


def hash_ids(texts: pa.Array | pa.ChunkedArray, seed: int) -> U64:
    """Hash texts without nulls; never 0: uint64 [N]."""
    high, _ = hash_texts(derive_key(seed, "histories.text"), texts)
    high[high == 0] = 1
    return high


def address_placeholders(hashes: U64) -> Addresses:
    """Return the placeholders of texts until they have codes: IPv6 addresses that begin with the
    hashes.
    """
    words = np.column_stack([hashes, np.zeros(len(hashes), np.uint64)])
    return from_words(np.full(len(hashes), 6, np.uint8), words)


def dictionary_file(role: str) -> str:
    """Return the path of a dictionary, relative to the run."""
    return f"dictionaries/{role}.arrow"


def texts_file(role: str, shard: int) -> str:
    """Return the path of the texts of a shard, relative to the run."""
    return f"{STAGE_DIRECTORY}/texts-{role}-{shard:05d}.arrow"


def _codes_file(role: str) -> str:
    return f"{STAGE_DIRECTORY}/codes-{role}.bin"


@contextmanager
def shard_texts(
    files: TaskFiles, roles: Sequence[str], shard: int
) -> Iterator[Callable[[Mapping[str, pa.Array]], None]]:
    """Write the texts of one source shard as files of sorted batches.

    Gives a function that adds texts by dictionary; repeats are allowed.
    """
    waiting: dict[str, list[pa.Array]] = {role: [] for role in roles}
    with ExitStack() as stack:
        writers = {}
        for role in roles:
            batches = files.arrow_batches(texts_file(role, shard), SCHEMA)
            writers[role] = stack.enter_context(batches)

        def flush(role: str) -> None:
            if waiting[role]:
                writers[role](_as_table(_distinct(waiting[role])))
                waiting[role] = []

        def add(texts: Mapping[str, pa.Array]) -> None:
            for role, chunk in texts.items():
                waiting[role].append(chunk)
                if sum(map(len, waiting[role])) >= _BATCH:
                    flush(role)

        yield add
        for role in roles:
            flush(role)


def _distinct(parts: Sequence[pa.Array | pl.Series]) -> pl.Series:
    """Return the distinct texts of some arrays, sorted."""
    return pl.concat([pl.Series("text", part, dtype=pl.String) for part in parts]).unique().sort()


def _as_table(texts: pl.Series) -> pa.Table:
    return pa.table({"text": texts.to_arrow().cast(pa.large_string())}, schema=SCHEMA)


def merge_texts(
    files: TaskFiles, role: str, column: str, shards: int, settings: Histories
) -> dict[str, Any]:
    """Write one dictionary, and the codes of its hashes.

    Raises `InputError` if there are more texts than codes, and for one value in two spellings.
    """
    earlier: list[pa.Array] = []
    if settings.reused is not None:
        earlier = _batches(settings.reused.dictionary(role))
    batches: list[pa.Array] = []
    for shard in range(shards):
        batches += _batches(files.run / texts_file(role, shard))
    at_once = max(1, settings.memory_limit // _TEXT_BYTES)
    parts = -(-sum(map(len, [*earlier, *batches])) // at_once) or 1
    parts_paths = []
    for part in range(parts):
        path = files.temporary(f"{STAGE_DIRECTORY}/codes-{role}-{part:05d}")
        with storing(path):
            path.touch()
        parts_paths.append(path)
    target = dictionary_file(role)
    temporary = files.temporary(target)
    count = 0
    with HashingFile(temporary) as file:
        with pa.ipc.new_file(file, SCHEMA) as writer:
            for merged in chain(map(pl.Series, earlier), _merged(batches, earlier, at_once)):
                if count + len(merged) > MOST_TEXTS:
                    raise InputError(
                        f"has more than {MOST_TEXTS:,} distinct texts, which have no codes",
                        column=column,
                        remedy="leave it out",
                    )
                table = _as_table(merged)
                with storing(temporary):
                    writer.write_table(table.combine_chunks())
                _scatter(hash_ids(table["text"], settings.seed), count, parts_paths)
                count += len(merged)
        written = file.holding(count)
    if settings.spellings == "error":
        _refuse_spellings(temporary, column, settings.dialect)
    files.finished(temporary, target, written)
    _gather_codes(files, role, column, parts_paths)
    return {"rows_in": count, "digest": written.digest, "earlier": sum(map(len, earlier))}


def _batches(path: Path) -> list[pa.Array]:
    """Return the sorted batches of texts in a file."""
    return [batch["text"] for batch in open_arrow(path).batches() if len(batch)]


def _refuse_spellings(path: Path, column: str, dialect: TextDialect) -> None:
    """Raise `InputError` if two texts of a dictionary are one value: 12 and 12.0.

    path: of its file. Takes 8 bytes per text if they may be numbers with a fraction, or times.
    """
    evidence = Evidence(dialect)
    batches = _batches(path)
    for texts in batches:
        evidence.add(pa.table({column: texts}))
        if not evidence.undecided([column]):
            return
    type_ = spelled_type(evidence.words.get(column, ()))
    if type_ is None:
        return
    forms = [in_one_form(pa.chunked_array([texts]), type_, dialect, column) for texts in batches]
    hashes = np.concatenate([hash_ids(form, 0) for form in forms])
    ordered = np.sort(hashes)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(repeated):
        return
    for texts, form in zip(batches, forms, strict=True):
        written = np.asarray(pc.equal(form.combine_chunks(), texts), np.bool_)
        other = ~written & np.isin(hash_ids(form, 0), repeated)
        if other.any():
            raise InputError(
                f"other rows write this value, a {type_word(type_)}, in another form, so that it"
                " would have two codes",
                column=column,
                value=texts[int(other.argmax())].as_py(),
                remedy=(
                    f"write it in one form, or take texts as they are with"
                    f" {setting('spellings', 'keep')}"
                ),
            )


def _merged(
    batches: Sequence[pa.Array], earlier: Sequence[pa.Array], at_once: int
) -> Iterator[pl.Series]:
    """Yield all distinct texts in order that are not among earlier ones, about `at_once` at a time.

    batches, earlier: sorted, without repeats.
    """
    if not batches:
        return
    samples = []
    for batch in [*batches, *earlier]:
        rows = np.arange(0, len(batch), _SAMPLE_EVERY)
        samples.append(pl.Series("text", batch.take(pa.array(rows))))
    every = max(1, at_once // _SAMPLE_EVERY)
    boundaries = pl.concat(samples).sort().gather_every(every).unique().sort()[1:]
    new = _in_ranges(batches, boundaries)
    known = _in_ranges(earlier, boundaries)
    for parts, known_parts in zip(new, known, strict=True):
        texts = _distinct(parts)
        if known_parts:
            texts = texts.filter(~texts.is_in(_distinct(known_parts).implode()))
        if len(texts):
            yield texts


def _in_ranges(batches: Sequence[pa.Array], boundaries: pl.Series) -> Iterator[list[pa.Array]]:
    """Yield the parts of sorted batches before, between and after some boundaries."""
    cuts = []
    for batch in batches:
        inside = pl.Series("text", batch).search_sorted(boundaries).to_list()
        cuts.append([0, *inside, len(batch)])
    for number in range(len(boundaries) + 1):
        yield [
            batch[cut[number] : cut[number + 1]] for batch, cut in zip(batches, cuts, strict=True)
        ]


def _scatter(hashes: U64, first: int, paths: Sequence[Path]) -> None:
    """Append hashes and their codes to files by equal ranges of hashes."""
    records = np.zeros(len(hashes), _NUMBERED)
    records["hash"] = hashes
    records["code"] = first + np.arange(len(hashes))
    part = (hashes >> np.uint64(32)) * np.uint64(len(paths)) >> np.uint64(32)
    for number, path in enumerate(paths):
        with storing(path), path.open("ab") as file:
            file.write(records[part == number].tobytes())


def _gather_codes(files: TaskFiles, role: str, column: str, paths: Sequence[Path]) -> None:
    """Write all hashes in order, followed by their codes in the same order."""
    target = _codes_file(role)
    temporary = files.temporary(target)
    with HashingFile(temporary) as file:
        for name in ("hash", "code"):
            for path in paths:
                records = np.fromfile(path, _NUMBERED)
                records = records[np.argsort(records["hash"], kind="stable")]
                if (records["hash"][1:] == records["hash"][:-1]).any():
                    raise InputError(
                        "two texts have one hash of 64 bits",
                        column=column,
                        remedy=f"give another {setting_name('seed')}",
                    )
                file.write(np.ascontiguousarray(records[name]).tobytes())
        written = file.holding(0)
    for path in paths:
        path.unlink()
    files.finished(temporary, target, written)


@dataclass(frozen=True)
class Codes:
    """The memory-mapped codes of texts, by hash, while the run is being made."""

    run: Path
    role: str

    @cached_property
    def _table(self) -> tuple[U64, U32]:
        path = self.run / _codes_file(self.role)
        data = np.zeros(0, np.uint8)
        if path.stat().st_size:
            data = map_bytes(path).data
        count = len(data) // 12
        return data[: 8 * count].view("<u8"), data[8 * count :].view("<u4")

    def of(self, hashes: U64) -> I64:
        """Return the codes of hashes. Raises `CorruptShard` for a hash without a code."""
        known, codes = self._table
        index = np.searchsorted(known, hashes)
        if len(hashes) and (
            not len(known) or (known[np.minimum(index, len(known) - 1)] != hashes).any()
        ):
            raise CorruptShard(
                "a text has no code",
                path=self.run,
                remedy="remove the run's directory and prepare it again",
            )
        return codes[index].astype(np.int64)

    def addresses(self, placeholders: Addresses) -> Addresses:
        """Replace hashes by codes in entities or peers."""
        return from_numbers(self.of(placeholders.words()[:, 0]))

    @property
    def count(self) -> int:
        """Return the number of texts."""
        return len(self._table[0])


class Dictionary:
    """A dictionary of a finished run. Raises `CorruptShard` if it cannot be read."""

    texts: pa.ChunkedArray

    def __init__(self, path: Path) -> None:
        self.texts = open_arrow(path).table(SCHEMA)["text"]

    def __len__(self) -> int:
        return len(self.texts)

    def is_sorted(self, first: int = 0) -> bool:
        """Check that the texts from `first` on ascend strictly."""
        texts = self.texts[first:]
        ascends: bool = pc.all(pc.less(texts[:-1], texts[1:]), min_count=0).as_py()
        return ascends

    def hashes(self, seed: int) -> U64:
        """Hash all texts: uint64 [N]."""
        parts = []
        for chunk in self.texts.chunks:
            if len(chunk):
                parts.append(hash_ids(chunk, seed))
        return np.concatenate([np.zeros(0, np.uint64), *parts])

    def names(self, addresses: Addresses) -> pa.Array:
        """Return the texts of entities or peers; null for codes that are not in the dictionary."""
        return self.take(to_numbers(addresses))

    def take(self, codes: I64) -> pa.Array:
        """Return the texts of codes; null for codes that are not in the dictionary."""
        known = (codes >= 0) & (codes < len(self))
        texts = self.texts.take(pa.array(codes, mask=~known)).combine_chunks()
        if isinstance(texts, pa.ChunkedArray):
            texts = pa.concat_arrays(texts.chunks)
        return texts.cast(pa.string())
