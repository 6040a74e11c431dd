"""The engine that was asked for, for as long as a run needs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.engine.engine import Engine, EngineName
from headrace.engine.local import LocalEngine


@contextmanager
def engine_named(name: EngineName, address: str | None, workers: int | None) -> Iterator[Engine]:
    """The engine of this name; with Ray, connected as `ray_engine` says."""
    if name == "local":
        yield LocalEngine()
        return
    from headrace.engine.ray import ray_engine  # an extra

    with ray_engine(address, workers=workers) as engine:
        yield engine
