"""`where` and `seen` of packed runs go down to a conversation, in however many bins its pieces lie."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from chats import small_tokenizer
from recipe_cases import packed, token_rows, write_jsonl
from typer.testing import CliRunner

import headrace
from headrace.cli import app

STREAM = {"batch_size": 4, "shuffle": True, "seed": 5}


def long_chats(count: int) -> list[dict]:
    return [
        {
            "messages": [
                {
                    "role": role,
                    "content": f"{number} {turn} " + "a question about apples " * (number % 4),
                }
                for turn in range(1 + number % 9)
                for role in ("user", "assistant")
            ]
        }
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One dataset, whose long chats are cut into pieces."""
    folder = tmp_path_factory.mktemp("traces")
    source = write_jsonl(folder / "chats.jsonl", long_chats(160))
    tokenizer = small_tokenizer(folder / "tokenizer")
    packed(
        source,
        folder / "out",
        tokenizer=tokenizer,
        too_long="turns",
        trace="always",
        pack_size=256,
        reader="headrace",
        row_group_bins=4,
    )
    return folder / "out"


def bins_of_rows(out: Path) -> dict[str, list[int]]:
    """The bins of train that hold a piece of each source row, by a plain loop over the files."""
    found: dict[str, list[int]] = {}
    begin = 0
    for path in sorted((out / "splits/train").iterdir()):
        table = pq.read_table(path)
        for number, bin_ in enumerate(table.to_pylist()):
            for source, row in {*zip(bin_["source"], bin_["source_row"], strict=True)}:
                found.setdefault(f"{source}:{row}", []).append(begin + number)
        begin += len(table)
    return found


def test_the_index_has_every_bin_of_every_conversation(out: Path, tmp_path: Path) -> None:
    expected = bins_of_rows(out)
    index = headrace.open(out, cache_dir=tmp_path).entity_index()

    which, rows = index.rows_of("train", list(expected))
    assert list(expected.values()) == [
        rows[which == number].tolist() for number in range(len(expected))
    ]
    assert (len(expected), sum(map(len, expected.values()))) == index.count("train")
    assert max(map(len, expected.values())) > 1  # a chat in several bins


def test_where_and_seen_name_the_steps_of_a_conversation(
    out: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    name, bins = max(bins_of_rows(out).items(), key=lambda each: len(each[1]))
    loader = headrace.open(out).stream(
        "train", columns=["source", "source_row"], packed="off", **STREAM
    )
    steps = []
    for step, batch in enumerate(loader):
        if step == 3:
            (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
        for sources, rows in zip(batch["source"], batch["source_row"], strict=True):
            steps += [step] * (
                name in {f"{one}:{row}" for one, row in zip(sources, np.asarray(rows), strict=True)}
            )

    told = CliRunner().invoke(app, ["where", str(out), "--split", "train", "--entity", name, "--ranks", "1", "--batch-size", "4", "--seed", "5", "--json"])  # fmt: skip
    found = json.loads(told.stdout)["entities"][name]
    assert (len(bins), sorted(steps)) == (
        found["rows"],
        sorted(each["step"] for each in found["deliveries"]),
    )

    told = CliRunner().invoke(
        app, ["where", str(out), "--seen", str(tmp_path / "state.json"), "--entity", name, "--json"]
    )
    assert sum(step <= 3 for step in steps) == json.loads(told.stdout)["entities"][name]["received"]


def test_bins_without_traces_have_the_same_tokens_and_say_how_to_get_them(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "rows.jsonl", token_rows(60))
    plain, traced = (packed(source, tmp_path / each, trace=each) for each in ("blends", "always"))

    for split in ("train", "valid", "test"):
        for one, other in zip(
            *(sorted((run.out / "splits" / split).iterdir()) for run in (plain, traced)),
            strict=True,
        ):
            assert pq.read_table(one).equals(
                pq.read_table(other).select(["input_ids", "loss_mask", "seq_start_id"])
            )
    assert headrace.verify(tmp_path / "always").problems == []
    told = CliRunner().invoke(
        app,
        [
            "where",
            str(plain.out),
            "--split",
            "train",
            "--entity",
            "x:1",
            "--ranks",
            "1",
            "--batch-size",
            "4",
        ],
    )
    assert "does not record the entity of its rows" in str(told.exception)
