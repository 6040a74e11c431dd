"""Change what a manifest says, and make its digest fit again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.dataset.manifest import read_manifest
from headrace.dataset.open import FinishedRun
from headrace.digest import canonical_json, sha256_hex


def reseal(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the record of a run's manifest as somebody would who hides it."""
    path = run / "manifest.json"
    record = json.loads(path.read_bytes())
    del record["digest"]
    change(record)
    record["digest"] = sha256_hex(canonical_json(record))
    path.write_text(
        json.dumps(record, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    )


def change_settings(run: Path, **values: Any) -> FinishedRun:
    """Let a run claim to be made with other settings; return it as it is read then."""
    path = run / "config.json"
    data = json.dumps(json.loads(path.read_bytes()) | values).encode()
    path.chmod(0o644)
    path.write_bytes(data)
    reseal(run, lambda record: record.update(config_digest=sha256_hex(data)))
    manifest = read_manifest(run)
    assert manifest is not None
    return FinishedRun(run, manifest)


def reseal_files(run: Path) -> None:
    """Make every digest fit the files of a run as they are now: those of index, receipts and manifest."""
    import pyarrow as pa

    from headrace.dataset.index import table_bytes
    from headrace.dataset.open import read_index
    from headrace.dataset.receipts import digest_of_receipts, parse_receipt
    from headrace.digest import digest_file

    index = read_index(run / "index.parquet")
    table = index.table
    digests = {name: digest_file(run / name) for name in set(table["shard"].to_pylist())}
    for column, attribute in {"digest": "sha256", "checksum": "checksum"}.items():
        values = [getattr(digests[name], attribute) for name in table["shard"].to_pylist()]
        field = table.schema.field(column)
        table = table.set_column(
            table.schema.get_field_index(column), field, pa.array(values, field.type)
        )
    (run / "index.parquet").write_bytes(table_bytes(table, index.schema, index.dialect))
    stages: dict[str, list[str]] = {}
    for path in sorted((run / "receipts").iterdir()):
        receipt = parse_receipt(path.read_bytes())
        files = []
        for record in receipt.files:
            if (run / record.path).is_file():
                digest = digest_file(run / record.path)
                size = (run / record.path).stat().st_size
                record = replace(record, bytes=size, digest=digest.sha256, checksum=digest.checksum)
            files.append(record)
        path.write_bytes(replace(receipt, files=tuple(files)).to_json())
        stages.setdefault(receipt.stage, []).append(sha256_hex(path.read_bytes()))
    receipts = {}
    for stage, values in stages.items():
        receipts[stage] = {"tasks": len(values), "digest": digest_of_receipts(values)}
    fields = {
        "index_digest": sha256_hex((run / "index.parquet").read_bytes()),
        "config_digest": sha256_hex((run / "config.json").read_bytes()),
        "receipts": receipts,
    }
    reseal(run, lambda record: record.update(fields))
