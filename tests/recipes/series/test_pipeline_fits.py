"""Pipelines over many entities: who is fitted on which rows, batches, and values that cannot be scaled."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from series_sources import run_of, write_source
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, RobustScaler, StandardScaler

from headrace import verify
from headrace.errors import InputError, SettingsError
from headrace.series.pipelines.fitted import fit, join, merge, reasons
from headrace.series.pipelines.settings import Preprocessing
from laws import examples
from raised import raised

COLUMNS = ("q", "p", "t")


def case(entities: list[str], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(20, 60, len(entities))
    offsets = np.append(0, np.cumsum(sizes)).astype(np.int64)
    matrix = rng.gamma(2.0, 3.0, (offsets[-1], 3))
    matrix[rng.random(matrix.shape) < 0.1] = np.nan
    return matrix, offsets


def resolved(**configs):
    return Preprocessing(**configs).resolved(targets=["q"], features=["p", "t"]).time_series


MIXED = resolved(
    features=[
        {
            "strategy": "unified",
            "pipeline": "RobustScaler",
            "columns": ["t"],
            "fit_on_n_entities": 2,
        },
        {"strategy": "per_group", "pipeline": ["MinMaxScaler"], "columns": ["p"]},
    ]
)


def test_every_column_is_scaled_by_its_own_pipeline() -> None:
    entities = ["z", "a", "m"]
    matrix, offsets = case(entities)
    fitted = join(
        [
            fit(MIXED, COLUMNS, matrix, offsets, entities, strategy=each)
            for each in ("unified", "per_group")
        ]
    )

    scaled = fitted.transform(COLUMNS, matrix, offsets, entities, np.float64)
    swapped = fitted.transform(COLUMNS[::-1], matrix[:, ::-1], offsets, entities, np.float64)

    robust = RobustScaler().fit(matrix[: offsets[2], 2:])
    np.testing.assert_allclose(
        scaled[:, 2:], robust.transform(matrix[:, 2:]), rtol=1e-12, atol=1e-14
    )
    for group in range(3):
        own = slice(offsets[group], offsets[group + 1])
        for column, scaler in ((0, StandardScaler()), (1, MinMaxScaler())):
            expected = scaler.fit_transform(matrix[own, column : column + 1])[:, 0]
            np.testing.assert_allclose(scaled[own, column], expected, rtol=1e-11, atol=1e-13)
    np.testing.assert_array_equal(swapped, scaled[:, ::-1])
    np.testing.assert_allclose(
        fitted.inverse_transform(COLUMNS, scaled, offsets, entities), matrix, rtol=1e-11, atol=1e-13
    )


@settings(max_examples=examples(30), deadline=None)
@given(st.permutations(["a", "b", "c", "d", "e"]), st.sets(st.integers(1, 4)))
def test_batches_of_any_size_and_order_are_one_fit(order: list[str], cuts: set[int]) -> None:
    matrix, offsets = case(order, 5)
    whole = fit(MIXED, COLUMNS, matrix, offsets, order, strategy="per_group")
    edges = [0, *sorted(cuts), 5]
    batches = []
    for start, stop in pairwise(edges):
        rows = matrix[offsets[start] : offsets[stop]]
        own = offsets[start : stop + 1] - offsets[start]
        batches.append(fit(MIXED, COLUMNS, rows, own, order[start:stop], strategy="per_group"))

    assert [part.to_json() for part in merge(batches).parts] == [
        part.to_json() for part in whole.parts
    ]


def test_a_column_without_pipeline_and_a_fit_that_is_there_twice() -> None:
    matrix, offsets = case(["a"])
    own = fit(MIXED, COLUMNS, matrix, offsets, ["a"], strategy="per_group")

    with raised(SettingsError, column="t"):
        own.transform(COLUMNS, matrix, offsets, ["a"])
    with pytest.raises(ValueError, match="two fitted pipelines"):
        join([own, own])


@pytest.mark.parametrize(
    ("steps", "row", "value", "expected"),
    [
        ("StandardScaler", 3, np.inf, "column p holds inf, which StandardScaler cannot take"),
        ({"step": "FunctionTransformer", "func": "log1p"}, 12, -1.0, "column p holds -1.0, which FunctionTransformer cannot take"),
        ({"step": "FunctionTransformer", "func": "sqrt"}, 12, 0.0, None),
        ({"step": "FunctionTransformer", "func": "sqrt"}, 12, -0.5, "column p holds -0.5, which FunctionTransformer cannot take"),
        ({"step": "PowerTransformer", "method": "box-cox"}, 3, 0.0, "column p holds 0.0, which PowerTransformer cannot take"),
        ({"step": "Log", "offset": 2.0}, 3, -2.5, "column p holds -2.5, which Log cannot take"),
        ({"step": "Log", "offset": 2.0}, 3, -1.5, None),
        ("StandardScaler", slice(0, 20), np.nan, "column p has no value in train"),
        ("StandardScaler", slice(10, 20), np.nan, None),
        ([], slice(None), np.nan, None),
    ],
)  # fmt: skip
def test_an_entity_that_cannot_be_scaled_is_told_before_any_fit(
    steps, row, value: float, expected: str | None
) -> None:
    pipelines = resolved(features={"strategy": "per_group", "pipeline": steps})
    trains = np.full((20, 3), 2.0)
    trains[row, 1] = value

    assert expected == reasons(pipelines, COLUMNS, trains)


@pytest.mark.parametrize(
    "steps", [["SimpleImputer", "StandardScaler"], make_pipeline(SimpleImputer(), StandardScaler())]
)
def test_scikit_learns_imputers_fill_with_what_trains(steps, tmp_path: Path) -> None:
    features = {"strategy": "per_group", "pipeline": steps}
    pipelines = resolved(features=features)
    matrix, offsets = case(["a", "b"])
    fitted = fit(pipelines[1:], COLUMNS, matrix, offsets, ["a", "b"], strategy="per_group")
    scaled = fitted.transform(COLUMNS[1:], matrix[:, 1:], offsets, ["a", "b"], np.float64)
    out = run_of(
        write_source(tmp_path / "in", ["g", "h"]),
        tmp_path / "out",
        preprocessing_configs={"features": features},
    )

    for group in range(2):
        own = matrix[offsets[group] : offsets[group + 1], 1:]
        expected = make_pipeline(SimpleImputer(), StandardScaler()).fit_transform(own)
        np.testing.assert_allclose(
            scaled[offsets[group] : offsets[group + 1]], expected, rtol=1e-12, atol=1e-12
        )
    assert not verify(out.out).problems
    with raised(SettingsError, setting="preprocessing_configs"):
        resolved(target=features)


def test_a_value_lost_in_scikit_learns_own_steps_is_an_error() -> None:
    pipelines = resolved(
        features={"strategy": "per_group", "pipeline": ["SimpleImputer", "QuantileTransformer"]}
    )
    matrix = np.full((40, 3), np.inf)

    with raised(InputError, remedy="leave the entity out, or choose other steps"):
        fit(pipelines[1:], COLUMNS, matrix, np.array([0, 40]), ["a"], strategy="per_group")


BLOCKED = """
import sys
sys.path[:0] = [{tests!r}]
for name in ("sklearn", "scipy", "skops", "joblib"):
    sys.modules[name] = None
