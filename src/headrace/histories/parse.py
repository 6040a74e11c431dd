"""Parse source shards into measurements and write them to spill files, grouped by partition: pass
1.

Entities and peers become codes, times become microseconds and latencies become latency codes.

A row that is not a measurement has one reason, the first that applies in the order of `REASONS`.
The settings decide whether a reason is an error or the row is dropped and counted. Text is parsed
once per distinct value of a chunk. Memory: O(chunk).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import F64, I8, I64, U16, U64, Bools
from headrace.errors import InputError, setting
from headrace.formats.dates import MISSING, advice, parse_in_turn
from headrace.formats.dialect import MEANS_MISSING, null_setting
from headrace.formats.registry import stem_of_name
from headrace.formats.shard import Shard
from headrace.formats.source import read_chunks
from headrace.formats.text_columns import as_text, nulled, with_one_time
from headrace.formats.types import is_text, to_python
from headrace.formats.write import Written
from headrace.formats.zones import wall_to_utc
from headrace.histories import US_PER, IdKind
from headrace.histories.codec.addresses import Addresses, from_native_words, parse
from headrace.histories.codec.kernels import distinct, encode_latencies
from headrace.histories.codec.values import stored_type, to_words
from headrace.histories.config import Histories
from headrace.histories.dictionary import address_placeholders, hash_ids, shard_texts
from headrace.histories.spill import (
    Parsed,
    SpillWriter,
    hash_entities,
    join_chunks,
    sample_rows,
    spill_path,
)
from headrace.run.context import TaskFiles
from headrace.storage.local import created, storing

_LATEST_US = 1 << 62
_ENOUGH_ROWS = 1 << 10  # this many addresses show whether they repeat
_FAULTS = {  # of each reason, what is wrong with the value
    "null_time": "missing",
    "unreadable_time": "not a time of the declared form: {time}",
    "ambiguous_time": "a time that comes twice in {zone}, whose clocks repeat it",
    "skipped_time": "not a time in {zone}, whose clocks skip it",
    "null_entity": "missing",
    "unreadable_entity": "not a valid {entity_kind}",
    "null_peer": "missing",
    "unreadable_peer": "not a valid {peer_kind}",
    "unreadable_value": "not {expected}",
    "missing_value": "missing",
    "negative_value": "below 0",
    "zero_value": "zero",
}
_REMEDIES = {
    "ambiguous_time": f"give {setting('ambiguous_times', 'earlier', 'later')}",
    "unreadable_entity": f"correct it, or give {setting('entity_kind', 'text')}",
    "unreadable_peer": f"correct it, or give {setting('peer_kind', 'text')}",
    "missing_value": f"give {setting('missing', 'failed', 'drop')}",
    "negative_value": f"give {setting('negative', 'failed', 'drop')}",
    "zero_value": f"give {setting('zero', 'value', 'failed', 'drop')}",
}
REASONS = tuple(_FAULTS)
# instead of an index
_NULL = -1
_UNREADABLE = -2


@dataclass(frozen=True)
class SourceFile:
    """A file of the source: its path for errors, its name below the root for counts, its name
    without extension.
    """

    path: str
    name: str
    stem: str


@dataclass(frozen=True)
class IdColumn:
    """A column of entities, peers or categories, as distinct values and an index for each row.

    index: int64 [N], −1 for null, −2 for unreadable.
    texts: the texts that the values are hashes of; None if they are addresses or numbers.
    """

    distinct: Addresses
    index: I64
    texts: pa.Array | None = None

    def used_texts(self, rows: slice | I64) -> pa.Array:
        """Return the texts that occur in some rows."""
        assert self.texts is not None
        index = self.index[rows]
        used = np.bincount(index[index >= 0], minlength=len(self.texts))
        return self.texts.take(pa.array(np.flatnonzero(used)))


# For each column and kind the last dictionary and its values. The chunks of a row group have the
# same one.
AddressCache = dict[tuple[str, IdKind], tuple[pa.Array, IdColumn]]


class Failed(TypedDict):
    """Measurements that failed for one reason.

    values: up to five distinct ones, in order of appearance.
    """

    rows: int
    first: str
    values: list[float]


@dataclass
class Dropped:
    """Rows that are not measurements: the count of each reason, and the location and content of its
    first row.

    failed: failed measurements, with the count of each reason, the location of the first, and the
    first values.
    """

    rows: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)
    failed: dict[str, Failed] = field(default_factory=dict)

    def add(self, word: str, rows: int) -> None:
        """Count more rows that are dropped for a reason."""
        if rows:
            self.rows[word] = self.rows.get(word, 0) + rows


class Reasons:
    """The reason why each row is not a measurement.

    numbers: int8 [N], 0: it is one, k: REASONS[k - 1].
    columns: int8 [N], 0: the reason is about the latency, k: about the k-th of the value columns.
    """

    def __init__(self, rows: int) -> None:
        self.numbers: I8 = np.zeros(rows, np.int8)
        self.columns: I8 = np.zeros(rows, np.int8)

    def blame(self, mask: Bools, word: str, column: int = 0) -> None:
        """Set the reason of the masked rows that have none yet."""
        if mask.any():
            new = mask & (self.numbers == 0)
            self.numbers[new] = REASONS.index(word) + 1
            self.columns[new] = column


def parse_chunk(  # noqa: PLR0914 - the columns of a measurement
    table: pa.Table,
    rows: I64,
    file: SourceFile,
    settings: Histories,
    dropped: Dropped,
    *,
    cache: AddressCache | None = None,
) -> Parsed:
    """Parse the columns of a chunk.

    rows int64 [N]: their row numbers in the file, from 0. Dropped rows are counted in `dropped`.
    Raises `InputError` that names file, row, column and value.
    """
    n = len(rows)
    source = table
    null_values = settings.dialect.null_values
    if null_values:
        columns = {name: nulled(table[name], null_values) for name in table.column_names}
        table = pa.table(columns)
    reasons = Reasons(n)
    micros = _parse_times(nulled(table[settings.time_column], ("",)), settings, reasons)
    encode = partial(encode_ids, seed=settings.seed, null_values=null_values, cache=cache)
    if settings.entity_from == "file_name":
        stem = encode(pa.chunked_array([[file.stem]]), settings.entity_kind, "file name")
        entity = replace(stem, index=np.full(n, stem.index[0]))
    else:
        entity = encode(table[settings.entity], settings.entity_kind, settings.entity)
    reasons.blame(entity.index == _NULL, "null_entity")
    reasons.blame(entity.index == _UNREADABLE, "unreadable_entity")
    id_columns = {"entity": entity}
    peer = None
    if settings.peer is not None:
        peer = encode(table[settings.peer], settings.peer_kind, settings.peer, repeats="keep")
        reasons.blame(peer.index == _NULL, "null_peer")
        reasons.blame(peer.index == _UNREADABLE, "unreadable_peer")
        id_columns["peer"] = peer
    codes: U16 = np.zeros(n, np.uint16)
    clamped = 0
    if settings.value is not None:
        latencies = _read_floats(table[settings.value], settings.value, reasons)
        codes, clamped = latency_codes(latencies, settings, reasons.numbers)
    values = None
    if settings.values:
        values, categories = _read_values(table, settings, reasons, encode)
        id_columns |= categories
    if settings.value is not None:
        _count_failed(latencies, codes, reasons.numbers, rows, file.name, dropped.failed)
    chosen: slice | I64 = slice(None)
    if reasons.numbers.any():
        _drop_or_refuse(source, rows, file, settings, reasons, dropped)
        chosen = np.flatnonzero(reasons.numbers == 0)
    texts = {}
    for role, column in id_columns.items():
        if column.texts is not None:
            texts[role] = column.used_texts(chosen)
    return Parsed(
        micros=micros[chosen],
        codes=codes[chosen],
        clamped=clamped,
        entities=entity.distinct,
        entity=entity.index[chosen],
        peers=None if peer is None else peer.distinct,
        peer=None if peer is None else peer.index[chosen],
        values=None if values is None else values[chosen],
        texts=texts,
    )


def _parse_times(column: pa.ChunkedArray, settings: Histories, reasons: Reasons) -> I64:
    """Read times as microseconds since 1970."""
    dates = parse_in_turn(column, settings.time_forms)
    micros = dates.micros
    missing = np.zeros(len(column), np.bool_)
    if column.null_count:
        missing = np.asarray(column.is_null(), np.bool_)
    reasons.blame(missing, "null_time")
    reasons.blame(~missing & ((micros == MISSING) | (micros > _LATEST_US)), "unreadable_time")
    wall = ~dates.instant & (micros != MISSING)
    if settings.time_zone == "UTC" or not wall.any():
        return micros
    instants = wall_to_utc(micros[wall], settings.time_zone, "earliest")
    later = wall_to_utc(micros[wall], settings.time_zone, "latest")
    rows = np.flatnonzero(wall)
    skipped = missing.copy()
    skipped[rows] = instants == MISSING
    reasons.blame(skipped, "skipped_time")
    if settings.ambiguous_times == "error":
        twice = np.zeros(len(micros), np.bool_)
        twice[rows] = instants != later
        reasons.blame(twice, "ambiguous_time")
    utc = micros.copy()
    utc[rows] = later if settings.ambiguous_times == "later" else instants
    return utc


def _read_values(
    table: pa.Table, settings: Histories, reasons: Reasons, encode: Callable[..., IdColumn]
) -> tuple[U64, dict[str, IdColumn]]:
    """Read the value columns as words, uint64 [N, K], and return the category columns by their
    dictionary's role.
    """
    roles = settings.categories()
    categories: dict[str, IdColumn] = {}
    words = np.zeros((table.num_rows, len(settings.values)), np.uint64)
    for number, (name, type_name) in enumerate(settings.values.items()):
        if type_name == "category":
            column = encode(table[name], "text", name)
            categories[roles[name]] = column
            hashes = np.append(column.distinct.words()[:, 0], np.uint64(0))
            words[:, number] = hashes[column.index]  # the last is that of a missing one
            continue
        dtype = stored_type(type_name)
        if dtype.kind == "f":
            numbers = _read_floats(table[name], name, reasons, number + 1, dtype)
        else:
            numbers = _read_integers(table[name], name, reasons, number + 1, dtype)
        words[:, number] = to_words(numbers)
    return words, categories


def _read_integers(
    column: pa.ChunkedArray, name: str, reasons: Reasons, number: int, dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    """Read whole numbers of a type, with the type's minimum for missing ones: [N]."""
    column = nulled(column, ("",))
    missing = np.asarray(pc.is_null(column, nan_is_null=True), np.bool_)
    values = pl.Series(name, column)
    if values.dtype == pl.String:
        values = values.str.strip_chars()
        floats = values.cast(pl.Float64, strict=False)
    elif values.dtype.is_numeric() or values.dtype == pl.Boolean:
        floats = values
    else:
        raise _not_numbers(column, name)
    integers = values.cast(pl.Int64, strict=False)
    if floats.dtype.is_decimal():
        floats = floats.cast(pl.Float64)
    if floats.dtype.is_float():  # whole numbers may be written as 3.0
        integers = integers.fill_null(floats.cast(pl.Int64, strict=False))
        is_whole = floats.fill_nan(None) == integers.cast(pl.Float64)
        integers = pl.select(pl.when(is_whole).then(integers)).to_series()
    limits = np.iinfo(dtype)
    numbers = integers.fill_null(limits.min).to_numpy()
    outside = (numbers <= limits.min) | (numbers > limits.max)
    reasons.blame(outside & ~missing, "unreadable_value", number)
    return np.where(outside, limits.min, numbers).astype(dtype)


