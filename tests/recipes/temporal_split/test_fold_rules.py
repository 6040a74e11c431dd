"""The rules of folds, as arithmetic: who is in which fold, against scikit-learn and against the rule in words."""

import datetime as dt
import re
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import SettingsError
from headrace.folds.settings import GroupKFold, Rolling
from headrace.split.features.cells import (
    NO_CELL,
    TESTS,
    TRAINS,
    cell_of,
    deal,
    deal_stratified,
    fold_cells,
    fold_times,
)
from headrace.split.settings import TemporalSplit
from laws import examples
from raised import raised

START = dt.datetime(2025, 1, 1, tzinfo=dt.UTC)
HOUR_US = 3_600_000_000
NAMES: dict[str, Any] = {"source": "raw", "time": "time"}


def rolling(n: int, step: int, window: int | None, **asked: Any) -> TemporalSplit:
    """Folds in whole hours."""
    folds = Rolling(n=n, step=f"{step}h", window="expanding" if window is None else f"{window}h")
    return TemporalSplit(**NAMES, split_date="2025-01-01", folds=folds, **asked)


@given(
    st.integers(1, 6), st.integers(1, 9), st.none() | st.integers(1, 30), st.integers(0, 6), st.integers(0, 6),
    st.lists(st.integers(-60, 70), min_size=1, max_size=30),
)  # fmt: skip
@settings(max_examples=examples(200))
def test_a_row_of_rolling_folds_has_the_roles_that_the_rule_says(
    n: int, step: int, window: int | None, gap: int, horizon: int, hours: list[int]
) -> None:
    reaches = {"gap": gap and f"{gap}h", "label_horizon": horizon and f"{horizon}h"}
    asked = rolling(n, step, window, **{name: value or None for name, value in reaches.items()})
    cells = fold_cells(asked)
    first = int(START.timestamp()) * 1_000_000
    found = cell_of(cells.utc, first + HOUR_US * np.array(hours), None, None)

    for hour, cell in zip(hours, found.tolist(), strict=True):
        roles = []
        for fold in range(n):
            cut = fold * step
            end = cut - max(gap, horizon)
            trains = hour < end and (window is None or hour >= end - window)
            roles.append(TRAINS if trains else TESTS if cut <= hour < cut + step else 0)
        assert roles == (cells.roles[cell].tolist() if cell != NO_CELL else [0] * n)
    assert ((cells.roles == TESTS).sum(axis=1) <= 1).all()


@given(
    st.integers(1, 5), st.integers(1, 9), st.none() | st.integers(1, 40), st.integers(0, 5),
    st.lists(st.tuples(st.integers(0, 7), st.integers(-60, 60)), min_size=1, max_size=40),
    st.sampled_from(["keep", "drop"]), st.integers(0, 2**32),
)  # fmt: skip
@settings(max_examples=examples(200))
def test_no_entity_trains_and_tests_in_a_fold_and_each_row_tests_at_most_once(
    n: int,
    step: int,
    window: int | None,
    gap: int,
    rows: list[tuple[int, int]],
    val_in_test: str,
    seed: int,
) -> None:
    asked = rolling(
        n, step, window, gap=f"{gap}h" if gap else None, entity="id", val_in_test=val_in_test
    )
    cells, times = fold_cells(asked), fold_times(asked, "utc")
    entity = np.array([each for each, _ in rows])
    micros = int(START.timestamp()) * 1_000_000 + HOUR_US * np.array([hour for _, hour in rows])
    first = np.full(8, n)
    np.minimum.at(first, entity, times.seen_from(micros))
    side = np.where(first == n, 2, np.random.default_rng(seed).integers(0, 2, 8))
    found = cell_of(cells.utc, micros, side[entity], first[entity])
    roles = np.vstack([cells.roles, np.zeros((1, n), np.uint8)])[
        found
    ]  # NO_CELL is -1, the last place

    assert ((roles == TESTS).sum(axis=1) <= 1).all()
    for fold in range(n):
        train, val, test = (set(entity[roles[:, fold] == role].tolist()) for role in (1, 2, 3))
        assert not train & test
        assert not train & val
        assert val_in_test == "keep" or not val & test
        new = set(entity[(micros >= times.cut[fold]) & (micros < times.stop[fold])].tolist())
        new -= set(entity[micros < times.end[fold]].tolist())
        assert new <= test  # whoever no fold before has seen tests
        assert (micros[(roles[:, fold] == 1) | (roles[:, fold] == 2)] < times.end[fold]).all()


