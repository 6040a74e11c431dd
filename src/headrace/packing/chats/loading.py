"""From a tokenizer's files to a tokenizer that tells where every token stands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import InputError, MissingExtra, SettingsError
from headrace.packing.chats.tokenizer_files import TokenizerFiles

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def load_tokenizer(files: TokenizerFiles, special: Literal["control", "text"] = "control") -> Tokenizer:
    """The tokenizer, without truncation and padding, whose offsets leave nothing out. `InputError`, `MissingExtra`.

    special: whether a special token in a text becomes the token, or is text like any other.
    """
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        raise MissingExtra("tokenizers", "chat") from None
    text = files.json_text
    if '"trim_offsets":true' in text.replace(" ", ""):
        text = json.dumps(_untrimmed(json.loads(text)), ensure_ascii=False)
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:
        raise InputError(f"{files.path}: is no tokenizer ({error}); fetch the file again") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = special == "text"
    return tokenizer


def _untrimmed(value: Any) -> Any:
    """Offsets that leave out spaces would leave them out of the mask; ids do not depend on them."""
    if isinstance(value, dict):
        return {key: False if key == "trim_offsets" else _untrimmed(inner) for key, inner in value.items()}
    return [_untrimmed(inner) for inner in value] if isinstance(value, list) else value


def template_text(template: str) -> str:
    """A template given as a path or as itself. Raises `SettingsError`."""
    if "\n" in template or "{" in template or len(template) > 1000:
        return template
    path = Path(template)
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"chat_template {template!r}: is neither a template nor a file that can be read ({error})"
        ) from error
