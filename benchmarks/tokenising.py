"""Chats as tokens: whole conversations in batches beside a loop that encodes turn by turn.

    python benchmarks/tokenising.py TOKENIZER CHATS [CHATS …] [--threads 1 2] [--repeat 3]

TOKENIZER is a directory with tokenizer.json and a chat template whose turns are in ChatML; CHATS are files or
directories that `headrace peek --mask` can read. Every way runs in a process of its own, in turn, `--repeat` times; the
median counts. CPU seconds are the process's, all threads; they hold on a busy machine, wall seconds do not.

The loop renders a conversation once by plain Jinja, cuts the text where an assistant's turn begins and ends, and
encodes every part on its own, as the systems do that mask by turns. Its ids are compared with ours on every
conversation. The share of everything else is what reading, rendering, masking and joining take of our CPU time.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from headrace.formats.source import find_files
from headrace.recipes.packed_sequences.chats.layouts import Conversation, sample_of
from headrace.recipes.packed_sequences.chats.reader import RowBatch, read_rows
from headrace.recipes.packed_sequences.chats.settings import ChatSettings
from headrace.recipes.packed_sequences.chats.tokenise import ChatEncoder

TURN = re.compile(r"(?<=<\|im_start\|>assistant\n)(.*?<\|im_end\|>)", re.DOTALL)


def timed(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """What a function gives, and its CPU and wall seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    found = work()
    return found, {"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall}


def batches_of(chats: list[str]) -> list[RowBatch]:
    """All rows, in memory."""
    return [batch for path, name in find_files(chats) for batch in read_rows(path, name=name)]


def digest_of(ids: list[np.ndarray], masks: list[np.ndarray]) -> str:
    """Of every conversation's tokens and mask, in order."""
    digest = hashlib.sha256()
    for each, mask in zip(ids, masks, strict=True):
        digest.update(each.astype(np.int32).tobytes() + b"|" + mask.astype(np.uint8).tobytes() + b"\n")
    return digest.hexdigest()


def run_whole(tokenizer: str, chats: list[str]) -> dict[str, Any]:
    """headrace: read, render, encode and mask, batch by batch."""
    encoder = ChatEncoder(ChatSettings(tokenizer=Path(tokenizer)))
    encoder.encode([{"question": "q", "answer": "a"}])  # compiles the template
    encoded, spent = timed(lambda: [encoder.encode(batch.rows) for batch in batches_of(chats)])
    bounds = [list(itertools.pairwise(each.offsets.tolist())) for each in encoded]
    ids = [each.tokens[a:b] for each, cuts in zip(encoded, bounds, strict=True) for a, b in cuts]
    masks = [each.mask[a:b] for each, cuts in zip(encoded, bounds, strict=True) for a, b in cuts]
    return {
        **spent,
        "tokens": sum(map(len, ids)),
        "trained": int(sum(mask.sum() for mask in masks)),
        "conversations": len(ids),
        "rejected": sum(len(each.rejected) for each in encoded),
        "digest": digest_of(ids, masks),
    }


def run_encode(tokenizer: str, chats: list[str]) -> dict[str, Any]:
    """The tokenizer's own part of that: the same texts in the same batches."""
    encoder = ChatEncoder(ChatSettings(tokenizer=Path(tokenizer)))
    texts = []
    for batch in batches_of(chats):
        for begin in range(0, len(batch.rows), 128):
            rows = (sample_of(row) for row in batch.rows[begin : begin + 128])
            texts.append([each.text for row in rows for each in encoder.renderer.render(row)])
    encodings, spent = timed(
        lambda: [len(encoder.tokenizer.encode_batch(each, add_special_tokens=False)) for each in texts]
    )
    return {**spent, "conversations": sum(encodings)}


def run_loop(tokenizer: str, chats: list[str]) -> dict[str, Any]:
    """Turn by turn, in a Python loop."""
    import jinja2

    encoder = ChatEncoder(ChatSettings(tokenizer=Path(tokenizer)))
    encode = encoder.tokenizer.encode
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    template = environment.from_string(encoder.files.templates["default"])
    render_s = 0.0

    def work() -> list[tuple[np.ndarray, np.ndarray]]:
        nonlocal render_s
        found = []
        for batch in batches_of(chats):
            for row in batch.rows:
                begin = time.process_time()
                sample = sample_of(row)
                assert isinstance(sample, Conversation)
                text = template.render(messages=sample.messages, tools=sample.tools)
                parts = TURN.split(text)
                render_s += time.process_time() - begin
                encoded = [encode(part, add_special_tokens=False).ids for part in parts]
                ids = np.fromiter(itertools.chain.from_iterable(encoded), np.int32)
                trained = np.arange(len(parts), dtype=np.uint8) & 1
                found.append((ids, np.repeat(trained, [len(part) for part in encoded])))
        return found

    found, spent = timed(work)
    return {**spent, "render_s": render_s, "digest": digest_of([ids for ids, _ in found], [mask for _, mask in found])}


WAYS = {"whole": run_whole, "encode": run_encode, "loop": run_loop}


def measured(way: str, threads: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One run in a process of its own."""
    command = [sys.executable, __file__, arguments.tokenizer, *arguments.chats, "--way", way]
    environment = {**os.environ, "RAYON_NUM_THREADS": str(threads)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer")
    parser.add_argument("chats", nargs="+")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--way", choices=sorted(WAYS))
    arguments = parser.parse_args()
    if arguments.way:
        print(json.dumps(WAYS[arguments.way](arguments.tokenizer, arguments.chats)))
        return
    runs: dict[tuple[str, int], list[dict[str, Any]]] = {}
    plan = [("loop", 1), *((way, threads) for threads in arguments.threads for way in ("whole", "encode"))]
    for _ in range(arguments.repeat):
        for way, threads in plan:
            runs.setdefault((way, threads), []).append(measured(way, threads, arguments))
    middle = {
        key: {name: statistics.median(run[name] for run in found) for name in ("cpu_s", "wall_s")}
        for key, found in runs.items()
    }
    whole, loop = runs["whole", arguments.threads[0]][0], runs["loop", 1][0]
    print(f"{whole['conversations']:,} conversations, {whole['rejected']:,} rejected, {whole['tokens']:,} tokens,")
    print(f"{whole['trained']:,} trained; ids and masks {'equal' if whole['digest'] == loop['digest'] else 'DIFFER'}")
    print(f"\n{'way':<42}{'CPU s':>8}{'wall s':>8}{'Mtok/s':>8}{'x loop':>8}")
    base = middle["loop", 1]
    for (way, threads), spent in middle.items():
        name = {
            "loop": "turn by turn, a loop",
            "whole": "headrace, whole conversations",
            "encode": "  of it the tokenizer",
        }[way]
        rate, gain = whole["tokens"] / spent["wall_s"] / 1e6, base["wall_s"] / spent["wall_s"]
        print(
            f"{f'{name}, {threads} threads':<42}{spent['cpu_s']:>8.2f}{spent['wall_s']:>8.2f}{rate:>8.2f}{gain:>8.2f}"
        )
    for threads in arguments.threads:
        other = 1 - middle["encode", threads]["cpu_s"] / middle["whole", threads]["cpu_s"]
        print(f"everything but the tokenizer, {threads} threads: {100 * other:.1f} % of the CPU time")


if __name__ == "__main__":
    main()
