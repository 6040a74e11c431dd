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

_ENGINES = ("local", "ray")
_CODECS = ("zstd", "snappy", "gzip", "lz4", "none")
_RECIPES = ("histories", "packed_sequences", "rewrite", "series", "temporal_split")
_LAYOUTS = (
    "auto",
    "messages",
    "conversations",
    "instruction",
    "prompt_completion",
    "raw_completion",
    "question_answer",
    "text",
    "tokens",
)
_ABOUT_RUN = {"engine": _ENGINES, "fingerprint_by": ("stat", "content"), "report": ("auto", "never")}
_EPOCH = {"distribution": ("balanced", "round_robin", "by_size"), "remainder": ("pad", "drop", "exact")}

WORDS: Mapping[tuple[str, ...], Mapping[str, tuple[str, ...]]] = {
    ("split",): {
        **_ABOUT_RUN,
        "layout": ("sharded", "single"),
        "format": ("same", "csv", "tsv", "jsonl", "parquet"),
        "compression": ("none", "gz", "zst", "snappy", "lz4", "zstd"),
        "null_group": ("error", "own", "drop"),
        "null_date": ("error", "drop"),
        "val_in_test": ("keep", "drop"),
        "schema_drift": ("error", "widen"),
        "shard_numbers": ("keep", "dense"),
        "date_format": (
            "auto",
            "iso",
            "epoch_s",
            "epoch_ms",
            "epoch_us",
            "epoch_ns",
            "epoch_days",
            "excel_days",
            "yyyymmdd",
        ),
    },
    ("pack",): {
        **_ABOUT_RUN,
        "layout": _LAYOUTS,
        "reasoning": ("template", "every_user_turn"),
        "eos": ("append", "none"),
        "nothing_trained": ("reject", "keep"),
        "special_text": ("text", "reject", "control"),
        "capacity": ("stored", "runtime"),
        "algorithm": (
            "fullest_shuffle",
            "best_fit_shuffle",
            "exact_fit_shuffle",
            "first_fit_decreasing",
            "concatenative",
        ),
        "too_long": ("error", "truncate", "drop", "split"),
        "loss_mask_alignment": ("shift_left", "legacy_roll_right"),
        "empty_bins": ("drop", "keep"),
        "reader": ("megatron", "headrace"),
        "compression": _CODECS,
        "packed_storage": ("parquet", "legacy_npy_pickle"),
    },
    ("histories", "prepare"): {
        **_ABOUT_RUN,
        "entity_from": ("column", "file_name"),
        "entity_kind": ("address", "number"),
        "peer_kind": ("address", "number"),
        "value_unit": ("us", "ms", "s"),
        "missing": ("failed", "drop", "error"),
        "negative": ("failed", "drop", "error"),
        "zero": ("value", "failed", "drop", "error"),
        "bad_rows": ("error", "drop"),
        "time_format": ("iso", "epoch_s", "epoch_ms", "epoch_us", "epoch_ns", "epoch_days", "excel_days", "yyyymmdd"),
        "format_": ("array_record", "arrow"),
    },
    ("histories", "plan"): {"rows": ("uniform", "measurements"), "split": ("train", "test")},
    ("series",): {**_ABOUT_RUN, "layout": ("files", "packed")},
    ("rewrite",): {**_ABOUT_RUN, "codec": ("none", "lz4", "zstd")},
    ("run",): _ABOUT_RUN,
    ("schema",): {"recipe": _RECIPES},
    ("index",): {"place": ("beside", "cache")},
    ("peek",): {"layout": _LAYOUTS, "reasoning": ("template", "every_user_turn")},
    ("plan",): _EPOCH,
    ("where",): _EPOCH,
    ("stream",): {
        "distribution": ("balanced", "round_robin", "by_size"),
        "batch_format": ("torch", "numpy", "arrow", "rows"),
    },
}
CONFIGS: Mapping[tuple[str, ...], str] = {("run",): "config", ("series",): "config"}
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
        return found

    command.get_params = untyped
    for parameter in command.params:
        offer = _offer_of(words, str(parameter.name))
        if offer is not None:
            parameter.shell_complete = partial(_offered, offer)


def _as_given(_context: Any, value: Any) -> Any:
    return value


_Offer = Callable[[Any, str], Iterable[tuple[str, str | None]]]


def _offer_of(words: tuple[str, ...], name: str) -> _Offer | None:
    known = WORDS.get(words, {}).get(name)
    if known is not None:
        return lambda _context, _begun: ((word, None) for word in known)
    if CONFIGS.get(words) == name:
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
