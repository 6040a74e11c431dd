"""Flags of `headrace init` for each recipe; what is None is found out from the data. The docstrings are the help.

entity is the name of a column, or file_name where every file is an entity.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

_unless_given = partial(typer.Option, show_default=False)

Out = Annotated[str, _unless_given(help="Where the run will write.")]
Entity = Annotated[str | None, _unless_given(help="Column of the entity, or file_name; found out unless given.")]
Time = Annotated[str | None, _unless_given(help="Column of the time; found out unless given.")]


@dataclass(frozen=True)
class AskedSeries:
    """Look at time series of many entities, and write a configuration for `headrace run`.

    Example:  headrace init series data --target streamflow --out out --config series.yaml
    """

    source: Annotated[list[str], typer.Argument(help="Files, directories or glob patterns of time series.")]
    out: Out
    target: Annotated[str | None, _unless_given(help="Column to be predicted.")] = None
    features: Annotated[str | None, _unless_given(help="Comma-separated; all columns of numbers unless given.")] = None
    static: Annotated[list[str] | None, _unless_given(help="Files of static attributes; may be repeated.")] = None
    static_features: Annotated[
        str | None, _unless_given(help="Comma-separated; all that every entity has unless given.")
    ] = None
    entity: Entity = None
    time: Time = None

    @property
    def feature_names(self) -> list[str]:
        """Columns; none: to be found out."""
        return _names(self.features)

    @property
    def static_names(self) -> list[str]:
        """Static features; none: to be found out."""
        return _names(self.static_features)


@dataclass(frozen=True)
class AskedSplit:
    """Look at tables, and write a configuration of a temporal split for `headrace run`.

    Example:  headrace init split raw --out out --config split.yaml
    """

    source: Annotated[list[str], typer.Argument(help="Files, directories or glob patterns of tables.")]
    out: Out
    time: Time = None
    entity: Annotated[str | None, _unless_given(help="Column of the entity; found out unless given.")] = None
    split_date: Annotated[
        str | None, _unless_given(help="The cutoff; about a fifth of the rows tests unless given.")
    ] = None


@dataclass(frozen=True)
class AskedHistories:
    """Look at measurements of many entities, and write a configuration of histories for `headrace run`.

    Example:  headrace init histories pings --out out --config histories.yaml
    """

    source: Annotated[list[str], typer.Argument(help="Files, directories or glob patterns of measurements.")]
    out: Out
    entity: Entity = None
    time: Time = None
    peer: Annotated[str | None, _unless_given(help="Column of the other end; found out unless given.")] = None
    value: Annotated[str | None, _unless_given(help="Column of the latency; found out unless given.")] = None


@dataclass(frozen=True)
class AskedPack:
    """Look at chats, and write a configuration of packed sequences for `headrace run`.

    Example:  headrace init pack chats.jsonl --tokenizer qwen3 --out out --config pack.yaml
    """

    source: Annotated[list[str], typer.Argument(help="Files, directories or glob patterns of chats of one dataset.")]
    out: Out
    tokenizer: Annotated[
        str | None, _unless_given(help="tokenizer.json or its directory; one beside the data unless given.")
    ] = None


@dataclass(frozen=True)
class AskedRewrite:
    """Look at shards, and write a configuration of a rewrite for `headrace run`.

    Example:  headrace init rewrite raw --out fast --config rewrite.yaml
    """

    source: Annotated[list[str], typer.Argument(help="A prepared dataset, or plain shards: files, directories, globs.")]
    out: Out


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]