def _read_floats(
    column: pa.ChunkedArray,
    name: str,
    reasons: Reasons,
    number: int = 0,
    dtype: np.dtype[Any] | None = None,
) -> npt.NDArray[Any]:
    """Read values as they are written, NaN for missing ones: [N].

    dtype: refuse what it cannot hold; None: float64.
    """
    if is_text(column.type):
        column = nulled(column, ("",))
        texts = pl.Series("value", column, dtype=pl.String).str.strip_chars()
        floats = texts.cast(pl.Float64, strict=False)
        valid = np.asarray(pc.is_valid(column).to_numpy(), np.bool_)
        reasons.blame(valid & floats.is_null().to_numpy(), "unreadable_value", number)
        values = floats.fill_null(np.nan).to_numpy()
    else:
        try:
            values = pc.fill_null(column.cast(pa.float64(), safe=False), np.nan).to_numpy()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise _not_numbers(column, name) from None
    if dtype is None:
        return np.asarray(values, np.float64)
    with np.errstate(over="ignore"):
        stored = np.asarray(values, np.float64).astype(dtype)
    reasons.blame(np.isinf(stored), "unreadable_value", number)
    return stored


def _not_numbers(column: pa.ChunkedArray, name: str) -> InputError:
    return InputError(
        f"is of type {column.type}, which is not a number",
        column=name,
        remedy="name a column of numbers",
    )


