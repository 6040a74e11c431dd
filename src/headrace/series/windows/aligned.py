"""Align windows of several frequencies: each window of a run with the windows of finer runs whose
inputs end with it.

    days = open_windows("daily", "train", input_length=365, output_length=1)
    hours = open_windows("hourly", "train", input_length=336, output_length=24)
    both = aligned(days, hourly=hours)
    both.batch(range(256))["X_hourly"]      # float32 [256, 336, F], beside "X" [256, 365, F]

A step labelled t lasts from t to the next step, so the last day of the inputs ends with its last
hour, and both horizons begin at the same moment. Months that are called by their last day end with
it. Months also end with their last business day, and a Friday with the hours before Monday. Windows
without a counterpart in every finer run are left out. Each run is scaled by its own train rows, and
a window must be in the requested split in every run. So a cut by shares may fall at different times
in different runs without leaking later values. Finding the counterparts costs O(windows) once; a
batch is one gather per run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow.compute as pc

from headrace.arrays import I64
from headrace.digest import canonical_json, sha256_hex
from headrace.errors import InputError, SettingsError, setting_name
from headrace.formats.zones import between_clocks
from headrace.series.arrays.axis import divides, ends_at, steps_until
from headrace.series.arrays.windows import WindowRuns
from headrace.series.windows.windows import WindowPositions, Windows

_PIECE = 1 << 20  # windows looked up at a time


@dataclass(frozen=True, eq=False)
class AlignedWindows(Windows):
    """The windows of a run with those of finer runs, whose arrays carry the finer run's name as
    suffix (`X_hourly`).

    finer: the finer windows by name.
    numbers: by name, the number of each entity in that finer run, -1 for none; int64 [E].
    """

    finer: Mapping[str, Windows] = field(default_factory=dict)
    numbers: Mapping[str, I64] = field(default_factory=dict)

    @cached_property
    def identity(self) -> str:
        """A digest that changes whenever a window number may refer to another window."""
        return sha256_hex(
            canonical_json(
                [super().identity, {name: windows.identity for name, windows in self.finer.items()}]
            )
        )

    def gather_values(self, positions: WindowPositions) -> dict[str, Any]:
        """Return the values of these windows, and all but `static` of those of finer runs; see
        `Windows.gather`.
        """
        batch = super().gather_values(positions)
        for name, windows in self.finer.items():
            start, entity = self._starts(name, positions)
            last = start + windows.options.input_length - 1 - windows.origin[entity]
            end = windows.store.times(entity, last)
            gathered = windows.gather(WindowPositions(windows.matrices.offsets(start), entity, end))
            batch |= {
                f"{what}_{name}": values for what, values in gathered.items() if what != "static"
            }
        return batch

    def in_memory(self, entities: I64) -> AlignedWindows:
        """Return the windows of these ascending entities over in-memory copies of their rows, for
        finer runs too.
        """
        finer = {}
        for name, windows in self.finer.items():
            finer[name] = windows.in_memory(self.numbers[name][entities])
        coarse = super().in_memory(entities)
        assert isinstance(coarse, AlignedWindows)
        return replace(coarse, finer=finer)

    def having_all(self) -> AlignedWindows:  # noqa: PLR0914 - positions in two runs
        """Return the windows that have a counterpart in every finer run."""
        starts = [np.empty(0, np.int64)]
        owners = [np.empty(0, np.int64)]
        for begin in range(0, len(self), _PIECE):
            numbers = np.arange(begin, min(begin + _PIECE, len(self)))
            start, entity = self.segments.locate(numbers)
            positions = self.locate(numbers)
            mask = np.ones(len(numbers), np.bool_)
            for name, finer in self.finer.items():
                first, owner = self._starts(name, positions)
                segments = finer.segments
                if not len(segments):
                    mask[:] = False
                    continue
                at = np.searchsorted(segments.first, first, side="right") - 1
                number, beside = np.divmod(first - segments.first[at], segments.stride)
                mask &= (
                    (at >= 0)
                    & (segments.entity[at] == owner)
                    & (beside == 0)
                    & (number < segments.count[at])
                    & (owner >= 0)
                )
            starts.append(start[mask])
            owners.append(entity[mask])
        first = np.concatenate(starts)
        entity = np.concatenate(owners)
        stride = self.segments.stride
        breaks = (np.diff(first) != stride) | (np.diff(entity) != 0)
        begin_rows = np.flatnonzero(np.append(True, breaks)[: len(first)])
        count = np.diff(np.append(begin_rows, len(first)))
        return replace(
            self, segments=WindowRuns(entity[begin_rows], first[begin_rows], count, stride)
        )

    def _starts(self, name: str, positions: WindowPositions) -> tuple[I64, I64]:
        """Find (start row, entity) of the finer run's windows that end with these; entity is -1 if
        there is none.
        """
        finer = self.finer[name]
        entity = self.numbers[name][positions.entity]
        frequency = self.store.columns.frequency
        entities = finer.store.entities
        end = ends_at(frequency, positions.input_end, self.store.entities.anchor[positions.entity])
        end = between_clocks(end, frequency.zone, finer.store.columns.frequency.zone)
        steps, there = steps_until(
            finer.store.columns.frequency,
            entities.first_time[entity],
            entities.anchor[entity],
            end,
            weekends=finer.store.joined_rows,
        )
        return finer.origin[entity] + steps - finer.options.input_length, np.where(
            there, entity, -1
        )


def aligned(windows: Any, **finer: Any) -> Any:
    """Pair the windows of a run with the windows of finer runs that end with them, named by
    keyword.

    windows, finer: from `open_windows` or `open`, all of one split. The result has the same type as
    `windows`. Raises `SettingsError` if the finer steps do not divide the coarser ones,
    `InputError` if no window is in all runs.
    """
    coarse: Windows = getattr(windows, "windows", windows)
    inner: dict[str, Windows] = {
        name: getattr(windows_or_dataset, "windows", windows_or_dataset)
        for name, windows_or_dataset in finer.items()
    }
    if not inner:
        raise SettingsError(
            "no windows are given",
            setting="finer",
            remedy="give some by a name, such as hourly=windows",
        )
    numbers = {}
    for name, finer_windows in inner.items():
        if finer_windows.split != coarse.split:
            raise SettingsError(
                f"these windows are not of split {coarse.split!r}, like the coarse ones",
                setting=name,
                value=finer_windows.split,
                remedy="open the same split",
            )
        fine = finer_windows.store.columns.frequency
        coarse_step = coarse.store.columns.frequency
        if not divides(fine, coarse_step):
            raise SettingsError(
                f"steps of {fine.word} do not divide those of {coarse_step.word}",
                setting=name,
                remedy="give finer ones",
            )
        indices = pc.index_in(
            coarse.store.entities.names, value_set=finer_windows.store.entities.names
        )
        numbers[name] = np.asarray(indices.fill_null(-1).to_numpy(), np.int64)
        if (numbers[name] < 0).all():
            raise InputError(
                f"no entity is one of {coarse.store.root}",
                setting=name,
                path=finer_windows.store.root,
                remedy="name them alike",
            )
    fields = {name: getattr(coarse, name) for name in Windows.__dataclass_fields__}
    result = AlignedWindows(**fields, finer=inner, numbers=numbers).having_all()
    if not len(result):
        counts = ", ".join(f"{len(windows):,} of {name}" for name, windows in inner.items())
        raise InputError(
            f"of {len(coarse):,} windows none ends with one of each finer run ({counts})",
            path=coarse.store.root,
            remedy=(
                f"cut all runs by the same {setting_name('train_end')} and"
                f" {setting_name('val_end')}, and check that their times overlap"
            ),
        )
    if windows is coarse:
        return result
    return type(windows)(result)
