"""Mask rows of entities with false in batch["valid"], so that training skips them until they are
erased.

Positions, steps, batches and states are those of a stream without the mask, so a job can start to
mask in the middle of an epoch. Each block is read with the column of the entity, whether or not
batches have it. The rows themselves are unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from headrace.dataset.indexed import ReadBlock
from headrace.formats.text_columns import as_text

KEPT = "headrace.kept"  # a column of decoded blocks that batches never contain


@dataclass(frozen=True)
class EntityMask:
    """The entities to mask.

    column: the column whose values name entities. entities: the masked ones, as text.
    """

    column: str
    entities: tuple[str, ...]

    def around(self, read_block: ReadBlock) -> ReadBlock:
        """Wrap `read_block` to append a last column, `KEPT`, which is false in rows of masked
        entities.
        """
        masked = pa.array(self.entities, pa.large_string())

        def read(block: int, columns: Sequence[str] | None) -> pa.Table:
            names = [name for name in columns or () if name != KEPT]
            table = read_block(block, list(dict.fromkeys([*names, self.column])))
            texts = as_text(table[self.column], (), self.column)
            return table.select(names).append_column(
                KEPT, pc.invert(pc.is_in(texts, value_set=masked))
            )

        return read
