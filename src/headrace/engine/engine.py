"""Engines run independent tasks, each at least once, and give their results in order.

A task is called with `tell`, through which it says what it is doing; what it says arrives at `hear` in the caller's
process, in the task's own order. A task may be done more than once (a node died while it worked), so it must leave the
same files however often it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol, TypeVar

from headrace.errors import SettingsError

Result = TypeVar("Result")
EngineName = Literal["local", "ray"]
ENGINES: tuple[EngineName, ...] = ("local", "ray")

Tell = Callable[[Any], None]


class Engine(Protocol):
    """Runs independent tasks."""

    def default_workers(self) -> int:
        """Tasks at a time by default."""

    def machines(self) -> int:
        """Over how many machines tasks are spread: a limit of memory holds for each."""

    def run(
        self,
        tasks: Sequence[Callable[[Tell], Result]],
        workers: int,
        *,
        hear: Tell,
        done: Callable[[int, Result], None],
    ) -> list[Result]:
        """Results in task order. Raises the error of the first failing task in task order.

        At most `workers` tasks at a time, begun in order. `done` hears of every finished task, by its place.
        """


def check_engine(engine: str, address: str | None) -> None:
    """Raise `SettingsError` for an unknown engine, or an address that would not be used."""
    if engine not in ENGINES:
        raise SettingsError(f"engine is {engine!r}; give one of {', '.join(ENGINES)}")
    if address is not None and engine != "ray":
        raise SettingsError(f'address is {address!r}, which is of a Ray cluster; give engine="ray" with it')


@contextmanager
def engine_named(name: EngineName, address: str | None, workers: int | None) -> Iterator[Engine]:
    """The engine of this name, for as long as the block lasts; Ray is connected to as `ray_engine` says."""
    if name == "local":
        from headrace.engine.local import LocalEngine

        yield LocalEngine()
        return
    from headrace.engine.ray import ray_engine  # an extra

    with ray_engine(address, workers=workers) as engine:
        yield engine
