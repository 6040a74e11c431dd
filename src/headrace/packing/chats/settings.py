"""Define the settings that decide how rows of chats become tokens, and read a tokenizer's files.

A tokenizer is tokenizer.json (also .gz) with its configuration and chat templates beside it.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from headrace.digest import canonical_json, sha256_hex
from headrace.errors import InputError, MissingExtra, SettingsError, setting, setting_name
from headrace.gate.compressed import gunzip
from headrace.gate.json import parse_object
from headrace.packing.chats import hub
from headrace.packing.chats.layouts import AUTO, LAYOUTS, NAMES
from headrace.packing.chats.turns import Reasoning, TrainOn
from headrace.settings import Names, Settings
from headrace.storage.settings import PathOrTemplate

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Role = Literal["system", "developer", "user", "assistant", "tool"]
BackendName = Literal["auto", "tokenizers", "fastokens"]
"""Libraries that make ids; see `backends`."""

ROWS: dict[str, Any] = {"panel": "Rows and tokens"}
_rows = partial(Field, json_schema_extra=ROWS)
_SPECIAL_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
# two by content, two not at all
_NOT_IN_DIGEST = {"tokenizer", "chat_template", "tokenizer_backend", "unread"}


def _as_tokenizer(value: object) -> object:
    from headrace.storage.places import local_path_of  # importing settings loads no data libraries

    if isinstance(value, str) and hub.is_name(value):
        return hub.pinned(value)
    if isinstance(value, str | PurePath):
        return local_path_of(value, "a setting")
    return value


class ChatSettings(Settings):
    """Settle how rows of any form become tokens.

    Raises `SettingsError` if the values cannot work.
    """

    tokenizer: Annotated[Path | str | None, BeforeValidator(_as_tokenizer)] = _rows(
        None,
        description=(
            "tokenizer.json, its directory, or a name on the Hugging Face hub, ORG/NAME or "
            "ORG/NAME@REVISION, pinned to its commit. Not for rows that are tokens already."
        ),
    )
    chat_template: PathOrTemplate | None = _rows(
        None, description="A Jinja file, or the template itself. Default: that of the tokenizer."
    )
    template_values: Mapping[str, Any] = _rows(
        default_factory=dict,
        description="Variables for the template, e.g. {enable_thinking: false}.",
    )
    date: datetime.date | None = _rows(
        None, description="The date for templates that ask for today's, e.g. 2026-01-31."
    )
    reasoning: Reasoning = _rows(
        "template",
        description=(
            "template: the template decides which reasoning to keep, and what it leaves out is"
            " counted; keep: reject rows whose reasoning it leaves out; every_user_turn: one"
            " sequence per user turn, with the loss on its answer, so all reasoning is kept;"
            " mask: as template, none of it in the loss; drop: no reasoning."
        ),
    )
    train_on: TrainOn = _rows(
        "every_turn",
        description="Answers in the loss; last_turn: those after the last user message.",
    )
    eos: Literal["append", "none"] = _rows(
        "append", description="Whether rows of plain text end with the end token."
    )
    bos: Literal["tokenizer", "none"] = _rows(
        "tokenizer",
        description=(
            "Whether rows of plain text begin with the begin token; tokenizer: where the tokenizer"
            " itself would add it."
        ),
    )
    nothing_trained: Literal["drop", "keep"] = _rows(
        "drop", description="Rows without a token in the loss."
    )
    special_text: Literal["text", "drop", "control"] = _rows(
        "text",
        description=(
            "What to do with the text of a special token in a message, such as <|im_end|>; drop:"
            " drop the row; control: encode it as the token. Such rows are always counted. Rows"
            " without a template are encoded as written."
        ),
    )
    unread: Names = _rows(
        (),
        description=(
            "Keys of messages and columns of prompts whose words may stay unread, which"
            " max_lost_share does not count."
        ),
    )
    tokenizer_backend: BackendName = _rows(
        "auto",
        description=(
            "Which library makes the ids, which are the same with either; fastokens: compared with"
            " tokenizers on a sample, for byte-level BPE; auto: fastokens where it is installed and"
            " fits the tokenizer."
        ),
    )


class ChatForm(Settings):
    """The form of rows.

    layout: how chats lie in a row; "auto" looks at each row. See `layouts`.
    mapping: other names of columns, e.g. {"user": "problem", "assistant": "solution"}; see
    `layouts`. filters: keep rows whose column holds one of the words, as text, in a comma list or
    in a list; others are counted. roles: additional names of roles, e.g. {"narrator": "user"}.
    """

    layout: str = Field(AUTO, json_schema_extra={"enum": [AUTO, *LAYOUTS]})
    mapping: Mapping[str, str] = Field(default_factory=dict)
    filters: Mapping[str, Names] = Field(default_factory=dict)
    roles: Mapping[str, Role] = Field(default_factory=dict)

    @field_validator("layout")
    @classmethod
    def _known_layout(cls, value: str) -> str:
        if value not in (AUTO, *LAYOUTS):
            raise ValueError(
                f"{setting_name('layout')} is {value!r}; choose one of"
                f" {', '.join((AUTO, *LAYOUTS))}"
            )
        return value

    @field_validator("mapping")
    @classmethod
    def _known_columns(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        unknown = sorted(set(value) - NAMES)
        if unknown:
            known = ", ".join(sorted(NAMES))
            raise ValueError(
                f"{setting_name('mapping')} names {unknown[0]!r}, which no layout knows; known:"
                f" {known}"
            )
        if ("user" in value) != ("assistant" in value):
            raise ValueError(
                f"{setting_name('mapping')} names only one of user and assistant; give both, e.g."
                " user=question,assistant=answer"
            )
        return value


def fingerprint_of(settings: ChatSettings) -> str:
    """Digest the tokenizer's files, the template and every setting that can change a token.

    Loads no tokenizer.
    """
    if settings.tokenizer is None:
        return sha256_hex(canonical_json(["tokens", settings.nothing_trained]))
    values = settings.model_dump(
        mode="json", include=set(ChatSettings.model_fields) - _NOT_IN_DIGEST
    )
    template = None
    if settings.chat_template is not None:
        template = template_text(settings.chat_template)
    files = read_tokenizer(settings.tokenizer)
    return sha256_hex(canonical_json([files.digest, template, values]))


@dataclass(frozen=True, eq=False)
class TokenizerFiles:
    """The contents of a tokenizer's directory.

    json_text: tokenizer.json. templates: by name, "default" first. special: the named special
    tokens. end_ids: tokens that end generation, of generation_config.json.
    """

    path: Path
    json_text: str
    templates: Mapping[str, str]
    special: Mapping[str, str]
    end_ids: Sequence[int] = ()

    @property
    def digest(self) -> str:
        """The SHA-256 of everything here except the path."""
        parts: list[Any] = [self.json_text, dict(self.templates), dict(self.special)]
        if self.end_ids:
            parts.append(list(self.end_ids))
        return sha256_hex(canonical_json(parts))


def read_tokenizer(tokenizer: Path | str) -> TokenizerFiles:
    """Read a tokenizer's files from its tokenizer.json, its directory, or its pinned name on the
    hub.

    Raises `SettingsError`, `InputError`, `MissingExtra`.
    """
    if isinstance(tokenizer, str):
        path = hub.directory_of(tokenizer)
    else:
        path = tokenizer
    candidates = (path, path / "tokenizer.json", path / "tokenizer.json.gz")
    main = next((candidate for candidate in candidates if candidate.is_file()), None)
    if main is None:
        what = "is not there"
        if path.is_dir():
            what = "holds no tokenizer.json"
        raise SettingsError(
            f"it {what}",
            setting="tokenizer",
            value=str(path),
            remedy=(
                "give a tokenizer.json (or .json.gz) or the directory that holds it, as"
                " `save_pretrained` of a fast tokenizer writes it"
            ),
        )
    config = _read_json_beside(main, "tokenizer_config.json")
    named = {**_read_json_beside(main, "special_tokens_map.json"), **config}
    special = {}
    for name in _SPECIAL_TOKENS:
        token = named.get(name)
        if isinstance(token, dict):
            text = token.get("content")
        else:
            text = token
        if isinstance(text, str):
            special[name] = text
    ends = _read_json_beside(main, "generation_config.json").get("eos_token_id")
    if not isinstance(ends, list):
        ends = [ends]
    end_ids = sorted({end for end in ends if isinstance(end, int)})
    return TokenizerFiles(main, _read_text(main), _read_templates(main, config), special, end_ids)


def _read_text(path: Path) -> str:
    try:
        data = path.read_bytes()
        return (gunzip(data) if path.suffix == ".gz" else data).decode()
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot be read as text ({error})", path=path, remedy="fetch the file again"
        ) from error


def _read_json_beside(main: Path, name: str) -> dict[str, Any]:
    path = main.parent / name
    if not path.is_file():
        return {}
    try:
        return parse_object(_read_text(path))
    except ValueError as error:
        raise InputError(
            f"is not valid JSON ({error})", path=path, remedy="fetch the file again"
        ) from error


def _read_templates(main: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Read the templates by name; files beside win over the configuration."""
    jinja_file = main.parent / "chat_template.jinja"
    if jinja_file.is_file():
        return {"default": _read_text(jinja_file)}
    templates = _read_json_beside(main, "chat_template.json").get(
        "chat_template", config.get("chat_template")
    )
    if isinstance(templates, str):
        return {"default": templates}
    named = {}
    for entry in templates if isinstance(templates, list) else ():
        match entry:
            case {"name": str(name), "template": str(template)}:
                named[name] = template
    if named and "default" not in named:
        raise InputError(
            f"has the templates {', '.join(named)} but none named default",
            path=main.parent,
            remedy=f"give one of them with {setting('chat_template')}",
        )
    if named:
        return {"default": named.pop("default"), **named}
    return {}


