"""Masks and tokens of real chats under the real Qwen3 template, against independent readings of the same text.

The oracle cuts the rendered text at its ChatML marks: what stands between an assistant header and the next end mark is
the model's. It encodes turn by turn in a loop. Qwen3 writes no ChatML marks inside a turn, so the cut is exact there.
"""

import itertools
import re

import jinja2
import pytest
from chats import QWEN, chat, encoder, needs_data, qwen_encoder, rows_of, trained_texts

from headrace.packing.chats.layouts import sample_of
from headrace.packing.chats.settings import read_tokenizer

pytestmark = needs_data
FILES = ("train.jsonl.gz", "alpaca_en_demo.json.gz", "glaive_toolcall_en_demo.json.gz", "glaive_toolcall_zh_demo.json.gz", "reason_tool_use_demo_50.jsonl.gz", "v1_sft_demo.jsonl.gz")  # fmt: skip
TURN = re.compile(r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)", re.DOTALL)


@pytest.fixture(scope="module")
def qwen():
    return qwen_encoder()


@pytest.fixture(scope="module")
def plain_template():
    """The template in an environment of the test's own."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: __import__("json").dumps(
        value, ensure_ascii=False
    )
    return environment.from_string(read_tokenizer(QWEN).templates["default"])


def turn_by_turn(tokenizer, text: str) -> tuple[list[int], list[int]]:
    """Ids and mask of a ChatML text, each trained and each untrained part encoded on its own."""
    ids, mask = [], []
    for place, part in enumerate(
        re.split(r"(?<=<\|im_start\|>assistant\n)(.*?<\|im_end\|>)", text, flags=re.DOTALL)
    ):
        found = tokenizer.encode(part, add_special_tokens=False).ids
        ids += found
        mask += [place & 1] * len(found)
    return ids, mask


@pytest.mark.smoke("glaive_toolcall_en_demo.json.gz", "v1_sft_demo.jsonl.gz")
@pytest.mark.parametrize("name", FILES)
def test_tokens_and_masks_are_those_of_turn_by_turn_encoding(name, qwen, plain_template):
    rows = rows_of(name, 300)
    encoded = qwen.encode(rows)

    assert [] == encoded.rejected
    assert list(range(len(rows))) == encoded.rows.tolist()
    for row, (begin, end) in zip(rows, itertools.pairwise(encoded.offsets.tolist()), strict=True):
        sample = sample_of(row)
        text = plain_template.render(messages=sample.messages, tools=sample.tools)
        ids, mask = turn_by_turn(qwen.tokenizer, text)
        assert ids == encoded.tokens[begin:end].tolist()
        assert mask == encoded.mask[begin:end].tolist()


THOUGHT = "<think>\nwhy\n</think>\n\n"
SYNTHETIC = [
    chat("q", f"{THOUGHT}one"),
    chat("q", f"{THOUGHT}one", "r", f"{THOUGHT}two"),
    chat("q", f"{THOUGHT}one", "r", "two", "s"),
    chat("q", "<think>never closed", "r", "two"),
    chat("q", "closed</think> twice</think>one", "r", "\n\ntwo\n"),
    chat("q", "one", "assistant: more", "r", "two"),
    chat("system: s", "q", "one", "system: t", "r", "two"),
    chat("<tool_response>x</tool_response>", "one"),
    chat("q", "one", "<tool_response>\nx\n</tool_response>", f"{THOUGHT}two"),
    chat("q", "", "r", "two"),
    chat("  q  ", "  one  ", "\n", "\n"),
    chat("q", "<tool_call>\n{}\n</tool_call>", "tool: 1", "tool: 2", "two"),
    {**chat("q", "one"), "tools": [{"name": "f", "parameters": {"é": [1, None]}}]},
]


@pytest.mark.parametrize("place", range(len(SYNTHETIC)))
def test_chats_that_this_template_looks_into(place, qwen, plain_template):
    """Reasoning inside the content, which it splits; tool responses as users; empty and blank texts."""
    row = SYNTHETIC[place]
    for _ in range(2):
        encoded = qwen.encode([row])
        sample = sample_of(row)
        text = plain_template.render(messages=sample.messages, tools=sample.tools)

        assert [] == encoded.rejected
        assert turn_by_turn(qwen.tokenizer, text) == (
            encoded.tokens.tolist(),
            encoded.mask.tolist(),
        )


@pytest.mark.slow
def test_every_user_turn_keeps_its_reasoning(plain_template):
    """The template alone strips what was thought before the last user turn."""
    rows = rows_of("reason_tool_use_demo_50.jsonl.gz")
    alone, every = qwen_encoder(), encoder(QWEN, reasoning="every_user_turn")
    encoded = every.encode(rows)
    thoughts = [part["value"] for row in rows for message in row["messages"] if message["role"] == "assistant" for part in message["content"] if part["type"] == "reasoning"]  # fmt: skip
    trained = ["".join(text for text, mask in parts if mask) for parts in every.texts(encoded)]
    stripped = [
        "".join(text for text, mask in parts if mask) for parts in alone.texts(alone.encode(rows))
    ]

    assert [] == encoded.rejected
    assert sum(message["role"] == "user" for row in rows for message in row["messages"]) == len(
        encoded.lengths
    )
    assert [1] * len(thoughts) == [
        sum(thought.strip() in text for text in trained) for thought in thoughts
    ]
    assert 0 < sum(not any(thought.strip() in text for text in stripped) for thought in thoughts)


@pytest.mark.slow
def test_what_the_prompt_already_says_is_not_trained():
    rows = [chat("q", "one"), chat("q", "one", "r", "two"), chat("q", f"{THOUGHT}one")]
    usual, quiet = qwen_encoder(), encoder(QWEN, template_values={"enable_thinking": False})
    empty = "<think>\n\n</think>\n\n"

    assert [[f"{empty}one<|im_end|>"], ["one<|im_end|>", f"{empty}two<|im_end|>"], [f"{THOUGHT}one<|im_end|>"]] == trained_texts(usual, rows)  # fmt: skip
    assert [["one<|im_end|>"], ["one<|im_end|>", "two<|im_end|>"]] == trained_texts(quiet, rows[:2])
