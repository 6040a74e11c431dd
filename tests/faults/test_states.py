"""Every single-bit flip of the JSON of every kind of saved state, and changes of its structure: never another place."""

import json

import pytest
from damaged_states import flips, mutations, verdicts
from fault_table import note
from kinds_of_states import of_claims, of_lightning, of_others, of_streams, of_workers

GROUPS = {
    "streams": of_streams,
    "claims": of_claims,
    "workers": of_workers,
    "others": of_others,
    "lightning": of_lightning,
}


@pytest.mark.faults
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("group", GROUPS)
def test_every_flip_and_change_of_a_state_is_refused_or_changes_nothing(group, tmp_path):
    make = GROUPS[group]
    for name, (state, load) in (make(tmp_path) if make is of_others else make()).items():
        expected = load(state)
        for fault, states in (
            ("bit of a state", flips(json.dumps(state))),
            ("structure of a state", mutations(state)),
        ):
            found = verdicts(states, load, expected)

            assert found["refused"] + found["the same"] == found["tried"]
            assert found["longest message"] < 1000
            note(fault, name, **found)
