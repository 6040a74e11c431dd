"""Find what is wrong with lines of JSON: the first line at fault, its key and the value. Pure.

This is the slow and exact reader. It reads value by value, and only after the fast one refused the
lines.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.errors import NO_VALUE

LEVELS = 60  # lists and objects inside each other; Arrow writes no schema of more than 64
Path = tuple[str, ...]  # keys, and "" for the items of a list
Kinds = dict[Path, str]
_WORDS = {
    "bool": "true or false",
    "whole": "a whole number",
    "fraction": "a fraction",
    "text": "a text",
    "list": "a list",
    "object": "an object",
}
_EXACT = 2**53
_LARGEST = 2**63 - 1
_MOST_DIGITS = 40
_TOO_LARGE = "numbers of JSON are int64 and float64, which cannot hold it"
_WHITE = " \t\r\n"
_SHOWN = 80  # characters of a line
_HALF = re.compile("[\ud800-\udfff]")


class Fault(NamedTuple):
    """What is wrong. line: its index. column: keys with dots between.
    value: `NO_VALUE` if none is at fault.
    """

    line: int
    problem: str
    remedy: str
    column: str | None = None
    value: object = NO_VALUE


class _Wrong(Exception):
    """A fault of the current line."""

    def __init__(
        self, problem: str, remedy: str, path: Path | None = None, value: object = NO_VALUE
    ) -> None:
        super().__init__(problem)
        column = None if path is None else ".".join(key for key in path if key)
        self.fault = Fault(0, problem, remedy, column, value)


class _Pairs(list[tuple[str, Any]]):
    """The keys and values of an object."""


@dataclass(frozen=True)
class _NoNumber:
    """NaN or Infinity."""

    text: str


@dataclass(frozen=True)
class _Huge:
    """A number that neither int64 nor float64 holds."""

    text: str


def _parsed_integer(text: str) -> int | _Huge:
    if len(text) > _MOST_DIGITS:  # Python refuses to convert thousands
        return _Huge(text)
    number = int(text)
    return number if -_LARGEST - 1 <= number <= _LARGEST else _Huge(text)


def _fraction(text: str) -> float | _Huge:
    number = float(text)
    return number if math.isfinite(number) else _Huge(text)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_Pairs,
    parse_int=_parsed_integer,
    parse_float=_fraction,
    parse_constant=_NoNumber,
)


def first_fault(data: bytes, known: Kinds) -> Fault | None:
    """Find the first line that is not an object with values of one kind for each key.

    known: the kinds of values that other lines have. Blank lines are skipped and counted.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start)
        before = _first_fault(data[: data.rfind(b"\n", 0, error.start) + 1].decode(), known)
        if before is not None:
            return before
        return Fault(
            line,
            f"the byte 0x{data[error.start]:02x} is not UTF-8",
            "convert the file, for example with iconv -f latin1 -t utf-8",
        )
    return _first_fault(text, known)


def _first_fault(text: str, known: Kinds) -> Fault | None:
    values = _Values(dict(known))
    start = 0
    for number, line in enumerate(text.split("\n")):
        if line.strip(_WHITE):
            values.line = number
            try:
                values.check((), _object(line, text, start))
            except _Wrong as wrong:
                line_at_fault = number if values.at is None else values.at
                return wrong.fault._replace(line=line_at_fault)
        start += len(line) + 1
    return None


def _object(line: str, text: str, start: int) -> _Pairs:
    """Read a line. text: it and all others. start: where it begins."""
    try:
        value, end = _DECODER.raw_decode(line, len(line) - len(line.lstrip(_WHITE)))
    except RecursionError:
        raise _too_deep() from None
    except json.JSONDecodeError as error:
        raise _broken(error, line, text, start) from None
    remainder = line[end:].lstrip(_WHITE)
    if remainder:
        raise _Wrong(
            f"something follows the value, at character {len(line) - len(remainder) + 1}",
            "write one object per line",
        )
    if not isinstance(value, _Pairs):
        raise _Wrong(
            f"it holds {_word(value)}, not an object",
            "write one object per line; a list of objects may be the whole of a .json file",
        )
    return value


