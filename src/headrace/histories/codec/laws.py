"""Check rules that hold for each row of many, and name the first row that breaks one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.arrays import Bools

Law = tuple[Bools, Callable[[int], str]]


def first_broken(laws: Sequence[Law]) -> tuple[int, str] | None:
    """Return the first row that breaks a rule, and the message of the first rule that it breaks.

    laws: pairs of which rows are wrong, bool [R], and a function that makes the message for a row number.
    """
    rows = [int(wrong.argmax()) if wrong.any() else len(wrong) for wrong, _ in laws]
    first = min(rows)
    wrong, words = laws[rows.index(first)]
    return None if first == len(wrong) else (first, words(first))


def damaged(where: str, damage: str) -> str:
    """Return the message for a damaged row."""
    return f"{where}: {damage}; it is damaged: restore the file or prepare the run again"
