"""Every parser of ours, given bytes that nobody wrote for it: it answers, or raises an error of ours; it never crashes,
hangs, or asks for much memory."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fault_recipes import place, settings_of, undisturbed
from forks import limit_memory
from fuzz_run import fuzz
from pings import blobs_of

from headrace.cli.settings_file import read_config
from headrace.dataset.manifest import read_manifest
from headrace.dataset.open import read_index
from headrace.dataset.sound import index_problem
from headrace.digest import canonical_json, sha256_hex
from headrace.histories.codec.rows import decode_rows
from headrace.histories.config import Histories
from headrace.packing.blend import SourceBlend, blend_of
from headrace.packing.chats.layouts import sample_of
from headrace.packing.chats.reader import BrokenRow, row_of_line
from headrace.packing.chats.rejections import RowRejected

Parser = Callable[[bytes, Path], object]
HANG_S = 5


def manifest(data: bytes, directory: Path) -> object:
    (directory / "manifest.json").write_bytes(data)
    return read_manifest(directory)


def unsealed_manifest(data: bytes, directory: Path) -> object:
    """The same with a digest that fits, where it is JSON: behind the digest too nothing is believed."""
    try:
        record = json.loads(data)
        record.pop("digest", None)
        record["digest"] = sha256_hex(canonical_json(record))
        data = json.dumps(record).encode()
    except (ValueError, AttributeError, TypeError, RecursionError):
        pass
    return manifest(data, directory)


def index(data: bytes, directory: Path) -> object:
    (directory / "index.parquet").write_bytes(data)
    found = read_index(directory / "index.parquet")
    return index_problem(found.table) or found.split("train")


def row(data: bytes, directory: Path) -> object:
    return decode_rows([data], [str(directory)])


def blend(data: bytes, directory: Path) -> object:
    (directory / "blend.json").write_bytes(data)
    made = blend_of(directory / "blend.json")
    return (
        SourceBlend(**made)
        if isinstance(made, dict) and all(isinstance(key, str) for key in made)
        else made
    )


def config(data: bytes, directory: Path) -> object:
    (directory / "config.yaml").write_bytes(data)
    record = read_config(directory / "config.yaml")
    record.pop("recipe", None)
    return Histories(**record)


def chat(data: bytes, directory: Path) -> object:
    found = row_of_line(data)
    return found if isinstance(found, BrokenRow) else sample_of(found)


PARSERS: dict[str, Parser] = {
    "manifest": manifest,
    "manifest with its digest": unsealed_manifest,
    "index": index,
    "histories row": row,
    "blend": blend,
    "config": config,
    "chat": chat,
}
WORDS = [
    b"-1",
    b"1e999",
    b"NaN",
    b"null",
    b"[]",
    b"{}",
    b'""',
    b"99999999999999999999",
    b"true",
    b"\xff",
    b"\x00",
    b"\\ud800",
]


def good(name: str) -> list[bytes]:
    """What the parser is made for."""
    run = undisturbed("split csv.gz").run
    if name.startswith("manifest"):
        return [
            (run / "manifest.json").read_bytes(),
            (undisturbed("packed").run / "manifest.json").read_bytes(),
        ]
    if name == "index":
        return [(run / "index.parquet").read_bytes()]
    if name == "histories row":
        shards = sorted((undisturbed("histories").run / "histories").rglob("part-*"))
        return [blob for path in shards[:2] for blob in blobs_of(path)][:50]
    if name == "blend":
        return [
            json.dumps(settings_of("packed")["blend"]).encode(),
            b'{"train": [{"name": "a", "path": ["b"], "weight": 2}]}',
        ]
    if name == "config":
        return [
            "\n".join(f"{key}: {value}" for key, value in settings_of("histories").items()).encode()
        ]
    chats: list[Any] = [
        {
            "messages": [
                {"role": "user", "content": "x"},
                {
                    "role": "assistant",
                    "content": [{"type": "text", "text": "y"}],
                    "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}],
                },
            ],
            "tools": "[]",
        },
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
        {"input_ids": [1, 2, 3], "loss_mask": [0, 1, 1]},
        {"instruction": "a", "input": "", "output": "b"},
        {"text": "abc"},
    ]
    return [json.dumps(each).encode() for each in chats]


def mutated(data: bytes, random_: random.Random) -> bytes:
    """A few changes: bits, bytes, cuts, doubled and moved pieces, words that hurt; or bytes of no kind."""
    if random_.random() < 0.05:
        return random_.randbytes(random_.randrange(200))
    out = bytearray(data)
    for _ in range(random_.choice([1, 1, 1, 2, 4, 16])):
        at = random_.randrange(len(out) + 1)
        size = random_.choice([1, 1, 2, 4, 8, 40])
        how = random_.randrange(6)
        if how == 0 and at < len(out):
            out[at] ^= 1 << random_.randrange(8)
        elif how == 1:
            out[at : at + size] = random_.randbytes(size)
        elif how == 2:
            del out[at : at + size]
        elif how == 3:
            out[at:at] = out[at : at + size] * random_.choice([1, 2, 50])
        elif how == 4:
            out[at : at + size] = random_.choice(WORDS)
        elif random_.random() < 0.3:
            del out[at:]
    return bytes(out)


def child(
    name: str, samples: list[str], directory: str, seed: int, inputs: int, seconds: float
) -> None:
    """Parse up to `inputs` mutated inputs for up to `seconds`, and print how many; the first that is not met well ends it."""
    parse, where = PARSERS[name], Path(directory)
    where.mkdir()
    limit_memory(2 << 30)

    def check(data: bytes) -> None:
        with suppress(RowRejected):
            parse(data, where)

    def make(random_: random.Random) -> bytes:
        return mutated(bytes.fromhex(random_.choice(samples)), random_)

    tried = fuzz(name, make, check, seed=seed, inputs=inputs, seconds=seconds, hang_s=HANG_S)
    print(json.dumps({"tried": tried}))


def samples_of(name: str) -> list[str]:
    """What the mutations begin with, as text."""
    place()
    return [data.hex() for data in good(name)]
