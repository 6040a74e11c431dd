"""Scan shards for the values that decide a row's split: the time, the entity and what features add.

Pass 1.

Writes two Arrow files per shard, so that pass 2 parses no time again. Per row: the index of the
entity, microseconds, the first reason to drop it that was found and, if needed, a digest of its
content. Per distinct entity: its hash
and the first cut that it is seen before. Memory is O(chunk + entities of the shard).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I64, U8, U16, U64, Bools
from headrace.dataset.index import text_array
from headrace.errors import InputError, setting
from headrace.formats.column_paths import known_columns
from headrace.formats.dates import (
    EPOCHS,
    INSTANTS,
    MISSING,
    Dates,
    advice,
    look_like_hours,
    parse_dates,
    time_setting,
)
from headrace.formats.dialect import MEANS_MISSING, TextDialect
from headrace.formats.evidence import Evidence, in_one_form, spelled_type
from headrace.formats.grouped import parts_without_rows
from headrace.formats.shard import Chunk, Shard
from headrace.formats.source import read_chunks
from headrace.formats.text_columns import (
    as_text,
    joined_time,
    nulled,
    typed,
)
from headrace.formats.types import column_types, is_text, to_python
from headrace.run.context import STAGE_DIRECTORY, TaskFiles, read_arrow
from headrace.split.allocate import Hashes, hash_entities, hash_rows, in_order
from headrace.split.cutoff import Cutoff, cutoffs
from headrace.split.reasons import Reason
from headrace.split.settings import SplitSettings, TemporalSplit

NULL_ENTITY = -1
NO_REASON = 255  # more than the number of any reason
TYPES_THAT_FIT = "types_that_fit"  # in receipts
_MIXED = frozenset({"iso", "iso_zoned"})  # forms that time_format="iso" allows together
_MISSING_TEXTS = text_array(sorted(MEANS_MISSING))
_TEXTS_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Scanned:
    """The scan of one shard.

    entity int32 [N], time_us int64 [N]; hashes: [entities].

    shard: its number. reasons uint8 [N]: the number of the first reason to drop the row that
    scanners find, or NO_REASON. sizes int32 [N]: bytes of every row in the file, or None if rows
    cannot be copied as bytes. content uint64 [N]: digests of the compared columns, or None if pass
    1 does not compute them. alike uint64 [N]: one number for rows that have the same content or are
    joined through near ones; None if near rows are not searched. instant [N]: which times are on
    the UTC clock; None if all times of the source are on one clock.
    """

    shard: int
    entity: npt.NDArray[np.int32]
    time_us: I64
    reasons: U8
    sizes: npt.NDArray[np.int32] | None
    content: U64 | None
    hashes: Hashes
    alike: U64 | None = None
    instant: Bools | None = None

    @property
    def compared(self) -> U64 | None:
        """The values that are equal for rows that count as the same."""
        if self.alike is None:
            return self.content
        return self.alike


class Scanner:
    """What a feature of the split reads of one shard in pass 1; this base reads nothing.

    columns: those that it reads. reason: why rows that it finds are dropped, if it finds any.
    draws: digests of the rows that were scanned [N], by which they are drawn; None: it has none.
    words: of the types that all texts of a column fit, by column.
    """

    words: Mapping[str, Sequence[str]] = {}
    columns: Sequence[str] = ()
    reason: Reason | None = None

    @property
    def draws(self) -> U64 | None:
        return None

    def scan(self, chunk: Chunk, table: pa.Table, times: Dates) -> Bools | None:  # noqa: ARG002 - for subclasses
        """Look at a chunk of rows; mask those that its reason applies to, None for none."""
        return None

    def row_values(self) -> dict[str, pa.Array]:
        """Return columns to keep for each row of the shard."""
        return {}

    def result(self) -> dict[str, Any]:
        """Return what the receipt of the scan records."""
        return {}

    def finish(self, files: TaskFiles, number: int, rows: pa.Table) -> None:
        """Write files of the feature. rows: as pass 1 writes them."""


class TypesScanner(Scanner):
    """Find the types that all values of the text columns of a shard fit, which streams deliver."""

    def __init__(self, shard: Shard, declared: Collection[str], dialect: TextDialect) -> None:
        self._names = []
        for field in shard.schema:
            if is_text(field.type) and field.name not in shard.partition:
                self._names.append(field.name)
        self._evidence = Evidence(dialect)
        self._evidence.leave_out(declared)
        self.words = self._evidence.words

    def scan(self, chunk: Chunk, table: pa.Table, times: Dates) -> None:  # noqa: ARG002 - as in Scanner
        """Look at all values that may not be text alone."""
        self._evidence.add(chunk.table(self._evidence.undecided(self._names)))

    def result(self) -> dict[str, Any]:
        """Return the words of types that fit, by column."""
        return {TYPES_THAT_FIT: {name: list(words) for name, words in self._evidence.words.items()}}


def scan_file(number: int, content: Literal["rows", "entities", "strata"]) -> str:
    """Return the path of a file of a shard's scan, relative to the run."""
    return f"{STAGE_DIRECTORY}/scan-{number:05d}.{content}.arrow"


