"""Lengths and tokens for `packing.py`: drawn ones, and real conversations where they and a tokenizer are at hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

from headrace.packing.storage.spool import SequenceSpool

_TURN = 6_000

ROLES = {"human": "user", "gpt": "assistant", "function_call": "assistant", "observation": "tool"}


def lognormal(count: int, capacity: int, mean: float = 600.0, seed: int = 0) -> np.ndarray:
    """Lengths as chats have them: lognormal with this mean before clipping to 4..capacity, sigma 1."""
    drawn = np.random.default_rng(seed).lognormal(np.log(mean) - 0.5, 1.0, count)
    return np.clip(drawn, 4, capacity).astype(np.int64)


def tokens(root: Path, data: Path) -> tuple[SequenceSpool, str]:
    """Tokenised conversations and what they are. data: a directory with job5-* folders; without it they are drawn."""
    kept = root / "tokens.npz"
    if not kept.exists():
        root.mkdir(parents=True, exist_ok=True)
        made, what = _real(data) or (_drawn(), "drawn tokens (Zipf over 150,000, phrases repeat)")
        np.savez(
            kept, tokens=made.tokens, mask=made.mask, lengths=made.lengths, what=np.array(what)
        )
    with np.load(kept) as found:
        return SequenceSpool.of_arrays(found["tokens"], found["mask"], found["lengths"]), str(
            found["what"]
        )


def repeated(spool: SequenceSpool, tokens_wanted: int, seed: int = 0) -> np.ndarray:
    """Sequences of a spool drawn with replacement until they have so many tokens."""
    rng = np.random.default_rng(seed)
    count = int(1.05 * tokens_wanted / spool.lengths.mean()) + 100
    chosen = rng.integers(0, len(spool), count)
    enough = (
        int(np.searchsorted(np.cumsum(spool.lengths[chosen].astype(np.int64)), tokens_wanted)) + 1
    )
    return chosen[:enough]


def _drawn() -> SequenceSpool:
    """Phrases of a fixed book, Zipf distributed: neither random nor constant to a codec."""
    rng = np.random.default_rng(0)
    book = rng.zipf(1.25, (20_000, 12)) % 150_000
    lengths = lognormal(6000, 4096, mean=300)
    flat = book[rng.zipf(1.2, int(lengths.sum()) // 12 + 1) % len(book)].ravel()[
        : int(lengths.sum())
    ]
    half = np.repeat((lengths // 2)[:, None], 2, 1)
    half[:, 1] = lengths - half[:, 0]
    mask = np.repeat(np.tile([0, 1], len(lengths)), half.ravel())
    return SequenceSpool.of_arrays(flat, mask, lengths)


def _real(data: Path) -> tuple[SequenceSpool, str] | None:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    packed = data / "job5-tokenizer-qwen3" / "tokenizer.json.gz"
    files = sorted(
        [*(data / "job5-gsm8k").glob("*.gz"), *(data / "job5-llamafactory-demos").glob("*.gz")]
    )
    if not packed.exists() or not files:
        return None
    tokenizer = Tokenizer.from_str(gzip.decompress(packed.read_bytes()).decode())
    turns = [turn for path in files for row in _rows(path) if (turn := _turns(row))]
    texts = [f"<|im_start|>{role}\n{text}<|im_end|>\n" for row in turns for role, text in row]
    encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
    sizes = np.array([len(each.ids) for each in encoded])
    flat = np.concatenate([np.array(each.ids, np.int32) for each in encoded])
    learned = np.array([role == "assistant" for row in turns for role, _ in row])
    ends = np.cumsum([len(row) for row in turns])
    lengths = np.diff(np.concatenate([[0], np.cumsum(sizes)[ends - 1]]))
    what = f"{len(lengths):,} real conversations (GSM8K, tool calls, reasoning; Qwen3 tokenizer)"
    return SequenceSpool.of_arrays(flat, np.repeat(learned, sizes), lengths), what


def sources(
    root: Path, data: Path, chats: int = 3710, parts: int = 24
) -> tuple[Path, list[Path]] | None:
    """Write some chats of GSM8K as one file and as many, dealt out in turns; None if they are not there."""
    files = [data / "job5-gsm8k" / f"{name}.jsonl.gz" for name in ("train", "test")]
    if not all(path.exists() for path in files):
        return None
    lines = [line for path in files for line in gzip.decompress(path.read_bytes()).splitlines()][
        :chats
    ]
    root.mkdir(parents=True, exist_ok=True)
    found = {
        root / "whole.jsonl": lines,
        **{root / f"part-{place:02d}.jsonl": lines[place::parts] for place in range(parts)},
    }
    for path, own in found.items():
        text = b"\n".join(own) + b"\n"
        if (
            not path.exists() or path.read_bytes() != text
        ):  # a run is found made if its files are the same
            path.write_bytes(text)
    whole, *rest = found
    return whole, rest


def agents(
    root: Path, data: Path, chats: int = 200, mean_characters: float = 16_000.0
) -> Path | None:
    """Write chats as long as agents': tool calls of several conversations joined; None if they are not there.

    Every chat has a system prompt of a thousand tokens, the tools of its first conversation, and a length drawn as
    those of traces are. Conversations with a turn of more than `_TURN` characters are left out: it fits no small bin.
    """
    path = data / "job5-llamafactory-demos" / "glaive_toolcall_en_demo.json.gz"
    if not path.exists():
        return None
    talks = [
        row
        for row in _rows(path)
        if max(len(turn["value"]) for turn in row["conversations"]) <= _TURN
    ]
    drawn = np.random.default_rng(0)
    policy = "\n".join(talk["conversations"][-1]["value"] for talk in talks[:8])
    lines = []
    for wanted in drawn.lognormal(np.log(mean_characters) - 0.6, 1.1, chats):
        turns: list[Any] = []
        first = at = int(drawn.integers(len(talks)))
        while sum(len(turn["value"]) for turn in turns) < wanted:
            turns += talks[at % len(talks)]["conversations"]
            at += 1
        lines.append(
            json.dumps({"system": policy, "conversations": turns, "tools": talks[first]["tools"]})
        )
    root.mkdir(parents=True, exist_ok=True)
    written = root / "agents.jsonl"
    text = "\n".join(lines) + "\n"
    if (
        not written.exists() or written.read_text() != text
    ):  # a run is found made if its files are the same
        written.write_text(text)
    return written


def _rows(path: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes()).decode()
    return (
        json.loads(text)
        if ".json." in path.name
        else [json.loads(line) for line in text.splitlines() if line]
    )


def _turns(row: dict[str, Any]) -> list[tuple[str, str]]:
    if "question" in row:
        return [("user", row["question"]), ("assistant", row["answer"])]
    if "instruction" in row:
        return [
            ("user", f"{row['instruction']}\n{row.get('input', '')}"),
            ("assistant", row["output"]),
        ]
    if "conversations" in row:
        return [(ROLES.get(each["from"], "user"), each["value"]) for each in row["conversations"]]
    return [(each["role"], _text(each.get("content"))) for each in row.get("messages", [])]


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("value") or part.get("text") or "") for part in content)
    return str(content or "")
