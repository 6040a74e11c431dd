"""Snapshots of tables that other systems keep, read through their own libraries: Delta, Iceberg and Lance.

`delta:PATH@VERSION`, `iceberg:PATH@SNAPSHOT` and `lance:PATH@VERSION` name one; without the last part it is the newest
when it is read. The library says which rows there are, so deleted and replaced ones are absent. What it cannot read,
such as the deletion vectors of Delta, is refused.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePath
from typing import Any

from headrace.errors import InputError, MissingExtra

_ADDRESS = re.compile(r"(delta|iceberg|lance):(?://(?=/))?(.+?)(?:@([0-9]+))?", re.DOTALL)
_LIBRARIES = {"delta": "deltalake", "iceberg": "pyiceberg", "lance": "lance"}
_EXTRAS = {"delta": "deltalake", "iceberg": "pyiceberg", "lance": "pylance"}
_METADATA = re.compile(r"v?([0-9]+).*\.metadata\.json", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A version of a table, of which no row has been read.

    name: its kind, the identity that the table gives itself where it has one, and the version. files: a digest of
    these, the schema and what the table says of each file that counts; such files are never written again.
    """

    name: str
    files: str
    table: Any


def read_snapshot(address: object) -> Snapshot | None:
    """Open the snapshot that an address names; None where it names none.

    Raises `MissingExtra` where the library is missing, and `InputError` where the table or version is, or cannot be
    read.
    """
    match = _ADDRESS.fullmatch(str(address)) if isinstance(address, str | PurePath) else None
    path = "" if match is None else os.path.abspath(os.path.expanduser(match[2]))
    if match is None or Path(str(address)).exists() or (match[2][0] not in "/~." and not os.path.exists(path)):
        return None
    if not os.path.exists(path):
        raise InputError(f"{address}: there is no {path}; give the local path of a table behind {match[1]}:")
    kind, version = match[1], None if match[3] is None else int(match[3])
    try:
        import_module(_LIBRARIES[kind])
    except ImportError as error:
        raise MissingExtra(_LIBRARIES[kind], _EXTRAS[kind]) from error
    try:
        identity, files, table = {"delta": _delta, "iceberg": _iceberg, "lance": _lance}[kind](path, version)
    except Exception as error:  # each library has families of its own
        if isinstance(error, InputError):
            raise
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(
            f"{address}: {_LIBRARIES[kind]} cannot read it ({lines[0][:300]}); check the path and the version, or"
            " export it to Parquet"
        ) from error
    from headrace.digest import canonical_json, sha256_hex  # settings alone load no data libraries

    name = f"{kind} {identity}"
    return Snapshot(name, sha256_hex(canonical_json([name, *files])), table)


def _delta(path: str, version: int | None) -> tuple[str, list[Any], Any]:
    import pyarrow as pa
    from deltalake import DeltaTable

    table = DeltaTable(path, version=version)
    added = pa.table(table.get_add_actions()).select(["path", "size_bytes", "modification_time"])
    files = [table.schema().to_json(), sorted(added.to_pylist(), key=lambda each: str(each["path"]))]
    return f"{table.metadata().id} {table.version()}", files, table


def _iceberg(path: str, version: int | None) -> tuple[str, list[Any], Any]:
    from pyiceberg.table import StaticTable

    table = StaticTable.from_metadata(path if os.path.isfile(path) else _newest_metadata(path))
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
    files = [str(scan.projection()), sorted(parts)]
    return f"{table.metadata.table_uuid} {snapshot.snapshot_id}", files, scan.to_arrow_batch_reader()


def _newest_metadata(path: str) -> str:
    """Find the metadata with the highest number; a catalog alone knows it where two have that number."""
    directory = os.path.join(path, "metadata")
    names = os.listdir(directory) if os.path.isdir(directory) else []
    numbered = sorted((int(match[1]), name) for name in names if (match := _METADATA.fullmatch(name)))
    if not numbered or numbered[-1][0] in [number for number, _ in numbered[:-1]]:
        what = f"two files with number {numbered[-1][0]}" if numbered else "no *.metadata.json"
        raise InputError(f"{directory}: has {what}; give the metadata file that the catalog names instead of {path}")
    return os.path.join(directory, numbered[-1][1])


def _lance(path: str, version: int | None) -> tuple[str, list[Any], Any]:
    import lance

    table = lance.dataset(path, version=version)
    files = [path, str(table.schema), [str(each.metadata.to_json()) for each in table.get_fragments()]]
    return str(table.version), files, table.scanner(scan_in_order=True).to_reader()
