"""Pipelines as settings: scikit-learn's objects and YAML say the same, and every rule has an answer (T4)."""

import pickle

import numpy as np
import polars as pl
import pytest
import yaml
from series_sources import run_of, series, write_source
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    PolynomialFeatures,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
)

from headrace import load_pipelines
from headrace.errors import SettingsError
from headrace.run.identity import run_id
from headrace.series.pipelines.frames import GroupedPipeline, UnifiedPipeline
from headrace.series.pipelines.settings import Preprocessing, as_steps, chosen_entities
from raised import raised

SAME = [
    (StandardScaler(), "StandardScaler"),
    (StandardScaler(with_mean=False), {"step": "StandardScaler", "with_mean": False}),
    (StandardScaler(copy=False), ["StandardScaler"]),
    (MinMaxScaler(feature_range=(-1, 1)), [{"MinMaxScaler": {"feature_range": [-1, 1]}}]),
    (
        Pipeline(
            [
                ("log", FunctionTransformer(np.log1p, np.expm1)),
                ("scale", RobustScaler(quantile_range=(5.0, 95.0))),
            ]
        ),
        [
            {"step": "FunctionTransformer", "func": "log1p"},
            {"step": "RobustScaler", "quantile_range": [5, 95]},
        ],
    ),
    ([("one", StandardScaler()), ("none", "passthrough")], ["StandardScaler"]),
    (
        make_pipeline(make_pipeline(RobustScaler()), StandardScaler()),
        ["RobustScaler", "StandardScaler"],
    ),
    (QuantileTransformer(n_quantiles=50), {"step": "QuantileTransformer", "n_quantiles": 50}),
]


@pytest.mark.parametrize(("given", "data"), SAME)
def test_objects_and_data_are_the_same_steps(given, data) -> None:
    assert as_steps(given) == as_steps(data)
    assert as_steps(as_steps(given)) == as_steps(given)  # what a manifest holds is read back
    assert as_steps(yaml.safe_load(yaml.safe_dump(as_steps(given)))) == as_steps(given)


def test_t4_every_parameter_of_a_pipeline_is_in_the_run_id(tmp_path) -> None:
    source = write_source(tmp_path / "raw", ["a"], days=30)
    pipelines = [
        StandardScaler(),
        StandardScaler(with_mean=False),
        StandardScaler(with_std=False),
        RobustScaler(),
        RobustScaler(unit_variance=True),
        QuantileTransformer(n_quantiles=10),
        QuantileTransformer(n_quantiles=11),
        QuantileTransformer(n_quantiles=10, random_state=1),
        make_pipeline(FunctionTransformer(np.log1p, np.expm1), StandardScaler()),
        make_pipeline(FunctionTransformer(np.sqrt, np.square), StandardScaler()),
    ]
    settings = [
        series(
            source, preprocessing_configs={"features": {"strategy": "per_group", "pipeline": each}}
        )
        for each in pipelines
    ]
    settings.append(
        series(
            source,
            preprocessing_configs={
                "features": {
                    "strategy": "unified",
                    "pipeline": StandardScaler(),
                    "fit_on_n_entities": 1,
                }
            },
        )
    )
    ids = {run_id("series", each.identity_settings(), "x") for each in settings}
    again = series(
        source,
        preprocessing_configs={"features": {"strategy": "per_group", "pipeline": StandardScaler()}},
    )

    assert len(settings) == len(ids)
    assert run_id("series", again.identity_settings(), "x") in ids