def encode_ids(  # noqa: PLR0913 - the settings of a column
    column: pa.ChunkedArray,
    id_kind: IdKind,
    name: str,
    *,
    seed: int = 0,
    null_values: Sequence[str] = (),
    cache: AddressCache | None = None,
    repeats: Literal["merge", "keep"] = "merge",
) -> IdColumn:
    """Encode a column of entities, peers or categories, given as texts or a dictionary.

    seed: of the hashes of texts; null_values: texts that mean null. cache: is read and updated.
    Plain texts of addresses are parsed row by row, which is faster than finding the distinct ones;
    then with repeats="keep", or if hardly any address repeats, distinct addresses are not found, so
    an address may occur more than once.
    """
    where = f"column {name!r}"
    if id_kind != "address" or not is_text(column.type):
        return _encode_dictionary(
            column, id_kind, name, seed, null_values, {} if cache is None else cache
        )
    if column.type not in (pa.string(), pa.large_string()):
        column = as_text(column, (), where)
    encoded = _encode_texts(_combine(column), id_kind, seed)
    if repeats == "keep":
        return encoded
    addresses = encoded.distinct
    words = addresses.bytes.view(np.uint64)
    families = addresses.family.astype(np.uint64)[:, None]
    # If addresses come at random and fewer than 4 of 100 repeat in the first eighth, fewer than a
    # quarter do in the whole: finding the distinct ones here and again in the partition is more
    # work than hashing and storing some twice.
    some = len(addresses) // 8
    if some >= _ENOUGH_ROWS and len(distinct(words[:some], families[:some])[1]) > 0.96 * some:
        return encoded
    number, once = distinct(words, families)
    index = encoded.index
    index[index >= 0] = number
    return IdColumn(from_native_words(once), index)


