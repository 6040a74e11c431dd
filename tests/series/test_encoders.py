"""Encoders do what scikit-learn's do, and a fit is its categories and nothing else."""

import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.series.arrays.encoders import Encoder, fit_encoder
from headrace.series.pipelines.settings import as_steps
from laws import examples
from raised import raised

TEXTS = st.text(st.characters(codec="utf-8", categories=("L", "N", "Zs")), min_size=1, max_size=4)


@st.composite
def tables(draw: st.DrawFn) -> dict[str, list[str]]:
    """Columns a and b of the same length, of few categories."""
    rows = draw(st.integers(1, 12))
    pools = [draw(st.lists(TEXTS, min_size=1, max_size=4, unique=True)) for _ in range(2)]
    return {
        name: draw(st.lists(st.sampled_from(pool), min_size=rows, max_size=rows))
        for name, pool in zip("ab", pools, strict=True)
    }


def one_hot(**params: object) -> dict:
    return as_steps({"step": "OneHotEncoder", **params})[0]


def ordinal(**params: object) -> dict:
    return as_steps({"step": "OrdinalEncoder", **params})[0]


STEPS = [
    one_hot(),
    one_hot(drop="first"),
    one_hot(drop="if_binary"),
    one_hot(handle_unknown="ignore"),
    ordinal(),
]


@given(tables(), st.sampled_from(STEPS))
@settings(max_examples=examples(60), deadline=None)
def test_numbers_and_names_are_those_of_scikit_learn(table: dict, step: dict) -> None:
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    rows = np.array(list(zip(table["a"], table["b"], strict=True)), object)
    theirs = getattr(preprocessing, step["step"])(
        **{name: each for name, each in step.items() if name != "step"}
    )
    made = theirs.fit_transform(rows)

    ours = fit_encoder(step, ("a", "b"), table)

    np.testing.assert_array_equal(
        made.toarray() if hasattr(made, "toarray") else made, ours.transform(table)
    )
    assert theirs.get_feature_names_out(["a", "b"]).tolist() == ours.names


@given(tables(), st.sampled_from(STEPS))
@settings(max_examples=examples(60), deadline=None)
def test_texts_come_back_and_a_fit_survives_being_written(table: dict, step: dict) -> None:
    fitted = fit_encoder(step, ("a", "b"), table)

    again = Encoder.from_json(json.loads(json.dumps(fitted.to_json())))

    assert fitted == again == pickle.loads(pickle.dumps(fitted))
    assert table == fitted.inverse_transform(again.transform(table))
    assert pickle.dumps(again) == pickle.dumps(fitted)


def test_what_was_not_fitted_is_an_error_or_what_the_encoder_says() -> None:
    table = {"a": ["clay", "sand", "clay"]}

    with raised(headrace.InputError, column="a", row=1, value="silt"):
        fit_encoder(one_hot(), ("a",), table).transform({"a": ["silt"]})
    ignoring = fit_encoder(one_hot(handle_unknown="ignore"), ("a",), table)
    assert [[0.0, 0.0]] == ignoring.transform({"a": ["silt"]}).tolist()
    assert {"a": [None]} == ignoring.inverse_transform(np.zeros((1, 2)))
    numbering = fit_encoder(
        ordinal(handle_unknown="use_encoded_value", unknown_value=-1), ("a",), table
    )
    assert [[-1.0], [1.0]] == numbering.transform({"a": ["silt", "sand"]}).tolist()


def test_categories_that_are_given_are_taken_in_their_order() -> None:
    fitted = fit_encoder(
        ordinal(categories=[["low", "high", "top"]]), ("a",), {"a": ["high", "low"]}
    )

    assert [[1.0], [0.0]] == fitted.transform({"a": ["high", "low"]}).tolist()
    with raised(headrace.InputError, column="a", row=1, value="deep"):
        fit_encoder(one_hot(categories=[["low"]]), ("a",), {"a": ["deep"]})
    with pytest.raises(
        headrace.SettingsError, match="categories of 1 columns, and there are 2: a, b"
    ):
        fit_encoder(one_hot(categories=[["low"]]), ("a", "b"), {"a": ["low"], "b": ["low"]})


@pytest.mark.parametrize(
    ("word", "params", "says"),
    [
        (
            "OneHotEncoder",
            {"handle": "ignore"},
            "handle: not a parameter of OneHotEncoder; did you mean 'handle_unknown'",
        ),
        (
            "OneHotEncoder",
            {"handle_unknown": "skip"},
            "handle_unknown is 'skip': .*; give one of error, ignore",
        ),
        ("OneHotEncoder", {"max_categories": 3}, "max_categories: not a parameter"),
        (
            "OneHotEncoder",
            {"categories": [["a", "a"]]},
            "give auto, or for each column a list of different texts",
        ),
        (
            "OrdinalEncoder",
            {"handle_unknown": "use_encoded_value"},
            "unknown_value is None: handle_unknown of",
        ),
        (
            "OrdinalEncoder",
            {"unknown_value": -1},
            "unknown_value is -1: handle_unknown of OrdinalEncoder is 'error'",
        ),
    ],
)
def test_parameters_are_checked(word: str, params: dict, says: str) -> None:
    with pytest.raises(headrace.SettingsError, match=says):
        as_steps({"step": word, **params})
