"""Find the schema that all shards of a source fit, say how they differ from it, and infer types.

Types of the columns of CSV and TSV files are inferred from all rows:

| type | texts that it holds |
|---|---|
| bool | `true` and `false` |
| int64, uint64 | whole numbers in range as decimal text: no sign but `-`, no leading zero |
| float64 | decimal numbers that it keeps: its shortest text is of the same number |
| date | `2024-12-31` |
| datetime | `2024-12-31`, then a space or T, hours and minutes, optionally seconds; no zone |

The type is the first one that holds all values of all shards; if none does, the column stays text.
So the order and number of shards, chunks and workers do not matter, and one odd value anywhere
counts. Writing a value gives back the same text for bool, whole numbers and dates, the same number
for float64 (1.5 for 1.50), and the same moment for datetime. Empty fields and null values are
missing. A column with nothing else stays text.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace.engine.local import default_workers, run_tasks
from headrace.errors import InputError, setting
from headrace.formats.dialect import PLAIN, TextDialect
from headrace.formats.shard import Shard
from headrace.formats.source import read_chunks, survey
from headrace.formats.text_columns import nulled
from headrace.formats.types import TYPES, hint, merged_names, supertype
from headrace.formats.widen import Layouts, list_changes, narrowed, widened

Drift = Literal["error", "widen"]
_WIDEN = setting("schema_drift", "widen")
_ONE_FORMAT = "give files of one kind at a time, e.g. by a glob pattern"


def with_content(shards: Sequence[Shard]) -> list[Shard]:
    """Select the shards that have columns. Raises `InputError` if there is none."""
    with_columns = [shard for shard in shards if shard.content != "nothing"]
    if not with_columns:
        raise InputError(
            "is empty, and no other file of the source holds anything",
            path=shards[0].path,
            remedy="give the files that have rows",
        )
    return with_columns


class Joined(NamedTuple):
    """Shards that are read as one schema, and in words how they differ from it."""

    schema: pa.Schema
    shards: Sequence[Shard]
    changes: Sequence[str]


def join_shards(
    shards: Sequence[Shard], drift: Drift, columns: Sequence[str] | None = None
) -> Joined:
    """Find the common schema of all shards, and return them as shards that are read as it.

    columns: the only ones that are read and compared, whatever their order in the files. Raises
    `InputError` as `common_schema` does.
    """
    if columns is not None:
        chosen = []
        for shard in shards:
            chosen.append(shard if shard.content == "nothing" else narrowed(shard, columns))
        shards = chosen
    schema = common_schema(shards, drift)
    changes = list_changes([shard.schema for shard in shards if shard.content != "nothing"], schema)
    return Joined(schema, [widened(shard, schema) for shard in shards], changes)


def common_schema(shards: Sequence[Shard], drift: Drift) -> pa.Schema:
    """Find the common schema of all shards; columns that cannot hold nulls in any shard are
    declared so.

    drift="error": names, order and types must be those of the first shard. drift="widen": columns
    are matched by name, absent ones are null, types become the smallest that loses nothing (see
    `supertype`), and the order is that of all shards (see `merged_names`). Whole numbers beside
    text become their decimal text, so 7 and "007" stay distinct. JSON shards always match by name,
    and differ in which keys they have and in how they write numbers.

    Shards of content "nothing" fit any schema. Raises `InputError` that names two files, or if no
    shard has columns.
    """
    shards = with_content(shards)
    first = shards[0]
    for shard in shards[1:]:
        _check_same_origin(first, shard)
    is_json = all(shard.file_type.format.content == "json" for shard in shards)
    if drift == "error" and not is_json:
        for shard in shards[1:]:
            _check_same_columns(first, shard)
    layouts = _of_each_layout(shards)
    names = merged_names([shard.schema.names for shard in layouts])
    nulls: set[str] = set()
    for shard in shards:
        nulls |= shard.null_columns
    if len(layouts) > 1:
        for shard in layouts:
            nulls |= set(names).difference(shard.schema.names)
    types = _common_types(layouts, names, "widen_values" if is_json and drift == "error" else drift)
    # A file may have hundreds of thousands of columns, and each field costs microseconds.
    if nulls >= types.keys() and pa.null() not in types.values():
        return pa.schema(types) if len(layouts) > 1 else first.schema
    fields = []
    for name, type_ in types.items():
        # A column of nulls only has no type of its own; text can hold it.
        common_type = pa.string() if pa.types.is_null(type_) else type_
        fields.append(pa.field(name, common_type, nullable=name in nulls))
    return pa.schema(fields)


def _of_each_layout(shards: Sequence[Shard]) -> list[Shard]:
    """Return the first shard of each schema."""
    layouts = Layouts()
    first: dict[int, Shard] = {}
    for shard in shards:
        first.setdefault(layouts.number(shard.schema), shard)
    return list(first.values())


def _common_types(
    layouts: Sequence[Shard], names: Sequence[str], drift: Drift | Literal["widen_values"]
) -> dict[str, pa.DataType]:
    """Return the type of each column for all shards, in the order of `names`.

    drift: "widen_values" is "widen", but numbers never become text.
    """
    shards_of: dict[str, dict[pa.DataType, Shard]] = {name: {} for name in names}
    for shard in layouts:
        for name, type_ in zip(shard.schema.names, shard.schema.types, strict=True):
            shards_of[name].setdefault(type_, shard)
    types = {}
    for name, by_type in shards_of.items():
        wide: pa.DataType | None = next(iter(by_type))
        if len(by_type) > 1:
            wide = supertype(*by_type, numbers_as_text=drift == "widen")
            typed = [type_ for type_ in by_type if not pa.types.is_null(type_)]
            if wide is None or (drift == "error" and len(typed) > 1):
                raise _types_differ(name, by_type)
        types[name] = wide
    return types


def _types_differ(name: str, by_type: Mapping[pa.DataType, Shard]) -> InputError:
    """Return the error of a column whose types differ. by_type: a shard that has each."""
    (type_, first), *others = by_type.items()
    other, shard = others[0]
    for candidate, its_shard in others:
        if supertype(type_, candidate, numbers_as_text=True) is None:
            other, shard = candidate, its_shard
            break
    if supertype(*by_type, numbers_as_text=True) is None:
        remedy = _ONE_FORMAT
    else:
        remedy = f"use {_WIDEN} for a type that holds both"
    return InputError(
        f"in {first.path} it is {type_}",
        path=shard.path,
        column=name,
        value=str(other),
        remedy=f"rewrite one of them, or {remedy}",
    )


def _check_same_origin(first: Shard, other: Shard) -> None:
    """Raise `InputError` for a column that comes from the name of one file and from the other
    file itself.
    """
    for name in sorted(other.partition.keys() ^ first.partition.keys()):
        if name not in first.schema.names or name not in other.schema.names:
            continue
        origin, first_origin = "the file", "its name"
        if name in other.partition:
            origin, first_origin = "its name", "the file"
        raise InputError(
            f"it comes from {origin}, and that of {first.path} from {first_origin}",
            path=other.path,
            column=name,
            remedy="give such files apart, or leave the column out of the files",
        )


def _check_same_columns(first: Shard, other: Shard) -> None:
    if other.schema.names == first.schema.names:
        return
    known = dict.fromkeys(first.schema.names)
    other_names = dict.fromkeys(other.schema.names)
    missing = [name for name in known if name not in other_names]
    extra = [name for name in other_names if name not in known]
    parts = []
    if missing:
        parts = [f"lacks {', '.join(missing)}"]
    if extra:
        parts += [f"adds {', '.join(extra)}"]
    what = "; ".join(parts) or "has its columns in another order"
    header_hint = hint(first.schema.names)
    raise InputError(
        f"{what}, compared with {first.path}",
        path=other.path,
        remedy=f"correct it, or use {_WIDEN} to match columns by name{header_hint}",
    )


_WORDS = ("bool", "int64", "uint64", "float64", "date", "datetime")
_NUMBER = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?$"
# 2024-12-31, … 23:59, … 23:59:59, … 23:59:59.123456
_LENGTHS = (10, 16, 19, *range(21, 27))
_FIRST = 64
_EXACT_DIGITS = 15  # digits that every float64 keeps


def infer_types(
    files: Sequence[tuple[Path, str]],
    *,
    signature: Sequence[str] | None = None,
    dialect: TextDialect = PLAIN,
    keep: Collection[str] = (),
    workers: int | None = None,
) -> dict[str, str]:
    """Return column → type word, sorted, for the text columns for which another type than text
    fits.

    files: paths and names; files other than CSV or TSV are left out, with their columns. keep:
    columns to skip. Reads every row once, O(chunk) of memory per worker. Raises `InputError` for
    files that cannot be read.
    """

    def look(path: Path, name: str) -> Mapping[str, tuple[str, ...] | None]:
        """Return the words that hold all values of each column with values; columns of other
        formats map to None.
        """
        shard = survey(path, name, signature, dialect=dialect)
        if shard.dialect is None:
            return dict.fromkeys(shard.schema.names)
        words_of: dict[str, tuple[str, ...]] = {}
        for chunk in read_chunks(shard):
            open_ = [
                name for name in shard.schema.names if name not in keep and words_of.get(name) != ()
            ]
            table = chunk.table(open_)
            for column in open_:
                values = nulled(table[column], ("", *dialect.null_values)).drop_null()
                if len(values):
                    words_of[column] = _holding(values, words_of.get(column, _WORDS))
        return words_of

    tasks = [partial(look, path, name) for path, name in files]
    words_of: dict[str, tuple[str, ...]] = {}
    typed: set[str] = set()
    for columns in run_tasks(tasks, workers or default_workers()):
        for name, words in columns.items():
            if words is None:
                typed.add(name)
            else:
                words_of[name] = tuple(word for word in words_of.get(name, _WORDS) if word in words)
    return {
        name: words[0] for name, words in sorted(words_of.items()) if words and name not in typed
    }


def _holding(values: pa.ChunkedArray, words: Sequence[str]) -> tuple[str, ...]:
    """Return those of the words whose types hold all values."""
    matching: set[str] = set()
    if "bool" in words and _all(
        pc.is_in(values, value_set=pa.array(["true", "false"], values.type))
    ):
        matching.add("bool")
    integers = None
    if {"int64", "uint64", "float64"} & {*words}:
        integers = _written_again(values, "int64")
    if integers is not None:
        least, most = (bound.as_py() for bound in pc.min_max(integers).values())
        if least >= 0:
            matching |= {"int64", "uint64"}
        else:
            matching |= {"int64"}
        if max(-least, most) <= 10**_EXACT_DIGITS:
            matching.add("float64")
    elif "uint64" in words and _written_again(values, "uint64") is not None:
        matching.add("uint64")
    if "float64" in words and "float64" not in matching and _keeps_numbers(values):
        matching.add("float64")
    if "date" in words and _written_again(values, "date") is not None:
        matching |= {"date", "datetime"}
    elif (
        "datetime" in words
        and _read(values, "datetime") is not None
        and _all(
            pc.is_in(pc.binary_length(values), value_set=pa.array(_LENGTHS, pa.int32()))
        )  # of these, Arrow reads no other form
    ):
        matching.add("datetime")
    return tuple(word for word in words if word in matching)


def _read(values: pa.ChunkedArray, word: str) -> pa.ChunkedArray | None:
    try:
        # try a few first: Arrow's error for each bad value is slow
        values.slice(0, _FIRST).cast(TYPES[word])
        return values.cast(TYPES[word])
    except pa.ArrowInvalid:
        return None


def _all(mask: pa.ChunkedArray) -> bool:
    return bool(pc.all(mask, min_count=0).as_py())


def _written_again(values: pa.ChunkedArray, word: str) -> pa.ChunkedArray | None:
    """Return the values as a type if writing them gives the same texts; else None."""
    read = _read(values, word)
    if read is not None and _all(pc.equal(read.cast(values.type), values)):
        return read
    return None


def _keeps_numbers(values: pa.ChunkedArray) -> bool:
    """Return whether float64 keeps every number, so that its shortest text is of the same
    number.
    """
    read = _read(values, "float64")
    if read is None or not _all(pc.is_finite(read)):
        return False
    again = read.cast(values.type)
    other = pc.not_equal(again, values)  # texts of another form, such as 1.50, or another number
    values = values.filter(other)
    again = again.filter(other)
    # The two numbers are close, so equal digits mean equal numbers.
    return _all(pc.match_substring_regex(values, _NUMBER)) and _all(
        pc.equal(_digits(values), _digits(again))
    )


def _digits(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the significant digits of numbers."""
    return pc.utf8_trim(pc.replace_substring_regex(texts, r"[eE].*$|[-.]", ""), "0")
