"""Settings of the worker processes of a stream, checked when they are built."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict, get_args

from headrace.checks import as_integer, check_word
from headrace.errors import SettingsError, setting, setting_name

StartMethod = Literal["fork", "spawn", "forkserver"]


class WorkerArguments(TypedDict, total=False):
    """The settings of a stream's worker processes other than their number; see `WorkerOptions`."""

    multiprocessing_context: StartMethod
    prefetch_factor: int
    worker_init_fn: Callable[[int], object] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Settings of worker processes, with the names that a DataLoader of torch gives to them.

    workers: processes that run the transform; 0: a thread of this process does.
    multiprocessing_context: how they are started.
    prefetch_factor: batches that each of them has at a time, one in work and others waiting.
    worker_init_fn: called once in every worker with its number, before its first batch.

    Raises `SettingsError` when built with values that cannot work, or that no worker would use.
    """

    workers: int = 0
    multiprocessing_context: StartMethod = "spawn"
    prefetch_factor: int = 2
    worker_init_fn: Callable[[int], object] | None = None

    def __post_init__(self) -> None:
        for name, least in (("workers", 0), ("prefetch_factor", 1)):
            object.__setattr__(self, name, as_integer(name, getattr(self, name), least=least))
        check_word("multiprocessing_context", self.multiprocessing_context, get_args(StartMethod))
        if self.multiprocessing_context not in multiprocessing.get_all_start_methods():
            raise SettingsError(
                "this system cannot start processes in this way",
                setting="multiprocessing_context",
                value=self.multiprocessing_context,
                remedy=f"give one of {', '.join(multiprocessing.get_all_start_methods())}",
            )
        if self.worker_init_fn is not None and not callable(self.worker_init_fn):
            raise SettingsError(
                setting="worker_init_fn",
                value=self.worker_init_fn,
                remedy="give a function of the worker's number, or None",
            )
        if self.workers:
            return
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                raise SettingsError(
                    f"{setting_name(field.name)} is for worker processes, and"
                    f" {setting('workers', 0)} starts none",
                    value=value,
                    remedy=f"give {setting('workers')}, or leave it out",
                )


def split_worker_options(workers: int, options: Mapping[str, Any]) -> tuple[WorkerOptions, Any]:
    """Return the settings of workers, and the other options of a stream, which their own functions
    check. Raises as `WorkerOptions` does.
    """
    others = dict(options)
    named = {name: others.pop(name) for name in WorkerArguments.__annotations__ if name in others}
    return WorkerOptions(workers=workers, **named), others
