"""Rows that are verified many at a time: whatever is wrong and wherever pieces end, what is told is what each row by
itself tells."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from array_record.python import array_record_module
from hypothesis import given
from hypothesis import strategies as st
from pings import blobs_in, blobs_of, dealt, histories, random_pings, write_pings

from headrace.dataset.open import FinishedRun, find_run
from headrace.errors import CorruptShard
from headrace.histories.codec.addresses import Addresses, render
from headrace.histories.codec.rows import (
    HEADER,
    HEADER_BYTES,
    Measurements,
    RowColumns,
    decode_rows,
    encode_rows,
)
from headrace.histories.codec.values import is_canonical
from headrace.histories.config import Histories
from headrace.histories.shard_file import ROW_SCHEMA, ReadLimit, read_blobs
from headrace.histories.spill import hash_entities, partition_of
from headrace.histories.verify import (
    FACTS,
    ShardContext,
    ShardResult,
    check_shard,
    verify_histories,
)

FORMATS = ["array_record", "arrow"]
MOSTS = st.builds(
    ReadLimit,
    rows=st.sampled_from([2, 3, 7, 20, 1000]),
    bytes=st.sampled_from([300, 3000, 1 << 20, 1 << 20]),
)
WORD = (1 << 64) - 1


@dataclass
class Rows:
    """A shard that can be changed: the blobs of its rows, and what `rows.parquet` says of each."""

    blobs: list[bytearray]
    metadata: list[dict]


@dataclass(frozen=True)
class Case:
    directory: Path
    partition: ShardContext
    blobs: list[bytes]
    metadata: pa.Table

    def rows(self) -> Rows:
        return Rows([bytearray(blob) for blob in self.blobs], self.metadata.to_pylist())

    def written(self, rows: Rows, format_: str) -> tuple[Path, pa.Table]:
        path = self.directory / f"part-00001.{format_}"
        path.unlink(missing_ok=True)
        write(path, rows.blobs)
        return path, pa.Table.from_pylist(rows.metadata, self.metadata.schema)


def write(path: Path, blobs: list[bytearray]) -> None:
    if path.suffix == ".arrow":
        with pa.ipc.new_file(path, ROW_SCHEMA) as writer:
            for first in range(0, len(blobs), 10):
                some = [bytes(blob) for blob in blobs[first : first + 10]]
                numbers = [[0] * len(some)] * 4
                writer.write_batch(
                    pa.record_batch([[""] * len(some), *numbers, some], schema=ROW_SCHEMA)
                )
        return
    writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1,uncompressed")
    for blob in blobs:
        writer.write(bytes(blob))
    writer.close()


@pytest.fixture(scope="module", params=["peers", "alone"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A shard of a run with many entities of one row, and some of several: of train with peers, of test without."""
    directory = tmp_path_factory.mktemp("verify")
    pings = [ping for seed in range(12) for ping in random_pings(seed, 250 if seed < 2 else 25)]
    source = write_pings(directory / "in", dealt(pings, 2))
    peers = request.param == "peers"
    settings = {
        "peer": "dst_addr" if peers else None,
        "partitions": 2,
        "max_row_bytes": 250 if peers else 200,
        "train_ratio": 0.6 if peers else 0.3,
    }
    prepared = histories(source, directory / "out", **settings)
    name = f"histories/{'train' if peers else 'test'}/part-00001.array_record"
    metadata = pq.read_table(prepared.run / "rows.parquet").filter(pc.field("shard") == name)
    blobs = blobs_of(prepared.run / name)
    assert len(blobs) > 30
    assert max(row["part"] for row in metadata.to_pylist()) > 2
    config = Histories(source=source, **settings)
    return Case(directory, ShardContext(config, 1, 2), blobs, metadata)


def first_problem(
    rows: list[RowColumns], partition: ShardContext, metadata: list[dict]
) -> tuple[int, str] | None:
    """The laws compared row by row: the place of the first that is wrong, and what is wrong with it."""
    before: tuple[str, int, int, int] | None = None
    for place, row in enumerate(rows):
        if place == len(metadata):
            return place, "is not in rows.parquet"
        address = Addresses(
            np.array([row.entity_family], np.uint8), row.entity_bytes.reshape(1, 16)
        )
        (name,) = render(address, partition.settings.entity_kind).to_pylist()
        hashes = hash_entities(address, partition.settings.entity_kind, partition.settings.seed)
        split = "train" if hashes.in_train(partition.settings.train_ratio)[0] else "test"
        told = tuple(metadata[place][each] for each in FACTS)
        holds = (
            name,
            row.part,
            row.n,
            row.first_time,
            row.first_time + int(row.offsets[-1]),
            split,
        )
        if told != holds:
            return place, f"holds {holds}, rows.parquet says {told}"
        order = int(hashes.order[0])
        problem = out_of_order(row, name, order, before)
        wrong = np.flatnonzero(~is_canonical(row.codes))
        if problem is None and len(wrong):
            code = int(row.codes[wrong[0]])
            problem = f"measurement {int(wrong[0]) + 1} has code {code}, which encodes no latency"
        if (
            problem is None
            and partition_of(hashes.order, partition.partitions)[0] != partition.number
        ):
            problem = f"its entity {name} belongs to another partition"
        if problem is not None:
            return place, problem
        before = name, order, row.part, row.first_time + int(row.offsets[-1])
    return None


