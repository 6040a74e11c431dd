"""ArrayRecord files made by our kernels are, byte for byte, those that the array_record package writes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from headrace.histories.record_kernels import OPTIONS, Chunks

module = pytest.importorskip("array_record.python.array_record_module")

BLOCK = 1 << 16


def ours(blobs: Sequence[bytes], options: bytes = OPTIONS) -> bytes:
    chunks = Chunks(options)
    sizes = np.array([len(each) for each in blobs], np.int64)
    ends = np.cumsum(sizes)
    pieces = [chunks.start()]
    half = len(blobs) // 2  # as a shard of two slabs is written
    data = np.frombuffer(b"".join(blobs), np.uint8)
    for part in (slice(0, half), slice(half, None)):
        pieces.extend(chunks.records(data, (ends - sizes)[part], ends[part]))
    pieces.extend(chunks.finish())
    return b"".join(each.tobytes() for each in pieces)


def theirs(path: Path, blobs: Sequence[bytes]) -> bytes:
    writer = module.ArrayRecordWriter(str(path), "group_size:1,uncompressed,max_parallelism:1")
    for blob in blobs:
        writer.write(blob)
    writer.close()
    return path.read_bytes()


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """How the installed package tells its options, which it writes into each file."""
    found = re.search(rb"group_size:1[a-z0-9_,:]*", theirs(tmp_path_factory.mktemp("none") / "none", []))
    assert found is not None
    return found.group()


def test_files_are_the_same_bytes(tmp_path: Path, options: bytes) -> None:
    rng = np.random.default_rng(5)
    longest = (1, 30, 200, 5_000, 70_000)
    cases = [
        [rng.bytes(int(rng.integers(0, most + 1))) for most in rng.choice(longest, int(rng.integers(0, 60)))]
        for _ in range(60)
    ]
    cases += [[], [b""], [b""] * 3, [b"one"], [bytes(3 * BLOCK), b"", bytes(1 << 21)]]
    cases.append([rng.bytes(int(size)) for size in rng.integers(0, 200, 20_000)])  # more than one piece
    for number, blobs in enumerate(cases):
        assert ours(blobs, options) == theirs(tmp_path / f"{number}", blobs), [len(each) for each in blobs][:20]


@pytest.mark.parametrize(
    "length", [0, 1, 2, 3, 4, 7, 8, 15, 16, 17, 19, 23, 24, 28, 31, 32, 33, 63, 64, 127, 128, 16_384]
)
def test_records_of_every_remainder(length: int, tmp_path: Path, options: bytes) -> None:
    blobs = [bytes((7 * place + size) % 256 for place in range(length + size)) for size in range(32)]
    assert ours(blobs, options) == theirs(tmp_path / "file", blobs)


def test_every_way_to_meet_a_block(tmp_path: Path, options: bytes) -> None:
    """The last chunks of a file, and what fills its blocks, at each distance from the end of a block."""
    for left in range(-8, 320):
        blobs = [bytes(BLOCK - 24 - 40 - 40 - 5 - left)]
        assert ours(blobs, options) == theirs(tmp_path / f"{left}", blobs), left


def test_the_package_reads_our_records(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    blobs = [rng.bytes(int(size)) for size in rng.integers(0, 3_000, 500)]
    (tmp_path / "file").write_bytes(ours(blobs))
    reader = module.ArrayRecordReader(str(tmp_path / "file"))
    assert reader.read_all() == blobs