def _combine(column: pa.ChunkedArray) -> pa.Array:
    """Return the column as one array."""
    if column.num_chunks == 1:
        return column.chunk(0)
    combined = column.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):  # zero chunks stay chunked
        return pa.array([], pa.large_string())
    return combined


def _encode_dictionary(
    column: pa.ChunkedArray,
    id_kind: IdKind,
    name: str,
    seed: int,
    null_values: Sequence[str],
    cache: AddressCache,
) -> IdColumn:
    """Encode each distinct value of a column once, or none if it has the dictionary of the chunk
    before.
    """
    encoded = column.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    dictionary, ids = cache.get((name, id_kind), (None, None))
    if ids is None or not encoded.dictionary.equals(dictionary):
        texts = as_text(pa.chunked_array([encoded.dictionary]), null_values, name)
        ids = _encode_texts(texts.combine_chunks(), id_kind, seed)
        # the last is that of rows without a value
        ids = replace(ids, index=np.append(ids.index, _NULL))
        cache[name, id_kind] = encoded.dictionary, ids
    indices = encoded.indices
    if encoded.null_count:
        indices = indices.fill_null(len(ids.index) - 1)
    elif len(ids.distinct) == len(ids.index) - 1:  # all can be read, none is missing
        return replace(ids, index=indices.to_numpy().astype(np.int64))
    return replace(ids, index=ids.index[indices.to_numpy()])