def load_tokenizer(
    files: TokenizerFiles, special: Literal["control", "text"] = "control"
) -> Tokenizer:
    """Load the tokenizer without truncation and padding, with offsets that cover every character.

    special: "control" turns a special token in a text into the token; "text" treats it as ordinary
    text. Raises `InputError`, `MissingExtra`.
    """
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        raise MissingExtra("tokenizers", "chat") from None
    text = files.json_text
    try:
        if '"trim_offsets":true' in text.replace(" ", ""):
            values = json.loads(text, object_hook=_with_complete_offsets)
            text = json.dumps(values, ensure_ascii=False)
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:
        raise InputError(
            f"is not a tokenizer ({error})", path=files.path, remedy="fetch the file again"
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = special == "text"
    return tokenizer


def _with_complete_offsets(item: dict[str, Any]) -> dict[str, Any]:
    """Turn off trimmed offsets, which would leave spaces out of the mask; ids do not depend on
    them.
    """
    if "trim_offsets" in item:
        item["trim_offsets"] = False
    return item


def template_text(template: str) -> str:
    """Return a template, given itself or the path of its file. Raises `SettingsError`."""
    if "\n" in template or "{" in template or len(template) > 1000:
        return template
    path = Path(template)
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"neither a template nor a file that can be read ({error})",
            setting="chat_template",
            value=template,
            remedy="give one of them",
        ) from error
