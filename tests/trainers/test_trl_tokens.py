"""TRL's trainers on prompts and answers that are tokens already."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

pytest.importorskip("trl", reason="needs trl")

from chats import small_tokenizer
from test_hf import on_ranks

import headrace

ROWS = 12
RATIOS = {"train_ratio": 0.8, "val_ratio": 0.1, "test_ratio": 0.1}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def rows_of_split(folder: Path, split: str = "train") -> list[dict[str, Any]]:
    return pq.read_table(folder / "splits" / split).to_pylist()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> dict[str, Path]:
    """A run of each kind."""
    folder = tmp_path_factory.mktemp("rows")
    asked = [[{"role": "user", "content": f"question {number}"}] for number in range(ROWS)]
    rows = {
        "pairs": [
            {"prompt": each, "chosen": f"yes {n}", "rejected": "maybe no"}
            for n, each in enumerate(asked)
        ],
        "judged": [
            {"prompt": each, "completion": f"yes {n}", "label": n % 2 == 0}
            for n, each in enumerate(asked)
        ],
        "prompts": [
            {"prompt": each, "reward_model": {"ground_truth": str(n)}}
            for n, each in enumerate(asked)
        ],
    }
    for kind, each in rows.items():
        (folder / f"{kind}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in each))
        recipe = headrace.Preferences(
            blend=folder / f"{kind}.jsonl", tokenizer=tokenizer, kind=kind, **RATIOS
        )
        headrace.prepare(recipe, folder / kind)
    return {kind: folder / kind for kind in rows}


def unpadded(batch: dict[str, Any], prefix: str = "") -> list[tuple[list[int], list[int]]]:
    """Prompt and answer of each sequence of a batch."""
    columns = (
        batch[f"{prefix}{name}"] for name in ("input_ids", "attention_mask", "completion_mask")
    )
    found = []
    for ids, there, answer in zip(*columns, strict=True):
        kept = [(token, part) for token, real, part in zip(ids, there, answer, strict=True) if real]
        found.append(
            ([token for token, part in kept if not part], [token for token, part in kept if part])
        )
    return found


@pytest.mark.slow
def test_dpo_and_kto_train_on_the_tokens_as_they_are(
    prepared: dict[str, Path], tokenizer: Path, tmp_path: Path
) -> None:
    common = {"call": "tokenised", "tokenizer": str(tokenizer)}
    runs = [
        {**common, "data": str(prepared["pairs"]), "folder": str(tmp_path / "dpo"), "kind": "DPO"},
        {**common, "data": str(prepared["judged"]), "folder": str(tmp_path / "kto"), "kind": "KTO"},
        {"call": "generated", "data": str(prepared["prompts"]), "folder": str(tmp_path / "grpo"), "tokenizer": str(tokenizer)},
    ]  # fmt: skip

    (dpo,), (kto,), (grpo,) = on_ranks(tmp_path, 1, *runs)

    pairs, judged = rows_of_split(prepared["pairs"]), rows_of_split(prepared["judged"])
    expected = [
        (row["prompt_ids"], row[name]) for row in pairs for name in ("chosen_ids", "rejected_ids")
    ]
    assert sorted(expected) == sorted(each for batch in dpo["batches"] for each in unpadded(batch))
    assert len(pairs) / 2 == dpo["steps"] == len(dpo["batches"])
    assert 0 < dpo["loss"] < 10

    answers = [(row["prompt_ids"], row["completion_ids"]) for row in judged]
    assert sorted(answers) == sorted(each for batch in kto["batches"] for each in unpadded(batch))
    for batch in kto["batches"]:
        (one, two), others = unpadded(batch), unpadded(batch, "KL_")
        assert [(one[0], two[1]), (two[0], one[1])] == others
        labels = {tuple(row["completion_ids"]): row["label"] for row in judged}
        assert [labels[tuple(answer)] for _, answer in (one, two)] == batch["label"]

    truths = {row["prompt"][0]["content"]: row["reward_model"]["ground_truth"] for row in rows_of_split(prepared["prompts"])}  # fmt: skip
    assert 2 == grpo["steps"]
    assert all(truths[prompt[0]["content"]] == truth for prompts, told in grpo["told"] for prompt, truth in zip(prompts, told, strict=True))  # fmt: skip


@pytest.mark.slow
def test_the_tokens_are_those_that_trl_prepares(
    prepared: dict[str, Path], tokenizer: Path, tmp_path: Path
) -> None:
    """TRL keeps what the template writes behind the end of an answer; it is the line break here, which nobody says."""
    ((found,),) = on_ranks(tmp_path, 1, {"call": "prepared_by_trl", "data": str(prepared["pairs"].with_suffix(".jsonl")), "folder": str(tmp_path / "o"), "tokenizer": str(tokenizer)})  # fmt: skip

    rows, line_break = found
    own = {tuple(row["prompt_ids"]): row for split in ("train", "val", "test") for row in rows_of_split(prepared["pairs"], split)}  # fmt: skip
    assert ROWS == len(rows) == len(own)
    for row in rows:
        mine = own[tuple(row["prompt_ids"])]
        assert (row["chosen_ids"], row["rejected_ids"]) == tuple(
            mine[name] + line_break for name in ("chosen_ids", "rejected_ids")
        )
