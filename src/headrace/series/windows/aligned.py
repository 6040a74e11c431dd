"""Windows of several frequencies: of each window of a run the windows of finer runs whose inputs end with it.

    days = open_windows("daily", "train", input_length=365, output_length=1)
    hours = open_windows("hourly", "train", input_length=336, output_length=24)
    both = aligned(days, hourly=hours)
    both.batch(range(256))["X_hourly"]      # float32 [256, 336, F], beside "X" [256, 365, F]

A step that is called t lasts from t to the next step, so the last day of the inputs ends with its last hour, and both
horizons begin at the same moment. Windows without a counterpart in every finer run are left out. Each run scales by
what trains in it, and a window is of the asked split in all of them, so a cut at shares may be elsewhere in each run,
and still nothing is known too early. Finding the counterparts is O(windows) once; a batch is one gather in each run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from headrace.arrays import I64, Bools
from headrace.digest import canonical_json, sha256_hex
from headrace.errors import InputError, SettingsError
from headrace.series.arrays.windows import Segments
from headrace.series.windows.windows import Layout, Places, Windows

_PIECE = 1 << 20  # windows that are looked up at a time


@dataclass(frozen=True, eq=False)
class AlignedWindows(Windows):
    """The windows of a run with those of finer runs, whose arrays end in the names of these, such as `X_hourly`.

    finer: their windows by name; numbers: of each entity its number in each of them, -1 for none, int64 [E].
    """

    finer: Mapping[str, Windows] = field(default_factory=dict)
    numbers: Mapping[str, I64] = field(default_factory=dict)

    @cached_property
    def identity(self) -> str:
        """A word that changes whenever a number may mean another window."""
        return sha256_hex(canonical_json([super().identity, {name: own.identity for name, own in self.finer.items()}]))

    def gather(self, places: Places, layout: Layout | None = None) -> dict[str, Any]:
        """Copy the windows at these places, and those of finer runs; see `Windows.gather`. `static` comes once."""
        batch = super().gather(places, layout)
        for name, windows in self.finer.items():
            start, entity = self._starts(name, places)
            end = places.input_end + (_step(self) - _step(windows))
            found = windows.gather(Places(windows.matrices.offsets(start), entity, end), layout)
            batch |= {f"{what}_{name}": values for what, values in found.items() if what != "static"}
        return batch

    def in_memory(self, entities: I64) -> AlignedWindows:
        """Return the windows of these ascending entities over copies of just their rows, those of finer runs too."""
        held = {name: own.in_memory(self.numbers[name][entities]) for name, own in self.finer.items()}
        whole = super().in_memory(entities)
        assert isinstance(whole, AlignedWindows)
        return replace(whole, finer=held)

    def having_all(self) -> AlignedWindows:
        """Return the windows that have a counterpart in every finer run."""
        starts, owners = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for begin in range(0, len(self), _PIECE):
            numbers = np.arange(begin, min(begin + _PIECE, len(self)))
            start, entity = self.segments.locate(numbers)
            places, kept = self.locate(numbers), np.ones(len(numbers), np.bool_)
            for name in self.finer:
                kept &= self._is_there(name, places)
            starts.append(start[kept])
            owners.append(entity[kept])
        first, entity, stride = np.concatenate(starts), np.concatenate(owners), self.segments.stride
        breaks = (np.diff(first) != stride) | (np.diff(entity) != 0)
        begins = np.flatnonzero(np.append(True, breaks)[: len(first)])
        count = np.diff(np.append(begins, len(first)))
        return replace(self, segments=Segments(entity[begins], first[begins], count, stride))

    def _starts(self, name: str, places: Places) -> tuple[I64, I64]:
        """Find (start row, entity) of the windows of a finer run that end with these; entity -1 where there is none."""
        finer, entity = self.finer[name], self.numbers[name][places.entity]
        since = places.input_end + _step(self) - finer.store.entities.first_time[entity]
        steps, beside = np.divmod(since, _step(finer))
        return finer.origin[entity] + steps - finer.options.input_length, np.where(beside == 0, entity, -1)

    def _is_there(self, name: str, places: Places) -> Bools:
        start, entity = self._starts(name, places)
        own = self.finer[name].segments
        if not len(own):
            return np.zeros(len(start), np.bool_)
        at = np.searchsorted(own.first, start, side="right") - 1
        number, beside = np.divmod(start - own.first[at], own.stride)
        return np.asarray(
            (at >= 0) & (own.entity[at] == entity) & (beside == 0) & (number < own.count[at]) & (entity >= 0)
        )


def aligned(windows: Any, **finer: Any) -> Any:
    """Return the windows of a run, each with the windows of finer runs that end with it, by the names given here.

    windows, finer: from `open_windows` or `open`, all of one split; what comes back is of the same kind as `windows`.
    Raises `SettingsError` for steps that do not divide one another, `InputError` where no window is in all of them.
    """
    coarse: Windows = getattr(windows, "windows", windows)
    inner: dict[str, Windows] = {name: getattr(each, "windows", each) for name, each in finer.items()}
    if not inner:
        raise SettingsError("aligned: no finer windows are given; give some by a name, such as hourly=windows")
    names = {name: number for number, name in enumerate(coarse.store.entities.names.to_pylist())}
    numbers = {}
    for name, own in inner.items():
        told = f"aligned: {name}: steps of {own.store.columns.frequency.word}"
        if own.split != coarse.split:
            raise SettingsError(f"aligned: {name}: is of split {own.split!r}, and not {coarse.split!r}; open the same")
        if not 0 < _step(own) < _step(coarse) or _step(coarse) % _step(own):
            raise SettingsError(f"{told} do not divide those of {coarse.store.columns.frequency.word}; give finer ones")
        numbers[name] = np.full(len(names), -1, np.int64)
        for number, entity in enumerate(own.store.entities.names.to_pylist()):
            if entity in names:
                numbers[name][names[entity]] = number
        if (numbers[name] < 0).all():
            raise InputError(f"aligned: {name}: {own.store.root} has no entity of {coarse.store.root}; name them alike")
    fields = {name: getattr(coarse, name) for name in Windows.__dataclass_fields__}
    found = AlignedWindows(**fields, finer=inner, numbers=numbers).having_all()
    if not len(found):
        raise InputError(
            f"aligned: of {len(coarse):,} windows of {coarse.store.root} none ends with one of each finer run "
            f"({', '.join(f'{len(own):,} of {name}' for name, own in inner.items())}); cut all runs by the same "
            f"train_end and val_end, and see that their times overlap"
        )
    return found if windows is coarse else type(windows)(found)


def _step(windows: Windows) -> int:
    return windows.store.columns.frequency.micros
