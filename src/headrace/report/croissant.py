"""Describe a run as Croissant 1.0, the JSON-LD that dataset searches and `mlcroissant` read.

Every shard is a file object with its SHA-256 from the index, and every split is a record set over a file set. Paths are
relative to the run's directory.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from headrace.report.card import configs_of, patterns, table_format
from headrace.report.facts import RunFacts
from headrace.report.words import many

CROISSANT = "croissant.json"
_ENCODINGS = {
    "parquet": "application/x-parquet",
    "csv": "text/csv",
    "tsv": "text/tab-separated-values",
    "jsonl": "application/jsonlines",
}
# The complete context of the specification: `mlcroissant` warns about any other.
_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
}
_TERMS = [
    "citeAs", "column", "equivalentProperty", "extract", "field", "fileProperty", "fileObject",
    "fileSet", "format", "includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField",
    "path", "recordSet", "references", "regex", "repeated", "replace", "samplingRate", "separator",
    "source", "subField", "transform",
]  # fmt: skip
_CONTEXT |= {name: f"cr:{name}" for name in _TERMS}


def croissant_of(facts: RunFacts, *, license_: str | None = None) -> str:
    """Return the metadata of a run as JSON-LD. license_: a URL or a name; None leaves the licence out.

    Shards that only headrace can read as tables get no record sets; only their files are described.
    """
    manifest, word = facts.manifest, table_format(facts)
    encoding = _ENCODINGS.get(word or "")
    shards = facts.blocks.select("shard", "digest").unique().sort("shard")
    files: list[dict[str, Any]] = [
        {
            "@type": "cr:FileObject",
            "@id": shard,
            "name": shard,
            "contentUrl": shard,
            "encodingFormat": encoding or "application/octet-stream",
            "sha256": digest,
        }
        for shard, digest in shards.iter_rows()
    ]
    records: list[dict[str, Any]] = []
    for config, totals, lists in configs_of(facts) if encoding is not None else ():
        for split, cells in lists.items():
            if not totals.splits[split].rows:
                continue
            name = split if config == "default" else f"{config}/{split}"
            files.append(
                {
                    "@type": "cr:FileSet",
                    "@id": f"{name}-shards",
                    "name": f"{name}-shards",
                    "encodingFormat": encoding,
                    "includes": patterns(facts, cells),
                }
            )
            records.append(
                {
                    "@type": "cr:RecordSet",
                    "@id": name,
                    "name": name,
                    "description": many(totals.splits[split].rows, "row"),
                    "field": [_field(name, column) for column in facts.run.schema],
                }
            )
    record = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": facts.output,
        "description": f"Prepared by headrace, recipe {manifest.recipe}, run {manifest.run_id}.",
        "version": f"1.0.0+{manifest.index_digest[:12]}",
        "datePublished": facts.run.finished_at[:10],
        **({"license": license_} if license_ else {}),
        "distribution": files,
        "recordSet": records,
    }
    return json.dumps(record, ensure_ascii=False, indent=1) + "\n"


def _field(record_set: str, column: pa.Field) -> dict[str, Any]:
    name = f"{record_set}/{column.name}"
    kind, repeated = column.type, False
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind, repeated = kind.value_type, True
    return {
        "@type": "cr:Field",
        "@id": name,
        "name": name,
        "dataType": _data_type(kind),
        **({"repeated": True} if repeated else {}),
        "source": {"fileSet": {"@id": f"{record_set}-shards"}, "extract": {"column": column.name}},
    }


def _data_type(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "sc:Boolean"
    if pa.types.is_integer(kind):
        return "sc:Integer"
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "sc:Float"
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return "sc:Date"
    return "sc:Text"
