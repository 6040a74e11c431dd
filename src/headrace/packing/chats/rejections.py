"""Name the reasons for which a row of chats gives no sequence, and what to do about them."""

from __future__ import annotations

from dataclasses import dataclass

REASONS = {
    "broken_json": "the line, or a text that must be JSON, is not valid JSON",
    "repeated_key": "an object has a key twice, and readers disagree on its value",
    "broken_utf8": "bytes that are not UTF-8, or half of a surrogate pair",
    "too_long_line": "the line is longer than the reader's limit",
    "not_an_object": "the row is not a JSON object",
    "unknown_layout": "no known columns, or not those of the requested layout",
    "preference_data": (
        "a column judges or compares answers, and nothing says which of them are good"
    ),
    "no_messages": "the conversation is empty",
    "unknown_role": "a role other than system, developer, user, assistant, tool or their aliases",
    "no_answer": "an assistant message whose content is missing or null, without a call",
    "bad_content": "content that is neither text nor a list of known parts",
    "media": "an image, audio or video; chats are packed as text alone",
    "bad_tools": "tools that are not a list of JSON objects",
    "bad_tool_call": "a tool call without a name, or whose arguments are not a JSON object",
    "bad_weight": "a loss weight other than 0 and 1, or 1 for a message that is no answer",
    "bad_tokens": "token ids outside the vocabulary, or a mask of another length",
    "reserved_character": (
        "a Unicode noncharacter (U+FDD0 to U+FDEF), which headrace uses for its marks"
    ),
    "template_error": "the template refuses the conversation, or fails on it",
    "template_limit": "the template took too much time or memory, or wrote too much",
    "not_rendered": "the template silently leaves out a message, a tool call or the tools",
    "uncertain_mask": "no method finds with certainty which characters the model must produce",
    "special_text": (
        "text of a special token in a message, refused by `special_text` or by the tokenizer"
    ),
    "nothing_trained": "no token is left to train on",
    "filtered": "left out by a filter of the settings",
}
"""Why a row gives no sequence. Callers count these words with file and line."""

CHOSEN = frozenset(("filtered",))  # rows left out on request

# Cures for reasons that usually hit all rows, because the source, the tokenizer or a setting is
# wrong.
CURES = {
    "unknown_layout": "say which column is which with mapping, e.g. user=question,assistant=answer",
    "bad_content": "leave out parts that are not text",
    "media": "leave such rows out, or remove what is not text from them",
    "not_rendered": "give a template that writes them with chat_template",
    "template_error": "make the rows what the template takes, or give another with chat_template",
}


class RowRejected(Exception):
    """A row gives no sequence. reason: a word of `REASONS`. detail: what is wrong with this row."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row without a sequence.

    row: its index among the given rows. reason: a word of `REASONS`.
    """

    row: int
    reason: str
    detail: str


def preview(value: object, most: int = 80) -> str:
    """Format a value for a message, short and on one line."""
    text = repr(value)
    if len(text) <= most:
        return text
    return text[: most - 1] + "…"


def check_text(text: str) -> None:
    """Raise `RowRejected` for text that has no UTF-8 form."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RowRejected(
            "broken_utf8",
            f"half a surrogate pair at character {error.start}: {preview(text[error.start :][:8])}",
        ) from None
