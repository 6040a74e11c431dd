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

from typing import Any

from headrace.printable import printable

_MOST = 3_500  # characters of a message of many lines


class HeadraceError(Exception):
    """Base of everything headrace raises on purpose. Survives pickling, whatever its class is built from.

    Each argument is a line of the message. As text, what comes from data, names and paths is escaped and shortened
    (see `headrace.printable`): a message never controls a terminal, and has a few kilobytes at most. `args` is exact.
    """

    exit_code = 1

    def __str__(self) -> str:
        lines, left = [], _MOST
        for number, line in enumerate(self.args):
            lines.append(printable(str(line)))
            left -= len(lines[-1])
            if left < 0 and number + 1 < len(self.args):
                lines.append(f"… and {len(self.args) - number - 1:,} more")
                break
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.args), self.__dict__


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
