"""Apply a user's function to every batch, after it is made and before the training loop receives
it.

It runs where the batch is made, ahead of the loop: in a thread of the rank's own process, or in
each DataLoader worker. The batch becomes whatever it returns. Only None is refused, because that is
a forgotten `return`. A batch whose transform failed was not delivered, so a state taken after the
error delivers it again.

A transform of two positional parameters also receives a `TransformContext` with the batch's
position in the epoch. Random numbers keyed by its positions are the same on any ranks and workers
and after every resume. Those of the global generators of torch, numpy or Python are not, because
the loop draws from them at the same time.
"""

from __future__ import annotations

import inspect
import multiprocessing.context
import pickle
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from headrace.arrays import F64, I64
from headrace.checks import as_integer
from headrace.digest import derive_key
from headrace.draws import unit
from headrace.errors import SettingsError, StreamError, setting, setting_name
from headrace.keyed_hash import hash_words

Transform = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TransformContext:
    """The position of a batch in its epoch.

    step: the global step in the epoch, position // global batch.
    rank: the rank that received the batch.
    positions: int64 [rows], of the batch's rows in the order of the epoch, the same for a row on
    any ranks and workers;
    -1 for filling rows. None if rows are packed while they are streamed, and with
    distribution="dynamic".
    """

    seed: int
    epoch: int
    step: int
    rank: int
    positions: I64 | None

    def uniform(self, draws: int = 1, *, purpose: str = "") -> F64:
        """Return random numbers in [0, 1) for each row, float64 [rows, draws], keyed by seed, epoch
        and position.

        They are the same for a row on any ranks and workers, and after every resume. purpose:
        another purpose gives other numbers. Raises `SettingsError` if there are no positions.
        """
        draws = as_integer("uniform: draws", draws, least=1)
        if self.positions is None:
            raise SettingsError(
                f"with {setting('pack')} and {setting('distribution', 'dynamic')} rows have no"
                " positions to key random numbers by",
                setting="transform",
                remedy=(
                    "use numpy.random.default_rng((context.seed, context.epoch, context.step,"
                    " context.rank))"
                ),
            )
        words = np.empty((len(self.positions), draws, 2), np.uint64)
        words[:, :, 0], words[:, :, 1] = (
            self.positions.view(np.uint64)[:, None],
            np.arange(draws, dtype=np.uint64),
        )
        high, _ = hash_words(
            derive_key(self.seed, f"transform {purpose}", self.epoch), words.reshape(-1, 2)
        )
        return unit(high).reshape(-1, draws)


def transformed(
    batches: Generator[Any, None, None],
    transform: Transform,
    *,
    reader: str,
    context: Callable[[int], TransformContext],
    numbers: Iterable[int] | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> Generator[Any, None, None]:
    """Yield the transform of each batch, in order; the batches are closed with this generator.

    reader: names this rank and worker in messages; batches count from 0 in the reader's own pass.
    context: returns the context of a batch by its number in the rank's pass. numbers: those of the
    reader's batches there; None: 0, 1, … note: is told what runs, and "" when it is done.
    Raises `StreamError` from what the transform raised, or if it returned None.
    """
    wants_context = takes_context(transform)
    name = name_of(transform)
    with closing(batches):
        for number, in_pass, batch in zip(count(), numbers or count(), batches, strict=False):
            arguments = (batch, context(in_pass)) if wants_context else (batch,)
            note(f"transform {name} of batch {number}")
            result = run_transform(transform, arguments, f"{reader}: batch {number}")
            note("")
            yield result


def run_transform(transform: Transform, arguments: Sequence[Any], where: str) -> Any:
    """Return the transform of a batch. arguments: the batch, and its context if it is wanted.
    where: names the reader and the batch.

    Raises `StreamError` from what the transform raised, or if it returned None.
    """
    where = f"{where} (from 0, in this pass): transform {name_of(transform)}"
    try:
        result = transform(*arguments)
    except Exception as error:
        raise StreamError(
            f"{where} raised {type(error).__name__}: {error}",
            remedy="fix it, then resume from the last state, which does not include this batch",
        ) from error
    if result is None:
        raise StreamError(f"{where} returned None", remedy="end it with `return batch`")
    return result


def takes_context(transform: Transform) -> bool:
    """Check whether a transform is called with (batch, context): its second positional parameter is
    a context.

    That is a parameter without a default, or one named `context`. Parameters that a partial has
    bound do not count, nor does `*args`. A callable without a signature, such as some builtins, is
    called with the batch alone.
    """
    try:
        parameters = list(inspect.signature(transform).parameters.values())
    except (TypeError, ValueError):
        return False
    positional = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return len(positional) > 1 and (
        positional[1].default is inspect.Parameter.empty or positional[1].name == "context"
    )


def check_travels(transform: Transform | None, *, of: str = "transform") -> None:
    """Raise `SettingsError` if a function cannot reach a spawned or forkserver worker; call it
    when pickling. of: the setting that it is given by.
    """
    if transform is None:
        return
    try:
        pickle.dumps(transform)
    except Exception as error:
        raise _cannot_travel(of, transform, f"{type(error).__name__}: {error}") from error
    main = sys.modules.get("__main__")
    if (
        getattr(_named(transform), "__module__", None) == "__main__"
        and multiprocessing.context.get_spawning_popen() is not None
        and getattr(main, "__file__", None) is None
        and getattr(main, "__spec__", None) is None
    ):
        raise _cannot_travel(
            of,
            transform,
            "it is defined in an interactive session, which a new process does not have",
        )


def name_of(transform: Transform) -> str:
    """Return a transform's name: module and name of the function, of the function inside a partial,
    or of the class.
    """
    named = _named(transform)
    return f"{named.__module__}.{named.__qualname__}"


def _named(transform: Transform) -> Any:
    inner: Any = transform
    while isinstance(inner, partial):
        inner = inner.func
    if hasattr(inner, "__qualname__"):
        return inner
    return type(inner)


def _cannot_travel(of: str, transform: Transform, why: str) -> SettingsError:
    return SettingsError(
        f"{setting_name(of)} {name_of(transform)} cannot be sent to spawned or forkserver"
        f" workers ({why})",
        remedy=(
            "define it at the top level of a module, no lambda and no function inside"
            " another, or start the workers by fork"
        ),
    )
