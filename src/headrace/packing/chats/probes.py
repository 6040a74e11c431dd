"""Messages for trying a template, in words that no template's own text or condition names."""

from __future__ import annotations

from typing import Any

from headrace.packing.chats.messages import Message

ASKED = "qzj one"
ANSWERED = "wvk two"
ASKED_AGAIN = "qzj three"
THOUGHT = "zzx four"
RESULT = "vvj five"
VALUE = "kkq six"
TOOL = "zjq_seven"
RESULT_MESSAGE = {"role": "tool", "name": TOOL, "tool_call_id": "a1b2c3d4e", "content": RESULT}
TOOL_DEFINITION = {
    "type": "function",
    "function": {
        "name": TOOL,
        "description": "none",
        "parameters": {
            "type": "object",
            "properties": {"value": {"type": "string", "description": "none"}},
            "required": ["value"],
        },
    },
}


def user(text: str = ASKED) -> Message:
    """Return a message of a user."""
    return {"role": "user", "content": text}


def answer(text: str = ANSWERED, **more: Any) -> Message:
    """Return an answer. more: other keys of the message."""
    return {"role": "assistant", "content": text, **more}


def call() -> Message:
    """Return an answer that calls a tool."""
    function = {"name": TOOL, "arguments": {"value": VALUE}}
    return answer("", tool_calls=[{"type": "function", "id": "a1b2c3d4e", "function": function}])
