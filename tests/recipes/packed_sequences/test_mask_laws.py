"""Laws of the mask: any texts, any turns, and three independent ways to find a turn."""

import itertools

import pytest
from chats import CHATML, encoder, needs_data, qwen_encoder, rows_of, small_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.packing.chats.layouts import Conversation, sample_of
from headrace.packing.chats.marks import Specials
from headrace.packing.chats.rejections import RowRejected
from headrace.packing.chats.render import ChatRenderer, Rendering, Turns
from headrace.packing.chats.template import Template, Trace
from laws import examples

SPECIALS = Specials(["<|im_start|>", "<|im_end|>", "[INST]", "[/INST]", "</s>"], ["<|im_end|>"])
THINKS = "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}{% set content = message.content %}{% if message.role == 'assistant' and '</think>' in content and not loop.last %}{% set content = content.split('</think>')[-1] %}{% endif %}{{ content | trim + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"  # fmt: skip
texts = st.lists(
    st.sampled_from(["a", "b ", "\n", " ", "<", "<|im_end|>", "<|im_start|>assistant\n", "assistant", "user\n", "<think>", "</think>", "\n\n", "é", "爱", "😀", "\x00", "\\", '"', "{{", "0"]),
    max_size=5,
).map("".join)  # fmt: skip
chats = st.lists(
    st.tuples(st.sampled_from(["system", "user", "assistant", "tool"]), texts),
    min_size=1,
    max_size=6,
)


def conversation(turns) -> Conversation:
    messages = [{"role": role, "content": text} for role, text in turns]
    return Conversation(messages, [int(role == "assistant") for role, _ in turns])


def as_written(turns, write) -> tuple[str, list[tuple[int, int]]]:
    """The text of a ChatML conversation and its trained spans, put together turn by turn."""
    text, spans = "", []
    for place, (role, content) in enumerate(turns):
        text += f"<|im_start|>{role}\n"
        begin = len(text)
        text += write(role, content, place == len(turns) - 1) + "<|im_end|>"
        spans += [(begin, len(text))] if role == "assistant" else []
        text += "\n"
    return text, spans


def thinking(role: str, content: str, last: bool) -> str:
    if role == "assistant" and "</think>" in content and not last:
        content = content.split("</think>")[-1]
    return content.strip()


KINDS = {CHATML: lambda role, content, last: content, THINKS: thinking}
renderers = {source: ChatRenderer({"default": Template(source, special={}, values={}, day=None)}, SPECIALS) for source in KINDS}  # fmt: skip


def rendered(source: str, turns):
    """Text and spans, or the reason why there are none."""
    try:
        (found,) = renderers[source].render(conversation(turns))
    except RowRejected as error:
        return error.reason
    return found.text, found.spans


@settings(max_examples=examples(400))
@given(chats, st.sampled_from(sorted(KINDS)))
def test_a_mask_is_right_or_there_is_none(turns, source):
    """Renderers are shared by all examples, so that what one taught is used for the others."""
    expected = as_written(turns, KINDS[source])
    found = rendered(source, turns)

    if isinstance(found, str):
        assert source == THINKS
        assert found == "uncertain_mask" or (
            found == "not_rendered" and any("</think>" in text for _, text in turns)
        )
    else:
        assert expected == found


def three_ways(template: Template, chat: Conversation, specials: Specials):
    """Spans by marks, by differences, and by rendering every prefix; the last only where prefixes are prefixes."""
    text = template.render(chat.messages, chat.tools, {}, trace=Trace())
    rendering = Rendering(Turns(template, specials), chat, text)
    assert rendering.takes_marks()
    for place, weight in enumerate(chat.weights):
        if not weight:
            continue
        by_marks = rendering.turn_by_marks(place)
        by_difference = rendering.turn_by_difference(place)
        before = template.render(
            chat.messages[:place], chat.tools, {}, trace=Trace(), generation_prompt=True
        )
        after = template.render(chat.messages[: place + 1], chat.tools, {}, trace=Trace())
        stable = text.startswith(before) and text.startswith(after)
        yield by_marks, by_difference, (len(before), len(after.rstrip())) if stable else None


@settings(max_examples=examples(60))
@given(chats)
def test_marks_differences_and_prefixes_agree(turns):
    if any(not text.strip() for _, text in turns):
        return
    for by_marks, by_difference, by_prefix in three_ways(Template(CHATML, special={}, values={}, day=None), conversation(turns), SPECIALS):  # fmt: skip
        assert by_marks == by_difference == by_prefix


@needs_data
@pytest.mark.parametrize(
    "name", ["reason_tool_use_demo_50.jsonl.gz", "glaive_toolcall_zh_demo.json.gz"]
)
def test_the_ways_agree_on_real_chats_where_prefixes_are_prefixes(name):
    qwen = qwen_encoder()
    specials = qwen.renderer.settings.specials
    template = Template(
        qwen.files.templates["default"], special=qwen.files.special, values={}, day=None
    )
    stable = 0
    for row in rows_of(name, 40):
        for by_marks, by_difference, by_prefix in three_ways(template, sample_of(row), specials):
            assert by_marks == by_difference
            assert by_prefix in (None, by_marks)
            stable += by_prefix is not None
    assert stable > 20


@pytest.mark.slow
def test_the_same_rows_give_the_same_tokens_in_any_order_and_batches(tmp_path):
    place = small_tokenizer(tmp_path / "t")
    rows = [{"messages": [{"role": "user", "content": f"q{n}"}, {"role": "assistant", "content": "a\n" * (n % 5) + "b"}]} for n in range(40)]  # fmt: skip
    whole = encoder(place).encode(rows)
    back = encoder(place).encode(rows[::-1])
    parts = [encoder(place).encode(rows[at : at + 7]) for at in range(0, 40, 7)]

    assert whole.tokens.tolist() == list(
        itertools.chain.from_iterable(part.tokens.tolist() for part in parts)
    )
    assert whole.mask.tolist() == list(
        itertools.chain.from_iterable(part.mask.tolist() for part in parts)
    )
    turned = [
        back.tokens[begin:end].tolist() for begin, end in itertools.pairwise(back.offsets.tolist())
    ]
    assert whole.tokens.tolist() == list(itertools.chain.from_iterable(turned[::-1]))
