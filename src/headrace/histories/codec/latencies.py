"""Encode latencies as 16-bit codes.

A latency takes two bytes: whole microseconds as an 11-bit mantissa shifted by a 5-bit exponent, rounded. The code is
exponent << 11 | mantissa, the value mantissa << exponent. Values below 2,048 µs are exact. Above, the mantissa is 1,024
to 2,047 and the error at most half a step, 0.049 %. Code 0 is a failed measurement, so a latency of 0 µs becomes 1 µs.
Every code that `encode_latencies` returns is a fixed point: it decodes to a value that encodes to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.arrays import F64, I64, U16, Bools

FAILED = 0
LARGEST_US = 2047 << 31  # about 51 days
_MANTISSA_BITS = 11
_BELOW = 1 << _MANTISSA_BITS


@dataclass(frozen=True)
class Codes:
    """codes: uint16 [N]; clamped: how many values exceeded `LARGEST_US` and were replaced by it."""

    codes: U16
    clamped: int


def encode_latencies(microseconds: I64 | F64, failed: Bools) -> Codes:
    """Encode latencies in whole microseconds; int64 or float64 [N], failed bool [N] → `Codes`.

    0 µs becomes 1 µs. `microseconds` is ignored where `failed` is True; elsewhere it must not be negative. Never
    raises.
    """
    value = np.where(failed, 1.0, microseconds)
    clamped = int(np.count_nonzero(value > LARGEST_US))
    np.clip(value, 1, LARGEST_US, out=value)
    # The bits of a float are its exponent above its mantissa. Rounded to 10 bits of mantissa (the first one is implied)
    # they are the code up to one bit and a constant, because a mantissa rounded up to 2 carries into the exponent.
    rounded = ((value.view(np.int64) + (1 << 41)) >> 42) - ((1023 + _MANTISSA_BITS - 1) << (_MANTISSA_BITS - 1))
    wide = rounded + (rounded & -(_BELOW >> 1)) + (_BELOW >> 1)
    np.copyto(wide, value, where=value < _BELOW >> 1, casting="unsafe")
    codes = wide.astype(np.uint16)
    codes[failed] = FAILED
    return Codes(codes, clamped)


def decode_latencies(codes: U16) -> I64:
    """Decode codes to whole microseconds, −1 for `FAILED`; uint16 [N] → int64 [N]."""
    wide = codes.astype(np.int64)
    return np.where(codes == FAILED, -1, (wide & (_BELOW - 1)) << (wide >> _MANTISSA_BITS))


def is_canonical(codes: U16) -> Bools:
    """Return which codes `encode_latencies` can produce; any other code is damage. uint16 [N] → bool [N]."""
    mantissa, exponent = codes & np.uint16(_BELOW - 1), codes >> np.uint16(_MANTISSA_BITS)
    canonical: Bools = (exponent == 0) | (mantissa >= _BELOW // 2)
    return canonical
