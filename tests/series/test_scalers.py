"""Scalers as arrays: applied in blocks, merged, kept as JSON bit for bit; strangers are refused (T12)."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import CorruptShard, InputError, SettingsError
from headrace.series.arrays import scalers as module
from headrace.series.arrays.scalers import Scalers, fit_scalers
from headrace.series.arrays.steps import complete
from laws import examples
from raised import raised

COLUMNS = ("q", "p")
STEPS = [
    complete("FunctionTransformer", {"func": "log1p", "inverse_func": "expm1"}),
    complete("StandardScaler", {}),
]


def case(entities: list[str], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(3, 30, len(entities))
    offsets = np.append(0, np.cumsum(sizes)).astype(np.int64)
    matrix = rng.gamma(1.0, 4.0, (offsets[-1], 2))
    matrix[rng.random(matrix.shape) < 0.1] = np.nan
    matrix[offsets[:-1]] = 2.0
    return matrix, offsets


def test_t12_an_entity_without_a_fit_is_an_error_and_never_unscaled_data() -> None:
    matrix, offsets = case(["camelsch_4001", "b"])
    fitted = fit_scalers(STEPS, COLUMNS, matrix, offsets, ["camelsch_4001", "b"])

    with raised(InputError, value="camelsch_4003"):
        fitted.apply(matrix, offsets, ["b", "camelsch_4003"])
    with raised(InputError, value="camelsch_4003"):
        fitted.invert(matrix, offsets, ["b", "camelsch_4003"])
    with raised(InputError, value="c"):
        fitted.index_of(["b", "c"])


def test_one_fit_for_all_takes_any_entity() -> None:
    matrix, offsets = case(["a", "b"])
    fitted = fit_scalers(STEPS, COLUMNS, matrix)

    scaled = fitted.apply(matrix, offsets, ["x", "y"], np.float64)

    np.testing.assert_allclose(fitted.invert(scaled, offsets, ["any", "other"]), matrix, rtol=1e-12)


@pytest.mark.parametrize("readable", [1000, 2])
def test_json_keeps_every_bit(readable: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_READABLE", readable)
    matrix, offsets = case(["a", "ü", "007"])
    fitted = fit_scalers(STEPS, COLUMNS, matrix, offsets, ["a", "ü", "007"])

    again = Scalers.from_json(json.loads(json.dumps(fitted.to_json())))

    assert again.entities == ("007", "a", "ü")
    for one, other in zip(fitted.steps, again.steps, strict=True):
        assert one.step == other.step
        for name in one.fitted:
            assert one.fitted[name].tobytes() == other.fitted[name].tobytes()


@settings(max_examples=examples(40), deadline=None)
@given(st.permutations(["a", "b", "c", "d", "e"]), st.integers(0, 5))
def test_merged_batches_are_the_fit_of_all(order: list[str], cut: int) -> None:
    matrix, offsets = case(order, 3)
    whole = fit_scalers(STEPS, COLUMNS, matrix, offsets, order)
    first = slice(0, int(offsets[cut])), offsets[: cut + 1], order[:cut]
    second = slice(int(offsets[cut]), None), offsets[cut:] - offsets[cut], order[cut:]
    parts = [
        fit_scalers(STEPS, COLUMNS, matrix[rows], edges, names)
        for rows, edges, names in (first, second)
        if names
    ]

    assert Scalers.merge(parts[::-1]).to_json() == whole.to_json()


def test_fits_of_different_steps_are_not_merged() -> None:
    matrix, offsets = case(["a"])
    other, _ = case(["b"])
    mine = fit_scalers(STEPS, COLUMNS, matrix, offsets, ["a"])

    with pytest.raises(ValueError, match="same pipeline"):
        Scalers.merge([mine, fit_scalers(STEPS[1:], COLUMNS, other, offsets, ["b"])])
    with pytest.raises(ValueError, match="twice"):
        Scalers.merge([mine, mine])


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    entities = ["a", "b", "c", "d"]
    matrix, offsets = case(entities)
    fitted = fit_scalers(STEPS, COLUMNS, matrix, offsets, entities)
    whole = fitted.apply(matrix, offsets, entities)
    back = fitted.invert(whole, offsets, entities)
    monkeypatch.setattr(module, "_BLOCK", 7)

    np.testing.assert_array_equal(fitted.apply(matrix, offsets, entities), whole)
    np.testing.assert_array_equal(fitted.invert(whole, offsets, entities), back)
    assert whole.dtype == np.float32


def test_predictions_of_several_steps_are_brought_back_by_entity() -> None:
    entities = ["a", "b"]
    matrix, offsets = case(entities)
    fitted = fit_scalers(STEPS, COLUMNS, matrix, offsets, entities)
    scaled = fitted.apply(matrix, offsets, entities, np.float64)
    of_b = scaled[offsets[1] : offsets[1] + 6, 0].reshape(2, 3)

    back = fitted.only(["q"]).invert(of_b.reshape(-1, 1), np.array([0, 3, 6]), ["b", "b"])

    np.testing.assert_allclose(back.ravel(), matrix[offsets[1] : offsets[1] + 6, 0], rtol=1e-12)


def test_missing_stays_missing_and_nothing_else_becomes_so() -> None:
    entities = ["a", "b"]
    matrix, offsets = case(entities)
    fitted = fit_scalers(STEPS, COLUMNS, matrix, offsets, entities)

    np.testing.assert_array_equal(
        np.isnan(fitted.apply(matrix, offsets, entities)), np.isnan(matrix)
    )
    matrix[4, 1] = -7.0
    with raised(InputError, column="p", value=-7.0):
        fitted.apply(matrix, offsets, entities)


def test_a_function_without_inverse_says_so() -> None:
    matrix, offsets = case(["a"])
    fitted = fit_scalers(
        [complete("FunctionTransformer", {"func": "log1p", "inverse_func": None})],
        COLUMNS,
        matrix,
        offsets,
        ["a"],
    )

    with pytest.raises(SettingsError, match="log1p.*has no inverse"):
        fitted.invert(matrix, offsets, ["a"])


@pytest.mark.parametrize(
    "damage",
    [
        lambda record: record.pop("columns"),
        lambda record: record["entities"].reverse(),
        lambda record: record["steps"][1]["fitted"].pop("var"),
        lambda record: record["steps"][1]["fitted"].update(mean=[[1.0]]),
        lambda record: record["steps"][1]["fitted"]["mean"][0].__setitem__(0, float("nan")),
        lambda record: record["steps"][1].update(step="Unknown"),
        lambda record: record["steps"][1].update(params={"with_men": True}),
        lambda record: record.update(steps=3),
    ],
)
def test_damaged_json_is_refused(damage) -> None:
    matrix, offsets = case(["a", "b"])
    record = fit_scalers(STEPS, COLUMNS, matrix, offsets, ["a", "b"]).to_json()
    damage(record)

    with raised(CorruptShard, remedy="restore them or prepare the run again"):
        Scalers.from_json(record)
