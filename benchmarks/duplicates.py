"""Near duplicates with planted truth: headrace beside MinHash of other packages.

    python benchmarks/duplicates.py [--documents 100000] [--rounds 3] [--peers DIR]

Documents are chats of 80 to 120 words, drawn from a vocabulary of 30,000 as words of a language are. Of every twenty,
ten are pairs: one pair each of exact copies, of a Jaccard index of 0.80 to 0.84 (of sets of three words in a row), of
0.74 to 0.77, of 0.6, and of 0.3; the other ten are alone. Changed words are single ones and one run of them. Every way
looks for an index of 0.8, with 20 bands of 6 rows and one thread, in a process of its own, in alternating rounds, from
a file of JSON lines to the documents that are left out if one of each group is kept; a pair is joined if one of the two
is left out. Only headrace compares the sets themselves. `cpu` is user and system time less that of imports, `peak` the
largest resident memory less what was there before the work began.

`--peers` is a virtual environment with the other packages: `make duplicate-peers`. Those that are not there are named.

The second table is of headrace alone, with documents that MinHash finds hard: equal ones, and texts of one template of
100 words in which so many are drawn for each document.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from figures import Cell, Table, figure
from reporting import parser, publish

NEAR, SHINGLE = 0.8, 3
KINDS = {"copies": 1.0, "0.80–0.84": 0.8, "0.75–0.79": 0.75, "0.6": 0.6, "0.3": 0.3}
WAYS = {
    "headrace": "headrace, sets compared",
    "rensa": "rensa, sketches compared",
    "datatrove": "datatrove, not compared",
    "datasketch": "datasketch, not compared",
    "text_dedup": "text-dedup, not compared",
}
HARD = {
    "zipf": "unrelated",
    "equal": "all equal",
    "2": "a template, 2 words drawn",
    "5": "a template, 5 words drawn",
    "10": "a template, 10 words drawn",
}


@dataclass(frozen=True)
class Truth:
    """kind: of each document's pair, by name; "" for those that are alone. other: the number of its partner."""

    kind: list[str]
    other: list[int]


def shingles(words: list[str]) -> set[tuple[str, ...]]:
    """By definition."""
    return {tuple(words[at : at + SHINGLE]) for at in range(len(words) - SHINGLE + 1)}


def index_of(first: list[str], second: list[str]) -> float:
    """The Jaccard index, by definition."""
    a, b = shingles(first), shingles(second)
    return len(a & b) / len(a | b)


