"""Read the measurements of prepared histories back as Arrow batches, with the column names of the
settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.dataset.manifest import Manifest, read_manifest, read_settings
from headrace.dataset.sound import damaged as not_published
from headrace.digest import sha256_file
from headrace.errors import CorruptShard
from headrace.gate.parquet import read_run_table
from headrace.histories import ID_KINDS, US_PER
from headrace.histories.codec.addresses import Addresses, render, to_numbers
from headrace.histories.codec.rows import Decoded, damaged, decode_together
from headrace.histories.codec.values import FAILED, decode_latencies, is_missing
from headrace.histories.config import Histories, value_role
from headrace.histories.contexts.reading import ROWS, find_histories
from headrace.histories.dictionary import Dictionary, dictionary_file
from headrace.histories.shard_file import read_blobs
from headrace.storage.places import place_of

_TEXTS = pa.dictionary(pa.int32(), pa.string())
_SHARDS = pa.schema(
    [
        pa.field("shard", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
    ]
)
_AT_ONCE = 1 << 10  # measurements made into records of Python


@dataclass(frozen=True)
class RunColumns:
    """The columns of a run: its settings, and its dictionaries by role."""

    config: Mapping[str, Any]
    dictionaries: Mapping[str, Dictionary]

    def batch(self, decoded: Decoded) -> pa.RecordBatch:
        """Return the measurements of some rows as one batch, in their order."""
        config = self.config
        n = decoded.n
        row = np.repeat(np.arange(len(n)), n)
        values = config.get("values", {})
        entity_name = config["entity"]
        time_name = config["time"] if isinstance(config["time"], str) else config["time"][0]
        if entity_name in {time_name, config["peer"], config["value"], *values}:
            entity_name = "file_name"  # names of files have no column
        columns: dict[str, pa.Array] = {}
        columns[entity_name] = self._texts("entity", decoded.entities).take(pa.array(row))
        times = decoded.headers["first_time"][row] + decoded.offsets
        columns[time_name] = pa.array(times).cast(pa.timestamp(config["time_unit"], "UTC"))
        if config["peer"] is not None:
            counts = decoded.peers4 + decoded.peers6
            peer = (np.cumsum(counts) - counts)[row]
            if decoded.index is not None:
                peer = peer + decoded.index
            columns[config["peer"]] = self._texts("peer", decoded.peers).take(pa.array(peer))
        if config["value"] is not None:
            latencies = decode_latencies(decoded.codes) / US_PER[config["value_unit"]]
            columns[config["value"]] = pa.array(latencies, mask=decoded.codes == FAILED)
        for number, (name, column) in enumerate(zip(values, decoded.values, strict=True)):
            columns[name] = self._values(self.dictionaries.get(value_role(number)), column)
        columns.setdefault("part", pa.array(decoded.headers["part"].astype(np.int32)[row]))
        return pa.record_batch(columns)

    def _texts(self, role: str, addresses: Addresses) -> pa.DictionaryArray:
        """Return addresses as dictionary-encoded texts, each text once."""
        id_kind = self.config[f"{role}_kind"]
        if id_kind != "text":
            return render(addresses, id_kind).dictionary_encode().cast(_TEXTS)
        codes, index = np.unique(to_numbers(addresses), return_inverse=True)
        texts = self.dictionaries[role].take(codes)
        return pa.DictionaryArray.from_arrays(pa.array(index.astype(np.int32)), texts)

    def _values(self, dictionary: Dictionary | None, values: np.ndarray[Any, Any]) -> pa.Array:
        missing = is_missing(values)
        if dictionary is None:
            return pa.array(values, mask=missing)
        index = np.zeros(len(values), np.int32)
        codes, index[~missing] = np.unique(values[~missing].astype(np.int64), return_inverse=True)
        texts = dictionary.take(codes - 1)
        return pa.DictionaryArray.from_arrays(pa.array(index, mask=missing), texts)

    def check(self, decoded: Decoded, where: str) -> None:
        """Raise `CorruptShard` if rows have other columns than the run."""
        same = len(decoded.values) == len(self.config.get("values", {}))
        for name in ("entity_kind", "peer_kind"):
            same &= (decoded.headers[name] == ID_KINDS.index(self.config[name])).all()
        same &= (decoded.time_units == list(US_PER).index(self.config["time_unit"])).all()
        if not same:
            raise CorruptShard("has other columns than the settings of the run say", path=where)


def read_measurements(
    path: str | Path, split: str = "train", *, run: str | None = None
) -> Iterator[pa.RecordBatch]:
    """Read the measurements of a split, entity by entity and in order of time, in batches of about
    2 MiB of rows.

    The columns are named as in the settings: the entity, the time (in `time_unit`, UTC), the peer,
    the value in its unit (null if it failed), and the value columns. Texts and categories are
    dictionary-encoded. An entity that is the name of its file is called `file_name` if another
    column has the name of `entity`. `part` numbers the rows of an entity. run: a run_id, to choose
    another run. Memory is O(a batch, or the largest row). Raises `InputError` if there are no
    histories, `CorruptShard` for damaged rows.
    """
    finished, name = find_histories(path, split, run)
    return _read_split(finished.root, finished.manifest, name)


def _read_split(root: Path, manifest: Manifest, split: str) -> Iterator[pa.RecordBatch]:
    columns = columns_of_run(root, manifest)
    rows = read_run_table(root / ROWS, _SHARDS, sha256=manifest.metadata["rows_digest"])
    shards = rows.filter(pc.equal(rows["split"], split))["shard"]
    for shard in sorted(pc.unique(shards).to_pylist()):
        with place_of(root / shard).local_copy() as local:
            for where, decoded in _decode(local, str(root / shard)):
                columns.check(decoded, where)
                yield columns.batch(decoded)


def columns_of_run(root: Path, manifest: Manifest) -> RunColumns:
    """Read the columns of a run."""
    config = read_settings(root, manifest, Histories).config()
    roles = [role for role in ("entity", "peer") if config[f"{role}_kind"] == "text"]
    for number, type_name in enumerate(config.get("values", {}).values()):
        if type_name == "category":
            roles.append(value_role(number))
    dictionaries = {}
    for role in roles:
        path = root / dictionary_file(role)
        with place_of(path).local_copy() as local:
            if sha256_file(local) != manifest.metadata["dictionaries"][role]["digest"]:
                raise not_published(path)
            dictionaries[role] = Dictionary(local)
    return RunColumns(config, dictionaries)


def decode_shard(path: Path) -> Iterator[dict[str, Any]]:
    """Read the measurements of a shard one by one, in its order.

    They have src_addr, dst_addr (None without peers), event_time (seconds since 1970), rtt (ms,
    None if it failed) and part. With texts or value columns, they have the columns of
    `read_measurements`.
    Raises `CorruptShard`, `MissingExtra`.
    """
    run = path.resolve().parents[2]
    columns = None
    manifest = read_manifest(run)
    if manifest is not None:
        columns = columns_of_run(run, manifest)
        if not (columns.dictionaries or columns.config.get("values")):
            columns = None
    for where, decoded in _decode(path, str(path)):
        if columns is None:
            batch = _plain_batch(decoded)
        else:
            columns.check(decoded, where)
            batch = columns.batch(decoded)
        for first in range(0, batch.num_rows, _AT_ONCE):
            yield from batch.slice(first, _AT_ONCE).to_pylist()


def _plain_batch(decoded: Decoded) -> pa.RecordBatch:
    """Return measurements without texts and values as one batch, whatever the settings of their
    run.
    """
    has_peers = decoded.index is not None
    config = {
        "entity": "src_addr",
        "entity_kind": ID_KINDS[decoded.headers["entity_kind"][0] % 2],
        "peer": "dst_addr" if has_peers else None,
        "peer_kind": ID_KINDS[decoded.headers["peer_kind"][0] % 2],
        "time": "event_time",
        "value": "rtt",
        "value_unit": "ms",
        "time_unit": list(US_PER)[decoded.time_units[0]],
    }
    batch = RunColumns(config, {}).batch(replace(decoded, values=()))
    columns = {
        "src_addr": batch["src_addr"],
        "dst_addr": batch["dst_addr"] if has_peers else pa.nulls(len(batch), pa.string()),
        "event_time": _epoch_seconds(batch["event_time"]),
        "rtt": batch["rtt"],
        "part": batch["part"],
    }
    return pa.record_batch(columns)


def _epoch_seconds(times: pa.Array) -> pa.Array:
    """Return times as seconds since 1970, with a fraction if they count smaller units."""
    counts = times.cast(pa.int64())
    per_second = US_PER["s"] // US_PER[times.type.unit]
    if per_second == 1:
        return counts
    return pc.divide(counts.cast(pa.float64()), float(per_second))


def _decode(path: Path, name: str) -> Iterator[tuple[str, Decoded]]:
    """Decode the rows of a shard, some at a time, with the place of the first of them.

    name: of the shard, for errors.
    """
    rows = 0
    for blobs in read_blobs(path):
        decoded = decode_together(blobs.data, blobs.sizes)
        if len(decoded.n):
            yield f"{name}: row {rows + 1}", decoded
        rows += len(decoded.n)
        if decoded.damage is not None:
            raise damaged(name, decoded.damage, rows + 1)
