"""A state survives JSON, and a state of something else is refused with words."""

import json

import pytest
from damaged_states import resealed
from hypothesis import given
from hypothesis import strategies as st
from stream_cases import index_of

from headrace.errors import StreamError
from headrace.stream.order.state import MOST_CHANGES, Change, StreamState
from raised import raised

INDEX = index_of([60, 40])


def state(**changes):
    values = {"split": "train", "index": INDEX.identity, "rows": 100, "seed": 7, "epoch": 3}
    return StreamState(
        **{**values, "lanes": 16, "window_rows": 4, "groups": 8, "shuffle": True, **changes}
    )


CHANGES = (Change(position=20, ranks=3), Change(position=64, lanes=6, window_rows=5, groups=3))


@given(
    st.lists(st.integers(0, 80), max_size=8, unique=True),
    st.integers(81, 100),
    st.sampled_from([(), CHANGES, CHANGES[1:]]),
)
def test_a_state_survives_json(cuts, position, changes):
    cuts = sorted(cuts[: len(cuts) // 2 * 2])
    holes = tuple(zip(cuts[::2], cuts[1::2], strict=True))
    saved = state(position=position, holes=holes, changes=changes)

    assert StreamState.from_dict(json.loads(json.dumps(saved.to_dict()))) == saved


def test_another_epoch_has_the_lanes_that_this_one_began_with():
    saved = state(position=50, holes=((1, 2),), changes=CHANGES)

    assert saved.fresh(4) == state(epoch=4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"position": 101}, "position is 101"),
        ({"position": "5"}, "position is '5': expected an integer"),
        ({"position": True}, "position is True"),
        ({"lanes": 0}, "lanes is 0"),
        ({"lanes": 10**12}, "lanes is 1000000000000: expected 1 to"),
        ({"epoch": 10**30}, "epoch is 10+: expected 0 to"),
        ({"rows": 10**30}, "rows is 10+: expected 0 to"),
        ({"holes": [[3]]}, "holes is .3."),
        ({"holes": [[3, 3]]}, "holes is .3, 3."),
        ({"holes": [[3, 60]]}, "below position 50"),
        ({"holes": [[5, 7], [6, 8]]}, "sorted, disjoint"),
        ({"extra": 1}, "keys unknown .'extra'."),
        ({"groups": 5}, "groups is 5: expected a divisor of 16 lanes"),
        ({"changes": {}}, "changes is {}: expected a list"),
        ({"changes": [3]}, "changes is 3: expected a position, and ranks or lanes"),
        ({"changes": [{"position": 4}]}, "expected a position, and ranks or lanes"),
        (
            {"changes": [{"position": 4, "ranks": 2, "lanes": 2}]},
            "expected a position, and ranks or lanes",
        ),
        ({"changes": [{"position": 4, "ranks": True}]}, "expected a position, and ranks or lanes"),
        ({"changes": [{"position": 4, "ranks": 0}]}, "ranks is 0: expected 1 to"),
        ({"changes": [{"position": 4, "ranks": 1 << 25}]}, "ranks is 33554432: expected 1 to"),
        (
            {"changes": [{"position": 4, "lanes": 6, "window_rows": 1, "groups": 4}]},
            "a divisor of 6 lanes",
        ),
        (
            {"changes": [{"position": 4, "lanes": 6, "window_rows": 0, "groups": 3}]},
            "window_rows is 0",
        ),
        ({"changes": [{"position": -4, "ranks": 2}]}, "ascending positions"),
        ({"changes": [{"position": 4, "ranks": 2}] * 2}, "ascending positions"),
        (
            {"changes": [{"position": 9, "ranks": 2}, {"position": 4, "ranks": 2}]},
            "ascending positions",
        ),
        ({"changes": [{"position": 100, "ranks": 2}]}, "positions below 100"),
        (
            {"changes": [{"position": each, "ranks": 2} for each in range(MOST_CHANGES + 1)]},
            "at most 64 ascending",
        ),
        (
            {"changes": [{"position": each, "ranks": 1 << 23} for each in range(3)]},
            "together at most 16777216",
        ),
        ({"window_rows": 1 << 61}, "rows in a round"),
        (
            {"changes": [{"position": 64, "lanes": 6, "window_rows": 1 << 61, "groups": 3}]},
            "rows in a round",
        ),
        (
            {"changes": [{"position": 63, "lanes": 6, "window_rows": 1, "groups": 3}]},
            "borders of rounds, not at 63",
        ),
        (
            {
                "changes": [{"position": 4, "ranks": 2}],
                "shard_partition": {"distribution": "by_size", "rows": [100]},
            },
            "shard_partition",
        ),
    ],
)
def test_a_state_whose_numbers_cannot_be_is_refused_whatever_its_digest(change, message):
    with pytest.raises(StreamError, match=message):
        StreamState.from_dict(resealed(state(position=50).to_dict(), **change))


def test_a_changed_state_is_refused():
    with pytest.raises(
        StreamError,
        match=r"its digest is '.*', its contents have .*…; it was damaged or changed after",
    ):
        StreamState.from_dict({**state().to_dict(), "lanes": 36})


def test_states_of_other_versions_and_kinds_are_refused_with_advice():
    saved = state().to_dict()
    first = {name: value for name, value in saved.items() if name not in ("kind", "digest")}

    with pytest.raises(
        StreamError,
        match="format_version is 1, this headrace reads 7; resume with the version that",
    ):
        StreamState.from_dict({**first, "format_version": 1})
    with pytest.raises(
        StreamError, match="it is a state of kind 'window'; load each state into the kind of loader"
    ):
        StreamState.from_dict(resealed(saved, kind="window"))
    with pytest.raises(StreamError, match="its digest is None"):
        StreamState.from_dict({name: value for name, value in saved.items() if name != "digest"})


def test_thousands_of_nested_states_are_an_error_and_no_crash():
    deep = saved = state().to_dict()
    for _ in range(3000):
        deep = {**saved, "base": deep}

    with pytest.raises(StreamError, match="more than 96 levels"):
        StreamState.from_dict(deep)


def test_an_incomplete_state_is_refused():
    values = state().to_dict()
    del values["seed"]
    values = resealed(values)

    with raised(StreamError, remedy="pass what state_dict() gave"):
        StreamState.from_dict(values)
    with pytest.raises(StreamError, match="expected a mapping, got list"):
        StreamState.from_dict([])  # type: ignore[arg-type]


def test_a_state_of_another_split_dataset_or_order_is_refused():
    state().check_index(INDEX)
    state().check_order(seed=7, shuffle=True)

    with raised(StreamError, setting="split", remedy="the stream of its own split"):
        state(split="val").check_index(INDEX)
    with raised(StreamError, remedy="shards were added"):
        state().check_index(index_of([60, 41]))
    with raised(StreamError, setting="seed", remedy="pass the saved setting"):
        state().check_order(seed=8, shuffle=True)
