"""The work of the recipe, one stage with a task for each file, and its law."""

import json
from dataclasses import asdict
from functools import partial

import pyarrow as pa

from headrace.dataset.verify import Check
from headrace.formats.registry import FileType
from headrace.formats.source import read_chunks, survey
from headrace.formats.write import ShardWriter
from headrace.run.context import Task
from headrace.run.prepare import Outcome
from headrace.run.tally import ShardRecord, tally


def execute(settings, context, files):
    """Thin out every file; the split is called `all`."""
    shards = [survey(path, name) for path, name in files]
    schema = pa.schema(
        [shards[0].schema.field(name) for name in settings.columns or shards[0].schema.names]
    )
    work = partial(thin, settings=settings, schema=schema)
    tasks = [
        Task(shard.name, shard.size, partial(work, shard=shard), [shard.path]) for shard in shards
    ]
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
        source={"files": len(files), "bytes": size, "rows": read, "empty_shards": []},
        directories={"all": "data"},
        metadata={"step": settings.step},
    )


def thin(files, settings, shard, schema):
    """Write every n-th row of a file. `files` gives its output a name when the task has finished."""
    table = pa.concat_tables(chunk.table(shard.schema.names) for chunk in read_chunks(shard))
    kept = table.select(schema.names).take(
        pa.array(range(0, len(table), settings.step), pa.int64())
    )
    target = "data/" + shard.name.partition(".")[0] + ".parquet"
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
