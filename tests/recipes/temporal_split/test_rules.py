"""A row goes where the rules in words say, row by row: the first reason that applies, else its split."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.split.allocate import Allocation, Hashes
from headrace.split.content import Repeats
from headrace.split.cutoff import DateBins
from headrace.split.features import duplicates, exclude, folds, known_at
from headrace.split.reasons import SENTENCES
from headrace.split.rules import (
    OF_ALL_SPLITS,
    OF_LABELS,
    OF_ONE_CUT,
    OF_REACHES,
    OneCut,
    Output,
    SplitPlan,
    classify,
)
from headrace.split.scan import HOLDS_ITEM, KNOWN_LATE, MISSING_LABEL, UNREADABLE_TIME, Scanned
from headrace.split.settings import TemporalSplit
from laws import examples

CUT = dt.datetime(2025, 1, 1, tzinfo=dt.UTC)
HOUR_US = 3_600_000_000
CUT_US = int(CUT.timestamp()) * 1_000_000
ENTITIES, KNOWN = 8, 6  # the last two are not known before the cutoff
RULES = (
    *OF_ALL_SPLITS,
    *OF_REACHES,
    *OF_ONE_CUT,
    OF_LABELS,
    exclude.RULE,
    known_at.RULE,
    folds.RULE,
    duplicates.CONTENT_BEFORE_CUTOFF,
    duplicates.DUPLICATE,
)

rows = st.lists(
    st.tuples(
        st.integers(-1, ENTITIES - 1),
        st.none() | st.integers(-30, 30),
        st.integers(0, 31).map(lambda flags: flags & ~4),
        st.integers(0, 5),
    ),
    max_size=60,
)
asked = st.fixed_dictionaries(
    {
        "entity": st.sampled_from(["id", "id", None]),
        "gap": st.none() | st.sampled_from(["3h", "9h"]),
        "label_horizon": st.none() | st.sampled_from(["2h", "12h"]),
        "val_in_test": st.sampled_from(["keep", "drop"]),
        "null_entity": st.sampled_from(["own", "drop"]),
        "duplicates": st.sampled_from(["count", "group", "drop"]),
    }
)


def of(config: dict[str, Any]) -> TemporalSplit:
    if config["entity"] is None:
        config = {**config, "val_in_test": "keep", "null_entity": "error"}
        if config["duplicates"] == "group":
            config["duplicates"] = "drop"
    return TemporalSplit(source="raw", time="time", split_date="2025-01-01", **config)


def reason(
    split: TemporalSplit,
    sides: list[int],
    row: tuple[int, int | None, int, int],
    number: int,
    first: dict[int, int],
) -> str:
    """The rules, in words."""
    entity, hour, flags, content = row
    if flags & UNREADABLE_TIME:
        return "unreadable_time"
    if hour is None:
        return "null_time"
    without = split.entity is None
    if entity < 0 and not without and split.null_entity == "drop":
        return "null_entity"
    side = sides[-1] if entity < 0 else sides[entity]
    early = hour < 0
    for name, setting in (
        ("gap_before_cutoff", split.gap),
        ("label_past_cutoff", split.label_horizon),
    ):
        if setting is not None and early and hour >= -int(setting[:-1]):
            return name
    if not without and not early and side == 0:
        return "train_entity_after_cutoff"
    if split.val_in_test == "drop" and not early and side == 1:
        return "val_entity_after_cutoff"
    if flags & MISSING_LABEL:
        return "missing_label"
    if flags & HOLDS_ITEM:
        return "in_benchmark"
    if flags & KNOWN_LATE:
        return "known_late"
    place = "test"
    if early:
        place = "train" if without else ("train", "val", "test")[side]
    if split.duplicates == "group" and place == "test" and content in first:
        return "content_before_cutoff"
    if split.duplicates == "drop" and content in first and first[content] != number:
        return "duplicate"
    return place


@given(rows, asked, st.randoms(use_true_random=False))
@settings(max_examples=examples(400))
def test_a_row_has_the_first_reason_that_applies(
    table: list[Any], config: dict[str, Any], random: Any
) -> None:
    split = of(dict(config))
    sides = [random.randrange(2) for _ in range(KNOWN)] + [2] * (ENTITIES - KNOWN)
    own_side = random.randrange(2) if split.null_entity == "own" and split.entity is not None else 2
    # Contents that repeat, and for "drop" the row of each that stays; 0 is no content.
    repeated = {content: random.randrange(max(1, len(table))) for content in (2, 4)}
    high = np.arange(ENTITIES + 1, dtype=np.uint64) << np.uint64(40)
    known = np.array([*range(KNOWN), *([ENTITIES] if own_side < 2 else [])])
    hashes = Hashes(high, high)
    plan = SplitPlan(
        output=Output(
            settings=split, source=None, file_type=None, parquet_compression="", separator="",  # type: ignore[arg-type]
        ),
        schema=None,
        placement=OneCut(
            split,
            Allocation(
                hashes.take(known), np.array([*sides[:KNOWN], *([own_side] if own_side < 2 else [])], np.uint8), 1
            ),
        ),
        rules=(
            *OF_ALL_SPLITS,
            *(rule for rule in OF_REACHES if rule.reason in split.reaches_us()),
            *OF_ONE_CUT,
            OF_LABELS,
            exclude.RULE,
            known_at.RULE,
            duplicates.CONTENT_BEFORE_CUTOFF,
            duplicates.DUPLICATE,
        ),
        null_entity=hashes.take(np.array([ENTITIES])),
        clock="utc",
        bins=DateBins.over(0, 1, 0),
        repeats=Repeats(
            np.array(sorted(repeated), np.uint64),
            np.array([repeated[content] for content in sorted(repeated)]) if split.duplicates == "drop" else None,
        ),
    )  # fmt: skip
    missing = np.iinfo(np.int64).min
    entity = [-1 if split.entity is None else row[0] for row in table]
    scanned = Scanned(
        shard=0,
        entity=np.array(entity, np.int32),
        time_us=np.array(
            [missing if row[1] is None else CUT_US + row[1] * HOUR_US for row in table], np.int64
        ),
        flags=np.array([row[2] for row in table], np.uint8),
        sizes=None,
        content=np.array([row[3] for row in table], np.uint64),
        hashes=hashes.take(np.arange(0 if split.entity is None else ENTITIES)),
    )
    names = list(plan.codes)
    expected = [
        reason(split, [*sides, own_side], (entity[number], *row[1:]), number, repeated)
        for number, row in enumerate(table)
    ]

    assert expected == [names[code] for code in classify(scanned, plan).tolist()]


def test_each_reason_has_one_word_and_one_sentence() -> None:
    words = [rule.reason for rule in RULES]

    assert {*words, "forgotten"} == SENTENCES.keys()
    assert len(words) == len(set(words))
    assert len(SENTENCES) == len(set(SENTENCES.values()))
    assert all(word.isidentifier() for word in words)


def test_reports_take_the_sentences_of_the_rules() -> None:
    from headrace.recipe import find_recipe

    assert find_recipe("temporal_split").reasons == SENTENCES
