"""`headrace peek --mask`: what is trained is seen in colours, in brackets and as JSON."""

import json
from pathlib import Path

import pytest
from chats import chat, small_tokenizer
from typer.testing import CliRunner

import headrace
from headrace.cli import app
from headrace.errors import SettingsError


@pytest.fixture
def place(tmp_path: Path) -> Path:
    rows = [
        json.dumps(chat("question", "answer\nof two lines")),
        "no json",
        json.dumps({"q": "x", "a": "y"}),
    ]
    (tmp_path / "chats.jsonl").write_text("\n".join(rows))
    small_tokenizer(tmp_path / "tokenizer")
    return tmp_path


def peek(place: Path, *more: object, **environment: str):
    command = ["peek", place / "chats.jsonl", "--mask", "--tokenizer", place / "tokenizer", *more]
    return CliRunner(env={"NO_COLOR": None, "FORCE_COLOR": None, **environment}).invoke(
        app, [*map(str, command)]
    )


def test_pipes_show_brackets_and_places(place):
    done = peek(place)

    assert done.exit_code == 0, done.output
    assert (
        "<|im_start|>user\nquestion<|im_end|>\n<|im_start|>assistant\n⟦answer\nof two lines<|im_end|>⟧"
        in done.output
    )
    assert "chats.jsonl: line 1: " in done.output
    assert "chats.jsonl: line 2: rejected, broken_json: " in done.output
    assert "chats.jsonl: line 3: rejected, unknown_layout: " in done.output
    assert "\x1b" not in done.output


def test_terminals_show_colours_unless_none_are_wanted(place):
    coloured = peek(place, FORCE_COLOR="1", TERM="xterm-256color").output
    without = peek(place, FORCE_COLOR="1", TERM="xterm-256color", NO_COLOR="1").output

    assert "\x1b[1;32manswer\x1b[0m\n\x1b[1;32mof two lines<|im_end|>\x1b[0m" in coloured
    assert "⟦" not in coloured
    assert "⟦answer\nof two lines<|im_end|>⟧" in without


def test_json_has_the_same_parts(place):
    done = peek(place, "--mapping", "user=q,assistant=a", "--rows", "3", "--json")
    first, second, third = json.loads(done.output)["rows"]

    (sequence,) = third["sequences"]
    assert ("chats.jsonl", 3) == (third["file"], third["line"])
    assert ["y<|im_end|>"] == [part["text"] for part in sequence["parts"] if part["trained"]]
    assert "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\ny<|im_end|>\n" == "".join(part["text"] for part in sequence["parts"])  # fmt: skip
    assert 0 < sequence["trained_tokens"] < sequence["tokens"]
    assert ["unknown_layout", "broken_json"] == [first["rejected"], second["rejected"]]


@pytest.mark.slow
def test_as_many_rows_as_asked_over_files(place):
    (place / "chats.jsonl").rename(place / "b.jsonl")
    (place / "a.jsonl").write_text(json.dumps(chat("q", "a")))
    command = [
        "peek",
        str(place / "*.jsonl"),
        "--mask",
        "--tokenizer",
        str(place / "tokenizer"),
        "--json",
    ]
    for rows, expected in ((1, [("a.jsonl", 1)]), (2, [("a.jsonl", 1), ("b.jsonl", 1)]), (9, [("a.jsonl", 1), ("b.jsonl", 1), ("b.jsonl", 2), ("b.jsonl", 3)])):  # fmt: skip
        done = CliRunner().invoke(app, [*command, "--rows", str(rows)])

        assert expected == [(row["file"], row["line"]) for row in json.loads(done.output)["rows"]]


@pytest.mark.parametrize(
    ("command", "setting"),
    [
        (["--mask"], "tokenizer"),
        (["--tokenizer", "x"], "tokenizer"),
        (["--mask", "--tokenizer", "x", "--layout", "sharegpt"], "layout"),
        (["--mask", "--tokenizer", "nowhere"], "tokenizer"),
    ],
)
def test_a_wrong_command_names_the_setting(place, command, setting):
    done = CliRunner().invoke(app, ["peek", str(place / "chats.jsonl"), *command])

    assert isinstance(done.exception, SettingsError)
    assert done.exception.setting == setting


def test_a_mapping_is_pairs(place):
    command = ["peek", str(place / "chats.jsonl"), "--mask", "--tokenizer", "x"]
    done = CliRunner().invoke(app, [*command, "--mapping", "user"])

    assert isinstance(done.exception, SettingsError)
    assert "expected NAME=COLUMN" in str(done.exception)


def test_template_values_reach_the_template(place):
    (place / "t.jinja").write_text(
        "{{ greeting }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    )
    done = peek(
        place, "--chat-template", place / "t.jinja", "--template-values", "{greeting: hello}"
    )

    assert "hello<|im_start|>user" in done.output


def test_a_prepared_dataset_is_refused(place):
    settings = headrace.PackedSequences(
        blend=place / "chats.jsonl", tokenizer=place / "tokenizer", pack_size=64, max_bad_share=1, train_ratio=1,
        val_ratio=0, test_ratio=0,
    )  # fmt: skip
    headrace.prepare(settings, place / "out", workers=1)
    done = CliRunner().invoke(
        app, ["peek", str(place / "out"), "--mask", "--tokenizer", str(place / "tokenizer")]
    )

    assert isinstance(done.exception, SettingsError)
    assert done.exception.setting == "mask"
    assert "give the files it was made of" == done.exception.remedy
