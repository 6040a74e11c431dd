"""A damaged state of any kind is refused, or loads as what was saved: never as another place. `make faults` tries all."""

import json
import random

import pytest
from damaged_states import flips, mutations, verdicts
from kinds_of_states import of_claims, of_others, of_streams, of_workers

FLIPS = 300
NAMES = (
    "stream",
    "stream in the rest of a round",
    "stream cut again",
    "stream of whole shards",
    "stream of a part of the rows",
    "dynamic stream",
    "worker",
    "StatefulDataLoader",
    "blend",
    "packing",
    "window",
)


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    return {
        **of_streams(),
        **of_claims(),
        **of_workers(),
        **of_others(tmp_path_factory.mktemp("kinds")),
    }


def test_every_kind_is_tried(kinds):
    assert set(NAMES) == set(kinds)


@pytest.mark.smoke(every=3)
@pytest.mark.parametrize("name", NAMES)
def test_damage_to_a_state_is_refused_or_changes_nothing(name, kinds):
    state, load = kinds[name]
    expected = load(state)
    bits = random.Random(name).sample(range(8 * len(json.dumps(state))), FLIPS)

    for found in (
        verdicts(flips(json.dumps(state), bits), load, expected),
        verdicts(mutations(state), load, expected),
    ):
        assert found["tried"] > 100
        assert found["longest message"] < 1000
