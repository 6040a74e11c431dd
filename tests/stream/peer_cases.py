"""What processes of one machine do that watch each other; imported by name, so that a child finds it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch.distributed as dist
from lost_process_cases import write_pid

from headrace.stream.ranks.peers import LocalPeers
from headrace.stream.ranks.topology import Topology
from waits import wait_until


def join(folder: str, process: int, processes: int, group: str = "group") -> LocalPeers:
    store = dist.PrefixStore(group, dist.FileStore(f"{folder}/store", -1))
    peers = LocalPeers.join(store, process=process, processes=processes)
    assert peers is not None
    return peers


def stay(
    rank: int, process: int, processes: int, folder: str, phase: str, group: str = "group"
) -> None:
    """Join, be in this phase, and wait to be killed, or leave.

    phase: "pass", "between", "stopped", "left", "stops before it looks" for connections once it was
    met, or "parent": in a pass, with a child that lives on.
    """
    del rank  # of the only one that is started here
    peers = join(folder, process, processes, group)
    if phase not in ("between", "left"):
        peers.enter(peers, Topology(rank=process, world_size=processes), epoch=7)
    if phase == "stopped":
        peers.stop(peers)
    if phase == "parent":
        child = os.fork()
        if not child:
            write_pid(Path(folder, f"child-{process}"))
            wait_until(Path(folder, "end").exists)
            os._exit(0)
        wait_until(Path(folder, f"child-{process}").exists)
    if phase == "with a worker that ends":
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
    write_pid(Path(folder, f"here-{process}-{group}"))
    if phase == "left":
        peers.say_goodbye()
    if phase == "stops before it looks":
        wait_until(Path(folder, "met").exists)
        peers.stop(peers)
        os._exit(0)
    while not Path(folder, "end").exists():
        peers.look()
        time.sleep(0.05)
