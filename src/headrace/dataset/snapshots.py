"""Read snapshots of other systems' tables through their own libraries: Delta, Iceberg and Lance.

`delta:PATH@VERSION`, `iceberg:PATH@SNAPSHOT` and `lance:PATH@VERSION` name one; without the last part it is the newest
at the time of reading. The library decides which rows exist, so deleted and replaced ones are absent. Features that the
library cannot read, such as the deletion vectors of Delta, are refused. If the files of a version are exactly its rows,
they are read in place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePath
from typing import Any

from headrace.errors import InputError, MissingExtra, first_line

_ADDRESS = re.compile(r"(delta|iceberg|lance):(?://(?=/))?(.+?)(?:@([0-9]+))?", re.DOTALL)
_LIBRARIES = {"delta": "deltalake", "iceberg": "pyiceberg", "lance": "lance"}
_EXTRAS = {"delta": "deltalake", "iceberg": "pyiceberg", "lance": "pylance"}
LEAST_BYTES = 1 << 20  # mean bytes of a file; smaller ones are copied and merged
_METADATA = re.compile(r"v?([0-9]+).*\.metadata\.json", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A version of a table, before any row is read.

    identity: of the table, one word or none. files: the schema and the table's record of each live file; such files are
    never rewritten. rows: what the library reads. plain: returns the files in name order if they are exactly the rows,
    i.e. each is Parquet with the version's columns and none has deleted rows; else None.
    """

    kind: str
    path: str
    version: int
    identity: list[str]
    files: list[Any]
    rows: Any
    plain: Callable[[], list[str] | None]

    @property
    def name(self) -> str:
        """The table's kind and own identity, and the version."""
        return " ".join([self.kind, *self.identity, str(self.version)])

    @property
    def digest(self) -> str:
        """A digest that changes whenever the rows may."""
        from headrace.digest import canonical_json, sha256_hex  # settings load no data libraries

        return sha256_hex(canonical_json([self.name, *self.files]))

    @property
    def address(self) -> str:
        """The address as given, with the version."""
        return f"{self.kind}:{self.path}@{self.version}"


def read_snapshot(address: object) -> Snapshot | None:
    """Open the snapshot that an address names; None if it names none.

    Raises `MissingExtra` if the library is missing, and `InputError` if the table or version is missing or cannot be
    read.
    """
    match = _ADDRESS.fullmatch(str(address)) if isinstance(address, str | PurePath) else None
    path = "" if match is None else os.path.abspath(os.path.expanduser(match[2]))
    if match is None or Path(str(address)).exists() or (match[2][0] not in "/~." and not os.path.exists(path)):
        return None
    if not os.path.exists(path):
        raise InputError(f"{address}: there is no {path}; give the local path of a table after {match[1]}:")
    kind, version = match[1], None if match[3] is None else int(match[3])
    try:
        import_module(_LIBRARIES[kind])
    except ImportError as error:
        raise MissingExtra(_LIBRARIES[kind], _EXTRAS[kind]) from error
    try:
        return {"delta": _delta, "iceberg": _iceberg, "lance": _lance}[kind](path, version)
    except Exception as error:  # each library has its own error types
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{address}: {_LIBRARIES[kind]} cannot read it ({first_line(error)[:300]}); check the path and the version,"
            " or export it to Parquet"
        ) from error


def _delta(path: str, version: int | None) -> Snapshot:
    import pyarrow as pa
    from deltalake import DeltaTable

    table = DeltaTable(path, version=version)
    added = pa.table(table.get_add_actions()).select(["path", "size_bytes", "modification_time"])
    told = sorted(added.to_pylist(), key=lambda each: str(each["path"]))

    def plain_files() -> list[str] | None:
        if table.protocol().min_reader_version > 1 or table.metadata().partition_columns:  # files lack some facts
            return None
        columns = [(field.name, field.type, None) for field in pa.schema(table.schema())]
        return _plain([(os.path.join(path, each["path"]), each["size_bytes"]) for each in told], columns)

    files = [table.schema().to_json(), told]
    return Snapshot("delta", path, table.version(), [table.metadata().id], files, table, plain_files)


def _iceberg(path: str, version: int | None) -> Snapshot:
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.table import StaticTable

    metadata = path
    if not os.path.isfile(path):  # the file with the highest number; if two share it, only a catalog knows the current
        directory = os.path.join(path, "metadata")
        names = os.listdir(directory) if os.path.isdir(directory) else []
        numbered = sorted((int(match[1]), name) for name in names if (match := _METADATA.fullmatch(name)))
        if not numbered or numbered[-1][0] in [number for number, _ in numbered[:-1]]:
            what = f"two files with number {numbered[-1][0]}" if numbered else "no *.metadata.json"
            raise InputError(
                f"{directory}: has {what}; give the metadata file that the catalog names instead of {path}"
            )
        metadata = os.path.join(directory, numbered[-1][1])
    table = StaticTable.from_metadata(metadata)
    snapshot = table.current_snapshot() if version is None else table.snapshot_by_id(version)
    if snapshot is None:
        known = ", ".join(str(each.snapshot_id) for each in table.snapshots()[-5:]) or "none"
        raise InputError(f"{path}: has no snapshot {'yet' if version is None else version}; the last are {known}")
    scan = table.scan(snapshot_id=snapshot.snapshot_id)
    tasks = list(scan.plan_files())
    parts = [
        [each.file.file_path, each.file.file_size_in_bytes, sorted(one.file_path for one in each.delete_files)]
        for each in tasks
    ]

    def plain_files() -> list[str] | None:
        if any(each.delete_files or each.file.file_format.name != "PARQUET" for each in tasks):
            return None
        columns = [
            (field.name, known.type, str(field.field_id).encode())
            for field, known in zip(scan.projection().fields, schema_to_pyarrow(scan.projection()), strict=True)
        ]
        return _plain(sorted((each.removeprefix("file://"), size) for each, size, _ in parts), columns)

    files, identity = [str(scan.projection()), sorted(parts)], [str(table.metadata.table_uuid)]
    rows = scan.to_arrow_batch_reader()
    return Snapshot("iceberg", path, snapshot.snapshot_id, identity, files, rows, plain_files)


def _lance(path: str, version: int | None) -> Snapshot:
    import lance

    table = lance.dataset(path, version=version)
    files = [path, str(table.schema), [str(each.metadata.to_json()) for each in table.get_fragments()]]
    rows = table.scanner(scan_in_order=True).to_reader()
    return Snapshot("lance", path, table.version, [], files, rows, lambda: None)


def _plain(files: Sequence[tuple[str, int]], columns: Sequence[tuple[str, Any, bytes | None]]) -> list[str] | None:
    """Return the files if each is local Parquet of these columns, and they are large enough to read in place.

    columns: name, type and the field id that a file must have, if ids decide; nested columns hide ids, so they give
    None.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from headrace.formats.schema import plain

    if not files or sum(size for _, size in files) < LEAST_BYTES * len(files):
        return None
    expected = [(name, plain(kind), key) for name, kind, key in columns]
    if any(key is not None and pa.types.is_nested(kind) for _, kind, key in expected):
        return None
    for path, _ in files:
        try:
            own = pq.read_schema(path)
        except (OSError, pa.ArrowException):
            return None
        found = [
            (field.name, plain(field.type), None if key is None else (field.metadata or {}).get(b"PARQUET:field_id"))
            for field, (_, _, key) in zip(own, expected, strict=False)
        ]
        if len(own) != len(expected) or found != expected:
            return None
    return [path for path, _ in files]
