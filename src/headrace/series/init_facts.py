"""What a few entities say: frequency, doubtful times, what is missing, how many would pass, features in disguise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.cli.init.asked import AskedSeries
from headrace.errors import InputError
from headrace.series.arrays.axis import Frequency, infer, place
from headrace.series.arrays.near_target import correlations, suspects, tally, warning
from headrace.series.batches import FileSource, load
from headrace.series.config import Series
from headrace.series.files import entity_files
from headrace.series.init_long import ENTITIES
from headrace.series.init_roles import Draft
from headrace.series.init_windows import starved, train_rows
from headrace.series.observed import Observed

TRAIN = 0.6
GAP = 5  # steps of gaps that are filled
_FEW = 0.05  # of rows: times beside the usual steps by mistake

_SENTINELS = (-999.0, -9999.0, -99999.0, -999.99, -9999.9, -99.99, -99.9, -1e20, -1e34)
_YEARS = 5.0


def look_at_series(draft: Draft, asked: AskedSeries) -> None:
    """Complete the draft by what some of its entities say. Raises `InputError` if none can be read."""
    shape = Series(**draft.settings, min_train_years=0)
    observed = draft.observed
    if observed is None:
        files = shape.source_files()
        source = FileSource(shape, entity_files(shape, files))
        draft.entities = [each.entity for each in source.files]
        chosen = sorted({int(at) for at in np.linspace(0, source.count - 1, ENTITIES).round()})
        loaded = [(each.entity, load(each, shape.columns())) for at in chosen for each in source.batch(at, at + 1)]
        observed = [(entity, each) for entity, each in loaded if not isinstance(each, str)]
        if not observed:
            raise InputError(f"no entity can be read: {loaded[0][0]}: {loaded[0][1]}; correct the source")
    draft.words["source"] = (
        f"{draft.words['source']} {len(draft.entities):,} entities{'' if draft.whole else ' in the first rows'}, e.g. "
        f"{draft.entities[0]}; {len(observed)} were looked at."
    )
    observed = [(entity, each) for entity, each in observed if len(each.known_times())]
    columns = shape.columns()
    words = Counter(each.word for each in (infer(one.known_times()) for _, one in observed) if each is not None)
    if not words:
        raise InputError("no entity has three times; correct the source")
    frequency = Frequency.parse(min(words, key=lambda each: (-words[each], each)))
    draft.settings["frequency"] = frequency.word
    if len(words) > 1:
        draft.words["frequency"] = "Entities differ: " + ", ".join(f"{word} in {n}" for word, n in words.items()) + "."
    _find_sentinels(draft, columns, observed)
    sentinels = draft.settings.get("missing_numbers", [])
    first = min(int(one.known_times().min()) for _, one in observed)
    last = max(int(one.known_times().max()) for _, one in observed)
    observed = [
        (entity, Observed(one.times, np.where(np.isin(one.values, sentinels), np.nan, one.values)))
        for entity, one in observed
    ]
    observed_targets, repeated, between = [], 0, 0
    for _, one in observed:
        observed_targets.append(int((~np.isnan(one.values[:, 0])).sum()))
        placed = place(one.known_times(), frequency)
        repeated += int((np.diff(placed.positions) == 0).sum())
        between += len(placed.off_grid)
    _doubtful_times(draft, repeated, between, frequency)
    if between > _FEW * sum(len(one.known_times()) for _, one in observed):
        raise InputError(_off_grid(shape, between, frequency, observed))
    if not asked.feature_names:
        columns, observed = _without_empty(draft, columns, observed)
    missing = np.mean([np.isnan(one.values).mean(axis=0) for _, one in observed], axis=0)
    told = [f"{name} {share:.1%}" for name, share in zip(columns, missing, strict=True) if share > 0]
    draft.words["gaps"] = f"Missing: {', '.join(told)}." if told else "Nothing is missing in what was looked at."
    _ask_for_years(draft, shape.target, TRAIN * np.array(observed_targets) / frequency.steps_per_year)
    trains = train_rows(observed, frequency, TRAIN)
    _look_for_target(draft, asked, columns, trains)
    _look_for_starving(draft, asked, columns, trains, frequency)
    period = f"{_day(first)} to {_day(last)}"
    draft.words["period"] = period
    count = f"{len(draft.entities):,} entities{'' if draft.whole else ' in the first rows'}"
    draft.about = f"{count}, {frequency.word} steps, {period}"
    if draft.words.get("starved", "").startswith("Left out"):
        draft.about += "; features that would leave few windows are left out"


def _without_empty(
    draft: Draft, columns: list[str], observed: list[tuple[str, Observed]]
) -> tuple[list[str], list[tuple[str, Observed]]]:
    """Without the features that some entity has no value of."""
    keep = [
        at
        for at in range(len(columns))
        if at == 0 or not any(bool(np.isnan(one.values[:, at]).all()) for _, one in observed)
    ]
    names = [columns[at] for at in keep]
    empty = [name for name in columns if name not in names]
    if empty:
        draft.settings["features"] = [name for name in draft.settings["features"] if name not in empty]
        draft.words["empty"] = f"Left out: {', '.join(empty)}, of which some entity has no value."
    return names, [(entity, Observed(one.times, one.values[:, keep])) for entity, one in observed]


def _find_sentinels(draft: Draft, columns: Sequence[str], observed: Sequence[tuple[str, Observed]]) -> None:
    found: dict[float, list[str]] = {}
    for at, name in enumerate(columns):
        values = np.unique(np.concatenate([one.values[:, at] for _, one in observed]))
        for number in sentinels_of(values[~np.isnan(values)]):
            found.setdefault(number, []).append(name)
    if found:
        draft.settings["missing_numbers"] = sorted(found, reverse=True)
        draft.words["missing_numbers"] = "Numbers that stand for missing: " + "; ".join(
            f"{number:g} in {', '.join(names)}" for number, names in sorted(found.items(), reverse=True)
        )


def sentinels_of(values: npt.NDArray[np.float64]) -> list[float]:
    """Which of a column's distinct values, ascending, stand for missing: usual ones, far below all the others."""
    found: list[float] = []
    while len(values) > 1 and values[0] in _SENTINELS and values[1] - values[0] > values[-1] - values[1]:
        found.append(float(values[0]))
        values = values[1:]
    return found


