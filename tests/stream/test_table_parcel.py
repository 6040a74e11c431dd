"""A table sent from a worker is the same table, and costs its own rows, not those of the pool it is a slice of."""

import pickle
from multiprocessing.reduction import ForkingPickler

import pyarrow as pa
import pytest
from option_cases import KINDS, values_of

from headrace.stream.workers.parcel import TableParcel, whole_batch

POOL = pa.Table.from_pylist(
    [values_of(row) for row in range(4000)], schema=KINDS.with_metadata({"from": "here"})
)
SMALL = pa.table({"row": range(4)})


def sent(table):
    """What arrives of a table, by the way a DataLoader sends it."""
    return pickle.loads(ForkingPickler.dumps(TableParcel(table)))


@pytest.mark.parametrize(
    "table",
    [
        POOL,
        POOL.slice(17, 5),
        POOL.slice(0, 0),
        pa.concat_tables([POOL.slice(3, 2), POOL.slice(9, 4)]),
        SMALL.append_column("d", pa.array(["a", "b", None, "a"]).dictionary_encode()),
        pa.concat_tables([SMALL] * 20_000),  # more than fits a message: shared memory
    ],
    ids=["pool", "slice", "empty", "pieces", "dictionary", "large"],
)
def test_a_table_arrives_as_it_was_sent(table):
    arrived = sent(table)

    assert arrived.equals(table)
    assert arrived.schema.equals(table.schema, check_metadata=True)


def test_a_slice_travels_without_its_pool():
    one, ten = (len(ForkingPickler.dumps(TableParcel(POOL.slice(100, rows)))) for rows in (1, 10))

    assert ten < 2 * one
    assert 20 * ten < len(pickle.dumps(POOL))


def test_in_the_process_that_trains_a_batch_is_handed_on_as_it_is():
    for batch in (SMALL, {"row": 1}, [1]):
        assert whole_batch(batch) is batch
