"""Parse source shards into measurements and write them to piece files, grouped by partition: pass 1.

Entities and peers become codes, times become microseconds and latencies become latency codes.

A row that is not a measurement has one reason, the first that applies in the order of `REASONS`. The settings decide
whether a reason is an error or the row is dropped and counted. Text is parsed once per distinct value of a chunk.
Memory: O(chunk).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import F64, I8, I64, U64, Bools
from headrace.errors import InputError
from headrace.formats.date_words import advice
from headrace.formats.dates import MISSING, parse_in_turn
from headrace.formats.registry import stem_of_name
from headrace.formats.shard import Shard
from headrace.formats.source import read_chunks
from headrace.formats.text_columns import MEANS_MISSING, as_text, nulled
from headrace.formats.types import is_text
from headrace.formats.write import Written
from headrace.histories.codec import addresses
from headrace.histories.codec.addresses import Addresses, Kind
from headrace.histories.codec.latencies import Codes, encode_latencies
from headrace.histories.codec.values import as_words, stored_type
from headrace.histories.config import Histories
from headrace.histories.dictionary import hash_ids, hashed_addresses, shard_texts
from headrace.histories.failures import Failed, count_failed
from headrace.histories.piece import Parsed, PieceWriter, hash_entities, joined, piece_file, sampled
from headrace.run.context import TaskFiles
from headrace.storage.local import created, storing

_LATEST_US = 1 << 62
_TELLING = 1 << 10  # so many addresses show whether they repeat
_US_PER = {"us": 1, "ms": 1_000, "s": 1_000_000}
_ADVICE = {  # of each reason, what is said of the value
    "null_time": "is missing",
    "unreadable_time": "is not a time of the declared form: {time}",
    "time_before_1970": "is before 1970, and row times count from there",
    "null_entity": "is missing",
    "unreadable_entity": "is not a valid {entity_kind}; correct it, or give entity_kind='text'",
    "null_peer": "is missing",
    "unreadable_peer": "is not a valid {peer_kind}; correct it, or give peer_kind='text'",
    "unreadable_value": "is not {wanted}",
    "missing_value": "is missing, which missing='error' refuses; or give missing='failed' or missing='drop'",
    "negative_value": "is below 0, which negative='error' refuses; or give negative='failed' or negative='drop'",
    "zero_value": "is 0, which zero='error' refuses; or give zero='value', zero='failed' or zero='drop'",
}
REASONS = tuple(_ADVICE)


@dataclass(frozen=True)
class Place:
    """A file of the source: its path for errors, its name below the root for counts, its name without extension."""

    path: str
    name: str
    stem: str


@dataclass(frozen=True)
class Coded:
    """A column of addresses as distinct values and an index for each row: int64 [N], −1 null, −2 unreadable.

    texts: the texts that the values are hashes of; None if they are addresses or numbers.
    """

    distinct: Addresses
    place: I64
    texts: pa.Array | None = None


# For each column and kind the last dictionary and what it was coded as. The chunks of a row group have the same one.
AddressCache = dict[tuple[str, Kind], tuple[pa.Array, Coded]]


@dataclass
class Dropped:
    """Rows that are not measurements: the count of each reason, and the location and content of its first row.

    failed: failed measurements, with the count of each reason, the location of the first, and the first values.
    """

    rows: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)
    failed: dict[str, Failed] = field(default_factory=dict)


def parse_chunk(
    table: pa.Table,
    rows: I64,
    place: Place,
    settings: Histories,
    dropped: Dropped,
    *,
    cache: AddressCache | None = None,
    compiled: bool = False,
) -> Parsed:
    """Parse the columns of a chunk.

    rows int64 [N]: their row numbers in the file, from 0. compiled: use numba. Dropped rows are counted in `dropped`.
    Raises `InputError` that names file, row, column and value.
    """
    n, given = len(rows), table
    if settings.null_values:
        table = pa.table({name: nulled(table[name], settings.null_values) for name in table.column_names})
    reason = np.zeros(n, np.int8)  # 0: a measurement, k: REASONS[k - 1]
    of_column = np.zeros(n, np.int8)  # 0: of the latency, k: of the k-th of the value columns

    def blame(mask: Bools, word: str, column: int = 0) -> None:
        of_column[mask & (reason == 0)] = column
        _blame(reason, mask, word)

    times = nulled(table[settings.time], ("",))
    micros = parse_in_turn(times, settings.time_format)
    absent = np.asarray(times.is_null(), np.bool_) if times.null_count else np.zeros(n, np.bool_)
    blame(absent, "null_time")
    blame(~absent & ((micros == MISSING) | (micros > _LATEST_US)), "unreadable_time")
    blame(micros < 0, "time_before_1970")
    code = partial(code_addresses, seed=settings.seed, null_values=settings.null_values, cache=cache, compiled=compiled)
    if settings.entity_from == "file_name":
        one = code(pa.chunked_array([[place.stem]]), settings.entity_kind, "file name")
        entity = replace(one, place=np.full(n, one.place[0]))
    else:
        entity = code(table[settings.entity], settings.entity_kind, settings.entity)
    blame(entity.place == -1, "null_entity")
    blame(entity.place == -2, "unreadable_entity")
    peer = None
    if settings.peer is not None:
        peer = code(table[settings.peer], settings.peer_kind, settings.peer, repeats="stay")
        blame(peer.place == -1, "null_peer")
        blame(peer.place == -2, "unreadable_peer")
    if settings.value is None:
        codes = Codes(np.zeros(n, np.uint16), 0)
    else:
        numbers = _numbers(table[settings.value], settings.value, blame)
        codes = _codes(numbers, settings, reason, compiled=compiled)
    more, categories = _values(table, settings, blame, code)
    if settings.value is not None:
        count_failed(numbers, codes.codes, reason, (rows, place.name), dropped.failed)
    if reason.any():
        _settle(given, rows, place, settings, (reason, of_column), dropped)
    keep = slice(None) if not reason.any() else np.flatnonzero(reason == 0)
    of_texts = {"entity": entity, **({} if peer is None else {"peer": peer}), **categories}
    texts = {}
    for role, each in of_texts.items():
        if each.texts is not None:  # those that the kept rows use
            own = each.place[keep]
            used = np.bincount(own[own >= 0], minlength=len(each.texts))
            texts[role] = each.texts.take(pa.array(np.flatnonzero(used)))
    return Parsed(
        micros[keep],
        codes.codes[keep],
        entity.distinct,
        entity.place[keep],
        None if peer is None else peer.distinct,
        None if peer is None else peer.place[keep],
        codes.clamped,
        None if more is None else more[keep],
        texts,
    )


def _values(
    table: pa.Table, settings: Histories, blame: Any, code: Callable[..., Coded]
) -> tuple[U64 | None, dict[str, Coded]]:
    """Read the value columns as words, uint64 [N, K], and return the dictionaries of category columns."""
    if not settings.values:
        return None, {}
    roles, categories = settings.categories(), dict[str, Coded]()
    words = np.zeros((table.num_rows, len(settings.values)), np.uint64)
    for number, (name, kind) in enumerate(settings.values.items()):
        if kind == "category":
            found = categories[roles[name]] = code(table[name], "text", name)
            hashes = np.append(found.distinct.words()[:, 0], np.uint64(0))
            words[:, number] = hashes[found.place]  # the last is that of a missing one
            continue
        stored, own = stored_type(kind), partial(blame, column=number + 1)
        if stored.kind == "f":
            values = _numbers(table[name], name, own)
            own(np.isinf(values), "unreadable_value")
            with np.errstate(over="ignore"):
                values = values.astype(stored)
            own(np.isinf(values), "unreadable_value")
        else:
            values = _integers(table[name], name, stored, own)
        words[:, number] = as_words(values)
    return words, categories


def _integers(column: pa.ChunkedArray, name: str, stored: np.dtype[Any], blame: Any) -> npt.NDArray[Any]:
    """Read whole numbers of a type, with the type's minimum for missing ones: [N]."""
    import polars as pl

    column = nulled(column, ("",))
    missing = np.asarray(pc.is_null(column, nan_is_null=True), np.bool_)
    values = pl.Series(name, column)
    if values.dtype == pl.String:
        values = values.str.strip_chars()
        whole = values.cast(pl.Int64, strict=False)
        floats = values.cast(pl.Float64, strict=False)
    elif values.dtype.is_numeric() or values.dtype == pl.Boolean:
        floats, whole = values, values.cast(pl.Int64, strict=False)
    else:
        raise _no_numbers(column, name)
    if floats.dtype.is_decimal():
        floats = floats.cast(pl.Float64)
    if floats.dtype.is_float():  # whole numbers may be written as 3.0
        whole = whole.fill_null(floats.cast(pl.Int64, strict=False))
        whole = pl.select(pl.when(floats.fill_nan(None) == whole.cast(pl.Float64)).then(whole)).to_series()
    limits = np.iinfo(stored)
    found = whole.fill_null(limits.min).to_numpy()
    outside = (found <= limits.min) | (found > limits.max)
    blame(outside & ~missing, "unreadable_value")
    return np.where(outside, limits.min, found).astype(stored)


