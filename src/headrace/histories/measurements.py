"""Read the measurements of prepared histories back as Arrow batches, with the column names of the settings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.arrays import I64
from headrace.errors import CorruptShard
from headrace.histories.codec.addresses import KINDS, Addresses, as_numbers, render
from headrace.histories.codec.latencies import FAILED, decode_latencies
from headrace.histories.codec.laws import damaged
from headrace.histories.codec.rows import Decoded, decode_together
from headrace.histories.codec.values import is_missing
from headrace.histories.contexts.reading import ROWS, find_histories
from headrace.histories.dictionary import Dictionary, dictionary_file
from headrace.histories.shard_file import read_pieces
from headrace.storage.places import place_of

_US_PER = {"us": 1, "ms": 1_000, "s": 1_000_000}
_TEXTS = pa.dictionary(pa.int32(), pa.string())
_AT_ONCE = 1 << 10  # measurements made into records of Python


@dataclass(frozen=True)
class Columns:
    """The columns of a run: its settings, and its dictionaries by role."""

    config: Mapping[str, Any]
    dictionaries: Mapping[str, Dictionary]

    def batch(self, found: Decoded) -> pa.RecordBatch:
        """Return the measurements of some rows as one batch, in their order."""
        config, n = self.config, found.n
        own = np.repeat(np.arange(len(n)), n)
        entities = Addresses(found.head["entity_family"].copy(), np.ascontiguousarray(found.head["entity"]))
        others = {config["time"], config["peer"], config["value"], *config.get("values", {})}
        named = "file_name" if config["entity"] in others else config["entity"]  # file names have no column
        columns: dict[str, pa.Array] = {named: self._texts("entity", entities).take(pa.array(own))}
        seconds = found.head["first_time"].astype(np.int64)[own] + found.seconds
        columns[config["time"]] = pa.array(seconds).cast(pa.timestamp("s", "UTC"))
        if config["peer"] is not None:
            peers = found.peers4 + found.peers6
            place = (np.cumsum(peers) - peers)[own] + (0 if found.index is None else found.index)
            columns[config["peer"]] = self._texts("peer", found.peers).take(pa.array(place))
        if config["value"] is not None:
            told = decode_latencies(found.codes) / _US_PER[config["value_unit"]]
            columns[config["value"]] = pa.array(told, mask=found.codes == FAILED)
        for number, (name, values) in enumerate(zip(config.get("values", {}), found.values, strict=True)):
            columns[name] = self._values(self.dictionaries.get(f"value-{number:02d}"), values)
        columns.setdefault("part", pa.array(found.head["part"].astype(np.int32)[own]))
        return pa.record_batch(columns)

    def _texts(self, role: str, addresses: Addresses) -> pa.DictionaryArray:
        """Return addresses as dictionary-encoded texts, each text once."""
        kind = self.config[f"{role}_kind"]
        if kind == "text":
            codes, place = np.unique(as_numbers(addresses), return_inverse=True)
            texts = self.dictionaries[role].take(codes)
            return pa.DictionaryArray.from_arrays(pa.array(place.astype(np.int32)), texts)
        return render(addresses, kind).dictionary_encode().cast(_TEXTS)

    def _values(self, dictionary: Dictionary | None, values: np.ndarray[Any, Any]) -> pa.Array:
        missing = is_missing(values)
        if dictionary is None:
            return pa.array(values, mask=missing)
        codes, place = np.unique(values[~missing].astype(np.int64), return_inverse=True)
        index = np.zeros(len(values), np.int32)
        index[~missing] = place
        return pa.DictionaryArray.from_arrays(pa.array(index, mask=missing), dictionary.take(codes - 1))


def read_measurements(path: str | Path, split: str = "train", *, run: str | None = None) -> Iterator[pa.RecordBatch]:
    """Read the measurements of a split, entity by entity and in order of time, in batches of about 2 MiB of rows.

    The columns are named as in the settings: the entity, the time (whole seconds, UTC), the peer, the value in its unit
    (null if it failed), and the value columns. Texts and categories are dictionary-encoded. An entity that is the name
    of its file is called `file_name` if another column has the name of `entity`. `part` numbers the rows of an entity.
    run: a run_id, to choose another run. Memory is O(a batch, or the largest row). Raises `InputError` if there are no
    histories, `CorruptShard` for damaged rows.
    """
    found, name = find_histories(path, split, run)
    return _read_split(found.root, name)


def _read_split(root: Path, split: str) -> Iterator[pa.RecordBatch]:
    columns = columns_of_run(root)
    with place_of(root / ROWS).local_copy() as here:
        rows = pq.read_table(here, columns=["shard", "split"], filters=[("split", "=", split)])
    for shard in sorted(set(rows["shard"].to_pylist())):
        with place_of(root / shard).local_copy() as here:
            yield from read_shard(here, columns, str(root / shard))


def columns_of_run(root: Path) -> Columns:
    """Read the columns of a run."""
    config = json.loads((root / "config.json").read_bytes())
    values = config.get("values", {})
    roles = [role for role in ("entity", "peer") if config[f"{role}_kind"] == "text"]
    roles += [f"value-{place:02d}" for place, name in enumerate(values) if values[name] == "category"]
    dictionaries = {}
    for role in roles:
        with place_of(root / dictionary_file(role)).local_copy() as here:
            dictionaries[role] = Dictionary(here)
    return Columns(config, dictionaries)


def decode_shard(path: Path) -> Iterator[dict[str, Any]]:
    """Read the measurements of a shard one by one, in its order.

    They have src_addr, dst_addr (None without peers), event_time (epoch seconds), rtt (ms, None if it failed) and part.
    With texts or value columns, they have the columns of `read_measurements`. Raises `CorruptShard`, `MissingExtra`.
    """
    run = path.resolve().parents[2]
    columns = columns_of_run(run) if (run / "config.json").exists() else None
    own_names = columns is not None and (columns.dictionaries or columns.config.get("values"))
    for where, found in _decoded(path, str(path)):
        if columns is not None and own_names:
            _check(found, columns, where)
            batch = columns.batch(found)
        else:
            batch = _plain_batch(found)
        for first in range(0, batch.num_rows, _AT_ONCE):
            yield from batch.slice(first, _AT_ONCE).to_pylist()


def _plain_batch(found: Decoded) -> pa.RecordBatch:
    """Return measurements without texts and values as one batch, whatever the settings of their run."""
    config = {"entity": "src_addr", "time": "event_time", "value": "rtt", "value_unit": "ms"}
    config |= {f"{role}_kind": KINDS[found.head[f"{role}_kind"][0] % 2] for role in ("entity", "peer")}
    batch = Columns({**config, "peer": None if found.index is None else "dst_addr"}, {}).batch(
        replace(found, values=())
    )
    peers = pa.nulls(len(batch), pa.string()) if found.index is None else batch["dst_addr"]
    times = batch["event_time"].cast(pa.int64())
    columns = {"src_addr": batch["src_addr"], "dst_addr": peers, "event_time": times}
    return pa.record_batch({**columns, "rtt": batch["rtt"], "part": batch["part"]})


def read_shard(path: Path, columns: Columns, name: str) -> Iterator[pa.RecordBatch]:
    """Read the measurements of a shard, some rows at a time. name: of the shard, for errors."""
    for where, found in _decoded(path, name):
        _check(found, columns, where)
        yield columns.batch(found)


def _decoded(path: Path, name: str) -> Iterator[tuple[str, Decoded]]:
    """Decode the rows of a shard, some at a time, with the place of the first of them."""
    before = 0
    for piece in read_pieces(path):
        found = decode_together(piece.data, piece.sizes)
        if len(found.n):
            yield f"{name}: row {before + 1}", found
        before += len(found.n)
        if found.damage is not None:
            raise CorruptShard(damaged(f"{name}: row {before + 1}", found.damage))


def _check(found: Decoded, columns: Columns, where: str) -> None:
    """Raise `CorruptShard` if rows have other columns than the run."""
    kinds: I64 = np.array([KINDS.index(columns.config[f"{role}_kind"]) for role in ("entity", "peer")])
    held = np.column_stack([found.head["entity_kind"], found.head["peer_kind"]])
    if (held != kinds).any() or len(found.values) != len(columns.config.get("values", {})):
        raise CorruptShard(f"{where}: has other columns than the settings of the run say")
