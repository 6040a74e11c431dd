"""What a shell completes beside commands and options: words that options take, runs, splits, configuration files.

Paths are the shell's own affair: where nothing is offered here, it offers files. Nothing here imports a library of data
or reads more than names of files, because people wait for every TAB.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from headrace.recipe import registrations

# Every command that prepares has these.
_ABOUT_RUN = {"engine": ("local", "ray"), "fingerprint_by": ("stat", "content"), "report": ("auto", "never")}
_EPOCH = {"distribution": ("balanced", "round_robin", "by_size"), "remainder": ("pad", "drop", "exact")}

# Of the commands that belong to no recipe; a registration has those of its own.
_WORDS: Mapping[tuple[str, ...], Mapping[str, tuple[str, ...]]] = {
    ("index",): {"place": ("beside", "cache")},
    ("plan",): _EPOCH,
    ("where",): _EPOCH,
    ("stream",): {
        "distribution": ("balanced", "round_robin", "by_size"),
        "batch_format": ("torch", "numpy", "arrow", "rows"),
    },
}
OUTPUTS: Mapping[tuple[str, ...], str] = {
    ("inspect",): "out",
    ("verify",): "out",
    ("gc",): "out",
    ("report",): "paths",
    ("histories", "plan"): "path",
}


@dataclass(frozen=True)
class Offered:
    """What a shell is told of a word; the attributes are those of click."""

    value: str
    help: str | None = None
    type: str = "plain"


def words_of(command: tuple[str, ...], name: str) -> tuple[str, ...]:
    """The words that a command's parameter takes; none where it takes other values."""
    if (command, name) == (("schema",), "recipe"):
        return tuple(registrations())
    own = (recipe.words.get(command, {}) for recipe in registrations().values())
    found = (words[name] for words in (*own, _WORDS.get(command, {}), _ABOUT_RUN) if name in words)
    return next(found, ())


def attach(command: Any, words: tuple[str, ...] = ()) -> None:
    """Give the parameters of a command, and of all below it, what they offer; values stay the texts they are.

    To make values of their types, pydantic would be imported: half of what a TAB takes.
    """
    for name, below in getattr(command, "commands", {}).items():
        attach(below, (*words, name))
    parameters = command.get_params

    def untyped(context: Any) -> Any:
        found = parameters(context)
        for each in found:
            each.process_value = _as_given
            offer = _offer_of(words, str(each.name))
            if offer is not None:
                each.shell_complete = partial(_offered, offer)
        return found

    command.get_params = untyped


def _as_given(_context: Any, value: Any) -> Any:
    return value


_Offer = Callable[[Any, str], Iterable[tuple[str, str | None]]]


def _offer_of(words: tuple[str, ...], name: str) -> _Offer | None:
    known = words_of(words, name)
    if known:
        return lambda _context, _begun: ((word, None) for word in known)
    if name == "config" and words[0] != "init":  # which writes a new one
        return lambda _context, begun: _files(begun, (".yaml", ".yml", ".json"))
    if OUTPUTS.get(words) == name:
        return lambda _context, begun: _datasets(begun)
    return {"run_id": _runs, "split": _splits}.get(name)


def _offered(offer: _Offer, context: Any, begun: str) -> list[Offered]:
    try:
        found = list(offer(context, begun))
    except (OSError, ValueError):  # what cannot be read offers nothing: a shell is no place for errors
        return []
    return [Offered(value, told) for value, told in sorted(found) if value.startswith(begun)]


def _below(begun: str) -> tuple[str, Path]:
    """What a path begins with, up to its last slash, and the directory that this is."""
    head = begun[: begun.rfind("/") + 1]
    return head, Path(os.path.expanduser(head or "."))


def _files(begun: str, endings: tuple[str, ...]) -> Iterable[tuple[str, None]]:
    head, place = _below(begun)
    return ((head + each.name, None) for each in os.scandir(place) if each.name.endswith(endings))


def _datasets(begun: str) -> Iterable[tuple[str, None]]:
    """Dataset directories, and runs inside one."""
    head, place = _below(begun)
    for each in os.scandir(place):
        path = place / each.name
        if (path / "manifest.json").exists() or ((path / "runs").is_dir() and not each.name.startswith(".")):
            yield head + each.name, None


def _output_of(context: Any) -> Path | None:
    """The directory that the command line has named so far."""
    loose = [each for each in context.args if not each.startswith("-")]  # an option without its value ends the parsing
    given = next((context.params[name] for name in ("out", "path", "paths") if context.params.get(name)), loose)
    found = given[0] if isinstance(given, list | tuple) and given else given
    return None if not found else Path(os.path.expanduser(str(found)))


def _runs(context: Any, _begun: str) -> Iterable[tuple[str, None]]:
    """Finished runs: those with a manifest."""
    out = _output_of(context)
    if out is None:
        return []
    return ((each.name, None) for each in os.scandir(out / "runs") if Path(each, "manifest.json").exists())


def _splits(context: Any, _begun: str) -> Iterable[tuple[str, None]]:
    out = _output_of(context)
    return [] if out is None else ((each.name, None) for each in os.scandir(out / "splits"))
