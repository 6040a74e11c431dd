"""How rows of chats become tokens: the settings, and a digest of all that can change one."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from headrace.digest import canonical_json, sha256_hex
from headrace.packing.chats.layout_names import Layout
from headrace.packing.chats.layouts import NAMES
from headrace.packing.chats.loading import template_text
from headrace.packing.chats.tokenizer_files import TokenizerFiles, read_tokenizer
from headrace.settings import Names, Settings


class ChatSettings(Settings):
    """How rows become tokens.

    tokenizer: a tokenizer.json (or .gz) or the directory that holds it, with its configuration and chat template.
    chat_template: another template, as a file's path or as the template itself; None: the tokenizer's own.
    template_values: variables for the template, e.g. {"enable_thinking": false}.
    layout: of the rows; "auto" looks at each row. columns: other names, see `layouts`.
    filters: keep rows whose column holds one of the words, as text, in a comma list or in a list; others are counted.
    reasoning: "template" leaves to the template which reasoning it writes; "every_user_turn" makes of a conversation
        with reasoning one sequence per user turn, trained on that turn's answer alone, so that none is stripped.
    eos: "append" the end token to rows that no template touches (trained), or "none".
    date: what a template that asks for today is told; None refuses such templates.
    nothing_trained: rows whose mask is all 0 are rejected ("reject") or kept ("keep").
    special_text: what becomes of the text of a special token in a message, such as "<|im_end|>" typed by a user: it
        stays "text", its row is rejected ("reject"), or it becomes the token ("control"). Rows that no template touches
        are taken as they are written: special tokens in them are control tokens.

    Raises `SettingsError` when built with values that cannot work.
    """

    tokenizer: Path
    chat_template: str | None = None
    template_values: Mapping[str, Any] = Field(default_factory=dict)
    layout: Layout = "auto"
    columns: Mapping[str, str] = Field(default_factory=dict)
    filters: Mapping[str, Names] = Field(default_factory=dict)
    reasoning: Literal["template", "every_user_turn"] = "template"
    eos: Literal["append", "none"] = "append"
    date: datetime.date | None = None
    nothing_trained: Literal["reject", "keep"] = "reject"
    special_text: Literal["text", "reject", "control"] = "text"

    @field_validator("columns")
    @classmethod
    def _known_columns(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        unknown = sorted(set(value) - NAMES)
        if unknown:
            raise ValueError(f"columns name {unknown[0]!r}, which no layout knows; known: {', '.join(sorted(NAMES))}")
        if ("user" in value) != ("assistant" in value):
            raise ValueError(
                "columns name only one of user and assistant; give both, e.g. user=question,assistant=answer"
            )
        return dict(sorted(value.items()))

    def identity(self) -> dict[str, Any]:
        """The settings that can change a token or a mask, as JSON; files are in `ChatEncoder.fingerprint`."""
        return self.model_dump(mode="json", exclude={"tokenizer", "chat_template"})


def fingerprint_of(settings: ChatSettings, files: TokenizerFiles | None = None) -> str:
    """SHA-256 of the tokenizer's files, the template and every setting that can change a token. Loads no tokenizer."""
    own, files = settings.chat_template, files or read_tokenizer(settings.tokenizer)
    return sha256_hex(canonical_json([files.digest, None if own is None else template_text(own), settings.identity()]))