def links_file(number: int) -> str:
    """Return the path of the values of `linked_by` that a shard's entities have."""
    return f"{STAGE_DIRECTORY}/links-{number:05d}.arrow"


def linked_file(number: int) -> str:
    """Return the path of the entities of a shard with the hashes of their units."""
    return f"{STAGE_DIRECTORY}/linked-{number:05d}.arrow"


def alike_file(number: int) -> str:
    """Return the path of the numbers of alike rows of a shard, relative to the run."""
    return f"{STAGE_DIRECTORY}/near-alike-{number:05d}.arrow"


def scan_shard(
    files: TaskFiles,
    settings: SplitSettings,
    shard: Shard,
    number: int,
    scanners: Sequence[Scanner],
) -> dict[str, Any]:
    """Scan one shard.

    Raises `InputError` for rows without time or entity if the settings make that an error.
    """
    scan = _ShardScan(settings, shard, scanners)
    empty: list[str] = []
    for chunk in read_chunks(shard, scan.columns):
        scan.take(chunk)
        if shard.parts:
            empty += parts_without_rows(chunk)
    rows = scan.rows()
    if not len(rows):
        empty = [part.name for part in shard.parts] or [shard.name]
    entities = scan.entities()
    files.write_arrow(scan_file(number, "rows"), rows)
    files.write_arrow(scan_file(number, "entities"), entities)
    result = {**scan.result(), "without_rows": empty}
    for scanner in scanners:
        scanner.finish(files, number, rows)
        result |= scanner.result()
    return result


def read_scan(run: Path, number: int, *, alike: bool = False) -> Scanned:
    """Read the files of `scan_shard`; arrays are views of mapped files.

    alike: near rows were searched since.
    """
    rows = read_arrow(run / scan_file(number, "rows"))
    columns = {name: rows[name].to_numpy() for name in rows.column_names}
    return Scanned(
        shard=number,
        entity=columns["entity"],
        time_us=columns["time_us"],
        reasons=columns["reasons"],
        sizes=columns.get("size"),
        content=columns.get("content"),
        hashes=read_entities(run, number)[0],
        alike=read_arrow(run / alike_file(number))["alike"].to_numpy() if alike else None,
        instant=columns["instant"].view(np.bool_) if "instant" in columns else None,
    )


def read_entities(run: Path, number: int, *, linked: bool = True) -> tuple[Hashes, U16]:
    """Read hashes of the shard's entities, and the first cut that each is seen before; a later
    number for none.

    linked: read the hashes of units, where entities were joined.
    """
    path = run / scan_file(number, "entities")
    if linked and (run / linked_file(number)).exists():
        path = run / linked_file(number)
    entities = read_arrow(path)
    hashes = Hashes(entities["high"].to_numpy(), entities["low"].to_numpy())
    return hashes, entities["first_cut"].to_numpy()


class Spellings(NamedTuple):
    """The entities of a shard by their texts and by their values.

    others: the texts that are another form of the value; null for the rest. None: all are.
    """

    hashes: Hashes
    by_value: Hashes
    others: pa.Array | None


def read_spellings(run: Path, number: int) -> Spellings:
    """Read the hashes of a shard's entities by text and by value."""
    entities = read_arrow(run / scan_file(number, "entities"))
    hashes = Hashes(entities["high"].to_numpy(), entities["low"].to_numpy())
    if "spelling" not in entities.column_names:
        return Spellings(hashes, hashes, None)
    by_value = Hashes(entities["value_high"].to_numpy(), entities["value_low"].to_numpy())
    return Spellings(hashes, by_value, entities["spelling"].combine_chunks())


