"""What a template does, found before the first row; TRL's training templates are the oracle."""

import datetime
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chats import CHATML, ENDS, TEMPLATES, chat, encoder, needs_trl, small_tokenizer, trained_texts
from recipe_cases import packed, write_jsonl
from test_templates_and_masks import ANOTHER_END, BRACKETS, GENERATION, NO_TOKENS, THINKING

from headrace.dataset.open import FinishedRun, find_run
from headrace.packing.chats.certificate import certificate_of
from headrace.packing.chats.layouts import Conversation
from headrace.packing.chats.marks import Specials
from headrace.packing.chats.rejections import RowRejected
from headrace.packing.chats.render import Turns
from headrace.packing.chats.template import Template
from headrace.packing.verify import verify_packed

ALWAYS = CHATML.replace("{% if add_generation_prompt %}", "").removesuffix("{% endif %}")
NO_END = "{% for message in messages %}{{ '<|' + message.role + '|>\n' + message.content }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"  # fmt: skip
BLOCKS = re.compile(r"{%-? *(end)?generation *-?%}")
FULL = {"train_ratio": 1, "val_ratio": 0, "test_ratio": 0}
FAMILIES = ("cohere", "cohere2", "deepseek_r1_distill", "deepseekv3", "gemma", "gemma3", "glm4moe", "gptoss", "lfm2", "lfm2_2_5", "lfm2_2_5_v2", "lfm2_v2", "llama3", "muse_glimmer", "nemotron_3_nano", "phi3", "qwen2_5", "qwen3", "qwen3_5_think", "qwen3_instruct_2507")  # fmt: skip


def turns_of(source: str) -> Turns:
    """The turns of a template of another model, whose special tokens are read off its text."""
    tokens = {*re.findall(r"<\|[^|>]+\|>|<｜[^｜]*｜>|<[a-z]+_of_[a-z]+>|<start_of_turn>", source)}
    eos = next((token for token in ENDS if token in source), "</s>")
    if (
        eos == "<|end|>" and "<|assistant|>" in source
    ):  # Phi writes its end token after the last turn
        eos = "<|endoftext|>"
    special = {"bos_token": "<bos>", "eos_token": eos}
    template = Template(source, special=special, values={}, day=datetime.date(2026, 1, 1))
    return Turns(template, Specials([*tokens, *special.values()], [eos], "<bos>"))


@pytest.mark.parametrize(
    ("template", "prompt_written", "stops"),
    [
        pytest.param(CHATML, "on request", {"last": "<|im_end|>", "user": "<|im_end|>"}, id="chatml"),
        pytest.param(ALWAYS, "always", {"last": "<|im_end|>", "user": "<|im_end|>"}, id="always"),
        pytest.param(BRACKETS, "never", {"last": "</s>", "user": "</s>"}, id="brackets"),
        pytest.param(ANOTHER_END, "on request", {"last": "<|return|>", "user": "<|end|>"}, id="another_end"),
        pytest.param(GENERATION, "on request", {"last": "</s>", "user": "</s>"}, id="generation"),
        pytest.param(NO_END, "on request", {"last": "", "user": "<|user|>"}, id="next_role"),
        pytest.param(NO_TOKENS, "on request", {"last": "", "user": ""}, id="no_tokens"),
    ],
)  # fmt: skip
def test_the_certificate_names_the_stop_by_place(tmp_path, template, prompt_written, stops):
    eos = "<|im_end|>" if "im_end" in template else "</s>"
    certificate = encoder(small_tokenizer(tmp_path / "t", template, eos)).certificates["default"]

    assert prompt_written == certificate["prompt_written"]
    assert stops == {place: certificate["stops"][place] for place in stops}


def test_a_header_that_is_always_written_is_not_trained(tmp_path):
    found = encoder(small_tokenizer(tmp_path / "t", ALWAYS, "</s>"))

    assert [["one<|im_end|>", "two<|im_end|>"]] == trained_texts(found, [chat("q", "one", "r", "two")])  # fmt: skip


def test_the_token_of_the_next_role_is_the_stop_where_there_is_no_other(tmp_path):
    found = encoder(small_tokenizer(tmp_path / "t", NO_END, "</s>"))

    assert [["one<|user|>", "two"]] == trained_texts(found, [chat("q", "one", "r", "two")])


def test_reasoning_is_certified_by_place(tmp_path):
    certificate = encoder(small_tokenizer(tmp_path / "t", THINKING)).certificates["default"]

    places = certificate["reasoning"]["reasoning_content"]
    assert {"last": "written", "earlier": "left out"} == places


def test_a_run_warns_of_turns_without_a_stop_and_keeps_the_certificate(tmp_path):
    path = write_jsonl(tmp_path / "rows.jsonl", [chat("q", "one", "r", "two")] * 3)
    for template, warned in ((NO_TOKENS, 1), (CHATML, 0)):
        events: list = []
        run = packed(
            path, tmp_path / str(warned), tokenizer=small_tokenizer(tmp_path / f"t{warned}", template),
            on_event=events.append, **FULL,
        )  # fmt: skip
        warnings = [event for event in events if "no stop in the loss" in str(event)]
        assert warned == len(warnings)
        assert "default" in run.manifest.metadata["templates"]["certificates"]


