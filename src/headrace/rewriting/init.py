"""Propose the configuration of a rewrite from the data: types of text columns, shards and their
sizes.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from headrace.cli.init.asked import AskedRewrite
from headrace.cli.init.commented import Aside, Section, settings_of
from headrace.cli.init.look import FILES, NULLS, ROWS, Look, evenly, id_like, look
from headrace.dataset.open import FinishedRun, find_run, is_prepared
from headrace.dataset.tables import with_paths
from headrace.errors import SettingsError
from headrace.formats.common_schema import common_schema
from headrace.formats.source import survey
from headrace.formats.text_columns import nulled
from headrace.formats.types import is_text, type_named
from headrace.report.words import pluralise, size
from headrace.rewriting.settings import Rewrite
from headrace.storage.places import path_of

# mean bytes of a shard: below, there are too many files; above, too few
_SMALL = 1 << 20
_LARGE = 2 << 30
_GOOD = 256 << 20  # suggested bytes of a shard
_FLOAT = r"^[+-]?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,15})?(?:[eE][+-]?[0-9]{1,2})?$"


@dataclass(frozen=True, kw_only=True)
class _SourceLook:
    """What a look at the source shows.

    names, empty: its columns, and those without a value in the rows looked at. about, scope: words
    for the configuration.
    """

    rows: int
    bytes: int
    shards: int
    names: Sequence[str]
    about: str
    scope: str
    types: Sequence[Section] = ()
    empty: Sequence[str] = ()

    def shard_words(self) -> str:
        """Describe the sizes of the shards."""
        mean = self.bytes / max(1, self.shards)
        words = (
            "Shards keep their names unless shard_bytes says how large they become;"
            f" {size(mean)} on average now."
        )
        if self.shards > 1 and mean < _SMALL:
            words += f" {self.shards:,} files are many for so little: reading is faster with fewer."
        if mean > _LARGE:
            words += " Smaller ones are shared out more evenly, and done again sooner after a stop."
        return words


def _look_at_run(run: FinishedRun) -> _SourceLook:
    totals = run.manifest.splits
    sizes = []
    rows = 0
    size_bytes = 0
    shards = 0
    for name, split in totals.items():
        sizes.append(f"{name} {pluralise(split.rows, 'row')} in {pluralise(split.shards, 'shard')}")
        rows += split.rows
        size_bytes += split.bytes
        shards += split.shards
    return _SourceLook(
        rows=rows,
        bytes=size_bytes,
        shards=shards,
        names=run.schema.names,
        about=f"a prepared dataset ({run.manifest.recipe}): {', '.join(sizes)}",
        scope="The splits stay as they are.",
    )


def _look_at_shards(options: AskedRewrite) -> _SourceLook:
    seen = look(options.source)
    rows = sum(len(table) for _, table in seen.tables)
    types: list[Section] = []
    empty: list[str] = []
    if rows:
        types = _type_sections(seen)
        empty = [column.name for column in seen.columns.values() if column.missing == 1]
    files = f"{pluralise(len(seen.names), 'file')}, {size(seen.bytes)}"
    columns = pluralise(len(seen.columns), "column")
    looked = f"{pluralise(rows, 'row')} of {pluralise(len(seen.tables), 'file')}"
    return _SourceLook(
        rows=rows,
        bytes=seen.bytes,
        shards=len(seen.names),
        names=list(seen.columns),
        about=f"{files}, {columns}; looked at {looked}",
        scope="All rows, in their order, as one split.",
        types=types,
        empty=empty,
    )


def rewrite_sections(options: AskedRewrite) -> tuple[list[Section], str]:
    """Return the sections of the configuration, and a line about the data.

    Raises `SettingsError`, `InputError`.
    """
    path = path_of(with_paths(options.source[0]))
    if len(options.source) == 1 and path.is_dir() and is_prepared(path):
        seen = _look_at_run(FinishedRun(*find_run(path)))
    else:
        seen = _look_at_shards(options)
    if not seen.rows:
        raise SettingsError("holds no rows", path=options.source[0], remedy="give data to look at")
    sections = [
        Section(
            f"Written by `headrace init rewrite` after a look at the data: {seen.about}.\n"
            "Paths are relative to where the command is run. See docs/commands.md.",
            {"recipe": "rewrite", "out": options.out},
        ),
        Section(
            f"What is rewritten. {seen.scope}",
            {"source": options.source if len(options.source) > 1 else options.source[0]},
        ),
        *seen.types,
        Section(
            "none decodes fastest, lz4 takes less disk at twice the decoding time, zstd least.",
            {"compression": "none"},
        ),
        Section(seen.shard_words(), {"shard_bytes": Aside(_GOOD)}),
    ]
    if len(seen.names) > 1:
        words = "Columns to keep, in this order. Default: all."
        if 0 < len(seen.empty) < len(seen.names):
            words += f" Without a value in the rows looked at: {', '.join(seen.empty)}."
        remaining = [name for name in seen.names if name not in seen.empty]
        sections.append(Section(words, {"columns": Aside(remaining or list(seen.names))}))
    settings = settings_of(sections)
    for name in ("recipe", "out"):
        settings.pop(name)
    Rewrite(**settings)  # the run would raise the same errors later
    return sections, seen.about


def _type_sections(seen: Look) -> list[Section]:
    """Suggest types for text columns.

    Raises `InputError` if files differ in their columns, as the run would.
    """
    chosen = [seen.names[number] for number in evenly(len(seen.names), FILES)]
    shards = [survey(seen.root / name, name) for name in chosen]
    common_schema(shards, "error")
    types = _types(seen, {shard.name for shard in shards if shard.dialect is not None})
    if not types:
        return []
    complete = len(seen.tables) == len(seen.names) and all(
        len(table) < ROWS for _, table in seen.tables
    )
    words = (
        "Text columns that hold numbers or dates, with types that keep them exactly; float32 halves"
        " float64. Columns that are left out get the type that all of their values fit. "
    )
    if complete:
        words += "All rows were looked at."
    else:
        words += (
            "Not all rows were looked at: where another value comes the run ends, and names its"
            " file and row."
        )
    section = Section(words, {"types": types if complete else Aside(types)})
    if any(seen.holds(name, NULLS) for name in types):
        section.words += " Texts that mean missing in these columns are null_values."
        if complete:
            section.settings["dialect"] = {"null_values": list(NULLS)}
        else:
            section.settings["dialect"] = Aside({"null_values": list(NULLS)})
    return [section]


def _types(seen: Look, delimited: Container[str]) -> dict[str, str]:
    """Return the text columns whose values all are numbers or dates, each with a type that keeps
    them exactly.

    delimited: names of CSV and TSV files; text columns of other formats stay text.
    """
    types: dict[str, str] = {}
    if not all(name in delimited for name, _ in seen.tables):
        return types
    for name, column in seen.columns.items():
        parts = []
        for _, table in seen.tables:
            if name in table.column_names and len(table):
                parts.append(table[name])
        if (
            not parts
            or not all(is_text(part.type) for part in parts)
            or column.content not in ("number", "time")
        ):
            continue
        chunks: list[pa.Array] = []
        for part in parts:
            chunks += nulled(part, ("", *NULLS)).chunks
        values = pa.chunked_array(chunks)
        type_words = ["int64", "float64", "date", "datetime"]
        if id_like(name):
            type_words.remove("float64")
        word = next((word for word in type_words if _keeps(values, word)), None)
        if word is not None and values.null_count < len(values):
            types[name] = word
    return types


def _keeps(values: pa.ChunkedArray, word: str) -> bool:
    """Check that a type reads all values, and that whole numbers and dates are written back
    unchanged.
    """
    try:
        read = values.cast(type_named(word))
        if word == "float64":  # 1.50 may become 1.5, but a name like 007 must not become 7
            return bool(pc.all(pc.match_substring_regex(values, _FLOAT)).as_py())
        if word == "datetime":
            return True
        return bool(pc.all(pc.equal(read.cast(pa.string()), values.cast(pa.string()))).as_py())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