def _doubtful_times(draft: Draft, repeated: int, between: int, frequency: Frequency) -> None:
    if repeated:
        draft.settings["duplicate_times"] = "first"
        draft.words["times"] = f"{repeated:,} times come twice in an entity: the first row stays."
    if between:
        draft.settings["off_grid"] = "drop"
        before = f"{draft.words['times']} " if "times" in draft.words else ""
        draft.words["times"] = f"{before}{between:,} rows lie between steps of {frequency.word}: they are dropped."


def _off_grid(shape: Series, between: int, frequency: Frequency, observed: Sequence[tuple[str, Observed]]) -> str:
    """Too many rows would go; days of a zone with summer time, which are 23 and 25 hours long, are the usual reason."""
    rows = sum(len(one.known_times()) for _, one in observed)
    day = 86_400_000_000
    hours = {int(each) for _, one in observed for each in np.unique(one.known_times() % day)}
    summer = len(hours) == 2 and max(hours) - min(hours) in (day // 24, day - day // 24)
    cure = (
        "they look like midnights of a zone with summer time, in UTC: write local dates instead"
        if summer
        else "resample them, or set frequency and off_grid in a configuration of your own"
    )
    return f"{shape.time}: {between:,} of {rows:,} times are between steps of {frequency.word}; {cure}"


def _ask_for_years(draft: Draft, target: str, years: npt.NDArray[np.float64]) -> None:
    """years: of observed targets that would train, of each entity that was looked at."""
    words = f"Entities need so many years' worth of observed {target} to train on"
    if not draft.whole:
        draft.settings["min_train_years"] = _YEARS
        draft.words["min_train_years"] = f"{words}. How many they have is not known: only first rows were looked at."
        return
    draft.settings["min_train_years"] = _enough_years(years)
    low = int((years < draft.settings["min_train_years"]).sum())
    draft.words["min_train_years"] = (
        f"{words}; of the {len(years)} looked at they have {years.min():.1f} to {years.max():.1f}"
        + (f", and {low} would be left out." if low else ".")
    )


def _enough_years(years: Any) -> float:
    """5 years, or what nine of ten entities have where that is less."""
    usual = float(np.floor(np.quantile(years, 0.1) * 10) / 10)
    return min(_YEARS, max(0.0, usual))


def _look_for_target(
    draft: Draft, asked: AskedSeries, columns: list[str], trains: Sequence[npt.NDArray[np.float64]]
) -> None:
    parts = [rows for rows in trains if len(rows)]
    if len(columns) < 2 or not parts:
        return
    matrix = np.concatenate(parts)
    offsets = np.cumsum([0, *(len(rows) for rows in parts)], dtype=np.int64)
    found = suspects([tally(columns[1:], correlations(matrix, offsets, 0)[:, 1:])])
    told = warning(columns[0], found)
    if told is None:
        return
    if asked.feature_names:
        draft.words["near"] = f"Beware: a feature {told}."
    else:
        draft.settings["features"] = [name for name in draft.settings["features"] if name not in found]
        draft.words["near"] = f"Left out: {', '.join(found)}, which is {columns[0]} in another unit."


def _look_for_starving(
    draft: Draft,
    asked: AskedSeries,
    columns: list[str],
    trains: Sequence[npt.NDArray[np.float64]],
    frequency: Frequency,
) -> None:
    """Leave out features that would leave few windows, unless they were asked for; say which, and how many."""
    features = [name for name in columns[1:] if name in draft.settings["features"]]
    at = [0, *(columns.index(name) for name in features)]
    found = starved([columns[0], *features], [rows[:, at] for rows in trains], frequency, GAP)
    if found is None:
        return
    if asked.feature_names or len(found.left_out) == len(features):
        draft.words["starved"] = f"Beware: {found}."
        return
    draft.settings["features"] = [name for name in draft.settings["features"] if name not in found.left_out]
    draft.words["starved"] = f"Left out: {', '.join(found.left_out)}; {found}."


def _day(micros: int) -> str:
    return str(np.datetime64(micros, "us").astype("datetime64[D]"))
