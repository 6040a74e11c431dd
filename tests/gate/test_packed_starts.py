"""Sequences of packed rows that lie outside their tokens are refused before they are hashed."""

import pyarrow as pa
import pytest

from headrace.errors import CorruptShard
from headrace.stream.audit.near import sequence_digests
from raised import raised


@pytest.mark.parametrize("starts", [[0, 1 << 30], [-1, 2], [0, 3, 1], [0, None]])
def test_starts_outside_a_row_are_refused(starts: list[int | None]) -> None:
    table = pa.table(
        {
            "input_ids": pa.array([[1, 2, 3]], pa.list_(pa.int32())),
            "seq_start_id": pa.array([starts], pa.list_(pa.int32())),
        }
    )

    with raised(CorruptShard, column="seq_start_id"):
        sequence_digests(table)


def test_sequences_of_rows_are_hashed_by_their_tokens() -> None:
    table = pa.table(
        {
            "input_ids": pa.array([[1, 2, 1, 2], [1, 2]], pa.list_(pa.int32())),
            "seq_start_id": pa.array([[0, 2], [0]], pa.list_(pa.int32())),
        }
    )

    assert 1 == len(set(sequence_digests(table).tolist()))
