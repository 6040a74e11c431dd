"""What trainers' readers see in packed shards is what the sequences say; our own stream sees the same."""

import gzip
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packed_reader import PackedReader, collate
from packed_stream_cases import make_bins, table_of, write_shards

import headrace
from headrace.errors import SettingsError
from headrace.packing.read.batches import PackedBatches
from raised import raised

PACK_SIZE, FILLING = 96, 7
DATA = Path(__file__).parents[2].parent / "shared" / "data"


@pytest.fixture(scope="module")
def bins():
    return make_bins(230, most_sequences=8, most_tokens=12, least_tokens=2)


@pytest.fixture(scope="module")
def root(bins, tmp_path_factory):
    """Three shards, one of them without rows, in row groups of 32."""
    root = write_shards(
        tmp_path_factory.mktemp("packed") / "d", table_of(bins), shard_rows=120, group_rows=32
    )
    pq.ParquetWriter(
        root / "shard_000002.parquet", table_of([]).schema
    ).close()  # no row group: datasets fails at empty ones
    (root / "shard_000003.parquet.tmp").write_bytes(b"half")
    return root


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Indexes of plain shards are kept below the home directory."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def pairs_of(sequences):
    """(token, label, trained) of every place that is fed, from the source itself."""
    return [
        (token, label, trained)
        for sequence in sequences
        for (token, _), (label, trained) in pairwise(sequence)
    ]


