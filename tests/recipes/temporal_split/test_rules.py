"""A row goes where the rules in words say, row by row: the first reason that applies, else its split."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.formats.registry import FileType
from headrace.formats.shard import Shard
from headrace.recipe import find_recipe
from headrace.split.allocate import Allocation, Hashes
from headrace.split.content import Repeats
from headrace.split.cutoff import DateBins
from headrace.split.features import features_of
from headrace.split.reasons import Reason, sentences
from headrace.split.rules import OneCut, Output, SplitPlan, classify
from headrace.split.scan import NO_REASON, Scanned
from headrace.split.settings import TemporalSplit
from laws import examples

CUT = dt.datetime(2025, 1, 1, tzinfo=dt.UTC)
HOUR_US = 3_600_000_000
CUT_US = int(CUT.timestamp()) * 1_000_000
ENTITIES, KNOWN = 8, 6  # the last two are not known before the cutoff
SOURCE = pa.schema([(name, pa.string()) for name in ("id", "time", "known", "text")])
SHARD = Shard(
    path=Path("part.csv"), name="part.csv", size=1, mtime_ns=0, file_type=FileType.named("csv"), schema=SOURCE
)  # fmt: skip
FOUND = (Reason.UNREADABLE_TIME, Reason.MISSING_LABEL, Reason.IN_BENCHMARK, Reason.KNOWN_LATE)

rows = st.lists(
    st.tuples(
        st.integers(-1, ENTITIES - 1),
        st.none() | st.integers(-30, 30),
        st.frozensets(st.sampled_from(FOUND)),
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
    return TemporalSplit(
        source="raw",
        time="time",
        split_date="2025-01-01",
        known_at=["known"],
        known_late="drop",
        **config,
    )


def reason(
    split: TemporalSplit,
    sides: list[int],
    row: tuple[int, int | None, frozenset[Reason], int],
    number: int,
    first: dict[int, int],
) -> str:
    """The rules, in words."""
    entity, hour, found, content = row
    if Reason.UNREADABLE_TIME in found:
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
    if Reason.MISSING_LABEL in found:
        return "missing_label"
    if Reason.IN_BENCHMARK in found:
        return "in_benchmark"
    if Reason.KNOWN_LATE in found:
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
    output = Output(
        settings=split, source=SOURCE, file_type=FileType.named("csv"), parquet_compression="", separator=",",
    )  # fmt: skip
    rules = [rule for feature in features_of(output, [SHARD]) for rule in feature.rules]
    plan = SplitPlan(
        output=output,
        schema=None,
        placement=OneCut(
            split,
            Allocation(
                hashes.take(known), np.array([*sides[:KNOWN], *([own_side] if own_side < 2 else [])], np.uint8), 1
            ),
        ),
        rules=rules,
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
        reasons=np.array(
            [min([reason.number for reason in row[2]], default=NO_REASON) for row in table],
            np.uint8,
        ),
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
    words = list(sentences())

    assert len(Reason) == len(words) == len(set(sentences().values()))
    assert all(word.isidentifier() for word in words)
    assert len(Reason) < NO_REASON


def test_the_rules_of_a_split_are_in_the_order_of_the_reasons() -> None:
    folds = {"split_date": "2025-01-01", "folds": "rolling:n=2,step=30d", "duplicates": "drop"}
    one_cut = {"split_date": "2025-01-01", "gap": "1d", "label_horizon": "1d"}
    one_cut["assignment_from"] = "out"
    ruled = set()
    for config in (one_cut, folds):
        split = TemporalSplit(
            source="raw", time="time", entity="id", known_at=["known"], known_late="drop", **config
        )
        output = Output(
            settings=split,
            source=SOURCE,
            file_type=FileType.named("csv"),
            parquet_compression="",
            separator=",",
        )
        reasons = [
            rule.reason for feature in features_of(output, [SHARD]) for rule in feature.rules
        ]
        assert sorted(reasons, key=lambda reason: reason.number) == reasons
        ruled.update(reasons)
    assert {*Reason} - {Reason.FORGOTTEN} == ruled


def test_the_page_on_formats_has_the_reasons_in_their_order() -> None:
    page = (Path(__file__).parents[3] / "docs" / "format.md").read_text()
    order = page.partition("in this order: ")[2].partition(".")[0]

    assert [reason for reason in Reason if reason.feature] == re.findall(r"`(\w+)`", order)


def test_reports_take_the_sentences_of_the_rules() -> None:
    assert sentences() == find_recipe("temporal_split").reasons
