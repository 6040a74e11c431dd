"""Find near rows, such as two versions of a text, and treat them and their copies as the same
content.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.arrays import I64, least_of_component
from headrace.errors import SettingsError
from headrace.formats.content import NOTHING
from headrace.formats.shard import Shard
from headrace.formats.source import read_chunks
from headrace.near.shingles import Shingles
from headrace.near.stages import DocumentPart, find_near
from headrace.run.context import RunContext, Task, TaskFiles
from headrace.run.events import Note
from headrace.split.content import Content
from headrace.split.rules import SplitPlan
from headrace.split.scan import alike_file, read_scan
from headrace.stream.audit.near import shingles_of_rows
from headrace.stream.audit.overlap import holds_texts


def check_near(content: Content) -> None:
    """Raise `SettingsError` if no compared column holds text."""
    if not holds_texts(content.select(content.schema.empty_table(), "", 0).schema):
        names = ", ".join(content.schema.names)
        raise SettingsError(
            f"none of the compared columns holds texts: {names}",
            setting="near",
            remedy="leave it out",
        )


def number_alike(context: RunContext, plan: SplitPlan, shards: Sequence[Shard]) -> SplitPlan:
    """Write beside the scans one number for all rows that are equal or joined through near ones."""
    assert plan.content is not None
    assert plan.settings.near is not None
    near = find_near(context, [_part(plan.content, shard) for shard in shards], plan.settings.near)
    pairs = int((near.jaccard < 1).sum())
    context.on_event(Note("info", f"{pairs:,} pairs of rows are near"))
    digests = [np.empty(0, np.uint64)]
    for number in range(len(shards)):
        scanned = read_scan(context.run, number)
        assert scanned.content is not None
        digests.append(scanned.content)
    ends = np.cumsum([len(shard_digests) for shard_digests in digests])
    content = np.concatenate(digests)
    rows = np.flatnonzero(content != NOTHING)
    same = np.unique(content[rows], return_inverse=True)[1]
    groups = [(rows, same), (np.arange(len(content)), near.group)]
    least = least_of_component(len(content), groups)
    # The lower bits hold the number of a split.
    alike = (least.astype(np.uint64) + np.uint64(1)) << np.uint64(2)

    def write(number: int, files: TaskFiles) -> dict[str, Any]:
        numbers = alike[ends[number] : ends[number + 1]]
        files.write_arrow(alike_file(number), pa.table({"alike": numbers}))
        return {}

    tasks = [Task(shard.name, 0, partial(write, number)) for number, shard in enumerate(shards)]
    context.stage("near_rows", tasks, durable=False)
    return replace(plan, near={"pairs": pairs, "not_compared": near.not_compared})


def _part(content: Content, shard: Shard) -> DocumentPart:
    """Return the rows of a shard as documents: all texts of a row in the compared columns,
    concatenated.
    """
    columns = content.columns(shard)

    def shingles(selected: I64 | None) -> Iterator[Shingles]:
        for chunk in read_chunks(shard, columns):
            table = content.select(chunk.table(columns), str(shard.path), chunk.first_row)
            if selected is not None:
                span = (chunk.first_row, chunk.first_row + len(table))
                first, stop = np.searchsorted(selected, span)
                table = table.take(pa.array(selected[first:stop] - chunk.first_row))
            yield from shingles_of_rows(table)

    return DocumentPart(shard.name, shard.size, shingles, shard.paths)
