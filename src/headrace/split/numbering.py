"""The number of every output shard. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from headrace.errors import InputError

_NUMBER = re.compile(r"part-(\d+)")


def number_shards(names: Sequence[str], how: Literal["keep", "dense"]) -> list[int]:
    """A number for each source shard name, all different.

    how="keep": the N of part-N where every name has one (gaps stay), 0, 1, 2, ... in name order where none has.
    Raises `InputError` naming both files if two names have the same N, or only some have one.
    """
    matches = [_NUMBER.search(name.rsplit("/", 1)[-1]) for name in names]
    if how == "dense" or not any(matches):
        return list(range(len(names)))
    seen: dict[int, str] = {}
    numbers = []
    for name, match in zip(names, matches, strict=True):
        if match is None:
            raise InputError(
                f"{name}: has no number while other shards are called part-N; rename it, "
                f'or number all with shard_numbers="dense"'
            )
        number = int(match[1])
        if number in seen:
            raise InputError(
                f"{name} and {seen[number]}: are both shard {number}, one would overwrite the other; "
                f'rename one, or number all with shard_numbers="dense"'
            )
        seen[number] = name
        numbers.append(number)
    return numbers
