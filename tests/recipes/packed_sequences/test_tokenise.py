"""Tokens: borders, texts without templates, given tokens, filters, what is rejected, and what a run is known by."""

import gzip
import hashlib
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from chats import CHATML, QWEN, chat, encoder, qwen_encoder, small_tokenizer, trained_texts
from tokenizers import Tokenizer

import headrace
from headrace.errors import InputError, SettingsError
from headrace.packing.chats.reader import BrokenRow
from headrace.packing.chats.rejections import REASONS
from headrace.packing.chats.settings import ChatSettings
from raised import raised


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return small_tokenizer(tmp_path / "tokenizer")


def ids_and_mask(encoded) -> list[tuple[list[int], list[int]]]:
    bounds = itertools.pairwise(encoded.offsets.tolist())
    return [
        (encoded.tokens[begin:end].tolist(), encoded.mask[begin:end].tolist())
        for begin, end in bounds
    ]


def test_the_arrays_fit_together(place):
    encoded = encoder(place).encode(
        [chat("q", "one"), {"bad": 1}, chat("long question", "two", "r", "three")]
    )

    assert (np.int32, np.uint8, np.int64, np.int64) == tuple(each.dtype for each in (encoded.tokens, encoded.mask, encoded.lengths, encoded.rows))  # fmt: skip
    assert [0, 2] == encoded.rows.tolist()
    assert len(encoded.tokens) == len(encoded.mask) == encoded.lengths.sum()
    assert {0, 1} == set(encoded.mask.tolist())


def test_no_rows_and_only_bad_rows_are_empty_arrays(place):
    for rows in ([], [{"bad": 1}, BrokenRow("broken_json", "x")]):
        encoded = encoder(place).encode(rows)

        assert (0, 0, 0, 0) == tuple(
            map(len, (encoded.tokens, encoded.mask, encoded.lengths, encoded.rows))
        )
        assert list(range(len(rows))) == [each.row for each in encoded.rejected]


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["\nx", "\n\n\nx", " x", "x", "\n", "é", "😀", "e\u0301"])
@pytest.mark.parametrize("kind", ["small", "qwen"])
def test_no_token_is_half_the_prompts(answer, kind, place):
    """With Qwen3's tokens two line ends are one token, so an answer that begins with one needs the text cut."""
    if kind == "qwen" and not QWEN.is_dir():
        pytest.skip("the tokenizer is not in the repository")
    found = encoder(place) if kind == "small" else qwen_encoder(chat_template=CHATML)
    ((ids, mask),) = ids_and_mask(found.encode([chat("q", answer)]))
    encode = found.tokenizer.encode
    prompt = encode(
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False
    ).ids
    produced = encode(f"{answer}<|im_end|>", add_special_tokens=False).ids
    behind = encode("\n", add_special_tokens=False).ids

    assert [*prompt, *produced, *behind] == ids
    assert [0] * len(prompt) + [1] * len(produced) + [0] * len(behind) == mask


def test_tokenizers_that_put_spaces_before_texts_keep_the_whole_texts_tokens(place):
    definition = json.loads((place / "tokenizer.json").read_text())
    definition["pre_tokenizer"] = {
        "type": "Metaspace",
        "replacement": "▁",
        "prepend_scheme": "always",
        "split": True,
    }
    definition["model"]["vocab"]["▁"] = max(definition["model"]["vocab"].values()) + 1
    (place / "tokenizer.json").write_text(json.dumps(definition))
    plain = "{% for message in messages %}{{ message.content }}{% if message.role == 'assistant' %}<|im_end|>{% endif %}{% endfor %}"  # fmt: skip
    found = encoder(place, chat_template=plain)
    ((ids, mask),) = ids_and_mask(found.encode([chat("ab", "cd")]))

    assert found.tokenizer.encode("abcd<|im_end|>", add_special_tokens=False).ids == ids
    assert sum(mask) >= 2


@pytest.mark.slow
def test_offsets_that_leave_out_spaces_are_made_whole(place):
    rows = [chat("q", " two  words ", "r", "x")]
    expected = ids_and_mask(encoder(place).encode(rows))
    definition = json.loads((place / "tokenizer.json").read_text())
    definition["post_processor"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}  # fmt: skip
    (place / "tokenizer.json").write_text(json.dumps(definition))

    assert expected == ids_and_mask(encoder(place).encode(rows))


@pytest.mark.slow
def test_truncation_and_padding_of_the_tokenizer_are_off(place):
    rows = [chat("q " * 50, "a " * 50), chat("q", "a")]
    expected = ids_and_mask(encoder(place).encode(rows))
    tokenizer = Tokenizer.from_file(str(place / "tokenizer.json"))
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=300)
    tokenizer.save(str(place / "tokenizer.json"))

    assert expected == ids_and_mask(encoder(place).encode(rows))


