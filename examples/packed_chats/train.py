"""Packed chats in a small transformer: the loss of every token is what it is without packing.

    python examples/packed_chats/train.py [--data train.jsonl] [--tokenizer DIR]

Questions and their answers in 28 languages (of a package, or JSON lines of yours) become chats, tokens of a tokenizer
that learns its words from them, and bins of --pack-size tokens. A transformer of about 300,000 parameters then reads
the bins as `headrace.open(...).stream` gives them: attention is causal inside each sequence and nothing beyond,
position ids begin anew. Before and after training the script computes the loss of every trained token twice, in its bin
and with its sequence alone, and stops if they differ: nothing leaks from one conversation into the next. To show what
would happen without the mask, it leaves the mask out once.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import cycle, islice, pairwise
from pathlib import Path

import numpy as np
import torch
from corpus import rows_of, train_tokenizer, write_if_new
from torch import nn
from torch.nn import functional as F  # noqa: N812 - its usual name

import headrace

WIDTH, HEADS, LAYERS = 48, 4, 2
SAME = 1e-9  # in float64; what is left is the order of additions
PADDED = headrace.PackedBatches(form="padded", attention_mask="bool")


class Block(nn.Module):
    """Attention under a mask, then a layer of its own per token."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x_BTD: torch.Tensor, allowed_B1TT: torch.Tensor | None) -> torch.Tensor:
        """allowed: which token attends to which; None: all before it."""
        B, T, _ = x_BTD.shape
        heads = self.qkv(self.norms[0](x_BTD)).view(B, T, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(
            *heads, attn_mask=allowed_B1TT, is_causal=allowed_B1TT is None
        )
        x_BTD = x_BTD + self.out(mixed.transpose(1, 2).reshape(B, T, WIDTH))
        return x_BTD + self.mlp(self.norms[1](x_BTD))


class Transformer(nn.Module):
    """Ids and their positions to logits over the words that are used. Input and output words are one table."""

    def __init__(self, used: torch.Tensor, positions: int) -> None:
        super().__init__()
        self.register_buffer(
            "used", used
        )  # the ids that the data has, sorted; the model numbers those alone
        self.words = nn.Embedding(len(used), WIDTH)
        self.positions = nn.Embedding(positions, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        for table in (self.words, self.positions):
            nn.init.normal_(table.weight, std=0.02)

    def losses(
        self,
        ids: torch.Tensor,
        labels: torch.Tensor,
        positions: torch.Tensor,
        allowed: torch.Tensor | None,
    ) -> torch.Tensor:
        """The loss of every label, 0 where there is none: like `labels`, [B, T]."""
        x = self.words(torch.searchsorted(self.used, ids)) + self.positions(positions)
        for block in self.blocks:
            x = block(x, allowed)
        logits = self.norm(x) @ self.words.weight.T
        known = torch.where(labels < 0, labels, torch.searchsorted(self.used, labels.clamp(min=0)))
        return F.cross_entropy(logits.flatten(0, 1), known.flatten(), reduction="none").view(
            labels.shape
        )


def packed_losses(model: Transformer, batch: dict) -> torch.Tensor:
    """Of the trained tokens of a batch of bins, in their order."""
    args = (batch["input_ids"], batch["labels"], batch["position_ids"], batch["attention_mask"])
    return model.losses(*args)[batch["loss_mask"] == 1]


def single_losses(model: Transformer, batch: dict) -> torch.Tensor:
    """The same, every sequence by itself as a row of its own, with the plain causal mask."""
    ids, labels, mask = (batch[name].flatten() for name in ("input_ids", "labels", "loss_mask"))
    found = []
    for begin, end in pairwise(batch["cu_seqlens"].tolist()):
        row = slice(begin, end)
        positions = torch.arange(end - begin)[None]
        found.append(
            model.losses(ids[None, row], labels[None, row], positions, None)[0][mask[row] == 1]
        )
    return torch.cat(found)


def compare(model: Transformer, out: Path, bins: int) -> float:
    """Losses and gradients of some bins, packed and not; stops the script if they are not the same. Their mean loss."""
    exact = Transformer(model.used, len(model.positions.weight)).double()
    exact.load_state_dict(model.state_dict())
    stream = headrace.open(out).stream("valid", batch_size=bins, packed=PADDED)
    batch = next(iter(stream))
    packed = packed_losses(exact, batch)
    packed.sum().backward()
    gradients = [parameter.grad.clone() for parameter in exact.parameters()]
    exact.zero_grad()
    single = single_losses(exact, batch)
    single.sum().backward()
    apart = (packed - single).abs().max().item()
    leaning = max(
        ((a - b.grad).abs().max() / b.grad.abs().max().clamp(min=1e-30)).item()
        for a, b in zip(gradients, exact.parameters(), strict=True)
    )
    leaking = packed_losses(exact, {**batch, "attention_mask": None})
    leaked = (leaking - single).abs().max().item()
    sequences = len(batch["cu_seqlens"]) - 1
    print(
        f"{len(packed):,} trained tokens of {sequences} sequences, {bins} bins: loss {packed.mean().item():.4f} packed,"
        f" {single.mean().item():.4f} alone; largest difference of a token {apart:.0e}, of a gradient {leaning:.0e}"
        f" (without the mask {leaked:.0e})"
    )
    if not apart < SAME or not leaning < SAME:
        sys.exit("packed and unpacked losses differ: sequences see one another")
    if not leaked > 1e3 * SAME:
        sys.exit("without the mask nothing changed: the comparison sees nothing")
    return packed.mean().item()


def train(model: Transformer, out: Path, *, steps: int, bins: int) -> None:
    """Some steps of Adam over shuffled batches of bins, epochs following one another."""
    stream = headrace.open(out).stream("train", batch_size=bins, shuffle=True, packed=PADDED)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step, batch in enumerate(
        islice((each for _ in cycle([0]) for each in stream), steps), start=1
    ):
        loss = packed_losses(model, batch).sum() / (batch["loss_mask"] == 1).sum().clamp(min=1)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step in (1, steps) or step % 10 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


def prepare(
    data: Path | None, tokenizer: Path | None, base: Path, *, limit: int | None, pack_size: int
) -> Path:
    """Chats to bins; what was prepared before is used again."""
    if tokenizer is not None and not tokenizer.exists():
        sys.exit(
            f"{tokenizer} does not exist; say where a tokenizer is with --tokenizer, or leave it out to train one"
        )
    rows = rows_of(data)[:limit]
    chats = write_if_new(base / "chats.jsonl", "".join(f"{row}\n" for row in rows))
    tokenizer = tokenizer or train_tokenizer(rows, base / "tokenizer")
    recipe = headrace.PackedSequences(
        blend=str(chats),
        tokenizer=tokenizer,
        pack_size=pack_size,
        train_ratio=0.9,
        val_ratio=0.1,
        test_ratio=0,
    )
    out = base / f"bins-{pack_size}"
    packed = headrace.prepare(recipe, out).manifest.metadata["packed"]
    fill = packed["tokens"] / (packed["bins"] * pack_size)
    print(
        f"{packed['sequences']:,} chats, {packed['tokens']:,} tokens in {packed['bins']:,} bins, {fill:.1%} full"
    )
    return out


def used_ids(out: Path) -> torch.Tensor:
    """The ids that the bins hold, and 0, which fills rows up: sorted, int64."""
    found = [np.zeros(1, np.int32)]
    for split in ("train", "valid"):
        rows = headrace.open(out).stream(
            split, batch_size=64, columns=["input_ids"], batch_format="numpy"
        )
        found += [np.unique(np.concatenate(batch["input_ids"])) for batch in rows]
    return torch.from_numpy(np.unique(np.concatenate(found)).astype(np.int64))


def main() -> None:
    """Prepare, compare, train, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", type=Path, help="JSON lines of question and answer, or .gz; else a package's"
    )
    parser.add_argument(
        "--tokenizer", type=Path, help="a directory or file; else one is trained on the data"
    )
    parser.add_argument("--out", type=Path, default=Path("out/packed_chats"))
    parser.add_argument("--limit", type=int, help="use so many questions at most")
    parser.add_argument("--pack-size", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--bins", type=int, default=4, help="in a batch")
    asked = parser.parse_args()
    started = time.perf_counter()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    out = prepare(
        asked.data,
        asked.tokenizer,
        asked.out.resolve(),
        limit=asked.limit,
        pack_size=asked.pack_size,
    )
    model = Transformer(used_ids(out), asked.pack_size)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(model.used):,} words")
    before = compare(model, out, min(2, asked.bins))
    train(model, out, steps=asked.steps, bins=asked.bins)
    after = compare(model, out, min(2, asked.bins))
    if not after < before:
        sys.exit(f"nothing was learned: the loss was {before:.4f} and is {after:.4f}")
    print(f"done in {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
