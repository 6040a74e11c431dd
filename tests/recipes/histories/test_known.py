"""What is remembered of addresses is what parsing gives, whoever asks and in what order."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pings import dealt, histories, random_pings, write_pings

from headrace.histories import recipe
from headrace.histories.codec.addresses import Addresses, parse
from headrace.histories.codec.rows import decode_row
from headrace.histories.known import KnownAddresses
from headrace.histories.shard_file import read_blobs

TEXTS = st.lists(
    st.lists(st.ip_addresses().map(str) | st.sampled_from(["", "x", "1.2.3", "::", "9.9.9.9", "::9"]), max_size=12),
    max_size=8,
)


def same(expected: Addresses, found: Addresses) -> bool:
    return np.array_equal(expected.family, found.family) and np.array_equal(expected.bytes, found.bytes)


@given(TEXTS, st.sampled_from([0, 3, 1000]))
def test_known_addresses_are_read_as_if_they_were_new(batches: list[list[str]], most: int) -> None:
    known = KnownAddresses("address", most)

    for batch in batches:
        texts = pa.array(batch, pa.string())
        assert same(parse(texts, "address"), known.read(texts))
        assert same(parse(texts, "address"), known.read(texts))


def test_texts_of_one_hash_are_told_apart() -> None:
    """The memo is given a hash that all texts share."""
    known = KnownAddresses("address")
    texts = pa.array(["1.2.3.4", "5.6.7.8"], pa.large_string())
    known.read(texts)
    kept = known._kept

    found = kept.find(pa.array(["9.9.9.9", "1.2.3.4"], pa.large_string()), np.repeat(kept.hashes[:1], 2))
    expected = kept.texts[int(kept.number[0])].as_py()
    assert [-1, 0 if expected == "1.2.3.4" else -1] == found.tolist()


def test_many_threads_read_what_one_reads() -> None:
    texts = [pa.array([f"10.0.{n % 7}.{m}" for m in range(n % 200)], pa.string()) for n in range(200)]
    known = KnownAddresses("address", most=700)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(known.read, texts))

    assert all(same(parse(text, "address"), read) for text, read in zip(texts, found, strict=True))


def test_another_process_gets_an_empty_memo_of_the_same_kind() -> None:
    known = KnownAddresses("number")
    known.read(pa.array(["7"]))
    copy = pickle.loads(pickle.dumps(known))

    assert [4, 0] == copy.read(pa.array(["7", "1.2.3.4"])).family.tolist()


def test_numbers_are_remembered_as_numbers() -> None:
    known = KnownAddresses("number")

    for _ in range(2):
        assert [4, 0, 4] == known.read(pa.array(["7", "1.2.3.4", "8"])).family.tolist()


@pytest.mark.parametrize("how", ["plain", "compiled"])
def test_the_bytes_of_rows_are_those_of_the_first_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Rows of fixed pings, by entity and part: reading faster must not change what is written."""
    if how == "compiled":
        pytest.importorskip("numba", reason="needs numba, which comes with the extra histories")
        monkeypatch.setattr(recipe, "WORTH_COMPILING", 0)
    prepared = histories(write_pings(tmp_path / "in", dealt(random_pings(33, 4000), 3)), tmp_path / "out", workers=2)
    blobs = [bytes(blob) for path in sorted((prepared.run / "histories").rglob("part-*")) for blob in read_blobs(path)]

    assert "a14d5789eed7f87be642497794bf5817" == sha256(b"".join(blobs)).hexdigest()[:32]
    assert 4200 == sum(decode_row(blob, "row").n for blob in blobs)