def code_addresses(
    column: pa.ChunkedArray,
    kind: Kind,
    name: str,
    *,
    seed: int = 0,
    null_values: Sequence[str] = (),
    cache: AddressCache | None = None,
    compiled: bool = False,
    repeats: Literal["go", "stay"] = "go",
) -> Coded:
    """Code a column of addresses or numbers, given as texts or a dictionary, and parse each distinct value once.

    seed: of the hashes of texts; null_values: texts that mean null. cache: is read and updated. compiled: parse
    addresses with numba. numba parses plain texts row by row, which is faster than finding the distinct ones. With
    repeats="stay", or if hardly any address repeats, distinct addresses are not found, so an address may occur more
    than once.
    """
    where = f"column {name!r}"
    if not (compiled and kind == "address" and is_text(column.type)):
        encoded = column.combine_chunks().dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        dictionary, coded = (cache or {}).get((name, kind), (None, None))
        if coded is None or not encoded.dictionary.equals(dictionary):
            texts = as_text(pa.chunked_array([encoded.dictionary]), null_values, where).combine_chunks()
            coded = _code_texts(texts, kind, seed, compiled=compiled)
            coded = replace(coded, place=np.append(coded.place, -1))  # the last is that of rows without a value
            if cache is not None:
                cache[name, kind] = encoded.dictionary, coded
        if not encoded.null_count and len(coded.distinct) == len(coded.place) - 1:  # all can be read, none is missing
            return replace(coded, place=encoded.indices.to_numpy().astype(np.int64))
        indices = encoded.indices.fill_null(len(coded.place) - 1) if encoded.null_count else encoded.indices
        return replace(coded, place=coded.place[indices.to_numpy()])
    if column.type not in (pa.string(), pa.large_string()):
        column = as_text(column, (), where)
    texts = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(texts, pa.ChunkedArray):  # zero chunks stay chunked
        texts = pa.array([], pa.large_string())
    coded = _code_texts(texts, kind, seed, compiled=True)
    if repeats == "stay":
        return coded
    from headrace.histories.codec.kernels import distinct

    found, place = coded.distinct, coded.place
    words, families = found.bytes.view(np.uint64), found.family.astype(np.uint64)[:, None]
    # If addresses come at random and fewer than 4 of 100 repeat in the first eighth, fewer than a quarter do in the
    # whole: telling them apart here and again in the partition is more work than hashing and storing some twice.
    some = len(found) // 8
    if some < _TELLING or len(distinct(words[:some], families[:some])[1]) <= 0.96 * some:
        number, once = distinct(words, families)
        place[place >= 0] = number
        found = Addresses(once[:, 2].astype(np.uint8), np.ascontiguousarray(once[:, :2]).view(np.uint8))
    return Coded(found, place)


