"""Items made ahead: the same ones in their order, no more than allowed, and a thread that always ends."""

import _thread
import gc
import threading
import time

import pytest

from headrace.stream.read.ahead import end_threads, prefetched, start_threads

_PATIENCE_S = 120.0


class Source:
    """An iterator over a generator that counts what was made, and knows whether it was closed."""

    def __init__(self, items, fails_at=None):
        self.made, self.is_closed = 0, False
        self._items, self._fails_at = items, fails_at

    def __call__(self):
        try:
            for number, item in enumerate(self._items):
                if number == self._fails_at:
                    raise ZeroDivisionError(f"item {number}")
                self.made += 1
                yield item
        finally:
            self.is_closed = True

    def await_made(self, count):
        until = time.monotonic() + _PATIENCE_S
        while self.made < count and time.monotonic() < until:
            time.sleep(0.001)
        return self.made


@pytest.mark.parametrize("most", [1, 2, 3, 7])
def test_the_items_are_the_same_and_no_more_than_allowed_wait(most, own_threads):
    source = Source(range(40))
    taken = []
    for item in prefetched(source(), thread_name="headrace-test", most=most):
        taken.append(item)
        assert source.made <= len(taken) + most

    assert list(range(40)) == taken
    assert source.is_closed
    assert [] == own_threads.left()


@pytest.mark.parametrize("most", [1, 4])
def test_as_many_as_allowed_are_made_while_one_is_used(most):
    source = Source(range(40))
    items = prefetched(source(), thread_name="headrace-test", most=most)
    next(items)

    assert 1 + most == source.await_made(1 + most)
    items.close()


@pytest.mark.parametrize(("size", "waiting"), [(1, 4), (10, 2), (24, 1), (1000, 1)])
def test_their_bytes_bound_them_but_one_is_always_made(size, waiting):
    source = Source(range(40))
    taken = 0
    for _ in prefetched(
        source(), thread_name="headrace-test", most=4, most_bytes=25, size_of=lambda _: size
    ):
        taken += 1
        assert source.made <= taken + waiting

    assert 40 == taken


@pytest.mark.parametrize("fails_at", [0, 1, 5])
def test_an_error_comes_in_the_place_of_its_item(fails_at, own_threads):
    source = Source(range(9), fails_at=fails_at)
    taken = []
    with pytest.raises(ZeroDivisionError, match=f"item {fails_at}"):
        taken.extend(prefetched(source(), thread_name="headrace-test", most=3))

    assert list(range(fails_at)) == taken
    assert source.is_closed
    assert [] == own_threads.left()


def test_a_consumer_that_leaves_ends_the_thread_and_closes_the_source(own_threads):
    source = Source(range(1000))
    for _ in prefetched(source(), thread_name="headrace-test", most=3):
        break
    gc.collect()

    assert [] == own_threads.left()
    assert source.is_closed
    assert source.made <= 4


def test_what_its_own_thread_drops_ends_without_waiting_for_itself(own_threads):
    """The garbage collector may run in any thread, and find the consumer's side there."""
    dropped, collected = threading.Event(), threading.Event()

    class Holder:
        def __init__(self, items):
            self.items, self.me = items, self

    def items():
        yield 0
        dropped.wait(_PATIENCE_S)
        gc.collect()
        collected.set()
        yield 1

    gc.disable()
    try:
        holder = Holder(prefetched(items(), thread_name="headrace-test"))
        next(holder.items)
        del holder
        dropped.set()

        assert collected.wait(_PATIENCE_S)
    finally:
        gc.enable()
    assert [] == own_threads.left()


def test_a_thread_waits_for_the_threads_that_it_started_itself():
    """So that an error in a thread that reads comes when the threads below it have ended."""
    outer, ended = start_threads(1, name="headrace-test"), []

    def read():
        inner = start_threads(1, name="headrace-test-below")
        begun = threading.Event()
        inner.submit(lambda: (begun.set(), time.sleep(0.05), ended.append(True)))
        begun.wait(_PATIENCE_S)
        end_threads(inner)
        return list(ended)

    assert [True] == outer.submit(read).result()
    end_threads(outer)


@pytest.mark.skipif(
    not hasattr(threading, "_shutdown_locks_lock"), reason="this Python starts threads without it"
)
def test_threads_end_while_their_ender_starts_a_thread():
    """As when the garbage collector drops a stream at that moment."""
    threads = start_threads(1, name="headrace-test")
    threads.submit(int).result()

    def end() -> None:
        with threading._shutdown_locks_lock:
            end_threads(threads)

    ender = threading.Thread(target=end, daemon=True)
    ender.start()
    ender.join(_PATIENCE_S)
    assert not ender.is_alive()


def test_a_thread_that_has_not_fully_begun_waits_for_no_other():
    go = threading.Event()
    threads = start_threads(1, name="headrace-test")
    threads.submit(go.wait)
    ended = threading.Event()

    def end() -> None:
        end_threads(threads)
        ended.set()

    _thread.start_new_thread(end, ())  # unknown to `threading`, as a thread is at its beginning
    assert ended.wait(_PATIENCE_S)
    go.set()
