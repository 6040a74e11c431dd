"""Every recipe that the fault kit puts through its faults: a row of a table each.

A row says how its source is written, which settings are asked of it, and how a training job reads what was made. A new
recipe is one more row.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from chats import small_tokenizer
from events import VALUES, random_events, write_events
from large_histories import IN_MEMORY, MERGED, MERGED_ALONE, write_large
from pings import dealt, random_pings, write_pings
from recipe_cases import sources
from series_sources import write_source

import headrace
from headrace.contexts import open_contexts
from headrace.recipe import JobSettings
from headrace.run.events import OnEvent, silent
from headrace.run.prepare import Prepared, prepare
from places import new_place
from tables import HEADER, small_rows, small_source, write_rows

WORKERS = 4
Settings = dict[str, Any]


@dataclass(frozen=True)
class FaultRecipe:
    """make: settings (JSON) to the recipe. write: a source in a new directory, and its settings.
    read: everything that training is given of a dataset directory, as one digest for each split."""

    make: Callable[..., JobSettings]
    write: Callable[[Path], Settings]
    read: Callable[[Path], dict[str, str]]


def read_batches(out: Path) -> dict[str, str]:
    """The rows of every split in the order they are streamed in, checked at the first touch."""
    found = {}
    dataset = headrace.open(out)
    for split in dataset.splits:
        digest = sha256()
        loader = dataset.stream(
            split, batch_size=256, batch_format="arrow", read_threads=1, verify="first_touch"
        )
        for batch in loader:
            digest.update(repr(batch.to_pydict()).encode())
        found[split] = digest.hexdigest()
    return found


def read_contexts(out: Path) -> dict[str, str]:
    """All contexts of an epoch of every split."""
    found = {}
    for split in headrace.open(out).splits:
        contexts = open_contexts(out, split, context_tokens=64, verify="first_touch")
        digest = sha256()
        for start in range(0, len(contexts), 256):
            for name, array in sorted(
                contexts.batch(range(start, min(start + 256, len(contexts)))).items()
            ):
                digest.update(name.encode() + np.ascontiguousarray(array).tobytes())
        found[split] = digest.hexdigest()
    return found


def _split(directory: Path) -> Settings:
    source = small_source(directory, count=6, rows=600, entities=300)
    return {
        "source": str(source),
        "time": "date",
        "entity": "id",
        "split_date": "2025-01-01",
        "train_ratio": 0.5,
        "compression": "gz",
    }


def _single(directory: Path) -> Settings:
    return {**_split(directory), "layout": "single", "format": "parquet", "compression": None}


def _random(directory: Path) -> Settings:
    source = small_source(directory, count=6, rows=600, entities=300)
    return {"source": str(source), "by": "id", "compression": "gz", "layout": "single"}


def _later(directory: Path) -> Settings:
    """Settings of a run that keeps the assignment of another, and takes over some of its shards."""
    settings = _split(directory / "days")
    earlier = prepare(headrace.TemporalSplit(**settings), directory / "earlier")
    (directory / "days" / "part-00001.csv").unlink()
    rows = small_rows(600, entities=300, first=6 * 600)
    write_rows(directory / "days" / "part-00006.csv", HEADER, rows)
    return {**settings, "assignment_from": str(earlier.run)}


def _rewrite(directory: Path) -> Settings:
    (directory / "in").mkdir(parents=True)
    random_ = random.Random(5)
    for number in range(6):
        values = [random_.choice([None, number * 1000 + row]) for row in range(900)]
        table = pa.table(
            {
                "row": range(number * 900, number * 900 + 900),
                "x": values,
                "text": [f"é{v}" for v in values],
            }
        )
        pq.write_table(table, directory / "in" / f"part-{number:05d}.parquet", row_group_size=300)
    return {
        "source": str(directory / "in"),
        "compression": "lz4",
        "cache_dir": str(directory / "cache"),
    }


def _packed(directory: Path) -> Settings:
    one, *others = (str(path) for path in sources(directory, files=3, rows=60))
    return {
        "blend": {
            "datasets": [
                {"name": "one", "path": one},
                {"name": "two", "path": others, "weight": 0.5},
            ]
        },
        "pack_size": 256,
        "train_ratio": 0.8,
        "val_ratio": 0.1,
        "test_ratio": 0.1,
        "num_shards": 3,
        "sample": 120,
        "too_long": "split",
    }


def _histories(directory: Path) -> Settings:
    source = write_pings(directory, dealt(random_pings(3, 3000), 6))
    return {
        "source": str(source),
        "peer": "dst_addr",
        "partitions": 4,
        "max_row_bytes": 3000,
        "memory_limit": 4 << 20,
        "train_ratio": 0.6,
    }


def _large(**settings: Any) -> Callable[[Path], Settings]:
    """Settings over one source for all that are large."""
    return lambda _: {
        "source": str(_large_source()),
        "peer": "dst_addr",
        "max_row_bytes": 3000,
        **settings,
    }


def _for_anybody(source: Path) -> Path:
    """The source, which some trials read that are not run by its owner. A later chmod would change its ctime."""
    for path in [source, *source.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return source


@functools.cache
def _large_source() -> Path:
    return _for_anybody(write_large(place() / "large"))


def _series(directory: Path) -> Settings:
    source = write_source(directory, [f"g{number}" for number in range(6)], days=500)
    return {
        "source": str(source),
        "target": "q",
        "future_features": ["rain", "warm"],
        "min_train_years": 0.5,
        "batch_size": 2,
        "preprocessing_configs": {
            "features": {
                "strategy": "unified",
                "pipeline": ["StandardScaler"],
                "fit_on_n_entities": 3,
            }
        },
    }


def _preferences(directory: Path) -> Settings:
    directory.mkdir(parents=True)
    question = [{"role": "user", "content": "how many apples are there"}]
    rows = []
    for number in range(60):
        good, bad = (
            [{"role": "assistant", "content": text}] for text in (f"there are {number}", "no idea")
        )
        prompt = [{**question[0], "content": f"how many apples are in box {number}"}]
        rows.append(json.dumps({"prompt": prompt, "chosen": good, "rejected": bad}))
    (directory / "pairs.jsonl").write_text("\n".join(rows) + "\n")
    return {
        "blend": str(directory / "pairs.jsonl"),
        "tokenizer": str(small_tokenizer(directory / "tokenizer")),
        "train_ratio": 0.6,
        "val_ratio": 0.2,
        "test_ratio": 0.2,
    }


def _packed_series(directory: Path) -> Settings:
    """Its pipelines hold objects of scikit-learn, which are files of their own."""
    quantiles = {"step": "QuantileTransformer", "n_quantiles": 20}
    configs = {"features": {"strategy": "per_group", "pipeline": [quantiles]}}
    return _series(directory) | {"layout": "packed", "preprocessing_configs": configs}


def _events(directory: Path) -> Settings:
    source = write_events(directory / "in", random_events(5, 800), 2)
    return {
        "source": str(source),
        "entity": "user",
        "entity_kind": "text",
        "peer": "page",
        "peer_kind": "text",
        "time": "when",
        "values": VALUES,
        "partitions": 2,
        "train_ratio": 0.6,
        "format": "arrow",
    }


RECIPES = {
    "split csv.gz": FaultRecipe(headrace.TemporalSplit, _split, read_batches),
    "split single parquet": FaultRecipe(headrace.TemporalSplit, _single, read_batches),
    "random split": FaultRecipe(headrace.RandomSplit, _random, read_batches),
    "rewrite": FaultRecipe(headrace.Rewrite, _rewrite, read_batches),
    "packed": FaultRecipe(headrace.PackedSequences, _packed, read_batches),
    "histories": FaultRecipe(headrace.Histories, _histories, read_contexts),
    "series": FaultRecipe(headrace.Series, _series, read_batches),
}
# Killed in each of their passes.
LARGE = {
    "histories in memory": FaultRecipe(
        headrace.Histories, _large(**IN_MEMORY, train_ratio=0.6), read_contexts
    ),
    "histories merged": FaultRecipe(
        headrace.Histories, _large(**MERGED, train_ratio=0.6, format="arrow"), read_contexts
    ),
    "histories alone": FaultRecipe(
        headrace.Histories, _large(**MERGED_ALONE, train_ratio=0.6), read_contexts
    ),
}
# Runs with further kinds of files.
OTHERS = {
    "preferences": FaultRecipe(headrace.Preferences, _preferences, read_batches),
    "split after another": FaultRecipe(headrace.TemporalSplit, _later, read_batches),
    "histories of texts": FaultRecipe(headrace.Histories, _events, read_contexts),
    "packed series": FaultRecipe(headrace.Series, _packed_series, read_batches),
}
_EVERY = RECIPES | LARGE | OTHERS


@functools.cache
def place() -> Path:
    """A directory for this process, removed at its end."""
    return new_place()


@functools.cache
def settings_of(name: str) -> Settings:
    """The settings of a recipe over one source for all trials: its files' times are part of the run's identity."""
    source = place() / name / "in"
    settings = _EVERY[name].write(source)
    if name in RECIPES:
        _for_anybody(source)
    return settings


def make(
    name: str, settings: Settings, out: Path, *, workers: int = WORKERS, on_event: OnEvent = silent
) -> Prepared:
    """The run of a recipe with these settings."""
    return prepare(_EVERY[name].make(**settings), out, workers=workers, on_event=on_event)


@functools.cache
def undisturbed(name: str) -> Prepared:
    """The run as it is made when nothing happens; nobody may change it."""
    return make(name, settings_of(name), place() / name / "undisturbed")
