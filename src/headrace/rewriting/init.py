"""A configuration for a rewrite, from a look at the data: types of text, sizes by codec, shards and their sizes."""

from __future__ import annotations

import tempfile
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.cli.init.asked import AskedRewrite
from headrace.cli.init.commented import Aside, Section, settings_of
from headrace.cli.init.look import FILES, NULLS, ROWS, Look, evenly, id_like, look
from headrace.dataset.open import FinishedRun, find_run, is_prepared
from headrace.errors import SettingsError
from headrace.formats.detect import Kind
from headrace.formats.schema import is_text, type_named
from headrace.formats.shard import Shard
from headrace.formats.source import common_schema, survey
from headrace.formats.text_columns import nulled, typed
from headrace.formats.write import ShardWriter
from headrace.rewriting.config import Rewrite
from headrace.storage.places import path_of

_CODECS = ("none", "lz4", "zstd")
_SAMPLE_ROWS = 1 << 16
_SMALL, _LARGE = 1 << 20, 2 << 30  # bytes of a shard on average: with so little files are many, with so much few
_GOOD = 256 << 20  # bytes of a shard
_FLOAT = r"^[+-]?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,15})?(?:[eE][+-]?[0-9]{1,2})?$"


def rewrite_sections(asked: AskedRewrite) -> tuple[list[Section], str]:
    """The sections of the configuration, and a line about the data. Raises `SettingsError`, `InputError`."""
    path = path_of(asked.source[0])
    if len(asked.source) == 1 and path.is_dir() and is_prepared(path):
        sections, about = _of_run(asked, FinishedRun(*find_run(path)))
    else:
        sections, about = _of_files(asked, look(asked.source))
    Rewrite(**{name: value for name, value in settings_of(sections).items() if name not in ("recipe", "out")})
    return sections, about


def _of_run(asked: AskedRewrite, run: FinishedRun) -> tuple[list[Section], str]:
    totals = run.manifest.splits
    told = ", ".join(f"{name} {each.rows:,} rows in {each.shards:,} shards" for name, each in totals.items())
    about = f"a prepared dataset ({run.manifest.recipe}): {told}"
    if not any(each.rows for each in totals.values()):
        raise SettingsError(f"{asked.source[0]}: holds no rows; give data to look at")
    read = [run.block_reader(split) for split in run.splits if totals[split].rows]
    table = read[0](0, None).slice(0, _SAMPLE_ROWS)
    size, shards = sum(each.bytes for each in totals.values()), sum(each.shards for each in totals.values())
    share = len(table) / sum(each.rows for each in totals.values())
    sections = [
        _head(asked, about),
        Section("What is rewritten. The splits stay as they are.", {"source": asked.source[0]}),
        _codec(table, share),
        _shards(size, shards),
        *_columns(table.schema.names, []),
    ]
    return sections, about


def _of_files(asked: AskedRewrite, seen: Look) -> tuple[list[Section], str]:
    rows = sum(len(table) for _, table in seen.tables)
    if not rows:
        raise SettingsError(f"{asked.source[0]}: holds no rows; give data to look at")
    shards = _of_one_schema(seen)
    about = (
        f"{len(seen.names):,} files, {seen.bytes / 1e6:,.1f} MB, {len(seen.columns)} columns; "
        f"looked at {rows:,} rows of {len(seen.tables):,} files"
    )
    whole = len(seen.tables) == len(seen.names) and all(len(table) < ROWS for _, table in seen.tables)
    types = _types(seen, {shard.name for shard in shards if shard.dialect is not None})
    tables = [table for _, table in seen.tables if len(table)]
    sample = typed(_sample(tables), {name: type_named(word) for name, word in types.items()}, NULLS, "", 0)
    sections = [
        _head(asked, about),
        Section(
            "What is rewritten: all rows, in their order, as one split.",
            {"source": asked.source if len(asked.source) > 1 else asked.source[0]},
        ),
        *_type_sections(seen, types, whole=whole),
        _codec(sample, _share(seen, len(sample), rows)),
        _shards(seen.bytes, len(seen.names)),
        *_columns(list(seen.columns), [each.name for each in seen.columns.values() if each.missing == 1]),
    ]
    return sections, about


def _head(asked: AskedRewrite, about: str) -> Section:
    return Section(
        f"Written by `headrace init rewrite` after a look at the data: {about}.\n"
        "Paths are relative to where the command is run. See docs/tutorial.md.",
        {"recipe": "rewrite", "out": asked.out},
    )


def _of_one_schema(seen: Look) -> list[Shard]:
    """The files that were looked at. Raises `InputError` if they differ in their columns, as the run would."""
    chosen = [seen.names[place] for place in evenly(len(seen.names), FILES)]
    shards = [survey(seen.root / name, name) for name in chosen]
    common_schema(shards, "error")
    return shards


