"""What trainers' readers see in packed shards is what the sequences say; our own stream sees the same."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packed_reader import PackedReader, collate
from packed_stream_cases import make_bins, table_of, write_shards

import headrace
from headrace.stream.packed import PackedBatches

PACK_SIZE, FILLING = 96, 7


@pytest.fixture(scope="module")
def bins():
    return make_bins(230, most_sequences=8, most_tokens=12, least_tokens=2)


@pytest.fixture(scope="module")
def root(bins, tmp_path_factory):
    """Three shards, one of them without rows, in row groups of 32."""
    root = write_shards(tmp_path_factory.mktemp("packed") / "d", table_of(bins), shard_rows=120, group_rows=32)
    pq.ParquetWriter(
        root / "shard_000002.parquet", table_of([]).schema
    ).close()  # no row group: datasets fails at empty ones
    (root / "shard_000003.parquet.tmp").write_bytes(b"half")
    return root


def pairs_of(sequences):
    """(token, label, trained) of every place that is fed, from the source itself."""
    return [(token, label, trained) for sequence in sequences for (token, _), (label, trained) in pairwise(sequence)]


@pytest.mark.parametrize("spec", ["d", "d/*.parquet", "d/shard_00000[012].parquet"])
def test_a_trainers_reader_sees_the_tokens_labels_and_masks_of_the_source(bins, root, spec):
    reader = PackedReader(root.parent / spec)

    assert len(bins) == len(reader)
    for number, sequences in enumerate(bins):
        batch = collate([reader[number]], pack_size=PACK_SIZE, filling=FILLING)
        fed = pairs_of(sequences)
        assert [
            (int(t), int(label), int(m))
            for t, label, m in zip(batch["tokens"][0], batch["labels"][0], batch["loss_mask"][0], strict=True)
        ][: len(fed)] == fed
        assert sum(trained for _, _, trained in fed) == batch["loss_mask"].sum()
        lengths = [len(sequence) - 1 for sequence in sequences]
        assert np.cumsum([0, *lengths]).tolist() == batch["cu_seqlens"][0][: len(lengths) + 1]


def test_one_row_group_is_decoded_for_rows_in_order_and_a_negative_row_trains_nothing(bins, root):
    reader = PackedReader(root)
    for number in range(len(reader)):
        reader[number]
    assert 8 == reader.decoded  # 120 and 110 rows in groups of 32

    last, same = reader[-1], reader[len(reader) - 1]
    assert last["input_ids"] == same["input_ids"]
    assert 0 == sum(last["loss_mask"])


def test_our_stream_feeds_a_row_as_the_trainers_reader_does(bins, root):
    reader = PackedReader(root)
    settings = PackedBatches(form="padded", last_token="drop", ignore_index=None, pad_id=FILLING, pad_to_multiple_of=16)
    stream = headrace.open(root).stream(batch_size=1, packed=settings, batch_format="numpy")

    count = 0
    for number, batch in enumerate(stream):
        theirs = collate([reader[number]], pack_size=PACK_SIZE, filling=FILLING)
        assert np.array_equal(theirs["tokens"], batch["input_ids"])
        assert np.array_equal(theirs["labels"], batch["labels"])
        assert np.array_equal(theirs["loss_mask"], batch["loss_mask"])
        assert np.array_equal(theirs["position_ids"], batch["position_ids"])
        assert theirs["cu_seqlens"][0] == batch["cu_seqlens"].tolist()
        count += 1
    assert len(reader) == count


@pytest.mark.parametrize("alignment", ["unshifted", "legacy_roll_right"])
def test_another_alignment_would_train_other_tokens(bins, tmp_path, alignment):
    """What the contract is for: the reader has no idea of alignments, and would train on what it finds."""
    reader = PackedReader(write_shards(tmp_path / "d", table_of(bins, alignment=alignment)))
    batch = collate([reader[0]], pack_size=PACK_SIZE, filling=FILLING)
    fed = pairs_of(bins[0])

    assert [trained for _, _, trained in fed] != batch["loss_mask"][0][: len(fed)].tolist()


def test_a_file_without_a_column_and_a_set_without_rows_are_refused(bins, tmp_path):
    root = write_shards(tmp_path / "d", table_of(bins[:3]))
    pq.write_table(table_of(bins[3:4]).drop_columns("loss_mask"), root / "shard_000001.parquet")
    with pytest.raises(ValueError, match="missing required columns.*loss_mask"):
        PackedReader(root)
    with pytest.raises(ValueError, match="empty"):
        PackedReader(write_shards(tmp_path / "e", table_of([])))
    with pytest.raises(ValueError, match="no packed Parquet"):
        PackedReader(tmp_path / "*.parquet")


def test_hugging_face_datasets_loads_the_shards(bins, root, tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="needs Hugging Face datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    files = sorted(str(each) for each in root.glob("*.parquet"))
    loaded = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path))

    assert len(bins) == len(loaded)
    assert pa.list_(pa.int32()) == loaded.features.arrow_schema.field("input_ids").type
    reader = PackedReader(root)
    for number in (0, 119, 120, 229):
        row = reader[number]
        assert row["input_ids"] == loaded[number]["input_ids"]
        assert row["loss_mask"] == loaded[number]["loss_mask"]
        assert row["seq_boundaries"][:-1] == loaded[number]["seq_start_id"]
