"""Rows of every layout as normalised messages, and every kind of bad row with its reason."""

import json
from pathlib import Path

import numpy as np
import pytest
from chats import needs_data, rows_of
from hypothesis import given
from hypothesis import strategies as st

from headrace.packing.chats.layouts import Conversation, Text, TokenSample, sample_of
from headrace.packing.chats.rejections import REASONS, RowRejected

USER, ASSISTANT = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
BOTH = [USER, ASSISTANT]
TOOL = {"name": "add", "description": "adds", "parameters": {}}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}


@pytest.mark.parametrize(
    "row",
    [
        {"messages": BOTH},
        {"messages": json.dumps(BOTH)},
        {"messages": [{"role": "human", "content": "q"}, {"role": "gpt", "content": "a"}]},
        {"messages": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
        {"messages": [{"role": "user", "content": ["q"]}, {"role": "assistant", "content": [{"type": "text", "text": "a"}]}]},
        {"messages": [{**USER, "name": None}, {**ASSISTANT, "tool_calls": [], "reasoning_content": None, "weight": None}]},
        {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
        {"conversations": BOTH},
        {"instruction": "q", "input": "", "output": "a"},
        {"instruction": "q", "input": None, "output": "a", "history": []},
        {"prompt": "q", "completion": "a"},
        {"prompt": "q", "response": "a"},
        {"prompt": [USER], "completion": [ASSISTANT]},
        {"prompt": [USER], "completion": "a"},
        {"question": "q", "answer": "a", "id": 3},
        {"messages": BOTH, "tools": "[]"},
        {"messages": BOTH, "tools": ""},
        {"messages": BOTH, "system": " "},
    ],
)  # fmt: skip
def test_one_conversation_in_many_layouts(row):
    assert Conversation(BOTH, [0, 1]) == sample_of(row)


def test_system_history_and_input_are_messages():
    row = {
        "instruction": "q",
        "input": "more",
        "output": "a",
        "system": "s",
        "history": [["x", "y"]],
    }
    expected = [
        ("system", "s"),
        ("user", "x"),
        ("assistant", "y"),
        ("user", "q\nmore"),
        ("assistant", "a"),
    ]
    sample = sample_of(row)

    assert expected == [(message["role"], message["content"]) for message in sample.messages]
    assert [0, 0, 1, 0, 1] == sample.weights


def test_only_the_completion_of_messages_is_trained():
    sample = sample_of(
        {"prompt": [USER, ASSISTANT, USER], "completion": [ASSISTANT], "system": "s"}
    )

    assert [0, 0, 0, 0, 1] == sample.weights


@pytest.mark.parametrize(
    "call",
    [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "add", "arguments": '{"a": 1}'}}],
        },
        {
            "role": "assistant",
            "tool_calls": [{"function": {"name": "add", "arguments": '"{\\"a\\": 1}"'}}],
        },
        {"role": "assistant", "tool_calls": json.dumps([{"name": "add", "arguments": {"a": 1}}])},
        {
            "role": "assistant",
            "content": None,
            "function_call": {"name": "add", "arguments": '{"a": 1}'},
        },
        {
            "role": "assistant",
            "content": [{"type": "tool_call", "value": '{"name": "add", "arguments": {"a": 1}}'}],
        },
        {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 1}}'},
        {"from": "function_call", "value": '[{"name": "add", "parameters": "{\\"a\\": 1}"}]'},
    ],
)
@pytest.mark.parametrize("tools", [[TOOL], json.dumps([TOOL]), [{"type": "function", "function": TOOL}], [json.dumps(TOOL)]])  # fmt: skip
def test_tools_and_calls_have_one_form(call, tools):
    sample = sample_of({"messages": [USER, call], "tools": tools})

    assert {"role": "assistant", "content": "", "tool_calls": [CALL]} == sample.messages[1]
    assert [{"type": "function", "function": TOOL}] == sample.tools


def test_parts_become_reasoning_text_and_calls():
    parts = [{"type": "reasoning", "value": "why"}, {"type": "text", "value": "a"}, {"type": "tool_call", "value": json.dumps(CALL["function"])}]  # fmt: skip
    sample = sample_of({"messages": [USER, {"role": "assistant", "content": parts}]})

    assert {
        "role": "assistant",
        "content": "a",
        "reasoning_content": "why",
        "tool_calls": [CALL],
    } == sample.messages[1]


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        ({"user": "problem", "assistant": "solution"}, {"problem": "q", "solution": "a"}),
        ({"question": "problem", "answer": "solution"}, {"problem": "q", "solution": "a"}),
        ({"messages": "chat", "role": "speaker", "content": "text"}, {"chat": [{"speaker": "user", "text": "q"}, {"speaker": "assistant", "text": "a"}]}),
        ({"conversations": "talk"}, {"talk": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}),
    ],
)  # fmt: skip
def test_columns_of_other_names(columns, row):
    assert Conversation(BOTH, [0, 1]) == sample_of(row, "auto", columns)


