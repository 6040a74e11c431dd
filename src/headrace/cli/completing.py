"""Complete values in a shell: words that options take, runs, splits, configuration files.

A shell completes paths itself if nothing is offered here. This module imports no data libraries and reads only file
names, because people wait for every TAB.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from headrace.recipe import recipes


@dataclass(frozen=True)
class Offered:
    """A word offered to a shell, with the attributes that click expects."""

    value: str
    help: str | None = None
    type: str = "plain"


def words_of(command: tuple[str, ...], name: str) -> tuple[str, ...]:
    """Return the words that recipes offer for a command's parameter; other flags define their own."""
    if (command, name) == (("schema",), "recipe"):
        return tuple(recipes())
    own = (recipe.words.get(command, {}) for recipe in recipes().values())
    return next((words[name] for words in own if name in words), ())


def attach(command: Any, words: tuple[str, ...] = ()) -> None:
    """Give completions to the parameters of a command and its subcommands; values stay texts.

    Converting values to their types would import pydantic, which takes half the time of a TAB.
    """
    for name, below in getattr(command, "commands", {}).items():
        attach(below, (*words, name))
    parameters = command.get_params

    def untyped(context: Any) -> Any:
        found = parameters(context)
        for each in found:
            each.process_value = lambda _context, value: value
            offer = _offer_of(words, str(each.name), each.param_type_name)
            if offer is not None:
                each.shell_complete = partial(_offered, offer)
        return found

    command.get_params = untyped


_Offer = Callable[[Any, str], Iterable[str]]


def _offer_of(words: tuple[str, ...], name: str, kind: str) -> _Offer | None:
    known = words_of(words, name)
    if known:
        return lambda _context, _begun: known
    if name == "config" and words[0] != "init":  # init writes a new file
        return _configs
    if name in ("out", "paths") and kind == "argument":
        return lambda _context, begun: datasets(begun)
    return {"run_id": _runs, "split": _splits}.get(name)


def _offered(offer: _Offer, context: Any, begun: str) -> list[Offered]:
    try:
        found = list(offer(context, begun))
    except (OSError, ValueError):  # offer nothing, because an error would garble the shell's line
        return []
    return [Offered(value) for value in sorted(found) if value.startswith(begun)]


def _below(begun: str) -> tuple[str, Path]:
    """Return the path up to its last slash, and the directory it names."""
    head = begun[: begun.rfind("/") + 1]
    return head, Path(os.path.expanduser(head or "."))


def _configs(_context: Any, begun: str) -> Iterable[str]:
    head, place = _below(begun)
    return (head + each.name for each in os.scandir(place) if each.name.endswith((".yaml", ".yml", ".json")))


def datasets(begun: str) -> list[str]:
    """Return the dataset directories, and runs inside one, whose path begins with this text."""
    head, place = _below(begun)
    paths = [place / each.name for each in os.scandir(place)] if place.is_dir() else []
    return sorted(
        head + path.name
        for path in paths
        if (path / "manifest.json").exists() or ((path / "runs").is_dir() and not path.name.startswith("."))
        if (head + path.name).startswith(begun)
    )


def _output_of(context: Any) -> Path | None:
    """Return the directory that the command line has named so far; None if there is none."""
    loose = [each for each in context.args if not each.startswith("-")]  # an option without a value stops the parser
    given = next((context.params[name] for name in ("out", "path", "paths") if context.params.get(name)), loose)
    found = given[0] if isinstance(given, list | tuple) and given else given
    return None if not found else Path(os.path.expanduser(str(found)))


def _runs(context: Any, _begun: str) -> Iterable[str]:
    """Return the finished runs, which have a manifest."""
    out = _output_of(context)
    there = () if out is None else os.scandir(out / "runs")
    return (each.name for each in there if Path(each, "manifest.json").exists())


def _splits(context: Any, _begun: str) -> Iterable[str]:
    out = _output_of(context)
    return [] if out is None else (each.name for each in os.scandir(out / "splits"))
