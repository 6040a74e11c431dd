"""Native steps are scikit-learn's: the same parameters and the same values, for every entity on its own."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    PowerTransformer,
    RobustScaler,
    StandardScaler,
)

from headrace.errors import InputError
from headrace.series.arrays.scalers import fit_scalers
from headrace.series.pipelines.objects import to_sklearn
from headrace.series.pipelines.settings import as_steps
from raised import raised

COLUMNS = ("gamma", "constant", "large", "tiny", "whole")
ENTITIES = ["m", "b", "z", "a"]

PIPELINES = {
    "standard": StandardScaler(),
    "standard without mean": StandardScaler(with_mean=False),
    "standard without std": StandardScaler(with_std=False),
    "minmax": MinMaxScaler(),
    "minmax to -1, 3": MinMaxScaler(feature_range=(-1, 3)),
    "minmax clipped": MinMaxScaler(clip=True),
    "maxabs": MaxAbsScaler(),
    "robust": RobustScaler(),
    "robust 5-95 unit variance": RobustScaler(quantile_range=(5.0, 95.0), unit_variance=True),
    "robust without centering": RobustScaler(with_centering=False),
    "robust without scaling": RobustScaler(with_scaling=False),
    "log1p, standard": make_pipeline(
        FunctionTransformer(np.log1p, np.expm1, check_inverse=False), StandardScaler()
    ),
    "robust, standard": make_pipeline(RobustScaler(), StandardScaler()),
    "sqrt, minmax, maxabs": make_pipeline(
        FunctionTransformer(np.sqrt, np.square, check_inverse=False), MinMaxScaler(), MaxAbsScaler()
    ),
}
POWERS = {
    "yeo-johnson": PowerTransformer(),
    "box-cox": PowerTransformer(method="box-cox"),
    "not standardised": PowerTransformer(standardize=False),
}


def rows_of(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    sizes = [400, 1500, 37, 900]
    offsets = np.append(0, np.cumsum(sizes)).astype(np.int64)
    n = offsets[-1]
    matrix = np.column_stack(
        [
            rng.gamma(0.7, 3.0, n) + 1e-6,
            np.full(n, 0.1),
            1e8 + rng.normal(0, 1, n),
            rng.gamma(1.0, 1e-9, n) + 1e-12,
            rng.integers(1, 40, n).astype(float),
        ]
    )
    holes = rng.random(matrix.shape) < 0.07
    holes[offsets[:-1]] = False
    matrix[holes] = np.nan
    return matrix, offsets


def native(pipeline):
    return as_steps(pipeline)


def as_pipeline(pipeline):
    return pipeline if hasattr(pipeline, "steps") else make_pipeline(pipeline)


@pytest.mark.parametrize("name", PIPELINES)
def test_a_fit_for_each_entity_is_scikit_learns(name: str) -> None:
    matrix, offsets = rows_of()
    fitted = fit_scalers(native(PIPELINES[name]), COLUMNS, matrix, offsets, ENTITIES)
    ours = fitted.apply(matrix, offsets, ENTITIES, np.float64)
    for group, entity in enumerate(ENTITIES):
        own = matrix[offsets[group] : offsets[group + 1]]
        theirs = clone(as_pipeline(PIPELINES[name])).fit(own)
        same_parameters(theirs, to_sklearn(fitted, entity))
        spread = np.nanmax(np.abs(own), axis=0) / np.maximum(np.nanstd(own, axis=0), 1e-300)
        atol = 1e-15 * np.minimum(spread, 1e9) * 50  # what float64 leaves of x - mean
        expected = theirs.transform(own)
        for column in range(len(COLUMNS)):
            np.testing.assert_allclose(
                ours[offsets[group] : offsets[group + 1], column],
                expected[:, column],
                rtol=1e-11,
                atol=atol[column],
                err_msg=COLUMNS[column],
            )


@pytest.mark.parametrize("name", POWERS)
def test_powers_are_scikit_learns(name: str) -> None:
    matrix, offsets = rows_of()
    matrix, columns = matrix[:, [0, 4]], ("gamma", "whole")
    fitted = fit_scalers(native(POWERS[name]), columns, matrix, offsets, ENTITIES)
    ours = fitted.apply(matrix, offsets, ENTITIES, np.float64)
    back = fitted.invert(ours, offsets, ENTITIES)
    np.testing.assert_allclose(back, matrix, rtol=1e-9)
    for group, entity in enumerate(ENTITIES):
        own = matrix[offsets[group] : offsets[group + 1]]
        theirs = clone(POWERS[name]).fit(own)
        np.testing.assert_array_equal(theirs.lambdas_, to_sklearn(fitted, entity)[0].lambdas_)
        np.testing.assert_allclose(
            ours[offsets[group] : offsets[group + 1]], theirs.transform(own), rtol=1e-9, atol=1e-12
        )
        np.testing.assert_allclose(
            to_sklearn(fitted, entity).transform(own), theirs.transform(own), rtol=1e-12
        )


def same_parameters(theirs, ours) -> None:
    for (_, one), (_, other) in zip(theirs.steps, ours.steps, strict=True):
        for name in (
            "mean_",
            "var_",
            "scale_",
            "min_",
            "data_min_",
            "data_max_",
            "max_abs_",
            "center_",
        ):
            if getattr(one, name, None) is None:
                assert getattr(other, name, None) is None
                continue
            expected, found = getattr(one, name), getattr(other, name)
            # a mean behind a centering step is rounding noise around 0
            atol = 1e-13 if name in ("mean_", "center_") else 1e-26 if name == "var_" else 0
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=atol, err_msg=name)
        if isinstance(one, StandardScaler):  # the others count missing rows too
            np.testing.assert_array_equal(
                np.max(one.n_samples_seen_), np.max(other.n_samples_seen_)
            )


@pytest.mark.parametrize("name", PIPELINES)
def test_one_fit_for_all_is_scikit_learns(name: str) -> None:
    matrix, offsets = rows_of(3)
    fitted = fit_scalers(native(PIPELINES[name]), COLUMNS, matrix)
    theirs = clone(as_pipeline(PIPELINES[name])).fit(matrix)

    same_parameters(theirs, to_sklearn(fitted, None))
    np.testing.assert_allclose(
        fitted.apply(matrix, offsets, ENTITIES, np.float64)[:, [0, 3, 4]],
        theirs.transform(matrix)[:, [0, 3, 4]],
        rtol=1e-10,
        atol=1e-13,
    )


@pytest.mark.parametrize("name", [name for name in PIPELINES if "clipped" not in name])
def test_values_come_back(name: str) -> None:
    matrix, offsets = rows_of(5)
    fitted = fit_scalers(native(PIPELINES[name]), COLUMNS, matrix, offsets, ENTITIES)

    back = fitted.invert(fitted.apply(matrix, offsets, ENTITIES, np.float64), offsets, ENTITIES)

    np.testing.assert_allclose(back, matrix, rtol=1e-10, atol=1e-15)


def test_a_fit_does_not_depend_on_the_other_entities() -> None:
    matrix, offsets = rows_of(7)
    steps = native(PIPELINES["log1p, standard"])
    together = fit_scalers(steps, COLUMNS, matrix, offsets, ENTITIES)
    for group, entity in enumerate(ENTITIES):
        own = matrix[offsets[group] : offsets[group + 1]]
        alone = fit_scalers(steps, COLUMNS, own, np.array([0, len(own)]), [entity])

        assert alone.to_json() == together.select([entity]).to_json()


def test_log_with_an_offset_and_with_a_share_of_the_mean() -> None:
    matrix = np.array([[0.0], [1.0], [np.nan], [5.0]])
    offsets = np.array([0, 4])

    fixed = fit_scalers(native([{"step": "Log", "offset": 0.5}]), ["q"], matrix, offsets, ["a"])
    shared = fit_scalers(
        native([{"step": "Log", "mean_share": 0.01}]), ["q"], matrix, offsets, ["a"]
    )

    np.testing.assert_allclose(
        fixed.apply(matrix, offsets, ["a"], np.float64), np.log(matrix + 0.5)
    )
    np.testing.assert_allclose(
        shared.apply(matrix, offsets, ["a"], np.float64), np.log(matrix + 0.02)
    )
    np.testing.assert_allclose(
        shared.invert(shared.apply(matrix, offsets, ["a"], np.float64), offsets, ["a"]),
        matrix,
        atol=1e-15,
    )


@pytest.mark.parametrize(
    ("value", "steps", "scaled", "remedy"),
    [
        (np.inf, "StandardScaler", np.inf, "correct the data or leave the entity out"),
        (-3.0, {"step": "FunctionTransformer", "func": "log1p"}, -3.0, "choose a step"),
        (
            0.0,
            ["StandardScaler", {"step": "FunctionTransformer", "func": "log"}],
            -1.0,
            "choose a step",
        ),
    ],
)
def test_a_value_that_cannot_be_scaled_is_named(
    value: float, steps, scaled: float, remedy: str
) -> None:
    matrix = np.array([[1.0], [2.0], [1.5], [value]])

    with raised(InputError, column="q", value=scaled, remedy=remedy):
        fit_scalers(native(steps), ["q"], matrix, np.array([0, 2, 4]), ["a", "b"])


def test_a_column_without_values_cannot_be_fitted() -> None:
    matrix = np.array([[1.0, 2.0], [2.0, np.nan]])

    with raised(InputError, column="p"):
        fit_scalers(native("StandardScaler"), ["q", "p"], matrix, np.array([0, 1, 2]), ["a", "b"])
    with raised(InputError, remedy="leave it out"):
        fit_scalers(native("StandardScaler"), ["q", "p"], matrix, np.array([0, 2, 2]), ["a", "b"])
