"""Define every error headrace raises, and put its fields into words, for Python or a command line.

    HeadraceError
    ├── SettingsError     the request is wrong: a setting, a flag, a configuration key        exit 2
    │   └── MissingExtra  an optional dependency is not installed                             exit 2
    ├── InputError        the source data cannot be read as asked                             exit 1
    ├── CorruptShard      bytes on disk are not the bytes that were published                 exit 1
    ├── StoreError        the storage failed: full, read-only, not permitted                  exit 1
    ├── RunBusy           another live process is working on the same run                     exit 1
    ├── EngineError       the cluster failed: it cannot be reached, or workers keep dying     exit 1
    └── StreamError       a stream cannot continue: topology, state or position do not fit    exit 1

An error has a problem in words, and fields that say where it is and what to do:

    error = InputError(
        "not a number", path="part.csv", row=17, column="age", value="x", remedy="correct it"
    )
    str(error)      part.csv: row 17, column 'age' is 'x': not a number; correct it

    error = SettingsError(
        setting="cutoff", value="now", remedy="give an ISO date such as 2025-01-01"
    )
    str(error)      cutoff is 'now'; give an ISO date such as 2025-01-01
    command line    --cutoff is 'now'; give an ISO date such as 2025-01-01
    in a test       assert error.setting == "cutoff"

Every given field is put into words, so the problem does not repeat it. Within a problem or a
remedy, `setting("time")` writes an argument (`time=`, --time), `setting("remainder", "pad",
"exact")` one with values (`remainder="pad" or "exact"`, --remainder pad or exact), and
`setting_name("time")` its bare name (time, --time). A problem that names its setting in this way
needs no `setting=`, and if it has one, the words of `setting` and `value` are left to it:

    SettingsError(
        f"{setting_name('seed')} has no effect without {setting('shuffle', True)}",
        remedy="leave it out",
    )

`setting` of this error is "seed". A caller that knows the file or the row of an error adds it with
`raise error.at(path=path)`. Names that are marked so must pass `spell` before they are
printed in any other way than as an error or a note of a run. To quote an error in another, write
`error.marked`, which keeps the marks.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from itertools import accumulate
from os import PathLike
from typing import Any, Self

from headrace.printable import printable, short_repr

_MOST = 3_500  # characters of a message of many lines
# torch wraps an error of a loader worker in one argument: the whole traceback, ending with the
# message.
_TRACEBACK = "Traceback (most recent call last):\n"
_OF_WORKER = re.compile(r"\ACaught \S+ in \S.*\nOriginal " + re.escape(_TRACEBACK))

# Noncharacters, which Unicode reserves for use within a program, enclose the name of a setting.
# `printable` escapes those that enclose none.
_MARKED = re.compile("\ufdee(\\w+)(=?)([^\ufdee\ufdef]*)\ufdef")


def setting(name: str, *values: object) -> str:
    """Mark a setting in a text: `name=` in Python, --name on the command line, with values that it
    may have; a mapping is one of its parts.
    """
    words = [_word(value) for value in values]
    alternatives = " or ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
    return f"\ufdee{name}={alternatives}\ufdef"


def _word(value: object) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, Mapping):
        return json.dumps(dict(value), ensure_ascii=False)
    return repr(value)


def setting_name(name: str) -> str:
    """Mark the bare name of a setting in a text: `name` in Python, --name on the command line."""
    return f"\ufdee{name}\ufdef"


def spell(text: str, flags: Mapping[str, str] | None = None) -> str:
    """Write the marked settings of a text as arguments of Python or, with the flags of a command,
    as those.

    flags: by setting. A setting without a flag, such as one in the file of `headrace run`, keeps
    its bare name.
    """

    def spelled(match: re.Match[str]) -> str:
        name, equals, values = match.groups()
        if flags is None:
            return f"{name}{equals}{values}"
        if name not in flags:
            return f"{name}={values}" if values else name
        if values in ("", "True"):
            return flags[name]
        if values.startswith("{"):
            return f"{flags[name]} {_one_line(values)}"
        return f"{flags[name]} {values}".replace('"', "")

    return _MARKED.sub(spelled, text)


def _one_line(values: str) -> str:
    """Write mappings as flags take them: NAME=VALUE, or one of several such."""
    pairs = []
    for mapping in values.split(" or "):
        for name, value in json.loads(mapping).items():
            texts = value if isinstance(value, list) else [value]
            pairs.append(f"{name}={','.join(map(str, texts))}")
    return " or ".join(pairs)


class _Absent(Enum):  # an enumeration, so that a pickled error still has the same object
    NO_VALUE = "no value"


NO_VALUE = _Absent.NO_VALUE  # of an error that no value caused; None is a value


class HeadraceError(Exception):
    """Base of everything headrace raises on purpose.

    Survives pickling, whatever its class is built from.

    problems: lines of the message. `str` escapes and shortens text from data, names and paths (see
    `headrace.printable`), so a message cannot control a terminal and stays within a few kilobytes.
    The traceback of a DataLoader worker keeps its line breaks and loses its middle. `args` is
    exact.
    row: counted from 1, or in words, such as "line 17". value: `NO_VALUE` if none is at fault.
    marked_remedy: the remedy with its settings marked, for use in another error.
    """

    exit_code = 1

    def __init__(
        self,
        *problems: str,
        setting: str | None = None,
        path: str | PathLike[str] | None = None,
        row: int | str | None = None,
        column: str | None = None,
        value: object = NO_VALUE,
        remedy: str | None = None,
    ) -> None:
        super().__init__(*problems)
        self.setting = setting
        if setting is None:
            first = next(filter(None, map(_MARKED.search, map(str, problems))), None)
            self.setting = None if first is None else first[1]
        self.path = None if path is None else str(path)
        self.row = row
        self.column = column
        self.value = value
        self.marked_remedy = remedy

    def at(
        self,
        *,
        path: str | PathLike[str] | None = None,
        row: int | str | None = None,
        column: str | None = None,
    ) -> Self:
        """Return this error, with those of these fields that it lacks.

        For a caller that knows where it happened: `raise error.at(path=shard.path)`.
        """
        if self.path is None and path is not None:
            self.path = str(path)
        if self.row is None:
            self.row = row
        if self.column is None:
            self.column = column
        return self

    @property
    def remedy(self) -> str | None:
        """What to do, with settings written as arguments of Python."""
        if self.marked_remedy is None:
            return None
        return spell(self.marked_remedy)

    @property
    def marked(self) -> str:
        """The whole message with its settings marked, for use in the text of another error."""
        return "\n".join(self.marked_lines())

    def marked_lines(self) -> list[str]:
        """Put the fields and the problems into words, with settings marked and nothing escaped."""
        problems = [str(problem) for problem in self.args]
        names_setting = any(
            match[1] == self.setting for text in problems for match in _MARKED.finditer(text)
        )
        parts = []
        if self.row is not None:
            parts.append(f"row {self.row:,}" if isinstance(self.row, int) else self.row)
        if self.column is not None:
            parts.append(f"column {short_repr(self.column)}")
        if self.setting is not None and not names_setting:
            parts.append(setting_name(self.setting))
        location = ", ".join(parts)
        if self.path is not None:
            location = f"{self.path}: {location}" if location else self.path
        if self.value is not NO_VALUE and location and not names_setting:
            location += f" is {short_repr(self.value)}"
        if location:
            problems[:1] = [": ".join([location, *problems[:1]])]
        if self.marked_remedy is not None:
            problems[-1:] = ["; ".join([*problems[-1:], self.marked_remedy])]
        return problems

    def words(self, spelled: Callable[[str], str] = spell) -> str:
        """Return the message, printable and within a few kilobytes.

        spelled: how a text with marked settings is written; by default, for Python.
        """
        texts = [text for problem in self.marked_lines() for text in _lines(spelled(problem))]
        lines: list[str] = []
        left = _MOST
        for number, text in enumerate(texts, start=1):
            lines.append(printable(text))
            left -= len(lines[-1])
            if left < 0 and number < len(texts):
                lines.append(f"… and {len(texts) - number:,} more")
                break
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.words()

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args), self.__dict__


def _restore(error_type: type[HeadraceError], args: tuple[Any, ...]) -> HeadraceError:
    error = error_type.__new__(error_type, *args)
    error.args = args
    return error


def _lines(text: str) -> list[str]:
    """Split a problem into lines: one, or a worker's traceback with its first frames and
    the error.
    """
    if not _OF_WORKER.match(text):
        return [text]
    lines = text.rstrip().splitlines()
    first = _fitting(lines, _MOST // 2)
    last = _fitting(lines[::-1], _MOST // 3)[::-1]
    if len(first) + len(last) >= len(lines):
        return lines
    return [*first, "  …", *last]


def _fitting(lines: list[str], most: int) -> list[str]:
    """Take lines from the start while they fit in `most` characters, at least one."""
    ends = list(accumulate(map(len, lines)))
    return lines[: max(1, sum(end <= most for end in ends))]


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def message_of_worker(text: str) -> list[str]:
    """Return the message of an error raised in a DataLoader worker, without torch's preamble and
    traceback.
    """
    if not _OF_WORKER.match(text):
        return [text]
    lines = text.rstrip().rpartition(_TRACEBACK)[2].splitlines()
    # Frames are indented; the error follows them.
    first = next(
        (number for number, line in enumerate(lines) if not line.startswith(" ")), len(lines) - 1
    )
    name, _, message = lines[first].partition(": ")
    return [message or name, *lines[first + 1 :]]


class SettingsError(HeadraceError):
    """The request is wrong: a setting, a flag or a configuration key."""

    exit_code = 2


class MissingExtra(SettingsError):
    """An optional dependency is not installed, or cannot be loaded, if that is what is being
    handled; the remedy names the extra.
    """

    def __init__(self, module: str, extra: str) -> None:
        problem = f"{module} is not installed"
        handled = sys.exc_info()[1]
        if isinstance(handled, ImportError) and not isinstance(handled, ModuleNotFoundError):
            problem = f"{module} cannot be loaded: {first_line(handled)}"
        super().__init__(problem, remedy=f"install it with: pip install 'headrace[{extra}]'")


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