@pytest.mark.parametrize("spec", ["d", "d/*.parquet", "d/shard_00000[012].parquet"])
def test_a_trainers_reader_sees_the_tokens_labels_and_masks_of_the_source(bins, root, spec):
    reader = PackedReader(root.parent / spec)

    assert len(bins) == len(reader)
    for number, sequences in enumerate(bins):
        batch = collate([reader[number]], pack_size=PACK_SIZE, filling=FILLING)
        fed = pairs_of(sequences)
        assert [
            (int(t), int(label), int(m))
            for t, label, m in zip(
                batch["tokens"][0], batch["labels"][0], batch["loss_mask"][0], strict=True
            )
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
    settings = PackedBatches(
        form="padded", last_token="drop", ignore_index=None, pad_id=FILLING, pad_to_multiple_of=16
    )
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
    loaded = datasets.load_dataset(
        "parquet", data_files=files, split="train", cache_dir=str(tmp_path)
    )

    assert len(bins) == len(loaded)
    assert pa.list_(pa.int32()) == loaded.features.arrow_schema.field("input_ids").type
    reader = PackedReader(root)
    for number in (0, 119, 120, 229):
        row = reader[number]
        assert row["input_ids"] == loaded[number]["input_ids"]
        assert row["loss_mask"] == loaded[number]["loss_mask"]
        assert row["seq_boundaries"][:-1] == loaded[number]["seq_start_id"]


GSM8K = DATA / "job5-gsm8k" / "train.jsonl.gz"
QWEN = DATA / "job5-tokenizer-qwen3"
SPLITS = ("train", "valid", "test")


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """GSM8K by the recipe: the questions and answers that went in, the tokenizer, and what came out."""
    if not (GSM8K.is_file() and QWEN.is_dir()):
        pytest.skip("GSM8K and the Qwen3 tokenizer are not beside the project")
    tokenizers = pytest.importorskip("tokenizers", reason="needs headrace[chat]")
    pytest.importorskip("jinja2", reason="needs headrace[chat]")
    folder = tmp_path_factory.mktemp("gsm8k")
    lines = gzip.decompress(GSM8K.read_bytes()).decode().splitlines()[:400]
    (folder / "raw").mkdir()
    (folder / "raw" / "train.jsonl").write_text("\n".join(lines) + "\n")
    recipe = headrace.PackedSequences(
        blend=str(folder / "raw"),
        tokenizer=QWEN,
        pack_size=1024,
        train_ratio=0.9,
        val_ratio=0.05,
        test_ratio=0.05,
    )
    headrace.prepare(recipe, folder / "out")
    tokenizer = tokenizers.Tokenizer.from_str(
        gzip.decompress((QWEN / "tokenizer.json.gz").read_bytes()).decode()
    )
    return [json.loads(line) for line in lines], tokenizer, folder / "out"


@pytest.mark.slow
def test_a_trainers_reader_sees_every_chat_of_gsm8k_and_trains_its_answer_alone(real):
    chats, tokenizer, out = real
    fed, trained, mask_sum, labels = [], [], 0, 0
    for split in SPLITS:
        reader = PackedReader(out / "splits" / split)
        for number in range(len(reader)):
            row = reader[number]
            batch = collate([row], pack_size=1024, filling=0)
            mask_sum += int(batch["loss_mask"].sum())
            borders = batch["cu_seqlens"][0][: len(row["seq_boundaries"])]
            for begin, end in pairwise(borders):
                tokens, label, mask = (
                    batch[name][0, begin:end] for name in ("tokens", "labels", "loss_mask")
                )
                assert np.array_equal(tokens[1:], label[:-1])
                fed.append([*tokens.tolist(), int(label[-1])])
                trained.append(label[mask == 1].tolist())
                labels += int(mask.sum())

    def said(ids):
        return tokenizer.decode_batch(ids, skip_special_tokens=False)

    opening, turn = (
        "<think>\n\n</think>\n\n",
        "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n" + "{}<|im_end|>\n",
    )
    expected = sorted(turn.format(chat["question"], opening + chat["answer"]) for chat in chats)
    assert expected == sorted(said(fed))
    answers = sorted(f"{opening}{chat['answer']}<|im_end|>" for chat in chats)
    assert answers == sorted(said(trained))
    assert mask_sum == labels == headrace.open(out).manifest.metadata["packed"]["labels"]


def test_our_stream_of_gsm8k_has_the_labels_that_the_trainers_reader_has(real):
    _, _, out = real
    for split in SPLITS:
        reader = PackedReader(out / "splits" / split)
        stream = headrace.open(out).stream(split, batch_size=3, batch_format="numpy", shuffle=True)
        ours = sorted(
            label for batch in stream for label in batch["labels"][batch["labels"] != -100].tolist()
        )
        batches = [
            collate([reader[number]], pack_size=1024, filling=0) for number in range(len(reader))
        ]
        theirs = sorted(
            label
            for batch in batches
            for label in batch["labels"][batch["loss_mask"] == 1].tolist()
        )

        assert theirs == ours


def test_the_metadata_beside_says_what_the_reader_finds(real):
    _, _, out = real
    said = json.loads((out / "packing_metadata.json").read_text())
    readers = [PackedReader(out / "splits" / split) for split in SPLITS]
    rows = [reader[number] for reader in readers for number in range(len(reader))]
    lengths = [np.diff(row["seq_boundaries"]) - 1 for row in rows]

    assert max(map(len, lengths)) == max(each["max_samples_per_bin"] for each in said)
    assert max(int(each.max()) for each in lengths) == max(
        each["dataset_max_seqlen"] for each in said
    )
    assert min(int(each.sum()) for each in lengths) == min(
        each["min_packed_seqlen"] for each in said
    )


def prepared(folder, **settings):
    """Rows of tokens, each token another one, every second place trained, packed by the recipe."""
    rng = np.random.default_rng(3)
    rows, token = [], 1
    for length in rng.integers(2, 40, 300).tolist():
        rows.append(
            {
                "input_ids": list(range(token, token + length)),
                "loss_mask": [n % 2 for n in range(length)],
            }
        )
        token += length
    folder.mkdir()
    (folder / "raw.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    ratios = {"train_ratio": 1, "val_ratio": 0, "test_ratio": 0}
    recipe = headrace.PackedSequences(
        blend=str(folder / "raw.jsonl"), pack_size=96, **ratios, **settings
    )
    headrace.prepare(recipe, folder / "out")
    return rows, folder / "out"


def trained_labels(rows):
    return sorted(
        token
        for row in rows
        for token, on in list(zip(row["input_ids"], row["loss_mask"], strict=True))[1:]
        if on
    )


@pytest.mark.parametrize("multiple", [1, 8])
def test_bins_packed_for_what_readers_feed_fit_them_and_their_multiple(tmp_path, multiple):
    rows, out = prepared(tmp_path / "d", capacity="runtime", pad_multiple=multiple, pad_id=0)
    reader = PackedReader(out / "splits" / "train")
    batches = [collate([reader[number]], pack_size=96, filling=0) for number in range(len(reader))]

    lengths = [
        end - begin
        for number in range(len(reader))
        for begin, end in pairwise(reader[number]["seq_boundaries"])
    ]
    assert not any((length - 1) % multiple for length in lengths)
    labels = [
        label for batch in batches for label in batch["labels"][batch["loss_mask"] == 1].tolist()
    ]
    assert trained_labels(rows) == sorted(labels)
    fed = headrace.PackedBatches(form="padded", last_token="drop", pad_to=96, ignore_index=None)
    ours = list(headrace.open(out).stream("train", batch_size=1, packed=fed, batch_format="numpy"))
    for theirs, batch in zip(batches, ours, strict=True):
        width = theirs["tokens"].shape[1]
        assert np.array_equal(theirs["tokens"], batch["input_ids"][:, :width])
        assert np.array_equal(theirs["loss_mask"], batch["loss_mask"][:, :width])


def test_the_links_of_a_split_open_by_themselves_as_packed_rows(tmp_path):
    rows, out = prepared(tmp_path / "d")
    stream = headrace.open(out / "splits" / "train", cache_dir=tmp_path / "cache").stream(
        batch_size=7
    )

    labels = [
        label for batch in stream for label in batch["labels"][batch["labels"] != -100].tolist()
    ]

    assert trained_labels(rows) == sorted(labels)


def test_old_masks_are_read_as_what_they_meant_but_for_what_they_lost(tmp_path):
    rows, out = prepared(tmp_path / "d", loss_mask_alignment="legacy_roll_right")
    batches = list(headrace.open(out).stream("train", batch_size=7, batch_format="numpy"))
    labels = sorted(
        label for batch in batches for label in batch["labels"][batch["labels"] != -100].tolist()
    )
    reader = PackedReader(out / "splits" / "train")
    last = {reader[number]["input_ids"][-1] for number in range(len(reader))}

    assert [label for label in trained_labels(rows) if label not in last] == labels


def test_a_wrong_word_for_the_alignment_is_refused_where_the_file_says_another(tmp_path):
    _, out = prepared(tmp_path / "d", loss_mask_alignment="legacy_roll_right")
    asked = PackedBatches(loss_mask_alignment="shift_left")
    with raised(SettingsError, setting="loss_mask_alignment", value="shift_left"):
        next(iter(headrace.open(out).stream("train", batch_size=7, packed=asked)))
