"""The arithmetic of rows one by one agrees with the shares of the stream's own plan."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.stream.order.share import share_of
from headrace.tabular.evenly import rows_of_rank, rows_of_worker


@given(
    st.integers(0, 60),
    st.integers(1, 5),
    st.integers(0, 4),
    st.sampled_from([None, "pad", "drop"]),
)
def test_cut_shares_are_equal_on_ranks_and_hold_every_place_once(rows, ranks, workers, remainder):
    consumers = ranks * max(1, workers)
    given_, of_rank = [], rows_of_rank(rows, ranks=ranks, remainder=remainder)
    for rank in range(ranks):
        counts = []
        for worker in range(max(1, workers)):
            share = share_of(
                rows, consumer=worker * ranks + rank, consumers=consumers, batch_size=1024, remainder="pad"
            )
            count = rows_of_worker(of_rank, worker=worker, workers=workers)
            places = [share.place_of(item) for item in range(count)] if rows else []
            real = places[: share.rows]
            counts.append(count)
            given_ += real

            assert count - len(real) <= (remainder != "drop")
        assert of_rank == sum(counts)
    left = rows % ranks if remainder == "drop" else 0

    assert list(range(rows - left)) == sorted(given_)
