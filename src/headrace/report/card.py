"""Describe a run for a dataset hub: a README.md whose front matter `datasets.load_dataset` and the hub read.

The card is stored beside the shards. Its paths are relative to the run's directory, which can be uploaded or opened as
it is. Its content comes from the manifest, the settings and the index; no shard is read. The user adds licence, origin
and intended use.

The same as Croissant 1.0, the JSON-LD that dataset searches and `mlcroissant` read: every shard is a file object with
its SHA-256 from the index, and every split is a record set over a file set.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import polars as pl
import pyarrow as pa
import yaml

from headrace.dataset.certificate import settings_without_paths
from headrace.dataset.contents import roles_of
from headrace.dataset.manifest import Manifest, in_usual_order
from headrace.formats.shard import separator_of
from headrace.recipe import recipe_of_run
from headrace.report.facts import RunFacts
from headrace.report.words import many, size

README = "README.md"
_AS_WRITTEN = {"keep_default_na": False, "na_values": [""]}  # otherwise the text NA would be read as missing
_UNSPLIT = {"all": "train"}  # `datasets` reserves the word all, and calls unsplit rows train
_SIZES = ["n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M", "100M<n<1B", "1B<n<10B"]
_NAMES = {
    "float": "float32",
    "double": "float64",
    "halffloat": "float16",
    "date32[day]": "date32",
    "date64[ms]": "date64",
}


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
_DATA_TYPES = {
    "Boolean": (pa.types.is_boolean,),
    "Integer": (pa.types.is_integer,),
    "Float": (pa.types.is_floating, pa.types.is_decimal),
    "Date": (pa.types.is_timestamp, pa.types.is_date),
}


class _Plain(yaml.SafeDumper):
    """Dumps repeated values in full, because some readers of front matter do not support YAML references."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - of no value
        return True


def markdown_of(facts: RunFacts, *, license_: str | None = None) -> str:
    """Return the card of a run as Markdown with YAML front matter.

    license_: the hub's name for it, such as "cc-by-4.0"; None writes a line that asks for it. A run whose shards only
    headrace can read as tables (ArrayRecord, packed .npy) gets no `configs`.
    """
    front = yaml.dump(_front(facts), Dumper=_Plain, sort_keys=False, allow_unicode=True, width=120)
    licence = f"license: {license_}\n" if license_ else "# license: name one, such as cc-by-4.0\n"
    return f"---\n{licence}{front}---\n\n{_body(facts)}"


def configs_of(facts: RunFacts) -> Iterator[tuple[str, Manifest, Mapping[str, Sequence[str]]]]:
    """Yield (name, totals, the run's splits behind each split): one configuration "default", or one per fold."""
    manifest = facts.manifest
    if not manifest.folds:
        yield "default", manifest, {split: [split] for split in facts.splits}
    for number, lists in enumerate(manifest.folds):
        yield f"fold_{number}", manifest.fold(number), lists


def table_format(facts: RunFacts) -> str | None:
    """Return the index's word, without compression, for the format of all shards; None if others cannot read it."""
    words = {word.partition(".")[0] for word in facts.blocks["format"].unique().to_list()}
    word = words.pop() if len(words) == 1 else ""
    return word if word.partition("-")[0] in ("parquet", "jsonl", "csv", "tsv") else None


def patterns(facts: RunFacts, splits: Sequence[str]) -> list[str]:
    """Return glob patterns that match exactly the shards with rows of these splits, relative to the run."""
    held = facts.blocks.filter(pl.col("rows") > 0).select("split", "shard").unique()
    own = set(held.filter(pl.col("split").is_in(splits))["shard"])
    others = {_pattern(shard) for shard in set(facts.blocks["shard"]) - own}
    return sorted({glob.escape(shard) if _pattern(shard) in others else _pattern(shard) for shard in own})


def _pattern(shard: str) -> str:
    place = PurePosixPath(shard)
    return glob.escape(f"{place.parent}/") + "*" + "".join(place.suffixes)


def features_of(schema: pa.Schema) -> list[dict[str, Any]] | None:
    """Return the columns as `datasets` writes them in front matter; None if it does not support a type."""
    try:
        return [{"name": field.name, **_feature(field.type)} for field in schema]
    except KeyError:
        return None


