"""Choose the engine of a run by its name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.engine.engine import ENGINES, Engine, EngineName
from headrace.engine.local import LocalEngine
from headrace.errors import SettingsError, setting


def check_engine(engine: str, address: str | None) -> None:
    """Raise `SettingsError` for an unknown engine, or an address that would not be used."""
    if engine not in ENGINES:
        raise SettingsError(
            setting="engine", value=engine, remedy=f"give one of {', '.join(ENGINES)}"
        )
    if address is not None and engine != "ray":
        raise SettingsError(
            "only a Ray cluster has an address",
            setting="address",
            value=address,
            remedy=f"give {setting('engine', 'ray')} with it",
        )


@contextmanager
def engine_named(name: EngineName, address: str | None, workers: int | None) -> Iterator[Engine]:
    """Yield the engine of this name for the duration of the block; `ray_engine` describes how it
    connects to Ray.
    """
    if name == "local":
        yield LocalEngine()
        return
    from headrace.engine.ray import ray_engine  # an extra

    with ray_engine(address, workers=workers) as engine:
        yield engine
