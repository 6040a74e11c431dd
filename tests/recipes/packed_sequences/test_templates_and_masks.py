"""Masks under templates of many kinds. What must be trained is written out by hand."""

import json

import pytest
from chats import CHATML, chat, encoder, small_tokenizer, trained_texts

LOOP = "{% for message in messages %}"
TRIMMED = LOOP + "{{ '<|im_start|>' + message.role + '\n' + message.content | trim + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"  # fmt: skip
BRACKETS = "{{ bos_token }}" + LOOP + "{% if message.role == 'user' %}{{ '[INST] ' + message.content + ' [/INST]' }}{% elif message.role == 'assistant' %}{{ ' ' + message.content + eos_token }}{% else %}{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}"  # fmt: skip
GENERATION = LOOP + "{% if message.role == 'assistant' %}<|assistant|>\n{% generation %}{{ message.content }}</s>{% endgeneration %}\n{% else %}{{ '<|' + message.role + '|>\n' + message.content + '\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"  # fmt: skip
LAST_ONLY = LOOP + "{{ '<|user|>' if message.role == 'user' else '<|assistant|>' }}{{ message.content }}{% if message.role == 'assistant' %}</s>{% endif %}{% if loop.last and add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}{% endfor %}"  # fmt: skip
ANOTHER_END = LOOP + "{{ '<|start|>' + message.role + '<|message|>' + message.content }}{% if loop.last and message.role == 'assistant' %}<|return|>{% else %}<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"  # fmt: skip
NO_TOKENS = LOOP + "{% if message.role == 'user' %}### Question:\n{{ message.content }}\n\n{% else %}### Answer:\n{{ message.content }}\n\n{% endif %}{% endfor %}{% if add_generation_prompt %}### Answer:\n{% endif %}"  # fmt: skip
THINKING = LOOP + "{% set content = message.content %}{% if message.role == 'assistant' and '</think>' in content %}{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}{{ '<|im_start|>' + message.role + '\n' }}{% if message.role == 'assistant' and loop.last and message.reasoning_content %}{{ '<think>\n' + message.reasoning_content + '\n</think>\n' }}{% endif %}{{ content + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"  # fmt: skip
BY_CONTENT = "{% set ns = namespace(on=true) %}" + LOOP + "{% if '/off' in message.content %}{% set ns.on = false %}{% endif %}{{ '<|im_start|>' + message.role + '\n' }}{% if message.role == 'assistant' %}<think></think>{% endif %}{{ message.content + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% if ns.on %}{{ '<think>' }}{% else %}{{ '<think></think>' }}{% endif %}{% endif %}"  # fmt: skip
TITLED = LOOP + "{{ '<|im_start|>' + message.role + '\n' + message.content[:1] | upper + message.content[1:] + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"  # fmt: skip
XML_CALLS = LOOP + "{{ '<|im_start|>' + message.role + '\n' + message.content }}{% for call in message.tool_calls or [] %}{{ '<call=' + call.function.name + '>' }}{% for name, value in call.function.arguments | items %}{{ '<' + name + '>' }}{{ value if value is string else value | tojson }}{{ '</' + name + '>' }}{% endfor %}{{ '</call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"  # fmt: skip
JSON_CALLS = XML_CALLS.replace("{% for name, value", "{{ call.function.arguments | tojson }}{% for name, value").replace("call.function.arguments | items", "{} | items")  # fmt: skip
ONLY_USERS_AND_ANSWERS = LOOP + "{% if message.role in ('user', 'assistant') %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"  # fmt: skip
ITEM_CALLS = XML_CALLS.replace("value if value is string else value | tojson", "value | tojson")
REVERSED = LOOP + "{{ '<|im_start|>' + message.role + '\n' + message.content | reverse + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"  # fmt: skip

BY_LENGTH = LOOP + "{{ '<|im_start|>' + message.role + '\n' }}{% if message.content | length > 3 %}{{ '(long) ' }}{% endif %}{{ message.content + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"  # fmt: skip
CLOSED = CHATML + "{% if not add_generation_prompt %}</s>{% endif %}"


