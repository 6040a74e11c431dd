"""A pass that several members take whole is read once, and no member waits for another."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.stream.workers import parcel
from headrace.stream.workers.parcel import SocketMessage
from headrace.stream.workers.partners import _MOST_STEPS, _Joining, _SharedRun
from headrace.stream.workers.serving import (
    END,
    MISSED,
    Beginning,
    Client,
    Opened,
    Server,
    ServerGone,
    ServerLeft,
)
from waits import wait_until

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="needs memory without a name"
)
KEY = b"known to all"


class Source:
    """A pass of so many steps; reads: the steps that were read, in order."""

    def __init__(self, steps: int, size: int = 8) -> None:
        self.steps = steps
        self.size = size
        self.reads: list[int] = []

    def opened(self, *_: Any) -> Opened:
        return Opened(Beginning({}, 0, 0), self.read)

    def read(self, first: int, _in_place: bool) -> Any:
        for step in range(first, self.steps):
            self.reads.append(step)
            yield {"row": torch.full((self.size,), step)}

    def server(self) -> Server:
        return Server(self.opened, run=_SharedRun, key=KEY)


class Member:
    """A member behind a socket, as in another process."""

    def __init__(self, server: Server, number: int, members: int, first: int = 0) -> None:
        self.client = Client(server.address, pool="", worker=(number, 0), workers=members, key=KEY)
        self.client.ask("begin", "pass", (number, 0), members, _Joining({}, first))
        self.step = first

    def take(self) -> Any:
        answer, *values = self.client.ask("next", self.step, False)
        self.step += answer == "batch"
        return values[0] if answer == "batch" else answer


@given(st.lists(st.integers(0, 2), max_size=40), st.integers(0, 6))
def test_every_member_gets_every_batch_of_a_pass_that_is_read_once(
    turns: list[int], steps: int
) -> None:
    source = Source(steps)
    with closing(source.server()) as server:
        members = [Member(server, number, 3) for number in range(3)]
        taken: list[list[int]] = [[], [], []]
        for turn in [*turns, *(number for number in range(3) for _ in range(steps + 1))]:
            batch = members[turn].take()
            if batch != "end":
                taken[turn].append(int(batch["row"][0]))
        for member in members:
            member.client.close()
        server.close()
        server.join(120)

    assert taken == [list(range(steps))] * 3
    assert source.reads == list(range(steps))


def test_who_falls_behind_is_not_waited_for_and_gets_the_pass_again() -> None:
    source = Source(3 * _MOST_STEPS)
    with closing(source.server()) as server:
        slow, fast = Member(server, 0, 2), Member(server, 1, 2)
        while fast.take() != "end":
            pass
        assert slow.take() == "missed"
        again = Member(server, 0, 2, first=slow.step)
        assert int(again.take()["row"][0]) == 0

    assert sorted(set(source.reads)) == list(range(3 * _MOST_STEPS))


def test_a_loop_of_the_server_and_one_that_leaves_hold_nothing() -> None:
    source = Source(10)
    with closing(source.server()) as server:
        leaves = Member(server, 0, 2)
        run, _ = server.joined("pass", (1, 0), 2, _Joining({}, 0))[:2]
        assert int(leaves.take()["row"][0]) == 0
        leaves.client.close()
        assert wait_until(lambda: run._there == {(1, 0)})  # a thread of the server hears of it
        steps = [int(run.get((1, 0), step, False).batch()["row"][0]) for step in range(10)]
        assert run.get((1, 0), 10, False) is END
        assert run.get((1, 0), 3, False) is MISSED
        assert not run._ready

    assert steps == source.reads == list(range(10))


@pytest.mark.parametrize("size", [8, 1 << 16])
def test_a_server_that_leaves_hands_out_what_it_has(size: int) -> None:
    source = Source(3, size)
    with closing(source.server()) as server:
        member, other = Member(server, 0, 2), Member(server, 1, 2)
        for _ in range(3):
            other.take()
        member.take()
        server.close()
        server.join(120)
        assert [int(member.take()["row"][-1]) for _ in range(2)] == [1, 2]
        with pytest.raises((ServerLeft, ServerGone)):
            while member.take() != "end":
                pass
            member.take()


@pytest.mark.parametrize("room", ["room", "no room"])
def test_each_receiver_of_a_large_batch_may_write_to_it(
    room: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if room == "no room":

        def full(*_: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "posix_fallocate", full)
    values = np.arange(parcel._MOST_BYTES_IN_MESSAGE)
    before = len(os.listdir("/proc/self/fd"))
    packed = SocketMessage(
        parcel.share_batch({"row": torch.from_numpy(values.copy()), "text": ["a"]})
    )
    assert len(packed._descriptors) == (room == "room")
    first, second = packed.value(), packed.value()
    first["row"].zero_()
    del packed

    assert second["text"] == ["a"]
    assert second["row"].tolist() == values.tolist()
    assert len(os.listdir("/proc/self/fd")) == before
