"""Tasks as bytes: they do the same elsewhere, and what they share is sent once."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from ray import cloudpickle

from headrace.engine.ray import Packed, load_shared, load_task
from headrace.errors import CorruptShard, HeadraceError, InputError, MissingExtra, SettingsError


@dataclass(frozen=True)
class Plan:
    name: str
    array: np.ndarray
    table: pa.Table
    names: list[str]


@dataclass(frozen=True)
class Piece:
    number: int
    names: list[str]


def plan_of(rows: int) -> Plan:
    values = np.arange(rows, dtype=np.int64)
    return Plan(
        "a plan", values, pa.table({"x": values + 1}), [f"file {n}" for n in range(rows // 100)]
    )


def tasks_over(plan: Plan, count: int) -> list[Callable[[int], Any]]:
    def task(number: int) -> Callable[[int], Any]:
        piece = Piece(number, plan.names)
        return lambda more: (
            piece.number + more,
            int(plan.array[number]),
            plan.table["x"][number].as_py(),
            piece.names[-1],
        )

    return [task(number) for number in range(count)]


def elsewhere(tasks: list[Callable[..., Any]]) -> list[Callable[..., Any]]:
    packed = Packed(tasks, cloudpickle.Pickler)
    buffers = [bytes(buffer.raw()) for buffer in packed.buffers]
    shared = load_shared(packed.shared, buffers)
    return [load_task(packed.task(number), shared) for number in range(len(tasks))]


@pytest.mark.parametrize("count", [0, 1, 2, 17])
def test_tasks_do_the_same_after_the_journey(count: int) -> None:
    tasks = tasks_over(plan_of(20_000), count)

    loaded = elsewhere(tasks)

    assert [task(3) for task in tasks] == [task(3) for task in loaded]


def test_a_task_is_small_however_much_it_shares() -> None:
    packed = Packed(tasks_over(plan_of(100_000), 50), cloudpickle.Pickler)

    assert max(len(packed.task(number)) for number in range(50)) < 3000
    assert len(packed.shared) < 40_000  # a thousand names and no array
    assert sorted([800_000, 800_000]) == sorted(buffer.raw().nbytes for buffer in packed.buffers)


def test_what_was_one_object_stays_one() -> None:
    first, second = elsewhere(tasks_over(plan_of(5000), 2))
    cells = [dict(zip(task.__code__.co_freevars, (c.cell_contents for c in task.__closure__), strict=True)) for task in (first, second)]  # fmt: skip

    assert cells[0]["plan"] is cells[1]["plan"]
    assert cells[0]["piece"].names is cells[1]["piece"].names is cells[0]["plan"].names


def test_arrays_that_travel_are_read_only_views_of_what_is_kept() -> None:
    packed = Packed(tasks_over(plan_of(20_000), 2), cloudpickle.Pickler)
    kept = [np.frombuffer(buffer.raw(), np.uint8).copy() for buffer in packed.buffers]
    for each in kept:
        each.flags.writeable = False
    plan = next(each for each in load_shared(packed.shared, kept) if isinstance(each, Plan))

    assert not plan.array.flags.writeable
    assert any(np.shares_memory(plan.array.view(np.uint8), each) for each in kept)


def test_partials_share_their_arguments_too() -> None:
    values = np.arange(50_000)
    tasks = [functools.partial(int.__add__, number) for number in range(3)]
    wrapped = [
        functools.partial(lambda task, array: task(int(array[-1])), task, values) for task in tasks
    ]
    packed = Packed(wrapped, cloudpickle.Pickler)

    assert [49_999, 50_000, 50_001] == [task() for task in elsewhere(wrapped)]
    assert 1 == len(packed.buffers)


@pytest.mark.parametrize("kind", [HeadraceError, SettingsError, InputError, CorruptShard])
def test_errors_survive_the_journey(kind: type[HeadraceError]) -> None:
    error = pickle.loads(pickle.dumps(kind("a.csv: row 3 is 'x'; correct it")))

    assert (kind, "a.csv: row 3 is 'x'; correct it") == (type(error), str(error))


def test_an_error_that_is_built_from_other_words_survives_as_well() -> None:
    error = pickle.loads(pickle.dumps(MissingExtra("ray", "ray")))

    assert (MissingExtra, str(MissingExtra("ray", "ray"))) == (type(error), str(error))