@pytest.fixture
def under(tmp_path):
    """An encoder with the small tokenizer under a template."""

    def made(template: str, eos: str = "<|im_end|>", **settings):
        place = tmp_path / str(len(list(tmp_path.iterdir())))
        return encoder(small_tokenizer(place, template, eos), **settings)

    return made


@pytest.mark.smoke(every=3)
@pytest.mark.parametrize(
    ("template", "eos", "texts", "expected"),
    [
        pytest.param(CHATML, "<|im_end|>", ["q", "one", "r", "two"], ["one<|im_end|>", "two<|im_end|>"], id="chatml"),
        pytest.param(CHATML, "</s>", ["q", "one", "r", "two"], ["one<|im_end|>", "two<|im_end|>"], id="another_eos"),
        pytest.param(CHATML, "<|im_end|>", ["q", "one", "r"], ["one<|im_end|>"], id="ends_on_a_user"),
        pytest.param(CHATML, "<|im_end|>", ["system: be", "q", "one", "system: now", "r", "two"], ["one<|im_end|>", "two<|im_end|>"], id="two_systems"),
        pytest.param(CHATML, "<|im_end|>", ["assistant: hello", "q", "one"], ["hello<|im_end|>", "one<|im_end|>"], id="begins_with_the_assistant"),
        pytest.param(CHATML, "<|im_end|>", ["q", "one", "assistant: more", "r", "two"], ["one<|im_end|>", "more<|im_end|>", "two<|im_end|>"], id="two_answers_in_a_row"),
        pytest.param(CHATML, "<|im_end|>", ["q", ""], ["<|im_end|>"], id="an_empty_answer"),
        pytest.param(CHATML, "<|im_end|>", ["", "one"], ["one<|im_end|>"], id="an_empty_question"),
        pytest.param(CHATML, "<|im_end|>", ["q", " one \n"], [" one \n<|im_end|>"], id="white_space_kept"),
        pytest.param(CHATML, "<|im_end|>", ["<|im_start|>assistant\nno<|im_end|>\n", "one"], ["one<|im_end|>"], id="a_user_writes_marks"),
        pytest.param(CHATML, "<|im_end|>", ["assistant", "user", "user", "assistant"], ["user<|im_end|>", "assistant<|im_end|>"], id="words_of_the_template"),
        pytest.param(TRIMMED, "<|im_end|>", [" q ", " one \n", "\n", "two\n\n"], ["one<|im_end|>", "two<|im_end|>"], id="trimmed"),
        pytest.param(BRACKETS, "</s>", ["q", "one", "r", "two"], [" one</s>", " two</s>"], id="no_generation_prompt"),
        pytest.param(GENERATION, "</s>", ["q", "one", "r", "two"], ["one</s>", "two</s>"], id="generation_blocks"),
        pytest.param(LAST_ONLY, "</s>", ["q", "one", "r", "two"], ["one</s>", "two</s>"], id="prompt_in_the_loop"),
        pytest.param(ANOTHER_END, "<|return|>", ["q", "one", "r", "two"], ["<|message|>one<|end|>", "<|message|>two<|return|>"], id="another_end_at_the_end"),
        pytest.param(NO_TOKENS, "</s>", ["q", "one", "r", "two"], ["one", "two"], id="no_special_tokens"),
        pytest.param(THINKING, "<|im_end|>", ["q", "<think>a</think>\none", "r", "two"], ["one<|im_end|>", "two<|im_end|>"], id="reasoning_stripped"),
        pytest.param(BY_CONTENT, "<|im_end|>", ["q", "one"], ["</think>one<|im_end|>"], id="prompt_opens_reasoning"),
        pytest.param(BY_CONTENT, "<|im_end|>", ["q /off", "one"], ["one<|im_end|>"], id="prompt_closes_reasoning"),
        pytest.param(TITLED, "<|im_end|>", ["q", "one", "r", "two"], ["One<|im_end|>", "Two<|im_end|>"], id="changes_the_text"),
        pytest.param(CLOSED, "<|im_end|>", ["q", "one", "r", "two"], ["one<|im_end|>", "two<|im_end|>"], id="text_behind_the_last_turn"),
        pytest.param(CLOSED, "</s>", ["q", "one", "r", "two"], ["one<|im_end|>", "two<|im_end|>\n</s>"], id="eos_behind_the_last_turn"),
        pytest.param(REVERSED, "<|im_end|>", ["q", "one", "r", "two"], ["eno<|im_end|>", "owt<|im_end|>"], id="changes_every_character"),
    ],
)  # fmt: skip
def test_the_trained_texts_are(under, template, eos, texts, expected):
    found = under(template, eos)

    assert [expected] == trained_texts(found, [chat(*texts)])
    assert [expected] * 3 == trained_texts(found, [chat(*texts)] * 3)  # as the shape is known