def out_of_order(
    row: RowColumns, name: str, order: int, before: tuple[str, int, int, int] | None
) -> str | None:
    if before is None or before[0] != name:
        if before is not None and order < before[1]:
            return f"its entity {name} is out of order, so it may come twice"
        return (
            None
            if row.part == 0
            else f"is part {row.part} of {name}, and the parts before are missing"
        )
    if row.part != before[2] + 1:
        return f"is part {row.part} of {name} after part {before[2]}"
    return (
        None
        if row.first_time >= before[3]
        else f"begins at {row.first_time}, the part before ends at {before[3]}"
    )


def told_one_by_one(case: Case, path: Path, shard: Rows) -> ShardResult:
    """What is found row by row, without pieces."""
    rows = []
    problem = None
    for number, blob in enumerate(shard.blobs, 1):
        try:
            rows += decode_rows([bytes(blob)], [f"{path}: row {number}"])
        except CorruptShard as error:
            problem = str(error)
            break
    found = first_problem(rows, case.partition, shard.metadata)
    if found is not None:
        problem = f"{path}: row {found[0] + 1}: {found[1]}"
    elif problem is None and len(rows) < len(shard.metadata):
        problem = f"{path}: has {len(rows)} rows, rows.parquet has {len(shard.metadata)} of it"
    if problem is not None:
        return ShardResult(0, 0, problem)
    addresses = Addresses(
        np.array([row.entity_family for row in rows], np.uint8),
        np.stack([row.entity_bytes for row in rows]),
    )
    orders = hash_entities(
        addresses, case.partition.settings.entity_kind, case.partition.settings.seed
    ).order.tolist()
    total = sum(sum_of(bytes(blob), order) for blob, order in zip(shard.blobs, orders, strict=True))
    return ShardResult(sum(row.n for row in rows), total % (1 << 64), None)


@cache
def sum_of(blob: bytes, order: int) -> int:
    """The sum of hashes of the row's measurements, one by one in whole numbers."""
    (row,) = decode_rows([blob], [""])
    total = 0
    for place in range(row.n):
        value = order + mixed(
            row.first_time + int(row.offsets[place]) << 16 | int(row.codes[place])
        )
        if row.peers is not None:
            peer = int(row.peers[place])
            first, second = (
                int.from_bytes(row.peer_bytes[peer, at : at + 8].tobytes()) for at in (0, 8)
            )
            value ^= mixed(mixed(first + int(row.peer_family[peer])) ^ second)
        total += mixed((value & WORD) + 0x9E3779B97F4A7C15)
    return total


def mixed(value: int) -> int:
    value &= WORD
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & WORD
    return value ^ (value >> 31)


def same(expected: ShardResult, found: ShardResult) -> None:
    assert expected.problem == found.problem
    if expected.problem is None:
        assert (expected.measurements, expected.sum) == (found.measurements, found.sum % (1 << 64))


# What is done to the row at a place; the last word says whether rows.parquet is made to agree.


def header(rows: Rows, place: int) -> np.ndarray:
    return np.frombuffer(rows.blobs[place], HEADER, 1)


def offsets(rows: Rows, place: int) -> np.ndarray:
    return np.frombuffer(rows.blobs[place], "<u4", int(header(rows, place)["n"][0]), HEADER_BYTES)


def codes(rows: Rows, place: int) -> np.ndarray:
    n = int(header(rows, place)["n"][0])
    return np.frombuffer(rows.blobs[place], "<u2", n, HEADER_BYTES + 4 * n)


def strange_code(rows: Rows, place: int, number: int, agrees: bool) -> None:
    held = codes(rows, place)
    held[number % len(held)] = 31 << 11 | 5


def other_code(rows: Rows, place: int, number: int, agrees: bool) -> None:
    held = codes(rows, place)
    held[number % len(held)] = number % 1500


