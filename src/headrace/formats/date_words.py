"""Explain what a value that is not a date looks like, and which setting would read it.

Pure; for messages only.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from headrace.formats.dates import EPOCHS
from headrace.formats.text_columns import MEANS_MISSING

_ZONE = r"(?P<zone> ?[+-]\d\d:?\d\d)?"
_CLOCK = r"(?P<clock>[ ,]+\d\d?:\d\d(?P<seconds>:\d\d)?)?"
_MONTHS = "(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_YEARS = "write a year of four digits: years run from 0001 to 9999"

# Shape of a text → patterns that parse it; clock, seconds and zone are added as the text has them.
_PATTERNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (rf"(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d? {_MONTHS} \d{{4}}{_CLOCK}{_ZONE}", ("%a, %d %b %Y",)),
    (rf"\d\d? {_MONTHS} \d{{4}}{_CLOCK}{_ZONE}", ("%d %b %Y",)),
    (rf"\d\d?-{_MONTHS}-\d{{4}}{_CLOCK}{_ZONE}", ("%d-%b-%Y",)),
    (r"\d{4}-?W\d\d-\d", ("%G-W%V-%u",)),
    (r"\d{4}-\d{3}", ("%Y-%j",)),
    (rf"\d\d?/\d\d?/\d{{4}}{_CLOCK}{_ZONE}", ("%d/%m/%Y", "%m/%d/%Y")),
    (rf"\d\d?-\d\d?-\d{{4}}{_CLOCK}{_ZONE}", ("%d-%m-%Y", "%m-%d-%Y")),
    (rf"\d\d?\.\d\d?\.\d{{4}}{_CLOCK}{_ZONE}", ("%d.%m.%Y",)),
    (rf"\d{{4}}/\d\d?/\d\d?{_CLOCK}{_ZONE}", ("%Y/%m/%d",)),
    (rf"\d\d?/\d\d?/\d\d{_CLOCK}{_ZONE}", ("%d/%m/%y", "%m/%d/%y")),
    (rf"\d\d?\.\d\d?\.\d\d{_CLOCK}{_ZONE}", ("%d.%m.%y",)),
    (rf"\d\d-\d\d-\d\d{_CLOCK}{_ZONE}", ("%y-%m-%d", "%d-%m-%y")),
    (r"\d{8}T\d{6}", ("%Y%m%dT%H%M%S",)),
    (r"\d{8}T\d{6}(Z|[+-]\d{4})", ("%Y%m%dT%H%M%S%#z",)),
    (r"[12]\d{3}[01]\d[0-3]\d[0-2]\d[0-5]\d[0-5]\d", ("%Y%m%d%H%M%S",)),
    (r"[12]\d{3}[01]\d[0-3]\d[0-2]\d[0-5]\d", ("%Y%m%d%H%M",)),
    (r"[12]\d{3}[01]\d[0-3]\d[0-2]\d", ("%Y%m%d%H",)),
)
_ISO = re.compile(
    r"\d{4}-\d\d?-\d\d?([ Tt]\d\d?(:\d\d(:\d\d([.,]\d+)?)?)?)?( ?[+-]\d\d(:?\d\d)?|[Zz])?"
)
_LIKELY = 1900, 2200  # numbers that give other years are probably in another unit


def advice(value: object, date_format: str, setting: str = "time_format") -> str:
    """Advise on a value that does not match `date_format`; setting: the name of the caller's
    option.
    """
    text = None
    if isinstance(value, str):
        text = value
    if text is not None and text.strip() != text:
        return "which has blanks around it; remove them"
    if text in MEANS_MISSING:
        return f'which is not a date; if it means missing, give null_values=["{text}"]'
    number = None
    with suppress(ValueError, OverflowError):
        number = None
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            number = float(value)
    words = [
        f'{setting}="{word}"{example}'
        for word, example in (*_counted(number, date_format), *_patterns(value))
    ]
    if words:
        return f"no date of form {date_format}; give {' or '.join(words)}"
    if text is not None and (problem := _iso_fault(text, date_format, setting)) is not None:
        return problem
    return f"no date of form {date_format}; correct it, or give {setting}="


def _counted(number: float | None, date_format: str) -> list[tuple[str, str]]:
    """List the formats that make a likely date of a number, each with that date."""
    if number is None:
        return []
    advices = []
    for word, unit_us in (*EPOCHS.items(), ("excel_days", EPOCHS["epoch_days"])):
        if word == "excel_days":
            count = number - 25_569
        else:
            count = number
        if word == date_format or ("days" in word and not 1_000 <= number < 100_000):
            continue
        try:
            moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
                microseconds=count * (unit_us or 1e-3)
            )
        except (OverflowError, ValueError):
            continue
        far = abs(number) >= 1_000  # nobody writes so small a number of seconds since 1970
        if (
            far
            and _LIKELY[0] <= moment.year < _LIKELY[1]
            and (abs(count * (unit_us or 1e-3)) >= 8.64e10)
        ):
            advices.append((word, f" ({moment:%Y-%m-%d})"))
    return advices


def _patterns(value: object) -> list[tuple[str, str]]:
    text = ""
    if isinstance(value, int | str) and not isinstance(value, bool):
        text = str(value)
    for look, patterns in _PATTERNS:
        match = re.fullmatch(look, text)
        if match is None:
            continue
        parts = match.groupdict()
        if not parts.get("clock"):
            clock = ""
        elif parts.get("seconds"):
            clock = " %H:%M:%S"
        else:
            clock = " %H:%M"
        if not parts.get("zone"):
            zone = ""
        elif parts["zone"].startswith(" "):
            zone = " %z"
        else:
            zone = "%z"
        return [(f"{pattern}{clock}{zone}", "") for pattern in patterns]
    return []


def _iso_fault(text: str, date_format: str, setting: str) -> str | None:
    """Explain why a text that looks like an ISO date is not one; None if it does not look
    like one.
    """
    if re.match(r"0000-|[+-]?\d{5,}-\d\d?-\d", text):
        return f"which is in no year that a date can have; {_YEARS}"
    if _ISO.fullmatch(text) is None:
        return None
    if re.search(r":60\b", text):
        return (
            "which is a leap second, that no clock of a computer shows; write the second before or"
            " after it"
        )
    if re.search(r"[ Tt]24(:|$)", text):
        return "which is the end of a day; write 00:00 of the next day"
    if date_format not in ("auto", "iso"):
        return f'no date of form {date_format}; give {setting}="iso"'
    return "which is not an existing day or time of day; correct it"