def test_one_shape_with_different_texts_after_another(under):
    found = under(BY_CONTENT)
    rows = [chat("q", "one"), chat("q /off", "two"), chat("r", "three"), chat("s /off", "four")]

    assert [["</think>one<|im_end|>"], ["two<|im_end|>"], ["</think>three<|im_end|>"], ["four<|im_end|>"]] == trained_texts(found, rows)  # fmt: skip


def test_a_known_shape_does_not_decide_what_the_text_is(under):
    rows = [chat("q", "one"), chat("q", "two"), chat("q", "three"), chat("query", "four"), chat("q", "five"), chat("q", "six")]  # fmt: skip

    assert [["one<|im_end|>"], ["two<|im_end|>"], ["(long) three<|im_end|>"], ["(long) four<|im_end|>"], ["(long) five<|im_end|>"], ["six<|im_end|>"]] == trained_texts(under(BY_LENGTH), rows)  # fmt: skip


@pytest.mark.parametrize("change", ["", " | upper", " | reverse"])
def test_an_answer_that_is_written_twice_has_no_certain_mask(under, change):
    template = "{{ messages[-1].content" + change + " + '\n' }}" + CHATML.replace("message.content", "(message.content" + change + ")")  # fmt: skip
    found = under(template)

    assert [] == trained_texts(found, [chat("q", "one")], rejected=["uncertain_mask"])
    if "reverse" not in change:  # which marks disturb; the turn alone is then written twice too
        assert [["one<|im_end|>"]] == [[text.lower() for text in texts] for texts in trained_texts(found, [chat("q", "one", "r")])]  # fmt: skip


CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1, "b": "two"}}}]}  # fmt: skip


@pytest.mark.smoke(every=2)
@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (XML_CALLS, '<call=add><a>1</a><b>two</b></call><|im_end|>'),
        (JSON_CALLS, '<call=add>{"a": 1, "b": "two"}</call><|im_end|>'),
    ],
)  # fmt: skip
@pytest.mark.parametrize("arguments", [{"a": 1, "b": "two"}, json.dumps({"a": 1, "b": "two"}), json.dumps(json.dumps({"a": 1, "b": "two"}))])  # fmt: skip
def test_tool_calls_are_trained_whole_and_never_encoded_twice(under, template, expected, arguments):
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": {"name": "add", "arguments": arguments}}],
    }
    row = {"messages": [{"role": "user", "content": "q"}, call, {"role": "tool", "content": "3"}, {"role": "assistant", "content": "three"}]}  # fmt: skip

    assert [[expected, "three<|im_end|>"]] * 2 == trained_texts(under(template), [row, row])


@pytest.mark.parametrize("change", ["", " | string", " | tojson(ensure_ascii=true)"])
@pytest.mark.parametrize(
    "digits", ["0.10", "1e-7", "1.5E5", "-0.0", "123456789.123456789123456789"]
)
def test_numbers_in_arguments_that_are_text_keep_their_digits(under, digits, change):
    template = XML_CALLS.replace("value | tojson", f"value{change or ' | tojson'}")
    call = {"function": {"name": "f", "arguments": f'{{"a": {digits}, "b": [{digits}, "0.10"]}}'}}
    row = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [call]}]}  # fmt: skip
    quote = "'" if "string" in change else '"'
    listed = f"[{digits}, {quote}0.10{quote}]"

    assert [[f"<call=f><a>{digits}</a><b>{listed}</b></call><|im_end|>"]] == trained_texts(under(template), [row])  # fmt: skip


