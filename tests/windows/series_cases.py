"""Small runs of series in the form that the recipe writes, and what windows should be by looking at every start."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.dataset.manifest import Manifest
from headrace.digest import checksum_file, sha256_file, sha256_hex
from headrace.series.windows.store import ENTITIES_SCHEMA

TARGET, FEATURES = "flow", ("rain", "warmth")
SPLITS = ("train", "val", "test")
RANGES = {"train": (0, 1), "val": (1, 2), "test": (2, 3)}
RUN_ID = "11111111-2222-5333-8444-555555555555"


def entity_values(rows, number, random, missing):
    """Column c of row r of entity e is e + r / 1024 + c / 4: every value says where it is from; with holes."""
    base = number + np.arange(rows)[:, None] / 1024 + np.arange(3) / 4
    values = base.astype(np.float32)
    for column in range(3):
        for begin in np.flatnonzero(random.random(rows) < missing):
            values[begin : begin + int(random.integers(1, 4)), column] = np.nan
    return values


def write_run(
    out,
    lengths=(60, 45, 80, 30, 52, 70, 66),
    *,
    shards=2,
    missing=0.02,
    frequency="1d",
    static=2,
    seed=0,
    first_time="2001-02-03",
    run_id=RUN_ID,
    without_attribute=None,
):
    """A finished run of these entities; returns their values, float32 [rows, C], NaN where missing."""
    random = np.random.default_rng(seed)
    run = Path(out) / "runs" / run_id
    (run / "store").mkdir(parents=True)
    columns = [TARGET, *FEATURES]
    metadata = {
        b"headrace.series": json.dumps(
            {
                "columns": columns,
                "targets": [TARGET],
                "future": FEATURES,
                "frequency": frequency,
            }
        ).encode()
    }
    values = []
    for number, rows in enumerate(lengths):
        values.append(entity_values(rows, number, random, missing))
    records, digests = [], {}
    for shard, members in enumerate(np.array_split(np.arange(len(lengths)), shards)):
        name = f"store/part-{shard:05d}.arrow"
        matrix = np.concatenate([values[each] for each in members])
        kind = pa.list_(pa.field("item", pa.float32(), nullable=False), len(columns))
        schema = pa.schema([pa.field("values", kind, nullable=False)], metadata=metadata)
        array = pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1)), type=kind)
        with pa.ipc.new_file(run / name, schema) as writer:
            writer.write_batch(pa.record_batch([array], schema=schema))
        digests[name] = checksum_file(run / name)
        first = 0
        for number in members.tolist():
            rows = lengths[number]
            cuts = rows * 3 // 5, rows * 4 // 5
            observed = [~np.isnan(part[:, 0]) for part in np.split(values[number], cuts)]
            records.append(
                {
                    "entity": f"basin_{number:03d}",
                    "shard": name,
                    "first_row": first,
                    "rows": rows,
                    "first_time": np.datetime64(first_time, "us") + np.timedelta64(number, "D"),
                    "edges": cuts,
                    "val_row": cuts[0],
                    "test_row": cuts[1],
                    **dict(
                        zip(
                            ("train_targets", "val_targets", "test_targets"),
                            [int(part.sum()) for part in observed],
                            strict=True,
                        )
                    ),
                    "anchor": "start",
                    "train_row": 0,
                    "train_stop": cuts[0],
                    "static_row": len(lengths) - 1 - number if static else -1,
                }
            )
            first += rows
    table = pa.Table.from_pylist(records, schema=ENTITIES_SCHEMA)
    pq.write_table(table.replace_schema_metadata(metadata), run / "entities.parquet")
    digests["entities.parquet"] = sha256_file(run / "entities.parquet")
    if static:
        who = np.arange(len(lengths))[::-1]
        attributes = {f"attribute_{each}": (10.0 * each + who) for each in range(static)}
        attributes["attribute_1"][who == without_attribute] = np.nan
        statics = pa.table({"entity": [f"basin_{number:03d}" for number in who], **attributes})
        pq.write_table(statics, run / "processed_static_features.parquet")
        digests["processed_static_features.parquet"] = sha256_file(
            run / "processed_static_features.parquet"
        )
    manifest = Manifest(
        run_id=run_id, recipe="series", libraries={}, source={}, schema=[],
        splits={}, dropped={}, index_digest=sha256_hex(b""), config_digest=sha256_hex(b""), receipts={}, metadata={"series_files": digests, "pipelines": {}, "parts": {"names": SPLITS, "ranges": [RANGES]}},
    )  # fmt: skip
    (run / "manifest.json").write_bytes(manifest.to_json())
    return values


def expected_windows(
    values, split, *, input_length, output_length, horizons=None, stride=1, is_autoregressive=False, history="within",
    targets="all", future="known", incomplete="skip", **_,
):  # fmt: skip
    """(entity, place of the first input among the entity's rows) of every window, by looking at every start."""
    found = []
    for number, table in enumerate(values):
        rows = len(table)
        low, high = {
            "train": (0, rows * 3 // 5), "val": (rows * 3 // 5, rows * 4 // 5), "test": (rows * 4 // 5, rows),
            "all": (0, rows),
        }[split]  # fmt: skip
        begin = max(low - input_length, 0) if history == "preceding" else low
        ahead = output_length if targets != "none" or future != "none" else 0
        for start in range(begin, high - input_length - ahead + 1, stride):
            past = table[start : start + input_length]
            coming = table[start + input_length : start + input_length + ahead]
            labels = np.isnan(
                coming[:, 0][[h - 1 for h in horizons] if horizons and ahead else slice(None)]
            )
            bad = []
            if incomplete == "skip":
                bad.append(np.isnan(past[:, 0 if is_autoregressive else 1 : 3]).any())
                bad.append(future != "none" and np.isnan(coming[:, 1:3]).any())
            bad.append(targets == "all" and labels.any())
            bad.append(targets == "any" and bool(labels.all()))
            if not any(bad):
                found.append((number, start))
    return found


def filled_by_hand(rows, incomplete="skip", season=1):
    """Rows [T, C] whose missing values are filled as the word says, by looking at each value."""
    filled = rows.copy()
    for row, column in np.argwhere(np.isnan(rows)):
        values = rows[:, column]
        known = np.flatnonzero(~np.isnan(values))
        if incomplete in ("skip", "keep"):
            continue
        if incomplete == "zero" or not len(known):
            filled[row, column] = 0
            continue
        before, after = known[known < row], known[known > row]
        value = values[before[-1]] if len(before) else values[after[0]]
        if incomplete == "linear" and len(before) and len(after):
            value = np.interp(row, known, values[known])
        if incomplete == "seasonal":
            same = [at for at in range(row - season, -1, -season) if at in known]
            value = values[same[0]] if same else value
        filled[row, column] = value
    return filled


def window_ids(batch):
    """(entity, first row) of each window of a batch of numpy arrays, read from its values: rain is e + r/1024 + 1/4."""
    first = batch["X"][:, 0, list(batch.get("names", FEATURES)).index("rain")] - 0.25
    entity = np.floor(first + 1e-4).astype(int)
    return [(int(e), int(r)) for e, r in zip(entity, np.rint((first - entity) * 1024), strict=True)]
