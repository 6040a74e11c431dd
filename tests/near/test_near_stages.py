"""Near duplicates as stages of a run: the same pairs from any parts, workers and attempts, and those that are planted."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from headrace.engine.local import LocalEngine
from headrace.errors import SettingsError
from headrace.near import shingles, stages
from headrace.near.shingles import Shingles, shingles_of_texts
from headrace.near.stages import DocumentPart, Near, check_near, find_near
from headrace.run.context import RunContext
from headrace.run.events import Event, TaskDone
from raised import raised


def planted(pairs: int, size: int = 102) -> list[str]:
    """Texts of random words, and after them one for each that has a few other words."""
    draw = random.Random(4)
    texts = [[f"w{draw.randrange(50_000)}" for _ in range(size)] for _ in range(pairs)]
    changed = [list(each) for each in texts]
    for words in changed:
        for at in draw.sample(range(size), draw.randrange(6)):
            words[at] = "other"
    return [" ".join(each) for each in texts + changed]


def parts_of(texts: list[str], count: int, batch: int = 97) -> list[DocumentPart]:
    cuts = np.linspace(0, len(texts), count + 1).astype(int).tolist()

    def part(own: pl.Series) -> DocumentPart:
        def shingles(wanted: Any) -> Iterator[Shingles]:
            asked = own if wanted is None else own.gather(wanted)
            for begin in range(0, len(asked), batch):
                some = asked[begin : begin + batch]
                yield shingles_of_texts(some, np.arange(len(some)), len(some))

        return DocumentPart("texts", 0, shingles)

    return [part(pl.Series("t", texts[a:b], pl.String)) for a, b in pairwise(cuts)]


def found(
    root: Path,
    texts: list[str],
    near: float = 0.8,
    parts: int = 1,
    workers: int = 1,
    **options: Any,
) -> Near:
    on_event = options.get("on_event", lambda _: None)
    return find_near(
        RunContext(made(root), workers, on_event, LocalEngine()), parts_of(texts, parts), near
    )


def made(directory: Path) -> Path:
    directory.mkdir(exist_ok=True)
    return directory


def told(near: Near) -> list[Any]:
    return [
        near.first.tolist(),
        near.second.tolist(),
        near.jaccard.tolist(),
        near.group.tolist(),
        near.not_compared,
    ]


def plain(text: str) -> set[tuple[str, ...]]:
    words = text.split()
    return {tuple(words[at : at + 3]) for at in range(max(1, len(words) - 2))}


def test_planted_pairs_are_found_and_no_other_is_joined(tmp_path: Path) -> None:
    texts = planted(800)
    sets = [plain(text) for text in texts]
    index = [len(a & b) / len(a | b) for a, b in zip(sets[:800], sets[800:], strict=True)]
    near = found(tmp_path / "run", texts)
    pairs = dict(
        zip(
            zip(near.first.tolist(), near.second.tolist(), strict=True),
            near.jaccard.tolist(),
            strict=True,
        )
    )
    expected = {(at, at + 800): value for at, value in enumerate(index) if value >= 0.8}

    assert 400 < len(expected) < 800
    assert pairs.items() <= expected.items()
    assert len(pairs) >= 0.99 * len(expected)
    assert near.not_compared == 0
    assert (near.group == np.arange(1600)).sum() == 1600 - len(pairs)


@pytest.mark.slow
def test_parts_workers_and_the_size_of_tasks_are_of_no_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [*planted(150), "", "short text", "", "Short, text!", *planted(20)]
    expected = told(found(tmp_path / "one", texts))
    monkeypatch.setattr(stages, "_COMPARE_SHINGLES", 5000)

    assert expected == told(found(tmp_path / "many", texts, parts=7, workers=3))
    assert expected == told(found(tmp_path / "more", texts, parts=60, workers=2))
    assert (301, 303) in set(zip(*expected[:2], strict=True))  # case and punctuation do not count
    assert expected[3][300] == 300  # nothing is near an empty document
    assert expected[3][302] == 302


@pytest.mark.slow
def test_shares_of_bands_give_the_same_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = planted(100)
    expected = told(found(tmp_path / "one", texts))
    monkeypatch.setattr(stages, "_PROPOSE_DOCUMENTS", 60)

    assert expected == told(found(tmp_path / "shares", texts, parts=2))


@pytest.mark.parametrize("stage", ["near_sign", "near_propose", "near_shingles", "near_compare"])
def test_what_is_interrupted_goes_on_to_the_same_pairs(tmp_path: Path, stage: str) -> None:
    texts = planted(60)
    heard: list[str] = []

    def stop(event: Event) -> None:
        if isinstance(event, TaskDone) and event.stage == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        found(tmp_path / "run", texts, parts=3, on_event=stop)
    before = len(list((tmp_path / "run" / "receipts").iterdir()))
    again = found(
        tmp_path / "run", texts, parts=3, on_event=lambda event: heard.append(type(event).__name__)
    )

    assert told(found(tmp_path / "whole", texts)) == told(again)
    assert before > 0


@pytest.mark.slow
def test_thousands_of_equal_texts_and_of_one_template_take_few_pairs_each(tmp_path: Path) -> None:
    equal = found(tmp_path / "equal", ["the very same text of seven words"] * 5000)
    assert (equal.compared, int(equal.group.max()), equal.not_compared) == (4999, 0, 0)

    draw = random.Random(5)
    words = [f"w{number}" for number in range(60)]
    texts = [
        " ".join([*words[:30], f"order {draw.randrange(10**9)}", *words[30:]]) for _ in range(3000)
    ]
    template = found(tmp_path / "template", texts)
    assert template.compared <= 60 * 3000
    assert int(template.group.max()) == 0
    assert template.not_compared == 0


@pytest.mark.slow
def test_near_texts_are_found_among_thousands_of_one_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shingles, "LEAST_PAIRS", 0)
    draw = random.Random(6)
    words = [f"w{number}" for number in range(100)]

    def changed(text: list[str], count: int) -> list[str]:
        text = list(text)
        for at in draw.sample(range(100), count):
            text[at] = f"v{draw.randrange(10**6)}"
        return text

    texts = [changed(words, 5) for _ in range(3000)]
    texts += [changed(text, 2) for text in texts[:300]]
    near = found(tmp_path / "run", [" ".join(text) for text in texts])

    assert near.compared <= 20 * 6 * 3300
    assert near.not_compared > 0
    assert (near.group[:300] == near.group[3000:]).mean() > 0.95
    assert near.jaccard.min() >= 0.8


def test_no_documents_have_no_pairs(tmp_path: Path) -> None:
    assert told(found(tmp_path / "none", [], parts=2)) == [[], [], [], [], 0]
    assert told(find_near(RunContext(made(tmp_path / "parts"), 1, lambda _: None), [], 0.8)) == [
        [],
        [],
        [],
        [],
        0,
    ]
    assert told(found(tmp_path / "blank", ["", "."])) == [[], [], [], [0, 1], 0]


@pytest.mark.parametrize("near", [0.0, 0.49, 1.01, float("nan")])
def test_thresholds_that_no_bands_are_made_for_are_refused(near: float) -> None:
    with raised(SettingsError, setting="near", remedy="give a Jaccard index from 0.5 to 1"):
        check_near(near)