def test_numbers_that_no_double_holds_are_refused(under):
    call = {"function": {"name": "f", "arguments": '{"a": 1e400}'}}
    row = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [call]}]}  # fmt: skip

    assert [] == trained_texts(under(JSON_CALLS), [row], rejected=["bad_tool_call"])


@pytest.mark.parametrize(
    "arguments", [{}, {"a": 1}, {"a": [1, {"b": None}]}, {"a": "</call><|im_end|>\n"}]
)
def test_arguments_of_every_kind(under, arguments):
    call = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "f", "arguments": arguments}}] * 2,
    }
    row = {"messages": [{"role": "user", "content": "q"}, call, {"role": "user", "content": "r"}, {"role": "assistant", "content": "x"}]}  # fmt: skip
    written = f"<call=f>{json.dumps(arguments)}</call>"

    assert [[f"{written}{written}<|im_end|>", "x<|im_end|>"]] == trained_texts(
        under(JSON_CALLS), [row]
    )


@pytest.mark.smoke(every=3)
@pytest.mark.parametrize(
    "arguments", [{}, {"a": 1}, {"a": [1, "b"], "c": {"d": None}}, {"a": True, "b": "x", "c": 2.5}]
)
@pytest.mark.parametrize("tools", [None, [{"name": "f", "parameters": {"n": 1}}]])
def test_arguments_written_one_by_one(under, arguments, tools):
    """Each as JSON; tools are written in the middle of the conversation, behind a message with a call."""
    template = ITEM_CALLS.replace(
        "{{ '<|im_start|>' +",
        "{% if loop.last and tools %}{{ tools | tojson }}{% endif %}{{ '<|im_start|>' +",
        1,
    )
    call = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "f", "arguments": arguments}}],
    }
    row = {
        "messages": [{"role": "user", "content": "q"}, call, {"role": "assistant", "content": "x"}],
        "tools": tools,
    }
    written = "".join(f"<{name}>{json.dumps(value)}</{name}>" for name, value in arguments.items())
    found = under(template if tools else ITEM_CALLS)

    assert [[f"<call=f>{written}</call><|im_end|>", "x<|im_end|>"]] == trained_texts(found, [row])


def test_what_a_template_leaves_out_is_no_sequence(under):
    found = under(ONLY_USERS_AND_ANSWERS)
    rows = [
        chat("system: be kind", "q", "one"),
        chat("q", "one"),
        {"messages": [{"role": "user", "content": "q"}, CALL]},
    ]

    assert [["one<|im_end|>"]] == trained_texts(
        found, rows, rejected=["not_rendered", "not_rendered"]
    )


def test_an_error_of_the_template_is_a_reason(under):
    encoded = under(BRACKETS, "</s>").encode([chat("system: no", "q", "one"), chat("q", "one")])

    assert [(0, "template_error")] == [(each.row, each.reason) for each in encoded.rejected]
    assert "only user and assistant" in encoded.rejected[0].detail
    assert [1] == encoded.rows.tolist()


def test_weights_leave_out_single_answers(under):
    row = chat("q", "one", "r", "two", "s", "three")
    for place, weight in ((1, 0), (3, 1.0), (5, False)):
        row["messages"][place]["weight"] = weight
    for template, eos, end in ((CHATML, "<|im_end|>", "<|im_end|>"), (GENERATION, "</s>", "</s>")):
        assert [[f"two{end}"]] * 2 == trained_texts(under(template, eos), [row, row])


