"""Real chats, packed with a real tokenizer: GSM8K (openai, MIT) and the demonstration sets of LLaMA-Factory.

Five layouts, two languages, tools and reasoning; every row goes through, every token is accounted for.
"""

import gzip
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from chats import DEMOS, GSM8K, QWEN, needs_data
from tokenizers import Tokenizer

import headrace
from headrace.run.prepare import Prepared

MIXED = sorted(DEMOS.glob("*.gz"))
FULL = {"train_ratio": 1, "val_ratio": 0, "test_ratio": 0, "algorithm": "exact_fit_shuffle"}
IM_START, IM_END = "<|im_start|>", "<|im_end|>"


@pytest.fixture(scope="module")
def gsm8k(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    recipe = headrace.PackedSequences(
        blend=GSM8K / "train.jsonl.gz", tokenizer=QWEN, num_shards=2, **FULL
    )
    return headrace.prepare(recipe, tmp_path_factory.mktemp("gsm8k") / "out")


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    recipe = headrace.PackedSequences(blend=MIXED, tokenizer=QWEN, too_long="drop", **FULL)
    return headrace.prepare(recipe, tmp_path_factory.mktemp("mixed") / "out")


def read(run: Prepared) -> list[tuple[np.ndarray, np.ndarray]]:
    """(ids, label mask) of every sequence."""
    found = []
    for shard in sorted((run.out / "splits" / "train").iterdir()):
        table = pq.read_table(shard)
        for ids, mask, starts in zip(
            *(table[name] for name in ("input_ids", "loss_mask", "seq_start_id")), strict=True
        ):
            ids, mask, starts = (
                ids.values.to_numpy(),
                mask.values.to_numpy(),
                starts.values.to_numpy(),
            )
            found += list(zip(np.split(ids, starts[1:]), np.split(mask, starts[1:]), strict=True))
    return found


@pytest.mark.slow
@needs_data
def test_every_question_and_answer_of_gsm8k_is_in_the_bins_once(gsm8k: Prepared) -> None:
    data = json.loads(gzip.decompress((QWEN / "tokenizer.json.gz").read_bytes()))
    tokenizer = Tokenizer.from_str(json.dumps(data))
    rows = [
        json.loads(line)
        for line in gzip.decompress((GSM8K / "train.jsonl.gz").read_bytes()).splitlines()
    ]
    found: Counter[tuple[str, str]] = Counter()
    sequences = read(gsm8k)
    texts = tokenizer.decode_batch(
        [ids.tolist() for ids, _ in sequences], skip_special_tokens=False
    )
    trained = tokenizer.decode_batch(
        [ids[1:][mask[:-1] == 1].tolist() for ids, mask in sequences], skip_special_tokens=False
    )
    for text, answer in zip(texts, trained, strict=True):
        question = text.split(f"{IM_START}user\n")[1].split(f"{IM_END}\n")[0]
        found[question, answer] += 1

    # The template opens every last answer with an empty thought, which the model is trained on as well.
    thought = "<think>\n\n</think>\n\n"
    assert (
        Counter(
            (row["question"], f"{thought}{row['answer'].strip(chr(10))}{IM_END}") for row in rows
        )
        == found
    )


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize("which", ["gsm8k", "mixed"])
def test_nothing_is_rejected_and_every_token_is_accounted_for(
    which: str, request: pytest.FixtureRequest
) -> None:
    run: Prepared = request.getfixturevalue(which)
    metadata, manifest = run.manifest.metadata, run.manifest

    sequences = read(run)
    assert sum(len(ids) for ids, _ in sequences) == metadata["packed"]["tokens"]
    assert sum(int(mask.sum()) for _, mask in sequences) == metadata["packed"]["labels"]
    for name in ("tokens", "labels"):
        lost = sum(loss[name] for loss in metadata["lost"].values())
        assert metadata["encoded"][f"encoded_{name}"] == metadata["packed"][name] + lost
    assert {} == {
        reason: rows for reason, rows in manifest.dropped.items() if rows and reason != "too_long"
    }
    assert (
        manifest.source["rows"] == metadata["source_rows"]["train"] + manifest.dropped["too_long"]
    )
    assert headrace.verify(run.out).problems == []


@needs_data
@pytest.mark.parametrize(("which", "bound"), [("gsm8k", 357), ("mixed", 154)])
def test_bins_are_full(which: str, bound: int, request: pytest.FixtureRequest) -> None:
    run: Prepared = request.getfixturevalue(which)

    (group,) = run.manifest.metadata["groups"]
    assert group["metrics"]["fill"] >= 0.995
    assert (bound, bound) == (group["metrics"]["bound"], group["bins"])


@pytest.mark.slow
@needs_data
def test_the_one_row_too_long_is_named_with_its_line(mixed: Prepared) -> None:
    (listed,) = [
        json.loads(line) for line in (mixed.out / "rejected.jsonl").read_text().splitlines()
    ]

    assert "too_long" == listed["reason"]
    assert "tokens" in listed["detail"]


@needs_data
def test_tokenizer_and_template_are_part_of_the_identity(tmp_path: Path, gsm8k: Prepared) -> None:
    recipe = headrace.PackedSequences(
        blend=GSM8K / "train.jsonl.gz", tokenizer=QWEN, num_shards=2, **FULL
    )
    other = recipe.model_copy(
        update={"chat_template": "{% for message in messages %}{{ message.content }}{% endfor %}"}
    )

    assert recipe.identity_settings() == gsm8k_settings(gsm8k)
    assert recipe.identity_settings()["encoder"] != other.identity_settings()["encoder"]


def gsm8k_settings(run: Prepared) -> dict:
    config = json.loads((run.run / "config.json").read_bytes())
    config.pop("recipe")
    return headrace.PackedSequences(**config).identity_settings()


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize(("reasoning", "more"), [("template", 0), ("every_user_turn", 1)])
def test_rows_may_give_several_sequences_that_stay_in_one_split(
    tmp_path: Path, reasoning: str, more: int
) -> None:
    (path,) = DEMOS.glob("reason*")
    recipe = headrace.PackedSequences(
        blend=path,
        tokenizer=QWEN,
        pack_size=16384,
        reasoning=reasoning,
        train_ratio=0.5,
        val_ratio=0.3,
        test_ratio=0.2,
    )
    run = headrace.prepare(recipe, tmp_path / "out")

    metadata = run.manifest.metadata
    assert {"train": 27, "valid": 14, "test": 9} == metadata["source_rows"]
    assert metadata["duplicates"]["same_content"] == 3  # three users ask what another has asked
    assert (metadata["packed"]["sequences"] > 50) == bool(more)
    assert headrace.verify(run.out).problems == []