def _encode_texts(texts: pa.Array, id_kind: IdKind, seed: int) -> IdColumn:
    """Encode texts one by one; `distinct` has those that can be read, however often they occur."""
    missing = np.zeros(len(texts), np.bool_)
    filled = texts
    if texts.null_count:
        missing = np.asarray(texts.is_null(), np.bool_)
        filled = texts.fill_null("")
    addresses = (
        address_placeholders(hash_ids(filled, seed))
        if id_kind == "text"
        else parse(filled, id_kind)
    )
    if id_kind == "address":
        missing |= np.asarray(pc.equal(pc.binary_length(filled), 0), np.bool_)
    addresses.family[missing] = 0
    readable = np.flatnonzero(addresses.family)
    index = np.full(len(texts), _UNREADABLE)
    index[readable] = np.arange(len(readable))
    index[missing] = _NULL
    if len(readable) < len(addresses):
        addresses = addresses.take(readable)
    if id_kind == "text":
        return IdColumn(addresses, index, texts.take(pa.array(readable)))
    return IdColumn(addresses, index)


def latency_codes(values: F64, settings: Histories, reason: I8) -> tuple[U16, int]:
    """Return the latency codes of values and how many were clamped, and set `reason` for invalid
    rows.

    Rows that have a reason get an arbitrary code.
    """
    numbers = [REASONS.index("unreadable_value") + 1]
    for word, rule in _value_rules(settings).items():
        numbers.append({"failed": -1, "value": 0}.get(rule, REASONS.index(word) + 1))
    codes, clamped = encode_latencies(values, float(US_PER[settings.value_unit]), *numbers, reason)
    return codes, clamped


def _value_rules(settings: Histories) -> dict[str, str]:
    """Return the setting that decides about each reason."""
    return {
        "missing_value": settings.missing,
        "negative_value": settings.negative,
        "zero_value": settings.zero,
    }


_FAILURES: dict[str, Callable[[F64], Bools]] = {
    "missing": np.isnan,
    "negative": lambda values: values < 0,
    "zero": lambda values: values == 0,
}
_VALUES_SHOWN = 5
_ROWS_SEARCHED = 1 << 10


def add_failed(totals: dict[str, Failed], word: str, more: Failed) -> None:
    """Add a later count of failures to the totals."""
    before = totals.get(word, Failed(rows=0, first=more["first"], values=[]))
    values = list(dict.fromkeys([*before["values"], *more["values"]]))[:_VALUES_SHOWN]
    totals[word] = Failed(rows=before["rows"] + more["rows"], first=before["first"], values=values)


def _count_failed(
    values: F64, codes: U16, reason: I8, rows: I64, name: str, totals: dict[str, Failed]
) -> None:
    """Count the failed measurements.

    reason: 0 for rows that are measurements; rows: their numbers in the file.
    """
    failed = np.flatnonzero((codes == 0) & (reason == 0))
    if not len(failed):
        return
    for word, applies in _FAILURES.items():
        chosen = failed[applies(values[failed])]
        if not len(chosen):
            continue
        examples: list[float] = []
        if word == "negative":
            distinct_values, first = np.unique(values[chosen[:_ROWS_SEARCHED]], return_index=True)
            examples = distinct_values[np.argsort(first)][:_VALUES_SHOWN].tolist()
        where = f"{name}: row {int(rows[chosen[0]]) + 1}"
        add_failed(totals, word, Failed(rows=len(chosen), first=where, values=examples))


