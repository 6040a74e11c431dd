"""Scan shards for the values that decide a row's split: the time, the entity and, if needed, the label. Pass 1.

Writes two Arrow files per shard, so that pass 2 parses no date again. Per row: the index of the entity, microseconds,
flags and, if needed, a digest of its content. Per distinct entity: its hash and whether it was seen before the cutoff.
Memory is O(chunk + entities of the shard).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I64, U64, Bools
from headrace.dataset.index import text_array
from headrace.errors import InputError
from headrace.folds.settings import GroupKFold, Rolling
from headrace.formats.date_words import advice
from headrace.formats.dates import EPOCHS, INSTANTS, MISSING, Dates, look_like_hours, parse_dates
from headrace.formats.shard import Chunk, Shard
from headrace.formats.source import read_chunks
from headrace.formats.text_columns import MEANS_MISSING, as_text, nulled
from headrace.printable import shown
from headrace.run.context import STAGE_DIRECTORY, TaskFiles, read_arrow
from headrace.split import columns
from headrace.split.allocate import Hashes, hash_entities
from headrace.split.content import Content
from headrace.split.cutoff import cutoffs
from headrace.split.folds import fold_times
from headrace.split.settings import TemporalSplit
from headrace.split.sorting import in_order

if TYPE_CHECKING:
    from headrace.stream.audit.overlap import Benchmarks

NOBODY = -1
UNREADABLE_DATE, MISSING_LABEL, INSTANT, HOLDS_ITEM = 1, 2, 4, 8
_MIXED = frozenset({"iso", "iso_zoned"})  # forms that time_format="iso" allows together
_MISSING_TEXTS = text_array(sorted(MEANS_MISSING))
MAX_CLASSES = 100_000
MAX_STRATA = 100
_TEXTS_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Scanned:
    """The scan of one shard. entity int32 [N], micros int64 [N], flags uint8 [N]; hashes: [entities].

    number: of the shard. sizes int32 [N]: bytes of every row in the file, or None if rows cannot be copied as bytes.
    content uint64 [N]: digests of the compared columns, or None if pass 1 does not compute them. alike uint64 [N]: one
    number for rows that have the same content or are joined through near ones; None if near rows are not searched.
    """

    number: int
    entity: npt.NDArray[np.int32]
    micros: npt.NDArray[np.int64]
    flags: npt.NDArray[np.uint8]
    sizes: npt.NDArray[np.int32] | None
    content: U64 | None
    hashes: Hashes
    alike: U64 | None = None

    @property
    def compared(self) -> U64 | None:
        """The values that are equal for rows that count as the same."""
        return self.content if self.alike is None else self.alike


def scan_file(number: int, of: Literal["rows", "entities", "strata"]) -> str:
    """Return the path of a file of a shard's scan, relative to the run.

    strata: the rows that count, by entity and class; columns: entity, class, rows.
    """
    return f"{STAGE_DIRECTORY}/scan-{number:05d}.{of}.arrow"


def alike_file(number: int) -> str:
    """Return the path of the numbers of alike rows of a shard, relative to the run."""
    return f"{STAGE_DIRECTORY}/near-alike-{number:05d}.arrow"


def scan_shard(
    files: TaskFiles,
    settings: TemporalSplit,
    shard: Shard,
    number: int,
    content: Content | None,
    benchmarks: Benchmarks | None = None,
) -> dict[str, Any]:
    """Scan one shard. content: the columns of every row to digest. benchmarks: rows that overlap these are flagged.

    Raises `InputError` for rows without date or entity if the settings make that an error.
    """
    scan = _Scan(settings, shard, content, benchmarks)
    for chunk in read_chunks(shard, scan.columns):
        scan.take(chunk)
    result, rows, entities = scan.finish()
    files.write_arrow(scan_file(number, "rows"), rows)
    files.write_arrow(scan_file(number, "entities"), entities)
    if isinstance(settings.folds, GroupKFold):
        files.write_arrow(scan_file(number, "strata"), scan.strata(rows))
    return result


def read_scan(run: Path, number: int, *, alike: bool = False) -> Scanned:
    """Read the files of `scan_shard`; arrays are views of mapped files. alike: near rows were searched since."""
    rows = read_arrow(run / scan_file(number, "rows"))
    found = {name: rows[name].to_numpy() for name in rows.column_names}
    return Scanned(
        number=number,
        entity=found["entity"],
        micros=found["micros"],
        flags=found["flags"],
        sizes=found.get("size"),
        content=found.get("content"),
        hashes=read_entities(run, number)[0],
        alike=read_arrow(run / alike_file(number))["alike"].to_numpy() if alike else None,
    )


def read_entities(run: Path, number: int) -> tuple[Hashes, npt.NDArray[np.bool_]]:
    """Read hashes of the shard's entities and which of them were seen before the cutoff."""
    entities = read_arrow(run / scan_file(number, "entities"))
    hashes = Hashes(entities["high"].to_numpy(), entities["low"].to_numpy())
    return hashes, entities["before"].to_numpy().astype(np.bool_)