def test_texts_and_tokens_need_no_template():
    tokens = sample_of({"input_ids": [5, 6, 7], "labels": [-100, 6, 7]})
    padded = sample_of(
        {"input_ids": [5, 6, 0], "loss_mask": [0, 1, 0], "attention_mask": [1, 1, 0]}
    )

    assert Text("t") == sample_of({"text": "t"})
    assert Text("pc", 1) == sample_of({"prompt": "p", "completion": "c"}, "raw_completion")
    assert isinstance(tokens, TokenSample)
    assert ([5, 6, 7], [0, 1, 1]) == (tokens.ids.tolist(), tokens.mask.tolist())
    assert ([5, 6], [0, 1]) == (padded.ids.tolist(), padded.mask.tolist())
    assert [1, 1] == sample_of({"input_ids": np.array([5, 6], np.int32)}).mask.tolist()


@pytest.mark.parametrize(
    ("reason", "row"),
    [
        ("not_an_object", [1]),
        ("not_an_object", "text"),
        ("unknown_layout", {"a": 1}),
        ("unknown_layout", {}),
        ("no_messages", {"messages": []}),
        ("no_messages", {"messages": None}),
        ("no_messages", {"conversations": "[]"}),
        ("broken_json", {"messages": "[{"}),
        ("bad_content", {"messages": 3}),
        ("bad_content", {"messages": ["q"]}),
        ("bad_content", {"messages": [{"role": "user", "content": 3}]}),
        ("bad_content", {"messages": [{"role": "user", "content": [{"type": "file", "file": "x.pdf"}]}]}),
        ("media", {"messages": [{"role": "user", "content": [{"type": "image"}]}]}),
        ("media", {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}),
        ("media", {"messages": BOTH, "images": ["a.png"]}),
        ("media", {"messages": [{"role": "user", "content": "<image> what?"}], "image": "a.png"}),
        ("bad_content", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
        ("bad_content", {"messages": [{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "reasoning", "text": "why"}]}]}),
        ("bad_content", {"messages": [{**ASSISTANT, "reasoning_content": 3}]}),
        ("bad_content", {"question": 3, "answer": "a"}),
        ("bad_content", {"instruction": "q", "output": "a", "history": [["x"]]}),
        ("unknown_role", {"messages": [{"role": "narrator", "content": "q"}]}),
        ("unknown_role", {"messages": [{"role": None, "content": "q"}]}),
        ("unknown_role", {"messages": [{"content": "q"}]}),
        ("bad_tools", {"messages": BOTH, "tools": "[{"}),
        ("bad_tools", {"messages": BOTH, "tools": 3}),
        ("bad_tools", {"messages": BOTH, "tools": [3]}),
        ("bad_tool_call", {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": {}}}]}]}),
        ("bad_tool_call", {"messages": [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{a"}]}]}),
        ("bad_tool_call", {"messages": [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": [1]}]}]}),
        ("bad_tool_call", {"conversations": [{"from": "function_call", "value": "call f"}]}),
        ("bad_weight", {"messages": [{**ASSISTANT, "weight": 0.5}]}),
        ("bad_weight", {"messages": [{**ASSISTANT, "train": "yes"}]}),
        ("no_messages", {"input_ids": []}),
        ("bad_tokens", {"input_ids": [1, 2], "loss_mask": [1]}),
        ("bad_tokens", {"input_ids": [1, 2], "loss_mask": [1, 2]}),
        ("bad_tokens", {"input_ids": [1, 2], "labels": [2, -100]}),
        ("bad_tokens", {"input_ids": [1.5, 2]}),
        ("bad_tokens", {"input_ids": [[1], [2, 3]]}),
        ("bad_tokens", {"input_ids": "12"}),
    ],
)  # fmt: skip
def test_a_bad_row_has_a_reason(reason, row):
    assert reason in REASONS
    with pytest.raises(RowRejected) as found:
        sample_of(row)

    assert reason == found.value.reason
    assert len(found.value.detail) > 5


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["user", "assistant", "q", "[]", "{}", "text", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "from", "value", "type", "text", "tool_calls", "function", "name", "arguments", "weight"]), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(["messages", "conversations", "tools", "prompt", "completion", "question", "answer", "instruction", "output", "history", "system", "text", "input_ids", "labels", "loss_mask", "attention_mask"]), values, max_size=4))  # fmt: skip
def test_any_json_is_a_sample_or_a_reason(row):
    reason = None
    try:
        sample = sample_of(row)
    except RowRejected as rejected:
        reason, sample = rejected.reason, None

    assert reason in REASONS or isinstance(sample, Conversation | Text | TokenSample)


@needs_data
@pytest.mark.parametrize(
    "name",
    [
        "glaive_toolcall_en_demo.json.gz",
        "glaive_toolcall_zh_demo.json.gz",
        "v1_sft_demo.jsonl.gz",
        "reason_tool_use_demo_50.jsonl.gz",
    ],
)
def test_real_files_keep_every_message(name):
    roles = {
        "human": "user",
        "gpt": "assistant",
        "function_call": "assistant",
        "observation": "tool",
    }
    for row in rows_of(name):
        written = [
            each.get("role", roles.get(each.get("from")))
            for each in row.get("messages", row.get("conversations"))
        ]

        assert written == [message["role"] for message in sample_of(row).messages]


def test_the_page_lists_every_reason():
    page = (Path(__file__).parents[3] / "docs" / "format.md").read_text("utf-8")
    table = [
        line
        for line in page.split("| reason | what |")[1].split("\n\n")[0].splitlines()
        if line.startswith("| `")
    ]

    assert [f"| `{word}` | {what} |" for word, what in REASONS.items()] == table
