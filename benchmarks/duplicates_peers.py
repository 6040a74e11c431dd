"""MinHash of other packages in `duplicates.py`, each as its own documentation uses it. Runs without headrace.

    python benchmarks/duplicates_peers.py --way rensa --file CHATS.jsonl

Shingles are the same everywhere: three words in a row. Packages that take shingles get them as texts, made in a loop;
the others make their own. The last line of the output is JSON: the documents that are left out, and what it took.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

NEAR, SHINGLE, BANDS, ROWS = 0.8, 3, 20, 6


def said(work: Callable[[], dict[str, Any]], version: str) -> dict[str, Any]:
    """Do the work; its result, CPU and wall seconds, and the memory it added."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cpu, wall = sum(os.times()[:4]), time.perf_counter()  # of child processes too
    found = work()
    took = {"cpu_s": sum(os.times()[:4]) - cpu, "wall_s": time.perf_counter() - wall}
    most = max(
        resource.getrusage(who).ru_maxrss
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    peak = (most - before) / 1024
    return {**found, **took, "peak_mb": peak, "version": version}


def texts_of(path: Path) -> Iterator[str]:
    """One a line."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)["text"]


def shingles_of(text: str) -> list[str]:
    """Three words in a row, as texts."""
    words = text.lower().split()
    return [" ".join(words[at : at + SHINGLE]) for at in range(max(1, len(words) - SHINGLE + 1))]


def run_rensa(path: Path) -> Callable[[], dict[str, Any]]:
    """Its deduplicator, which compares the sketches of candidates."""
    from rensa import RMinHashDeduplicator

    def work() -> dict[str, Any]:
        index = RMinHashDeduplicator(
            threshold=NEAR, num_perm=BANDS * ROWS, use_lsh=True, num_bands=BANDS
        )
        kept = index.add_pairs(
            (str(number), shingles_of(text)) for number, text in enumerate(texts_of(path))
        )
        return {"removed": [number for number, own in enumerate(kept) if not own]}

    return work


def run_datasketch(path: Path) -> Callable[[], dict[str, Any]]:
    """Its index, asked before each document is put in."""
    from datasketch import MinHash, MinHashLSH

    def work() -> dict[str, Any]:
        index = MinHashLSH(num_perm=BANDS * ROWS, params=(BANDS, ROWS))
        removed = []
        for number, text in enumerate(texts_of(path)):
            made = MinHash(num_perm=BANDS * ROWS)
            made.update_batch([each.encode() for each in shingles_of(text)])
            if index.query(made):
                removed.append(number)
            index.insert(number, made)
        return {"removed": removed}

    return work


def run_datatrove(path: Path) -> Callable[[], dict[str, Any]]:
    """Its three steps in a folder; words by blanks, as its tokenizer for English needs a package of its own."""
    import datatrove.pipeline.dedup.minhash as minhash
    from datatrove.data import Document
    from datatrove.utils.logging import logger

    class ByBlanks:
        def word_tokenize(self, text: str) -> list[str]:
            return text.split()

    logger.remove()
    minhash.load_word_tokenizer = lambda language: ByBlanks()

    def work() -> dict[str, Any]:
        config = minhash.MinhashConfig(n_grams=SHINGLE, num_buckets=BANDS, hashes_per_bucket=ROWS)
        with tempfile.TemporaryDirectory() as folder:
            signed, pairs, removed = (f"{folder}/{name}" for name in ("signed", "pairs", "removed"))
            documents = (
                Document(text=text, id=str(number)) for number, text in enumerate(texts_of(path))
            )
            minhash.MinhashDedupSignature(signed, config).run(documents, 0, 1)
            for bucket in range(BANDS):
                minhash.MinhashDedupBuckets(signed, pairs, config=config).run(None, bucket, BANDS)
            minhash.MinhashDedupCluster(pairs, removed, config=config).run(None, 0, 1)
            held = Path(f"{removed}/000000.remove").read_bytes()
        return {
            "removed": [
                int.from_bytes(held[at : at + 4], "little") for at in range(0, len(held), 4)
            ]
        }

    return work


def run_text_dedup(path: Path) -> Callable[[], dict[str, Any]]:
    """Its program, in this process."""
    import datasets
    from text_dedup.minhash import main

    datasets.disable_progress_bars()

    def work() -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            asked = {
                **{
                    "--path": "json",
                    "--data_files": str(path),
                    "--split": "train",
                    "--cache_dir": f"{folder}/cache",
                },
                **{
                    "--output": f"{folder}/out",
                    "--column": "text",
                    "--batch_size": "10000",
                    "--num_proc": "1",
                },
                **{"--ngram": str(SHINGLE), "--min_length": "1", "--hash_func": "xxh3"},
                **{"--num_perm": str(BANDS * ROWS), "--b": str(BANDS), "--r": str(ROWS)},
            }
            main.main([each for pair in asked.items() for each in pair], standalone_mode=False)
            kept = set(datasets.load_from_disk(f"{folder}/out")["id"])
        return {
            "removed": [number for number, _ in enumerate(texts_of(path)) if number not in kept]
        }

    return work


WAYS = {
    "rensa": run_rensa,
    "datasketch": run_datasketch,
    "datatrove": run_datatrove,
    "text_dedup": run_text_dedup,
}


def main() -> None:
    """Import, then measure."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--way", choices=WAYS, required=True)
    made.add_argument("--file", type=Path, required=True)
    asked = made.parse_args()
    work = WAYS[asked.way](asked.file)
    print(json.dumps(said(work, importlib.metadata.version(asked.way.replace("_", "-")))))


if __name__ == "__main__":
    main()
