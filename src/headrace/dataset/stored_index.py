"""Store the index of plain shards as a file that processes map instead of copying.

The file is an entry of a cache (see `headrace.gate.cache_entry`) whose content is an Arrow IPC
stream of one uncompressed record batch. Readers of Arrow streams ignore the trailer, whose identity
is that of the indexed files and of how they are read. The batch has one row per split, and each
column holds a list: the values of one field of `SplitIndex`. Every array of an opened index is
therefore a view of the file, and all processes of a machine share its pages. Opening the file costs
a few passes over its bytes.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.dataset.index import (
    Index,
    MappedSplit,
    SplitIndex,
    Texts,
    columns_metadata,
    columns_of,
    decode_schema,
    encode_schema,
    int64_array,
    text_array,
)
from headrace.dataset.sound import LARGEST
from headrace.digest import canonical_json
from headrace.errors import CorruptShard
from headrace.gate.arrow import ArrowFile
from headrace.gate.cache_entry import Sealing, content_bytes, identity_in
from headrace.gate.mapped import Identity, map_bytes

# Increment when this layout, `SplitIndex.identity` or the result of a file scan changes, so that
# older files are rebuilt.
VERSION = 10
_VERSION_KEY = b"headrace.index_version"
_PARTITIONED_KEY = b"headrace.partitioned"  # present if there are such columns
_LAYOUTS_KEY = b"headrace.layouts"  # present if shards differ in their columns
_FEW_WORDS = pa.dictionary(pa.int16(), pa.string())
_OF_SHARDS = {"shards": pa.large_string(), "formats": _FEW_WORDS, "checksums": _FEW_WORDS}
_OF_BLOCKS = ("shard_of_block", "block", "rows", "offset", "length")
_STORED = pa.schema(
    [
        pa.field("split", pa.string(), nullable=False),
        pa.field("identity", pa.string(), nullable=False),
        *(
            pa.field(name, pa.large_list(type_), nullable=False)
            for name, type_ in _OF_SHARDS.items()
        ),
        *(
            pa.field(name, pa.large_list(pa.int64()), nullable=False)
            for name in (*_OF_BLOCKS, "stamps", "layout_of_shard")
        ),
    ]
)
_REMEDY = "delete it"
_DIGEST_BYTES = 16


class StoredIndex(Index):
    """An index in such a file.

    data: its bytes; files: a digest of the indexed files; digest: its own.
    """

    def __init__(
        self,
        splits: Mapping[str, SplitIndex],
        schema: pa.Schema,
        dialect: Mapping[str, Any],
        *,
        data: pa.Buffer,
        files: str,
        digest: str,
    ) -> None:
        super().__init__(schema, dialect)
        self.splits = splits
        self.data = data
        self.files = files
        self.digest = digest

    def split(self, split: str) -> SplitIndex:
        """Return the blocks of one split in natural order."""
        return self.splits[split]


def stored_bytes(
    splits: Sequence[SplitIndex], schema: pa.Schema, dialect: Mapping[str, Any], files: str
) -> bytes:
    """Encode such a file. files: a SHA-256 of the indexed files and of how they are read."""

    def lists(values: Sequence[pa.Array], type_: pa.DataType) -> pa.Array:
        ends = np.cumsum([0, *(len(array) for array in values)])
        return pa.LargeListArray.from_arrays(
            int64_array(ends), pa.concat_arrays([*values, pa.nulls(0, type_)])
        )

    def texts(name: str, type_: pa.DataType) -> pa.Array:
        return lists([text_array(getattr(split, name)).cast(type_) for split in splits], type_)

    def numbers(name: str) -> pa.Array:
        return lists(
            [int64_array(getattr(split, name).reshape(-1)) for split in splits], pa.int64()
        )

    columns = [
        text_array([split.split for split in splits]).cast(pa.string()),
        text_array([split.identity for split in splits]).cast(pa.string()),
        *(texts(name, type_) for name, type_ in _OF_SHARDS.items()),
        *(numbers(name) for name in (*_OF_BLOCKS, "stamps", "layout_of_shard")),
    ]
    metadata = {
        **columns_metadata(schema, dialect, splits[0].gaps if splits else ()),
        _VERSION_KEY: b"%d" % VERSION,
    }
    if splits and splits[0].partitioned:
        metadata[_PARTITIONED_KEY] = canonical_json(list(splits[0].partitioned))
    if splits and splits[0].layouts:
        layouts = [encode_schema(layout).decode() for layout in splits[0].layouts]
        metadata[_LAYOUTS_KEY] = canonical_json(layouts)
    batch = pa.RecordBatch.from_arrays(columns, schema=_STORED.with_metadata(metadata))
    sink = io.BytesIO()
    with sealed(sink, batch.schema, bytes.fromhex(files)) as write:
        write(batch)
    return sink.getvalue()


@contextmanager
def sealed(
    sink: BinaryIO, schema: pa.Schema, identity: bytes
) -> Iterator[Callable[[pa.RecordBatch], None]]:
    """Write an Arrow stream as an entry of a cache; yield a function that writes the next batch."""
    sealing = Sealing(sink, identity)
    with pa.ipc.new_stream(sealing, schema) as writer:
        yield writer.write_batch
    sealing.seal()


def map_index(path: Path) -> StoredIndex:
    """Map the index in a file.

    Raises `CorruptShard` if it is missing, damaged or not such an index.
    """
    try:
        mapped = map_bytes(path)
    except OSError as error:
        raise CorruptShard(
            f"cannot be read as an index ({error.strerror})", path=path, remedy=_REMEDY
        ) from error
    return parse_stored(mapped.data, path, mapped.identity)


def map_again(path: Path, digest: str, split: str) -> MappedSplit:
    """Map a split in another process of this machine.

    Raises `CorruptShard` if the file was replaced.
    """
    index = map_index(path)
    mapped = index.split(split).mapped
    if index.digest != digest or mapped is None:
        raise CorruptShard(
            "is another index than this process was started with",
            path=path,
            remedy="open the dataset again",
        )
    return mapped


def parse_stored(source: Any, path: Path, identity: Identity | None = None) -> StoredIndex:
    """Parse the index in the bytes of such a file.

    Raises `CorruptShard` if anything is not as it was written.

    source: bytes, or an object with a buffer of them; path: named in errors. identity: of the file
    that they are mapped from; None: they are a copy.
    """
    data = pa.py_buffer(source)
    try:
        digest = data[-_DIGEST_BYTES:].to_pybytes()
        file = ArrowFile(data[: content_bytes(data, None)], path, identity, _REMEDY)
        metadata = file.schema.metadata or {}
        if metadata.get(_VERSION_KEY) != b"%d" % VERSION:
            raise ValueError("another version of headrace made it")
        if not file.schema.equals(_STORED):
            raise ValueError("its columns are not those of an index")
        batch = next(file.batches())
        columns = columns_of(metadata)
        partitioned = tuple(map(str, json.loads(metadata.get(_PARTITIONED_KEY, b"[]"))))
        if not set(partitioned) <= set(columns.schema.names):
            raise ValueError("columns that names hold are not in its schema")
        layouts = _layouts_in(metadata, columns.schema)
        splits = {}
        for row, name in enumerate(batch["split"].to_pylist()):
            fields = _fields_in(batch, row, len(layouts))
            mapped = None
            if identity is not None:
                inode = (identity.device, identity.inode)
                mapped = MappedSplit(path, digest.hex(), inode, name, fields, map_again)
            splits[name] = SplitIndex(
                split=name,
                schema=columns.schema,
                partitioned=partitioned,
                layouts=layouts,
                gaps=columns.gaps,
                mapped=mapped,
                **fields,
            )
            vars(splits[name])["identity"] = _stored_identity(batch, row)
        if len(splits) != batch.num_rows:
            raise ValueError("a split is in it twice")
        files = identity_in(data).hex()
        return StoredIndex(splits, *columns[:2], data=data, files=files, digest=digest.hex())
    except (
        OSError,
        pa.ArrowException,
        KeyError,
        TypeError,
        ValueError,
        IndexError,
        StopIteration,
    ) as error:
        raise CorruptShard(
            f"cannot be read as an index ({error})", path=path, remedy=_REMEDY
        ) from error


def _fields_in(batch: pa.RecordBatch, row: int, layouts: int) -> dict[str, Any]:
    """Return the columns of a split after checking that they fit each other."""
    fields = {name: list_values(batch[name], row) for name in _STORED.names[2:]}
    fields["stamps"] = fields["stamps"].reshape(-1, 2)
    _check(fields)
    _check_layouts(fields, layouts)
    return fields


def _stored_identity(batch: pa.RecordBatch, row: int) -> str:
    """Return the identity of a split. Computing it takes a second for a million blocks."""
    identity = str(batch["identity"][row])
    if len(bytes.fromhex(identity)) != 32:
        raise ValueError("an identity is not a digest")
    return identity


def list_values(column: pa.Array, row: int) -> Any:
    """Return a list in a row of a column as a view of its numbers or `Texts`.

    Raises `ValueError` on missing values.
    """
    values = column[row].values
    if values is None or values.null_count:
        raise ValueError("values are missing")
    if not pa.types.is_integer(values.type):
        return Texts(values)
    dtype = np.dtype(str(values.type))
    if not len(values):
        return np.empty(0, dtype)
    # The result of `to_numpy`, which would import pandas and delay the start by a quarter of a
    # second.
    return np.frombuffer(values.buffers()[1], dtype, len(values), values.offset * dtype.itemsize)


def _layouts_in(metadata: Mapping[bytes, bytes], schema: pa.Schema) -> tuple[pa.Schema, ...]:
    """Decode the layouts of shards. Raises `ValueError` for columns that are not in the schema."""
    layouts = tuple(map(decode_schema, json.loads(metadata.get(_LAYOUTS_KEY, b"[]"))))
    for layout in layouts:
        if not set(layout.names) <= set(schema.names):
            raise ValueError("columns of its shards are not in its schema")
    return layouts


def _check_layouts(fields: Mapping[str, Any], layouts: int) -> None:
    """Raise `ValueError` unless each shard has one of so many layouts."""
    layout_of_shard = fields["layout_of_shard"]
    if len(layout_of_shard) != (len(fields["shards"]) if layouts else 0):
        raise ValueError("shards and their layouts differ in number")
    if len(layout_of_shard) and not (
        layout_of_shard.min() >= 0 and layout_of_shard.max() < layouts
    ):
        raise ValueError("a shard has no such layout")


def _check(fields: Mapping[str, Any]) -> None:
    """Raise `ValueError` unless these are the blocks of a split, in natural order, with valid
    positions and counts.
    """
    shards = fields["shards"]
    shard_of_block = fields["shard_of_block"]
    block = fields["block"]
    if {len(fields[name]) for name in ("formats", "checksums", "stamps")} - {len(shards)}:
        raise ValueError("shards and what is said of them differ in number")
    if {len(fields[name]) for name in _OF_BLOCKS} != {len(block)}:
        raise ValueError("blocks and what is said of them differ in number")
    for name in ("block", "rows", "offset", "length"):
        if len(block) and not (
            fields[name].min() >= (name == "rows") and fields[name].max() < LARGEST
        ):
            raise ValueError(f"{name} holds what is not a place or a count")
    if fields["rows"].sum(dtype=np.float64) >= LARGEST:
        raise ValueError("its rows are more than a split can have")
    steps = np.diff(shard_of_block, prepend=-1, append=len(shards))
    if not np.isin(steps, (0, 1)).all() or steps[0] != 1 or steps[-1] != 1:
        raise ValueError("its blocks are not those of its shards")
    if (np.diff(block)[steps[1:-1] == 0] <= 0).any():
        raise ValueError("the blocks of a shard are not in their order")
    names = text_array(shards)
    if len(names) and not pc.all(pc.less(names[:-1], names[1:]), min_count=0).as_py():
        raise ValueError("its shards are not in their order")
