"""The first pass: a batch of entities is read and cleaned, each on its own, and spooled for the second.

An entity that cannot be read, or does not pass, fails with its reason; the others of its batch do not notice.
`stage/clean/part-N.json` has a line per entity of batch N, failed ones too; `part-N.values` the float64 [rows, C] of
the passed ones end to end, `part-N.filled` bool of the same shape where masks are asked for. Values are mapped when
they are read, so a batch costs the memory of what is touched. O(an entity) of memory.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.arrays import F64, Bools
from headrace.digest import canonical_json
from headrace.errors import InputError
from headrace.run.context import STAGE_DIRECTORY, TaskFiles
from headrace.series.arrays.axis import DAY_US, Frequency
from headrace.series.clean import Cleaned, LeftOut, clean, required_targets
from headrace.series.config import Series
from headrace.series.files import EntitySource
from headrace.series.pipelines.settings import Resolved
from headrace.series.store import Entity, publishing


def _name(number: int, what: str) -> str:
    return f"{STAGE_DIRECTORY}/clean/part-{number:05d}.{what}"


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
    counts: Counter[str] = Counter()
    unusable = np.zeros(len(settings.columns()), np.int64)
    read = passed = first_row = 0
    empty: list[str] = []
    with (
        publishing(files, _name(number, "json")) as records,
        publishing(files, _name(number, "values")) as values,
        publishing(files, _name(number, "filled")) if settings.mask_columns() else nullcontext() as filled,
    ):
        for place in source.batch(number, settings.batch_size):
            entity, name = source.names[place], source.name(place)
            rows: dict[str, int] = {}
            try:
                observed = source.read(place, settings.columns())
                rows["entity_failed"] = len(observed.times)
                read += len(observed.times)
                empty += [name] if name and not len(observed.times) else []
                cleaned = clean(settings, resolved, frequency, observed)
                if settings.missing_static == "drop_entity" and entity in lacking:
                    raise LeftOut(lacking[entity])
            except (InputError, LeftOut) as error:
                counts += Counter(rows)
                report = _report(settings, frequency, entity, name, rows, str(error))
                records.write(canonical_json({"report": report}) + b"\n")
                continue
            unusable += cleaned.imputation["unusable_values_count"]
            counts += cleaned.rows
            passed += 1
            spooled = Entity(
                entity,
                first_row,
                cleaned.axis.rows,
                cleaned.axis.first,
                cleaned.axis.anchor,
                **asdict(cleaned.cut),
            )
            record = {"report": _full_report(settings, frequency, entity, name, cleaned), "entity": asdict(spooled)}
            records.write(canonical_json(record) + b"\n")
            values.write(np.ascontiguousarray(cleaned.values).data)
            if filled is not None:
                filled.write(np.ascontiguousarray(cleaned.filled).data)
            first_row += cleaned.axis.rows
    return {
        "rows_read": read,
        "rows": dict(sorted(counts.items())),
        "passed": passed,
        "empty_shards": empty,
        "unusable": {name: int(n) for name, n in zip(settings.columns(), unusable, strict=True) if n},
    }


def _report(
    settings: Series, frequency: Frequency, entity: str, source: str, rows: Mapping[str, int], reason: str | None
) -> dict[str, Any]:
    """Report an entity that does not pass for this reason; None: what every report begins with."""
    return {
        "entity": entity,
        "source": source,
        "passed_quality_check": reason is None,
        "failure_reason": reason,
        "frequency": frequency.word,
        "source_rows": dict(sorted(rows.items())),
        "required_train_targets": required_targets(settings, frequency),
    }


def _full_report(settings: Series, frequency: Frequency, entity: str, source: str, cleaned: Cleaned) -> dict[str, Any]:
    """Make the `BasinQualityReport` of an entity that passes, as JSON.

    Counts are of the steps that were kept; imputation_info has, for each column, gaps that were filled, that were left
    as too long, and that were left because a cut runs through them; values filled, made missing because no step can
    take them, and still missing; and the longest gap. targets.observed counts before anything is filled.
    """
    times = cleaned.axis.times()
    parts = cleaned.cut
    columns = settings.columns()
    first_last = [[_told(int(times[row])) for row in rows] for rows in cleaned.first_last.tolist()]
    trimmed = dict(zip(("start", "end"), cleaned.trimmed_steps, strict=True))
    targets = {"train": parts.train_targets, "val": parts.val_targets, "test": parts.test_targets}
    starts = {"train": 0, "val": parts.val_row, "test": parts.test_row}
    return _report(settings, frequency, entity, source, cleaned.rows, None) | {
        "period": {"start": _told(int(times[0])), "end": _told(int(times[-1])), "steps": cleaned.axis.rows},
        "valid_period": {
            name: {"start": first, "end": last} for name, (first, last) in zip(columns, first_last, strict=True)
        },
        "processing_steps": [
            f"placed on steps of {frequency.word}, {cleaned.added_rows} missing rows added",
            *(
                f"dropped {cleaned.rows[word]} rows: {word}"
                for word in ("bad_time", "off_grid", "duplicate_time")
                if cleaned.rows[word]
            ),
            f"trimmed {trimmed['start']} steps at the start and {trimmed['end']} at the end",
            f"carried {int(cleaned.imputation['imputed_values_count'].sum())} values into gaps of at most "
            f"{settings.max_imputation_gap_size}",
        ],
        "added_rows": cleaned.added_rows,
        "trimmed_steps": trimmed,
        "imputation_info": {
            name: {word: int(counts[at]) for word, counts in cleaned.imputation.items()}
            for at, name in enumerate(columns)
        },
        "targets": {"observed": sum(targets.values()), **targets},
        "split_starts": {name: _told(int(times[row])) if row < len(times) else None for name, row in starts.items()},
    }


def _told(micros: int) -> str:
    moment = np.datetime64(micros, "us")
    if micros % DAY_US == 0:
        return str(moment.astype("datetime64[D]"))
    return str(moment.astype("datetime64[s]") if micros % 1_000_000 == 0 else moment)


@dataclass(frozen=True)
class Spool:
    """The spool of one batch, to be read."""

    run: Path
    number: int
    columns: int

    def records(self) -> Iterator[dict[str, Any]]:
        """Read the record of each entity, in order."""
        with (self.run / _name(self.number, "json")).open("rb") as file:
            for line in file:
                yield json.loads(line)

    def reports(self) -> Iterator[dict[str, Any]]:
        """Read the quality report of each entity, failed ones too."""
        return (record["report"] for record in self.records())

    def entities(self) -> list[Entity]:
        """Read the retained entities, in order."""
        return [Entity(**record["entity"]) for record in self.records() if "entity" in record]

    def values(self) -> F64:
        """Map all rows: [rows, C]."""
        return np.asarray(self._mapped("values", np.float64), np.float64)

    def filled(self) -> Bools:
        """Map a mask of the values that were carried forward: [rows, C]."""
        return np.asarray(self._mapped("filled", np.bool_), np.bool_)

    def _mapped(self, what: str, kind: type[np.generic]) -> Any:
        path = self.run / _name(self.number, what)
        if path.stat().st_size == 0:
            return np.empty((0, self.columns), kind)
        return np.memmap(path, kind, mode="r").reshape(-1, self.columns)
