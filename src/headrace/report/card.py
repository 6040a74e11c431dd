"""Describe a run for a dataset hub: a README.md whose front matter `datasets.load_dataset` and the hub read.

The card is stored beside the shards. Its paths are relative to the run's directory, which can be uploaded or opened as
it is. Its content comes from the manifest, the settings and the index; no shard is read. The user adds licence, origin
and intended use.
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
from headrace.recipe import registration_of_run
from headrace.report.facts import RunFacts
from headrace.report.words import many, size

README = "README.md"
_AS_WRITTEN = {"keep_default_na": False, "na_values": [""]}  # otherwise the text NA would be read as missing
_UNSPLIT = {"all": "train"}  # `datasets` reserves the word all, and calls unsplit rows train
_NAMES = {
    "float": "float32",
    "double": "float64",
    "halffloat": "float16",
    "date32[day]": "date32",
    "date64[ms]": "date64",
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
        "size_categories": [_size_category(total)],
        "configs": configs,
        "dataset_info": infos[0] if len(infos) == 1 else infos,
    }


def _size_category(rows: int) -> str:
    names = ["n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M", "100M<n<1B", "1B<n<10B"]
    return names[min(max(len(str(rows)) - 3, 0), len(names) - 1)]


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
    public = settings_without_paths(registration_of_run(manifest.recipe).settings)
    settings = {name: value for name, value in facts.config.items() if name in public}
    parts.append(f"## Settings\n\n```json\n{json.dumps(settings, ensure_ascii=False, indent=1)}\n```")
    return "\n\n".join(parts) + "\n"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(_inline(cell) for cell in line)} |" for line in lines)


def _inline(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("`", "'").replace("<", "&lt;").replace("\n", " ")
