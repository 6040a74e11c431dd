"""Chats in torchtitan: one epoch on three ranks, killed and resumed on two, against the same epoch without a stop.

    python examples/torchtitan/train.py [--out out/torchtitan] [--chats 500]

Questions and answers become bins of 128 bytes, in 7 shards of 7 sizes. torchtitan's debug model trains one finite epoch
of them, twice: without a stop on three ranks, and killed (SIGKILL) on three ranks once a checkpoint is whole, then
resumed on two. Both must see every bin once, the same losses, and in validation every bin once. Then torchtitan's own
loader is asked to do the same. Needs `requirements.txt`.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import headrace

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "packed_chats"))

from corpus import rows_of  # noqa: E402 - of the example of packed chats

SEQ_LEN, STEP_ROWS, INTERVAL = 128, 12, 6
STEP_BATCHES = 2  # that each of three ranks draws for a step
SHARES = (1, 6, 2, 9, 3, 7, 4)  # of the seven shards
BEGIN, END, TURN = 256, 257, 258  # the tokens below are bytes
SAME = 1e-4  # ranks add float32 numbers in another order


def prepare(out: Path, chats: int) -> Path:
    """Pack chats into bins, and lay the bins out in uneven shards, as another tool might have."""
    lines, texts = [], []
    for row in map(json.loads, rows_of(None)):
        question, answer = (list(row[name].encode()) for name in ("question", "answer"))
        tokens = [BEGIN, *question, TURN, *answer, END]
        if len(tokens) <= SEQ_LEN and len(lines) < chats:
            mask = [0] * (len(question) + 2) + [1] * (len(answer) + 1)
            lines.append(json.dumps({"input_ids": tokens, "loss_mask": mask}))
            texts.append(json.dumps({"text": row["answer"]}))
    for name, content in (("raw", lines), ("texts", texts)):
        (out / name).mkdir(parents=True)
        (out / name / "chats.jsonl").write_text("\n".join(content) + "\n")
    recipe = headrace.PackedSequences(
        blend=str(out / "raw"), pack_size=SEQ_LEN, train_ratio=0.9, val_ratio=0.1, test_ratio=0.0
    )
    headrace.prepare(recipe, out / "prepared")
    for split, shares in (("train", SHARES), ("valid", (1,))):
        bins = bins_of(out / "prepared", split)
        borders = np.cumsum([0, *shares]) * bins.num_rows // sum(shares)
        (out / "bins" / split).mkdir(parents=True)
        for number, (first, end) in enumerate(pairwise(borders.tolist())):
            pq.write_table(
                bins.slice(first, end - first), out / "bins" / split / f"shard-{number}.parquet"
            )
    return out / "bins"


def bins_of(dataset: Path, split: str) -> pa.Table:
    """Return all bins of a split."""
    opened = headrace.open(dataset)
    read = opened.block_reader(split)
    return pa.concat_tables(
        read(block, None) for block in range(len(opened.split_index(split).rows))
    )


def digests(bins: pa.Table) -> Counter[str]:
    """Count the bins by what `debug_model.py` records of them."""
    rows = np.zeros((bins.num_rows, SEQ_LEN), np.int64)
    for row, tokens in zip(rows, bins["input_ids"].to_pylist(), strict=True):
        row[: len(tokens)] = tokens
    return Counter(hashlib.sha256(row.tobytes()).hexdigest() for row in rows)


def start(
    out: Path, name: str, ranks: int, steps: int, *more: str, config: str = "packed"
) -> subprocess.Popen[str]:
    """Start torchtitan on so many ranks. What it says goes to NAME-RANKS.log."""
    data = [f"--{part}dataloader.dataset_path={out / 'bins'}" for part in ("", "validator.")]
    if config == "own":
        data[0] = f"--dataloader.dataset_path={out / 'texts'}"
    command = [
        *(
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={ranks}",
        ),
        *(str(HERE / "debug_model.py"), "--module", "debug_model", "--config", config),
        *(
            "--dump_folder",
            str(out / name),
            "--training.steps",
            str(steps),
            "--validator.freq",
            str(steps),
            *data,
        ),
        *("--checkpoint.enable", "--checkpoint.interval", str(INTERVAL), *more),
    ]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "HF_HOME": str(out / "hf"),
        "PYTHONPATH": str(HERE),
    }
    with (out / f"{name}-{ranks}.log").open("w") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, text=True)


def finish(run: subprocess.Popen[str], log: Path) -> None:
    """Wait for torchtitan, and stop with the end of what it said if it failed."""
    if run.wait():
        sys.exit(f"torchtitan failed, see {log}:\n" + "\n".join(log.read_text().splitlines()[-20:]))


def kill_after_checkpoint(run: subprocess.Popen[str], folder: Path) -> int:
    """Kill every process once torchtitan has written a checkpoint whole, and return its step."""
    whole = folder / "checkpoint" / f"step-{INTERVAL}" / ".metadata"  # written last
    while not whole.exists():
        if run.poll() is not None:
            sys.exit(f"torchtitan ended before its first checkpoint, see {folder}*.log")
        time.sleep(0.05)
    for line in records(folder, "pid"):
        os.kill(line["pid"], signal.SIGKILL)
    run.kill()
    run.wait()
    kept = sorted(int(path.parent.name[5:]) for path in folder.glob("checkpoint/step-*/.metadata"))
    return kept[-1]


def records(folder: Path, key: str) -> list[dict]:
    """Return the recorded lines of all ranks that have this key; a line that a kill cut off is none."""
    lines = [
        line
        for path in sorted((folder / "record").glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    return [json.loads(line) for line in lines if f'"{key}"' in line and line.endswith("}")]


def losses(folder: Path, key: str = "loss") -> dict[int, float]:
    """Return the loss of each step, the one trained last where it was trained again."""
    return {line["step"]: line[key] for line in records(folder, key)}


def drawn(folder: Path, split: str, batches: slice = slice(None)) -> Counter[str]:
    """Count the bins that all ranks drew, in these batches of each rank."""
    counted: Counter[str] = Counter()
    for path in (folder / "record").glob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
        for line in [line for line in lines if line.get("split") == split][batches]:
            counted.update(line["rows"])
    return counted


def differ(name: str, first: dict[int, float], second: dict[int, float]) -> float:
    """Return the largest difference of two runs' losses; stop if it is too large, or steps are missing."""
    if first.keys() != second.keys():
        sys.exit(f"{name}: steps {sorted(first)} and {sorted(second)}")
    largest = max(abs(first[step] - second[step]) for step in first)
    if not largest < SAME:
        sys.exit(f"{name}: losses differ by {largest}")
    return largest


