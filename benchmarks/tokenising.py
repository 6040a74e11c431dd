"""Chats as tokens: whole conversations in batches beside a loop that encodes turn by turn.

    python benchmarks/tokenising.py [TOKENIZER CHATS [CHATS …]] [--threads 1] [--rounds 7]

TOKENIZER is a directory with tokenizer.json and a chat template whose turns are in ChatML; CHATS are files or
directories that `headrace peek --mask` can read. Without them: the questions and answers of the chatterbot-corpus
package, and a tokenizer trained on them. Every way runs in a process of its own, in turn. CPU seconds are those of all
threads and of the process that renders templates, after a conversation of warming up. They hold on a busy machine,
wall seconds do not.

The loop renders a conversation once by plain Jinja, cuts the text where an assistant's turn begins and ends, and
encodes every part on its own, as the systems do that mask by turns. Its ids and masks are compared with ours on every
conversation. headrace uses fastokens where it is installed.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from figures import Cell, Table, figure, ratio
from reporting import parser, publish

from headrace.formats.source import find_files
from headrace.packing.chats.layouts import Conversation, sample_of
from headrace.packing.chats.reader import RowBatch, read_rows
from headrace.packing.chats.settings import BackendName, ChatSettings
from headrace.packing.chats.tokenise import ChatEncoder

CORPUS = Path(__file__).parents[1] / "examples" / "packed_chats" / "corpus.py"
TURN = re.compile(r"(?<=<\|im_start\|>assistant\n)(.*?<\|im_end\|>)", re.DOTALL)


def timed(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """What a function gives, and its CPU and wall seconds."""
    cpu, wall = cpu_s(), time.perf_counter()
    found = work()
    return found, {"cpu_s": cpu_s() - cpu, "wall_s": time.perf_counter() - wall}


def cpu_s() -> float:
    """Of this process and of those that it has started and that still run."""
    children = [child.cpu_times() for child in psutil.Process().children()]
    return time.process_time() + sum(each.user + each.system for each in children)


def batches_of(chats: list[str]) -> Iterator[RowBatch]:
    """Read all rows, a batch after the other."""
    return (batch for path, name in find_files(chats) for batch in read_rows(path, name=name))


def digest_of(ids: list[np.ndarray], masks: list[np.ndarray]) -> str:
    """Of every conversation's tokens and mask, in order."""
    digest = hashlib.sha256()
    for each, mask in zip(ids, masks, strict=True):
        digest.update(
            each.astype(np.int32).tobytes() + b"|" + mask.astype(np.uint8).tobytes() + b"\n"
        )
    return digest.hexdigest()


def run_whole(tokenizer: str, chats: list[str], backend: BackendName = "auto") -> dict[str, Any]:
    """headrace: read, render, encode and mask, batch by batch."""
    encoder = ChatEncoder(ChatSettings(tokenizer=Path(tokenizer), tokenizer_backend=backend))
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
            chats = [
                chat
                for row in batch.rows[begin : begin + 128]
                if isinstance(chat := sample_of(row), Conversation)
            ]
            outcomes = [each for each in encoder.renderer.render(chats) if isinstance(each, list)]
            texts.append([rendered.text for outcome in outcomes for rendered in outcome])
    encodings, spent = timed(
        lambda: [
            len(encoder.tokenizer.encode_batch(each, add_special_tokens=False)) for each in texts
        ]
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
    return {
        **spent,
        "render_s": render_s,
        "digest": digest_of([ids for ids, _ in found], [mask for _, mask in found]),
    }


WORDS = {
    "loop": "turn by turn, a loop",
    "whole": "headrace, whole conversations",
    "tokenizers": 'headrace, `tokenizer_backend="tokenizers"`',
    "encode": "of it the tokenizer, all texts in batches",
}
WAYS = {
    "loop": run_loop,
    "whole": run_whole,
    "tokenizers": partial(run_whole, backend="tokenizers"),
    "encode": run_encode,
}


def measured(way: str, threads: int, tokenizer: str, chats: list[str]) -> dict[str, Any]:
    """One run in a process of its own."""
    command = [sys.executable, __file__, tokenizer, *chats, "--way", way]
    environment = {**os.environ, "RAYON_NUM_THREADS": str(threads)}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def packaged(folder: Path) -> tuple[str, list[str]]:
    """A tokenizer and chats that need nothing but a package: those of the example."""
    corpus = runpy.run_path(str(CORPUS))
    rows = corpus["packaged_rows"]()
    chats = folder / "chats.jsonl"
    chats.write_text("\n".join(rows) + "\n", "utf-8")
    return str(corpus["train_tokenizer"](rows, folder / "tokenizer")), [str(chats)]


def tables(asked: argparse.Namespace) -> Iterator[Table]:
    """All rounds; what was tokenised is said by the title."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer, chats = (asked.tokenizer, asked.chats) if asked.chats else packaged(Path(folder))
        ways = [way for way in WAYS if way != "loop"]
        plan = [("loop", 1), *((way, threads) for threads in asked.threads for way in ways)]
        runs: dict[tuple[str, int], list[dict[str, Any]]] = {each: [] for each in plan}
        for _ in range(asked.rounds):
            for way, threads in plan:
                runs[way, threads].append(measured(way, threads, tokenizer, chats))
    whole, loop = runs["whole", asked.threads[0]][0], runs["loop", 1][0]
    for (way, _), found in runs.items():
        if way != "encode" and found[0]["digest"] != loop["digest"]:
            raise SystemExit(f"{WORDS[way]}: ids or masks are not those of the loop")
    base = {name: [each[name] for each in runs["loop", 1]] for name in ("cpu_s", "wall_s")}
    rows: list[tuple[Cell, ...]] = []
    for (way, threads), found in runs.items():
        cpu, wall = ([each[name] for each in found] for name in ("cpu_s", "wall_s"))
        rate = figure([whole["tokens"] / 1e6 / each for each in wall])
        against = ratio(base["cpu_s"], cpu), ratio(base["wall_s"], wall)
        rows.append((WORDS[way], str(threads), figure(cpu), figure(wall), rate, *against))
    yield Table(
        "chats",
        f"{whole['conversations']:,} conversations, {whole['tokens']:,} tokens, {whole['trained']:,} of them trained",
        (
            "way",
            "threads",
            "CPU s",
            "wall s",
            "M tokens/s",
            "the loop takes times the CPU",
            "and times the wall",
        ),
        rows,
        "Ids and masks of all ways are those of the loop.",
    )


def main() -> None:
    """Parse, measure, print."""
    made = parser(__doc__)
    made.add_argument("tokenizer", nargs="?")
    made.add_argument("chats", nargs="*")
    made.add_argument("--threads", type=int, nargs="+", default=[1])
    made.add_argument("--rounds", type=int, default=7)
    made.add_argument("--way", choices=sorted(WAYS), help=argparse.SUPPRESS)
    asked = made.parse_args()
    if asked.tokenizer and not asked.chats:
        made.error("a TOKENIZER comes with CHATS, files or directories")
    if asked.way:
        print(json.dumps(WAYS[asked.way](asked.tokenizer, asked.chats)))
        return
    publish(tables(asked), asked.json, ["tokenizers", "jinja2", "fastokens"])


if __name__ == "__main__":
    main()
