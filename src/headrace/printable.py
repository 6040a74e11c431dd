"""Make text from data, paths and names safe for a terminal, a log and a sentence. Pure."""

from __future__ import annotations

import re
import reprlib

MOST = 2_000  # characters of one line of a message
_MOST_BITS = 4096  # of an integer that is written as digits

# Controls (C0 with DEL, C1), line and paragraph separators, marks that turn the direction of text,
# invisible marks that hide text, and halves of surrogate pairs, which stand for bytes that are not
# UTF-8.
_UNFIT = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufdee\ufdef\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_UNFIT_IN_LINES = re.compile(_UNFIT.pattern.replace("\x00-\x1f", "\x00-\x09\x0b-\x1f"))
_WORDS = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str, most: int = MOST) -> str:
    """Return the text on one line, at most `most` characters, without terminal controls or
    bidirectional marks.

    Such characters are escaped as in a Python literal; a byte that is not UTF-8 becomes \\xNN. A
    long text loses its middle, because the beginning says what is wrong and the end says what to
    do.
    """
    if len(text) > most:
        tail = most // 3
        left_out = len(text) - most
        text = (
            f"{text[: most - tail]}… [{left_out:,} characters left out] …{text[len(text) - tail :]}"
        )
    return _UNFIT.sub(_escaped, text)


def printable_lines(text: str, most: int = MOST) -> str:
    """Make each line of a text printable and keep its line ends."""
    return "\n".join(printable(line, most) for line in text.split("\n"))


def escape_lines(text: str) -> str:
    """Escape the same characters but keep line ends and the full length."""
    return _UNFIT_IN_LINES.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    if character in _WORDS:
        return _WORDS[character]
    if 0xDC80 <= code <= 0xDCFF:  # what surrogateescape makes of a byte
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x100:
        return f"\\x{code:02x}"
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\U{code:08x}"


class _Short(reprlib.Repr):
    def repr_int(self, value: int, level: int) -> str:
        """Name the size of a huge integer: its digits take quadratic time, and Python refuses
        thousands of them.
        """
        bits = value.bit_length()
        if bits <= _MOST_BITS:
            return super().repr_int(value, level)
        return f"an integer of {bits:,} bits"


def short_repr(value: object, most: int = 200) -> str:
    """Format a value for a message, always short: a few bytes of YAML can expand to billions of
    values.
    """
    short = _Short()
    short.maxlevel = 2
    short.maxstring = most
    short.maxother = most
    short.maxlong = most
    text = short.repr(value)
    if len(text) <= most:
        return text
    return f"{text[: most - 1]}…"
