"""The output tree beside the shards: what blends, links and packing metadata say. Pure, but for `write_links`.

    runs/<run_id>/datasets/<name>/<hash>/shard_000000.parquet
    runs/<run_id>/splits/<split>/000000__<name>__shard_000000.parquet -> ../../datasets/...
    runs/<run_id>/blend.json, packing_metadata.json, rejected.jsonl
    splits/<split> -> ../runs/<run_id>/splits/<split>
    blend.json -> runs/<run_id>/blend.json, and so on

Links are made inside the run, before its manifest; what lies outside is one link per split, changed in one step. So
a split's directory is never half old and half new, and an earlier run's links are never left in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from headrace.digest import canonical_json, sha256_hex
from headrace.packing.blend import SPLITS, Split
from headrace.storage import local

BLEND, METADATA, REJECTED = "blend.json", "packing_metadata.json", "rejected.jsonl"


@dataclass(frozen=True)
class Written:
    """A shard as it was written. path: relative to the run; tokens: stored in it."""

    split: Split
    dataset: str
    path: str
    bins: int
    tokens: int


def dataset_directory(name: str, parts: Sequence[Any]) -> str:
    """Name the directory of a dataset's shards; `parts` are JSON and make up its hash."""
    return f"datasets/{name}/{sha256_hex(canonical_json([name, *parts]))[:16]}"


def split_directory(split: Split) -> str:
    """Name the directory of a split's links."""
    return f"splits/{split}"


def links_of(shards: Sequence[Written]) -> dict[str, str]:
    """Map each link (relative to the run) to its target, in the order of the shards; positions count inside a split."""
    links, position = {}, dict.fromkeys(SPLITS, 0)
    for shard in shards:
        directory, name = split_directory(shard.split), PurePosixPath(shard.path).name
        link = f"{directory}/{position[shard.split]:06d}__{shard.dataset}__{name}"
        links[link] = os.path.relpath(shard.path, directory)
        position[shard.split] += 1
    return links


def write_links(run: Path, directories: Sequence[str], links: Mapping[str, str]) -> None:
    """Make the split directories hold these links and nothing else. Before the manifest nobody looks at them."""
    with local.storing(run):
        for directory in directories:
            local.make_directory(run / directory)
            for path in sorted((run / directory).iterdir()):
                if not path.is_symlink() or os.readlink(path) != links.get(path.relative_to(run).as_posix()):
                    path.unlink()
        for link, target in links.items():
            with suppress(FileExistsError):  # an earlier attempt came so far
                os.symlink(target, run / link)
    for directory in directories:
        local.sync_directory(run / directory)


def blend_json(run_id: str, splits: Sequence[Split], shards: Sequence[Written]) -> bytes:
    """Write the blend of each split: weight, path, weight, path, ... as texts.

    Paths are relative to the dataset directory and have no extension. A shard's weight is its share of the tokens of
    its split: whoever draws from the shards by these weights draws every bin equally often.
    """
    record: dict[str, list[str]] = {}
    for split in splits:
        own = [shard for shard in shards if shard.split == split]
        total = sum(shard.tokens for shard in own)
        record[split] = [
            text
            for shard in own
            for text in (f"{shard.tokens / total:.9f}", f"runs/{run_id}/{PurePosixPath(shard.path).with_suffix('')}")
        ]
    return (json.dumps(record, indent=1) + "\n").encode()


def metadata_json(groups: Sequence[Mapping[str, Any]], pack_size: int) -> bytes:
    """Write the list that Megatron-style readers ask for, a record for each dataset in each split.

    Lengths are what such a reader trains on: one less than is stored of each sequence.
    """
    records = [
        {
            **group["runtime"],
            "packing_factor": round(group["metrics"]["packing_factor"], 6),
            "packing_efficiency": round(group["metrics"]["packing_efficiency"], 6),
            "pack_size": pack_size,
            "split": group["split"],
            "dataset": group["dataset"],
        }
        for group in groups
        if group["bins"]
    ]
    return (json.dumps(records, indent=1, sort_keys=True) + "\n").encode()
