"""The first pass: a batch of entities is read and cleaned, each on its own, and spooled for the second.

An entity that cannot be read, or does not pass, fails with its reason; the others of its batch do not notice.
O(an entity) of memory.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.errors import InputError
from headrace.run.context import TaskFiles
from headrace.series.arrays.axis import Frequency
from headrace.series.clean import Cleaned, clean, required_targets
from headrace.series.config import Series
from headrace.series.files import EntityFiles
from headrace.series.observed import Observed, read_file
from headrace.series.pipelines.settings import Resolved
from headrace.series.quality import quality_report
from headrace.series.spool import Passed, SpoolWriter

# The machine's troubles, not the file's: the run stops and can go on.
_MACHINE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE)


@dataclass(frozen=True)
class Loaded:
    """An entity to be read.

    source: the name of its first file, "" of long tables. load takes the columns of values that are wanted, in the
    order of `Series.columns()`, and raises `InputError`.
    """

    entity: str
    source: str
    load: Callable[[Sequence[str]], Observed]


class EntitySource(Protocol):
    """Where entities come from, numbered in the order of their names."""

    @property
    def count(self) -> int:
        """How many entities there are."""

    def batch(self, start: int, stop: int) -> Iterator[Loaded]:
        """Some of them."""

    def paths(self, start: int, stop: int) -> list[Path]:
        """Their files; none of long tables, which were spread before."""

    def bytes(self, start: int, stop: int) -> int:
        """The bytes of their files, for progress; 0 of long tables."""


@dataclass(frozen=True)
class FileSource:
    """A file, or a few, per entity."""

    settings: Series
    files: list[EntityFiles]

    @property
    def count(self) -> int:
        """How many entities there are."""
        return len(self.files)

    def batch(self, start: int, stop: int) -> Iterator[Loaded]:
        """Some of them; a file is read when it is loaded."""
        for each in self.files[start:stop]:
            yield Loaded(each.entity, each.names[0] if each.names else "", partial(self._load, each))

    def paths(self, start: int, stop: int) -> list[Path]:
        """Their files."""
        return [path for each in self.files[start:stop] for path in each.paths]

    def bytes(self, start: int, stop: int) -> int:
        """The bytes of their files."""
        return sum(path.stat().st_size for path in self.paths(start, stop) if path.is_file())

    def _load(self, files: EntityFiles, columns: Sequence[str]) -> Observed:
        if files.problem is not None:
            raise InputError(files.problem)
        if self.settings.reader == "camels_us":
            from headrace.series.camels_us import read_basin

            return read_basin(self.settings, files.paths, columns)
        return read_file(self.settings, files.paths[0], files.names[0], columns)


def load(loaded: Loaded, columns: Sequence[str]) -> Observed | str:
    """The rows of an entity, or why they cannot be read."""
    try:
        return loaded.load(columns)
    except OSError as error:
        if error.errno in _MACHINE:
            raise
        return f"{loaded.source}: cannot be read ({error}); check the file"
    except (InputError, pa.ArrowException, pl.exceptions.PolarsError, UnicodeError) as error:
        return str(error)


def clean_batch(
    files: TaskFiles,
    settings: Series,
    resolved: Resolved,
    frequency: Frequency,
    source: EntitySource,
    number: int,
    lacking: Mapping[str, str],
) -> dict[str, Any]:
    """Clean the entities of batch `number` into its spool. lacking: entity → which static features it has not."""
    start = number * settings.batch_size
    counts: Counter[str] = Counter()
    unusable = np.zeros(len(settings.columns()), np.int64)
    read = passed = 0
    empty: list[str] = []
    with SpoolWriter(files, number, masks=bool(settings.mask_columns())) as spool:
        for each in source.batch(start, min(start + settings.batch_size, source.count)):
            observed = load(each, settings.columns())
            if isinstance(observed, str):
                cleaned = Cleaned(Counter(), observed, required_targets(settings, frequency))
            else:
                cleaned = clean(settings, resolved, frequency, observed)
                read += len(observed.times)
                if each.source and not len(observed.times):
                    empty.append(each.source)
            if cleaned.failure is None and settings.missing_static == "drop_entity" and each.entity in lacking:
                why = lacking[each.entity]
                cleaned = Cleaned(Counter(entity_failed=sum(cleaned.rows.values())), why, cleaned.required_targets)
            if cleaned.imputed is not None:
                unusable += cleaned.imputed.unusable_values
            counts += cleaned.rows
            record = {"report": quality_report(settings, frequency, each.entity, each.source, cleaned)}
            if cleaned.failure is not None or cleaned.axis is None or cleaned.cut is None:
                spool.append(record)
                continue
            passed += 1
            place = Passed(
                entity=each.entity,
                source=each.source,
                first_row=spool.rows,
                rows=cleaned.axis.rows,
                first_time=cleaned.axis.first,
                anchor=cleaned.axis.anchor,
                val_row=cleaned.cut.val_row,
                test_row=cleaned.cut.test_row,
                targets=(cleaned.cut.train_targets, cleaned.cut.val_targets, cleaned.cut.test_targets),
            )
            spool.append({**record, "passed": asdict(place)}, cleaned.values, cleaned.filled)
        spool.finish()
    told = {name: int(count) for name, count in zip(settings.columns(), unusable, strict=True) if count}
    return {
        "rows_read": read,
        "rows": dict(sorted(counts.items())),
        "passed": passed,
        "empty_shards": empty,
        "unusable": told,
    }
