"""Conversations written without running the template: as the template writes them, or not at all."""

import json

import pytest
from chats import CHATML, QWEN, needs_data, rows_of
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.packing.chats.layouts import Conversation, sample_of
from headrace.packing.chats.marks import Specials
from headrace.packing.chats.render import ChatRenderer
from headrace.packing.chats.render_process import Predictions
from headrace.packing.chats.template import Template
from headrace.packing.chats.words import RowRejected
from laws import examples

SPECIALS = Specials(["<|im_start|>", "<|im_end|>", "<|eot|>", "[INST]", "[/INST]", "</s>"], "<|im_end|>")
LOOP = "{% for message in messages %}"
TURN = "{{ '<|im_start|>' + message.role + '\\n' }}"
END = "{{ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
THINKS = LOOP + TURN + "{% set content = message['content'] | trim %}{% if '</think>' in content and not loop.last %}{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}{{ content }}" + END  # fmt: skip
PARTS = LOOP + TURN + "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}{{ part.text | upper }}{% endfor %}{% endif %}" + END  # fmt: skip
SPACE = "{% set ns = namespace(last=-1, system='') %}" + LOOP + "{% if message.role == 'user' and not message.content.startswith('<tool>') %}{% set ns.last = loop.index0 %}{% endif %}{% if message.role == 'system' %}{% set ns.system = message.content + '\\n\\n' %}{% endif %}{% endfor %}" + LOOP + TURN + "{{ ns.system if loop.first }}{% if loop.index0 > ns.last %}{{ '<think>\\n\\n</think>\\n\\n' if message.role == 'assistant' }}{% endif %}{{ message.content.strip('\\n') }}" + END  # fmt: skip
MACRO = "{% macro write(role, text) %}<|im_start|>{{ role }}\n{{ text | trim }}{% endmacro %}" + LOOP + "{% set before = loop.previtem %}{{ write(message.role, message.content) }}{% if before is defined and before.role == 'user' %}{{ ' ' }}{% endif %}" + END  # fmt: skip
COMPARES = LOOP + TURN + "{{ 'secret' if message.content == 'open' else message.content }}" + END
KNOWN = {CHATML: set(), THINKS: {"</think>"}, PARTS: set(), SPACE: {"<tool>"}, MACRO: set(), COMPARES: {"open"}}

texts = st.lists(
    st.sampled_from(["a", "open", " ", "\n", "\n\n", "<tool>", "</think>", "<think>", "<|im_end|>", "system", "é", "\ufdd0", "\x00", "{{"]),
    min_size=1,
    max_size=4,
).map("".join)  # fmt: skip
turns = st.lists(st.tuples(st.sampled_from(["system", "user", "assistant", "tool"]), texts), min_size=1, max_size=5)


def template(source: str) -> Template:
    return Template(source, special={}, values={}, day=None)


def made(source: str) -> tuple[ChatRenderer, Predictions]:
    renderer = ChatRenderer({"default": template(source)}, SPECIALS)
    return renderer, Predictions(renderer.looked_for()["default"])


def check(renderer: ChatRenderer, predictions: Predictions, chat: Conversation) -> bool | None:
    """Compare what was predicted with the rendering, and learn from it; None where nothing was predicted."""
    try:
        (expected,) = renderer.render(chat)
    except RowRejected as wrong:
        expected = wrong
    if (shape := predictions.shape_of(chat)) is None:
        return None
    found = predictions.written(*shape)
    if isinstance(expected, RowRejected):
        assert found is None
        return None
    if expected.skeleton is not None:
        predictions.learn(*shape, *expected.skeleton)
    if found is None:
        return None
    assert (expected.text, expected.spans) == found
    return True


makers = {source: made(source) for source in KNOWN}


@settings(deadline=None, max_examples=examples(500))
@given(turns, st.sampled_from(sorted(KNOWN)))
def test_what_is_predicted_is_what_the_template_writes(found, source):
    """Predictions are shared by all examples, so that what one taught is used for the others."""
    messages = [{"role": role, "content": text} for role, text in found]
    check(*makers[source], Conversation(messages, [int(role == "assistant") for role, _ in found]))


@needs_data
def test_real_chats_are_predicted_as_the_template_writes_them():
    source = json.loads((QWEN / "tokenizer_config.json").read_text())["chat_template"]
    renderer, predictions = made(source)
    predicted = 0
    for name in ("alpaca_en_demo.json.gz", "glaive_toolcall_zh_demo.json.gz", "v1_sft_demo.jsonl.gz", "test.jsonl.gz"):
        for row in rows_of(name, 100):
            predicted += check(renderer, predictions, sample_of(row)) is True

    assert predicted > 150


def test_tools_are_part_of_the_shape():
    renderer, predictions = made("{{ tools | tojson if tools else '' }}" + CHATML)
    for tools in ([{"name": "f"}], [{"name": "g"}], None, [{"name": "f"}], [{"name": "g"}], None):
        chat = Conversation([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], [0, 1], tools)
        found = check(renderer, predictions, chat)

    assert found


@pytest.mark.parametrize("source", KNOWN)
def test_what_a_template_looks_for_is_read_off_its_source(source):
    assert KNOWN[source] == template(source).looked_for


@pytest.mark.parametrize(
    "written",
    [
        "{{ message.content | length }}",
        "{{ message.content | upper }}",
        "{{ message.content | tojson }}",
        "{{ message.content[:3] }}",
        "{{ message.content * 2 }}",
        "{{ message.content.replace('a', 'b') }}",
        "{{ message.content.strip('a') }}",
        "{{ message }}",
        "{{ messages | length > 1 and messages }}",
        "{{ 'x' if message.content == messages[0].content else 'y' }}",
        "{{ 'x' if message.content > 'b' else 'y' }}",
        "{{ 'x' if (message.content + 'a') == 'ba' else 'y' }}",
        "{{ 'x' if message.content in ['a', 'b'] else 'y' }}",
        "{{ 'x' if message.role in message.content else 'y' }}",
        "{% set ns = namespace(text=message.content) %}{{ ns }}",
        "{% set ns = namespace(text=message.content) %}{{ ns['te' + 'xt'] | upper }}",
        "{% set text = message.content %}{% if loop.first %}{% set text = none %}{% endif %}{% if text is string %}{% else %}{{ message.content | upper }}{% endif %}",
        "{% for letter in message.content %}{{ letter }}{% endfor %}",
        "{% macro write(text) %}{{ text | upper }}{% endmacro %}{{ write(message.content) }}",
        "{% macro write() %}{{ varargs[0] | upper }}{% endmacro %}{{ write(message.content) }}",
        "{% macro write(messages) %}{{ 'x' if messages[0].content is string else message.content | upper }}{% endmacro %}{{ write(tools) }}",
        "{{ messages | map(attribute='content') | join }}",
        "{{ message.content.split() | length }}",
        "{{ message.get('content') | upper }}",
        "{{ message['con' + 'tent'] }}",
        "{% filter upper %}{{ message.content }}{% endfilter %}",
        "{% generation %}{{ message.content }}{% endgeneration %}",
    ],
)  # fmt: skip
def test_more_than_looking_for_texts_is_left_to_the_template(written):
    assert template(LOOP + written + "{% endfor %}").looked_for is None
