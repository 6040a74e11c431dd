"""Every error headrace raises.

    HeadraceError
    ├── SettingsError     the request is wrong: a setting, a flag, a configuration key        exit 2
    │   └── MissingExtra  an optional dependency is not installed                             exit 2
    ├── InputError        the source data cannot be read as asked                             exit 1
    ├── CorruptShard      bytes on disk are not the bytes that were published                 exit 1
    ├── StoreError        the storage failed: full, read-only, not permitted                  exit 1
    ├── RunBusy           another live process is working on the same run                     exit 1
    ├── EngineError       the machines that do the work failed: no cluster, workers that die   exit 1
    └── StreamError       a stream cannot go on: topology, state or position do not fit       exit 1

A message has four parts: what is wrong, where (file, row group, line, column), the value, what to do.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Any

from headrace.printable import printable

_MOST = 3_500  # characters of a message of many lines
# How torch words what a worker of its loader raised, as one argument: the whole traceback, with the message at its end.
_TRACEBACK = "Traceback (most recent call last):\n"
_OF_WORKER = re.compile(r"\ACaught \S+ in \S.*\nOriginal " + re.escape(_TRACEBACK))


class HeadraceError(Exception):
    """Base of everything headrace raises on purpose. Survives pickling, whatever its class is built from.

    Each argument is a line of the message. As text, what comes from data, names and paths is escaped and shortened
    (see `headrace.printable`): a message never controls a terminal, and has a few kilobytes at most. Of an error out of
    a DataLoader worker, the worker's traceback keeps its lines, and loses its middle. `args` is exact.
    """

    exit_code = 1

    def __str__(self) -> str:
        lines, left = [], _MOST
        told = [own for line in self.args for own in _lines(str(line))]
        for number, line in enumerate(told):
            lines.append(printable(line))
            left -= len(lines[-1])
            if left < 0 and number + 1 < len(told):
                lines.append(f"… and {len(told) - number - 1:,} more")
                break
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.args), self.__dict__


def _lines(text: str) -> list[str]:
    """An argument as lines: one, or those of a worker's traceback, with the first frames and what was raised."""
    if not _OF_WORKER.match(text):
        return [text]
    lines = text.rstrip().splitlines()
    first, last = _fitting(lines, _MOST // 2), _fitting(lines[::-1], _MOST // 3)[::-1]
    return lines if len(first) + len(last) >= len(lines) else [*first, "  …", *last]


def _fitting(lines: list[str], most: int) -> list[str]:
    """The first line, and as many of the next as fit."""
    ends = list(accumulate(map(len, lines)))
    return lines[: max(1, sum(end <= most for end in ends))]


def message_of_worker(text: str) -> list[str]:
    """The lines of what a DataLoader worker raised, without torch's words and the traceback; other text as it is."""
    if not _OF_WORKER.match(text):
        return [text]
    lines = text.rstrip().rpartition(_TRACEBACK)[2].splitlines()
    raised = next((number for number, line in enumerate(lines) if not line.startswith(" ")), len(lines) - 1)
    kind, _, message = lines[raised].partition(": ")  # frames are indented; what was raised follows them
    return [message or kind, *lines[raised + 1 :]]


class SettingsError(HeadraceError):
    """The request is wrong: a setting, a flag or a configuration key."""

    exit_code = 2


class MissingExtra(SettingsError):
    """An optional dependency is not installed; the message names the extra."""

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(f"{module} is not installed; install it with: pip install 'headrace[{extra}]'")


class InputError(HeadraceError):
    """The source data cannot be read as asked."""


class CorruptShard(HeadraceError):
    """Bytes on disk are not the bytes that were published."""


class StoreError(HeadraceError):
    """The storage failed: full, read-only, not permitted."""


class RunBusy(HeadraceError):
    """Another live process is working on the same run."""


class EngineError(HeadraceError):
    """The machines that do the work failed: no cluster is reached, or workers die again and again."""


class StreamError(HeadraceError):
    """A stream cannot go on: topology, state or position do not fit."""


def _again(kind: type[HeadraceError], args: tuple[Any, ...]) -> HeadraceError:
    error = kind.__new__(kind, *args)
    error.args = args
    return error