def _feature(kind: pa.DataType) -> dict[str, Any]:
    if pa.types.is_struct(kind):
        return {"struct": [{"name": field.name, **_feature(field.type)} for field in kind]}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = _feature(kind.value_type)
        word = "large_list" if pa.types.is_large_list(kind) else "list"
        length = {"length": kind.list_size} if pa.types.is_fixed_size_list(kind) else {}
        return {word: inner.get("dtype", inner), **length}
    if pa.types.is_dictionary(kind) or pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType):
        raise KeyError(str(kind))
    return {"dtype": _NAMES.get(str(kind), str(kind))}


def _front(facts: RunFacts) -> dict[str, Any]:
    word = table_format(facts)
    if word is None:
        return {"tags": ["headrace"]}
    features = features_of(facts.run.schema)
    reader: dict[str, Any] = {}
    if word != "parquet" and features is not None:  # otherwise types are guessed from each file's values
        reader["features"] = features
    separator = separator_of(word)[1]
    if separator is not None:
        reader |= {"sep": separator, **_AS_WRITTEN}
    infos, configs = [], []
    for name, manifest, lists in configs_of(facts):
        files, counts = [], []
        for split, cells in lists.items():
            totals, called = manifest.splits[split], _UNSPLIT.get(split, split)
            if totals.rows:
                files.append({"split": called, "path": patterns(facts, cells)})
                counts.append({"name": called, "num_bytes": totals.bytes, "num_examples": totals.rows})
        configs.append({"config_name": name, "data_files": files, **reader})
        known = {} if features is None else {"features": features}
        infos.append({"config_name": name, **known, "splits": counts})
    total = sum(each.rows for each in facts.manifest.splits.values())
    return {
        "tags": ["headrace"],
        "size_categories": [_SIZES[min(max(len(str(total)) - 3, 0), len(_SIZES) - 1)]],
        "configs": configs,
        "dataset_info": infos[0] if len(infos) == 1 else infos,
    }


def _body(facts: RunFacts) -> str:
    manifest = facts.manifest
    name = _inline(facts.output)
    roles = roles_of(facts.run)
    parts = [f"# {name}", "<!-- Say where the data is from, what it is for, and what it must not be used for. -->"]
    parts.append(
        f"Prepared by [headrace](https://pypi.org/project/headrace/) {manifest.libraries.get('headrace', '')}, recipe "
        f"`{manifest.recipe}`, run `{manifest.run_id}`."
    )
    for config, totals, _ in configs_of(facts):
        title = "## Splits" if config == "default" else f"## Splits of {config.replace('_', ' ')}"
        ordered = [(split, totals.splits[split]) for split in in_usual_order(totals.splits)]
        rows = [[split, f"{each.rows:,}", f"{each.shards:,}", size(each.bytes)] for split, each in ordered]
        parts += [title, _table(["split", "rows", "shards", "size"], rows)]
    dropped = {reason: rows for reason, rows in manifest.dropped.items() if rows}
    read = many(int(manifest.source["rows"]), "row")
    if dropped:
        rows = [[facts.reason_in_words(reason), f"{count:,}"] for reason, count in dropped.items()]
        parts += [f"## Left out\n\nOf {read} read:", _table(["why", "rows"], rows)]
    else:
        parts.append(f"All {read} read are in a split.")
    told = {column: role for role, column in roles.items() if role in ("time", "entity", "label")}
    told |= dict.fromkeys(roles.get("targets", ()), "target")
    kinds = {each["name"]: each["type"] for each in manifest.schema}
    columns = [[column, kind, told.get(column, "")] for column, kind in kinds.items()]
    parts += ["## Columns", _table(["column", "type", "role"], columns)]
    public = settings_without_paths(recipe_of_run(manifest.recipe))
    settings = {name: value for name, value in facts.config.items() if name in public}
    parts.append(f"## Settings\n\n```json\n{json.dumps(settings, ensure_ascii=False, indent=1)}\n```")
    return "\n\n".join(parts) + "\n"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(_inline(cell) for cell in line)} |" for line in lines)


def _inline(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("`", "'").replace("<", "&lt;").replace("\n", " ")


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
                    "field": [_croissant_field(name, column) for column in facts.run.schema],
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


def _croissant_field(record_set: str, column: pa.Field) -> dict[str, Any]:
    name = f"{record_set}/{column.name}"
    kind, repeated = column.type, False
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind, repeated = kind.value_type, True
    word = next((word for word, checks in _DATA_TYPES.items() if any(check(kind) for check in checks)), "Text")
    return {
        "@type": "cr:Field",
        "@id": name,
        "name": name,
        "dataType": f"sc:{word}",
        **({"repeated": True} if repeated else {}),
        "source": {"fileSet": {"@id": f"{record_set}-shards"}, "extract": {"column": column.name}},
    }
