"""Prepare measurements as histories: big rows, each of one entity, in order of time."""

from typing import Literal

IdKind = Literal["address", "number", "text"]  # what identifies an entity or a peer
TimeUnit = Literal["s", "ms", "us"]  # what stored times count
US_PER: dict[str, int] = {"s": 1_000_000, "ms": 1_000, "us": 1}
ID_KINDS: tuple[IdKind, ...] = ("address", "number", "text")