def test_texts_end_with_the_end_token_and_are_trained(place):
    appended, plain = encoder(place), encoder(place, eos="none")
    (ids, mask), (other, tail) = ids_and_mask(
        appended.encode([{"text": "the answer"}, {"text": "a"}])
    )

    assert appended.eos_id == ids[-1] == other[-1]
    assert [1] * len(ids) == mask
    assert [1] * len(other) == tail
    assert (ids[:-1], mask[:-1]) == ids_and_mask(plain.encode([{"text": "the answer"}]))[0]
    assert ["nothing_trained"] == [each.reason for each in appended.encode([{"text": ""}]).rejected]


def test_a_raw_completion_is_trained_behind_its_prompt(place):
    found = encoder(place, layout="raw_completion")

    assert [[" forty two<|im_end|>"]] == trained_texts(
        found, [{"prompt": "the answer is", "completion": " forty two"}]
    )


@pytest.mark.slow
def test_given_tokens_stay_as_they_are(place):
    found = encoder(place)
    encoded = found.encode([{"input_ids": [5, 6, 7], "loss_mask": [0, 1, 0]}, chat("q", "a"), {"input_ids": [5, 10**6]}, {"input_ids": [5], "loss_mask": [0]}])  # fmt: skip

    assert ([5, 6, 7], [0, 1, 0]) == ids_and_mask(encoded)[0]
    assert [(2, "bad_tokens"), (3, "nothing_trained")] == [
        (each.row, each.reason) for each in encoded.rejected
    ]
    assert [0, 1] == encoded.rows.tolist()


@pytest.mark.slow
def test_filters_keep_rows_by_words(place):
    rows = [chat("q", "a", used_in=used) for used in ("sft", "rl, sft", ["x", "sft"], "sftx", ["rl"], None, "")] + [chat("q", "a")]  # fmt: skip
    encoded = encoder(place, filters={"used_in": "sft"}).encode(rows)
    either = encoder(place, filters={"used_in": ["sft", "rl"]}).encode(rows)

    assert [0, 1, 2] == encoded.rows.tolist()
    assert {"filtered"} == {each.reason for each in encoded.rejected}
    assert [0, 1, 2, 4] == either.rows.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reason", "row"),
    [
        ("nothing_trained", chat("q")),
        ("nothing_trained", {"messages": [{"role": "assistant", "content": "a", "weight": 0}]}),
        ("reserved_character", chat("q", "a\ufdd0b")),
        ("broken_utf8", chat("q", "a\udcff")),
        ("broken_utf8", {"text": "\ud83d"}),
        ("broken_json", BrokenRow("broken_json", "x")),
    ],
)
def test_a_row_without_a_sequence_has_a_reason(reason, row, place):
    encoded = encoder(place).encode([chat("q", "a"), row, chat("q", "a")])

    assert [(1, reason)] == [(each.row, each.reason) for each in encoded.rejected]
    assert [0, 2] == encoded.rows.tolist()
    assert reason in REASONS


@pytest.mark.slow
def test_rows_with_nothing_trained_may_be_kept(place):
    rows = [{"input_ids": [5], "loss_mask": [0]}, chat("q"), {"messages": [{"role": "assistant", "content": "a", "weight": 0}]}]  # fmt: skip
    for reasoning in ("template", "every_user_turn"):
        encoded = encoder(place, nothing_trained="keep", reasoning=reasoning).encode(rows)

        assert [0, 1, 2] == encoded.rows.tolist()
        assert ([5], [0]) == ids_and_mask(encoded)[0]
        assert not encoded.mask.any()


@pytest.mark.parametrize("asked", ["keep", "drop"])
@pytest.mark.parametrize(
    "row",
    [{"text": ""}, {"input_ids": [5], "attention_mask": [0]}, {"prompt": "", "completion": ""}],
)
def test_a_row_without_any_token_is_counted(row, asked, place):
    encoded = encoder(
        place, nothing_trained=asked, layout="raw_completion" if "prompt" in row else "auto"
    ).encode([row])

    assert [(0, "nothing_trained")] == [(each.row, each.reason) for each in encoded.rejected]
    assert 0 == len(encoded.lengths)


def identity(**settings):
    """What a run of this recipe is known by."""
    form = {
        name: settings.pop(name) for name in ("layout", "mapping", "filters") if name in settings
    }
    blend = {"datasets": [{"name": "chats", "path": "chats.jsonl", **form}]}
    return json.dumps(
        headrace.PackedSequences(blend=blend, **settings).identity_settings(), sort_keys=True
    )