def _types(seen: Look, delimited: Container[str]) -> dict[str, str]:
    """Text columns whose values all are numbers or dates, each with a type that keeps them exactly.

    delimited: names of CSV and TSV files; in others text is text.
    """
    found: dict[str, str] = {}
    if not all(name in delimited for name, _ in seen.tables):
        return found
    for name, column in seen.columns.items():
        parts = [table[name] for _, table in seen.tables if name in table.column_names and len(table)]
        if not parts or not all(is_text(each.type) for each in parts) or column.kind not in ("number", "time"):
            continue
        values = pa.chunked_array([chunk for each in parts for chunk in nulled(each, ("", *NULLS)).chunks])
        words = ("int64", "date", "datetime") if id_like(name) else ("int64", "float64", "date", "datetime")
        word = next((each for each in words if _keeps(values, each)), None)
        if word is not None and values.null_count < len(values):
            found[name] = word
    return found


def _keeps(values: pa.ChunkedArray, word: str) -> bool:
    """Whether a type reads all the values, and whole numbers and dates would be written again as they were."""
    try:
        read = values.cast(type_named(word))
        if word == "float64":  # 1.50 may become 1.5, a name like 007 may not become 7
            return bool(pc.all(pc.match_substring_regex(values, _FLOAT)).as_py())
        if word == "datetime":
            return True
        return bool(pc.all(pc.equal(read.cast(pa.string()), values.cast(pa.string()))).as_py())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False


def _type_sections(seen: Look, types: dict[str, str], *, whole: bool) -> list[Section]:
    texts = [name for name in seen.columns if any(_is_text(table, name) for _, table in seen.tables)]
    if not texts or not types:
        return []
    words = (
        "Text columns that hold numbers or dates, with types that keep them exactly; float32 halves float64. "
        "Columns that are left out stay text. "
    )
    words += (
        "All rows were looked at."
        if whole
        else "Not all rows were looked at: where another value comes the run ends, and names its file and row."
    )
    absent = any(_holds(seen, name, NULLS) for name in types)
    settings: dict[str, Any] = {"types": types if whole else Aside(types)}
    if absent:
        words += " Texts that mean missing in these columns are null_values."
        settings["null_values"] = list(NULLS) if whole else Aside(list(NULLS))
    return [Section(words, settings)]


def _is_text(table: pa.Table, name: str) -> bool:
    return name in table.column_names and is_text(table[name].type)


def _holds(seen: Look, name: str, texts: Sequence[str]) -> bool:
    return any(
        bool(pc.any(pc.is_in(table[name].cast(pa.string()), value_set=pa.array(texts))).as_py())
        for _, table in seen.tables
        if _is_text(table, name)
    )


def _sample(tables: Sequence[pa.Table]) -> pa.Table:
    """So many rows in all, some of each file."""
    each = max(1, _SAMPLE_ROWS // len(tables))
    return pa.concat_tables([table.slice(0, each) for table in tables], promote_options="permissive")


def _share(seen: Look, sampled: int, rows: int) -> float:
    """Which share of the source's rows the sample is; of files that were not looked at to their end by their bytes."""
    looked = [name for name, _ in seen.tables]
    size = sum((seen.root / name).stat().st_size for name in looked)
    return sampled / rows * min(1.0, size / max(1, seen.bytes))


def _codec(sample: pa.Table, share: float) -> Section:
    sizes = {codec: parquet_bytes(sample, codec) / share for codec in _CODECS}
    told = ", ".join(f"{codec} about {size / 1e6:,.1f} MB" for codec, size in sizes.items())
    return Section(
        f"none decodes fastest, lz4 takes less disk at twice the decoding time, zstd least. By a sample: {told}.",
        {"codec": "none"},
    )


def parquet_bytes(table: pa.Table, codec: str) -> int:
    """How large a shard of these rows is, by writing one."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as directory:
        writer = ShardWriter(
            Path(directory) / "sample.parquet",
            kind=Kind("parquet", "none"),
            schema=table.schema,
            dialect=None,
            parquet_compression=codec,
            encoding="fast",
        )
        with writer:
            writer.append(table)
            writer.finish()
        return writer.path.stat().st_size


def _shards(size: int, count: int) -> Section:
    mean = size / max(1, count)
    words = (
        f"Shards keep their names unless shard_bytes says how large they become; {mean / 1e6:,.1f} MB on average now."
    )
    if count > 1 and mean < _SMALL:
        words += f" {count:,} files are many for so little: reading is faster with fewer."
    if mean > _LARGE:
        words += " Smaller ones are shared out more evenly, and done again sooner after a stop."
    return Section(words, {"shard_bytes": Aside(_GOOD)})


def _columns(names: list[str], empty: list[str]) -> list[Section]:
    if len(names) < 2:
        return []
    kept = [name for name in names if name not in empty]
    words = "Columns to keep, in this order; all unless given."
    if empty and kept:
        words += f" Without a value in the rows looked at: {', '.join(empty)}."
    return [Section(words, {"columns": Aside(kept or names)})]
