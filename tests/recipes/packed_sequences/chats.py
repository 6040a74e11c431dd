"""Chat data, a tokenizer made in a moment, and templates, for tests. Nothing here knows how masks are found."""

import functools
import gzip
import importlib.util
import json
import re
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from headrace.packing.chats.settings import ChatForm, ChatSettings
from headrace.packing.chats.tokenise import ChatEncoder

DATA = Path(__file__).parents[3].parent / "shared" / "data"
QWEN, GSM8K, DEMOS = (
    DATA / "job5-tokenizer-qwen3",
    DATA / "job5-gsm8k",
    DATA / "job5-llamafactory-demos",
)
needs_data = pytest.mark.skipif(
    not (QWEN.is_dir() and GSM8K.is_dir() and DEMOS.is_dir()),
    reason="the chat data sets are not in the repository",
)

_TRL = importlib.util.find_spec("trl")
TEMPLATES = Path(_TRL.origin).parent / "chat_templates" if _TRL and _TRL.origin else Path("none")
needs_trl = pytest.mark.skipif(not TEMPLATES.is_dir(), reason="TRL ships the templates")
ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|return|>", "<|eot|>", "<｜end▁of▁sentence｜>", "<|end|>", "<|END_OF_TURN_TOKEN|>", "<end_of_utterance>", "</s>")  # fmt: skip

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SPECIALS = ("<|im_end|>", "<|im_start|>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>", "<|return|>", "<|start|>", "<|message|>", "[INST]", "[/INST]")  # fmt: skip


def small_tokenizer(
    directory: Path, template: str | None = CHATML, eos: str | None = "<|im_end|>", **config
) -> Path:
    """A byte-level BPE of 400 tokens with special tokens of several families, and its configuration."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=list(SPECIALS), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )  # fmt: skip
    words = [
        "the answer is forty two",
        "a question about apples and oranges",
        "user assistant system tool think",
    ] * 5
    tokenizer.train_from_iterator(words, trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    found = {"eos_token": eos, "pad_token": "</s>", "bos_token": "<s>", **config}
    if template is not None:
        found["chat_template"] = template
    (directory / "tokenizer_config.json").write_text(json.dumps(found))
    return directory


def settings_of(tokenizer: Path, **settings) -> tuple[ChatSettings, ChatForm]:
    form = {name: settings.pop(name) for name in ChatForm.model_fields if name in settings}
    return ChatSettings(tokenizer=tokenizer, **settings), ChatForm(**form)


class Encoder(ChatEncoder):
    """An encoder of rows that are all of one form."""

    form = ChatForm()

    def encode(self, rows, form=None):
        return super().encode(rows, form or self.form)


def encoder(tokenizer: Path, **settings) -> Encoder:
    chats, form = settings_of(tokenizer, **settings)
    found = Encoder(chats)
    found.form = form
    return found


@functools.cache
def qwen_encoder(**settings) -> Encoder:
    """An encoder with the real tokenizer, which is loaded once for all tests with the same settings."""
    return encoder(QWEN, **settings)


def rows_of(name: str, most: int | None = None) -> list[dict]:
    """Rows of a real file, as the json module reads them."""
    path = (GSM8K if name.startswith(("train", "test")) else DEMOS) / name
    text = gzip.decompress(path.read_bytes()).decode()
    rows = (
        json.loads(text) if ".json." in name else [json.loads(line) for line in text.splitlines()]
    )
    return rows[:most]


def chat(*texts: str, **more) -> dict:
    """A conversation of user and assistant in turn; "system: x" and the like name another role."""
    messages: list[dict] = []
    for text in texts:
        match = re.match(r"(system|user|assistant|tool|developer): ?", text, re.DOTALL)
        spoke = [
            message["role"] for message in messages if message["role"] in ("user", "assistant")
        ]
        turn = "assistant" if spoke[-1:] == ["user"] else "user"
        messages.append(
            {"role": match[1] if match else turn, "content": text[match.end() :] if match else text}
        )
    return {"messages": messages, **more}


def trained_texts(encoder: ChatEncoder, rows, **expected) -> list[list[str]]:
    """Per sequence the texts of its trained runs. No row may be rejected unless `rejected` says so."""
    encoded = encoder.encode(rows)
    assert [each.reason for each in encoded.rejected] == expected.get("rejected", []), (
        encoded.rejected
    )
    return [[text for text, mask in parts if mask] for parts in encoder.texts(encoded)]
