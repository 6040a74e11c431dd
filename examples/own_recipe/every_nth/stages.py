"""The work of the recipe, one stage with a task for each file, and its law."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from every_nth.settings import EveryNth
from headrace.dataset.index import IndexRow
from headrace.dataset.manifest import SplitTotals
from headrace.dataset.open import FinishedRun
from headrace.dataset.verify import Check
from headrace.formats.registry import FileType
from headrace.formats.shard import Shard
from headrace.formats.source import read_chunks, survey
from headrace.formats.write import ShardWriter
from headrace.run.context import RunContext, Task, TaskFiles
from headrace.run.prepare import Outcome


def execute(settings: EveryNth, context: RunContext, files: Sequence[tuple[Path, str]]) -> Outcome:
    """Thin out every file; the split is called `all`."""
    shards = [survey(path, name) for path, name in files]
    names = list(settings.columns or shards[0].schema.names)
    schema = pa.schema([shards[0].schema.field(name) for name in names])
    made = context.stage("thin", [thinning(settings, shard, schema) for shard in shards])
    index = []
    for receipt, shard in zip(made, shards, strict=True):
        file = receipt.files[0]
        same = {"split": "all", "shard": file.path, "format": "parquet", "source_shard": shard.name}
        digests = {"digest": file.digest, "checksum": file.checksum}
        index += [
            IndexRow(**same, **digests, block=block, **facts) for block, facts in enumerate(receipt.result["blocks"])
        ]
    read, kept = (sum(receipt.result[key] for receipt in made) for key in ("rows_read", "kept"))
    size = sum(path.stat().st_size for path, _ in files)
    written = sum(file.bytes for receipt in made for file in receipt.files)
    return Outcome(
        schema=schema,
        index=sorted(index, key=lambda row: (row.shard, row.block)),
        splits={"all": SplitTotals(rows=kept, shards=len(made), bytes=written)},
        dropped={"between": read - kept},
        source={"files": len(files), "bytes": size, "rows": read, "empty_shards": []},
        directories={"all": "data"},
        facts={"step": settings.step},
    )


def thinning(settings: EveryNth, shard: Shard, schema: pa.Schema) -> Task:
    """The task for one file."""
    return Task(shard.name, shard.path.stat().st_size, work(settings, shard, schema), [shard.path])


def work(settings: EveryNth, shard: Shard, schema: pa.Schema) -> Callable[[TaskFiles], dict[str, Any]]:
    """Write every n-th row of a file."""

    def thin(files: TaskFiles) -> dict[str, Any]:
        whole = pa.concat_tables(chunk.table(shard.schema.names) for chunk in read_chunks(shard)).select(schema.names)
        kept = whole.take(pa.array(range(settings.first, len(whole), settings.step), pa.int64()))
        target = f"data/{Path(shard.name).stem}.parquet"
        parquet = FileType.named("parquet")
        path = files.temporary(target)
        with ShardWriter(
            path, file_type=parquet, schema=schema, dialect=None, parquet_compression=settings.codec
        ) as writer:
            writer.append(kept)
            written = writer.finish()
            files.finished(path, target, written)
        return {"rows_read": len(whole), "kept": written.rows, "blocks": [asdict(block) for block in written.blocks]}

    return thin


def verify(run: FinishedRun) -> list[Check]:
    """Compare the number of rows with the step."""
    step = json.loads((run.root / "config.json").read_bytes())["step"]
    kept, read = run.manifest.splits["all"].rows, run.manifest.source["rows"]
    most = read // step + run.manifest.source["files"]
    problem = None if kept <= most else f"{run.root}: {kept} rows are kept of {read}; prepare the run again"
    return [Check("one row in this many", f"{kept} of {read} rows, step {step}", problem)]