@contextmanager
def located(path: str | PathLike[str], first_row: int) -> Iterator[None]:
    """Within the block, add the file and the row to input errors that lack the file.

    Such an error counts its row from `first_row`.
    """
    try:
        yield
    except InputError as error:
        if error.path is None:
            if isinstance(error.row, int):
                error.row += first_row
            error.at(path=path, row=f"from row {first_row + 1:,}")
        raise


class _ShardScan:
    """The running state of one shard's scan."""

    def __init__(self, settings: SplitSettings, shard: Shard, scanners: Sequence[Scanner]) -> None:
        self.settings = settings
        self.in_time = settings if isinstance(settings, TemporalSplit) else None
        self.shard = shard
        self.scanners = scanners
        self.types = column_types(settings.types)
        self.cutoffs: list[Cutoff] = []
        self.reach_us = 0
        if self.in_time is not None:
            self.cutoffs = cutoffs(self.in_time)
            self.reach_us = max(self.in_time.reaches_us().values(), default=0)
        needed = [*settings.time_columns, *filter(None, [settings.entity_column])]
        for scanner in scanners:
            needed += scanner.columns
        self.columns = known_columns(shard.schema, list(dict.fromkeys(needed)))
        self.names: list[pa.Array] = []  # distinct entities of every chunk, as text or integers
        self.codes: list[I64] = [np.empty(0, np.int64)]
        self.time_us: list[I64] = [np.empty(0, np.int64)]
        self.reasons: list[U8] = [np.empty(0, np.uint8)]
        # else all rows of the source are on one clock
        self.instant: list[Bools] | None = None
        if self.in_time is not None and self.in_time.time_format == "iso":
            self.instant = [np.empty(0, np.bool_)]
        self.sizes: list[npt.NDArray[np.int32]] | None = []
        self.forms: set[str] = set()
        self.units: set[str] = set()
        self.unusual = False
        self.other_than_hours = False
        self.first_unreadable: str | None = None
        self.missing_like: Counter[str] = Counter()
        self.first_padded: str | None = None
        self.null_entity_before = False
        self.distinct = 0

    def take(self, chunk: Chunk) -> None:
        table = chunk.table(self.columns)
        with located(self.shard.path, chunk.first_row):
            if self.in_time is None:
                times = untimed(table.num_rows)
            else:
                times = self._times(self.in_time, table, chunk.first_row)
            codes = self._entities(table, chunk)
            reasons = _numbered(times.unreadable, Reason.UNREADABLE_TIME)
            for scanner in self.scanners:
                mask = scanner.scan(chunk, table, times)
                if mask is not None and scanner.reason is not None:
                    np.minimum(reasons, _numbered(mask, scanner.reason), out=reasons)
        sizes = chunk.sizes()
        if sizes is None:
            self.sizes = None
        elif self.sizes is not None:
            self.sizes.append(sizes)
        self.codes.append(codes)
        self.time_us.append(times.micros)
        self.reasons.append(reasons)
        if self.instant is not None:
            self.instant.append(times.instant)

    def _times(self, settings: TemporalSplit, table: pa.Table, first_row: int) -> Dates:
        name = settings.time_name
        nulls = ("", *settings.dialect.null_values)
        column = joined_time(
            [nulled(column_of(table, time_column), nulls) for time_column in settings.time_columns]
        )
        times = parse_dates(column, settings.time_format)
        self.forms |= times.forms
        check_forms(self.forms, settings.time_format, self.shard.path, name)
        self._note_units(column, times, settings.time_format)
        repeated = self._in_repeated_hour(times)
        if repeated.any():
            micros = np.where(repeated, MISSING, times.micros)
            times = Dates(micros, times.unreadable | repeated, times.instant, times.forms)
        if settings.bad_rows == "error":
            absent = times.micros == MISSING
        else:
            absent = times.unreadable
        if not absent.any() or (settings.bad_rows == "drop" and self.first_unreadable is not None):
            return times
        row = int(np.flatnonzero(absent)[0])
        value = to_python(column[row])
        remedy = ""
        if value is None:
            problem = "has no date"
        elif repeated[row]:
            problem = (
                f"an hour that happens twice in {settings.time_zone} around the split date; give"
                " dates an offset"
            )
        else:
            problem, _, remedy = advice(value, settings.time_format).partition("; ")
        if settings.bad_rows == "error":
            dropping = f"or drop and count such rows with {setting('bad_rows', 'drop')}"
            remedy = "; ".join(filter(None, [remedy, dropping]))
        error = InputError(
            problem,
            path=self.shard.path,
            row=first_row + row + 1,
            column=name,
            value=value,
            remedy=remedy or None,
        )
        if settings.bad_rows == "error":
            raise error
        self.first_unreadable = error.marked
        return times

    def _in_repeated_hour(self, times: Dates) -> Bools:
        """Mask the wall-clock times in an hour around a cut that clocks repeat: they have
        no side.
        """
        repeated = np.zeros(len(times.micros), np.bool_)
        for cutoff in self.cutoffs:
            if cutoff.fold_start_us < cutoff.fold_end_us:
                repeated |= (times.micros >= cutoff.fold_start_us) & (
                    times.micros < cutoff.fold_end_us
                )
        return repeated & ~times.instant

    def _note_units(self, column: pa.ChunkedArray, times: Dates, time_format: str) -> None:
        """Note which epoch units have numbers of this size; a source that mixes units would be
        split at random.
        """
        if time_format == "auto" and times.forms == {"epoch_s"}:
            self.other_than_hours |= not look_like_hours(times.micros)
        if time_format not in EPOCHS:
            return
        by_size = parse_dates(column, "auto")
        self.units |= by_size.forms & EPOCHS.keys()
        known = (times.micros != MISSING) & (times.micros != 0)  # 0 often stands for "unknown"
        self.unusual |= bool((known & by_size.unreadable).any()) or "yyyymmdd" in by_size.forms

    def _entities(self, table: pa.Table, chunk: Chunk) -> I64:
        name = self.settings.entity_column
        if name is None:
            return np.full(table.num_rows, NULL_ENTITY, np.int64)
        column = column_of(table, name)
        if name in self.types:
            column = typed(
                pa.table({name: column}),
                self.types,
                self.settings.dialect,
                self.shard.path,
                chunk.first_row,
            )[name]
        integers = pa.types.is_integer(column.type) and not self.settings.dialect.null_values
        # the usual ids; only distinct ones become text, at the end
        if integers and not column.null_count:
            codes = np.arange(len(column))
            names = column.combine_chunks()
        else:
            encoded = encode(column if integers else self._entity_texts(column))
            if encoded.null_count and self.settings.null_entity == "error":
                row = int(np.flatnonzero(pc.is_null(encoded).to_numpy(zero_copy_only=False))[0])
                raise InputError(
                    "is empty",
                    path=self.shard.path,
                    row=chunk.first_row + row + 1,
                    column=name,
                    remedy=(
                        f"choose what becomes of such rows with {setting('null_entity', 'drop')},"
                        f" which counts them, or {setting('null_entity', 'own')}, one entity"
                        " together"
                    ),
                )
            codes = pc.fill_null(encoded.indices.cast(pa.int64()), NULL_ENTITY).to_numpy()
            names = encoded.dictionary
            if not integers:
                self.missing_like += count_missing_like(names, codes)
        self.names.append(names)
        codes = np.where(codes == NULL_ENTITY, NULL_ENTITY, codes + self.distinct)
        self.distinct += len(names)
        return codes

    def _entity_texts(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        return as_text(
            column, self.settings.dialect.null_values, self.settings.entity_column or "entity"
        )

    def rows(self) -> pa.Table:
        """Return the values of each row; numbers the distinct entities of all chunks."""
        codes = np.concatenate(self.codes)
        if len(self.names) == 1:
            entity = codes.astype(np.int32)
        else:
            # map indices into the lists of all chunks to indices into one list of distinct entities
            if self.names:
                names = pa.concat_arrays(self.names)
            else:
                names = pa.array([], pa.string())
            indices, distinct_names = _distinct(names)
            self.names = [distinct_names]
            # NULL_ENTITY is -1, the last element
            entity = np.append(indices, np.int32(NULL_ENTITY))[codes]
        for scanner in self.scanners:
            if scanner.draws is not None:  # each row is drawn by its own values
                entity = np.arange(len(codes), dtype=np.int32)
        columns: dict[str, Any] = {
            "entity": entity,
            "time_us": np.concatenate(self.time_us),
            "reasons": np.concatenate(self.reasons),
        }
        if self.instant is not None:
            columns["instant"] = np.concatenate(self.instant).view(np.uint8)
        if self.sizes:
            columns["size"] = np.concatenate(self.sizes)
        for scanner in self.scanners:
            columns |= scanner.row_values()
        self.all_rows = pa.table(columns)
        return self.all_rows

    def entities(self) -> pa.Table:
        """Return the hash of each distinct entity, and the first cut that it is seen before."""
        entity = self.all_rows["entity"].to_numpy()
        texts = self._entity_texts(pa.chunked_array(self.names)).combine_chunks()
        first = self._first_cut()
        cuts = max(1, len(self.cutoffs))
        seen = first < cuts
        self.null_entity_before = bool((seen & (entity == NULL_ENTITY)).any())
        self.first_padded = _first_padded(texts)
        seen &= entity != NULL_ENTITY
        hashes = self._hashes(texts)
        first_cut = np.full(len(hashes), cuts, np.uint16)
        if cuts == 1:
            first_cut[entity.compress(seen)] = 0
        else:
            np.minimum.at(first_cut, entity[seen], first[seen].astype(np.uint16))
        columns = {"high": hashes.high, "low": hashes.low, "first_cut": first_cut}
        return pa.table({**columns, **self._by_value(texts)})

    def _by_value(self, texts: pa.Array) -> dict[str, Any]:
        """Return the hashes of the distinct entities by value, and the texts that spell one in
        another form; nothing if each value has one form.
        """
        words: dict[str, Sequence[str]] = {}
        for scanner in self.scanners:
            words |= scanner.words
        name = self.settings.entity_column
        type_ = None if name is None else spelled_type(words.get(name, ()))
        if name is None or type_ is None:
            return {}
        column = pa.chunked_array([texts])
        values = in_one_form(column, type_, self.settings.dialect, name).combine_chunks()
        is_other = pc.not_equal(values, texts)
        if not pc.any(is_other).as_py():
            return {}
        hashes = hash_entities(values, self.settings.seed)
        others = pc.if_else(is_other, texts, pa.scalar(None, texts.type))
        return {"value_high": hashes.high, "value_low": hashes.low, "spelling": others}

    def _hashes(self, texts: pa.Array) -> Hashes:
        """Hash the entities, or what rows are drawn by."""
        for scanner in self.scanners:
            if scanner.draws is not None:
                return hash_rows(scanner.draws, self.settings.seed)
        return hash_entities(texts, self.settings.seed)

    def _first_cut(self) -> I64 | U8:
        """Return the first cut that each row can train or validate before; a row in a cut's gap can
        do neither.
        """
        time_us: I64 = self.all_rows["time_us"].to_numpy()
        absent: Bools = time_us == MISSING
        if not self.cutoffs:  # no cut: every row is seen by each fold
            return absent.view(np.uint8)
        if self.forms == _MIXED:
            instant = self.all_rows["instant"].to_numpy() != 0
        else:
            instant = np.bool_(not self.forms.isdisjoint(INSTANTS))
        ends_utc = np.array([cutoff.instant_us for cutoff in self.cutoffs]) - self.reach_us
        ends_wall = np.array([cutoff.wall_us for cutoff in self.cutoffs]) - self.reach_us
        if len(self.cutoffs) == 1:
            past: Bools = time_us >= np.where(instant, ends_utc[0], ends_wall[0])
            past |= absent
            return past.view(np.uint8)
        first = np.where(
            instant,
            np.searchsorted(ends_utc, time_us, side="right"),
            np.searchsorted(ends_wall, time_us, side="right"),
        )
        return np.where(absent, len(self.cutoffs), first)

    def result(self) -> dict[str, Any]:
        """Return what the receipt records; `rows` and `entities` come first."""
        time_us = self.all_rows["time_us"].to_numpy()
        time_us = time_us[time_us != MISSING]
        only_seconds = (
            self.forms == {"epoch_s"}
            and self.in_time is not None
            and self.in_time.time_format == "auto"
        )
        return {
            "rows_in": len(self.all_rows),
            "forms": sorted(self.forms),
            "units": sorted(self.units),
            "unusual": self.unusual,
            "hours": only_seconds and not self.other_than_hours,
            "first_us": int(time_us.min()) if len(time_us) else None,
            "last_us": int(time_us.max()) if len(time_us) else None,
            "first_unreadable": self.first_unreadable,
            "missing_like_entity": dict(sorted(self.missing_like.items())),
            "padded": self.first_padded,
            "null_entity_before": self.null_entity_before,
        }


def untimed(rows: int) -> Dates:
    """Return the times of rows that have none and need none: the same instant for all."""
    return Dates(
        np.zeros(rows, np.int64), np.zeros(rows, np.bool_), np.ones(rows, np.bool_), frozenset()
    )


def _numbered(mask: Bools, reason: Reason) -> U8:
    """Return the number of the reason where it applies."""
    return np.where(mask, np.uint8(reason.number), np.uint8(NO_REASON))


def count_missing_like(texts: pa.Array, indices: npt.NDArray[Any]) -> Counter[str]:
    """Count the rows whose text means "missing" in other tools.

    texts: distinct; indices: of each row's text.
    """
    counts: Counter[str] = Counter()
    odd = pc.is_in(texts, value_set=_MISSING_TEXTS.cast(texts.type)).to_numpy(False)
    for index in np.flatnonzero(odd).tolist():
        counts[texts[index].as_py()] += int(np.count_nonzero(indices == index))
    return counts


def _distinct(values: pa.Array) -> tuple[npt.NDArray[np.int32], pa.Array]:
    """Return the index of each value among the distinct ones, and these.

    Numbers are sorted, which is faster.
    """
    if not pa.types.is_integer(values.type):
        encoded = values.dictionary_encode()
        return encoded.indices.to_numpy(), encoded.dictionary
    order, ordered = in_order(values.to_numpy().astype(np.int64).view(np.uint64))
    new = np.ones(len(values), np.bool_)
    new[1:] = ordered[1:] != ordered[:-1]
    indices = np.empty(len(values), np.int32)
    indices[order] = np.cumsum(new, dtype=np.int32) - 1
    return indices, values.take(pa.array(order[new]))


def encode(texts: pa.ChunkedArray) -> pa.DictionaryArray:
    """Encode a column by its distinct values, as one array."""
    encoded = texts.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        return encoded.combine_chunks()
    return encoded


def check_forms(
    forms: Collection[str], time_format: str, path: str | PathLike[str], name: str
) -> None:
    """Raise `InputError` if the times of a file have several forms that may not be mixed."""
    if _may_not_mix(forms, time_format):
        first, second = sorted(forms)[:2]
        raise InputError(
            f"is written as {first} and as {second}",
            path=path,
            column=name,
            remedy=_one_form_advice(forms),
        )


def one_form(
    files: Iterable[tuple[str | PathLike[str], Iterable[str]]], time_format: str, name: str
) -> set[str]:
    """Return the form of all times, or two forms if they may be mixed.

    Raises `InputError` naming two files.

    files: each with the forms of its times.
    """
    first: dict[str, str | PathLike[str]] = {}
    for path, forms in files:
        for form in forms:
            first.setdefault(form, path)
    if _may_not_mix(first, time_format):
        (form, path), (other_form, other_path) = list(first.items())[:2]
        raise InputError(
            f"is of form {other_form}, in {path} of form {form}",
            path=other_path,
            column=name,
            remedy=_one_form_advice(first),
        )
    return set(first)


def _may_not_mix(forms: Collection[str], time_format: str) -> bool:
    return len(forms) > 1 and not (time_format == "iso" and _MIXED.issuperset(forms))


def _one_form_advice(forms: Iterable[str]) -> str:
    if set(forms) == _MIXED:
        iso = time_setting("iso")
        zone = setting("time_zone")
        return f"give {iso}, which reads dates without an offset as times in {zone}"
    return f"write one form, or give it, such as {time_setting('%d/%m/%Y')}"


def _first_padded(texts: pa.Array) -> str | None:
    """Return the first entity with surrounding blanks or not in Unicode form NFC; it looks like
    another entity.
    """
    for start in range(0, len(texts), _TEXTS_AT_ONCE):
        part = texts.slice(start, _TEXTS_AT_ONCE)
        plain = pc.utf8_trim_whitespace(part)
        if not pc.all(pc.string_is_ascii(plain)).as_py():
            import polars as pl  # a split of ASCII entities does not load it

            # pyarrow 25 and older have pc.utf8_normalize return NFD when asked for NFC.
            plain = pl.Series(plain).str.normalize("NFC").to_arrow().cast(plain.type)
        odd = pc.index(pc.not_equal(plain, part), True).as_py()
        if odd >= 0:
            return str(part[odd].as_py())
    return None


def column_of(table: pa.Table, name: str) -> pa.ChunkedArray:
    """Return a column of a table; nulls if it has none of that name."""
    if name in table.column_names:
        return table[name]
    return pa.chunked_array([pa.nulls(table.num_rows, pa.string())])
