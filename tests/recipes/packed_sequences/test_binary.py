"""Records of one size: what was written is read as views of the file."""

import numpy as np
import pytest
from packed_cases import as_lists, made_rows

from headrace.errors import CorruptShard, InputError
from headrace.recipes.packed_sequences.storage.binary import BinaryShard, BinaryShardWriter, record_type


def write(path, rows, pack_size=200, max_sequences=5, step=1000, metadata=None):
    with BinaryShardWriter(path, pack_size=pack_size, max_sequences=max_sequences, metadata=metadata) as writer:
        for at in range(0, len(rows), step):
            writer.write_bins(rows[at : at + step])
        return writer.finalize()


@pytest.mark.parametrize("bins", [0, 1, 600])
def test_bins_come_back_as_they_were_written(tmp_path, bins):
    rows = made_rows(bins)
    write(tmp_path / "s.bin", rows, metadata={"seed": "3"})
    shard = BinaryShard.open(tmp_path / "s.bin")

    assert (bins, 200, 5, {"seed": "3"}) == (len(shard), shard.pack_size, shard.max_sequences, shard.metadata)
    assert as_lists(rows) == [tuple(part.tolist() for part in shard.bin(number)) for number in range(bins)]
    assert as_lists(rows) == as_lists(shard.take(slice(None)))


def test_some_bins_in_any_order(tmp_path):
    rows = made_rows(20)
    write(tmp_path / "s.bin", rows)
    chosen = np.array([7, 3, 3, 19])

    assert [as_lists(rows)[number] for number in chosen] == as_lists(BinaryShard.open(tmp_path / "s.bin").take(chosen))


def test_a_bin_is_a_view_of_the_file_and_read_only(tmp_path):
    write(tmp_path / "s.bin", made_rows(3))
    shard = BinaryShard.open(tmp_path / "s.bin")

    for part in shard.bin(1):
        assert np.shares_memory(part, shard.records)
        assert not part.flags.writeable


def test_the_bytes_do_not_depend_on_how_bins_arrive_and_padding_is_zero(tmp_path):
    rows = made_rows(30)
    digests = {write(tmp_path / "s.bin", rows, step=step)["sha256"] for step in (1, 7, 30)}
    shard = BinaryShard.open(tmp_path / "s.bin")

    assert len(digests) == 1
    assert shard.records["input_ids"].sum() == rows.ids.sum(dtype=np.int64)
    assert shard.records["loss_mask"].sum() == rows.mask.sum()


def test_records_begin_on_64_bytes(tmp_path):
    write(tmp_path / "s.bin", made_rows(3))

    assert record_type(200, 5).itemsize % 64 == 0
    assert (tmp_path / "s.bin").stat().st_size == 4096 + 3 * record_type(200, 5).itemsize


@pytest.mark.parametrize(("pack_size", "most"), [(20, 5), (200, 1)])
def test_a_bin_that_is_too_large_is_refused_by_number_and_nothing_is_left(tmp_path, pack_size, most):
    rows = made_rows(30)
    sizes, counts = np.diff(rows.token_offsets), np.diff(rows.start_offsets)
    first = int(np.argmax((sizes > pack_size) | (counts > most)))
    with pytest.raises(ValueError, match=rf"bin {first} has {sizes[first]} tokens in {counts[first]} sequences"):
        write(tmp_path / "s.bin", rows, pack_size, most)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sizes", [{"pack_size": 0, "max_sequences": 1}, {"pack_size": 1, "max_sequences": 0}])
def test_sizes_below_one_are_refused(tmp_path, sizes):
    with pytest.raises(ValueError, match="is 0; give at least 1"):
        BinaryShardWriter(tmp_path / "s.bin", **sizes)


def test_nothing_can_be_written_after_the_end(tmp_path):
    writer = BinaryShardWriter(tmp_path / "s.bin", pack_size=200, max_sequences=5)
    writer.finalize()

    with pytest.raises(RuntimeError, match="after the file was closed"):
        writer.write_bins(made_rows(2))
    with pytest.raises(RuntimeError, match="finalized before"):
        writer.finalize()


@pytest.mark.parametrize("damage", ["cut", "header", "short"])
def test_a_damaged_file_is_found(tmp_path, damage):
    path = tmp_path / "s.bin"
    write(path, made_rows(3))
    data = path.read_bytes()
    path.write_bytes({"cut": data[:-1], "header": data[:14] + b"x" + data[15:], "short": data[:3000]}[damage])

    with pytest.raises(CorruptShard, match=r"s\.bin"):
        BinaryShard.open(path)


def test_another_file_is_no_packed_file(tmp_path):
    (tmp_path / "s.bin").write_bytes(b"PAR1....")

    with pytest.raises(InputError, match="begins with b'PAR1"):
        BinaryShard.open(tmp_path / "s.bin")
    with pytest.raises(InputError, match="cannot be read"):
        BinaryShard.open(tmp_path / "t.bin")


@pytest.mark.parametrize("number", [-1, 3])
def test_a_bin_that_is_not_there_is_an_index_error(tmp_path, number):
    write(tmp_path / "s.bin", made_rows(3))

    with pytest.raises(IndexError, match=f"no bin {number}; there are 3"):
        BinaryShard.open(tmp_path / "s.bin").bin(number)