@contextmanager
def located(where: object, first_row: int) -> Iterator[None]:
    """Within the block, add the file and the row to input errors that do not name the file."""
    try:
        yield
    except InputError as error:
        if str(where) in str(error):
            raise
        raise InputError(f"{where}: from row {first_row + 1}: {error}") from error


class _Scan:
    """The running state of one shard's scan."""

    def __init__(
        self, settings: TemporalSplit, shard: Shard, content: Content | None, benchmarks: Benchmarks | None
    ) -> None:
        self.settings, self.shard, self.content = settings, shard, content
        self.cutoffs = cutoffs(settings)
        self.reach_us = max(settings.reaches_us().values(), default=0)
        wanted = [settings.time, *([] if settings.entity is None else [settings.entity])]
        if settings.label is not None:
            wanted += settings.targets or () if settings.label == settings.main_target else (settings.label,)
        wanted += content.columns(shard) if content is not None else []
        self.stratify = settings.folds.stratify if isinstance(settings.folds, GroupKFold) else None
        wanted += [] if self.stratify is None else [self.stratify]
        self.strata_texts: list[pa.Array] = []
        self.strata_codes: list[npt.NDArray[np.int64]] = []
        self.columns = [name for name in dict.fromkeys(wanted) if name in shard.schema.names]
        self.benchmarks = benchmarks
        self.excluded: Counter[str] = Counter()  # rows by benchmark
        if benchmarks is not None:  # a benchmark item may be in any column
            self.columns = list(shard.schema.names)
        self.names: list[pa.Array] = []  # distinct entities of every chunk, as text or integers
        self.codes: list[npt.NDArray[np.int64]] = []
        self.micros: list[npt.NDArray[np.int64]] = []
        self.flags: list[npt.NDArray[np.uint8]] = []
        self.sizes: list[npt.NDArray[np.int32]] | None = []
        self.digests: list[U64] = []
        self.forms: set[str] = set()
        self.units: set[str] = set()
        self.unusual = self.other_than_hours = False
        self.first_unreadable: str | None = None
        self.missing_like: dict[str, Counter[str]] = {"entity": Counter(), "label": Counter()}
        self.classes: set[str] = set()
        self.distinct = 0

    def take(self, chunk: Chunk) -> None:
        table = chunk.table(self.columns)
        with located(self.shard.path, chunk.first_row):
            dates = self._dates(table, chunk.first_row)
            codes = self._entities(table, chunk)
            flags = np.where(dates.unreadable, UNREADABLE_DATE, 0).astype(np.uint8)
            if self.settings.time_format == "iso":  # else all rows of the source are on one clock
                flags |= np.where(dates.instant, INSTANT, 0).astype(np.uint8)
            if self.settings.label is not None:
                flags |= self._labels(table)
            if self.stratify is not None:
                texts = columns.label_texts(_column(table, self.stratify), self.settings.null_values)
                distinct = _encoded(pc.fill_null(texts, ""))
                self.strata_codes.append(distinct.indices.to_numpy() + sum(map(len, self.strata_texts)))
                self.strata_texts.append(distinct.dictionary)
            if self.content is not None:
                self.digests.append(self.content.of_chunk(chunk, table, str(self.shard.path)))
        if self.benchmarks is not None:
            from headrace.stream.audit.overlap import texts_of  # loads more libraries

            found = self.benchmarks.mask(texts_of(table), len(table), self.excluded)
            flags |= np.where(found, HOLDS_ITEM, 0).astype(np.uint8)
        sizes = chunk.sizes()
        if sizes is None:
            self.sizes = None
        elif self.sizes is not None:
            self.sizes.append(sizes)
        self.codes.append(codes)
        self.micros.append(dates.micros)
        self.flags.append(flags)

    def _dates(self, table: pa.Table, first_row: int) -> Dates:
        name, settings = self.settings.time, self.settings
        column = nulled(_column(table, name), ("", *settings.null_values))
        dates = parse_dates(column, settings.time_format)
        self.forms |= dates.forms
        check_forms(self.forms, settings.time_format, self.shard.path, name)
        self._note_units(column, dates)
        unreadable, repeated = dates.unreadable, np.zeros(len(column), np.bool_)
        for cutoff in self.cutoffs:
            if cutoff.fold_start_us < cutoff.fold_end_us:
                repeated |= (dates.micros >= cutoff.fold_start_us) & (dates.micros < cutoff.fold_end_us)
        repeated &= ~dates.instant
        if repeated.any():
            micros = np.where(repeated, MISSING, dates.micros)
            unreadable = unreadable | repeated
            dates = Dates(micros, unreadable, dates.instant, dates.forms)
        absent = dates.micros == MISSING if settings.bad_rows == "error" else unreadable
        if absent.any() and (settings.bad_rows == "error" or self.first_unreadable is None):
            row = int(np.flatnonzero(absent)[0])
            fault = fault_of(column[row], settings.time_format) or "has no date"
            if column[row].is_valid and repeated[row]:
                fault = (
                    f"is {shown(_python(column[row]), 80)}, an hour that happens twice in {settings.time_zone} around "
                    "the split date; give dates an offset"
                )
            told = f"{self.shard.path}: row {first_row + row + 1}: {name} {fault}"
            if settings.bad_rows == "error":
                raise InputError(f'{told}; or drop and count such rows with bad_rows="drop"')
            self.first_unreadable = told
        return dates

    def _note_units(self, column: pa.ChunkedArray, dates: Dates) -> None:
        """Note which epoch units have numbers of this size; a source that mixes units would be split at random."""
        declared = self.settings.time_format
        if declared == "auto" and dates.forms == {"epoch_s"}:
            self.other_than_hours |= not look_like_hours(dates.micros)
        if declared not in EPOCHS:
            return
        by_size = parse_dates(column, "auto")
        self.units |= by_size.forms & EPOCHS.keys()
        read = (dates.micros != MISSING) & (dates.micros != 0)  # 0 often stands for "unknown"
        self.unusual |= bool((read & by_size.unreadable).any()) or "yyyymmdd" in by_size.forms

    def _entities(self, table: pa.Table, chunk: Chunk) -> npt.NDArray[np.int64]:
        name = self.settings.entity
        if name is None:
            return np.full(table.num_rows, NOBODY, np.int64)
        column = _column(table, name)
        whole = pa.types.is_integer(column.type) and not self.settings.null_values
        if whole and not column.null_count:  # the usual ids; only distinct ones become text, at the end
            codes, names = np.arange(len(column)), column.combine_chunks()
        else:
            encoded = _encoded(column if whole else self._entity_texts(column))
            if encoded.null_count and self.settings.null_entity == "error":
                row = int(np.flatnonzero(pc.is_null(encoded).to_numpy(zero_copy_only=False))[0])
                raise InputError(
                    f"{self.shard.path}: row {chunk.first_row + row + 1}: {name} is empty; choose what becomes of such "
                    f'rows with null_entity="drop", which counts them, or null_entity="own", one entity together'
                )
            codes, names = pc.fill_null(encoded.indices.cast(pa.int64()), NOBODY).to_numpy(), encoded.dictionary
            if not whole:
                self._note_missing("entity", names, codes)
        self.names.append(names)
        codes = np.where(codes == NOBODY, NOBODY, codes + self.distinct)
        self.distinct += len(names)
        return codes

    def _entity_texts(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        return as_text(column, self.settings.null_values, f"entity {self.settings.entity!r}")

    def _labels(self, table: pa.Table) -> npt.NDArray[np.uint8]:
        settings = self.settings
        assert settings.label is not None
        if settings.label == settings.main_target:
            assert settings.targets is not None
            assert settings.main_target is not None
            values = columns.main_target(table, settings.targets, settings.main_target, settings.null_values)
        else:
            values = _column(table, settings.label)
        texts = columns.label_texts(values, settings.null_values)
        distinct = _encoded(texts)
        self._note_missing("label", distinct.dictionary, pc.fill_null(distinct.indices, NOBODY).to_numpy())
        self.classes.update(distinct.dictionary.to_pylist())
        if len(self.classes) > MAX_CLASSES:
            raise InputError(
                f"{settings.label} has more than {MAX_CLASSES:,} classes; this is not a label column, leave label= out"
            )
        return np.where(pc.is_null(texts).to_numpy(), MISSING_LABEL, 0).astype(np.uint8)

    def _note_missing(self, role: str, texts: pa.Array, places: npt.NDArray[Any]) -> None:
        """Count the rows whose text means "missing" in other tools. texts: distinct; places: their index by row."""
        for place in np.flatnonzero(pc.is_in(texts, value_set=_MISSING_TEXTS.cast(texts.type)).to_numpy(False)):
            self.missing_like[role][texts[int(place)].as_py()] += int(np.count_nonzero(places == place))

    def finish(self) -> tuple[dict[str, Any], pa.Table, pa.Table]:
        micros = np.concatenate([np.empty(0, np.int64), *self.micros])
        flags = np.concatenate([np.empty(0, np.uint8), *self.flags])
        codes = np.concatenate([np.empty(0, np.int64), *self.codes])
        if len(self.names) == 1:
            entity, names = codes.astype(np.int32), self.names[0]
        else:  # map indices into the lists of all chunks to indices into one list of distinct entities
            indices, names = _distinct(pa.concat_arrays(self.names) if self.names else pa.array([], pa.string()))
            entity = np.append(indices, np.int32(NOBODY))[codes]  # NOBODY is -1, which indexes the last element
        texts = self._entity_texts(pa.chunked_array([names])).combine_chunks()
        there = micros != MISSING
        instant = (flags & INSTANT) != 0 if self.forms == _MIXED else not self.forms.isdisjoint(INSTANTS)
        first = self._seen_from(micros, np.asarray(instant))
        is_before = there & (first < max(1, len(self.cutoffs)))
        before = np.zeros(len(texts), np.bool_)
        before[entity.compress(is_before & (entity != NOBODY))] = True
        hashes = hash_entities(texts, self.settings.seed)
        result = {
            "rows_in": len(micros),
            "forms": sorted(self.forms),
            "units": sorted(self.units),
            "unusual": self.unusual,
            "hours": self.forms == {"epoch_s"} and self.settings.time_format == "auto" and not self.other_than_hours,
            "first_us": int(micros[there].min()) if there.any() else None,
            "last_us": int(micros[there].max()) if there.any() else None,
            "first_unreadable": self.first_unreadable,
            "missing_like": {role: dict(sorted(counts.items())) for role, counts in self.missing_like.items()},
            "padded": _first_padded(texts),
            "nobody_before": bool((is_before & (entity == NOBODY)).any()),
            "entities": len(before),
            "classes": sorted(self.classes),
            "excluded": {name: self.excluded[name] for name in self.benchmarks.digests} if self.benchmarks else {},
        }
        rows = pa.table({"entity": entity, "micros": micros, "flags": flags})
        if self.sizes:
            rows = rows.append_column("size", pa.array(np.concatenate(self.sizes)))
        if self.content is not None:
            digests = np.concatenate([np.empty(0, np.uint64), *self.digests])
            rows = rows.append_column("content", pa.array(digests))
        entities = pa.table({"high": hashes.high, "low": hashes.low, "before": before.astype(np.uint8)})
        if isinstance(self.settings.folds, Rolling):
            earliest = np.full(len(texts), len(self.cutoffs), np.int64)
            np.minimum.at(earliest, entity[is_before & (entity != NOBODY)], first[is_before & (entity != NOBODY)])
            entities = entities.append_column("first", pa.array(earliest))
        return result, rows, entities

    def _seen_from(self, micros: I64, instant: Bools) -> I64:
        """Return the first cut that each row can train or validate before; a row in a cut's gap can do neither."""
        settings = self.settings
        if isinstance(settings.folds, Rolling):
            utc, wall = (fold_times(settings, clock).seen_from(micros) for clock in ("utc", "wall"))
            return np.where(instant, utc, wall)
        if not self.cutoffs:  # no cut: every row is seen by each fold
            return np.zeros(len(micros), np.int64)
        cutoff = self.cutoffs[0]
        edge = np.where(instant, cutoff.instant_us, cutoff.wall_us) - self.reach_us
        return (micros >= edge).astype(np.int64)

    def strata(self, rows: pa.Table) -> pa.Table:
        """Count the kept rows by entity and class. rows: as pass 1 writes them."""
        entity, flags = rows["entity"].to_numpy(), rows["flags"].to_numpy()
        kept = (rows["micros"].to_numpy() != MISSING) & (entity != NOBODY)
        kept &= (flags & (UNREADABLE_DATE | MISSING_LABEL | HOLDS_ITEM)) == 0
        texts, codes = pa.array([""], pa.string()), np.zeros(len(entity), np.int64)
        if self.stratify is not None:
            distinct = pa.concat_arrays(self.strata_texts or [texts]).dictionary_encode()
            texts = distinct.dictionary
            codes = distinct.indices.to_numpy()[np.concatenate([np.empty(0, np.int64), *self.strata_codes])]
        if len(texts) > MAX_STRATA:
            raise InputError(
                f"{self.shard.path}: {self.stratify} has {len(texts):,} values, and folds are stratified by at most "
                f"{MAX_STRATA}; name a column of classes"
            )
        pair, count = np.unique(entity[kept].astype(np.int64) * len(texts) + codes[kept], return_counts=True)
        return pa.table({"entity": pair // len(texts), "class": texts.take(pa.array(pair % len(texts))), "rows": count})


def _distinct(values: pa.Array) -> tuple[npt.NDArray[np.int32], pa.Array]:
    """Return the index of each value among the distinct ones, and these. Numbers are sorted, which is faster."""
    if not pa.types.is_integer(values.type):
        encoded = values.dictionary_encode()
        return encoded.indices.to_numpy(), encoded.dictionary
    order, ordered = in_order(values.to_numpy().astype(np.int64).view(np.uint64))
    new = np.ones(len(values), np.bool_)
    new[1:] = ordered[1:] != ordered[:-1]
    places = np.empty(len(values), np.int32)
    places[order] = np.cumsum(new, dtype=np.int32) - 1
    return places, values.take(pa.array(order[new]))


def _encoded(texts: pa.ChunkedArray) -> pa.DictionaryArray:
    encoded = texts.combine_chunks().dictionary_encode()
    return encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded


def check_forms(forms: Collection[str], time_format: str, where: object, name: str) -> None:
    """Raise `InputError` if the times of a file have several forms that may not be mixed."""
    if _may_not_mix(forms, time_format):
        first, second = sorted(forms)[:2]
        raise InputError(f"{where}: {name} is written as {first} and as {second}; {_one_form_advice(forms)}")


def one_form(files: Iterable[tuple[object, Iterable[str]]], time_format: str, name: str) -> set[str]:
    """Return the form of all times, or two forms if they may be mixed. Raises `InputError` naming two files.

    files: each with the forms of its times.
    """
    first: dict[str, object] = {}
    for path, forms in files:
        for form in forms:
            first.setdefault(form, path)
    if _may_not_mix(first, time_format):
        (form, path), (other, elsewhere) = list(first.items())[:2]
        raise InputError(f"{elsewhere}: {name} is of form {other}, in {path} of form {form}; {_one_form_advice(first)}")
    return set(first)


def _may_not_mix(forms: Collection[str], time_format: str) -> bool:
    return len(forms) > 1 and not (time_format == "iso" and _MIXED.issuperset(forms))


def _one_form_advice(forms: Iterable[str]) -> str:
    if set(forms) == _MIXED:
        return 'give time_format="iso", which reads dates without an offset as times in time_zone='
    return "write one form, or give time_format="


def fault_of(value: pa.Scalar, time_format: str) -> str | None:
    """Describe a time that cannot be read; None if there is none."""
    return f"is {shown(_python(value), 80)}, {advice(_python(value), time_format)}" if value.is_valid else None


def _first_padded(texts: pa.Array) -> str | None:
    """Return the first entity with surrounding blanks or not in Unicode form NFC; it looks like another entity."""
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


def _python(value: pa.Scalar) -> object:
    """Convert a value to Python, or to text if Python has no such time."""
    try:
        return value.as_py()
    except (ValueError, OverflowError):
        return f"{value.type} {value.cast(pa.int64()).as_py()}"


def _column(table: pa.Table, name: str) -> pa.ChunkedArray:
    if name in table.column_names:
        return table[name]
    return pa.chunked_array([pa.nulls(table.num_rows, pa.string())])