def test_verify_finds_turns_that_end_with_another_token(tmp_path):
    path = write_jsonl(tmp_path / "rows.jsonl", [chat("q", "one", "r", "two")] * 3)
    tokenizer = small_tokenizer(tmp_path / "t")
    packed(path, tmp_path / "out", tokenizer=tokenizer, **FULL)
    run = FinishedRun(*find_run(tmp_path / "out"))

    def problem() -> str | None:
        (check,) = [check for check in verify_packed(run) if check.name == "stops"]
        return check.problem

    assert problem() is None
    (shard,) = {link.resolve() for link in (tmp_path / "out" / "splits" / "train").iterdir()}
    table = pq.read_table(shard)
    stop = run.manifest.metadata["templates"]["stop_ids"][0]
    ids = [[7 if token == stop else token for token in row] for row in table["input_ids"].to_pylist()]  # fmt: skip
    index = table.schema.get_field_index("input_ids")
    column = pa.chunked_array([pa.array(ids, table.schema.field(index).type)])
    changed = table.set_column(index, table.schema.field(index), column)
    shard.chmod(0o644)
    pq.write_table(changed, shard)
    assert problem() is not None


@needs_trl
@pytest.mark.parametrize("family", FAMILIES)
def test_trained_turns_are_those_of_training_templates(family):
    """The text before the end of a template's blocks and the stop are what marks find without them."""
    source = (TEMPLATES / f"{family}.jinja").read_text("utf-8")
    own_blocks = BLOCKS.search(source) is not None  # no other template for training
    training_file = TEMPLATES / (f"{family}.jinja" if own_blocks else f"{family}_training.jinja")
    plain = turns_of(BLOCKS.sub("", source))
    training = turns_of(training_file.read_text("utf-8"))
    messages = [
        {"role": "user", "content": "qzj one"},
        {"role": "assistant", "content": "wvk two"},
        {"role": "user", "content": "qzj three"},
        {"role": "assistant", "content": "wvk four"},
    ]
    ours, theirs = (
        turns.render(Conversation(messages, [0, 1, 0, 1])) for turns in (plain, training)
    )

    def texts(rendered) -> list[str]:
        """What is trained from the beginning of each answer on; headers differ in some families."""
        trained = {at for begin, end in rendered.spans for at in range(begin, end)}
        found = []
        for answer, following in (("wvk two", "qzj three"), ("wvk four", "qzj none")):
            begin = rendered.text.index(answer)
            end = max(rendered.text.find(following), begin) or None
            part = range(begin, end if end != begin else len(rendered.text))
            found.append("".join(rendered.text[at] for at in part if at in trained).rstrip())
        return found

    if family == "glm4moe":  # the training template also ends the last turn
        assert "" == certificate_of(plain).stops["last"]
        assert "<|user|>" == certificate_of(training).stops["last"]
    if ours.text == theirs.text:
        assert texts(theirs) == texts(ours)
    for text in texts(theirs)[:1]:
        assert text.endswith(certificate_of(plain).stops["user"])


@needs_trl
def test_the_name_of_a_result_is_no_part_of_a_call_whose_reasoning_a_later_answer_hides():
    turns = turns_of((TEMPLATES / "gptoss.jinja").read_text("utf-8"))
    function = {"name": "zjq_add", "arguments": {"value": "kkq"}}
    messages = [
        {"role": "user", "content": "qzj one"},
        {"role": "assistant", "content": "", "reasoning_content": "zzx", "tool_calls": [{"type": "function", "function": function}]},
        {"role": "tool", "name": "zjq_add", "content": "vvj five"},
        {"role": "assistant", "content": "wvk two"},
    ]  # fmt: skip
    rendered = turns.render(Conversation(messages, [0, 1, 0, 1]))

    assert rendered.text[slice(*rendered.spans[0])].endswith("<|call|>")


def test_white_space_that_a_block_trains_after_the_stop_is_not_found_wrong(tmp_path):
    spaced = GENERATION.replace("</s>{% endgeneration %}\n", "</s>\n{% endgeneration %}")
    path = write_jsonl(tmp_path / "rows.jsonl", [chat("q", "one", "r", "two")] * 3)
    packed(path, tmp_path / "out", tokenizer=small_tokenizer(tmp_path / "t", spaced, "</s>"), **FULL)  # fmt: skip

    checks = verify_packed(FinishedRun(*find_run(tmp_path / "out")))
    assert [] == [check.problem for check in checks if check.problem]


@needs_trl
@pytest.mark.parametrize("family", ["gptoss", "gemma4", "qwen3", "glm4moe", "llama3_1"])
def test_results_are_found_through_json_and_inside_a_turn(family):
    turns = turns_of((TEMPLATES / f"{family}.jinja").read_text("utf-8"))
    function = {"name": "zjq_add", "arguments": {"value": "kkq"}}
    messages = [
        {"role": "user", "content": "qzj one"},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]},
        {"role": "tool", "name": "zjq_add", "content": "vvj five"},
        {"role": "assistant", "content": "wvk two"},
    ]  # fmt: skip
    try:
        rendered = turns.render(Conversation(messages, [0, 1, 0, 1]))
    except RowRejected as rejected:
        pytest.fail(f"{rejected.reason}: {rejected.detail}")
    trained = [rendered.text[begin:end] for begin, end in rendered.spans]

    assert 2 == len(trained)
    assert "kkq" in trained[0]
    assert "vvj" in rendered.text
    assert not any("vvj" in text for text in trained)
    assert "wvk two" in trained[1]
