"""Processors: chained in any grouping, the same by value and by column, and clear about what they fail on."""

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import SettingsError, StreamError
from headrace.tabular.processors import (
    Chain,
    ColumnProcessor,
    FunctionProcessor,
    Processor,
    values_of,
)
from raised import raised


class Suffix(Processor):
    def __init__(self, suffix):
        self.suffix = suffix

    def process(self, value):
        return value + self.suffix


STEPS = st.sampled_from(
    [
        Suffix("x"),
        FunctionProcessor(str.upper),
        ColumnProcessor(pc.utf8_reverse),
        FunctionProcessor(str.strip),
    ]
)


@given(
    st.lists(STEPS, min_size=1, max_size=4),
    st.lists(st.text("ab x", max_size=5), min_size=1, max_size=5),
)
def test_a_chain_is_its_steps_in_order_by_value_and_by_column(steps, values):
    chain = steps[0]
    for step in steps[1:]:
        chain = chain >> step
    expected = values
    for step in steps:
        expected = [step(value) for value in expected]

    assert expected == [chain(value) for value in values]
    assert expected == values_of(chain.process_column(pa.array(values)))


def test_grouping_of_a_chain_does_not_matter_and_functions_may_stand_on_either_side():
    a, b, c = Suffix("a"), Suffix("b"), Suffix("c")

    assert [(a >> b) >> c, a >> (b >> c)][0].steps == (a, b, c)
    assert (a >> (b >> c)).steps == (a, b, c)
    assert (str.upper >> a)("x") == "Xa"
    assert (a >> str.upper)("x") == "XA"
    assert (a >> str.upper >> b).name == "Suffix >> upper >> Suffix"


def test_a_column_processor_sees_whole_columns():
    seen = []

    def lower(column):
        seen.append(len(column))
        return pc.utf8_lower(column)

    chain = FunctionProcessor(str.strip) >> ColumnProcessor(lower)

    assert ["a", "b"] == chain.process_column(pa.array([" A", "B "])).to_pylist()
    assert [2] == seen


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (pa.array([1, None]), [1, None]),
        (np.array([1.5, 2.0]), [1.5, 2.0]),
        (torch.tensor([3, 4]), [3, 4]),
        (["a", None], ["a", None]),
    ],
)
def test_values_of_any_column(column, values):
    assert values == values_of(column)


def test_missing_floats_are_nan_and_rows_of_matrices_are_rows():
    assert np.isnan(values_of(pa.array([None, 1.0]))[0])
    assert [[1, 2], [3, 4]] == [row.tolist() for row in values_of(np.array([[1, 2], [3, 4]]))]


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        (FunctionProcessor(len), r"len fails on None: TypeError: .*; fix the processor, or fill"),
        (ColumnProcessor(lambda _: 1), "gave a int for a column; give an array"),
        (ColumnProcessor(lambda column: column[1:]), "gave 1 values for 2; give one for each"),
        (ColumnProcessor(pc.sqrt), "sqrt fails on a column of 2 values that begins with"),
    ],
)
def test_a_failure_names_processor_and_value(processor, message):
    with pytest.raises(StreamError, match=message):
        processor.process_column(pa.array(["a", None]))


def test_what_is_no_processor_is_refused():
    with raised(SettingsError, setting="processor", remedy="give a Processor or function"):
        FunctionProcessor(len) >> 3


def test_processors_travel_to_workers():
    chain = Chain((Suffix("a"), FunctionProcessor(len), ColumnProcessor(pc.negate)))

    assert -2 == pickle.loads(pickle.dumps(chain))("x")