def _code_texts(texts: pa.Array, kind: Kind, seed: int, *, compiled: bool) -> Coded:
    """Code texts one by one; `distinct` has those that can be read, however often they occur."""
    absent = np.asarray(texts.is_null(), np.bool_) if texts.null_count else np.zeros(len(texts), np.bool_)
    if compiled and kind == "address":
        from headrace.histories.codec.text_kernels import offsets_of, parse_texts

        read = Addresses(*parse_texts(texts))
        absent |= np.diff(offsets_of(texts)) == 0
    else:
        filled = texts.fill_null("") if texts.null_count else texts
        read = hashed_addresses(hash_ids(filled, seed)) if kind == "text" else addresses.parse(filled, kind)
    read.family[absent] = 0
    readable = np.flatnonzero(read.family)
    place = np.full(len(texts), -2)
    place[readable] = np.arange(len(readable))
    place[absent] = -1
    found = read if len(readable) == len(read) else read.take(readable)
    return Coded(found, place, texts.take(pa.array(readable)) if kind == "text" else None)


def _numbers(column: pa.ChunkedArray, name: str, blame: Any) -> F64:
    """Read values as they are written, NaN for missing ones: float64 [N]."""
    if is_text(column.type):
        import polars as pl

        column = nulled(column, ("",))
        read = pl.Series("value", column, dtype=pl.String).str.strip_chars().cast(pl.Float64, strict=False)
        blame(np.asarray(pc.is_valid(column).to_numpy(), np.bool_) & read.is_null().to_numpy(), "unreadable_value")
        values = read.fill_null(np.nan).to_numpy()
    else:
        try:
            values = pc.fill_null(column.cast(pa.float64(), safe=False), np.nan).to_numpy()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise _no_numbers(column, name) from None
    return np.asarray(values, np.float64)


