"""A spool holds what was added, or is none."""

import json
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packed_cases import made_spool

from headrace.errors import CorruptShard, InputError
from headrace.packing.storage.spool import JoinedSpool, SequenceSpool, SpoolWriter
from headrace.run.context import TaskFiles
from raised import raised


@contextmanager
def writing(directory):
    """A writer of a spool whose files are published as a run's task publishes them."""
    files = TaskFiles(directory.parent, durable=False)
    try:
        with SpoolWriter(files, directory.name) as writer:
            yield writer
        files.publish(lambda event: None)
    finally:
        files.discard()


def write(directory, lengths, pieces=1):
    spool = made_spool(lengths)
    with writing(directory) as writer:
        for part in np.array_split(np.arange(len(lengths)), pieces):
            ids, mask, sizes = spool.take(part)
            writer.add(ids, mask, sizes)
    return spool


@pytest.mark.parametrize("pieces", [1, 3])
def test_what_was_added_is_read(tmp_path, pieces):
    lengths = np.array([3, 1, 7, 2, 2])
    made = write(tmp_path / "s", lengths, pieces)
    spool = SequenceSpool.open(tmp_path / "s")

    assert 5 == len(spool)
    for number in range(5):
        for expected, found in zip(
            made.read_sequence(number), spool.read_sequence(number), strict=True
        ):
            assert expected.tolist() == found.tolist()
    assert (np.int32, np.uint8, np.uint64, np.uint32) == (
        spool.tokens.dtype, spool.mask.dtype, spool.offsets.dtype, spool.lengths.dtype,
    )  # fmt: skip


def test_the_files_do_not_depend_on_how_sequences_were_added(tmp_path):
    lengths = np.array([3, 1, 7, 2, 2])
    write(tmp_path / "a", lengths)
    write(tmp_path / "b", lengths, 4)

    for path in sorted((tmp_path / "a").iterdir()):
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_a_spool_without_sequences_is_a_spool(tmp_path):
    write(tmp_path / "s", np.empty(0, np.int64))

    assert len(SequenceSpool.open(tmp_path / "s")) == 0


def test_an_error_leaves_nothing(tmp_path):
    with pytest.raises(KeyError), writing(tmp_path / "s") as writer:
        writer.add(np.arange(3), np.ones(3, int), [3])
        raise KeyError

    assert list((tmp_path / "s").iterdir()) == []
    with raised(InputError, path=tmp_path / "s", remedy="write it again"):
        SequenceSpool.open(tmp_path / "s")


@pytest.mark.parametrize("name", ["tokens.bin", "masks.bin", "offsets.bin", "lengths.bin"])
@pytest.mark.parametrize("damage", ["cut", "longer", "gone"])
def test_a_damaged_file_is_found(tmp_path, name, damage):
    write(tmp_path / "s", np.array([3, 1, 7]))
    path = tmp_path / "s" / name
    data = path.read_bytes()
    path.write_bytes({"cut": data[:-1], "longer": data + b"x", "gone": b""}[damage])
    if damage == "gone":
        path.unlink()

    with raised(CorruptShard, path=path, remedy="write the spool again"):
        SequenceSpool.open(tmp_path / "s")


@pytest.mark.parametrize(
    "manifest",
    [
        "{",
        "[]",
        "{}",
        '{"version": "x", "files": {}, "sequences": 0, "tokens": 0}',
        '{"version": "headrace-spool-1", "files": [], "sequences": 0, "tokens": 0}',
        '{"version": "headrace-spool-1", "files": {}, "sequences": 1e999, "tokens": 0}',
    ],
)
def test_a_damaged_manifest_is_found(tmp_path, manifest):
    write(tmp_path / "s", np.array([3]))
    (tmp_path / "s" / "manifest.json").write_text(manifest)

    with raised(
        CorruptShard, path=tmp_path / "s" / "manifest.json", remedy="write the spool again"
    ):
        SequenceSpool.open(tmp_path / "s")


