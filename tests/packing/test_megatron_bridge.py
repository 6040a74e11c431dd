"""Bins as Megatron-Bridge's own reader feeds them to a model: `docs/trainers/megatron.md`. `make megatron` installs it."""

import json
import subprocess
import sys
from collections import Counter
from itertools import pairwise

import megatron_reader
import pytest
from chats import chat, small_tokenizer
from recipe_cases import packed, sequence_of, token_rows, write_jsonl

pytestmark = pytest.mark.skipif(
    megatron_reader.installed() is None,
    reason="megatron-bridge and megatron-core are not installed: make megatron",
)
EOS, SIZE, MULTIPLE = 4999, 512, 8
RATIOS = {"train_ratio": 1, "val_ratio": 0, "test_ratio": 0}


def rows_without_eos(count):
    rows = token_rows(count, seed=7)
    return [{**row, "input_ids": [min(each, EOS - 1) for each in row["input_ids"]]} for row in rows]


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What the reader made of runs: the rows they were made of, their output directories, and per case its batches."""
    root = tmp_path_factory.mktemp("megatron")
    rows = rows_without_eos(150)
    source = write_jsonl(root / "rows.jsonl", rows)
    common = {
        "pack_size": SIZE,
        "capacity": "runtime",
        "pad_id": EOS,
        "duplicates": "allow",
        **RATIOS,
    }
    packed(source, root / "plain", **common)
    packed(source, root / "npy", **common, packed_storage="legacy_npy_pickle", num_shards=1)
    packed(source, root / "padded", **common, pad_multiple=MULTIPLE)
    talks = [
        chat(f"how many are {n}?", f"there are {n}", "and then?", f"then {n + 1}")
        for n in range(60)
    ]
    tokenizer = small_tokenizer(root / "tokenizer")
    asked = {**common, "pad_id": None, "tokenizer": tokenizer}
    metadata = packed(
        write_jsonl(root / "chats.jsonl", talks), root / "chats", **asked
    ).manifest.metadata
    (npy,) = (root / "npy" / "splits" / "train").iterdir()
    plain, aligned = f"{root}/plain/splits/train", f"{root}/padded/splits/train"
    whole = {"max_seq_length": SIZE, "pad_to_max_length": True}
    graphs = {
        **whole,
        "pad_cu_seqlens": True,
        "pack_metadata_file_path": f"{root}/padded/packing_metadata.json",
    }
    eos = metadata["encoder"]["pad_id"]
    cases = {
        "parquet": {"path": plain, "options": {"max_seq_length": SIZE}},
        "npy": {"path": str(npy), "options": {"max_seq_length": SIZE}},
        "padded": {"path": aligned, "options": {**whole, "pad_seq_to_mult": MULTIPLE}},
        "graphs": {"path": aligned, "options": {**graphs, "pad_seq_to_mult": MULTIPLE}},
        "whole text": {
            "path": plain,
            "options": {"max_seq_length": SIZE, "answer_only_loss": False},
        },
        "too small": {"path": plain, "options": {"max_seq_length": SIZE // 2}},
        "chats": {
            "path": f"{root}/chats/splits/train",
            "eos_id": eos,
            "options": {"max_seq_length": SIZE},
        },
    }
    line = [sys.executable, megatron_reader.__file__]
    asked = json.dumps([{"eos_id": EOS, **case} for case in cases.values()])
    done = subprocess.run(line, input=asked, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stderr[-2000:]
    return (
        rows,
        {
            "root": root,
            "labels": metadata["packed"]["labels"],
        },
        dict(zip(cases, json.loads(done.stdout), strict=True)),
    )


def bounds(batch, name="cu_seqlens"):
    """Where the sequences of a batch of one bin begin and end; -1 stands behind the last."""
    return [each for each in batch[name][0] if each >= 0]


def fed(batches):
    """The sequences of batches of one bin, each as its inputs, labels and loss mask; the rest of a bin is none."""
    found = Counter()
    for batch in batches:
        for first, end in pairwise(bounds(batch)):
            parts = [tuple(batch[name][0][first:end]) for name in ("tokens", "labels", "loss_mask")]
            if any(token != EOS for token in parts[0]):
                found[tuple(parts)] += 1
    return found


def expected(rows):
    """The same of the rows: all tokens but the last, all but the first, and whether each label is trained."""
    found = Counter()
    for row in rows:
        ids, mask = sequence_of(row)
        found[ids[:-1], ids[1:], mask[:-1]] += 1
    return found


@pytest.mark.parametrize("case", ["parquet", "npy"])
def test_every_sequence_is_fed_once_with_its_labels(seen, case):
    rows, _, batches = seen

    assert expected(rows) == fed(batches[case])
    assert all(
        batch["position_ids"][0][first] == 0
        for batch in batches[case]
        for first in bounds(batch)[:-1]
    )


def test_a_multiple_pads_sequences_that_the_reader_cuts_off_again(seen):
    rows, _, batches = seen
    lengths = Counter()
    for batch in batches["padded"]:
        assert all(end % MULTIPLE == 0 for end in bounds(batch))
        lengths.update(
            end - first
            for first, end in pairwise(bounds(batch, "cu_seqlens_unpadded"))
            if end > first
        )

    # The last token is fed only where padding follows it, and then it has nothing to learn.
    shifted = [len(row["input_ids"]) - 1 for row in rows]
    assert Counter(size + (size % MULTIPLE > 0) for size in shifted) == lengths
    trained = sum(sum(batch["loss_mask"][0]) for batch in batches["padded"])
    assert sum(sum(row["loss_mask"][1:]) for row in rows) == trained


def test_the_metadata_gives_every_batch_one_shape(seen):
    _, about, batches = seen
    records = json.loads((about["root"] / "padded" / "packing_metadata.json").read_text())
    most = max(record["max_samples_per_bin"] for record in records)

    shapes = {
        tuple(len(batch[name][0]) for name in ("tokens", "cu_seqlens"))
        for batch in batches["graphs"]
    }
    assert {
        (SIZE, most + 3)
    } == shapes  # one more for the 0 in front, for the rest of a bin, and for the mark of the end
    (longest,) = {str(batch["max_seqlen"]) for batch in batches["graphs"]}
    real = [end - first for batch in batches["padded"] for first, end in pairwise(bounds(batch))]
    assert max(real) <= json.loads(longest)[0]


def test_answer_only_loss_decides_whether_the_stored_mask_counts(seen):
    rows, _, batches = seen
    trained = sum(sum(batch["loss_mask"][0]) for batch in batches["whole text"])

    assert sum(len(row["input_ids"]) - 1 for row in rows) == trained


def test_a_smaller_packed_sequence_size_stops_the_reader(seen):
    assert seen[2]["too small"].startswith("AssertionError")


def test_no_trained_label_of_chats_is_lost(seen):
    _, about, batches = seen

    assert about["labels"] == sum(sum(batch["loss_mask"][0]) for batch in batches["chats"])
