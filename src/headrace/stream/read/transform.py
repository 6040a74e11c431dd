"""A function of the user's own over every batch, after it is made and before the training loop has it.

It runs where the batch is made: in the rank's own process, or in each DataLoader worker, to which it then travels. What
it returns is the batch from there on, whatever it is; only None is refused, as that is a forgotten `return`. A batch
whose transform failed was not delivered: a state taken after the error brings it again.
"""

from __future__ import annotations

import multiprocessing.context
import pickle
import sys
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any

from headrace.errors import SettingsError, StreamError

Transform = Callable[[Any], Any]


def transformed(
    batches: Generator[Any, None, None], transform: Transform, *, reader: str
) -> Generator[Any, None, None]:
    """What the transform makes of each batch, in order; the batches are closed with this generator.

    reader: names this rank and worker in messages; batches count from 0 in the reader's own pass.
    Raises `StreamError` from what the transform raised, or if it returned None.
    """
    with closing(batches):
        for number, batch in enumerate(batches):
            try:
                done = transform(batch)
            except Exception as error:
                raise StreamError(
                    f"{reader}: batch {number} (from 0, in this pass): transform {name_of(transform)} raised"
                    f" {type(error).__name__}: {error}; mend it, then resume from the last state, which has not seen"
                    " this batch"
                ) from error
            if done is None:
                raise StreamError(
                    f"{reader}: batch {number} (from 0, in this pass): transform {name_of(transform)} returned None;"
                    " end it with `return batch`"
                )
            yield done


def check_travels(transform: Transform | None) -> None:
    """Raise `SettingsError` if a transform cannot reach a spawned or forkserver worker; call it when pickling."""
    if transform is None:
        return
    try:
        pickle.dumps(transform)
    except Exception as error:
        raise _cannot_travel(transform, f"{type(error).__name__}: {error}") from error
    main = sys.modules.get("__main__")
    if (
        _module_of(transform) == "__main__"
        and multiprocessing.context.get_spawning_popen() is not None
        and getattr(main, "__file__", None) is None
        and getattr(main, "__spec__", None) is None
    ):
        raise _cannot_travel(transform, "it is defined in an interactive session, which a new process does not have")


def name_of(transform: Transform) -> str:
    """How messages call a transform: module and name of the function, or of what a partial calls, or the class."""
    inner = getattr(transform, "func", transform)
    named = inner if hasattr(inner, "__qualname__") else type(inner)
    return f"{named.__module__}.{named.__qualname__}"


def _module_of(transform: Transform) -> str | None:
    inner = getattr(transform, "func", transform)
    return getattr(inner if hasattr(inner, "__qualname__") else type(inner), "__module__", None)


def _cannot_travel(transform: Transform, why: str) -> SettingsError:
    return SettingsError(
        f"transform {name_of(transform)} cannot be sent to spawned or forkserver workers ({why}); define it at the top"
        " level of a module, no lambda and no function inside another, or start the workers by fork"
    )