@pytest.mark.parametrize(
    ("tokens", "mask", "lengths", "says"),
    [
        ([1, 2], [1], [2], "give flat arrays"),
        ([1, 2], [1, 1], [1], "add up to 1, tokens are 2"),
        ([1, 2], [1, 1], [2, 0], "sequence 1 has 0 tokens"),
        ([1, 2**31], [1, 1], [2], "2147483648 does not fit int32"),
        ([1, 2], [1, 256], [2], "256 does not fit uint8"),
        ([1.0, 2.0], [1, 1], [2], "give integers"),
    ],
)
def test_what_does_not_fit_is_refused_and_not_kept(tmp_path, tokens, mask, lengths, says):
    with writing(tmp_path / "s") as writer:
        with pytest.raises(ValueError, match=says):
            writer.add(np.array(tokens), np.array(mask), lengths)
        writer.add(np.array([7]), np.array([True]), [1])

    spool = SequenceSpool.open(tmp_path / "s")
    assert ([7], [1]) == (spool.tokens.tolist(), spool.mask.tolist())


def test_a_runs_task_publishes_the_files(tmp_path):
    files = TaskFiles(tmp_path, durable=False)
    with SpoolWriter(files, "stage/spool/s") as writer:
        writer.add(np.arange(3), np.ones(3, int), [2, 1])
    assert not (tmp_path / "stage/spool/s/manifest.json").exists()
    records = files.publish(lambda event: None)

    assert "stage/spool/s/manifest.json" == records[-1].path
    assert [0, 1, 2] == SequenceSpool.open(tmp_path / "stage/spool/s").tokens.tolist()


@pytest.mark.parametrize("number", [-1, 3])
def test_a_sequence_that_is_not_there_is_an_index_error(number):
    spool = made_spool([1, 2, 3])

    with pytest.raises(IndexError, match=f"no sequence {number}; there are 3"):
        spool.read_sequence(number)
    with pytest.raises(IndexError, match=f"no sequence {number}; there are 3"):
        spool.take(np.array([number]))
    with pytest.raises(IndexError, match=f"no sequence {number}; there are 3"):
        JoinedSpool([made_spool([1]), made_spool([2, 3])]).take(np.array([number]))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("offsets.bin", np.array([0, 1, 2**64 - 9, 6], "<u8")),
        ("offsets.bin", np.array([0, 1, 2**63, 6], "<u8")),
        ("offsets.bin", np.array([1, 1, 3, 6], "<u8")),
        ("offsets.bin", np.array([0, 1, 3, 7], "<u8")),
        ("lengths.bin", np.array([1, 2, 9], "<u4")),
    ],
)
def test_sequences_that_lie_outside_are_found_before_any_is_read(tmp_path, name, values):
    write(tmp_path / "s", np.array([1, 2, 3]))
    (tmp_path / "s" / name).write_bytes(values.tobytes())

    with raised(CorruptShard, path=tmp_path / "s" / "offsets.bin", remedy="write the spool again"):
        SequenceSpool.open(tmp_path / "s")


@given(
    st.lists(st.lists(st.integers(1, 5), max_size=4), max_size=4), st.randoms(use_true_random=False)
)
def test_joined_spools_are_one(lengths, random):
    parts = [made_spool(np.array(each, np.int64), place) for place, each in enumerate(lengths)]
    whole = SequenceSpool.of_arrays(
        np.concatenate([np.empty(0, int), *(part.tokens for part in parts)]),
        np.concatenate([np.empty(0, int), *(part.mask for part in parts)]),
        np.concatenate([np.empty(0, int), *(part.lengths for part in parts)]),
    )
    joined = JoinedSpool(parts)
    chosen = np.array(random.sample(range(len(whole)), len(whole)), np.int64)

    for expected, found in zip(whole.take(chosen), joined.take(chosen), strict=True):
        assert expected.tolist() == found.tolist()


def test_the_manifest_is_json_with_the_digests(tmp_path):
    write(tmp_path / "s", np.array([3]))
    manifest = json.loads((tmp_path / "s" / "manifest.json").read_text())

    assert (1, 3) == (manifest["sequences"], manifest["tokens"])
    assert {"tokens.bin", "masks.bin", "offsets.bin", "lengths.bin"} == set(manifest["files"])
