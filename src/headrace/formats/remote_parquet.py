"""Parquet in an object store: the footer once, then of each row group the bytes of the needed columns.

A footer costs one request, for the last 64 KiB of the object, and is kept with the object's tag; footers of a process
take 64 MiB at most, least recently used first out. The byte ranges of a row group's columns are known from it, near
ones are joined, and several are fetched at a time, so a block costs one request or a few. Arrow then decodes from
memory, on the calling thread. Every answer must have the footer's tag: an object that was replaced is an error.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.formats.delimited import column_name
from headrace.formats.whole import INT96_UNIT, Pages, whole_parquet
from headrace.storage.place import Fact
from headrace.storage.places import place_of

_TAIL = 64 << 10
_MOST_FOOTER_BYTES = 64 << 20
_FOOTER_GROWTH = 4  # a parsed footer takes a few times its bytes
_SLACK = 100  # bytes that some old writers left out of a column's length


@dataclass(frozen=True)
class Footer:
    """What is kept of an object. raw: headrace's column names → the file's own."""

    fact: Fact
    metadata: pq.FileMetaData
    raw: dict[str, str]


class _Footers:
    """Footers of one process, by address."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.known: OrderedDict[str, Footer] = OrderedDict()
        self.bytes = 0

    def get(self, name: str) -> Footer | None:
        with self.lock:
            found = self.known.get(name)
            if found is not None:
                self.known.move_to_end(name)
            return found

    def keep(self, name: str, footer: Footer) -> None:
        with self.lock:
            before = self.known.pop(name, None)
            self.bytes -= 0 if before is None else before.metadata.serialized_size * _FOOTER_GROWTH
            self.known[name] = footer
            self.bytes += footer.metadata.serialized_size * _FOOTER_GROWTH
            while self.bytes > _MOST_FOOTER_BYTES and len(self.known) > 1:
                _, oldest = self.known.popitem(last=False)
                self.bytes -= oldest.metadata.serialized_size * _FOOTER_GROWTH

    def drop(self, name: str) -> None:
        with self.lock:
            before = self.known.pop(name, None)
            self.bytes -= 0 if before is None else before.metadata.serialized_size * _FOOTER_GROWTH


_footers = _Footers()


def _forget() -> None:
    global _footers
    _footers = _Footers()


os.register_at_fork(after_in_child=_forget)


def footer_of(path: Path) -> Footer:
    """The footer, fetched when this process first asks. Raises `InputError` if there is none, `FileNotFoundError`."""
    return _footers.get(str(path)) or _fetched_footer(path)


def _fetched_footer(path: Path) -> Footer:
    fact, tail = place_of(path).tail(_TAIL)
    with whole_parquet(path):
        metadata = pq.read_metadata(
            pa.PythonFile(place_of(path).open(fact, [(fact.size - len(tail), tail)]), mode="r")  # the rest on demand
        )
    names = metadata.schema.to_arrow_schema().names
    footer = Footer(fact, metadata, {column_name(each): each for each in names})
    _footers.keep(str(path), footer)
    return footer


def read_group(path: Path, group: int, columns: Sequence[str], *, pages: Pages) -> pa.Table:
    """The columns of one row group, named as asked, in their order. Raises what a damaged file raises in Arrow."""
    footer = footer_of(path)
    own = [footer.raw[name] for name in columns]
    if group >= footer.metadata.num_row_groups:
        raise pa.ArrowInvalid(f"it has {footer.metadata.num_row_groups} row groups")
    try:
        pieces = place_of(path).read_pieces(column_ranges(footer, group, own), footer.fact)
        source = pa.PythonFile(place_of(path).open(footer.fact, _whole(pieces)), mode="r")
        with pq.ParquetFile(
            source,
            metadata=footer.metadata,
            page_checksum_verification=pages == "check",
            pre_buffer=False,
            coerce_int96_timestamp_unit=INT96_UNIT,
        ) as file:
            table = file.read_row_group(group, columns=own, use_threads=False)
    except BaseException:
        _footers.drop(str(path))  # whatever was wrong with the object, it is looked at anew
        raise
    if table.column_names != own:  # the file's order
        table = table.select(own)
    return table if own == list(columns) else table.rename_columns(list(columns))


def column_ranges(footer: Footer, group: int, own: Sequence[str]) -> list[tuple[int, int]]:
    """[start, stop) of every chunk of the named columns in a row group."""
    row_group, size = footer.metadata.row_group(group), footer.fact.size
    ranges = []
    for place in range(row_group.num_columns):
        chunk = row_group.column(place)
        name = chunk.path_in_schema
        if not any(name == each or name.startswith(f"{each}.") for each in own):
            continue
        start = chunk.data_page_offset
        if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
            start = chunk.dictionary_page_offset
        ranges.append((start, min(size, start + chunk.total_compressed_size + _SLACK)))
    return ranges


def open_remote(path: Path, *, pages: Pages, coded: Sequence[str] = ()) -> pq.ParquetFile:
    """A reader of a whole object as it is now, row group after row group: a group's columns are fetched together."""
    footer = _fetched_footer(path)
    source = pa.PythonFile(place_of(path).open(footer.fact), mode="r")
    return pq.ParquetFile(
        source,
        metadata=footer.metadata,
        page_checksum_verification=pages == "check",
        pre_buffer=True,
        read_dictionary=list(coded),
        coerce_int96_timestamp_unit=INT96_UNIT,
    )


def _whole(pieces: Sequence[tuple[int, memoryview]]) -> list[tuple[int, memoryview]]:
    """Pieces that touch as one, so that a column chunk is in one of them."""
    whole: list[tuple[int, list[memoryview]]] = []
    end = -1
    for start, piece in pieces:
        if start == end:
            whole[-1][1].append(piece)
        else:
            whole.append((start, [piece]))
        end = start + len(piece)
    return [(start, parts[0] if len(parts) == 1 else memoryview(b"".join(parts))) for start, parts in whole]
