"""The corpora of delimited text: csv-spectrum, and generated files. A strict parser is the reference.

The parser reads RFC 4180 and nothing else. Its values are given the types that headrace shows.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from corpus import SHARED, Corpus, Refused

SEEDS = 120
SPECTRUM = SHARED / "csv" / "csvs"
_WORDS = ["", "a", "é", "\U0001f600", '"', ",", ";", "\n", "\r\n", "007", " 1", "NA", "nan", "true", "1", "2024-01-01"]  # fmt: skip
_KINDS = {
    "whole": ["0", "-1", "12", str(2**53 + 1), str(-(2**63))],
    "large": ["0", str(2**64 - 1)],
    "fraction": ["0.5", "-0.0", "1e300", "12", "1.50", "5e-324"],
    "bool": ["true", "false"],
    "day": ["2024-01-31", "0001-01-01", "9999-12-31"],
    "time": ["2024-01-31", "2024-01-31T10:00", "2024-01-31 10:00:00.5"],
    "instant": ["2024-01-31T10:00Z", "2024-01-31 10:00:00.123456-05:30", "2024-01-31T10:00+02"],
    "odd": ["1", "1.0", "1,5", "+1", "01", "0x10", "1_0", "1e400", "2024-02-30", "True"],
}


class _Fields(list[tuple[str, bool]]):
    """The fields of a record, and whether each is in quotes."""


def strict_records(text: str) -> list[_Fields]:
    """Parse RFC 4180 character by character; in a field without quotes, one is text. Raises
    `Refused`.
    """
    records, record, field = [], _Fields(), ""
    state = "start"
    position = 0
    while position < len(text):
        letter = text[position]
        ends = text.startswith("\r\n", position) or letter == "\n"
        if state == "quoted":
            if text.startswith('""', position):
                field, position = field + '"', position + 1
            elif letter == '"':
                state = "closed"
            else:
                field += letter
        elif letter == "," or ends:
            record.append((field, state == "closed"))
            field, state = "", "start"
            if ends:
                records.append(record)
                record, position = _Fields(), position + (letter == "\r")
        elif letter == '"' and state == "start":
            state = "quoted"
        elif letter == "\r" or state == "closed":
            raise Refused(f"{letter!r} at {position}")
        else:
            field, state = field + letter, "plain"
        position += 1
    if state == "quoted":
        raise Refused("a quote is never closed")
    if record or state != "start":
        record.append((field, state == "closed"))
        records.append(record)
    return records


def _read(path: Path, schema: pa.Schema) -> pa.Table:
    text = path.read_bytes().decode().removeprefix("\ufeff")
    header, *rows = strict_records(text)
    names = [name for name, _ in header]
    if len(set(names)) < len(names):
        raise Refused("two columns have one name")
    if any(len(row) != len(names) for row in rows):
        raise Refused("rows are of several widths")
    assert not schema.names or schema.names == names
    columns = []
    for index, name in enumerate(names):
        type_ = schema.field(name).type if schema.names else pa.string()
        columns.append(pa.array([_value(*row[index], type_) for row in rows], type_))
    return pa.Table.from_arrays(columns, names=names)


def _value(text: str, quoted: bool, type_: pa.DataType) -> Any:
    if not text and not (quoted and type_ == pa.string()):
        return None
    parse: dict[pa.DataType, Any] = {
        pa.string(): str,
        pa.int64(): int,
        pa.uint64(): int,
        pa.float64(): float,
        pa.bool_(): {"true": True, "false": False}.__getitem__,
        pa.date32(): date.fromisoformat,
        pa.timestamp("us"): datetime.fromisoformat,
        pa.timestamp("us", "UTC"): lambda told: datetime.fromisoformat(told).astimezone(UTC),
    }
    return parse[type_](text)


def check_spectrum() -> None:
    """Check the parser itself by the values beside the files."""
    for path in sorted(SPECTRUM.glob("*.csv")):
        if path.stem == "location_coordinates":
            continue  # its values are not those beside it
        header, *rows = strict_records(path.read_bytes().decode())
        expected = json.loads((SPECTRUM.parent / "json" / f"{path.stem}.json").read_text())
        names = [name for name, _ in header]
        actual = [dict(zip(names, [text for text, _ in row], strict=True)) for row in rows]
        assert expected == actual, path.name


def _files() -> Mapping[str, Path]:
    files = {path.stem: path for path in sorted(SPECTRUM.glob("*.csv"))}
    return {**files, **{f"seed-{seed}": Path(f"seed-{seed}") for seed in range(SEEDS)}}


def _write(path: Path, copy: Path) -> None:
    if path.exists():
        copy.write_bytes(path.read_bytes())
    else:
        copy.write_bytes(generated(int(path.name.partition("-")[2])))


def generated(seed: int) -> bytes:
    """Return columns of one kind, some with empty fields, some with a value of another kind. In one
    of ten files, a record is odd.
    """
    source = random.Random(seed)
    kinds = [source.choice([*_KINDS, "text"]) for _ in range(source.randint(2, 5))]
    gaps = [source.choice([0, 0, 0.2]) for _ in kinds]
    end = source.choice(["\n", "\r\n"])
    records = [",".join(f"c{number} {kind}" for number, kind in enumerate(kinds))]
    for _ in range(source.randint(1, 12)):
        fields = []
        for kind, gap in zip(kinds, gaps, strict=True):
            fields.append(_field(kind, gap, source))
        records.append(",".join(fields))
    if source.random() < 0.1:
        records.append(source.choice(['"', "a", 'a"b,c', '"a"b,c', ",,,,,,"]))
    return (end.join(records) + source.choice(["", end])).encode()


def _field(kind: str, gap: float, source: random.Random) -> str:
    if source.random() < gap:
        return ""
    words = _KINDS.get(kind)
    if words is None:
        text = "".join(source.choices(_WORDS, k=source.randint(0, 3)))
    else:
        text = source.choice(words)
    if source.random() < 0.1 or not {'"', ",", "\n", "\r"}.isdisjoint(text):
        return '"' + text.replace('"', '""') + '"'
    return text


CSV = Corpus(
    address="csv_corpora:CSV",
    files=_files,
    extension=lambda path: ".csv",
    wrap=_write,
    truth=_read,
)
