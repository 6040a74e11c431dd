"""Find the schema that all shards of a source fit, and say how they differ from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import pyarrow as pa

from headrace.errors import InputError, setting
from headrace.formats.header import hint
from headrace.formats.plain_types import check_read, settled
from headrace.formats.shard import Shard
from headrace.formats.types import merged_names, supertype
from headrace.formats.widen import Layouts, list_changes, narrowed, same_columns, widened

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
    `InputError` as `common_schema` does, and for a column of a type that is not read.
    """
    if columns is not None:
        chosen = []
        for shard in shards:
            chosen.append(shard if shard.content == "nothing" else narrowed(shard, columns))
        shards = chosen
    distinct = DistinctShards()
    counts = Counter(map(distinct.add, shards))
    with_columns = with_content(distinct.shards)
    for shard in with_columns:
        check_read(shard.schema, shard.path)
    schema = common_schema(with_columns, drift)
    schemas = []
    shard_counts = []
    for number, shard in enumerate(distinct.shards):
        if shard.content != "nothing":
            schemas.append(shard.schema)
            shard_counts.append(counts[number])
    differ = not all(same_columns(stored, schema) for stored in schemas)
    changes = list_changes(schemas, schema, shard_counts) if differ else []
    return Joined(schema, [widened(shard, schema) for shard in shards], changes)


class DistinctShards:
    """The first shard of each kind: format, columns, and which of them may hold nulls.

    Other shards of a kind change nothing in `common_schema`.
    """

    def __init__(self) -> None:
        self.shards: list[Shard] = []
        self._numbers: dict[object, int] = {}
        self._layouts = Layouts()

    def add(self, shard: Shard) -> int:
        """Return the index of the first shard of this kind, which may be this one."""
        key = (
            shard.file_type,
            shard.content,
            shard.dialect is None,
            shard.null_columns,
            (*shard.partition,),
            self._layouts.number(shard.schema),
        )
        number = self._numbers.setdefault(key, len(self.shards))
        if number == len(self.shards):
            self.shards.append(shard)
        return number


def common_schema(shards: Sequence[Shard], drift: Drift) -> pa.Schema:
    """Find the common schema of `DistinctShards`; columns that cannot hold nulls in any shard are
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
    names = merged_names([shard.schema.names for shard in shards])
    nulls: set[str] = set()
    for shard in shards:
        nulls |= shard.null_columns
        if len(shards) > 1:
            nulls |= set(names).difference(shard.schema.names)
    common = _common_types(shards, names, "widen_values" if is_json and drift == "error" else drift)
    distinct = {type_: settled(type_) for type_ in set(common.values())}
    types = {name: distinct[type_] for name, type_ in common.items()}
    # A file may have hundreds of thousands of columns, and each field costs microseconds.
    if nulls >= types.keys():
        is_first = len(shards) == 1 and list(types.values()) == first.schema.types
        return first.schema if is_first else pa.schema(types)
    fields = []
    for name, type_ in types.items():
        fields.append(pa.field(name, type_, nullable=name in nulls))
    return pa.schema(fields)


def columns_with_gaps(shards: Sequence[Shard], schema: pa.Schema) -> set[str]:
    """Return the columns of whole numbers and truths that are null or absent in some row of JSON.

    Other formats do not say.
    """
    if not all(shard.file_type.format.content == "json" for shard in with_content(shards)):
        return set()
    gaps = set()
    for field in schema:
        if field.nullable and (pa.types.is_integer(field.type) or pa.types.is_boolean(field.type)):
            gaps.add(field.name)
    return gaps


def _common_types(
    shards: Sequence[Shard], names: Sequence[str], drift: Drift | Literal["widen_values"]
) -> dict[str, pa.DataType]:
    """Return the type of each column for all shards, in the order of `names`.

    drift: "widen_values" is "widen", but numbers never become text.
    """
    if len(shards) == 1:
        return dict(zip(names, shards[0].schema.types, strict=True))
    shards_of: dict[str, dict[pa.DataType, Shard]] = {name: {} for name in names}
    for shard in shards:
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
