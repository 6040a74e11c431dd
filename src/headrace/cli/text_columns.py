"""What columns of plain text shards are: the flags --types and --null-values, and where their index is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.errors import SettingsError


@dataclass(frozen=True, kw_only=True)
class PlainShards:
    """How plain shards are read: --types, --null-values and --cache-dir. Prepared datasets need none of them."""

    types: Annotated[
        list[str] | None,
        typer.Option(
            "--types",
            metavar="NAME=TYPE",
            help="Type of a column of plain CSV or TSV shards, e.g. price=float32; repeat it, or use commas.",
            show_default=False,
        ),
    ] = None
    null_values: Annotated[
        list[str] | None,
        typer.Option("--null-values", help="Text that means missing in typed columns; repeatable.", show_default=False),
    ] = None
    cache_dir: Annotated[
        Path | None,
        typer.Option(
            help="Where the index of plain shards is kept; ~/.cache/headrace unless given.", show_default=False
        ),
    ] = None

    def options(self) -> dict[str, Any]:
        """As keyword arguments of `open` and of `Rewrite`. Raises `SettingsError`."""
        types, null_values = types_of(self.types), null_values_of(self.null_values)
        return {"types": types, "null_values": null_values, "cache_dir": self.cache_dir}


def types_of(words: Sequence[str] | None) -> dict[str, str]:
    """NAME=TYPE pairs as a dict. Raises `SettingsError` on a word that is none, and on a name given twice."""
    types: dict[str, str] = {}
    for word in (part.strip() for each in words or () for part in each.split(",")):
        name, equals, kind = word.rpartition("=")
        if not word:
            continue
        if not equals or not name:
            raise SettingsError(f"--types: {word!r} is no NAME=TYPE; write e.g. --types distance=int32")
        if types.setdefault(name.strip(), kind.strip()) != kind.strip():
            raise SettingsError(f"--types: {name.strip()!r} is {types[name.strip()]} and {kind.strip()}; give one")
    return types


def null_values_of(words: Sequence[str] | None) -> tuple[str, ...]:
    """The texts, each once, commas between them allowed."""
    return tuple(dict.fromkeys(part.strip() for each in words or () for part in each.split(",")))