def _no_numbers(column: pa.ChunkedArray, name: str) -> InputError:
    return InputError(f"column {name!r} is {column.type}, which is not a number; name a column of numbers")


def _blame(reason: I8, mask: Bools, word: str) -> None:
    """Set the reason of the masked rows that have none yet."""
    if mask.any():
        reason[mask & (reason == 0)] = REASONS.index(word) + 1


def _wanted(kind: str) -> str:
    """Describe the values that a type holds; the least integer means missing."""
    if kind.startswith("float"):
        return f"a finite number that {kind} holds"
    most = np.iinfo(kind).max
    return f"a whole number from {-most:,} to {most:,}, which {kind} holds"


def _rules(settings: Histories) -> dict[str, str]:
    return {"missing_value": settings.missing, "negative_value": settings.negative, "zero_value": settings.zero}


def _codes(values: F64, settings: Histories, reason: I8, *, compiled: bool = False) -> Codes:
    """Return the latency codes of values, and set `reason` for invalid rows.

    Rows that have a reason get an arbitrary code.
    """
    rules = _rules(settings)
    if compiled:
        from headrace.histories.codec.kernels import codes_of

        of_rule = {"failed": -1, "value": 0}
        missing, negative, zero = (of_rule.get(rule, REASONS.index(word) + 1) for word, rule in rules.items())
        numbers = (REASONS.index("unreadable_value") + 1, missing, negative, zero)
        return Codes(*codes_of(values, _US_PER[settings.value_unit], numbers, reason))
    failed = np.zeros(len(values), np.bool_)
    masks = {"missing_value": np.isnan(values), "negative_value": values < 0, "zero_value": values == 0}
    _blame(reason, np.isinf(values), "unreadable_value")
    for word, mask in masks.items():
        if rules[word] == "failed":
            failed |= mask
        elif rules[word] != "value":
            _blame(reason, mask, word)
    failed |= reason != 0
    usable = np.minimum(np.where(failed, 0.0, values), _LATEST_US) * _US_PER[settings.value_unit]
    return encode_latencies(np.rint(usable), failed)


def _settle(
    table: pa.Table, rows: I64, place: Place, settings: Histories, blamed: tuple[I8, I8], dropped: Dropped
) -> None:
    """Count the dropped rows, or raise for the first row that is an error. blamed: reasons, and value columns, [N]."""
    reason, of_column = blamed

    def tell(row: int, word: str) -> str:
        part = word.rsplit("_", 1)[1] if not word.startswith("time_") else "time"
        name = {"time": settings.time, "entity": settings.entity, "peer": settings.peer, "value": settings.value}[part]
        wanted = "a finite number"
        if part == "value" and of_column[row]:
            name, kind = list(settings.values.items())[of_column[row] - 1]
            wanted = _wanted(kind)
        if part == "entity" and settings.entity_from == "file_name":
            name, value = "the file's name", place.stem
        else:
            value = table[name][row].as_py()
        told = _ADVICE[word].format(
            entity_kind=settings.entity_kind,
            peer_kind=settings.peer_kind,
            wanted=wanted,
            time=advice(value, " or ".join(settings.time_format), "time_format") if part == "time" else "",
        )
        if word.startswith("unreadable") and value in MEANS_MISSING:
            told += f"; if {value!r} means missing, give null_values={value!r}"
        shown = repr(value) if value is None or isinstance(value, str) else f"{value}"
        return f"row {rows[row] + 1}: {name} is {shown}, which {told}"

    rules = _rules(settings)
    refused = np.array([False, *(rules.get(word, settings.bad_rows) == "error" for word in REASONS)])
    errors = np.flatnonzero(refused[reason])
    if len(errors):
        row = int(errors[0])
        word = REASONS[int(reason[row]) - 1]
        end = "" if word in rules else "; or drop and count such rows with bad_rows='drop'"
        raise InputError(f"{place.path}: {tell(row, word)}{end}")
    for number in np.unique(reason[reason > 0]).tolist():
        word = REASONS[number - 1]
        mine = np.flatnonzero(reason == number)
        dropped.rows[word] = dropped.rows.get(word, 0) + len(mine)
        dropped.first.setdefault(word, f"{place.name}: {tell(int(mine[0]), word)}")


