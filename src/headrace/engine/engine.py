"""Define engines, which run independent tasks, each at least once, and return their results in
order.

A task is called with an observer, a function that takes the events of its progress. They reach the
caller's observer in the order in which the task made them. A task may run more than once (a node
died while it worked), so it must leave the same files each time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeVar

Result = TypeVar("Result")
EngineName = Literal["local", "ray"]
ENGINES: tuple[EngineName, ...] = ("local", "ray")

Observer = Callable[[Any], None]


class Engine(Protocol):
    """An executor of independent tasks."""

    def default_workers(self) -> int:
        """Return the default number of concurrent tasks."""

    def machines(self) -> int:
        """Return the number of machines that tasks are spread over; a memory limit applies
        to each.
        """

    def run(
        self, tasks: Sequence[Callable[[Observer], Result]], workers: int, *, on_event: Observer
    ) -> list[Result]:
        """Return results in task order. Raises the error of the first failing task in task order.

        At most `workers` tasks run at a time, started in order.
        """
