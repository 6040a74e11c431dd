"""A state survives JSON, and a state of something else is refused with words."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_cases import index_of

from headrace.errors import StreamError
from headrace.stream.state import StreamState

INDEX = index_of([60, 40])


def state(**changes):
    values = {"split": "train", "index": INDEX.identity, "rows": 100, "seed": 7, "epoch": 3}
    return StreamState(**{**values, "lanes": 16, "window_rows": 4, "groups": 8, "shuffle": True, **changes})


@given(st.lists(st.integers(0, 80), max_size=8, unique=True), st.integers(81, 100))
def test_a_state_survives_json(cuts, position):
    cuts = sorted(cuts[: len(cuts) // 2 * 2])
    saved = state(position=position, holes=tuple(zip(cuts[::2], cuts[1::2], strict=True)))

    assert StreamState.from_dict(json.loads(json.dumps(saved.to_dict()))) == saved


def test_fresh_keeps_the_lanes_of_the_saved_order():
    saved = state(position=50, holes=((1, 2),))

    assert saved.fresh(4) == state(epoch=4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 2}, "format_version is 2, this headrace reads 1"),
        ({"position": 101}, "position is 101"),
        ({"position": "5"}, "position is '5'; expected int"),
        ({"position": True}, "position is True"),
        ({"lanes": 0}, "lanes is 0"),
        ({"holes": [[3]]}, "holes is .3."),
        ({"holes": [[3, 3]]}, "holes is .3, 3."),
        ({"holes": [[3, 60]]}, "below position 50"),
        ({"holes": [[5, 7], [6, 8]]}, "sorted, disjoint"),
        ({"extra": 1}, "keys unknown .'extra'."),
    ],
)
def test_a_damaged_state_is_refused(change, message):
    with pytest.raises(StreamError, match=message):
        StreamState.from_dict({**state(position=50).to_dict(), **change})


def test_an_incomplete_state_is_refused():
    values = state().to_dict()
    del values["seed"]

    with pytest.raises(StreamError, match=r"keys missing \['seed'\]"):
        StreamState.from_dict(values)
    with pytest.raises(StreamError, match="expected a mapping, got list"):
        StreamState.from_dict([])  # type: ignore[arg-type]


def test_a_state_of_another_split_dataset_or_order_is_refused():
    state().check_index(INDEX)
    state().check_order(seed=7, shuffle=True)

    with pytest.raises(StreamError, match='of split "val"'):
        state(split="val").check_index(INDEX)
    with pytest.raises(StreamError, match="shards were added"):
        state().check_index(index_of([60, 41]))
    with pytest.raises(StreamError, match="seed=7"):
        state().check_order(seed=8, shuffle=True)
