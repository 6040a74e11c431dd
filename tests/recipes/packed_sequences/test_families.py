"""Templates of public models, as TRL ships them: ids are those of transformers, and pairs are those of TRL."""

import datetime
import re

import pyarrow.parquet as pq
import pytest
from chats import ENDS, TEMPLATES, encoder, needs_trl, small_tokenizer
from recipe_cases import write_jsonl

import headrace
from headrace.packing.chats.layouts import sample_of

FULL = {"train_ratio": 1, "val_ratio": 0, "test_ratio": 0}
FAMILIES = ("cohere", "cohere2", "deepseekv3", "gemma", "gemma3", "gemma4", "glm4moe", "lfm2", "lfm2_2_5", "llama3", "llama3_1", "phi3", "qwen2_5", "qwen3", "qwen3_5_think", "qwen3_instruct_2507")  # fmt: skip
TOOLS = ("gemma4", "lfm2_2_5", "llama3_1", "qwen2_5", "qwen3", "qwen3_5_think", "glm4moe")
NO_STOP = ("glm4moe",)  # ends the last turn with nothing, the others with the next role
REWRITES_PROMPTS = ("deepseekv3",)  # asks for reasoning that an answer need not have
SPECIAL = re.compile(
    r"<[a-z_]+\|>|<\|[^|>\s{}']+\|?>|<｜[^｜]*｜>|<[a-z]+_of_[a-z]+>|\[gMASK\]|<sop>"
)


def family_tokenizer(directory, family):
    """A small tokenizer with the template and the special tokens of a family."""
    from tokenizers import AddedToken, Tokenizer

    source = (TEMPLATES / f"{family}.jinja").read_text("utf-8")
    eos = next((token for token in ENDS if token in source), "</s>")
    if family == "phi3":  # written after the end of the last turn
        eos = "<|endoftext|>"
    small_tokenizer(directory, source, eos, tokenizer_class="PreTrainedTokenizerFast")
    path = str(directory / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    tokens = sorted({*SPECIAL.findall(source), eos})
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in tokens])
    tokenizer.save(path)
    return directory


def loaded(directory):
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast.from_pretrained(directory)


def said(*texts):
    roles = ("user", "assistant")
    return [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]


CHATS = [
    said("how many apples", "forty two"),
    said("q one\n\nmore", "the answer: {'a': 1}", "and then?", "é 😀 e\u0301 <b>x</b>"),
    said("user", "assistant", "yes", "yes", "yes", "no"),
]
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": "one two", "n": 2.5}}}
WITH_TOOLS = {
    "messages": [
        {"role": "user", "content": "add them"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "name": "add", "content": "forty one"},
        {"role": "assistant", "content": "it is 41"},
    ],
    "tools": [{"type": "function", "function": {"name": "add", "description": "adds", "parameters": {"type": "object", "properties": {}}}}],
}  # fmt: skip


@pytest.mark.slow
@needs_trl
@pytest.mark.parametrize("family", FAMILIES)
def test_ids_are_those_of_transformers_and_answers_and_stops_are_trained(tmp_path, family):
    directory = family_tokenizer(tmp_path / "t", family)
    tokenizer = loaded(directory)
    packing = encoder(directory, date=datetime.date(2026, 1, 1))
    rows = [{"messages": messages} for messages in CHATS]
    if family in TOOLS:
        rows.append(WITH_TOOLS)
    encoded = packing.encode(rows)
    stops = {*packing.certificates["default"]["stops"].values()} - {""}

    assert [] == encoded.rejected
    for number, (row, parts) in enumerate(zip(rows, packing.texts(encoded), strict=True)):
        begin, end = encoded.offsets[number : number + 2]
        sample = sample_of(row)
        text = tokenizer.apply_chat_template(sample.messages, tools=sample.tools, tokenize=False)
        assert text == "".join(part for part, _ in parts)
        expected = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert text == tokenizer.decode(expected, clean_up_tokenization_spaces=False)
        joined = encoded.tokens[begin:end].tolist()
        assert expected == joined or len(expected) < len(joined)  # cut where an answer begins
        trained = [part for part, mask in parts if mask]
        answers = [message for message in row["messages"] if message["role"] == "assistant"]
        assert len(trained) == len(answers)
        for part, message in zip(trained, answers, strict=True):
            assert message["content"] in part
            assert part.rstrip().endswith(tuple(stops)) or (
                family in NO_STOP and part is trained[-1]
            )


@pytest.mark.slow
@needs_trl
@pytest.mark.parametrize("family", FAMILIES)
def test_pairs_have_the_tokens_of_trl(tmp_path, family):
    """As its trainer tokenises pairs, with tools and results too; white space after the stop is left out here."""
    trl = pytest.importorskip("trl.data_utils")
    directory = family_tokenizer(tmp_path / "t", family)
    tokenizer = loaded(directory)
    rows = []
    for messages in CHATS[:2]:
        for other in ("no idea", "é: none\n\nat all"):
            rejected = [{"role": "assistant", "content": other}]
            rows.append({"prompt": messages[:-1], "chosen": messages[-1:], "rejected": rejected})
    if family in TOOLS:
        turns = WITH_TOOLS["messages"]
        for size in (1, 3):  # a call is chosen, then an answer to its result
            pair = {"prompt": turns[:size], "chosen": turns[size : size + 1]}
            rejected = [{"role": "assistant", "content": "no idea"}]
            rows.append({**pair, "rejected": rejected, "tools": WITH_TOOLS["tools"]})
    source = write_jsonl(tmp_path / "rows.jsonl", rows)
    recipe = headrace.Preferences(
        blend=source, tokenizer=directory, kind="pairs", columns=(), duplicates="allow", date="2026-01-01", **FULL
    )  # fmt: skip
    headrace.prepare(recipe, tmp_path / "out", workers=1)
    (shard,) = (tmp_path / "out" / "splits" / "train").iterdir()
    result = {}
    for tokens in pq.read_table(shard).to_pylist():
        for name in ("chosen_ids", "rejected_ids"):
            text = tokenizer.decode(tokens["prompt_ids"] + tokens[name])
            result[text] = tokenizer.decode(tokens[name])

    equal = 0
    for row in rows:
        options = {"tools": row.get("tools")}
        asked = trl._tokenize(tokenizer, row["prompt"], add_generation_prompt=True, **options)["input_ids"]  # fmt: skip
        for name in ("chosen", "rejected"):
            both = trl._tokenize(tokenizer, row["prompt"] + row[name], **options)["input_ids"]
            text = tokenizer.decode(both)
            trained = result.get(text, result.get(text.rstrip()))
            assert trained is not None, text
            if both[: len(asked)] == asked:  # else TRL trains on what the prompt lacks
                equal += 1
                expected = tokenizer.decode(both[len(asked) :])  # blocks may hold the space
                assert trained in (expected, expected.rstrip())
    assert equal or family in REWRITES_PROMPTS