def test_every_setting_that_changes_a_token_is_in_the_identity_of_a_run(place, tmp_path):
    base = {"tokenizer": place}
    variants = [
        {},
        {"chat_template": CHATML + " "},
        {"template_values": {"x": 1}},
        {"layout": "messages"},
        {"mapping": {"user": "a", "assistant": "b"}},
        {"filters": {"used_in": "sft"}},
        {"reasoning": "every_user_turn"},
        {"eos": "none"},
        {"date": "2026-01-01"},
        {"nothing_trained": "keep"},
        {"tokenizer": small_tokenizer(tmp_path / "b", eos="</s>")},
        {"tokenizer": small_tokenizer(tmp_path / "c", template=CHATML + " ")},
    ]
    found = [identity(**(base | each)) for each in variants]

    assert len(set(found)) == len(variants)
    (tmp_path / "template.jinja").write_text(CHATML + " ")
    assert found[1] == identity(tokenizer=place, chat_template=str(tmp_path / "template.jinja"))
    (place / "tokenizer.json.gz").write_bytes(
        gzip.compress((place / "tokenizer.json").read_bytes())
    )
    assert found[0] == identity(tokenizer=place / "tokenizer.json.gz")


@pytest.mark.slow
def test_a_template_of_its_own_file_goes_first(place):
    (place / "chat_template.jinja").write_text(CHATML.replace("im_end|>\\n", "im_end|>"))

    assert [["one<|im_end|>"]] == trained_texts(encoder(place), [chat("q", "one")])
    assert "<|im_end|>\n" not in "".join(text for text, _ in encoder(place).texts(encoder(place).encode([chat("q", "one")]))[0])  # fmt: skip


def test_named_templates_are_chosen_by_whether_there_are_tools(tmp_path):
    named = [
        {"name": "default", "template": CHATML},
        {"name": "tool_use", "template": "{{ tools | tojson }}" + CHATML},
    ]
    place = small_tokenizer(tmp_path / "t", template=None, chat_template=named)
    found = encoder(place)
    plain, tooled = found.texts(
        found.encode([chat("q", "one"), chat("q", "one", tools=[{"name": "f"}])])
    )

    assert plain[0][0].startswith("<|im_start|>")
    assert tooled[0][0].startswith('[{"type"')


@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        ({"tokenizer": "nowhere"}, {"setting": "tokenizer"}),
        ({"chat_template": "{% for %}"}, {"setting": "chat_template", "row": "line 1"}),
        (
            {"chat_template": "no-such-file.jinja"},
            {"setting": "chat_template", "value": "no-such-file.jinja"},
        ),
        ({"mapping": {"usr": "a"}}, {"setting": "mapping"}),
        ({"mapping": {"user": "a"}}, {"setting": "mapping"}),
        ({"layout": "sharegpt"}, {"setting": "layout"}),
    ],
)
def test_settings_that_cannot_work_say_so(settings, fields, place):
    with raised(SettingsError, **fields):
        encoder(**({"tokenizer": place} | settings)).encode([chat("q", "a")])


def test_missing_parts_are_errors_only_when_they_are_needed(tmp_path):
    place = small_tokenizer(tmp_path / "t", template=None, eos=None)
    found = encoder(place)

    assert 2 == len(found.encode([{"input_ids": [5, 6]}]).tokens)
    with raised(SettingsError, setting="chat_template", remedy="give one"):
        found.encode([chat("q", "a")])
    with raised(SettingsError, setting="eos", remedy='eos="none"'):
        found.encode([{"text": "a"}])


def test_a_damaged_tokenizer_is_an_input_error(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "No"}}')
    with raised(InputError, path=tmp_path / "tokenizer.json", remedy="fetch the file again"):
        encoder(tmp_path)


def test_without_the_extra_the_error_names_it(place):
    code = "import sys; sys.modules['tokenizers'] = None\nfrom headrace.packing.chats.tokenise import *\nChatEncoder(ChatSettings(tokenizer=sys.argv[1]))"  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code, str(place)], capture_output=True, text=True, check=False, env={**os.environ})  # fmt: skip

    assert "pip install 'headrace[chat]'" in done.stderr


@pytest.mark.slow
def test_threads_and_hash_seeds_change_nothing(place, tmp_path):
    code = (
        "import sys, hashlib, json; from headrace.packing.chats.tokenise import *\n"
        "found = ChatEncoder(ChatSettings(tokenizer=sys.argv[1]))\n"
        "found = found.encode(json.load(open(sys.argv[2])))\n"
        "print(hashlib.sha256(found.tokens.tobytes() + found.mask.tobytes()).hexdigest())"
    )
    rows = [
        chat(f"q{n}" * (n % 7), f"a\n{n}", "r", "x" * n, tools=[{"name": "f"}] if n % 2 else None)
        for n in range(80)
    ]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    encoded = encoder(place).encode(rows)
    expected = hashlib.sha256(encoded.tokens.tobytes() + encoded.mask.tobytes()).hexdigest()
    for threads in ("1", "2"):
        command = [sys.executable, "-c", code, str(place), str(tmp_path / "rows.json")]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads})  # fmt: skip

        assert expected == done.stdout.strip()


def test_settings_are_frozen(place):
    with pytest.raises(Exception, match="frozen"):
        ChatSettings(tokenizer=place).eos = "none"
