"""Every error headrace raises.

    HeadraceError
    ├── SettingsError     the request is wrong: a setting, a flag, a configuration key        exit 2
    │   └── MissingExtra  an optional dependency is not installed                             exit 2
    ├── InputError        the source data cannot be read as asked                             exit 1
    ├── CorruptShard      bytes on disk are not the bytes that were published                 exit 1
    ├── StoreError        the storage failed: full, read-only, not permitted                  exit 1
    ├── RunBusy           another live process is working on the same run                     exit 1
    ├── EngineError       the cluster failed: it cannot be reached, or workers keep dying       exit 1
    └── StreamError       a stream cannot continue: topology, state or position do not fit    exit 1

A message has four parts: what is wrong, where (file, row group, line, column), the value, what to do.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Any

from headrace.printable import printable

_MOST = 3_500  # characters of a message of many lines
# torch wraps an error of a loader worker in one argument: the whole traceback, ending with the message.
_TRACEBACK = "Traceback (most recent call last):\n"
_OF_WORKER = re.compile(r"\ACaught \S+ in \S.*\nOriginal " + re.escape(_TRACEBACK))


class HeadraceError(Exception):
    """Base of everything headrace raises on purpose. Survives pickling, whatever its class is built from.

    Each argument is one line of the message. `str` escapes and shortens text from data, names and paths (see
    `headrace.printable`), so a message cannot control a terminal and stays within a few kilobytes. The traceback of a
    DataLoader worker keeps its line breaks and loses its middle. `args` is exact.
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
    """Split an argument into lines: one, or a worker's traceback with its first frames and the error."""
    if not _OF_WORKER.match(text):
        return [text]
    lines = text.rstrip().splitlines()
    first, last = _fitting(lines, _MOST // 2), _fitting(lines[::-1], _MOST // 3)[::-1]
    return lines if len(first) + len(last) >= len(lines) else [*first, "  …", *last]


def _fitting(lines: list[str], most: int) -> list[str]:
    """Take lines from the start while they fit in `most` characters, at least one."""
    ends = list(accumulate(map(len, lines)))
    return lines[: max(1, sum(end <= most for end in ends))]


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def message_of_worker(text: str) -> list[str]:
    """Return the message of an error raised in a DataLoader worker, without torch's preamble and traceback."""
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
    """The cluster failed: it cannot be reached, or workers keep dying."""


class StreamError(HeadraceError):
    """A stream cannot continue: topology, state or position do not fit."""


def _again(kind: type[HeadraceError], args: tuple[Any, ...]) -> HeadraceError:
    error = kind.__new__(kind, *args)
    error.args = args
    return error