def test_cuts_stay_at_midnight_when_clocks_change_and_each_row_goes_by_its_own_clock() -> None:
    folds = Rolling(n=3, step="30d")
    asked = TemporalSplit(**NAMES, split_date="2025-02-15", folds=folds, time_zone="Europe/Berlin")
    cells = fold_cells(asked)
    cuts = [dt.datetime(2025, 2, 15) + number * dt.timedelta(days=30) for number in range(3)]
    wall = np.array([int(each.replace(tzinfo=dt.UTC).timestamp()) for each in cuts]) * 1_000_000
    utc = (
        np.array([int(each.replace(tzinfo=ZoneInfo("Europe/Berlin")).timestamp()) for each in cuts])
        * 1_000_000
    )

    assert [HOUR_US, HOUR_US, 2 * HOUR_US] == (wall - utc).tolist()
    assert wall.tolist() == fold_times(asked, "wall").cut.tolist()
    assert utc.tolist() == fold_times(asked, "utc").cut.tolist()
    micros, instant = (
        np.concatenate([wall, utc, wall - 1, utc - 1]),
        np.tile(np.repeat([False, True], 3), 2),
    )
    roles = cells.roles[cells.cells_of(micros, instant, None, None)]
    for fold in range(3):
        assert [TESTS, TESTS, TRAINS, TRAINS] == roles[
            [fold, fold + 3, fold + 6, fold + 9], fold
        ].tolist()


def test_rolling_folds_are_those_of_time_series_split() -> None:
    model_selection = pytest.importorskip("sklearn.model_selection")
    for rows, n, test, gap, most in [
        (100, 5, 10, 0, None),
        (60, 4, 7, 3, 20),
        (31, 3, 5, 1, 9),
        (28, 6, 4, 0, None),
    ]:
        cut = START + dt.timedelta(hours=rows - n * test)
        reach = {"gap": f"{gap}h"} if gap else {}
        folds = Rolling(n=n, step=f"{test}h", window="expanding" if most is None else f"{most}h")
        cells = fold_cells(TemporalSplit(**NAMES, split_date=cut.isoformat(), folds=folds, **reach))
        micros = int(START.timestamp()) * 1_000_000 + HOUR_US * np.arange(rows)
        found = cell_of(cells.utc, micros, None, None)
        roles = np.vstack([cells.roles, np.zeros((1, n), np.uint8)])[found]
        peer = model_selection.TimeSeriesSplit(n, test_size=test, gap=gap, max_train_size=most)

        for fold, (train, tested) in enumerate(peer.split(np.zeros(rows))):
            assert train.tolist() == np.flatnonzero(roles[:, fold] == TRAINS).tolist()
            assert tested.tolist() == np.flatnonzero(roles[:, fold] == TESTS).tolist()


