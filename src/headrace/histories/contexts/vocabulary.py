"""Define the token ids, encode results, and decode tokens to measurements.

| id      | token                 | what follows                                            |
|---------|-----------------------|---------------------------------------------------------|
| 0       | pad                   | nothing; fills the end of a context                     |
| 1       | start                 | a measurement: the fields below, each once, any order   |
| 2       | entity                | 4 bytes: IPv4 address, or number or code, big-endian    |
| 3       | entity, IPv6          | 16 bytes                                                |
| 4       | peer                  | as an entity                                            |
| 5       | peer, IPv6            | 16 bytes                                                |
| 6       | timestamp, absolute   | 8 bytes: since 1970, big-endian, signed                 |
| 7       | timestamp, delta      | 1 byte: since the timestamp before, below 256           |
| 8       | timestamp, long delta | 4 bytes: the same from 256 on, big-endian               |
| 9       | latency               | 2 bytes: the latency code, big-endian                   |
| 10      | throughput            | reserved, never made                                    |
| 11      | failed                | nothing: the measurement failed                         |
| 12..267 | byte 0..255           |                                                         |
| 268 + k | value column k        | 1 to 8 bytes, as the column's type has, big-endian      |

Value columns follow the result, in the order of their names; a missing value has no token. A
category is its index in its dictionary, an integer its two's complement, a float its IEEE 754 bits.
Times are in the unit of the run. Numbers and codes may have fewer bytes; all bytes 255 is unknown.
Without a latency there is no result. "The timestamp before" is the last one in the same segment;
measurements without a timestamp may lie between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.arrays import I32, I64, U16, Bools
from headrace.errors import InputError, setting_name
from headrace.histories.codec.values import Values, is_missing
from headrace.histories.contexts.tokeniser import DEFAULT, Layout, Tokeniser

PAD = 0
START = 1
ENTITY = 2
ENTITY_V6 = 3
PEER = 4
PEER_V6 = 5
TIME_ABSOLUTE = 6
TIME_DELTA = 7
TIME_LONG_DELTA = 8
LATENCY = 9
FAILED = 11
BYTE = 12
VALUE = 268
SIZE = 268  # of the vocabulary without value columns

_COMPLETE = "give complete measurements of one segment"

_FIELDS = {  # the field of each role, and the number of bytes that follow it
    ENTITY_V6: ("entity", 16),
    PEER_V6: ("peer", 16),
    TIME_ABSOLUTE: ("time", 8),
    TIME_DELTA: ("time", 1),
    TIME_LONG_DELTA: ("time", 4),
    LATENCY: ("result", 2),
    FAILED: ("result", 0),
}


def result_sizes(codes: U16, values: Values, layout: Layout, has_latency: bool | Bools) -> I64:
    """Count the tokens of each result: int64 [M].

    values: all value columns. has_latency: one bool for all, or bool [M].
    """
    sizes = np.where(codes == 0, 1, 3) * (has_latency if layout.value else False)
    for field in layout.values:
        sizes += np.where(is_missing(values[field.number]), 0, field.size)
    return sizes.astype(np.int64)


def result_tokens(codes: U16, values: Values, layout: Layout, *, has_latency: bool) -> I32:
    """Write the tokens of each result, the latency and then the values, from the left: int32 [M,
    W].

    W = 0 if there is only a latency, which `tokens` writes.
    """
    if not layout.values and has_latency:
        return np.zeros((len(codes), 0), np.int32)
    width = 3 * has_latency + sum(field.size for field in layout.values)
    tokens = np.zeros((len(codes), width), np.int32)
    at = np.zeros(len(codes), np.int64)
    if has_latency:
        tokens[:, 0] = np.where(codes == 0, FAILED, LATENCY)
        tokens[:, 1] = BYTE + (codes >> 8)
        tokens[:, 2] = BYTE + (codes & 255)
        at += np.where(codes == 0, 1, 3)
    for field in layout.values:
        column = values[field.number]
        rows = np.flatnonzero(~is_missing(column))
        tokens[rows, at[rows]] = VALUE + field.number
        columns = at[rows][:, None] + np.arange(1, field.size)
        tokens[rows[:, None], columns] = BYTE + field.data(column[rows]).astype(np.int32)
        at[rows] += field.size
    return tokens


class Measurement(NamedTuple):
    """One decoded measurement.

    time: since 1970 in the unit of the run, or None.
    entity, peer: bytes of an address, or of a number or code; None if there is none.
    code: latency code; 0 = failed, None without a latency.
    values: of the value columns; a category is its index in the dictionary; None if missing.
    """

    time: int | None
    entity: bytes | None
    peer: bytes | None
    code: int | None
    values: tuple[int | float | None, ...] = ()


def decode(
    tokens: npt.ArrayLike,
    segments: npt.ArrayLike | None = None,
    *,
    values: Mapping[str, str] | None = None,
    tokeniser: Tokeniser = DEFAULT,
) -> list[list[Measurement]]:
    """Decode the measurements of one context, as a list for each segment, in the order of the
    tokens.

    tokens: integers [T].
    segments: integers [T], 0 = padding, as in `inputs_segmentation`. None: everything before the
    padding is one segment. values: names and types of the value columns, as in
    `Contexts.rows.values`. tokeniser: that of the contexts. For a context from a loader see
    `decode_context`. Raises `InputError` for tokens that are not measurements, and names the
    position.
    """
    ids = np.asarray(tokens, np.int64)
    segment_of_token = (
        (ids != PAD).astype(np.int64) if segments is None else np.asarray(segments, np.int64)
    )
    types = [np.dtype(type_name).newbyteorder(">") for type_name in (values or {}).values()]
    known = {
        **_FIELDS,
        ENTITY: ("entity", tokeniser.entity_bytes),
        PEER: ("peer", tokeniser.peer_bytes),
    }
    for number, dtype in enumerate(types):
        known[VALUE + number] = (f"value {number}", dtype.itemsize)
    decoded = []
    for number in range(1, int(segment_of_token.max(initial=0)) + 1):
        mask = segment_of_token == number
        decoded.append(_decode_segment(ids[mask].tolist(), int(np.argmax(mask)), types, known))
    return decoded


def decode_context(
    context: Mapping[str, npt.ArrayLike],
    *,
    values: Mapping[str, str] | None = None,
    tokeniser: Tokeniser = DEFAULT,
) -> list[list[Measurement]]:
    """Decode the measurements of one context from `Contexts` or its loaders, as a list for each
    segment, in order.

    context: integers [L] by name, six or four arrays. L + 1 tokens were drawn, and in a full
    context the last of them is only a target, so the last measurement would be cut if the inputs
    alone were decoded. Raises `InputError` as `decode` does, and if arrays are missing.
    """
    segment_name = "segmentation"
    if "inputs_segmentation" in context:
        segment_name = "inputs_segmentation"
    for name in ("inputs", segment_name, "targets"):
        if name not in context:
            raise InputError(
                f"{setting_name('context')} has no {name}, only {', '.join(context)}",
                remedy="give a context as it was delivered",
            )
    tokens = np.asarray(context["inputs"], np.int64)
    segments = np.asarray(context[segment_name], np.int64)
    targets = np.asarray(context["targets"], np.int64)
    if len(tokens) and targets[-1]:  # no measurement ends with token 0, which is pad
        tokens = np.append(tokens, targets[-1])
        segments = np.append(segments, segments[-1])
    return decode(tokens, segments, values=values, tokeniser=tokeniser)


def _decode_segment(
    ids: list[int],
    start: int,
    types: Sequence[np.dtype[Any]],
    known: Mapping[int, tuple[str, int]],
) -> list[Measurement]:
    """Decode the tokens of a segment.

    start: the position of the first, for errors. known: the field of each role, and its bytes.
    """
    measurements: list[Measurement] = []
    previous: int | None = None
    at = 0
    while at < len(ids):
        if ids[at] != START:
            raise InputError(
                f"the id is {ids[at]}, and a measurement begins with {START}",
                row=f"position {start + at}",
                remedy=_COMPLETE,
            )
        at += 1
        fields: dict[str, tuple[int, bytes]] = {}
        while at < len(ids) and ids[at] != START:
            role = ids[at]
            name, size = known.get(role, ("", 0))
            body = ids[at + 1 : at + 1 + size]
            if not name or len(body) != size or not all(BYTE <= token < VALUE for token in body):
                raise InputError(
                    f"the id is {role} with {body} after it, which is not a field",
                    row=f"position {start + at}",
                    remedy=_COMPLETE,
                )
            if name in fields:
                raise InputError(
                    f"a second {name} in one measurement",
                    row=f"position {start + at}",
                    remedy=_COMPLETE,
                )
            fields[name] = (role, bytes(token - BYTE for token in body))
            at += 1 + size
        measurement = _measurement(fields, previous, start + at, types)
        if measurement.time is not None:
            previous = measurement.time
        measurements.append(measurement)
    return measurements


def _measurement(
    fields: dict[str, tuple[int, bytes]],
    previous: int | None,
    end: int,
    types: Sequence[np.dtype[Any]],
) -> Measurement:
    """Make a measurement from its fields.

    previous: the timestamp before; end: its position, for errors.
    """
    time: int | None = None
    if "time" in fields:
        role, body = fields["time"]
        time = int.from_bytes(body, "big", signed=role == TIME_ABSOLUTE)
        if role != TIME_ABSOLUTE:
            if previous is None:
                raise InputError(
                    "the measurement before has a delta without an earlier timestamp",
                    row=f"position {end}",
                    remedy=_COMPLETE,
                )
            time += previous
    entity = fields["entity"][1] if "entity" in fields else None
    peer = fields["peer"][1] if "peer" in fields else None
    code = None
    if "result" in fields:
        code = int.from_bytes(fields["result"][1], "big")
    values: list[int | float | None] = []
    for number, dtype in enumerate(types):
        value = None
        if f"value {number}" in fields:
            value = np.frombuffer(fields[f"value {number}"][1], dtype)[0].item()
        values.append(value)
    return Measurement(time, entity, peer, code, tuple(values))
