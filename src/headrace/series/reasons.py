"""List the reasons why source rows are in no split, in the order in which they are reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.series.settings import Series


@dataclass(frozen=True)
class LostRows:
    """Rows that are in no split.

    word: under which they are counted.
    sentence: ends "Rows are dropped because …" in the report.
    applies: whether settings can lead to such rows; None: all can.
    """

    word: str
    sentence: str
    applies: Callable[[Series], bool] | None = None


ENTITY_FAILED = LostRows("entity_failed", "entity failed a quality rule")
BAD_TIME = LostRows("bad_time", "time cannot be read")
OFF_GRID = LostRows("off_grid", "time is between two steps")
DUPLICATE_TIME = LostRows("duplicate_time", "another row has its time")
TRIMMED = LostRows("trimmed", "before the first or after the last value")
IN_NO_SPLIT = LostRows(
    "in_no_split",
    "too close before a cut, of a held-out entity in the part of others, or needed by no fold",
    lambda settings: settings.division.layout.names != ("train", "val", "test"),
)
NULL_ENTITY = LostRows("null_entity", "has no entity")
NOT_LISTED = LostRows("not_listed", "its entity was not requested")
DUPLICATE = LostRows(
    "duplicate",
    "its entity has the values and times of an earlier one",
    lambda settings: settings.duplicates == "drop",
)
NONEXISTENT_TIME = LostRows(
    "nonexistent_time",
    "its time does not exist in time_zone",
    lambda settings: settings.time_zone is not None,
)

REASONS = (
    ENTITY_FAILED,
    BAD_TIME,
    OFF_GRID,
    DUPLICATE_TIME,
    TRIMMED,
    IN_NO_SPLIT,
    NULL_ENTITY,
    NOT_LISTED,
    DUPLICATE,
    NONEXISTENT_TIME,
)


def reasons_of(settings: Series) -> list[str]:
    """Return the words of the reasons for which these settings can drop a row."""
    result = []
    for reason in REASONS:
        if reason.applies is None or reason.applies(settings):
            result.append(reason.word)
    return result