# Measurements that are grouped by partition together. Reading the part of a partition costs the same whatever its size,
# so thousands of partitions need many; fewer stay in the processor's cache.
_PART_ROWS, _MOST_ROWS = 1 << 9, 1 << 20
_BATCH_ROWS = 1 << 17  # a usual row group: its dictionaries need not be joined with others


def gather_shard(
    files: TaskFiles, settings: Histories, shard: Shard, number: int, partitions: int, *, compiled: bool = False
) -> dict[str, Any]:
    """Write the piece of one source shard. Raises `InputError` for rows that are an error."""
    place = Place(str(shard.path), shard.name, stem_of_name(shard.path.name))
    names = ("rows_read", "not_sampled", "measurements", "failed", "clamped", "backwards", "sum")
    counts, dropped, cache = dict.fromkeys(names, 0), Dropped(), AddressCache()
    latest: int | None = None
    temporary = files.temporary(piece_file(number))
    with shard_texts(files, list(settings.dictionaries()), number) as add_texts, created(temporary) as file:
        writer = PieceWriter(file, partitions)
        held: list[Parsed] = []

        def write() -> None:
            together = joined(held, compiled=compiled)
            held.clear()
            kind, seed = settings.entity_kind, settings.seed
            hashes = hash_entities(together.entities, kind, seed, compiled=compiled, half="high")
            with storing(temporary):  # the writes alone: what reading raises is about the source
                total = writer.append(together, hashes.order, compiled=compiled)
            counts["sum"] = (counts["sum"] + total) % (1 << 64)

        for first_row, table in _batches(shard, settings):
            counts["rows_read"] += table.num_rows
            rows = np.arange(first_row, first_row + table.num_rows)
            if settings.sample_rate < 1:
                mine = sampled(shard.name, first_row, len(rows), settings.sample_rate, settings.seed)
                counts["not_sampled"] += int(len(rows) - mine.sum())
                rows, table = rows[mine], table.filter(pa.array(mine))
            if not len(rows):
                continue
            try:
                parsed = parse_chunk(table, rows, place, settings, dropped, cache=cache, compiled=compiled)
            except InputError as error:
                if str(error).startswith(place.path):
                    raise
                raise InputError(f"{place.path}: {error}") from error
            if not len(parsed.micros):
                continue
            add_texts(parsed.texts)
            held.append(parsed)
            micros = parsed.micros
            counts["measurements"] += len(micros)
            counts["failed"] += 0 if settings.value is None else int(np.count_nonzero(parsed.codes == 0))
            counts["clamped"] += parsed.clamped
            counts["backwards"] += int(np.count_nonzero(micros[1:] < micros[:-1]))
            counts["backwards"] += latest is not None and int(micros[0]) < latest
            latest = int(micros[-1])
            if sum(len(each.micros) for each in held) >= min(_MOST_ROWS, _PART_ROWS * partitions):
                write()
        if held:
            write()
        with storing(temporary):
            checksum = writer.finish()
            file.flush()
    size = temporary.stat().st_size
    files.finished(temporary, piece_file(number), Written(counts["measurements"], size, "", (), checksum))
    not_sampled = counts.pop("not_sampled")
    return {
        **counts,
        "dropped": dropped.rows | ({"not_sampled": not_sampled} if not_sampled else {}),
        "first_dropped": dropped.first,
        "failed_by": dropped.failed,
    }


def _batches(shard: Shard, settings: Histories) -> Iterator[tuple[int, pa.Table]]:
    """Yield the columns in chunks of about 131,072 rows or one row group, with the number of their first row."""
    columns = settings.columns()
    addresses = {settings.peer, settings.entity if settings.entity_from == "column" else None}
    addresses |= {name for name, kind in settings.values.items() if kind == "category"}
    held: list[pa.Table] = []
    first_row = rows = 0
    for chunk in read_chunks(shard, columns, coded=[name for name in columns if name in addresses]):
        table = chunk.table(columns)
        held.append(table)
        rows += table.num_rows
        if rows >= _BATCH_ROWS:
            yield first_row, pa.concat_tables(held)
            first_row, rows, held = first_row + rows, 0, []
    if rows:
        yield first_row, pa.concat_tables(held)
