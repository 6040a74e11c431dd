"""How rows of chats become tokens: the settings, and a digest of all that can change one."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from pydantic import Field, field_validator

from headrace.digest import canonical_json, sha256_hex
from headrace.packing.chats.layouts import NAMES
from headrace.packing.chats.tokenizer_files import TokenizerFiles, read_tokenizer, template_text
from headrace.packing.chats.words import Layout, Reasoning
from headrace.settings import Names, Settings
from headrace.storage.settings import LocalPath, PathOrTemplate

ROWS: dict[str, Any] = {"panel": "Rows and tokens"}
_rows = partial(Field, json_schema_extra=ROWS)
_DROP: dict[str, Any] = {**ROWS, "former_words": {"reject": "drop"}}


class ChatSettings(Settings):
    """How rows become tokens, whatever their form. Raises `SettingsError` when built with values that cannot work."""

    tokenizer: LocalPath | None = _rows(
        None, description="tokenizer.json or its directory; not for rows that are tokens already."
    )
    chat_template: PathOrTemplate | None = _rows(
        None, description="A Jinja file, or the template itself; the tokenizer's own unless given."
    )
    template_values: Mapping[str, Any] = _rows(
        default_factory=dict, description="Variables for the template, e.g. {enable_thinking: false}."
    )
    date: datetime.date | None = _rows(
        None, description="What a template that asks for today's date is told, e.g. 2026-01-31."
    )
    reasoning: Reasoning = _rows(
        "template",
        description="template: the template decides which reasoning it writes; every_user_turn: one sequence per "
        "user turn, trained on that turn's answer, so that none is stripped.",
    )
    eos: Literal["append", "none"] = _rows("append", description="Whether rows of plain text end with the end token.")
    nothing_trained: Literal["drop", "keep"] = Field(
        "drop", json_schema_extra=_DROP, description="Rows without a token to train on."
    )
    special_text: Literal["text", "drop", "control"] = Field(
        "text",
        json_schema_extra=_DROP,
        description="Text of a special token in a message, such as <|im_end|>; drop: its row; control: it becomes "
        "the token. Such rows are counted in any case. Rows that no template touches are taken as they are written.",
    )


class RowForm(Settings):
    """The form of rows.

    layout: how chats lie in a row; "auto" looks at each row.
    mapping: other names of columns, e.g. {"user": "problem", "assistant": "solution"}; see `layouts`.
    filters: keep rows whose column holds one of the words, as text, in a comma list or in a list; others are counted.
    """

    layout: Layout = "auto"
    mapping: Mapping[str, str] = Field(default_factory=dict)
    filters: Mapping[str, Names] = Field(default_factory=dict)

    @field_validator("mapping")
    @classmethod
    def _known_columns(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        unknown = sorted(set(value) - NAMES)
        if unknown:
            raise ValueError(f"mapping names {unknown[0]!r}, which no layout knows; known: {', '.join(sorted(NAMES))}")
        if ("user" in value) != ("assistant" in value):
            raise ValueError(
                "mapping names only one of user and assistant; give both, e.g. user=question,assistant=answer"
            )
        return value


def fingerprint_of(settings: ChatSettings, form: RowForm, files: TokenizerFiles | None = None) -> str:
    """Digest the tokenizer's files, the template and every setting that can change a token. Loads no tokenizer."""
    if settings.tokenizer is None:
        return sha256_hex(canonical_json(["tokens", settings.nothing_trained]))
    own, files = settings.chat_template, files or read_tokenizer(settings.tokenizer)
    names = set(ChatSettings.model_fields) - {"tokenizer", "chat_template"}
    values = settings.model_dump(mode="json", include=names)
    rows = {"layout": form.layout, "columns": dict(form.mapping), "filters": dict(form.filters)}
    template = None if own is None else template_text(own)
    return sha256_hex(canonical_json([files.digest, template, {**values, **rows}]))
