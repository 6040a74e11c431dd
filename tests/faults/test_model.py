"""A run's life against a model of two words: what was done to it, and so what it must be now.

Steps: prepare, a kill in the middle of one, a damaged file, a sweep, a verification. The model knows whether there is a
finished run and which of its files are damaged; the run is made small, so that hundreds of lives are affordable.
"""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

import pytest
from damaged_runs import files_of, harmed
from fault_recipes import RECIPES, make, place, settings_of
from fault_table import note
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from killed_runs import expected, kill_at_step

import headrace
from headrace.errors import HeadraceError, InputError
from headrace.storage.local import strays
from places import remove
from tables import digests

EXAMPLES, STEPS = int(os.environ.get("HEADRACE_MODEL_EXAMPLES", "200")), 50
KILLS = ["shard.written", "shard.synced", "shard.linked", "receipt.linked", "index.linked"]


class Life(RuleBasedStateMachine):
    """begun: there is a run's directory. finished: there is a manifest. damaged: file → its whole bytes.

    Which steps may come is said by the model alone: what a kill leaves on the disk depends on its threads.
    """

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(dir=place()))
        self.out = self.place / "out"
        self.begun = self.finished = False
        self.damaged: dict[Path, bytes] = {}

    @initialize(name=st.sampled_from(["split csv.gz", "rewrite"]))
    def choose(self, name: str) -> None:
        self.name = name

    @rule()
    def prepare(self) -> None:
        if any(path.name == "manifest.json" for path in self.damaged):
            with pytest.raises(HeadraceError, match="manifest"):
                make(self.name, settings_of(self.name), self.out)
            return
        prepared = make(self.name, settings_of(self.name), self.out)

        assert ("reused" if self.finished else "computed") == prepared.how
        self.begun = self.finished = True
        if not self.damaged:
            assert expected(self.name).files == digests(prepared.run)

    @precondition(lambda self: not self.finished)
    @rule(step=st.sampled_from(KILLS), count=st.integers(1, 4))
    def killed(self, step: str, count: int) -> None:
        done = list(self.out.glob("runs/*/receipts/[!.]*.json"))
        if done and step != "index.linked":
            return  # so many of these steps may not be left
        kill_at_step(self.name, self.out, step, 1 if step == "index.linked" else count)
        self.begun = True

    @precondition(lambda self: self.finished and not self.damaged)
    @rule(seed=st.integers(0, 10_000), harm=st.sampled_from(["flip", "cut"]))
    def damage(self, seed: int, harm: str) -> None:
        (run,) = (self.out / "runs").iterdir()
        random_ = random.Random(seed)
        path = random_.choice(files_of(run))
        self.damaged[path] = path.read_bytes()
        other = path.with_name(path.name + ".new")
        other.write_bytes(harmed(self.damaged[path], harm, random_))  # type: ignore[arg-type]
        other.replace(path)  # a second name of the file keeps its bytes

    @precondition(lambda self: self.damaged)
    @rule()
    def restore(self) -> None:
        for path, data in self.damaged.items():
            path.write_bytes(data)
        self.damaged = {}

    @precondition(lambda self: self.begun and not self.finished)
    @rule(seed=st.integers(0, 10_000), harm=st.sampled_from(["flip", "cut"]))
    def damage_what_is_not_finished(self, seed: int, harm: str) -> None:
        random_ = random.Random(seed)
        (run,) = (self.out / "runs").iterdir()
        named = sorted((run / "receipts").glob("[!.]*.json"))
        if not named:
            return
        path = random_.choice(named)
        path.write_bytes(harmed(path.read_bytes(), harm, random_))  # type: ignore[arg-type]

    @precondition(
        lambda self: self.begun and not any(each.name == "manifest.json" for each in self.damaged)
    )
    @rule()
    def sweep(self) -> None:
        headrace.collect(self.out)

        assert [] == strays(self.out)

    @rule()
    def verify(self) -> None:
        if not self.finished:
            with pytest.raises(InputError):
                headrace.verify(self.out, workers=1)
            return
        try:
            problems = headrace.verify(self.out, workers=1).problems
        except HeadraceError as error:
            problems = [str(error)]

        assert bool(self.damaged) == bool(problems), problems

    @precondition(lambda self: self.finished)
    @rule()
    def read(self) -> None:
        try:
            found = RECIPES[self.name].read(self.out)
        except HeadraceError:
            assert self.damaged
            return

        assert (
            RECIPES[self.name].read(
                make(self.name, settings_of(self.name), self.place / "good").out
            )
            == found
        )

    @invariant()
    def done_is_the_manifest(self) -> None:
        assert self.finished == bool(list(self.out.glob("runs/*/manifest.json")))

    def teardown(self) -> None:
        note("model", self.name)
        remove(self.place)


def live(examples: int, steps: int) -> None:
    for name in ("split csv.gz", "rewrite"):
        expected(name)
    run_state_machine_as_test(
        Life,
        settings=settings(
            settings.get_profile("headrace"), max_examples=examples, stateful_step_count=steps
        ),
    )


@pytest.mark.slow
def test_lives_agree_with_the_model() -> None:
    live(3, 10)


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_many_lives_agree_with_the_model() -> None:
    live(EXAMPLES, STEPS)
