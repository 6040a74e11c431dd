"""One count of the batches a loader has handed out."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from headrace.errors import StreamError
from headrace.stream.loader.stream_loader import DeliveredCount
from raised import raised


def passing(
    received: DeliveredCount, count: int, steps: int | None = None
) -> Generator[int, None, None]:
    received.begin()
    return received.counted((each for each in range(count)), epoch=3, steps=steps)


def test_batches_are_counted_when_they_are_received_and_anew_in_each_pass():
    received = DeliveredCount()
    for count in (4, 2):
        assert list(range(1, count + 1)) == [received.batches for _ in passing(received, count)]


@pytest.mark.parametrize(("steps", "known"), [(3, True), (None, False)])
def test_a_pass_ends_with_its_last_batch_where_its_number_is_known_else_when_more_is_asked_for(
    steps, known
):
    received = DeliveredCount()
    batches = passing(received, 3, steps)

    assert [False, False, known] == [
        received.has_ended for _, _ in zip(range(3), batches, strict=False)
    ]
    assert not received.is_over
    assert [] == list(batches)
    assert received.has_ended
    assert received.is_over


@pytest.mark.parametrize("newer", [DeliveredCount.begin, DeliveredCount.forget])
def test_a_pass_that_was_replaced_raises_and_counts_nothing(newer):
    received = DeliveredCount()
    batches = passing(received, 5)
    next(batches)
    newer(received)

    with raised(StreamError, remedy="make a second stream"):
        next(batches)
    assert 0 == received.batches
    assert not received.has_ended


def test_a_replaced_pass_that_is_at_its_end_ends_nothing_else():
    received = DeliveredCount()
    old = passing(received, 1, steps=1)
    next(old)
    new = passing(received, 2)
    next(new)

    assert [] == list(old)
    assert 1 == received.batches
    assert not received.has_ended


def test_what_makes_the_batches_is_closed_with_the_pass():
    closed = []

    def made():
        try:
            yield from range(3)
        finally:
            closed.append(True)

    received = DeliveredCount()
    received.begin()
    batches = received.counted(made(), epoch=0)
    next(batches)
    batches.close()

    assert [True] == closed
