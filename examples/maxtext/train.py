"""Histories in MaxText: raw measurements → big rows → contexts → MaxText's own training, killed and resumed.

    python examples/maxtext/train.py [--out out/maxtext] [--steps 30] [--hosts 2]

334,264 flights of 4,043 aircraft are prepared as in the example of histories; one aircraft in five has so few that they
share contexts as segments, and that is what can go wrong. A small model of MaxText's trains on them on CPUs, twice:
without a stop, and killed (SIGKILL) once MaxText has written a checkpoint, then started again; with --hosts 2 it is two
hosts that are killed and one that goes on. Both must weigh the same tokens in every step, and on one host see the same
losses to the last digit. `compare.py` then asks MaxText's model whether what it weighs, and what attends to what, is
what the batches say. Needs Python 3.12 and `requirements.txt`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import yaml
from headrace_input import VOCABULARY

import headrace
from headrace.contexts import open_contexts

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "histories"))

from measurements import recipe_of  # noqa: E402 - of the example of histories, which is beside this one

TOKENS, BATCH, SEED, PERIOD = 256, 8, 1, 10


def settings_of(out: Path, steps: int) -> dict[str, object]:
    """MaxText's settings for this job, beside those of its base.yml."""
    contexts = {
        "dataset_type": "grain",  # else checkpoints have no state of the input
        "grain_train_files": str(out / "prepared"),
        "train_split": "train",
        "packing": True,  # contexts have segments, whoever packed them
        "max_segments_per_seq": 32,  # on GPUs, Transformer Engine has to know the most there may be
        "max_target_length": TOKENS,
        "vocab_size": VOCABULARY,  # where the vocabulary is sharded: the next multiple of the shards
        "per_device_batch_size": BATCH,
        "data_shuffle_seed": SEED,
        "num_epoch": -1,
        "grain_worker_count": 0,
    }
    model = {
        "base_emb_dim": 64,
        "base_mlp_dim": 256,
        "base_num_decoder_layers": 2,
        "base_num_query_heads": 4,
        "base_num_kv_heads": 4,
        "head_dim": 16,
        "dtype": "float32",
        "attention": "dot_product",
    }
    run = {
        "base_output_directory": str(out / "runs"),
        "jax_cache_dir": str(out / "compiled"),
        "steps": steps,
        "learning_rate": 0.003,
        "checkpoint_period": PERIOD,
        "hardware": "cpu",
        "skip_jax_distributed_system": True,
        "enable_tensorboard": False,
    }
    return {"base_config": "base.yml", **contexts, **model, **run}


def command(script: str, out: Path, name: str, *more: str) -> list[str]:
    """Of a run of this name, which goes on from its own newest checkpoint."""
    return [sys.executable, str(HERE / script), str(out / "config.yml"), f"run_name={name}", *more]


def environment(host: int = 0, hosts: int = 1) -> dict[str, str]:
    """Of a process without Google's cloud, on CPUs; the last four tell MaxText which host this is."""
    return {
        **os.environ,
        "DECOUPLE_GCLOUD": "TRUE",
        "JAX_PLATFORMS": "cpu",
        "JAX_COORDINATOR_ADDRESS": "localhost",
        "JAX_PROCESS_COUNT": str(hosts),
        "PROCESSES_IN_JOB": str(hosts),
        "JOB_INDEX": "0",
        "JOB_COMPLETION_INDEX": str(host),
    }


def start(out: Path, name: str, hosts: int) -> list[subprocess.Popen[bytes]]:
    """One process a host, all of one job with the same global batch."""
    more = [f"per_device_batch_size={BATCH / hosts}", f"skip_jax_distributed_system={hosts == 1}"]
    running = []
    with (out / f"{name}.log").open("ab") as log:
        for host in range(hosts):
            asked = command(
                "headrace_input.py", out, name, *more, f"metrics_file={out / name}-{host}.jsonl"
            )
            running.append(
                subprocess.Popen(asked, env=environment(host, hosts), stdout=log, stderr=log)
            )
    return running


def train(out: Path, name: str) -> None:
    """Until the end on one host, from the newest checkpoint if there is one."""
    (running,) = start(out, name, 1)
    if running.wait():
        sys.exit(f"{name}: MaxText ended with {running.returncode}; see {out / name}.log")


def train_until_killed(out: Path, name: str, hosts: int) -> None:
    """Until the checkpoint of step PERIOD is whole; then SIGKILL to all."""
    checkpoint = out / "runs" / name / "checkpoints" / str(PERIOD)
    running = start(out, name, hosts)
    while (
        all(each.poll() is None for each in running) and not checkpoint.is_dir()
    ):  # named when it is whole
        time.sleep(0.01)
    for each in running:
        each.kill()
        each.wait()
    if not checkpoint.is_dir():
        sys.exit(f"{name}: MaxText ended before a checkpoint; see {out / name}.log")


def metrics(out: Path, name: str) -> list[dict[str, float]]:
    """What MaxText wrote about each step, the last time it made it."""
    lines = [json.loads(line) for line in (out / f"{name}-0.jsonl").read_text().splitlines()]
    return [each for _, each in sorted({int(each["step"]): each for each in lines}.items())]


def main() -> None:
    """Prepare, train, kill, resume, compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("out/maxtext"))
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument(
        "--hosts", type=int, choices=[1, 2], default=1, help="hosts of the job that is killed"
    )
    asked = parser.parse_args()
    if importlib.util.find_spec("maxtext") is None:
        sys.exit(
            f"maxtext is not installed; it needs Python 3.12 and pip install -r {HERE / 'requirements.txt'}"
        )
    out = asked.out.resolve()

    headrace.prepare(recipe_of(None, out / "raw"), out / "prepared")
    contexts = open_contexts(
        out / "prepared", "train", context_tokens=TOKENS, seed=SEED, max_segments=32
    )
    print(contexts.plan())
    (out / "config.yml").write_text(yaml.safe_dump(settings_of(out, asked.steps), sort_keys=False))

    train(out, "whole")
    train_until_killed(out, "killed", asked.hosts)
    train(out, "killed")
    whole, killed = metrics(out, "whole"), metrics(out, "killed")
    for step, (each, other) in enumerate(zip(whole, killed, strict=True)):
        batch = contexts.batch(range(step * BATCH, (step + 1) * BATCH))
        weighed = np.count_nonzero(batch["targets_segmentation"])
        counts = [int(run["learning/total_weights"]) for run in (each, other)]
        if counts != [weighed, weighed]:
            sys.exit(
                f"step {step}: MaxText weighed {counts[0]} and {counts[1]} tokens, the contexts have {weighed}"
            )
        if step % 10 == 0 or step == asked.steps - 1:
            print(f"step {step:>3}: loss {each['learning/loss']:.3f} of {weighed:,} tokens")
    differs = max(
        abs(each["learning/loss"] - other["learning/loss"])
        for each, other in zip(whole, killed, strict=True)
    )
    print(
        f"killed on {asked.hosts} host(s) after step {PERIOD}, resumed on 1: losses differ by {differs:.0e} at most"
    )
    if differs > (0 if asked.hosts == 1 else 1e-3):  # two hosts add up in another order
        sys.exit("the killed run did not learn what the whole one did")

    asked_of_it = command("compare.py", out, "whole", f"metrics_file={out}/whole-0.jsonl")
    subprocess.run(asked_of_it, env=environment(), check=True)


if __name__ == "__main__":
    main()
