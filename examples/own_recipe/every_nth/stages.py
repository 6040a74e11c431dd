"""The work of the recipe, one stage with a task for each file, and its law."""

import json
from dataclasses import asdict
from functools import partial

import pyarrow as pa

from headrace.dataset.verify import Check
from headrace.errors import SettingsError
from headrace.formats.common_schema import common_schema, with_content
from headrace.formats.registry import FileType
from headrace.formats.source import read_chunks, survey
from headrace.formats.write import ShardWriter
from headrace.run.context import Task
from headrace.run.prepare import Outcome
from headrace.run.tally import ShardRecord, tally


def execute(settings, context, files):
    """Thin out every file; the split is called `all`."""
    shards = [survey(path, name) for path, name in files]
    empty = [shard.name for shard in shards if shard.content == "nothing"]
    schema = common_schema(shards, "error")
    for name in settings.columns or []:
        if name not in schema.names:
            raise SettingsError(
                "is not in the source", setting="columns", value=name, remedy="name its columns"
            )
    schema = pa.schema([schema.field(name) for name in settings.columns or schema.names])
    work = partial(thin, step=settings.step, schema=schema)
    tasks = []
    for number, shard in enumerate(with_content(shards)):
        target = f"data/part-{number:05d}.parquet"
        tasks.append(
            Task(shard.name, shard.size, partial(work, shard=shard, target=target), [shard.path])
        )
    receipts = context.stage("split", tasks)
    records = [
        ShardRecord("all", receipt.files[0], receipt.extra["blocks"], "parquet", receipt.subject)
        for receipt in receipts
    ]
    index, splits = tally(records, ["all"])
    read, size = sum(receipt.rows_in for receipt in receipts), sum(shard.size for shard in shards)
    return Outcome(
        schema=schema,
        index=index,
        splits=splits,
        dropped={"between": read - splits["all"].rows},
        source={"files": len(files), "bytes": size, "rows": read, "empty_shards": empty},
        directories={"all": "data"},
        metadata={"step": settings.step},
    )


def thin(files, step, schema, shard, target):
    """Write every n-th row of a file. `files` gives its output a name when the task has finished."""
    chunks = [chunk.table(schema.names) for chunk in read_chunks(shard)]
    table = pa.concat_tables(chunks) if chunks else schema.empty_table()
    kept = table.take(pa.array(range(0, len(table), step), pa.int64()))
    path = files.temporary(target)
    with ShardWriter(
        path, file_type=FileType.named("parquet"), schema=schema, dialect=None
    ) as writer:
        writer.append(kept)
        written = writer.finish()
    files.finished(path, target, written)
    return {
        "rows_in": len(table),
        "rows_by_split": {"all": len(kept)},
        "dropped_by_reason": {"between": len(table) - len(kept)},
        "blocks": [asdict(block) for block in written.blocks],
    }


def verify(run):
    """Compare the number of rows with the step."""
    step = json.loads((run.root / "config.json").read_bytes())["step"]
    kept, read = run.manifest.splits["all"].rows, run.manifest.source["rows"]
    sound = kept <= read // step + run.manifest.source["files"]
    problem = (
        None if sound else f"{run.root}: {kept} rows are kept of {read}; prepare the run again"
    )
    return [Check("one row in this many", f"{kept} of {read} rows, step {step}", problem)]