def test_rolling_folds_are_those_of_purged_walk_forward() -> None:
    purgedcv = pytest.importorskip("purgedcv")
    pandas = pytest.importorskip("pandas")
    for rows, n, test, horizon, most in [
        (100, 5, 10, 4, None),
        (60, 4, 7, 9, 20),
        (40, 3, 5, 1, 9),
        (50, 2, 8, 0, 11),
    ]:
        cut = START + dt.timedelta(hours=rows - n * test)
        reach = {"label_horizon": f"{horizon}h"} if horizon else {}
        folds = Rolling(n=n, step=f"{test}h", window="expanding" if most is None else f"{most}h")
        cells = fold_cells(TemporalSplit(**NAMES, split_date=cut.isoformat(), folds=folds, **reach))
        micros = int(START.timestamp()) * 1_000_000 + HOUR_US * np.arange(rows)
        roles = np.vstack([cells.roles, np.zeros((1, n), np.uint8)])[
            cell_of(cells.utc, micros, None, None)
        ]
        times = pandas.Series(pandas.date_range(START, periods=rows, freq="h"))
        # Its labels end before they end: one that ends at the cut is kept, and here it is not.
        ends = times + pandas.Timedelta(hours=horizon) + pandas.Timedelta(seconds=int(horizon > 0))
        peer = purgedcv.WalkForwardSplit(
            n, test, train_size=most, window="expanding" if most is None else "sliding",
            prediction_times=times, evaluation_times=ends,
        )  # fmt: skip

        for fold, (train, tested) in enumerate(peer.split(np.zeros((rows, 1)))):
            assert train.tolist() == np.flatnonzero(roles[:, fold] == TRAINS).tolist()
            assert tested.tolist() == np.flatnonzero(roles[:, fold] == TESTS).tolist()


@given(st.lists(st.integers(1, 60), min_size=2, max_size=60), st.integers(2, 6))
@settings(max_examples=examples(200))
def test_entities_are_dealt_one_by_one_to_the_lightest_fold(rows: list[int], folds: int) -> None:
    load, dealt = [0] * folds, {}
    for entity in sorted(range(len(rows)), key=lambda each: -rows[each]):
        dealt[entity] = load.index(min(load))
        load[dealt[entity]] += rows[entity]

    assert [dealt[each] for each in range(len(rows))] == deal(np.array(rows), folds).tolist()


@given(st.lists(st.integers(1, 60), min_size=6, max_size=40), st.integers(2, 5))
@settings(max_examples=examples(60))
def test_folds_of_entities_are_those_of_group_k_fold(rows: list[int], folds: int) -> None:
    model_selection = pytest.importorskip("sklearn.model_selection")
    groups = np.repeat(np.arange(len(rows)), rows)
    theirs = [test for _, test in model_selection.GroupKFold(folds).split(groups, groups=groups)]
    ours = deal(np.array(rows), folds)

    assert [len(test) for test in theirs] == np.bincount(ours, np.array(rows), folds).tolist()
    distinct = np.array(
        sorted(set(rows))
    )  # where no two entities have as many rows, nothing is left to a seed
    if len(distinct) >= folds:
        groups = np.repeat(np.arange(len(distinct)), distinct)
        for fold, (_, test) in enumerate(
            model_selection.GroupKFold(folds).split(groups, groups=groups)
        ):
            assert set(groups[test].tolist()) == set(
                np.flatnonzero(deal(distinct, folds) == fold).tolist()
            )