def _broken(error: json.JSONDecodeError, line: str, text: str, start: int) -> _Wrong:
    """Explain a line that is not JSON: a part of something, or at fault itself."""
    value_start = start + len(line) - len(line.lstrip(_WHITE))
    try:
        value, end = _DECODER.raw_decode(text, value_start)
    except (json.JSONDecodeError, RecursionError):
        value, end = None, value_start
    lines = text.count("\n", value_start, end) + 1
    if isinstance(value, list) and lines > 1:
        what = "an object" if isinstance(value, _Pairs) else "a list"
        return _Wrong(
            f"{what} that goes on for {lines:,} lines begins here",
            "write one object per line, for example with jq -c",
        )
    excerpt = line.strip(_WHITE)[:_SHOWN]
    if _starts_object(text, value_start):
        return _Wrong(
            f"not valid JSON, or a part of an object of several lines"
            f" ({error.msg} at character {error.pos + 1})",
            "write one object per line, for example with jq -c",
            value=excerpt,
        )
    return _Wrong(
        f"not valid JSON ({error.msg} at character {error.pos + 1})",
        "correct the file",
        value=excerpt,
    )


def _starts_object(text: str, value_start: int) -> bool:
    """Check for a line that is only the beginning of an object: `{` or `{"key":`."""
    line, _, later_lines = text[value_start:].partition("\n")
    line = line.rstrip(_WHITE)
    return line[:1] in "{[" and line[-1:] in "{[,:" and bool(later_lines.strip(_WHITE))


def _too_deep(path: Path | None = None) -> _Wrong:
    return _Wrong(
        f"lists and objects nest more than {LEVELS} levels deep", "write it flatter", path
    )


def _word(value: object) -> str:
    """Return the words for a value of JSON."""
    if value is None:
        return "null"
    if isinstance(value, _Huge | _NoNumber):
        return "a number"
    return _WORDS[_json_type(value)]


def _json_type(value: object) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "whole"
    if isinstance(value, float):
        return "fraction"
    if isinstance(value, str):
        return "text"
    return "object" if isinstance(value, _Pairs) else "list"


class _Values:
    """The kinds of values of all keys so far, checked value by value.

    line: the index of the current line. at: that of an earlier line which turns out to be at fault.
    """

    def __init__(self, known: Kinds) -> None:
        self.line = 0
        self.at: int | None = None
        self._known = known
        self._large: dict[Path, tuple[int, int]] = {}  # the first beyond 2**53, and its line

    def check(self, path: Path, value: object) -> None:
        """Check a value and those inside it. Raises `_Wrong`."""
        if len(path) >= LEVELS and isinstance(value, list):
            raise _too_deep(path[:1])
        if value is None:
            return
        if isinstance(value, _NoNumber):
            raise _Wrong("not a number of JSON", "write null", path, value.text)
        if isinstance(value, _Huge):
            raise _Wrong(_TOO_LARGE, "write it as text", path, value.text)
        self._compare(path, value)
        if isinstance(value, _Pairs):
            self._check_keys(path, value)
        elif isinstance(value, list):
            for item in value:
                self.check((*path, ""), item)
        elif isinstance(value, str) and _HALF.search(value):
            raise _Wrong("it holds half of a surrogate pair", "correct the text", path)

    def _check_keys(self, path: Path, pairs: _Pairs) -> None:
        seen = set()
        for key, value in pairs:
            inside = (*path, key)
            if _HALF.search(key):
                raise _Wrong("its name holds half of a surrogate pair", "rename it", inside)
            if key in seen:
                raise _Wrong(
                    "the key appears twice in an object, and readers take different values",
                    "leave one of them",
                    inside,
                )
            seen.add(key)
            self.check(inside, value)

    def _compare(self, path: Path, value: object) -> None:
        if not path:  # the line itself
            return
        json_type = _json_type(value)
        before = self._known.setdefault(path, json_type)
        if isinstance(value, int) and abs(value) > _EXACT:
            self._large.setdefault(path, (value, self.line))
        if {before, json_type} <= {"whole", "fraction"}:
            self._compare_numbers(path, {before, json_type})
        elif before != json_type:
            raise _Wrong(
                f"{_WORDS[json_type]}, and in another row {_WORDS[before]}",
                "write one type throughout",
                path,
                NO_VALUE if isinstance(value, list) else value,
            )

    def _compare_numbers(self, path: Path, kinds: set[str]) -> None:
        if "fraction" not in kinds:
            return
        self._known[path] = "fraction"
        if path in self._large:
            value, self.at = self._large[path]
            raise _Wrong(
                "beside fractions, whole numbers beyond 2**53 lose digits",
                "write them as text",
                path,
                value,
            )
