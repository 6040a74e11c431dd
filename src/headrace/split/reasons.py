"""The reasons to drop a row of a split: the word that a manifest counts each under, and a sentence.

A run that is reused reads its manifest with these alone, so this module loads no data libraries.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.stream.audit.exclude import IN_BENCHMARK

UNREADABLE_TIME = "unreadable_time"
NULL_TIME = "null_time"
NULL_ENTITY = "null_entity"
GAP = "gap_before_cutoff"
LABEL_PAST = "label_past_cutoff"
TRAIN_ENTITY_LATE = "train_entity_after_cutoff"
VAL_ENTITY_LATE = "val_entity_after_cutoff"
MISSING_LABEL = "missing_label"
KNOWN_LATE = "known_late"
IN_NO_FOLD = "in_no_fold"
CONTENT_BEFORE_CUTOFF = "content_before_cutoff"
DUPLICATE = "duplicate"

SENTENCES: Mapping[str, str] = {
    UNREADABLE_TIME: "time cannot be read",
    NULL_TIME: "has no time",
    NULL_ENTITY: "has no entity",
    GAP: "lies in the gap before the cutoff",
    LABEL_PAST: "label ends after the cutoff",
    TRAIN_ENTITY_LATE: "entity trains, row is from the cutoff on",
    VAL_ENTITY_LATE: "entity validates, row is from the cutoff on",
    MISSING_LABEL: "has no label",
    IN_BENCHMARK: "holds an item of a benchmark that is excluded",
    KNOWN_LATE: "a value was not known before its time",
    IN_NO_FOLD: "has no part in any fold",
    CONTENT_BEFORE_CUTOFF: "train or val has its content",
    DUPLICATE: "an earlier row has its content",
    # the word of headrace.run.forget, which loads data libraries
    "forgotten": "its entity was erased",
}
