"""Two sets of sequences have one fingerprint if they are the same, and another if anything is different."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.packing import sequences as prints_module
from headrace.packing.sequences import sequence_prints, set_print

SEQUENCES = st.lists(
    st.lists(st.integers(0, 150_000), min_size=1, max_size=9), min_size=1, max_size=8
)


def prints_of(sequences: list[list[int]], blank: int | None = None) -> np.ndarray:
    ids = np.array([token for each in sequences for token in each], np.int32)
    labels = np.array([place % 2 for each in sequences for place in range(len(each))], np.uint8)
    return sequence_prints(ids, labels, np.array([len(each) for each in sequences]), blank)


@given(sequences=SEQUENCES, seed=st.integers(0, 99))
def test_the_order_of_sequences_does_not_matter(sequences: list[list[int]], seed: int) -> None:
    turned = [sequences[place] for place in np.random.default_rng(seed).permutation(len(sequences))]

    assert set_print(prints_of(sequences)) == set_print(prints_of(turned))


@given(sequences=SEQUENCES, data=st.data())
def test_any_change_of_a_sequence_changes_the_print(
    sequences: list[list[int]], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(sequences) - 1))
    changed = [list(each) for each in sequences]
    how = data.draw(st.sampled_from(["token", "cut", "double", "join", "swap"]))
    if how == "token":
        changed[place][-1] += 1
    elif how == "cut":
        changed[place].append(5)
    elif how == "double":
        changed.append(changed[place])
    elif how == "join" and len(changed) > 1:
        changed = [changed[0] + changed[1], *changed[2:]]
    else:
        changed[place] = changed[place][::-1]
        if changed[place] == sequences[place]:
            return

    assert set_print(prints_of(sequences)) != set_print(prints_of(changed))


def test_a_label_that_moves_changes_the_print() -> None:
    ids, lengths = np.array([1, 2, 3], np.int32), np.array([3])
    one = sequence_prints(ids, np.array([1, 0, 0], np.uint8), lengths)
    other = sequence_prints(ids, np.array([0, 1, 0], np.uint8), lengths)

    assert one[0] != other[0]
    assert sequence_prints(ids, None, lengths)[0] not in (one[0], other[0])


def test_padding_leaves_no_trace_where_its_token_is_blank() -> None:
    assert prints_of([[1, 2, 3]], blank=9)[0] == prints_of([[1, 2, 3, 9, 9]], blank=9)[0]


def test_prints_do_not_depend_on_how_the_array_is_cut(monkeypatch) -> None:
    sequences = [[place, place + 1, place + 2] for place in range(50)]
    whole = prints_of(sequences)
    monkeypatch.setattr(prints_module, "_CHUNK", 7)

    np.testing.assert_array_equal(whole, prints_of(sequences))
