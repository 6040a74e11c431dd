"""Divide the rows of an entity into stretches that train, validate, test, or are in no split.

Stretches follow one another in time, and all entities have the same ones; some may be empty in an entity. Usually there
are three, the splits. Rows too close before a cut are stretches in no split, and so are the rows of held-out entities
before and after their part. In rolling folds the stretches between any two borders are cells, and the splits of a fold
are consecutive cells. Held-out entities have a copy of these stretches of their own, so no cell holds rows of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.arrays import I64
from headrace.checks import duration_us, instant_us
from headrace.errors import SettingsError
from headrace.folds.settings import GroupKFold, Rolling
from headrace.folds.times import FoldTimes
from headrace.formats.dates import DAY_US, moment
from headrace.formats.text_columns import as_text

if TYPE_CHECKING:
    from headrace.series.config import Series

SPLITS = ("train", "val", "test")
NO_SPLIT = "in_no_split"  # the word under which rows of other stretches are counted

Side = Literal["train", "val", "test"]
# Settings that divide rows in other ways than by shares, or by dates for all entities.
DIVIDE = ("cut_dates", "val_entities", "test_entities", "gap", "label_horizon", "folds")


@dataclass(frozen=True)
class Parts:
    """The stretches of every entity.

    names: the split or cell of each stretch; None: it is in none.
    ranges: for each fold, or for the single split, the stretches [first, last + 1) of each split.
    """

    names: tuple[str | None, ...]
    ranges: tuple[Mapping[str, tuple[int, int]], ...]

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits or cells that are written."""
        return tuple(name for name in self.names if name is not None)

    def rows(self, borders: Sequence[int], split: str) -> tuple[int, int]:
        """Return the rows [start, stop) of a split (in folds, of the first fold), empty if it does not exist.

        borders: 0, edges, number of rows.
        """
        first, last = self.ranges[0].get(split, (0, 0))
        return borders[first], borders[last]

    def named(self, borders: Sequence[int]) -> Iterator[tuple[str | None, tuple[int, int]]]:
        """Yield the name of each stretch with its rows [start, stop)."""
        return zip(self.names, pairwise(borders), strict=True)


PLAIN = Parts(SPLITS, ({"train": (0, 1), "val": (1, 2), "test": (2, 3)},))
APART = Parts(("train", None, "val", None, "test"), ({"train": (0, 1), "val": (2, 3), "test": (4, 5)},))


@dataclass(frozen=True)
class RollingParts:
    """The cells of rolling folds, the times where they begin, and the cut of each fold; in microseconds.

    sides: whose stretches follow one another in `parts`: first those of entities that train, then of held-out ones.
    """

    parts: Parts
    borders: I64
    cuts: Sequence[int]
    sides: Sequence[Side]

    @classmethod
    def of(cls, cuts: tuple[int, int], folds: Rolling, reach_us: int, held: Sequence[Side] = ()) -> RollingParts:
        """Shift both cuts by a step for each fold.

        reach_us: how long before a cut rows are in no split.
        held: splits that only held-out entities have rows in.
        """
        first, second = ([cut + number * folds.step_us for number in range(folds.n)] for cut in cuts)
        trains, tests = FoldTimes.of(first, folds, reach_us), FoldTimes.of(second, folds, 0)
        times = {"train": (trains.start, trains.end), "test": (tests.cut, tests.stop)}
        if cuts[0] < cuts[1]:
            times["val"] = trains.cut, np.maximum(trains.cut, tests.cut - reach_us)
        begins = np.unique(
            np.concatenate([np.iinfo(np.int64).min, *(each for own in times.values() for each in own)], None)
        )
        sides: list[Side] = ["train", *held]
        behind = {split: len(begins) * (sides.index(split) if split in sides else 0) for split in SPLITS}
        ranges = [
            {
                split: tuple((np.searchsorted(begins, [own[0][fold], own[1][fold]]) + behind[split]).tolist())
                for split, own in times.items()
            }
            for fold in range(folds.n)
        ]
        used = sorted({cell for own in ranges for first_, last in own.values() for cell in range(first_, last)})
        width = max(2, len(str(len(used) - 1)))
        names = {cell: f"cell-{number:0{width}d}" for number, cell in enumerate(used)}
        parts = Parts(tuple(names.get(cell) for cell in range(len(begins) * len(sides))), tuple(ranges))
        return cls(parts, begins[1:], first, sides)

    def edges(self, times: I64, side: Side, train_end: int) -> list[int]:
        """Return the rows where the stretches of an entity begin, except the first. train_end: its own in fold 0."""
        own = np.searchsorted(times, self.borders + (train_end - self.cuts[0])).tolist()
        before, of_each = self.sides.index(side), len(own) + 1
        edges = [0] * (before * of_each) + [0, *own] + [len(times)] * ((len(self.sides) - 1 - before) * of_each)
        return edges[1:]

    def facts(self) -> list[dict[str, Any]]:
        """Return, for the manifest, each fold's cut and the cells of its splits."""
        return [
            {
                "split_date": moment(cut),
                "cutoff_us": cut,
                "splits": {
                    split: [name for name in self.parts.names[first:last] if name is not None]
                    for split, (first, last) in own.items()
                },
            }
            for cut, own in zip(self.cuts, self.parts.ranges, strict=True)
        ]