def changed(words: list[str], jaccard: float, draw: random.Random) -> list[str]:
    """The same text with other words, down to the least index that is not below `jaccard`."""
    count = len(words) - SHINGLE + 1
    for lost in range(
        int(count * (1 - jaccard) / (1 + jaccard)), 0, -1
    ):  # (count - lost) / (count + lost)
        single = max(0, lost // 3 - 2)
        run = max(1, lost - 3 * single - SHINGLE + 1)
        room = (len(words) - run - 6) // (single + 1)
        made = list(words)
        for at in [
            *range(3, 3 + single * room, room),
            *range(len(words) - run - 3, len(words) - 3),
        ]:
            made[at] = f"new{draw.randrange(10**9)}"
        if index_of(words, made) >= jaccard:
            return made
    raise ValueError(f"{jaccard}: no change of {len(words)} words gives it")


def vocabulary(draw: random.Random) -> tuple[list[str], list[float]]:
    """Words and how often they are drawn: the n-th as 1 / n."""
    words = [
        "".join(draw.choice("etaoinshrdlu") for _ in range(draw.randrange(2, 9)))
        for _ in range(30_000)
    ]
    return words, np.cumsum(1 / np.arange(1, 30_001)).tolist()


def make_chats(path: Path, documents: int) -> Truth:
    """Write the file."""
    draw = random.Random(7)
    words, weights = vocabulary(draw)
    texts: list[tuple[str, int, list[str]]] = []
    for family in range(documents // 20):
        for kind, jaccard in KINDS.items():
            first = draw.choices(words, cum_weights=weights, k=draw.randrange(80, 121))
            second = first if jaccard == 1 else changed(first, jaccard, draw)
            if jaccard < 1 and not jaccard <= (index := index_of(first, second)) < jaccard + 0.04:
                raise SystemExit(f"a pair meant for {kind} has {index:.3f}")
            texts += [
                (kind, len(KINDS) * family + list(KINDS).index(kind), each)
                for each in (first, second)
            ]
        texts += [
            ("", -1, draw.choices(words, cum_weights=weights, k=draw.randrange(80, 121)))
            for _ in range(10)
        ]
    draw.shuffle(texts)
    partner: dict[int, int] = {}
    other = [-1] * len(texts)
    for number, (_, pair, _) in enumerate(texts):
        if pair >= 0 and pair in partner:
            other[number], other[partner[pair]] = partner[pair], number
        partner[pair] = number
    with path.open("w", encoding="utf-8") as file:
        for number, (_, _, text) in enumerate(texts):
            file.write(json.dumps({"id": number, "text": " ".join(text)}) + "\n")
    return Truth([kind for kind, _, _ in texts], other)


def make_hard(path: Path, documents: int, kind: str) -> None:
    """Write a file of the second table."""
    draw = random.Random(8)
    words, weights = vocabulary(draw)
    template = draw.choices(words, k=100)
    with path.open("w", encoding="utf-8") as file:
        for number in range(documents):
            text = template if kind != "zipf" else draw.choices(words, cum_weights=weights, k=100)
            if kind.isdigit():
                text = list(template)
                for at in draw.sample(range(100), int(kind)):
                    text[at] = draw.choice(words)
            file.write(json.dumps({"id": number, "text": " ".join(text)}) + "\n")


def run_headrace(path: Path) -> Callable[[], dict[str, Any]]:
    """The stages of a run, with a worker, on the texts of the file."""
    import polars as pl
    import pyarrow.json

    from headrace.near.shingles import shingles_of_texts
    from headrace.near.stages import DocumentPart, find_near
    from headrace.run.context import RunContext

    def read(texts: pl.Series, wanted: Any) -> Iterator[Any]:
        asked = texts if wanted is None else texts.gather(wanted)
        for begin in range(0, len(asked), 8192):
            some = asked[begin : begin + 8192]
            yield shingles_of_texts(some, np.arange(len(some)), len(some))

    def work() -> dict[str, Any]:
        options = pyarrow.json.ReadOptions(use_threads=False)
        texts = pl.Series(
            "text", pl.from_arrow(pyarrow.json.read_json(path, options)["text"].combine_chunks())
        )
        parts = [
            DocumentPart(f"from {at}", 0, partial(read, texts[at : at + 65536]))
            for at in range(0, len(texts), 65536)
        ]
        with tempfile.TemporaryDirectory() as folder:
            found = find_near(RunContext(Path(folder), 1, lambda _: None), parts, NEAR)
            kept = [
                each
                for each in Path(folder).rglob("near-*.arrow")
                if "signed" in each.name or "copies" in each.name
            ]
            state = sum(each.stat().st_size for each in kept) / len(texts)
        return {
            "removed": np.flatnonzero(found.group != np.arange(len(texts))).tolist(),
            "state": state,
            "compared": found.compared / len(texts),
            "not_compared": found.not_compared,
        }

    return work


def measured(way: str, path: Path, python: str) -> dict[str, Any]:
    """One run in a process of its own; what it says on its last line, or why it cannot be."""
    program = (
        __file__ if way == "headrace" else str(Path(__file__).with_name("duplicates_peers.py"))
    )
    one = dict.fromkeys(
        ("POLARS_MAX_THREADS", "RAYON_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"
    )
    command = [
        sys.executable if way == "headrace" else python,
        program,
        "--way",
        way,
        "--file",
        str(path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **one})
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return {"missing": last[:120]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def planted(asked: argparse.Namespace, folder: Path, python: str) -> Table:
    """Every way on the same file."""
    path = folder / "chats.jsonl"
    truth = make_chats(path, asked.documents)
    count = len(truth.kind)
    runs: dict[str, list[dict[str, Any]]] = {}
    missing = {"fastdedup": "PyPI has no such package"}
    for _ in range(asked.rounds):
        for way in WAYS:
            if way in missing:
                continue
            found = measured(way, path, python)
            if "missing" in found:
                missing[way] = found["missing"]
                continue
            runs.setdefault(way, []).append(found)
    rows: list[tuple[Cell, ...]] = []
    for way, found in runs.items():
        removed = np.zeros(count, np.bool_)
        removed[found[0]["removed"]] = True
        shares = []
        for kind in KINDS:
            own = np.array([at for at, each in enumerate(truth.kind) if each == kind])
            joined = removed[own] | removed[np.array(truth.other)[own]]
            shares.append(f"{joined.mean():.2%}")
        alone = int(removed[[not kind for kind in truth.kind]].sum())
        rate = figure([count / each["cpu_s"] for each in found], 0)
        peak = figure([each["peak_mb"] for each in found], 0)
        version = found[0]["version"]
        rows.append(
            (f"{WAYS[way]}, {version}" if version else WAYS[way], *shares, str(alone), rate, peak)
        )
    state = runs["headrace"][0]["state"]
    below = "Pairs below 0.8 that are joined are false merges; so are documents that are alone."
    return Table(
        "planted",
        f"{count:,} documents of about 100 words, {count // 20:,} pairs of each kind, pairs that were joined",
        ("way", *KINDS, "alone, left out", "documents a CPU second", "peak MB"),
        rows,
        f"{below} Signatures and copies of headrace take {state:.0f} bytes a document on disk.",
        missing,
    )


def hard(asked: argparse.Namespace, folder: Path, python: str) -> Table:
    """headrace alone, on texts that share a template."""
    rows: list[tuple[Cell, ...]] = []
    for kind, words in HARD.items():
        path = folder / f"{kind}.jsonl"
        make_hard(path, asked.documents, kind)
        found = [measured("headrace", path, python) for _ in range(asked.rounds)]
        path.unlink()
        rows.append(
            (
                words,
                figure([asked.documents / each["cpu_s"] for each in found], 0),
                f"{found[0]['compared']:.2f}",
                f"{len(found[0]['removed']):,}",
                f"{found[0]['not_compared']:,}",
                figure([each["peak_mb"] for each in found], 0),
            )
        )
    return Table(
        "hard",
        f"{asked.documents:,} documents of 100 words that MinHash finds hard, headrace",
        (
            "documents",
            "documents a CPU second",
            "pairs compared a document",
            "left out",
            "pairs passed over",
            "peak MB",
        ),
        rows,
        "Pairs passed over are at most so many; no chain of near documents joins the two of one.",
    )


def tables(asked: argparse.Namespace) -> Iterator[Table]:
    """Both."""
    python = (
        sys.executable if asked.peers is None else str(asked.peers.absolute() / "bin" / "python")
    )
    with tempfile.TemporaryDirectory() as folder:
        yield planted(asked, Path(folder), python)
        yield hard(asked, Path(folder), python)


def main() -> None:
    """Parse, measure, print."""
    made = parser(__doc__)
    made.add_argument("--documents", type=int, default=100_000)
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--peers", type=Path, help="a virtual environment with the other packages")
    made.add_argument("--way", choices=["headrace"], help=argparse.SUPPRESS)
    made.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    asked = made.parse_args()
    if asked.way:
        from duplicates_peers import said

        print(json.dumps(said(run_headrace(asked.file), "")))
        return
    publish(tables(asked), asked.json, ["polars"])


if __name__ == "__main__":
    main()
