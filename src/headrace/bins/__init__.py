"""Packing sequences into bins of a fixed capacity: pure functions over arrays, no files.

`pack` says which sequences share a bin, `Bins` is its answer, `packing_metrics` how good it is.
`PackedRows` are bins with their tokens. Both halves of headrace use this package.
"""

from typing import Literal

Alignment = Literal["shift_left", "legacy_roll_right"]
