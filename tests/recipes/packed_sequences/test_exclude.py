"""Rows that overlap a benchmark are left out of the bins and counted, and they are those that `find_leaks` names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from chats import small_tokenizer
from recipe_cases import all_sequences, packed, token_rows, write_jsonl

import headrace
from headrace.errors import InputError, SettingsError
from raised import raised

ITEM = "a farmer sells nine eggs at the market every day for two dollars each how much does he make"
SHORT = "what is the rarest colour"


def chat(text: str) -> dict[str, Any]:
    return {
        "messages": [
            {"role": "user", "content": text},
            {"role": "assistant", "content": "Let us see."},
        ]
    }


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    """Every 7th row holds an item, every 11th a part of one that is too short, one the items of both files."""
    texts = [f"tell me about number {n}" for n in range(150)]
    for n in range(0, 150, 7):
        texts[n] = f"Number {n}: {ITEM.upper()}?"
    for n in range(1, 150, 11):
        texts[n] = f"{n}: {' '.join(ITEM.split()[:12])}"
    texts[35] += f" And {SHORT}?"
    texts[36] = f"So, {SHORT}: \ud83d?"  # half of a surrogate pair
    return write_jsonl(
        tmp_path / "chats.jsonl", [chat(text) | {"task": n // 4} for n, text in enumerate(texts)]
    )


@pytest.fixture
def benchmarks(tmp_path: Path) -> Path:
    directory = tmp_path / "my_eval"
    (directory / "more").mkdir(parents=True)
    (directory / "README.md").write_text(f"{SHORT} is no item\n")
    write_jsonl(
        directory / "farm.jsonl",
        [{"question": ITEM, "answer": 18}, {"question": "how many hens lay an egg"}],
    )
    (directory / "more" / "colours.txt").write_text(f"{SHORT}\n")
    return directory


def manifest(prepared: Any) -> dict[str, Any]:
    return json.loads((prepared.run / "manifest.json").read_bytes())


@pytest.mark.slow
@pytest.mark.parametrize("entity", [None, "task"])
def test_the_rows_that_leaks_names_are_left_out_and_counted(
    tmp_path: Path, chats: Path, benchmarks: Path, entity: str | None
) -> None:
    tokenizer = small_tokenizer(tmp_path / "tokenizer")
    asked = {"tokenizer": tokenizer, "num_shards": 3, "max_bad_share": 1, "entity": entity}
    made = manifest(packed(chats, tmp_path / "out", exclude=benchmarks, **asked))
    kept = [line for line in chats.read_text().splitlines() if "\\ud83d" not in line]
    report = headrace.find_leaks(
        headrace.open(write_jsonl(tmp_path / "sound.jsonl", kept)), against=[benchmarks]
    )
    named = {overlap.location.split(":")[1] for overlap in report.overlaps}

    assert len(named) == 20
    assert made["dropped"]["in_benchmark"] == len(named) + 1
    assert {
        name: (each["items"], each["rows"]) for name, each in made["metadata"]["benchmarks"].items()
    } == {
        "my_eval/farm.jsonl": (2, len(named)),
        "my_eval/more/colours.txt": (1, 2),
    }
    assert headrace.verify(tmp_path / "out").problems == []

    left = [row for n, row in enumerate(kept) if str(n) not in named]
    rest = write_jsonl(tmp_path / "left.jsonl", left)
    assert headrace.find_leaks(headrace.open(rest), against=[benchmarks]).overlaps == ()
    packed(rest, tmp_path / "rest", **asked)
    assert all_sequences(tmp_path / "out") == all_sequences(tmp_path / "rest")
    assert all_sequences(tmp_path / "out").total() == 150 - 21


def test_the_benchmark_is_in_the_identity_by_name_and_content_not_by_path(
    tmp_path: Path, chats: Path, benchmarks: Path
) -> None:
    asked = {"blend": chats, "tokenizer": small_tokenizer(tmp_path / "tokenizer")}
    plain = headrace.PackedSequences(**asked).identity_settings()
    assert not {"exclude", "exclude_ngram"} & set(plain)  # runs of before keep their ids

    once = headrace.PackedSequences(**asked, exclude=benchmarks).identity_settings()
    (tmp_path / "elsewhere").mkdir()
    moved = benchmarks.rename(tmp_path / "elsewhere" / "my_eval")
    assert once == headrace.PackedSequences(**asked, exclude=[moved]).identity_settings()
    assert str(tmp_path) not in json.dumps(once["exclude"])
    assert (
        once
        != headrace.PackedSequences(**asked, exclude=[moved], exclude_ngram=8).identity_settings()
    )
    (moved / "more" / "colours.txt").write_text(f"{SHORT} of all\n")
    assert once != headrace.PackedSequences(**asked, exclude=[moved]).identity_settings()


def test_what_cannot_be_compared_is_refused(tmp_path: Path, chats: Path, benchmarks: Path) -> None:
    tokens = write_jsonl(tmp_path / "tokens.jsonl", token_rows(10))
    with raised(InputError, setting="exclude", remedy="exclude rows of text"):
        packed(tokens, tmp_path / "out", exclude=benchmarks)
    with pytest.raises(InputError, match="no such file or directory"):
        packed(tokens, tmp_path / "out", exclude=tmp_path / "missing.txt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no file of items"):
        packed(tokens, tmp_path / "out", exclude=tmp_path / "empty")
    for name in ("a", "b"):
        write_jsonl(tmp_path / name / "test.jsonl", [{"question": ITEM}])
    with raised(SettingsError, path=tmp_path / "b/test.jsonl", remedy="rename one of them"):
        packed(
            tokens, tmp_path / "out", exclude=[tmp_path / "a/test.jsonl", tmp_path / "b/test.jsonl"]
        )
