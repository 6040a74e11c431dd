"""What memory streams of windows take, measured in a process of its own, one stream after another."""

import gc
import json
import sys
from pathlib import Path

import headrace.windows
from headrace.stream.ranks.topology import Topology


def own_mib():
    """Memory of this process that is not pages of mapped files, MiB."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["RssAnon"].split()[0]) / 1024


def grown(train, options):
    """The most memory of its own that an epoch takes, from before its stream."""
    gc.collect()
    before = most = own_mib()
    stream = train.stream(
        batch_size=64, topology=Topology(rank=0, world_size=1), batch_format="numpy", **options
    )
    for step, _ in enumerate(stream):
        if step % 10 == 0:
            most = max(most, own_mib())
    if "chunk_size" in options:
        stream.epochs.close()
    return most - before


def main(path, cases):
    train = headrace.windows.open(path, "train", input_length=30, output_length=2, stride=16)
    next(
        iter(train.stream(batch_size=64, shuffle="none", batch_format="numpy"))
    )  # what every stream takes once
    return [grown(train, options) for options in cases]


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], json.loads(sys.argv[2]))))