def _drop_or_refuse(
    table: pa.Table,
    rows: I64,
    file: SourceFile,
    settings: Histories,
    reasons: Reasons,
    dropped: Dropped,
) -> None:
    """Count the dropped rows, or raise for the first row that is an error."""
    rules = _value_rules(settings)
    is_error = [False, *(rules.get(word, settings.bad_rows) == "error" for word in REASONS)]
    errors = np.flatnonzero(np.array(is_error)[reasons.numbers])
    describe = partial(_describe, table, rows, file, settings, reasons)
    if len(errors):
        row = int(errors[0])
        error = describe(row).at(path=file.path)
        if REASONS[reasons.numbers[row] - 1] not in rules:
            dropping = f"drop and count such rows with {setting('bad_rows', 'drop')}"
            error.marked_remedy = ", or ".join(filter(None, [error.marked_remedy, dropping]))
        raise error
    for number in np.unique(reasons.numbers[reasons.numbers > 0]).tolist():
        word = REASONS[number - 1]
        chosen = np.flatnonzero(reasons.numbers == number)
        dropped.add(word, len(chosen))
        if word not in dropped.first:
            dropped.first[word] = str(describe(int(chosen[0])).at(path=file.name))


def _describe(
    table: pa.Table, rows: I64, file: SourceFile, settings: Histories, reasons: Reasons, row: int
) -> InputError:
    """Say what is wrong with a row: its number, column and value, but not its file."""
    word = REASONS[reasons.numbers[row] - 1]
    expected = "a finite number"
    if word.endswith("_entity"):
        name = settings.entity
    elif word.endswith("_peer"):
        name = settings.peer or ""
    elif word.endswith("_value"):
        name = settings.value or ""
        if reasons.columns[row]:
            name, type_name = list(settings.values.items())[reasons.columns[row] - 1]
            expected = _expected(type_name)
    else:
        name = settings.time_column
    in_name = word.endswith("_entity") and settings.entity_from == "file_name"
    value: object = file.stem
    if not in_name:
        value = to_python(table[name][row])
    problem, _, advised = (
        _FAULTS[word]
        .format(
            entity_kind=settings.entity_kind,
            peer_kind=settings.peer_kind,
            expected=expected,
            time=advice(value, " or ".join(settings.time_forms)),
            zone=settings.time_zone,
        )
        .partition("; ")
    )
    remedy = _REMEDIES.get(word) or advised or None
    is_key_or_value = word.startswith("unreadable") and word != "unreadable_time"
    if is_key_or_value and value in MEANS_MISSING:
        nulls = f"give {null_setting(value)} if it means missing"
        remedy = ", or ".join(filter(None, [remedy, nulls]))
    error = InputError(problem, row=int(rows[row]) + 1, remedy=remedy)
    if in_name:
        error.args = (f"the file's name is {value!r}: {problem}",)
        return error
    error.column = name
    if value is not None:  # str of a time, whose representation is Python
        error.value = value if isinstance(value, str | int | float) else str(value)
    return error


def _expected(type_name: str) -> str:
    """Describe the values that a type holds; the least integer means missing."""
    if type_name.startswith("float"):
        return f"a finite number that {type_name} holds"
    most = np.iinfo(type_name).max
    return f"a whole number from {-most:,} to {most:,}, which {type_name} holds"


# Measurements that are grouped by partition together. Reading the part of a partition costs the
# same whatever its size, so thousands of partitions need many; fewer stay in the processor's cache.
_PART_ROWS = 1 << 9
_MOST_ROWS = 1 << 20
_BATCH_ROWS = 1 << 17  # a usual row group: its dictionaries need not be joined with others


