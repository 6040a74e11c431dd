"""Windows are counted by split and entity, and a part without any is an error that names what would work."""

import logging
import re

import numpy as np
import pytest
from series_cases import expected_windows, write_run

import headrace.windows
from headrace.errors import InputError, SettingsError
from headrace.windows import open_windows
from raised import raised

LENGTHS = (60, 45, 80, 30, 52, 70, 66)  # val has a fifth of each
RULE = {"input_length": 10, "output_length": 3}


def per_entity(values, split, **rule):
    found = expected_windows(values, split, **{**RULE, **rule})
    return np.bincount([entity for entity, _ in found], minlength=len(values))


@pytest.mark.parametrize("split", ["train", "val", "test", "all"])
def test_counts_are_those_of_every_start_looked_at(tmp_path, split):
    values = write_run(tmp_path, LENGTHS, missing=0.03)
    expected = per_entity(values, split)
    counts = open_windows(tmp_path, split, **RULE).counts

    assert (split, expected.sum(), (expected > 0).sum()) == (
        counts.split,
        counts.windows,
        counts.entities,
    )
    assert [f"basin_{number:03d}" for number in np.flatnonzero(expected == 0)] == list(
        counts.without
    )


def test_opening_tells_of_entities_without_windows(tmp_path, caplog):
    write_run(tmp_path, LENGTHS, missing=0)
    with caplog.at_level(logging.INFO, "headrace"):
        headrace.windows.open(tmp_path, "train", **RULE)
        headrace.windows.open(tmp_path, "val", **RULE)

    train, val = caplog.records
    assert (logging.INFO, logging.WARNING) == (train.levelno, val.levelno)
    assert re.search(r"train: \d+ windows of 7 entities$", train.message)
    assert (
        "val: 7 windows of 3 entities; 4 of 7 have none, e.g. basin_000, basin_001, basin_003, basin_004"
        in val.message
    )
    assert "at most 12 rows there, a window takes 13" in val.message


def test_the_input_length_that_an_error_names_works_and_one_more_does_not(tmp_path):
    write_run(tmp_path, LENGTHS, missing=0.05)
    for split in ("train", "val", "test"):
        for rule in (
            {},
            {"targets": "any"},
            {"is_autoregressive": True},
            {"stride": 4},
            {"horizons": (1, 3)},
        ):
            with pytest.raises(InputError, match=f"'{split}' has no window") as error:
                open_windows(tmp_path, split, input_length=60, output_length=3, **rule)
            named = int(
                re.search(
                    r"give input_length (\d+), the longest that gives a window", str(error.value)
                )[1]
            )

            assert len(open_windows(tmp_path, split, input_length=named, output_length=3, **rule))
            with raised(InputError, setting="input_length"):
                open_windows(tmp_path, split, input_length=named + 1, output_length=3, **rule)


def test_a_history_that_would_do_is_named_with_its_windows(tmp_path):
    write_run(tmp_path, LENGTHS, missing=0)
    rule = {"input_length": 20, "output_length": 3}
    with pytest.raises(InputError) as error:
        open_windows(tmp_path, "val", **rule)

    (count,) = re.findall(r'history="preceding" \(([\d,]+) windows\)', str(error.value))
    assert len(open_windows(tmp_path, "val", **rule, history="preceding")) == int(
        count.replace(",", "")
    )
    assert "val_ratio of about 0.29 or more" in str(error.value)  # 23 of 80 rows


def test_where_no_length_would_do_none_is_named(tmp_path):
    write_run(tmp_path, LENGTHS, missing=1.0)
    with raised(
        InputError, setting="input_length", remedy="no input_length gives a window: give a shorter"
    ) as error:
        open_windows(tmp_path, "train", **RULE)
    assert "the longest that gives a window" not in str(error.value)


def test_drop_that_leaves_no_step_is_an_error(tmp_path):
    write_run(tmp_path, LENGTHS, missing=0)
    train = headrace.windows.open(tmp_path, "train", **RULE)

    with raised(SettingsError, setting="remainder", value="drop"):
        train.stream(batch_size=len(train) + 1, remainder="drop")
    assert 1 == len(train.stream(batch_size=len(train), remainder="drop"))


@pytest.mark.parametrize("remainder", ["pad", "drop", "exact", None])
def test_every_batch_says_which_windows_are_valid(tmp_path, remainder):
    write_run(tmp_path, LENGTHS, missing=0)
    train = headrace.windows.open(tmp_path, "train", **RULE)
    size = len(train) - 1  # a remainder of one window
    batches = list(train.stream(batch_size=size, remainder=remainder))

    assert all(len(batch["X"]) == len(batch["valid"]) for batch in batches)
    assert len(train) - (remainder == "drop") == sum(int(batch["valid"].sum()) for batch in batches)
