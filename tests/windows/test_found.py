"""Where a split has no window, opening it says why: a loop over none would train on nothing."""

import numpy as np
from series_cases import write_run

import headrace.windows
from headrace.errors import InputError
from headrace.lightning import SeriesDataModule
from raised import raised

RULE = {"input_length": 20, "output_length": 3}


def test_series_that_are_too_short_are_told(tmp_path):
    write_run(tmp_path, missing=0)
    for opened in (headrace.windows.open, headrace.windows.open_windows):
        with raised(InputError, setting="input_length", remedy="give input_length 13, the longest that gives a"):  # fmt: skip
            opened(tmp_path, "val", **RULE)

    assert len(headrace.windows.open(tmp_path, "val", **RULE, history="preceding"))


def test_values_that_are_missing_are_told(tmp_path):
    write_run(tmp_path, missing=0.4)
    every = {"incomplete": "keep", "targets": "none"}
    fit = len(headrace.windows.open(tmp_path, "train", **RULE, **every))
    remedy = "no input_length gives a window: give a shorter"
    with raised(InputError, setting="input_length", remedy=remedy) as caught:
        headrace.windows.open(tmp_path, "train", **RULE)

    assert f"{fit} would fit, and {fit} miss a value of the inputs" in str(caught.value)


def test_a_stream_of_no_chosen_entity_is_refused(tmp_path):
    write_run(tmp_path, missing=0)
    train = headrace.windows.open(tmp_path, "train", **RULE)
    none = headrace.windows.WindowDataset(train.windows.of_entities(np.zeros(7, bool)))

    assert len(list(train.stream(batch_size=8))) > 0
    with raised(InputError, setting="entities", remedy="choose others"):
        none.stream(batch_size=8)


def test_lightning_is_told_before_it_trains_on_nothing(tmp_path):
    write_run(tmp_path, missing=0)
    module = SeriesDataModule(tmp_path, input_length=300, output_length=3, batch_size=8)
    with raised(
        InputError, setting="input_length", remedy="give input_length 45, the longest that gives a"
    ):
        module.setup("fit")
