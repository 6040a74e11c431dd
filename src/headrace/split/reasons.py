"""The reasons to drop a row of a split, in order: a row counts under the first that applies.

Each is one line: the word that a manifest counts it under, a sentence, and the class that has its
rule (`headrace.split.features`). A run that is reused reads its manifest with these alone, so this
module loads no data libraries, and the classes are imported when a split is prepared.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from headrace.stream.audit import exclude


class Reason(StrEnum):
    """A reason to drop a row.

    feature: module and class in `headrace.split.features`; None: no rule of a split.
    """

    sentence: str
    feature: str | None

    UNREADABLE_TIME = "unreadable_time", "time cannot be read", "keys:Keys"
    NULL_TIME = "null_time", "has no time", "keys:Keys"
    NULL_ENTITY = "null_entity", "has no entity", "keys:Keys"
    GAP = "gap_before_cutoff", "lies in the gap before the cutoff", "one_cut:OneCutInTime"
    LABEL_PAST = "label_past_cutoff", "label ends after the cutoff", "one_cut:OneCutInTime"
    TRAIN_ENTITY_LATE = (
        "train_entity_after_cutoff",
        "entity is in train, row is on or after the cutoff",
        "one_cut:OneCutInTime",
    )
    VAL_ENTITY_LATE = (
        "val_entity_after_cutoff",
        "entity is in val, row is on or after the cutoff",
        "one_cut:OneCutInTime",
    )
    EARLIER_TEST = "earlier_test", "entity is in test of an earlier run", "grown:Grown"
    MISSING_LABEL = "missing_label", "has no label", "labels:Labels"
    IN_BENCHMARK = (
        exclude.IN_BENCHMARK,
        "holds an item of a benchmark that is excluded",
        "exclude:Exclusion",
    )
    KNOWN_LATE = "known_late", "a value was not known before its time", "known_at:KnownAt"
    IN_NO_FOLD = "in_no_fold", "has no part in any fold", "folds:Folds"
    CONTENT_BEFORE_CUTOFF = (
        "content_before_cutoff",
        "train or val has its content",
        "duplicates:Duplicates",
    )
    DUPLICATE = "duplicate", "an earlier row has its content", "duplicates:Duplicates"
    # the word of headrace.run.forget, which loads data libraries
    FORGOTTEN = "forgotten", "its entity was erased", None

    def __new__(cls, word: str, sentence: str, feature: str | None) -> Self:
        reason = str.__new__(cls, word)
        reason._value_ = word
        reason.sentence = sentence
        reason.feature = feature
        return reason

    @property
    def number(self) -> int:
        """Its place in the order, from 0."""
        return list(type(self)).index(self)


def sentences() -> dict[str, str]:
    """Return the sentence of each word."""
    return {reason.value: reason.sentence for reason in Reason}