class _Gatherer:
    """Collects the measurements of one source shard and writes them to its spill file."""

    def __init__(
        self, settings: Histories, writer: SpillWriter, temporary: Path, batch_rows: int
    ) -> None:
        self._settings = settings
        self._writer = writer
        self._temporary = temporary
        self._batch_rows = batch_rows
        self._waiting: list[Parsed] = []
        self._latest: int | None = None
        names = ("rows_in", "measurements", "failed", "clamped", "backwards", "sum")
        self.counts = dict.fromkeys(names, 0)

    def add(self, parsed: Parsed) -> None:
        """Add the measurements of the next chunk."""
        micros = parsed.micros
        counts = self.counts
        counts["measurements"] += len(micros)
        if self._settings.value is not None:
            counts["failed"] += int(np.count_nonzero(parsed.codes == 0))
        counts["clamped"] += parsed.clamped
        counts["backwards"] += int(np.count_nonzero(micros[1:] < micros[:-1]))
        if self._latest is not None and int(micros[0]) < self._latest:
            counts["backwards"] += 1
        self._latest = int(micros[-1])
        self._waiting.append(parsed)
        if sum(len(chunk.micros) for chunk in self._waiting) >= self._batch_rows:
            self.flush()

    def flush(self) -> None:
        """Write what has been added."""
        if not self._waiting:
            return
        joined = join_chunks(self._waiting)
        self._waiting.clear()
        id_kind = self._settings.entity_kind
        seed = self._settings.seed
        hashes = hash_entities(joined.entities, id_kind, seed, half="high")
        with storing(self._temporary):  # the writes alone: what reading raises is about the source
            total = self._writer.append(joined, hashes.order)
        self.counts["sum"] = (self.counts["sum"] + total) % (1 << 64)


def gather_shard(  # noqa: PLR0914 - the state of a pass
    files: TaskFiles, settings: Histories, shard: Shard, number: int, partitions: int
) -> dict[str, Any]:
    """Write the spill file of one source shard. Raises `InputError` for rows that are an error."""
    source = SourceFile(str(shard.path), shard.name, stem_of_name(shard.path.name))
    dropped = Dropped()
    cache = AddressCache()
    target = spill_path(number)
    temporary = files.temporary(target)
    with (
        shard_texts(files, list(settings.dictionaries()), number) as add_texts,
        created(temporary) as file,
    ):
        writer = SpillWriter(file, partitions, US_PER[settings.time_unit])
        batch_rows = min(_MOST_ROWS, _PART_ROWS * partitions)
        gatherer = _Gatherer(settings, writer, temporary, batch_rows)
        for first_row, table in _read_tables(shard, settings):
            gatherer.counts["rows_in"] += table.num_rows
            rows = np.arange(first_row, first_row + table.num_rows)
            if settings.sample_rate < 1:
                rate = settings.sample_rate
                mask = sample_rows(shard.name, first_row, len(rows), rate, settings.seed)
                dropped.add("not_sampled", int(len(rows) - mask.sum()))
                rows = rows[mask]
                table = table.filter(pa.array(mask))
            if not len(rows):
                continue
            try:
                parsed = parse_chunk(table, rows, source, settings, dropped, cache=cache)
            except InputError as error:
                error.at(path=source.path)
                raise
            if len(parsed.micros):
                add_texts(parsed.texts)
                gatherer.add(parsed)
        gatherer.flush()
        with storing(temporary):
            checksum = writer.finish()
            file.flush()
    size = temporary.stat().st_size
    written = Written(gatherer.counts["measurements"], size, "", (), checksum)
    files.finished(temporary, target, written)
    return {
        **gatherer.counts,
        "dropped": dropped.rows,
        "first_dropped": dropped.first,
        "failed_by": dropped.failed,
    }


def _read_tables(shard: Shard, settings: Histories) -> Iterator[tuple[int, pa.Table]]:
    """Yield the columns in chunks of about 131,072 rows or one row group, with the number of their
    first row.
    """
    columns = settings.columns()
    as_dictionary = {settings.peer, *settings.categories()}
    if settings.entity_from == "column":
        as_dictionary.add(settings.entity)
    coded = [name for name in columns if name in as_dictionary]
    tables: list[pa.Table] = []
    first_row = rows = 0
    for chunk in read_chunks(shard, columns, coded=coded):
        table = with_one_time(chunk.table(columns), settings.time_columns)
        tables.append(table)
        rows += table.num_rows
        if rows >= _BATCH_ROWS:
            yield first_row, pa.concat_tables(tables)
            first_row += rows
            rows = 0
            tables = []
    if rows:
        yield first_row, pa.concat_tables(tables)
