"""A tokenizer's files: tokenizer.json (also .gz), its configuration, its chat templates; and what is made of them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headrace.digest import canonical_json, sha256_hex
from headrace.errors import InputError, MissingExtra, SettingsError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, eq=False)
class TokenizerFiles:
    """What a tokenizer's directory says.

    json_text: tokenizer.json; templates: by name, "default" first; special: the named special tokens that there are.
    """

    path: Path
    json_text: str
    templates: Mapping[str, str]
    special: Mapping[str, str]

    @property
    def digest(self) -> str:
        """SHA-256 of everything here but the path."""
        return sha256_hex(canonical_json([self.json_text, dict(self.templates), dict(self.special)]))


def read_tokenizer(path: Path) -> TokenizerFiles:
    """Read the files beside a tokenizer.json, given it or its directory. Raises `SettingsError`, `InputError`."""
    main = _main_file(path)
    config = _json_beside(main, "tokenizer_config.json")
    special = {**_json_beside(main, "special_tokens_map.json"), **config}
    return TokenizerFiles(
        path=main,
        json_text=_text(main),
        templates=_templates(main, config),
        special={name: text for name in _SPECIAL if (text := _token_text(special.get(name))) is not None},
    )


def _main_file(path: Path) -> Path:
    if path.is_file():
        return path
    for name in ("tokenizer.json", "tokenizer.json.gz"):
        if (path / name).is_file():
            return path / name
    what = "holds no tokenizer.json" if path.is_dir() else "is not there"
    raise SettingsError(
        f"tokenizer {path}: {what}; give a tokenizer.json (or .json.gz) or the directory that holds it, as "
        "`save_pretrained` of a fast tokenizer writes it"
    )


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text ({error}); fetch the file again") from error


def _json_beside(main: Path, name: str) -> dict[str, Any]:
    path = main.parent / name
    if not path.is_file():
        return {}
    try:
        found = json.loads(_text(path))
    except ValueError as error:
        raise InputError(f"{path}: is no JSON ({error}); fetch the file again") from error
    if not isinstance(found, dict):
        raise InputError(f"{path}: is a {type(found).__name__}; it must be a JSON object")
    return found


def _templates(main: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Files beside go before the configuration's own."""
    alone = main.parent / "chat_template.jinja"
    if alone.is_file():
        return {"default": _text(alone)}
    found = _json_beside(main, "chat_template.json").get("chat_template", config.get("chat_template"))
    if isinstance(found, str):
        return {"default": found}
    named = {each["name"]: each["template"] for each in found or () if isinstance(each, dict) and "name" in each}
    if named and "default" not in named:
        raise InputError(
            f"{main.parent}: has the templates {', '.join(named)} but none named default; give one of them"
        )
    return {"default": named.pop("default"), **named} if named else {}


def _token_text(token: object) -> str | None:
    """A token is written as text or as an object."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def load_tokenizer(files: TokenizerFiles, special: Literal["control", "text"] = "control") -> Tokenizer:
    """Load the tokenizer without truncation and padding, with offsets that leave nothing out.

    special: whether a special token in a text becomes the token, or is text like any other.
    Raises `InputError`, `MissingExtra`.
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
    """Read a template given as a path or as itself. Raises `SettingsError`."""
    if "\n" in template or "{" in template or len(template) > 1000:
        return template
    path = Path(template)
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"chat_template {template!r}: is neither a template nor a file that can be read ({error})"
        ) from error
