"""`headrace pack`: chats into packed training bins."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.commands import execute
from headrace.cli.derived import Given
from headrace.cli.flags import RunOptions
from headrace.errors import SettingsError

_row = partial(typer.Option, rich_help_panel="Rows and tokens", show_default=False)


@dataclass(frozen=True, kw_only=True)
class OneDataset:
    """What plain paths are; a blend file says it itself."""

    layout: Annotated[
        str | None, _row(help="How chats lie in a row; found out unless given. Not with a blend file.")
    ] = None
    mapping: Annotated[
        str | None, _row(help="Which column is which, e.g. user=question,assistant=answer. Not with a blend file.")
    ] = None
    filters: Annotated[
        list[str] | None,
        _row(
            "--filter",
            metavar="COLUMN=WORD,...",
            help="Keep rows whose column holds one of the words; again for other columns. Not with a blend file.",
        ),
    ] = None


def pack(
    blend: Annotated[list[str], typer.Argument(help="A blend file, or files, directories, globs.", show_default=False)],
    *,
    out: Annotated[Path, typer.Option(help="Output directory.", show_default=False)],
    dataset: OneDataset,
    given: Given,
    about: RunOptions,
) -> None:
    """Render, tokenise and pack chats into bins that trainers read as they are.

    BLEND is a JSON file of datasets with weights, or of datasets per split; or a path to data.

    Example:  headrace pack blend.json --out out --tokenizer qwen3 --pack-size 4096 --too-long truncate
    """
    execute(given.recipe(blend=_blend(blend, dataset)), out, about)


def _blend(paths: list[str], asked: OneDataset) -> Any:
    """What was given as BLEND; --layout, --mapping and --filter belong to the one dataset of plain paths."""
    from headrace.packing.blend import blend_of, is_blend_file
    from headrace.storage.places import path_of

    if len(paths) == 1 and is_blend_file(path_of(paths[0])):
        if asked.layout is not None or asked.mapping is not None or asked.filters:
            raise SettingsError(f"{paths[0]}: is a blend file; write layout, mapping and filters into its datasets")
        return paths[0]
    blend: Any = blend_of(paths)
    if asked.layout is not None:
        blend["datasets"][0]["layout"] = asked.layout
    if asked.mapping is not None:
        pairs = [_pair("--mapping", each, "user=question") for each in asked.mapping.split(",") if each.strip()]
        blend["datasets"][0]["mapping"] = dict(pairs)
    if asked.filters:
        found = [_pair("--filter", each, "used_in=sft,chat") for each in asked.filters]
        blend["datasets"][0]["filters"] = {name: words.split(",") for name, words in found}
    return blend


def _pair(option: str, text: str, example: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found:
        raise SettingsError(f"{option}: {text!r} has no =; write e.g. {example}")
    return name.strip(), value.strip()
