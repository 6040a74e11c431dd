"""Every character of a source is accounted for, and losses that change what a model learns fail a run."""

import csv
import json
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chats import CHATML, chat, encoder, small_tokenizer, trained_texts
from hypothesis import given, settings
from hypothesis import strategies as st
from recipe_cases import packed, sequences_in, write_jsonl
from test_templates_and_masks import GENERATION, THINKING, TITLED, XML_CALLS

from headrace.errors import InputError
from headrace.packing.chats.layouts import is_transcript
from headrace.packing.chats.settings import ChatForm
from laws import examples
from raised import raised

RENAMED = THINKING.replace("message.reasoning_content", "message.thinking")
KEEPS = CHATML.replace("message.content +", "(('<think>' + message.reasoning_content + '</think>') if message.reasoning_content else '') + message.content +")  # fmt: skip
JSON_RESULTS = CHATML.replace("message.content +", "(message.content | tojson if message.role == 'tool' else message.content) +")  # fmt: skip
FULL = {"train_ratio": 1, "val_ratio": 0, "test_ratio": 0}


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    """An encoder for each way of finding turns, and for templates that leave reasoning out."""
    directory = tmp_path_factory.mktemp("words")
    templates = (CHATML, THINKING, GENERATION, TITLED, XML_CALLS, KEEPS)
    return [
        encoder(small_tokenizer(directory / str(number), template))
        for number, template in enumerate(templates)
    ]