def spread(rows: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    return rows.shape[1] * (rows**2).sum(axis=1) - rows.sum(axis=1) ** 2


@given(st.integers(2, 4), st.integers(2, 5), st.integers(0, 2**32))
@settings(max_examples=examples(60))
def test_stratified_folds_are_those_of_stratified_group_k_fold(
    classes: int, folds: int, seed: int
) -> None:
    model_selection = pytest.importorskip("sklearn.model_selection")
    rows = np.random.default_rng(seed).integers(0, 40, (60, classes))
    rows = rows[rows.sum(axis=1) > 0]
    rows = rows[
        np.unique(spread(rows), return_index=True)[1]
    ]  # entities equally uneven are in an order of our own
    groups = np.concatenate([np.full(each.sum(), number) for number, each in enumerate(rows)])
    labels = np.concatenate([np.repeat(np.arange(classes), each) for each in rows])
    peer = model_selection.StratifiedGroupKFold(folds)
    ours = deal_stratified(rows, folds)

    if np.bincount(labels).min() >= folds:
        for fold, (_, test) in enumerate(peer.split(groups, labels, groups)):
            assert set(groups[test].tolist()) == set(np.flatnonzero(ours == fold).tolist())


def test_stratified_folds_share_classes_evenly() -> None:
    rows = np.zeros((10_000, 2), np.int64)
    rows[np.arange(10_000), (np.arange(10_000) % 20 == 0).astype(int)] = 1
    dealt = deal_stratified(rows, 7)
    counts = np.array([rows[dealt == fold].sum(axis=0) for fold in range(7)])

    assert (counts.max(axis=0) - counts.min(axis=0) <= 1).all()


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (
            {"folds": "rolling"},
            r"folds is 'rolling': n is required, step is required; give rolling:n=5,step=30d or",
        ),
        ({"folds": "group-kfold:k=1", "entity": "id"}, "folds is 'group-kfold:k=1': k is 1"),
        (
            {"folds": "rolling:n=5,step=soon", "split_date": "2025-01-01"},
            "step is 'soon'; give a number",
        ),
        (
            {"folds": "rolling:n=5,step=0d", "split_date": "2025-01-01"},
            "step is '0d', which is not a time",
        ),
        ({"folds": "rolling:n=5,step=1d,window=all", "split_date": "2025-01-01"}, "or expanding"),
        ({"folds": "walk:n=5", "split_date": "2025-01-01"}, "folds of kind 'walk' are not known"),
    ],
)
def test_folds_that_cannot_work_are_refused(asked: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(told)):
        TemporalSplit(**NAMES, **asked)


@pytest.mark.parametrize(
    ("asked", "setting"),
    [
        ({"folds": "rolling:n=5,step=30d"}, "split_date"),
        ({"folds": "group-kfold:k=5"}, "folds"),
        ({"folds": GroupKFold(5), "entity": "id", "split_date": "2025-01-01"}, "split_date"),
        ({"folds": GroupKFold(5), "entity": "id", "gap": "1d"}, "gap"),
        ({"folds": GroupKFold(5), "entity": "id", "near": 0.8}, "duplicates"),
        ({"folds": GroupKFold(5), "entity": "id", "content": ["x"]}, "duplicates"),
        (
            {
                "folds": "rolling:n=5,step=1d",
                "split_date": "2025-01-01",
                "entity": "id",
                "duplicates": "group",
            },
            "duplicates",
        ),
        ({"folds": GroupKFold(5), "entity": "id", "null_entity": "own"}, "null_entity"),
        ({"folds": GroupKFold(5, stratify="id"), "entity": "id"}, "folds"),
        ({"folds": "rolling:n=1000,step=999w", "split_date": "9000-01-01"}, "folds"),
        (
            {
                "folds": "rolling:n=9,step=30m",
                "split_date": "2025-10-26T00:00",
                "time_zone": "Europe/Berlin",
            },
            "split_date",
        ),
    ],
)
def test_the_refusal_names_the_setting(asked: dict[str, Any], setting: str) -> None:
    with raised(SettingsError, setting=setting):
        TemporalSplit(**NAMES, **asked)


def test_a_text_a_mapping_and_a_model_are_the_same_folds() -> None:
    model = TemporalSplit(
        **NAMES, split_date="2025-01-01", folds=Rolling(n=3, step="1d", window="7d")
    )
    text = TemporalSplit(**NAMES, split_date="2025-01-01", folds="rolling:n=3, step=1d, window=7d")
    mapping = {"kind": "rolling", "n": 3, "step": "1d", "window": "7d"}

    assert model == text == TemporalSplit(**NAMES, split_date="2025-01-01", folds=mapping)
    assert mapping == model.config()["folds"]
    assert "folds" not in TemporalSplit(**NAMES, split_date="2025-01-01").config()
