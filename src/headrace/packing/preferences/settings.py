"""Define the settings of preferences and prompts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from headrace.errors import setting, setting_name
from headrace.packing.chat_recipe import ChatRecipe
from headrace.packing.chats.settings import ROWS, ChatForm
from headrace.settings import ColumnChoice, Names

Kind = Literal["pairs", "judged", "prompts"]

ANSWERS: dict[Kind, tuple[str, ...]] = {
    "pairs": ("chosen", "rejected"),
    "judged": ("completion",),
    "prompts": (),
}
"""The answers of a row, as trainers call them; their tokens are in columns of these names
and `_ids`.
"""

LABEL = "label"


def id_columns(row_type: Kind) -> list[str]:
    """Return the names of the columns of tokens: of the prompt, then of each answer."""
    return [f"{name}_ids" for name in ("prompt", *ANSWERS[row_type])]


class Preferences(ChatRecipe):
    """Prompts as token rows with what is to be learned about them: a pair of answers, a judged
    answer, or nothing yet.

    Raises `SettingsError` when built with values that cannot work.
    """

    recipe_name: ClassVar[str] = "preferences"

    kind: Kind = Field(
        "pairs",
        json_schema_extra=ROWS,
        description=(
            "pairs: a chosen and a rejected answer (DPO, ORPO, reward models); judged: one answer"
            " that was liked or not (KTO); prompts: none, as the model writes them (GRPO, PPO)."
        ),
    )
    max_tokens: int | None = Field(
        None,
        ge=2,
        json_schema_extra=ROWS,
        description=(
            "Rows with more tokens of prompt and answer than this are left out and counted."
            " Default: no limit."
        ),
    )
    columns: Names | None = Field(
        None,
        json_schema_extra=ROWS,
        description=(
            "Columns to copy to the output, such as ground truths. Default: all for prompts, none"
            " for others."
        ),
    )
    drop_columns: ColumnChoice = Field(
        None,
        json_schema_extra=ROWS,
        description="Columns not to copy instead; all others are copied.",
    )

    @property
    def unread_columns(self) -> Collection[str]:
        """The columns that are left out."""
        return self.drop_columns or ()

    def identity_settings(self) -> dict[str, Any]:
        """Return the settings that can change a byte of output; see `ChatRecipe`."""
        settings = super().identity_settings()
        if self.drop_columns is None:
            del settings["drop_columns"]
        return settings

    def named_columns(self, form: ChatForm) -> Collection[str] | None:
        """Return the columns of a dataset that settings name; None if all are needed."""
        names = super().named_columns(form)
        if names is None or copies_all(self):
            return None
        return [*names, *(self.columns or ())]

    @model_validator(mode="after")
    def _has_a_tokenizer(self) -> Preferences:
        if self.tokenizer is None:
            raise ValueError(
                f"{setting_name('tokenizer')} is not given; preferences and prompts are texts,"
                " which it makes tokens of"
            )
        for _, sources in self.blend.groups():
            for source in sources:
                if source.layout in ("tokens", "text"):
                    raise ValueError(
                        f"dataset {source.name!r} has {setting('layout', source.layout)}, which has"
                        " no prompt; name another"
                    )
        return self


def copies_all(settings: Preferences) -> bool:
    """Return whether all columns are copied to the output, but those of the conversation and those
    that are left out.
    """
    if settings.drop_columns is not None:
        return True
    return settings.kind == "prompts" and settings.columns is None
