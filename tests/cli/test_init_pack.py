"""`headrace init pack` writes configurations that run and verify as they are, whatever layout the chats have."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from chats import small_tokenizer
from typer.testing import CliRunner
from written_configs import read_again

import headrace
from headrace.cli import app
from headrace.cli.init.look import Data
from headrace.cli.init.options import InitPackOptions
from headrace.errors import HeadraceError, InputError
from headrace.packing.init import pack_sections

DATA = Path(__file__).parents[3] / "shared" / "data"
ASKED = [f"what is {n} plus {n % 7} ?" for n in range(120)]
SAID = [f"it is {n + n % 7}" for n in range(120)]


def talk(
    asked: str, said: str, role: str = "role", content: str = "content"
) -> list[dict[str, str]]:
    return [{role: "user", content: asked}, {role: "assistant", content: said}]


def written(path: Path, rows: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    path.write_text(text)
    return path


def configured(source: Path, out: Path, tokenizer: Path | None) -> tuple[dict[str, Any], str]:
    asked = InitPackOptions([str(source)], str(out), None if tokenizer is None else str(tokenizer))
    sections, _ = pack_sections(asked, Data(asked.source))
    return read_again(sections)


def prepare(record: dict[str, Any], **more: Any) -> headrace.types.Prepared:
    settings = {
        name: value for name, value in record.items() if name not in ("recipe", "out")
    } | more
    run = headrace.prepare(headrace.PackedSequences(**settings), str(record["out"]))

    assert headrace.verify(run.run).problems == []
    return run


def rows_in(run: headrace.types.Prepared) -> int:
    return sum(run.manifest.metadata["source_rows"].values())


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.mark.slow
@pytest.mark.smoke("rows2-messages-mapping2")
@pytest.mark.parametrize(
    ("rows", "layout", "mapping"),
    [
        ([{"messages": talk(*each)} for each in zip(ASKED, SAID, strict=True)], "messages", {}),
        ([{"chat": talk(*each)} for each in zip(ASKED, SAID, strict=True)], "messages", {"messages": "chat"}),
        ([{"turns": json.dumps(talk(*each, "who", "said"))} for each in zip(ASKED, SAID, strict=True)], "messages", {"messages": "turns", "role": "who", "content": "said"}),
        ([{"problem": a, "solution": b} for a, b in zip(ASKED, SAID, strict=True)], "question_answer", {"user": "problem", "assistant": "solution"}),
        ([{"instruction": a, "context": "", "response": b} for a, b in zip(ASKED, SAID, strict=True)], "instruction", {"input": "context", "output": "response"}),
        ([{"question": a, "answer": b} for a, b in zip(ASKED, SAID, strict=True)], "question_answer", {}),
        ([{"number": n, "body": a + b} for n, (a, b) in enumerate(zip(ASKED, SAID, strict=True))], "text", {"text": "body"}),
        ([{"ids": [1, 2, 3, n]} for n in range(120)], "tokens", {"input_ids": "ids"}),
    ],
)  # fmt: skip
def test_any_layout_runs(
    rows: list[Any], layout: str, mapping: dict[str, str], tokenizer: Path, tmp_path: Path
) -> None:
    source = written(tmp_path / "raw" / "chats.jsonl", rows)
    record, text = configured(source, tmp_path / "out", None if layout == "tokens" else tokenizer)

    assert f"layout {layout}" in text
    assert mapping == record["blend"]["datasets"][0].get("mapping", {})
    assert 120 == rows_in(prepare(record))


def test_columns_that_are_not_read_are_named(tokenizer: Path, tmp_path: Path) -> None:
    rows = [
        {"problem": a, "solution": b, "hint": "none", "tools": []}
        for a, b in zip(ASKED, SAID, strict=True)
    ]
    _, text = configured(written(tmp_path / "a.jsonl", rows), tmp_path / "out", tokenizer)

    assert "mapping says which column is which; not read: hint, with tools beside." in text.replace(
        "\n# ", " "
    )


@pytest.mark.slow
def test_bins_are_as_large_as_almost_all_chats_need(tokenizer: Path, tmp_path: Path) -> None:
    rows = [{"text": f"{n} " + "word " * 6000} for n in range(10)] + [
        {"text": f"{n} few words"} for n in range(90)
    ]
    record, text = configured(written(tmp_path / "a.jsonl", rows), tmp_path / "out", tokenizer)
    run = prepare(record)

    assert record["pack_size"] in (8192, 16384, 32768, 65536)
    assert "0 of 100 looked at are longer" in text
    assert 100 == rows_in(run)


def test_without_a_tokenizer_lengths_are_estimated_and_one_is_asked_for(
    tokenizer: Path, tmp_path: Path
) -> None:
    source = written(
        tmp_path / "a.jsonl",
        [{"question": a, "answer": b} for a, b in zip(ASKED, SAID, strict=True)],
    )
    record, text = configured(source, tmp_path / "out", None)

    assert "tokenizer" not in record
    assert "NOT SET" in text
    assert "estimated, 4 characters a token" in text
    assert 120 == rows_in(prepare(record, tokenizer=tokenizer))


@pytest.mark.slow
def test_files_and_columns_that_name_splits_are_kept_apart(tokenizer: Path, tmp_path: Path) -> None:
    rows = [{"question": a, "answer": b, "split": "test" if n % 4 == 0 else "train"} for n, (a, b) in enumerate(zip(ASKED, SAID, strict=True))]  # fmt: skip
    written(tmp_path / "files" / "train.jsonl", rows[:100])
    written(tmp_path / "files" / "dev-1.jsonl", rows[100:])
    written(tmp_path / "column" / "all.jsonl", rows)
    by_file, _ = configured(tmp_path / "files", tmp_path / "out-1", tokenizer)
    by_column, _ = configured(tmp_path / "column", tmp_path / "out-2", tokenizer)

    assert {"train": 100, "valid": 20} == prepare(by_file).manifest.metadata["source_rows"]
    assert {"train": 90, "test": 30} == prepare(by_column).manifest.metadata["source_rows"]


def test_splits_of_names_that_cannot_be_kept_apart_are_refused(
    tokenizer: Path, tmp_path: Path
) -> None:
    rows = [{"question": a, "answer": b} for a, b in zip(ASKED, SAID, strict=True)]
    written(tmp_path / "raw" / "val.jsonl", rows[:60])
    written(tmp_path / "raw" / "test.jsonl", rows[60:])

    with pytest.raises(InputError, match="holds several splits, val, test"):
        configured(tmp_path / "raw", tmp_path / "out", tokenizer)


@pytest.mark.slow
def test_bad_rows_are_told_and_do_not_end_the_run(tokenizer: Path, tmp_path: Path) -> None:
    rows = [{"question": a, "answer": b} for a, b in zip(ASKED, SAID, strict=True)]
    source = written(
        tmp_path / "a.jsonl",
        [*rows[:60], "{broken", *rows[60:], {"question": "and this one?"}, "[]"],
    )
    record, text = configured(source, tmp_path / "out", tokenizer)

    assert (
        "3 of the 123 rows looked at give no sequence: broken_json 1; not_an_object 1; unknown_layout 1"
        in text
    )
    assert "a.jsonl: line 61" in text
    assert 120 == rows_in(prepare(record))


@pytest.mark.slow
def test_an_empty_file_does_not_matter_and_two_rows_train(tokenizer: Path, tmp_path: Path) -> None:
    written(tmp_path / "raw" / "a.jsonl", [{"question": a, "answer": b} for a, b in zip(ASKED[:2], SAID[:2], strict=True)])  # fmt: skip
    written(tmp_path / "raw" / "b.jsonl", [])
    record, _ = configured(tmp_path / "raw", tmp_path / "out", tokenizer)

    assert {"train": 2} == {
        name: rows
        for name, rows in prepare(record).manifest.metadata["source_rows"].items()
        if rows
    }


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (
            [{"a": "x", "b": "y", "c": "z"}] * 3,
            "none of the columns is known to hold chats; there are .*write a blend",
        ),
        ([{"n": 1}] * 3, "none of the columns is known"),
        ([], "holds no rows; give data"),
        (["nothing", "of it"], "no row is a JSON object"),
    ],
)
def test_what_cannot_be_told_is_asked_for(rows: list[Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(HeadraceError, match=words):
        configured(written(tmp_path / "a.jsonl", rows), tmp_path / "out", None)


def test_the_command_says_how_to_go_on(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(
        tmp_path / "a.jsonl",
        [{"question": a, "answer": b} for a, b in zip(ASKED, SAID, strict=True)],
    )
    Path("blend.json").write_text(json.dumps({"datasets": [{"name": "a", "path": "a.jsonl"}]}))
    runner = CliRunner()
    made = runner.invoke(app, ["init", "pack", "a.jsonl", "--out", "out", "--config", "p.yaml"])
    done = runner.invoke(app, ["run", "p.yaml", "--set", f"tokenizer={tokenizer}", "--json"])

    assert "headrace run p.yaml --set tokenizer=DIRECTORY" in made.output
    assert 0 == done.exit_code
    refused = runner.invoke(
        app, ["init", "pack", "blend.json", "--out", "out", "--config", "q.yaml"]
    )
    assert "is a blend file already" in str(refused.exception)


@pytest.mark.skipif(not DATA.exists(), reason="the real data is not beside this checkout")
def test_real_chats_of_several_layouts_are_told(tmp_path: Path) -> None:
    record, text = configured(DATA / "job5-llamafactory-demos", tmp_path / "out", None)

    for layout in ("conversations", "messages", "instruction"):
        assert f"{layout} " in text.split("each detected row by row (")[1].split(")")[0]
    assert "datasets" in record["blend"]


@pytest.mark.slow
@pytest.mark.skipif(not DATA.exists(), reason="the real data is not beside this checkout")
def test_real_questions_run_as_they_are(tokenizer: Path, tmp_path: Path) -> None:
    for name in ("train", "test"):
        lines = gzip.decompress(
            (DATA / "job5-gsm8k" / f"{name}.jsonl.gz").read_bytes()
        ).splitlines()[:150]
        written(tmp_path / "raw" / f"{name}.jsonl", [json.loads(line) for line in lines])
    record, _ = configured(tmp_path / "raw", tmp_path / "out", tokenizer)

    assert {"train": 150, "test": 150} == prepare(record).manifest.metadata["source_rows"]