from pathlib import Path
from series_sources import run_of
import headrace
made = run_of(Path({source!r}), Path({out!r}), preprocessing_configs={configs!r})
back = headrace.load_pipelines(made.out, trust={trust!r}).inverse_transform([0.0], entity="a")
print(len(headrace.verify(made.out).problems), back.shape)
"""


@pytest.mark.slow
@pytest.mark.smoke("safe")
@pytest.mark.parametrize("trust", ["safe", "joblib"])
def test_native_steps_need_nothing_but_numpy(tmp_path: Path, trust: str) -> None:
    source = write_source(tmp_path / "raw", ["a", "b"], days=400)
    configs = {
        "features": {"strategy": "unified", "pipeline": ["RobustScaler"], "fit_on_n_entities": 1}
    }
    code = BLOCKED.format(
        tests=str(Path(__file__).parent),
        source=str(source),
        out=str(tmp_path / "out"),
        configs=configs,
        trust=trust,
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stdout.strip() == "0 (1,)", done.stderr


@pytest.mark.slow
@pytest.mark.smoke("PowerTransformer")
@pytest.mark.parametrize("steps", ["QuantileTransformer", "PowerTransformer"])
def test_steps_that_need_scikit_learn_name_the_extra(tmp_path: Path, steps: str) -> None:
    source = write_source(tmp_path / "raw", ["a"], days=400)
    configs = {"features": {"strategy": "per_group", "pipeline": [steps]}}
    code = BLOCKED.format(
        tests=str(Path(__file__).parent),
        source=str(source),
        out=str(tmp_path / "out"),
        configs=configs,
        trust="safe",
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (
        "scikit-learn is not installed; install it with: pip install 'headrace[series]'"
        in done.stderr
    )