@dataclass(frozen=True)
class Division:
    """The division of the rows of all entities, from the settings.

    by_dates: whether the cuts are at dates, and not at shares of targets.
    cuts: where val and test begin, in microseconds since 1970.
    dates: the same for entities that have their own dates.
    reach_us: how long before a cut rows are in no split.
    held_out: entity → the only split that this held-out entity has rows in.
    rolling: the cells of folds.
    """

    by_dates: bool
    cuts: tuple[int, int] | None
    dates: Mapping[str, tuple[int, int]]
    reach_us: int
    held_out: Mapping[str, Side]
    rolling: RollingParts | None

    @classmethod
    def of(cls, asked: Series, known: Mapping[str, Any] | None = None) -> Division:
        """Read the files that settings name, or reuse their content. Raises `SettingsError`.

        known: the content, as in `facts`; None: read the files.
        """
        dates: dict[str, tuple[int, int]] = {}
        held_out: dict[str, Side] = {}
        if known is not None:
            dates, held_out = {name: (own[0], own[1]) for name, own in known["dates"].items()}, known["held_out"]
        else:
            if asked.cut_dates is not None:
                dates = read_cut_dates(asked, asked.cut_dates)
            sides: tuple[tuple[Side, Sequence[str]], ...] = (("val", asked.val_entities), ("test", asked.test_entities))
            for side, names in sides:
                alone = len(names) == 1 and names[0].startswith("@")
                for name in read_names(Path(names[0][1:]).expanduser()) if alone else names:
                    if held_out.setdefault(name, side) != side:
                        raise SettingsError(f"entity {name!r} is in val_entities and test_entities; choose one")
        distances = {"gap": asked.gap, "label_horizon": asked.label_horizon}
        reach_us = max((duration_us(name, own) for name, own in distances.items() if own is not None), default=0)
        cuts = asked.cuts or next(iter(dates.values()), None)
        rolling = None
        if isinstance(asked.folds, Rolling) and cuts is not None:
            for name, (first, second) in dates.items():
                if second - first != cuts[1] - cuts[0]:  # folds would overlap differently in each entity
                    own, others = (f"{micros / DAY_US:g} days" for micros in (second - first, cuts[1] - cuts[0]))
                    raise SettingsError(
                        f"cut_dates: entity {name!r} validates for {own}, others for {others}; folds need the same "
                        "time between train_end and val_end in all entities"
                    )
            rolling = RollingParts.of(cuts, asked.folds, reach_us, sorted(set(held_out.values()), reverse=True))
        by_dates = asked.train_end is not None or asked.cut_dates is not None
        return cls(by_dates, asked.cuts, dates, reach_us, held_out, rolling)

    @property
    def parts(self) -> Parts:
        """The stretches of every entity."""
        if self.rolling is not None:
            return self.rolling.parts
        return APART if self.reach_us or self.held_out else PLAIN

    def facts(self) -> dict[str, Any]:
        """Return the manifest's facts about stretches and folds, and the content of files, which may be gone later."""
        files = {"dates": dict(self.dates), "held_out": dict(self.held_out)}
        facts: dict[str, Any] = {"divided_by": files} if any(files.values()) else {}
        if self.parts is not PLAIN:
            facts["parts"] = {"names": list(self.parts.names), "ranges": [dict(each) for each in self.parts.ranges]}
        return facts if self.rolling is None else {**facts, "folds": self.rolling.facts()}

    def side_of(self, entity: str) -> Side:
        """Return the only split of a held-out entity; "train" for one that trains."""
        return self.held_out.get(entity, "train")

    def trains(self, entity: str) -> bool:
        """Return whether an entity trains, that is, is not held out."""
        return entity not in self.held_out


