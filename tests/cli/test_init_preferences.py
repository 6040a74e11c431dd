"""`headrace init preferences` writes configurations that run and verify as they are, for every kind of rows."""

import json
from pathlib import Path
from typing import Any

import pytest
from chats import small_tokenizer
from written_configs import read_again

import headrace
from headrace.cli.init.look import Data
from headrace.cli.init.options import InitPreferencesOptions
from headrace.errors import SettingsError
from headrace.packing.preferences.init import preference_sections

ASKED = [f"what is {n} plus {n % 7} ?" for n in range(100)]
GOOD, BAD = [f"it is {n + n % 7}" for n in range(100)], "no idea"


def turn(role: str, text: str) -> list[dict[str, str]]:
    return [{"role": role, "content": text}]


PAIRS = [
    {
        "prompt": turn("user", asked),
        "chosen": turn("assistant", good),
        "rejected": turn("assistant", BAD),
        "score": 1,
    }
    for asked, good in zip(ASKED, GOOD, strict=True)
]
WHOLE = [{name: [*row["prompt"], *row[name]] for name in ("chosen", "rejected")} for row in PAIRS]
NAMED = [
    {"input": asked, "answer_chosen": good, "answer_rejected": BAD}
    for asked, good in zip(ASKED, GOOD, strict=True)
]
JUDGED = [{"prompt": row["prompt"], "completion": row["chosen"], "label": True} for row in PAIRS]
LIKED = [
    {"query": a, "answer": b, "liked": n % 3 > 0}
    for n, (a, b) in enumerate(zip(ASKED, GOOD, strict=True))
]
PROMPTS = [
    {"data_source": "sums", "prompt": turn("user", asked), "truth": good}
    for asked, good in zip(ASKED, GOOD, strict=True)
]
QUESTIONS = [{"problem": asked, "truth": good} for asked, good in zip(ASKED, GOOD, strict=True)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def written(path: Path, rows: list[Any]) -> Path:
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    )
    return path


def configured(
    source: Path, out: Path, tokenizer: Path | None, **asked: Any
) -> tuple[dict[str, Any], str]:
    given = None if tokenizer is None else str(tokenizer)
    return read_again(
        preference_sections(
            InitPreferencesOptions([str(source)], str(out), given, **asked), Data([source])
        )[0]
    )


def prepare(record: dict[str, Any], **more: Any) -> headrace.types.Prepared:
    settings = {
        name: value for name, value in record.items() if name not in ("recipe", "out")
    } | more
    run = headrace.prepare(headrace.Preferences(**settings), str(record["out"]))

    assert headrace.verify(run.run).problems == []
    return run


@pytest.mark.slow
@pytest.mark.smoke("named", "judged", "prompts")
@pytest.mark.parametrize(
    ("rows", "kind", "mapping"),
    [
        (PAIRS, "pairs", {}),
        (WHOLE, "pairs", {}),
        (
            NAMED,
            "pairs",
            {"prompt": "input", "chosen": "answer_chosen", "rejected": "answer_rejected"},
        ),
        (JUDGED, "judged", {}),
        (LIKED, "judged", {"prompt": "query", "completion": "answer", "label": "liked"}),
        (PROMPTS, "prompts", {}),
        (QUESTIONS, "prompts", {"prompt": "problem"}),
    ],
    ids=["pairs", "whole", "named", "judged", "liked", "prompts", "questions"],
)
def test_every_kind_runs(
    rows: list[Any], kind: str, mapping: dict[str, str], tokenizer: Path, tmp_path: Path
) -> None:
    record, text = configured(written(tmp_path / "rows.jsonl", rows), tmp_path / "out", tokenizer)
    run = prepare(record)

    assert (kind, mapping) == (record["kind"], record["blend"]["datasets"][0].get("mapping", {}))
    assert "counted with this tokenizer" in text
    assert 100 == sum(run.manifest.metadata["source_rows"].values())


def test_the_kind_that_is_asked_for_is_written(tokenizer: Path, tmp_path: Path) -> None:
    record, text = configured(
        written(tmp_path / "a.jsonl", PAIRS), tmp_path / "out", tokenizer, kind="prompts"
    )

    assert "as asked" in text
    assert "prompts" == record["kind"]


def test_columns_that_are_not_read_are_proposed(tmp_path: Path) -> None:
    record, text = configured(written(tmp_path / "a.jsonl", PAIRS), tmp_path / "out", None)

    assert "columns: [score]" in text
    assert "NOT SET" in text
    assert "tokenizer" not in record


@pytest.mark.slow
def test_bad_rows_are_counted_and_allowed(tokenizer: Path, tmp_path: Path) -> None:
    bad = {**PAIRS[0], "chosen": None}
    record, text = configured(
        written(tmp_path / "a.jsonl", [*PAIRS, bad, "{"]), tmp_path / "out", tokenizer
    )
    run = prepare(record)

    assert "2 of the 102 rows" in text
    assert 100 == sum(run.manifest.metadata["source_rows"].values())


@pytest.mark.slow
def test_files_named_after_splits_stay_in_them(tokenizer: Path, tmp_path: Path) -> None:
    source = tmp_path / "raw"
    source.mkdir()
    written(source / "train.jsonl", PAIRS[:80])
    written(source / "test.jsonl", PAIRS[80:])
    record, _ = configured(source, tmp_path / "out", tokenizer)

    assert {"train", "test"} == set(record["blend"])
    assert {"train": 80, "test": 20} == prepare(record).manifest.metadata["source_rows"]


@pytest.mark.parametrize("rows", [[{"a": 1}], ["{"], [{"chosen": "a", "rejected": "b"}]])
def test_unknown_rows_are_refused(rows: list[Any], tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"a\.jsonl: "):
        configured(written(tmp_path / "a.jsonl", rows), tmp_path / "out", None)