@pytest.mark.parametrize(
    ("pipeline", "says"),
    [
        (
            FunctionTransformer(lambda x: x),
            "func is '<lambda>': this function .* cannot be written as data; give one of numpy's",
        ),
        (FunctionTransformer(np.log1p, kw_args={"where": True}), "kw_args"),
        (StandardScaler, "StandardScaler is a class; give an object"),
        (object(), "builtins.object cannot be written as data.*make the column beforehand"),
        (
            ColumnTransformer([("a", StandardScaler(), [0])]),
            "step is 'ColumnTransformer': not a step here; give a list of pipelines",
        ),
        ("StandardScalr", "step is 'StandardScalr': not a known step; give one of StandardScaler"),
        (
            {"step": "StandardScaler", "with_meen": True},
            "with_meen: not a parameter of StandardScaler; did you mean 'with_mean'",
        ),
        (
            {"step": "StandardScaler", "with_mean": "yes"},
            "with_mean is 'yes': .*give true or false",
        ),
        (
            {"step": "MinMaxScaler", "feature_range": [1, 0]},
            "feature_range is .*; give two ascending numbers",
        ),
        ({"step": "FunctionTransformer", "func": "eval"}, "func is 'eval': .*; give one of"),
        ({"step": "QuantileTransformer", "quantiles": 3}, "quantiles"),
        ({"step": "Log"}, "zeros have no logarithm; give Log an offset"),
        ({"a": 1, "b": 2}, "write it as"),
    ],
)
def test_what_cannot_be_a_pipeline_is_refused(pipeline, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        Preprocessing(features={"strategy": "per_group", "pipeline": pipeline})


def grouped(steps="StandardScaler", **more):
    return {"strategy": "per_group", "pipeline": steps} | more


def unified(steps="StandardScaler", **more):
    return {"strategy": "unified", "pipeline": steps, "fit_on_n_entities": 5} | more


@pytest.mark.parametrize(
    ("configs", "says"),
    [
        ({"features": {"strategy": "per_group"}}, "pipeline is required"),
        ({"features": {"pipeline": "StandardScaler"}}, "strategy is required"),
        ({"features": grouped(strategy="grouped")}, "strategy is 'grouped'"),
        ({"features": grouped(fit_on_n_entities=3)}, "fit_on_n_entities is 3 and strategy is per_group"),
        ({"features": unified(fit_on_n_entities=0)}, "fit_on_n_entities is 0"),
        ({"features": unified(columns=[])}, "columns is empty"),
        ({"features": unified(columns=["p"])}, "columns t are in no pipeline; add them"),
        ({"features": unified(columns=["p", "t", "x"])}, "columns x are not among the features: p, t"),
        ({"features": unified(columns=["p", "t", "q"])}, "target 'q' is among the columns"),
        ({"features": [unified(columns=["p", "t"]), grouped(columns=["t"])]}, "columns t are in two pipelines"),
        ({"features": [unified(), grouped(columns=["t"])]}, "one does not name its columns"),
        ({"target": grouped(columns=["p"])}, "the target is q"),
        ({"target": grouped({"step": "FunctionTransformer", "func": "log1p", "inverse_func": None})}, "no inverse"),
        ({"target": grouped({"step": "MinMaxScaler", "clip": True})}, "clips"),
        ({"target": grouped(KBinsDiscretizer(encode="ordinal")), "features": grouped()}, None),
        ({"target": grouped("Normalizer")}, "Normalizer has no inverse_transform"),
        ({"static_features": grouped()}, "an entity has one row of static features"),
        ({"features": {"strategy": "unified", "pipeline": GroupedPipeline(StandardScaler(), ["p", "t"])}}, "is a GroupedPipeline; give strategy 'per_group'"),
        ({"features": {"strategy": "per_group", "pipeline": UnifiedPipeline(StandardScaler(), ["p", "t"])}}, "is a UnifiedPipeline; give strategy 'unified'"),
        ({"feature": grouped()}, "did you mean 'features'"),
        ({"features": 3}, "give strategy and pipeline"),
    ],
)  # fmt: skip
def test_every_rule_has_an_answer(configs, says) -> None:
    def check():
        return Preprocessing(**configs).resolved(
            targets=["q"], features=["p", "t"], static_features=["area"]
        )

    if says is None:
        check()
        return
    with pytest.raises(SettingsError, match=says):
        check()


def test_the_target_is_no_feature() -> None:
    with raised(SettingsError, setting="target", value="q"):
        Preprocessing().resolved(targets=["q"], features=["p", "q"])


def test_objects_of_the_specification_are_taken_with_their_columns() -> None:
    configs = Preprocessing(
        features={"strategy": "per_group", "pipeline": GroupedPipeline(RobustScaler(), ["t", "p"])},
        target={
            "strategy": "unified",
            "pipeline": UnifiedPipeline(StandardScaler(), ["q"]),
            "fit_on_n_entities": 2,
        },
    )

    resolved = configs.resolved(targets=["q"], features=["p", "t"])

    assert resolved.features[0].columns == ("t", "p")
    assert resolved.target[0].strategy == "unified"
    assert Preprocessing(**configs.model_dump(mode="json")) == configs


def test_steps_that_change_columns_are_refused_when_fitted() -> None:
    from headrace.series.pipelines.fitted import fit

    resolved = Preprocessing(features=grouped(PolynomialFeatures(degree=2))).resolved(
        targets=["q"], features=["p"]
    )

    with raised(SettingsError, remedy="choose steps that keep the columns"):
        fit(
            resolved.features,
            ["p"],
            np.array([[1.0], [2.0], [3.0]]),
            np.array([0, 3]),
            ["a"],
            strategy="per_group",
        )


def test_chosen_entities_are_seeded_nested_and_independent_of_their_order() -> None:
    names = [f"basin {number}" for number in range(50)]
    chosen = chosen_entities(names, 10, 42)

    assert len(set(chosen)) == 10
    assert chosen == chosen_entities(names[::-1], 10, 42)
    assert chosen[:4] == chosen_entities(names, 4, 42)
    assert chosen != chosen_entities(names, 10, 43)
    assert sorted(names) == sorted(chosen_entities(names, 99, 42))


ROWS = np.arange(12.0).reshape(6, 2)
FITTED = [
    StandardScaler().fit(ROWS),
    RobustScaler().fit(ROWS),
    QuantileTransformer(n_quantiles=3).fit(ROWS),
    SimpleImputer().fit(ROWS),
    KNNImputer().fit(ROWS),
    OneHotEncoder().fit([["clay"], ["sand"]]),
    make_pipeline(FunctionTransformer(np.log1p), StandardScaler()).fit(ROWS),
    make_pipeline(make_pipeline(MinMaxScaler()), StandardScaler()).fit(ROWS),
    make_pipeline(make_pipeline(MinMaxScaler().fit(ROWS)), StandardScaler()),
    [("a", StandardScaler()), ("b", RobustScaler().fit(ROWS))],
    ColumnTransformer([("a", StandardScaler(), [0])]).fit(ROWS),
    ColumnTransformer([("a", StandardScaler().fit(ROWS), [0])]),
]


@pytest.mark.parametrize("given", FITTED, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("role", ["features", "target", "static_features"])
def test_a_fitted_pipeline_of_scikit_learn_is_refused(given, role: str) -> None:
    config = {
        "strategy": "unified",
        "pipeline": given,
        **({} if role == "static_features" else {"fit_on_n_entities": 2}),
    }
    with pytest.raises(
        SettingsError, match=r"is fitted already.*would be fitted again.*sklearn\.base\.clone"
    ):
        Preprocessing(**{role: config})


@pytest.mark.parametrize("given", [FunctionTransformer(np.log1p).fit(ROWS), Normalizer().fit(ROWS)])
def test_a_transformer_that_learns_nothing_is_no_fit(given) -> None:
    assert type(given).__name__ == as_steps(given)[0]["step"]


def earlier_fits(directory) -> dict[str, object]:
    """Everything that an earlier run hands out as fitted, and where it lies."""
    pl.DataFrame({"id": ["a", "b"], "area": [1.0, 2.0], "rock": ["clay", "sand"]}).write_csv(
        directory / "areas.csv"
    )
    static = [
        {"strategy": "unified", "columns": ["area"], "pipeline": ["StandardScaler"]},
        {"strategy": "unified", "columns": ["rock"], "pipeline": ["OneHotEncoder"]},
    ]
    out = directory / "out"
    run = run_of(
        write_source(directory / "raw", ["a", "b"]), out, static=directory / "areas.csv", static_entity="id",
        static_features=["area", "rock"], preprocessing_configs={"static_features": static},
    ).run  # fmt: skip
    safe, trusted = load_pipelines(out), load_pipelines(out, trust="joblib")
    joblib = pickle.loads((run / "fitted_time_series_pipelines.joblib").read_bytes())
    return {
        "grouped": safe.target_pipeline,
        "trusted": trusted.target_pipeline,
        "joblib": joblib["target"],
        "feature": joblib["features"],
        "scikit-learn's": safe.target_pipeline.sklearn("a"),
        "part": safe.time_series.parts[0],
        "all parts": safe.time_series,
        "run": safe,
        "encoder": safe.static_encoders[0],
        "unified": UnifiedPipeline(StandardScaler(), ["q"]).fit(pl.DataFrame({"q": [1.0, 2.0]})),
        "path": run / "fitted_time_series_pipelines.joblib",
        "path as text": str(run / "fitted_pipelines.json"),
        "skops": "kept/fitted_static_pipeline.skops",
    }


FITTED = "is fitted already|a file with fitted steps"  # objects, files


def test_what_an_earlier_run_fitted_is_refused_in_every_form(tmp_path) -> None:
    """Fitted anew without a word, a new run would not be scaled as the old one."""
    for name, given in earlier_fits(tmp_path).items():
        for config in (
            {"strategy": getattr(given, "headrace_strategy", "per_group"), "pipeline": given},
            given,
        ):
            with pytest.raises(SettingsError, match=FITTED):
                series(tmp_path / "raw", preprocessing_configs={"features": config})
                pytest.fail(name)
        for of in (GroupedPipeline, UnifiedPipeline):
            with pytest.raises(SettingsError, match=FITTED):
                of(given, ["q"])
                pytest.fail(name)
    whole = pickle.loads(earlier_bundle(tmp_path).read_bytes())
    with pytest.raises(SettingsError, match=FITTED):
        series(tmp_path / "raw", preprocessing_configs=whole)


def earlier_bundle(directory):
    return next((directory / "out/runs").glob("*/fitted_time_series_pipelines.joblib"))


def test_the_steps_of_a_fitted_pipeline_are_a_new_pipeline() -> None:
    fitted = UnifiedPipeline(RobustScaler(), ["q"]).fit(pl.DataFrame({"q": [1.0, 2.0]}))

    assert fitted.steps == UnifiedPipeline(fitted.steps, fitted.columns).steps
    assert fitted.steps == UnifiedPipeline(clone(fitted.sklearn()), ["q"]).steps
