"""Define engines, which run independent tasks, each at least once, and return their results in
order.

A task is called with an observer, a function that takes the events of its progress. They reach the
caller's observer in the order in which the task made them. A task may run more than once (a node
died while it worked), so it must leave the same files each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol, TypeVar

from headrace.errors import SettingsError

Result = TypeVar("Result")
EngineName = Literal["local", "ray"]
ENGINES: tuple[EngineName, ...] = ("local", "ray")

Observer = Callable[[Any], None]


class Engine(Protocol):
    """An executor of independent tasks."""

    def default_workers(self) -> int:
        """Return the default number of concurrent tasks."""

    def machines(self) -> int:
        """Return the number of machines that tasks are spread over; a memory limit applies to each."""

    def run(
        self, tasks: Sequence[Callable[[Observer], Result]], workers: int, *, on_event: Observer
    ) -> list[Result]:
        """Return results in task order. Raises the error of the first failing task in task order.

        At most `workers` tasks run at a time, started in order.
        """


def check_engine(engine: str, address: str | None) -> None:
    """Raise `SettingsError` for an unknown engine, or an address that would not be used."""
    if engine not in ENGINES:
        raise SettingsError(f"engine is {engine!r}; give one of {', '.join(ENGINES)}")
    if address is not None and engine != "ray":
        raise SettingsError(
            f'address is {address!r}, which is of a Ray cluster; give engine="ray" with it'
        )


@contextmanager
def engine_named(name: EngineName, address: str | None, workers: int | None) -> Iterator[Engine]:
    """Yield the engine of this name for the duration of the block; `ray_engine` describes how it
    connects to Ray.
    """
    if name == "local":
        from headrace.engine.local import LocalEngine

        yield LocalEngine()
        return
    from headrace.engine.ray import ray_engine  # an extra

    with ray_engine(address, workers=workers) as engine:
        yield engine
