"""Divide the rows of an entity into segments of train, val, test or no split.

Segments follow one another in time, and all entities have the same ones; some may be empty in an
entity. Usually there are three, the splits. Rows too close before a cut are segments in no split,
and so are the rows of held-out entities before and after their period. In rolling folds the
segments between any two cuts are cells, and the splits of a fold are consecutive cells. Held-out
entities have their own copy of these segments, so no cell holds rows of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from headrace.arrays import I64
from headrace.checks import duration_us
from headrace.errors import SettingsError, setting_name
from headrace.folds.settings import Rolling
from headrace.folds.times import FoldTimes
from headrace.formats.dates import moment

if TYPE_CHECKING:
    from headrace.series.settings import Series

SPLITS = ("train", "val", "test")

Side = Literal["train", "val", "test"]
Cuts = tuple[int, int]  # where val and test begin, in microseconds since 1970
# Settings that divide rows in other ways than by shares, or by dates for all entities.
DIVISION_SETTINGS = ("val_entities", "test_entities", "gap", "folds")


@dataclass(frozen=True)
class SplitLayout:
    """The segments of every entity.

    names: the split or cell of each segment; None: it is in none.
    ranges: for each fold, or for the single split, the segments [first, last + 1) of each split.
    """

    names: tuple[str | None, ...]
    ranges: tuple[Mapping[str, tuple[int, int]], ...]

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits or cells that are written."""
        return tuple(name for name in self.names if name is not None)

    def rows(self, boundaries: Sequence[int], split: str) -> tuple[int, int]:
        """Return the rows [start, stop) of a split (in folds, of the first fold), empty if it does
        not exist.

        boundaries: 0, edges, number of rows.
        """
        first, last = self.ranges[0].get(split, (0, 0))
        return boundaries[first], boundaries[last]

    def named(self, boundaries: Sequence[int]) -> Iterator[tuple[str, tuple[int, int]]]:
        """Yield the name of each segment in a split, with its rows [start, stop)."""
        for name, rows in zip(self.names, pairwise(boundaries), strict=True):
            if name is not None:
                yield name, rows


THREE_SPLITS = SplitLayout(SPLITS, ({"train": (0, 1), "val": (1, 2), "test": (2, 3)},))
SEPARATED = SplitLayout(
    ("train", None, "val", None, "test"), ({"train": (0, 1), "val": (2, 3), "test": (4, 5)},)
)


@dataclass(frozen=True)
class RollingCells:
    """The cells of rolling folds, the times where they begin, and the cut of each fold; in
    microseconds.

    sides: whose segments follow one another in `layout`: first those of entities in train, then
    those of held-out ones.
    """

    layout: SplitLayout
    starts: I64
    cuts: Sequence[int]
    sides: Sequence[Side]

    @classmethod
    def of(  # noqa: PLR0914 - the times of splits become cells of every fold
        cls, cuts: Cuts, folds: Rolling, margin_us: int, held_out: Sequence[Side]
    ) -> RollingCells:
        """Shift both cuts by a step for each fold.

        margin_us: how long before a cut rows are in no split.
        held_out: splits that only held-out entities have rows in.
        """
        shifts = np.arange(folds.n) * folds.step_us
        train_cuts = (cuts[0] + shifts).tolist()
        train = FoldTimes.of(train_cuts, folds, margin_us)
        test = FoldTimes.of((cuts[1] + shifts).tolist(), folds, 0)
        times: dict[Side, tuple[I64, I64]] = {
            "train": (train.start, train.end),
            "test": (test.cut, test.stop),
        }
        if cuts[0] < cuts[1]:
            times["val"] = train.cut, np.maximum(train.cut, test.cut - margin_us)
        earliest = np.array([np.iinfo(np.int64).min])
        both = [instants for start_stop in times.values() for instants in start_stop]
        starts = np.unique(np.concatenate([earliest, *both]))
        sides: list[Side] = ["train", *held_out]
        ranges: list[dict[str, tuple[int, int]]] = []
        used: set[int] = set()
        for fold in range(folds.n):
            cells: dict[str, tuple[int, int]] = {}
            for split, (start, stop) in times.items():
                # Held-out entities have their own copy of the cells.
                copy = sides.index(split) if split in held_out else 0
                offset = len(starts) * copy
                first, last = np.searchsorted(starts, [start[fold], stop[fold]]).tolist()
                cells[split] = (first + offset, last + offset)
                used.update(range(*cells[split]))
            ranges.append(cells)
        width = max(2, len(str(len(used) - 1)))
        names = {cell: f"cell-{number:0{width}d}" for number, cell in enumerate(sorted(used))}
        every_cell = range(len(starts) * len(sides))
        layout = SplitLayout(tuple(map(names.get, every_cell)), tuple(ranges))
        return cls(layout, starts[1:], train_cuts, sides)

    def edges(self, times: I64, side: Side) -> list[int]:
        """Return the rows where the segments of an entity begin, except the first."""
        rows = np.searchsorted(times, self.starts).tolist()
        before = self.sides.index(side)
        after = len(self.sides) - 1 - before
        cells = len(rows) + 1
        edges = [0] * (before * cells) + [0, *rows] + [len(times)] * (after * cells)
        return edges[1:]

    def manifest_entries(self) -> list[dict[str, Any]]:
        """Return, for the manifest, each fold's cut and the cells of its splits."""
        folds = []
        for cut, ranges in zip(self.cuts, self.layout.ranges, strict=True):
            cells = {}
            for split, (first, last) in ranges.items():
                cells[split] = [name for name in self.layout.names[first:last] if name is not None]
            folds.append({"split_date": moment(cut), "cutoff_us": cut, "splits": cells})
        return folds