def same_bins(name: str, expected: Counter[str], found: Counter[str]) -> None:
    """Stop if bins are missing or came again."""
    if expected != found:
        sys.exit(
            f"{name}: {(expected - found).total()} bins are missing, {(found - expected).total()} came again"
        )


def own_batches(out: Path) -> list[int]:
    """Count the batches that torchtitan's own loader has for each of three ranks in one pass over the texts."""
    os.environ["HF_HOME"] = str(out / "hf")
    from debug_model import (  # after the variable is set, and after the trainings, as it takes seconds
        Bytes,
        own,
    )

    config, tokenizer = own().dataloader, Bytes(Bytes.Config(), tokenizer_path="")
    config.dataset_path, config.infinite = str(out / "texts"), False
    sizes = {"seq_len": SEQ_LEN, "local_batch_size": 2, "tokenizer": tokenizer}
    return [
        sum(1 for _ in config.build(dp_world_size=3, dp_rank=rank, **sizes)) for rank in range(3)
    ]


def main() -> None:
    """Train, kill, resume, compare; then ask torchtitan's own loader."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("out/torchtitan"), help="replaced (default: %(default)s)"
    )
    parser.add_argument("--chats", type=int, default=500, help="(default: %(default)s)")
    options = parser.parse_args()
    if importlib.util.find_spec("torchtitan") is None:
        sys.exit(
            f"torchtitan is not installed; give it an environment of its own: pip install -r {HERE}/requirements.txt"
        )
    out = options.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    bins = prepare(out, options.chats)
    train, valid = (digests(bins_of(bins, split)) for split in ("train", "valid"))
    rows = [pq.read_metadata(path).num_rows for path in sorted((bins / "train").iterdir())]
    steps = -(-sum(rows) // STEP_ROWS)
    print(f"{sum(rows)} bins of {SEQ_LEN} tokens in shards of {rows}: {steps} steps of {STEP_ROWS}")

    finish(start(out, "whole", 3, steps, "--validator.enable"), out / "whole-3.log")
    whole = losses(out / "whole")
    same_bins("3 ranks", train, drawn(out / "whole", "train"))
    print(
        f"3 ranks: each bin once; loss {whole[1]:.4f} in step 1, {whole[steps]:.4f} in step {steps}"
    )

    run = start(out, "killed", 3, steps)
    step = kill_after_checkpoint(run, out / "killed")
    before, seen = (
        losses(out / "killed"),
        drawn(out / "killed", "train", slice(0, STEP_BATCHES * step)),
    )
    shutil.move(out / "killed" / "record", out / "killed" / "record-3")
    finish(start(out, "killed", 2, steps, "--validator.enable"), out / "killed-2.log")
    after = losses(out / "killed")
    if min(after) != step + 1:
        sys.exit(f"resumed in step {min(after)} from the checkpoint of step {step}")
    same_bins("killed and resumed", train, seen + drawn(out / "killed", "train"))
    largest = differ(
        "killed and resumed", whole, {at: before[at] for at in range(1, step + 1)} | after
    )
    print(
        f"3 ranks killed after step {step}, resumed on 2: each bin once; losses differ by {largest:.0e} at most"
    )

    for name, ranks in (("whole", 3), ("killed", 2)):
        passes = len(losses(out / name, "validation"))
        same_bins(
            f"validation on {ranks} ranks",
            Counter(sorted(valid.elements()) * passes),
            drawn(out / name, "valid"),
        )
    ends = [{steps: losses(out / name, "validation")[steps]} for name in ("whole", "killed")]
    largest = differ("validation", *ends)
    loss = f"loss {ends[0][steps]:.4f}, {largest:.0e} apart"
    print(f"validation on 3 ranks, and on 2: each of {valid.total()} bins once; {loss}")

    print(
        f"torchtitan's own loader: one pass has {own_batches(out)} batches on 3 ranks, so ranks end in different steps"
    )
    finish(start(out, "own", 3, INTERVAL, config="own"), out / "own-3.log")
    if not start(out, "own", 2, steps, config="own").wait():
        sys.exit(f"torchtitan's own loader resumed on 2 ranks, see {out / 'own-2.log'}")
    said = re.search(r"AssertionError: (dp_degree .*)", (out / "own-2.log").read_text())
    if said is None:
        sys.exit(f"torchtitan's own loader failed for another reason, see {out / 'own-2.log'}")
    print(f"torchtitan's own loader, resumed on 2 of 3 ranks: {said.group(1)}")


if __name__ == "__main__":
    main()
