"""Write a tokenizer of bytes, to try a configuration on data before its tokenizer is chosen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>"
    "{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SPECIALS = ("<|im_start|>", "<|im_end|>")


def write_stand_in(directory: Path) -> Path:
    """Write a tokenizer whose tokens are bytes, with the template ChatML, and return its directory.

    Its rows are about four times as long as those of usual tokenizers.
    """
    vocabulary = {character: number for number, character in enumerate(_byte_characters())}
    added = []
    for special in _SPECIALS:
        vocabulary[special] = len(vocabulary)
        added.append({"id": vocabulary[special], "content": special, "special": True, **_EXACT})
    bytes_alone = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": bytes_alone | {"use_regex": True},
        "decoder": bytes_alone | {"use_regex": True},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    config = {"eos_token": _SPECIALS[1], "pad_token": _SPECIALS[1], "chat_template": _TEMPLATE}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory


_EXACT = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def _byte_characters() -> list[str]:
    """Return the character that stands for each byte in byte-level vocabularies: itself if it can
    be seen, else one from U+0100 on.
    """
    seen = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = 0
    characters = []
    for byte in range(256):
        if byte in seen:
            characters.append(chr(byte))
        else:
            characters.append(chr(256 + hidden))
            hidden += 1
    return characters
