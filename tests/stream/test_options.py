"""Settings are checked when built, and say what to do."""

import dataclasses

import pyarrow as pa
import pytest

import headrace
from headrace.errors import SettingsError
from headrace.stream.loader.options import StreamArguments, StreamOptions, stream_options
from raised import raised


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0; expected an integer of 1 or more"),
        ({"batch_size": 2.5}, "batch_size is 2.5"),
        ({"batch_size": True}, "batch_size is True"),
        ({"batch_size": 1, "lanes": 0}, "lanes is 0"),
        ({"batch_size": 1, "shuffle_rows": -1}, "shuffle_rows is -1"),
        ({"batch_size": 1, "prefetch_bytes": -1}, "prefetch_bytes is -1"),
        ({"batch_size": 1, "seed": "a"}, "seed is 'a'"),
        ({"batch_size": 1, "shuffle": "yes"}, "shuffle is 'yes'"),
        (
            {"batch_size": 1, "remainder": "repeat"},
            "remainder is 'repeat'; expected one of pad, drop, exact",
        ),
        ({"batch_size": 1, "batch_format": "jax"}, "batch_format is 'jax'"),
        ({"batch_size": 1, "columns": "row"}, "pass a list of names"),
        ({"batch_size": 1, "columns": ()}, "at least one column"),
        ({"batch_size": 1, "columns": ("a", "a")}, "a column is named twice"),
        ({"batch_size": 1, "columns": ["a"], "drop_columns": ["b"]}, "give one of them"),
    ],
)
def test_a_wrong_setting_is_refused(settings, message):
    with pytest.raises(SettingsError, match=message):
        StreamOptions(**settings)


def test_columns_may_be_any_sequence():
    assert StreamOptions(batch_size=1, columns=["b", "a"]).columns == ("b", "a")  # type: ignore[arg-type]


def test_unknown_columns_and_a_column_named_valid_are_refused():
    clashing = pa.schema({"a": pa.int64(), "valid": pa.bool_()})
    with raised(SettingsError, setting="columns", value=["c"]):
        StreamOptions(batch_size=1, columns=("c",)).check_columns(pa.schema({"a": pa.int64()}))
    with raised(SettingsError, column="valid", remedy="leave it out with columns="):
        StreamOptions(batch_size=1).check_columns(clashing)
    assert StreamOptions(batch_size=1, columns=["a"]).check_columns(clashing) == ("a",)


@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        ("drop_last", 'remainder="drop"'),
        ("num_workers", "a stream takes workers="),
        ("collate_fn", "transform="),
        ("shufle", "did you mean 'shuffle'"),
        ("nonsense", "options are shuffle, seed"),
    ],
)
def test_an_option_of_another_loader_is_answered_with_ours(option, remedy):
    with raised(SettingsError, setting=option, remedy=remedy):
        stream_options(8, {option: 1})


@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        ("tipes", "did you mean 'types'"),
        ("revision", "load_dataset"),
        ("split", "stream"),
        ("batch_size", "stream"),
    ],
)
def test_an_option_that_opening_does_not_have_is_answered(option, remedy):
    with raised(SettingsError, setting=option, remedy=remedy):
        headrace.open("anything", **{option: 1})


def test_every_setting_of_a_stream_is_an_option():
    names = {field.name for field in dataclasses.fields(StreamOptions)}
    assert names == {"batch_size", *StreamArguments.__annotations__}


def test_a_seed_that_orders_nothing_is_refused_unless_the_order_is_said():
    with raised(SettingsError, setting="seed", value=3, remedy="shuffle=True"):
        stream_options(4, {"seed": 3})
    for options in ({"shuffle": False}, {"shuffle": True}, {"transform": len}):
        assert stream_options(4, {"seed": 3, **options}).seed == 3
