"""Prepare measurements as histories: big rows, each of one entity, in order of time."""

from typing import Literal

IdKind = Literal["address", "number", "text"]  # what identifies an entity or a peer
ID_KINDS: tuple[IdKind, ...] = ("address", "number", "text")