def other_peer(rows: Rows, place: int, number: int, agrees: bool) -> None:
    """One of the row, or the one behind its last."""
    head = header(rows, place)
    n, peers = int(head["n"][0]), int(head["peers4"][0] + head["peers6"][0])
    if peers:
        rows.blobs[place][HEADER_BYTES + 4 * n + -(-2 * n // 4) * 4 + number % n] = (
            peers if agrees else number % peers
        )


def other_part(rows: Rows, place: int, number: int, agrees: bool) -> None:
    part = int(header(rows, place)["part"][0]) + 1 + number % 2
    header(rows, place)["part"] = part
    if agrees:
        rows.metadata[place]["part"] = part


def other_time(rows: Rows, place: int, number: int, agrees: bool) -> None:
    held = offsets(rows, place)
    held[number % len(held)] += number


def all_times(rows: Rows, place: int, number: int, agrees: bool) -> None:
    by = number * 100 - 5000
    header(rows, place)["first_time"] += by
    if agrees:
        rows.metadata[place]["first_time"] += by
        rows.metadata[place]["last_time"] += by


def other_entity(rows: Rows, place: int, number: int, agrees: bool) -> None:
    head = header(rows, place)
    size = 4 if head["entity_family"][0] == 4 else 16
    head["entity"][0][number % size] ^= 1 + number % 255
    if agrees:
        address = Addresses(head["entity_family"].copy(), head["entity"].copy())
        (rows.metadata[place]["src_id"],) = render(address, "address").to_pylist()


def other_family(rows: Rows, place: int, number: int, agrees: bool) -> None:
    header(rows, place)["entity_family"] ^= 2


def swapped(rows: Rows, place: int, number: int, agrees: bool) -> None:
    other = number % len(rows.blobs)
    for held in (rows.blobs, rows.metadata) if agrees else (rows.blobs,):
        held[place], held[other] = held[other], held[place]


def lost(rows: Rows, place: int, number: int, agrees: bool) -> None:
    del rows.blobs[place]
    if agrees:
        del rows.metadata[place]


def doubled(rows: Rows, place: int, number: int, agrees: bool) -> None:
    at = number % (len(rows.blobs) + 1)
    rows.blobs.insert(at, bytearray(rows.blobs[place]))
    if agrees:
        rows.metadata.insert(at, dict(rows.metadata[place]))


def other_fact(rows: Rows, place: int, number: int, agrees: bool) -> None:
    name = ["part", "n_measurements", "first_time", "last_time", "src_id", "split", "bytes"][
        number % 7
    ]
    told = rows.metadata[place][name]
    rows.metadata[place][name] = told + 1 if isinstance(told, int) else told + "1"


def other_bit(rows: Rows, place: int, number: int, agrees: bool) -> None:
    blob = rows.blobs[place]
    blob[number % (HEADER_BYTES if agrees else len(blob))] ^= 1 << number % 8


def cut(rows: Rows, place: int, number: int, agrees: bool) -> None:
    del rows.blobs[place][-1 - number % len(rows.blobs[place]) :]


def without_peers(rows: Rows, place: int, number: int, agrees: bool) -> None:
    (row,) = decode_rows([bytes(rows.blobs[place])], [""])
    none = Addresses(np.zeros(0, np.uint8), np.zeros((0, 16), np.uint8))
    entity = Addresses(np.array([row.entity_family], np.uint8), row.entity_bytes.reshape(1, 16))
    alone = Measurements(
        times=row.first_time + row.offsets.astype(np.int64),
        codes=row.codes,
        peer=None,
        peers=none,
        starts=np.zeros(1, np.int64),
        entity=entity,
        entity_kind=row.entity_kind,
        part=np.array([row.part]),
    )
    rows.blobs[place] = bytearray(encode_rows(alone).blobs(np.array([0]))[0])


DAMAGE: list[Callable[[Rows, int, int, bool], None]] = [
    strange_code, other_code, other_peer, other_part, other_time, all_times, other_entity, other_family, swapped, lost, doubled,
    other_fact, other_bit, cut, without_peers,
]  # fmt: skip


@pytest.mark.slow
@given(st.data(), st.sampled_from(FORMATS))
def test_damage_is_told_as_each_row_tells_it(case: Case, data: st.DataObject, format_: str) -> None:
    rows = case.rows()
    most = data.draw(MOSTS)
    for change in data.draw(st.lists(st.sampled_from(DAMAGE), max_size=2, unique=True)):
        place = data.draw(st.integers(0, len(rows.blobs) - 1))
        try:
            change(rows, place, data.draw(st.integers(0, 1 << 12)), data.draw(st.booleans()))
        except (
            CorruptShard,
            IndexError,
            ValueError,
        ):  # what was damaged before cannot be damaged in this way
            continue
    path, metadata = case.written(rows, format_)

    same(told_one_by_one(case, path, rows), check_shard(path, case.partition, metadata, most))


@pytest.mark.slow
@pytest.mark.parametrize("change", DAMAGE, ids=lambda change: change.__name__)
def test_every_damage_is_found_at_every_row(
    case: Case, change: Callable[[Rows, int, int, bool], None]
) -> None:
    """Where a piece begins, where it ends and between; or it changes the sum."""
    whole = told_one_by_one(case, Path(), case.rows())
    assert whole.problem is None

    problems = 0
    for place in range(0, len(case.blobs), 5):
        for agrees in (False, True):
            rows = case.rows()
            change(rows, place, 11 * place + 1, agrees)
            path, metadata = case.written(rows, "array_record")
            expected = told_one_by_one(case, path, rows)
            found = check_shard(path, case.partition, metadata, ReadLimit(rows=4, bytes=1 << 20))
            same(expected, found)
            problems += expected.problem is not None or expected.sum != whole.sum
    changes_nothing = change in (other_peer, without_peers) and case.partition.settings.peer is None
    assert (problems == 0) if changes_nothing else problems > 4


def test_other_settings_are_found_in_the_first_row_they_do_not_fit(case: Case) -> None:
    settings = case.partition.settings
    path, metadata = case.written(case.rows(), "array_record")
    for other in (
        replace(case.partition, number=0),
        replace(case.partition, partitions=3),
        replace(case.partition, settings=settings.model_copy(update={"train_ratio": 0.45})),
        replace(case.partition, settings=settings.model_copy(update={"seed": 1})),
        replace(case.partition, settings=settings.model_copy(update={"entity_kind": "number"})),
    ):
        expected = told_one_by_one(replace(case, partition=other), path, case.rows())
        assert expected.problem is not None
        for rows in (1, 5, 1000):
            same(expected, check_shard(path, other, metadata, ReadLimit(rows=rows, bytes=1 << 20)))


@pytest.mark.parametrize("format_", FORMATS)
@given(
    st.lists(st.integers(0, 40), max_size=30),
    MOSTS,
    st.sampled_from(["none", "right", "short", "long"]),
)
def test_pieces_are_the_rows_in_order(
    tmp_path: Path, format_: str, sizes: list[int], most: ReadLimit, expects: str
) -> None:
    blobs = [bytearray([number % 256]) * 8 * size for number, size in enumerate(sizes, 1)] or [
        bytearray(8)
    ]
    path = tmp_path / f"pieces.{format_}"
    path.unlink(missing_ok=True)
    write(path, blobs)
    told = np.array([len(blob) for blob in blobs], np.int64)
    expected = {
        "none": None,
        "right": told,
        "short": told[: len(told) // 2],
        "long": np.append(told, [8, 8]),
    }[expects]
    pieces = [blobs_in(piece) for piece in read_blobs(path, expected, most)]

    assert [bytes(blob) for blob in blobs] == [blob for piece in pieces for blob in piece]
    assert all(1 <= len(piece) <= most.rows for piece in pieces)
    if expects in ("right", "long") or format_ == "arrow":
        assert all(len(piece) == 1 or sum(map(len, piece)) <= most.bytes for piece in pieces)


def test_rows_before_one_that_cannot_be_read_are_given(case: Case) -> None:
    path, metadata = case.written(case.rows(), "array_record")
    data = bytearray(path.read_bytes())
    at = data.index(case.blobs[20])
    data[at + 70] ^= 1
    path.write_bytes(data)
    for rows in (1, 6, 1000):
        most = ReadLimit(rows=rows, bytes=1 << 20)
        read: list[bytes] = []
        with pytest.raises(CorruptShard, match="cannot be read"):
            read += [blob for piece in read_blobs(path, None, most) for blob in blobs_in(piece)]
        found = check_shard(path, case.partition, metadata, most)
        assert "cannot be read" in (found.problem or "")
        assert sum(metadata["n_measurements"].to_pylist()[:20]) == found.measurements


def test_a_row_group_of_the_rows_file_is_a_shard(tmp_path: Path) -> None:
    """Which is how the facts of a shard are read, and a file that is grouped in another way is another file."""
    source = write_pings(tmp_path / "in", dealt(random_pings(3, 300), 2))
    prepared = histories(source, tmp_path / "out", max_row_bytes=400, partitions=3)
    with pq.ParquetFile(prepared.run / "rows.parquet") as file:
        groups = [
            set(file.read_row_group(n, ["shard"])["shard"].to_pylist())
            for n in range(file.num_row_groups)
        ]

    assert [1] * len(groups) == [len(group) for group in groups]
    assert len(groups) == len(set.union(*groups)) > 3
    assert {None} == {
        check.problem for check in verify_histories(FinishedRun(*find_run(prepared.out)))
    }
