"""How many requests are under way at once, against stores of a known latency and bandwidth."""

from __future__ import annotations

import heapq
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Condition

import pytest

from headrace.storage.bucket import _MOST_BYTES, LIMITS, InFlight


def settled(latency_s: float, bytes_per_s: float, size: int, *, requests: int = 4000) -> int:
    """The limit after requests that never run short, to a store that sends one answer after another."""
    flight, now, free = InFlight(), 0.0, 0.0
    coming: list[float] = []
    for _ in range(requests):
        while len(coming) < flight.limit:
            free = max(now + latency_s, free) + size / bytes_per_s
            heapq.heappush(coming, free)
        now = heapq.heappop(coming)
        flight._is_full = True
        flight.answered(size, now)
    return flight.limit


@pytest.mark.parametrize(
    ("latency_s", "bytes_per_s", "expected"),
    [
        (0.001, 1e9, 16),  # a store nearby
        (0.05, 5e7, 16),  # a slow link is full with three answers of a mebibyte
        (0.05, 5e8, 32),  # 24 are under way
        (0.2, 5e8, 64),
        (2.0, 5e9, 64),  # never more
    ],
)
def test_as_many_requests_as_fill_the_link(
    latency_s: float, bytes_per_s: float, expected: int
) -> None:
    assert settled(latency_s, bytes_per_s, 1 << 20) == expected


def test_a_link_that_changes_is_measured_again() -> None:
    flight, now = InFlight(), 0.0

    def answers(count: int, each_s: float) -> None:
        nonlocal now
        for _ in range(count):
            now += each_s / flight.limit if each_s else 0.001
            flight._is_full = True
            flight.answered(1 << 20, now)

    answers(1000, 0.2)  # the rate follows the requests

    assert flight.limit == LIMITS[-1]
    answers(10_000, 0)  # it does not
    assert flight.limit == LIMITS[0]


def test_requests_wait_for_a_place_and_for_room() -> None:
    flight, changed, under_way, most = InFlight(), Condition(), [0, 0], [0, 0]

    def ask_all(sizes: list[int], together: int) -> None:
        """Ask for all; none is answered before so many have been under way together."""
        most[:] = [0, 0]

        def ask(size: int) -> None:
            with flight.request(size):
                with changed:
                    under_way[0] += 1
                    under_way[1] += size
                    most[:] = map(max, most, under_way)
                    changed.notify_all()
                    assert changed.wait_for(lambda: most[0] >= together, 120)
                time.sleep(0.001)  # in which more may come
                with changed:
                    under_way[0] -= 1
                    under_way[1] -= size

        list(pool.map(ask, sizes))

    with ThreadPoolExecutor(LIMITS[-1]) as pool:
        ask_all([1] * 200, LIMITS[0])
        assert LIMITS[0] <= most[0] <= LIMITS[-1]

        ask_all([_MOST_BYTES // 3] * 40, 3)
        assert most == [3, _MOST_BYTES // 3 * 3]

        ask_all([2 * _MOST_BYTES] * 5, 1)
        assert most[0] == 1


def test_a_request_that_fails_gives_its_place_back() -> None:
    flight = InFlight()
    for _ in range(2 * LIMITS[-1]):
        with pytest.raises(ValueError, match="refused"), flight.request(1):
            raise ValueError("refused")

    with flight.request(1):
        pass