@dataclass(frozen=True)
class Division:
    """The division of the rows of all entities, from the settings.

    cuts: where val and test begin; None if the cuts are at shares of targets.
    margin_us: how long before a cut rows are in no split.
    held_out: entity → the only split that this held-out entity has rows in.
    rolling: the cells of folds.
    layout: the segments of every entity.
    """

    cuts: Cuts | None
    margin_us: int
    held_out: Mapping[str, Side]
    rolling: RollingCells | None
    layout: SplitLayout

    @classmethod
    def from_settings(cls, settings: Series) -> Division:
        """Read the files that settings name. Raises `SettingsError`."""
        held_out: dict[str, Side] = dict.fromkeys(read_names(settings.val_entities), "val")
        for name in read_names(settings.test_entities):
            if name in held_out:
                raise SettingsError(
                    f"also one of {setting_name('val_entities')}",
                    setting="test_entities",
                    value=name,
                    remedy="choose one",
                )
            held_out[name] = "test"
        return cls._from_files(settings, held_out)

    @classmethod
    def restored_division(cls, settings: Series, record: Mapping[str, Any]) -> Division:
        """Restore the division of a finished run, whose files may be gone.

        record: as returned by `manifest_entries`.
        """
        return cls._from_files(settings, record["divided_by"]["held_out"])

    @classmethod
    def _from_files(cls, settings: Series, held_out: Mapping[str, Side]) -> Division:
        margin_us = 0 if settings.gap is None else duration_us("gap", settings.gap)
        layout = SEPARATED if margin_us or held_out else THREE_SPLITS
        cuts = settings.cuts
        rolling = None
        if isinstance(settings.folds, Rolling) and cuts is not None:
            sides = sorted(set(held_out.values()), reverse=True)
            rolling = RollingCells.of(cuts, settings.folds, margin_us, sides)
            layout = rolling.layout
        return cls(cuts, margin_us, held_out, rolling, layout)

    def manifest_entries(self) -> dict[str, Any]:
        """Return the metadata about segments and folds, and the content of files, which
        may be gone later.
        """
        record: dict[str, Any] = {
            "divided_by": {"held_out": dict(self.held_out)},
            "parts": {"names": list(self.layout.names), "ranges": list(self.layout.ranges)},
        }
        if self.rolling is not None:
            record["folds"] = self.rolling.manifest_entries()
        return record

    def side_of(self, entity: str) -> Side:
        """Return the only split of a held-out entity; "train" for one that is not held out."""
        return self.held_out.get(entity, "train")

    def trains(self, entity: str) -> bool:
        """Return whether an entity is in train, that is, not held out."""
        return entity not in self.held_out


def read_names(names: Sequence[str]) -> Sequence[str]:
    """Return names as given, or those in the file of a single @FILE, one per line.

    Raises `SettingsError`.
    """
    if len(names) != 1 or not names[0].startswith("@"):
        return names
    path = Path(names[0][1:]).expanduser()
    try:
        lines = path.read_text("utf-8-sig").split("\n")  # a name may hold U+2028
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"cannot be read ({error})", path=path, remedy="check its path"
        ) from error
    listed = sorted({line.strip() for line in lines} - {""})
    if not listed:
        raise SettingsError("names no entity", path=path, remedy="write one name per line")
    return listed
