"""Random CSV, TSV and JSON lines, made to be nasty: what is legal and odd in most files, what is broken in some."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from fuzzed import mutated

BOM = b"\xef\xbb\xbf"
NAMES = [
    "a",
    "b c",
    "",
    "É",
    "NA",
    "x.y",
    "0",
    "a\u2028b",
    "a\x0bb",
    '"q"',
    "a,b",
    "a\tb",
    "a\nb",
    "a\rb",
    "a;b",
    "a|b",
    "e" * 300,
]
TEXTS = [
    *("", "a", "0", "007", "-1.50", "1e5", "NaN", "NA", "null", "true", " ", " a ", "\ta", "2024-01-01", "é", "日本", "\U0001f600"),
    *("\x00", "a\x00b", "\x0b", "\x0c", "\x1c", "\x1a", "\x85", "\u2028", "\u2029", "\ufeff", "\x7f", "\\", "\\n", "\\", "'", "#a"),
    *(",", ";", "|", "\t", "a,b", '"', '""', 'a"b', '"a"', "\n", "\r", "\r\n", "\n\n", "\r\r\n", "a\nb,c", 'a"\n"b', ',"\n'),
    *("99999999999999999999", "9007199254740993", "1e400", "0x10", "1_000", "=1+1", "-", "+1"),
]  # fmt: skip
PLAIN = [text for text in TEXTS if not any(mark in text for mark in '",;|\t\r\n')]


def delimited(random_: random.Random, separator: str, names: list[str] | None = None) -> bytes:
    """A table as text. names: of its columns, for rows of an entity, a date and texts; None: any."""
    broken = 0.02 if random_.random() < 0.3 else 0.0
    newline = random_.choice(
        [b"\n", b"\n", b"\n", b"\r\n", b"\r\n", b"\r"] if broken else [b"\n", b"\n", b"\r\n"]
    )
    mixed = random_.random() < 0.1
    header = list(names) if names else random_.sample(NAMES, random_.choice([1, 2, 2, 3, 3, 4, 6]))
    pool = random_.choice([PLAIN, TEXTS, ["a", "1", ""]])
    lines = [separator.join(_field(name, separator, random_, broken) for name in header)]
    for _ in range(random_.choice([0, 1, 2, 3, 5, 9, 30])):
        values = [random_.choice(pool) for _ in header]
        if names:
            values[:2] = [
                random_.choice(["a", "b", "c", "d", "e", "é"]),
                random_.choice(["2024-01-01", "2024-06-01", "2025-03-01"]),
            ]
        if random_.random() < broken:
            values = values[:-1] if random_.random() < 0.5 else [*values, "z"]
        if random_.random() < broken:
            values = [random_.choice("xyz") * random_.choice([5000, 70000]), *values[1:]]
        lines.append(separator.join(_field(value, separator, random_, broken) for value in values))
        if random_.random() < max(broken, 0.01):
            lines.append(random_.choice(["", "", " ", "\r", "\x0b"]) if broken else "")
    ends = [random_.choice([b"\n", b"\r\n"]) if mixed else newline for _ in lines]
    if random_.random() < 0.2:
        ends[-1] = b""
    data = b"".join(line.encode() + end for line, end in zip(lines, ends, strict=True))
    if broken and random_.random() < 0.2:
        data = random_.choice(
            [
                b"",
                BOM,
                newline,
                newline + data,
                data + newline * 2,
                data.decode().encode("utf-16"),
                data[:-1] + b"\r",
                b" " + data,
            ]
        )
    if random_.random() < 0.1:
        data = BOM + data
    return mutated(data, random_) if random_.random() < 0.1 else data


def _field(value: str, separator: str, random_: random.Random, broken: float) -> str:
    if random_.random() < broken:
        return random_.choice(
            [f'"{value}', f'{value}"', f'"{value}"x', f' "{value}"', value, '"', f'x"{value}"']
        )
    if any(mark in value for mark in (separator, '"', "\r", "\n")) or random_.random() < 0.1:
        return '"' + value.replace('"', '""') + '"'
    return value


KEYS = ["a", "b", "x.y", "", "É", "a b", 'q"', "\\", "a\u2028", "id", "0", "k" * 60, "\t"]
VALUES: list[Callable[[random.Random], Any]] = [
    lambda random_: random_.choice([0, 1, -1, 2**31, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)]),
    lambda random_: random_.choice([0, 1, 12, 400]),
    lambda random_: random_.choice([0.5, -0.0, 1e-7, 1e300, 5e-324, 1.7976931348623157e308, 0.1, 1e16]),
    lambda random_: random_.choice([True, False]),
    lambda random_: random_.choice(TEXTS),
    lambda random_: [random_.choice([1, 2, 3]) for _ in range(random_.randrange(3))],
    lambda random_: [random_.choice(TEXTS) for _ in range(random_.randrange(3))],
    lambda random_: {"a": random_.choice([1, 2]), "b": random_.choice(TEXTS)},
    lambda random_: [{"c": random_.choice(TEXTS)} for _ in range(random_.randrange(3))],
]  # fmt: skip
ODD = [
    *("NaN", "Infinity", "-Infinity", "1e400", "-1e999", "01", "1.", ".5", "+1", "0x1", "1_0", "tru", "'a'", '"\\x41"', '"\t"', '"\\ud800"'),
    *("18446744073709551615", "9223372036854775808", "99999999999999999999", "123456789012345678901234567890123456789012345", "[1,", "{}", "[]"),
    *("[1,2,]", '{"a":1,}', '"\\u0000"', "[null]", "[[[]]]", '{"a":{"a":{}}}', "null", "0.1e1", "-0", "1E+2", '"\\/"', "1.0", "12345678901234567.5"),
    *('{"a":1,"a":2}', '{"a":1,"\\u0061":null}', '[{"b":1,"b":1}]', '{"\\u0000":1}', '"a"b', "1 2", "[1 2]", '"\\uD83D\\uDE00"', '"\\uDE00\\uD83D"'),
]  # fmt: skip


def json_lines(random_: random.Random, names: list[str] | None = None) -> bytes:
    """Objects, one a line. names: of an entity, a date and further keys; None: any."""
    broken = 0.05 if random_.random() < 0.4 else 0.0
    keys = list(names) if names else random_.sample(KEYS, random_.choice([1, 2, 3, 5]))
    kinds = [random_.choice(VALUES) for _ in keys]
    odd = random_.choice([None, None, None, random_.choice(ODD)])
    lines = []
    for _ in range(random_.choice([1, 1, 2, 3, 6, 20])):
        pairs = []
        for place, (key, kind) in enumerate(zip(keys, kinds, strict=True)):
            value = _json(kind(random_), random_)
            if names and place < 2:
                value = json.dumps(
                    random_.choice(
                        [["a", "b", "c", "d", "é"], ["2024-01-01", "2024-06-01", "2025-03-01"]][
                            place
                        ]
                    )
                )
            elif random_.random() < 0.1:
                value = "null"
            elif odd is not None and random_.random() < 0.3:
                value = odd
            elif random_.random() < broken:
                value = random_.choice(ODD)
            if random_.random() > 0.05 or (names and place < 2):
                pairs.append(f"{_key(key, random_)}{_space(random_)}:{_space(random_)}{value}")
        if random_.random() < 0.1:
            random_.shuffle(pairs)
        if random_.random() < broken and pairs:
            pairs.append(random_.choice(pairs))
        if random_.random() < broken and keys:
            pairs.append(
                f"{_key(random_.choice(keys), random_)}:{random_.choice(['null', '1', chr(34) * 2])}"
            )
        lines.append(
            _space(random_)
            + "{"
            + f"{_space(random_)},{_space(random_)}".join(pairs)
            + "}"
            + _space(random_)
        )
        if random_.random() < max(broken, 0.01):
            lines.append(
                random_.choice(["", " ", "\t", "\r"])
                if random_.random() < 0.7
                else random_.choice(["[]", "1", "null", "{}", "\x0b", "\x0c", "\u2028", "\ufeff"])
            )
    newline = random_.choice(
        [
            "\n",
            "\n",
            "\r\n",
            "\r" if broken else "\n",
            "" if broken else "\n",
            "," if broken else "\n",
        ]
    )
    data = newline.join(lines).encode() + random_.choice([b"", newline.encode()])
    if random_.random() < 0.1:
        data = BOM + data
    if broken and random_.random() < 0.1:
        data = random_.choice(
            [
                b"",
                BOM,
                data.decode().encode("utf-16"),
                data.replace(b":", b"", 1),
                data[:-2],
                data + b"\x00",
            ]
        )
    return mutated(data, random_) if random_.random() < 0.1 else data


def _space(random_: random.Random) -> str:
    return random_.choice(["", "", "", " ", "\t", "  "])


def _key(key: str, random_: random.Random) -> str:
    if random_.random() < 0.1:
        return '"' + "".join(f"\\u{ord(letter):04x}" for letter in key) + '"'
    return json.dumps(key, ensure_ascii=random_.random() < 0.5)


def _json(value: Any, random_: random.Random) -> str:
    text = json.dumps(value, ensure_ascii=random_.random() < 0.5)
    return text.replace("/", "\\/") if random_.random() < 0.1 else text
