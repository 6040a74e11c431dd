"""What the ranks of the validation's tests run: the command as a launcher starts it; imported by name."""

from __future__ import annotations

import contextlib
import io
import json
import os
import warnings
from pathlib import Path

import torch

from headrace.validate_sharding import main


def validate_on_rank(rank: int, world_size: int, folder: str, arguments: list[str]) -> None:
    """One rank, told its place as by torchrun; exit code and output go to a file. Its home is in the folder."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(f"{folder}/port", world_size)
    if rank == 0:
        port = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        store.set("port", str(port.port))
    names = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": world_size,
    }
    os.environ.update({name: str(value) for name, value in names.items()})
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.get("port").decode()})
    os.environ.update({"HOME": f"{folder}/home", "TORCHELASTIC_USE_AGENT_STORE": "True"})
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([*arguments, "--backend", "gloo"])
    Path(folder, f"rank-{rank}.json").write_text(
        json.dumps({"code": code, "out": out.getvalue(), "err": err.getvalue()})
    )