def read_names(path: Path) -> list[str]:
    """Read names from a file, one per line; sorted and distinct. Raises `SettingsError`."""
    try:
        lines = path.read_text("utf-8-sig").split("\n")  # a name may hold U+2028
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read ({error}); check its path") from error
    names = sorted({line.strip() for line in lines if line.strip()})
    if not names:
        raise SettingsError(f"{path}: names no entity; write one name per line")
    return names


def read_cut_dates(settings: Series, path: Path) -> dict[str, tuple[int, int]]:
    """Read a table of entity, train_end and optionally val_end; return entity → microseconds where val and test begin.

    The entity column has its name in the output, or is called entity. A missing val_end equals train_end, so nothing
    validates. Raises `SettingsError`.
    """
    from headrace.series.statics import static_table  # imported late: it imports the settings

    entity = settings.entity_column
    if not path.exists():
        raise SettingsError(f"cut_dates {str(path)!r} does not exist; check its path")
    # A table given as a data frame is stored as a directory of shards.
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    table = pa.concat_tables([static_table(settings, each, each.name) for each in files])
    if entity not in table.column_names and "entity" in table.column_names:
        entity = "entity"
    for name in (entity, "train_end"):
        if name not in table.column_names:
            raise SettingsError(
                f"cut_dates {str(path)!r} has no column {name!r}; it has {', '.join(table.column_names[:12])}"
            )
    frame = pl.DataFrame(table)
    columns: list[list[Any]] = [as_text(table[entity], (), f"cut_dates {str(path)!r}: {entity}").to_pylist()]
    for column in (frame[name] for name in ("train_end", "val_end") if name in frame.columns):
        if column.dtype.is_temporal():
            columns.append(column.cast(pl.Datetime("us")).dt.epoch("us").to_list())
        else:
            where = f"cut_dates {str(path)!r}: {column.name}"
            columns.append([instant_us(where, each) if each else None for each in column.cast(pl.String).to_list()])
    found: dict[str, tuple[int, int]] = {}
    for name, first, *second in zip(*columns, strict=True):
        if name is None or first is None or name in found:
            why = "has no entity" if name is None else "comes twice" if name in found else "has no train_end"
            raise SettingsError(f"cut_dates {str(path)!r}: entity {name!r} {why}; correct the table")
        found[name] = first, first if not second or second[0] is None else second[0]
        if found[name][0] > found[name][1]:
            raise SettingsError(f"cut_dates {str(path)!r}: entity {name!r} has train_end after val_end; swap them")
    return found


def undividable(asked: Series) -> Iterator[str]:
    """Yield a message for each contradiction among settings that divide rows."""
    given = [name for name in DIVIDE if getattr(asked, name) not in (None, ())]
    shown = ", ".join(given)
    dated = asked.train_end is not None or asked.cut_dates is not None
    if given and asked.pipelines_from is not None:
        yield f"{shown} with pipelines_from, where nothing trains and every row is in test; leave out {shown}"
    if isinstance(asked.folds, GroupKFold):
        yield (
            "folds are of entities, which would each need other scalers; give val_entities and test_entities, or folds "
            "that roll, such as rolling:n=5,step=365d"
        )
    if asked.folds and not dated:
        yield "folds roll on from train_end, which is not given; give it, or cut_dates"
    pipelines = (asked.preprocessing_configs.target, *asked.preprocessing_configs.features)
    if (asked.val_entities or asked.test_entities) and any(each.strategy == "per_group" for each in pipelines):
        yield (
            f"{shown}: such entities do not train, so a pipeline with strategy per_group, the default, has nothing to "
            f"be fitted on; give unified ones in preprocessing_configs, of the target too"
        )
    if asked.val_entities and dated and asked.val_end is None and asked.cut_dates is None:
        yield "val_entities validate from train_end to before val_end, which is not given; give it"
