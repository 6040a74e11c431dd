"""Define the token ids, and decode tokens to measurements.

| id      | compat  | token                 | what follows                                            |
|---------|---------|-----------------------|---------------------------------------------------------|
| 0       | 0       | pad                   | nothing; fills the end of a context                     |
| 1       | 0       | start                 | a measurement: the fields below, each once, any order   |
| 2       | 1       | source, IPv4          | 4 bytes (or a number as 4 bytes, big-endian)            |
| 3       | 2       | source, IPv6          | 16 bytes                                                |
| 4       | 3       | destination, IPv4     | 4 bytes                                                 |
| 5       | 4       | destination, IPv6     | 16 bytes                                                |
| 6       | 5       | timestamp, absolute   | 8 bytes: seconds since 1970, big-endian                 |
| 7       | 6       | timestamp, delta      | 1 byte: seconds since the timestamp before, below 256   |
| 8       | 7       | timestamp, long delta | 4 bytes: the same from 256 on, big-endian               |
| 9       | 8       | round-trip time       | 2 bytes: the latency code, big-endian                   |
| 10      | 9       | throughput            | reserved, never made                                    |
| 11      | 10      | failed                | nothing: the measurement failed                         |
| 12..267 | 11..266 | byte 0..255           |                                                         |
| 268 + k | 267 + k | value column k        | 1 to 8 bytes, as the column's type has, big-endian      |

Value columns follow the result, in the order of their names; a missing value has no token. A category is its index in
its dictionary, an integer its two's complement, a float its IEEE 754 bits. Without a latency there is no result.

"compat" is the older layout of 267 ids, in which pad and start share 0, so only the segment ids mark padding. "The
timestamp before" is the last one in the same segment; measurements without a timestamp may lie between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.errors import InputError

Vocabulary = Literal["standard", "compat"]

PAD = 0
START = 1
SOURCE_V4 = 2
SOURCE_V6 = 3
DESTINATION_V4 = 4
DESTINATION_V6 = 5
TIME_ABSOLUTE = 6
TIME_DELTA = 7
TIME_LONG_DELTA = 8
ROUND_TRIP = 9
FAILED = 11
BYTE = 12
VALUE = 268
SIZE: dict[Vocabulary, int] = {"standard": 268, "compat": 267}

_FIELDS = {  # the field of each role, and the number of bytes that follow it
    SOURCE_V4: ("source", 4),
    SOURCE_V6: ("source", 16),
    DESTINATION_V4: ("destination", 4),
    DESTINATION_V6: ("destination", 16),
    TIME_ABSOLUTE: ("time", 8),
    TIME_DELTA: ("time", 1),
    TIME_LONG_DELTA: ("time", 4),
    ROUND_TRIP: ("result", 2),
    FAILED: ("result", 0),
}


class Measurement(NamedTuple):
    """One decoded measurement.

    time: epoch seconds or None.
    code: latency code; 0 = failed, None in histories without latency.
    values: of the value columns; a category is its index in the dictionary; None if missing.
    """

    time: int | None
    source: bytes
    destination: bytes | None
    code: int | None
    values: tuple[int | float | None, ...] = ()


def in_vocabulary(tokens: npt.NDArray[np.int32], vocabulary: Vocabulary) -> npt.NDArray[np.int32]:
    """Map standard ids to ids of this vocabulary; same shape, int32."""
    return tokens if vocabulary == "standard" else np.maximum(tokens - 1, 0)


def decode(
    tokens: npt.ArrayLike,
    segments: npt.ArrayLike | None = None,
    *,
    vocabulary: Vocabulary = "standard",
    values: Mapping[str, str] | None = None,
) -> list[list[Measurement]]:
    """Decode the measurements of one context, as a list for each segment, in the order of the tokens.

    tokens: integers [T].
    segments: integers [T], 0 = padding, as in `inputs_segmentation`. None: everything before the padding is one
    segment; compat padding cannot be recognised then, so every token counts.
    values: names and types of the value columns, as in `Contexts.rows.values`. For a context from a loader see
    `decode_context`. Raises `InputError` for tokens that are not measurements, and names the position.
    """
    ids = np.asarray(tokens, np.int64) + (vocabulary == "compat")
    if segments is None:
        numbers = np.ones(len(ids), np.int64) if vocabulary == "compat" else (ids != PAD).astype(np.int64)
    else:
        numbers = np.asarray(segments, np.int64)
    types = [np.dtype(each).newbyteorder(">") for each in (values or {}).values()]
    return [
        _segment(ids[numbers == each].tolist(), int(np.argmax(numbers == each)), types)
        for each in range(1, int(numbers.max(initial=0)) + 1)
    ]


def decode_context(
    context: Mapping[str, npt.ArrayLike],
    *,
    vocabulary: Vocabulary = "standard",
    values: Mapping[str, str] | None = None,
) -> list[list[Measurement]]:
    """Decode the measurements of one context from `Contexts` or its loaders, as a list for each segment, in order.

    context: integers [L] by name, six or four arrays. L + 1 tokens were drawn, and in a full context the last of them
    is only a target, so the last measurement would be cut if the inputs alone were decoded. Raises `InputError` as
    `decode` does, and if arrays are missing.
    """
    names = ("inputs", "inputs_segmentation") if "inputs_segmentation" in context else ("inputs", "segmentation")
    missing = [name for name in (*names, "targets") if name not in context]
    if missing:
        raise InputError(f"context: has no {missing[0]}, only {', '.join(context)}; give a context as it was delivered")
    tokens, segments, targets = (np.asarray(context[name], np.int64) for name in (*names, "targets"))
    if len(tokens) and targets[-1]:  # no measurement ends with token 0, which is pad, or start too in compat
        tokens, segments = np.append(tokens, targets[-1]), np.append(segments, segments[-1])
    return decode(tokens, segments, vocabulary=vocabulary, values=values)


def _segment(ids: list[int], begin: int, types: Sequence[np.dtype[Any]]) -> list[Measurement]:
    known = _FIELDS | {VALUE + number: (f"value {number}", each.itemsize) for number, each in enumerate(types)}
    found: list[Measurement] = []
    previous: int | None = None
    at = 0
    while at < len(ids):
        if ids[at] != START:
            raise InputError(f"tokens: position {begin + at} has id {ids[at]}, a measurement begins with {START}")
        at += 1
        fields: dict[str, tuple[int, bytes]] = {}
        while at < len(ids) and ids[at] != START:
            role = ids[at]
            name, size = known.get(role, ("", 0))
            body = ids[at + 1 : at + 1 + size]
            if not name or len(body) != size or not all(BYTE <= each < BYTE + 256 for each in body):
                raise InputError(
                    f"tokens: position {begin + at} has id {role} with {body} after it, which is not a field;"
                    " give whole measurements of one segment"
                )
            if name in fields:
                raise InputError(f"tokens: position {begin + at} has a second {name} in one measurement")
            fields[name] = (role, bytes(each - BYTE for each in body))
            at += 1 + size
        measurement = _measurement(fields, previous, begin + at, types)
        previous = previous if measurement.time is None else measurement.time
        found.append(measurement)
    return found


def _measurement(
    fields: dict[str, tuple[int, bytes]], previous: int | None, end: int, types: Sequence[np.dtype[Any]]
) -> Measurement:
    if "source" not in fields or ("result" not in fields and not types):
        raise InputError(f"tokens: the measurement before position {end} has only {sorted(fields)}; it is cut")
    time: int | None = None
    if "time" in fields:
        role, body = fields["time"]
        time = int.from_bytes(body, "big")
        if role != TIME_ABSOLUTE:
            if previous is None:
                raise InputError(
                    f"tokens: the measurement before position {end} has a delta without an earlier timestamp"
                )
            time += previous
    destination = fields["destination"][1] if "destination" in fields else None
    code = int.from_bytes(fields["result"][1], "big") if "result" in fields else None
    values = (fields.get(f"value {number}", (0, b""))[1] for number in range(len(types)))
    read = tuple(
        np.frombuffer(body, each)[0].item() if body else None for body, each in zip(values, types, strict=True)
    )
    return Measurement(time, fields["source"][1], destination, code, read)