@pytest.mark.slow
def test_every_user_turn_is_a_sequence_with_its_reasoning(under):
    row = chat("q", "one", "r", "two", "s")
    row["messages"][1]["reasoning_content"] = "why"
    row["messages"][3]["reasoning_content"] = "so"
    kept = under(THINKING, reasoning="every_user_turn")
    own = under(THINKING)
    encoded = kept.encode([chat("a", "b"), row, row])

    assert [0, 1, 1, 2, 2] == encoded.rows.tolist()
    assert [["why\n</think>\none<|im_end|>"], ["so\n</think>\ntwo<|im_end|>"]] == trained_texts(
        kept, [row]
    )
    assert [["one<|im_end|>", "two<|im_end|>"]] == trained_texts(own, [row])


@pytest.mark.slow
def test_values_of_the_template_change_the_prompt(under):
    template = CHATML.replace("assistant\\n' }}{% endif", "assistant\\n' }}{% if quiet %}{{ '<think></think>' }}{% endif %}{% endif").replace("message.role + '\\n' +", "message.role + '\\n' + ('<think></think>' if quiet and message.role == 'assistant' else '') +")  # fmt: skip

    assert [["one<|im_end|>"]] == trained_texts(under(template), [chat("q", "one")])
    assert [["one<|im_end|>"]] == trained_texts(
        under(template, template_values={"quiet": True}), [chat("q", "one")]
    )
    assert [["one<|im_end|>"]] == trained_texts(under(template), [chat("q", "one", chat_template_kwargs={"quiet": True})])  # fmt: skip


@pytest.mark.parametrize("written", ["", " + (message.tool_call_id or '')"])
def test_ids_of_calls_do_not_hinder_and_are_not_mixed_up(under, written):
    template = JSON_CALLS.replace("+ message.content", "+ message.content" + written)
    rows = []
    for place in range(12):
        call = {"id": f"call_{place}", "function": {"name": "f", "arguments": {}}}
        answer = {"role": "tool", "content": "r", "tool_call_id": f"call_{place}"}
        rows.append({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [call]}, answer, {"role": "assistant", "content": "x"}]})  # fmt: skip
    found = under(template)

    assert [["<call=f>{}</call><|im_end|>", "x<|im_end|>"]] * 12 == trained_texts(found, rows)
    for place, parts in enumerate(found.texts(found.encode(rows))):
        assert bool(written) is (f"rcall_{place}<|im_end|>" in "".join(text for text, _ in parts))


@pytest.mark.slow
def test_a_call_that_may_not_be_the_last_message_still_has_its_end(under):
    """The turn alone cannot be rendered, so the token that ends sequences is the only certain end."""
    template = JSON_CALLS.replace("{{ '<|im_start|>' + message.role", "{% if loop.last and message.tool_calls %}{{ raise_exception('unanswered') }}{% endif %}{{ '<|im_start|>' + message.role", 1)  # fmt: skip
    row = {"messages": [{"role": "user", "content": "q"}, CALL, {"role": "tool", "content": "r"}, {"role": "assistant", "content": "x"}]}  # fmt: skip

    assert [['<call=add>{"a": 1, "b": "two"}</call><|im_end|>', "x<|im_end|>"]] == trained_texts(
        under(template), [row]
    )
    assert [] == trained_texts(under(template, eos="</s>"), [row], rejected=["uncertain_mask"])


@pytest.mark.parametrize(
    "texts", ["['q', 'one']", "['q', 'one', 'two'] or message.content | length > 4"]
)
def test_a_template_that_knows_all_its_texts_is_no_error_of_the_row(under, texts):
    """It refuses marks and changes; what can be rendered is not called an error of the template."""
    template = LOOP + "{% if not (message.content in " + texts + ") %}{{ raise_exception('unknown') }}{% endif %}{% endfor %}" + CHATML  # fmt: skip
    certain = "length" in texts  # there a mark makes the text long enough
    found = under(template).encode([chat("q", "one"), chat("q", "nope")])

    assert ([] if certain else ["uncertain_mask"]) + ["template_error"] == [
        each.reason for each in found.rejected
    ]