def characters_of(value) -> int:
    """The characters of all texts, other than names of roles and types; written apart from headrace."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(
            characters_of(inner)
            for key, inner in value.items()
            if key not in ("role", "from", "type") or not isinstance(inner, str)
        )
    return sum(map(characters_of, value)) if isinstance(value, list) else 0


def characters_of_row(row) -> int:
    return sum(map(characters_of, row.values()))


words = st.lists(
    st.sampled_from(["a", "b ", "\n", "é", "<think>", "x</think>\n", "</think>", "two words"]),
    max_size=4,
).map("".join)
parts = st.lists(
    st.tuples(st.sampled_from(["text", "reasoning"]), words).map(
        lambda part: {"type": part[0], "text": part[1], "note": "n", "content": "some words"}
    ),
    max_size=3,
)
extras = st.dictionaries(
    st.sampled_from(["reasoning_content", "thinking", "name", "note", "value"]),
    words | st.none(),
    max_size=2,
)
calls = st.just(
    {"tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": "one"}}}]}
)
messages = st.builds(
    lambda role, content, extra, call: {"role": role, "content": content, **extra, **(call if role == "assistant" else {})},
    st.sampled_from(["system", "user", "assistant", "tool"]),
    words | words | parts | st.none(),
    extras,
    st.just({}) | calls,
)  # fmt: skip
rows = st.fixed_dictionaries(
    {"messages": st.lists(messages, min_size=1, max_size=5)},
    optional={
        "tools": st.just(
            [
                {
                    "type": "function",
                    "function": {
                        "name": "add",
                        "parameters": {"type": {"type": "string", "description": "of it"}},
                    },
                }
            ]
        ),
        "system": words,
        "prompt": words,
        "source": words,
        "role": words,
        "content": words,
        "values": words,
        "type": words,
        "chat_template_kwargs": st.just({"style": "in a few words"}),
        "deep": st.fixed_dictionaries({"a": words, "b": st.lists(words, max_size=2)}),
    },
)


@settings(max_examples=examples(60))
@given(st.lists(rows, min_size=1, max_size=6), st.sampled_from(range(6)))
def test_the_account_of_each_row_adds_up_to_its_characters(encoders, found, which):
    account = encoders[which].encode(found).words

    assert [characters_of_row(row) for row in found] == [
        sum(fate.characters for fate in words.fates) for words in account
    ]


def fates_of(encoder, row) -> Counter:
    (words,) = encoder.encode([row]).words
    found: Counter = Counter()
    for kind, fate, characters in words.fates:
        found[kind, fate] += characters
    return found


def answered(**answer) -> dict:
    return {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", **answer}]}


def test_reasoning_that_a_template_leaves_out_is_counted_and_fails_a_run(tmp_path):
    tokenizer = small_tokenizer(tmp_path / "t")
    row = answered(content="yes", reasoning_content="because of it")
    path = write_jsonl(tmp_path / "rows.jsonl", [row] * 3)

    with raised(InputError, setting="max_lost_share", value=0) as error:
        packed(path, tmp_path / "out", tokenizer=tokenizer, **FULL)
    assert "line 1: message 2" in str(error.value)
    run = packed(path, tmp_path / "out", tokenizer=tokenizer, max_lost_share=1, **FULL)
    assert {"removed": [39, 3]} == run.manifest.metadata["words"]["reasoning"]
    run = packed(path, tmp_path / "drop", tokenizer=tokenizer, reasoning="drop", **FULL)
    assert {"removed": [39, 3]} == run.manifest.metadata["words"]["reasoning"]


def test_keep_refuses_a_row_whose_reasoning_the_template_leaves_out(tmp_path):
    row = answered(content="yes", reasoning_content="because")

    for template, rejected in ((CHATML, ["not_rendered"]), (KEEPS, [])):
        keeping = encoder(
            small_tokenizer(tmp_path / str(len(template)), template), reasoning="keep"
        )
        assert rejected == [rejection.reason for rejection in keeping.encode([row]).rejected]


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
@pytest.mark.parametrize("template", [THINKING, RENAMED])
def test_reasoning_is_given_to_the_template_under_the_key_that_it_reads(tmp_path, template, key):
    found = encoder(small_tokenizer(tmp_path / "t", template))
    row = answered(content="yes", **{key: "because", "name": None})

    assert [["because\n</think>\nyes<|im_end|>"]] == trained_texts(found, [row])
    row["messages"][1] = {"role": "assistant", "content": [{"type": "thinking", "thinking": "because"}, {"type": "text", "text": "yes"}]}  # fmt: skip
    assert [["because\n</think>\nyes<|im_end|>"]] == trained_texts(found, [row])


@pytest.mark.parametrize(
    ("role", "content"), [("role", "value"), ("from", "content"), ("role", "text")]
)
def test_content_under_another_key_is_bad_content(encoders, role, content):
    row = {"messages": [{role: "user", content: "q"}, {role: "assistant", content: "a word"}]}

    (rejection,) = encoders[0].encode([row]).rejected
    assert "bad_content" == rejection.reason
    assert f"content={content}" in rejection.detail


@pytest.mark.parametrize("answer", [{"content": None}, {}])
def test_an_answer_that_is_null_or_missing_is_no_answer(encoders, answer):
    assert [] == trained_texts(encoders[0], [answered(**answer)], rejected=["no_answer"])
    assert [["<|im_end|>"]] == trained_texts(encoders[0], [answered(content="")])


def test_words_under_a_key_that_nothing_reads_fail_a_run_and_identifiers_do_not(encoders):
    noted = answered(content="yes", note="it is said", id="a1")
    (words,) = encoders[0].encode([noted]).words

    assert {"unread_key": "message 2, key note"} == words.faults
    assert 12 == fates_of(encoders[0], noted)["keys", "unread"]
    (words,) = encoders[0].encode([answered(content="yes", id="a1")]).words
    assert {} == words.faults


def test_keys_that_the_settings_name_may_stay_unread(tmp_path):
    found = encoder(small_tokenizer(tmp_path / "t"), unread=["note", "prompt"])
    row = {**answered(content="yes", note="it is said"), "prompt": "elsewhere"}

    assert {} == found.encode([row]).words[0].faults


def test_a_prompt_column_must_be_in_a_message(encoders):
    for prompt, faults in (("q", {}), ("never said", {"unread_prompt": "column prompt"})):
        row = {**answered(content="yes"), "prompt": prompt}
        assert faults == encoders[0].encode([row]).words[0].faults


@pytest.mark.parametrize("name", ["weight", "loss_mask", "train", "training", "trainable"])
@pytest.mark.parametrize("value", [0, False])
def test_flags_of_messages_say_what_is_trained(encoders, name, value):
    row = chat("q", "one", "r", "two")
    row["messages"][1][name] = value

    assert [["two<|im_end|>"]] == trained_texts(encoders[0], [row])


@pytest.mark.parametrize("name", ["weight", "train"])
def test_a_flag_that_asks_to_train_a_question_is_a_bad_weight(encoders, name):
    row = answered(content="yes")
    row["messages"][0][name] = 1

    assert [] == trained_texts(encoders[0], [row], rejected=["bad_weight"])


def test_an_argument_that_a_template_leaves_out_is_not_rendered(tmp_path):
    call = {"function": {"name": "add", "arguments": {"a": "one", "b": ["two"]}}}
    row = answered(content="", tool_calls=[call])

    for which, template in enumerate((CHATML, GENERATION)):
        named = template.replace("message.content", "(message.content or message.tool_calls[0].function.name)")  # fmt: skip
        for template, rejected in ((named, ["not_rendered"]), (named.replace(".name", " | tojson"), [])):  # fmt: skip
            found = encoder(small_tokenizer(tmp_path / f"{which}{len(rejected)}", template))
            assert rejected == [rejection.reason for rejection in found.encode([row]).rejected]


def test_what_a_template_leaves_out_of_tools_is_removed(tmp_path):
    tools = [{"type": "function", "function": {"name": "add", "description": 'adds "two"\n'}}]
    row = {**answered(content="yes"), "tools": tools}
    some = "{% for tool in tools %}{{ tool.function.name }}{% endfor %}" + CHATML
    every = "{{ tools | tojson }}" + CHATML
    never = "{% if tools and messages[0].role == 'system' %}{{ tools | tojson }}{% endif %}" + CHATML  # fmt: skip

    for number, (template, written, removed) in enumerate(((some, 3, 11), (every, 14, 0))):
        found = fates_of(encoder(small_tokenizer(tmp_path / str(number), template)), row)
        assert (written, removed) == (found["tools", "context"], found["tools", "removed"])
    assert [] == trained_texts(encoder(small_tokenizer(tmp_path / "t", never)), [row], rejected=["not_rendered"])  # fmt: skip


def test_functions_that_nothing_reads_fail_a_run(encoders):
    row = {**answered(content="yes"), "functions": [{"name": "add", "description": "adds two"}]}

    assert {"unread_prompt": "column functions"} == encoders[0].encode([row]).words[0].faults
    found = encoders[0].encode([row], ChatForm(mapping={"tools": "functions"}))
    assert ["not_rendered"] == [rejection.reason for rejection in found.rejected]


def test_a_run_warns_of_answers_without_words(tmp_path):
    rows = [answered(content=content) for content in ("", " \n", "yes")]
    rows.append(answered(content="", reasoning_content="so"))
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    notes: list = []
    packed(path, tmp_path / "out", tokenizer=small_tokenizer(tmp_path / "t", KEEPS), on_event=notes.append, **FULL)  # fmt: skip

    told = [note.text for note in notes if getattr(note, "level", "") == "warning"]
    assert [text for text in told if text.startswith("2 trained answers are empty")]


def test_names_of_flags_and_roles_are_settings(tmp_path):
    tokenizer = small_tokenizer(tmp_path / "t")
    found = encoder(tokenizer, mapping={"weight": "learn"}, roles={"narrator": "system"})
    row = chat("system: s", "q", "one", "r", "two")
    row["messages"][0]["role"] = "narrator"
    row["messages"][2]["learn"] = 0
    row["messages"][3]["role"] = "User"

    assert [["two<|im_end|>"]] == trained_texts(found, [row])


def test_flags_that_disagree_are_a_bad_weight(encoders):
    row = answered(content="a", weight=1, train=0)

    assert [] == trained_texts(encoders[0], [row], rejected=["bad_weight"])


def test_every_user_turn_keeps_reasoning_between_tags(tmp_path):
    tokenizer = small_tokenizer(tmp_path / "t", THINKING)
    rows = [chat("q", "<think>\na</think>\none", "r", "<think>\nb</think>\ntwo")]
    found = encoder(tokenizer, reasoning="every_user_turn")

    assert 2 == len(trained_texts(found, rows))
    assert [["two<|im_end|>"]] == trained_texts(encoder(tokenizer, train_on="last_turn"), rows)


MASKED = [
    pytest.param(KEEPS, {"reasoning_content": "so"}, "yes", "<think>so</think>", id="key"),
    pytest.param(CHATML, {}, "<think>\nso</think>\n\nyes", "", id="tags"),
    pytest.param(TITLED, {}, "<think>\nso</think>\n\nyes", "", id="by_difference"),
    pytest.param(GENERATION, {}, "<think>\nso</think>\n\nyes", "", id="blocks"),
]


@pytest.mark.parametrize(("template", "key", "content", "written"), MASKED)
def test_masked_reasoning_is_context_and_the_answer_is_trained(tmp_path, template, key, content, written):  # fmt: skip
    stop = "</s>" if template is GENERATION else "<|im_end|>"
    found = encoder(small_tokenizer(tmp_path / "t", template, stop), reasoning="mask")
    row = answered(content=content, **key)

    assert [[f"yes{stop}"]] * 2 == trained_texts(found, [row, row])
    (parts,) = found.texts(found.encode([row]))
    assert written in "".join(text for text, mask in parts if not mask)
    assert set(fates_of(found, row)) == {("content", "context"), ("content", "trained"), ("reasoning", "context")}  # fmt: skip


def test_masked_reasoning_before_a_call_leaves_the_call_trained(tmp_path):
    template = XML_CALLS.replace("message.content }}", "('<think>' + message.reasoning_content + '</think>\n' if message.reasoning_content else '') + message.content }}")  # fmt: skip
    found = encoder(small_tokenizer(tmp_path / "t", template), reasoning="mask")
    call = {"function": {"name": "add", "arguments": {"a": "x"}}}
    row = answered(content="", reasoning_content="so", tool_calls=[call])

    assert [["<call=add><a>x</a></call><|im_end|>"]] == trained_texts(found, [row])


def test_results_that_a_template_writes_as_json_are_packed(tmp_path):
    found = encoder(small_tokenizer(tmp_path / "t", JSON_RESULTS))
    row = chat("q", 'assistant: "one"', 'tool: it is "42"', "assistant: two")

    assert [['"one"<|im_end|>', "two<|im_end|>"]] == trained_texts(found, [row])
    assert fates_of(found, row)["results", "context"] == len('it is "42"')


def test_a_mapping_that_finds_nothing_is_said_so(tmp_path):
    tokenizer = small_tokenizer(tmp_path / "t")
    found = encoder(tokenizer, mapping={"messages": "a.b"})

    (rejection,) = found.encode([{"text": "row 7"}]).rejected
    assert "unknown_layout" == rejection.reason
    assert "a.b" in rejection.detail


def test_plain_text_begins_as_the_tokenizer_begins_it(tmp_path):
    from tokenizers import Tokenizer, processors

    directory = small_tokenizer(tmp_path / "t")
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    begin = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", begin)]
    )
    tokenizer.save(str(directory / "tokenizer.json"))

    encoded = encoder(directory).encode([{"text": "the answer"}])
    assert [begin, 0] == [encoded.tokens[0], encoded.mask[0]]
    bare = encoder(directory, bos="none").encode([{"text": "the answer"}])
    assert encoded.tokens[1:].tolist() == bare.tokens.tolist()


@pytest.mark.parametrize(("key", "value"), [("masked", True), ("loss", 0), ("train_detail", False)])
def test_a_flag_that_nothing_reads_fails_a_run(encoders, key, value):
    (words,) = encoders[0].encode([answered(content="yes", **{key: value})]).words

    assert {"unread_key": f"message 2, key {key}"} == words.faults
    (words,) = encoders[0].encode([answered(content="yes", **{key: 17}, is_error=False)]).words
    assert {} == words.faults


def test_words_beside_the_text_of_a_part_fail_a_run(tmp_path, encoders):
    part = {"type": "text", "text": "yes", "content": "the words", "id": "a1"}
    row = answered(content=[part])

    (words,) = encoders[0].encode([row]).words
    assert {"unread_key": "message 2, key content of a part"} == words.faults
    assert 11 == fates_of(encoders[0], row)["parts", "unread"]
    allowed = encoder(small_tokenizer(tmp_path / "t"), unread=["content"])
    assert {} == allowed.encode([row]).words[0].faults


def test_a_part_whose_type_is_no_text_is_bad_content(encoders):
    row = answered(content=[{"type": ["text"], "text": "yes"}])

    assert [] == trained_texts(encoders[0], [row], rejected=["bad_content"])


def test_template_values_may_be_json_text(tmp_path):
    template = "{% if loud %}LOUD{% endif %}" + CHATML
    found = encoder(small_tokenizer(tmp_path / "t", template))

    for values, begin in (('{"loud": true}', "LOUD"), ("", "<|im_start|>"), ('{"loud": false}', "<|im_start|>")):  # fmt: skip
        encoded = found.encode([answered(content="yes") | {"chat_template_kwargs": values}])
        assert found.texts(encoded)[0][0][0].startswith(begin)
    row = answered(content="yes") | {"chat_template_kwargs": "[1]"}
    assert [] == trained_texts(found, [row], rejected=["bad_content"])


def test_a_user_turn_that_no_sequence_holds_is_left_out(tmp_path):
    found = encoder(small_tokenizer(tmp_path / "t", KEEPS), reasoning="every_user_turn")
    row = chat("q", "<think>so</think>yes", "and then")

    assert 1 == len(trained_texts(found, [row]))
    assert 8 == fates_of(found, row)["content", "left_out"]


def test_chats_in_csv_parquet_and_json_lines_have_one_account(tmp_path):
    tokenizer = small_tokenizer(tmp_path / "t", KEEPS)
    tools = [{"type": "function", "function": {"name": "add", "description": "adds two"}}]
    rows = [
        {**answered(content="yes é", reasoning_content="so"), "source": "a b"},
        {**chat("system: s", "q", "one", "r", "two\n"), "source": "c"},
    ]
    for row in rows:
        row["tools"] = tools
    table = pa.Table.from_pylist(rows)
    (tmp_path / "pq").mkdir()
    pq.write_table(table, tmp_path / "pq" / "a.parquet")
    (tmp_path / "csv").mkdir()
    with open(tmp_path / "csv" / "a.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        for row in rows:
            writer.writerow({key: value if isinstance(value, str) else json.dumps(value) for key, value in row.items()})  # fmt: skip
    write_jsonl(tmp_path / "json" / "a.jsonl", rows)
    template = KEEPS.replace("{% for", "{{ tools | tojson if tools }}{% for", 1)
    results = []
    for kind in ("json", "csv", "pq"):
        run = packed(tmp_path / kind, tmp_path / f"out-{kind}", tokenizer=tokenizer, chat_template=template, **FULL)  # fmt: skip
        metadata = run.manifest.metadata
        results.append((metadata["words"], metadata["messages"], metadata["packed"]["labels"]))

    total = sum(characters for kinds in results[0][0].values() for characters, _ in kinds.values())
    assert sum(map(characters_of_row, rows)) == total
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("rule", ["truncate", "drop", "split"])
def test_masked_reasoning_of_chats_that_are_cut_is_accounted_for_and_never_trained(tmp_path, rule):
    tokenizer = small_tokenizer(tmp_path / "t", KEEPS)
    long = answered(content="b" * 90, reasoning_content="x" * 20)
    hidden = answered(content="b" * 9, reasoning_content="x" * 300)
    rows = [long, hidden, answered(content="bb", reasoning_content="x")]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)

    run = packed(path, tmp_path / "out", tokenizer=tokenizer, pack_size=64, too_long=rule, reasoning="mask", max_bad_share=1, duplicates="allow", **FULL)  # fmt: skip
    words = run.manifest.metadata["words"]
    found = encoder(tokenizer)
    trained = "".join(found.tokenizer.decode([label for label, mask in zip(ids[1:], mask, strict=False) if mask]) for ids, mask in sequences_in(tmp_path / "out", "train"))  # fmt: skip

    total = sum(characters for fates in words.values() for characters, _ in fates.values())
    assert sum(map(characters_of_row, rows)) == total
    assert "trained" not in words["reasoning"]
    assert {"b"} == set(trained.replace("<|im_end|>", ""))
    assert ("cut" in words["content"]) == (rule != "split")


def test_chats_in_plain_texts_are_told(tmp_path):
    tokenizer = small_tokenizer(tmp_path / "t")
    texts = ["User: hi\nAssistant: hello", "### Human: hi### Assistant: yes", "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na", "[INST] q [/INST] a", "Q: who?\nA: me"]  # fmt: skip
    others = ["a user: of words", "The answer: forty two", "User: hi"]
    path = write_jsonl(tmp_path / "rows.jsonl", [{"text": text} for text in texts + others])
    notes: list = []
    packed(path, tmp_path / "out", tokenizer=tokenizer, on_event=notes.append, **FULL)

    assert [text in texts for text in texts + others] == [*map(is_transcript, texts + others)]
    told = [note.text for note in notes if getattr(note, "level", "") == "warning"]
    assert [text for text in told if text.startswith("5 of 8 plain texts look like chats")]


def test_what_does_not_fit_a_bin_is_cut_in_the_account(tmp_path):
    tokenizer = small_tokenizer(tmp_path / "t")
    row = chat("q" * 20, "a" * 400)
    path = write_jsonl(tmp_path / "rows.jsonl", [row, chat("q", "a")])
    expected = characters_of_row(row) + 2

    for rule in ("truncate", "drop"):
        run = packed(
            path, tmp_path / rule, tokenizer=tokenizer, pack_size=64, too_long=rule, **FULL
        )
        account = run.manifest.metadata["words"]["content"]
        assert expected == sum(characters for characters, _ in account.values())
        assert account["cut"][0] > 300


def test_peek_shows_the_account_of_a_row(tmp_path, capsys):
    from headrace.packing.mask_view import MaskOptions, show_masks

    path = write_jsonl(tmp_path / "rows.jsonl", [answered(content="yes", reasoning="as said")])
    options = MaskOptions(mask=True, tokenizer=str(small_tokenizer(tmp_path / "t")))
    show_masks(str(path), 1, options, as_json=True)

    record = json.loads(capsys.readouterr().out)["rows"][0]
    assert {"reasoning": {"removed": [7, 1]}} == {"reasoning": record["words"]["reasoning"]}
    assert ["reasoning_removed"] == list(record["faults"])
