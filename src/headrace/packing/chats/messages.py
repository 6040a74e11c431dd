"""Normalise messages, tool calls and tools of conversations. Pure.

A normalised message has `role` (system, developer, user, assistant, tool) and `content` (text). If
the row has them, it also has `reasoning_content` (text), `tool_calls` ({"type": "function",
"function": {"name", "arguments": an object}}) and the fields that templates may read (name,
tool_call_id and any other). Parts of a content that are images, audio or video are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.digest import loads
from headrace.packing.chats.rejections import RowRejected, preview

Message = dict[str, Any]

ROLES = {
    **{name: name for name in ("system", "developer", "user", "assistant", "tool")},
    **dict.fromkeys(("human", "prompter", "customer"), "user"),
    **dict.fromkeys(("gpt", "model", "bot", "chatgpt", "ai"), "assistant"),
    **dict.fromkeys(("observation", "function", "function_response"), "tool"),
    **dict.fromkeys(("tool_response", "ipython"), "tool"),
}
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
_CALL_ROLES = ("function_call", "tool_call")  # messages whose complete content is a call
_WEIGHT_KEYS = ("weight", "loss_weight", "train")
_NORMALISED_KEYS = frozenset({"role", "content", "tool_calls", "function_call", *_WEIGHT_KEYS})
_TEXT_PARTS = frozenset(("text", "input_text", "output_text"))
_REASONING_PARTS = frozenset(("reasoning", "thinking", "reasoning_content"))
_CALL_PARTS = frozenset(("tool_call", "function_call", "tool_use"))
_IMAGE_PARTS = frozenset(("image", "image_url", "input_image"))
_MEDIA_PARTS = _IMAGE_PARTS | {"audio", "audio_url", "input_audio", "video", "video_url"}


def message_of(raw: object, role_key: str, content_key: str) -> tuple[Message, int]:
    """Normalise a message and return it with its weight, 1 or 0. Raises `RowRejected`."""
    if type(raw) is not dict and not isinstance(raw, Mapping):
        raise RowRejected("bad_content", f"a message is {preview(raw)}; it must be an object")
    word = raw.get(role_key)
    content = raw.get(content_key)
    if word in _CALL_ROLES:
        message: Message = {"role": "assistant", "content": "", "tool_calls": _calls_of(content)}
    else:
        if not isinstance(word, str) or word not in ROLES:
            raise RowRejected("unknown_role", f"{role_key} is {preview(word)}")
        message = {"role": ROLES[word], "content": content}
        if type(content) is not str:
            message = _message_of_parts(ROLES[word], content)
    _copy_others(raw, message, (role_key, content_key))
    if raw.get("tool_calls"):
        message["tool_calls"] = message.get("tool_calls", []) + _calls_of(raw["tool_calls"])
    elif raw.get("function_call"):
        message["tool_calls"] = _calls_of(raw["function_call"])
    for key in REASONING_KEYS:
        if key in message and not isinstance(message[key], str):
            raise RowRejected("bad_content", f"{key} is {preview(message[key])}; it must be text")
    return message, _weight_of(raw) if message["role"] == "assistant" else 0


def _copy_others(raw: Mapping[str, Any], message: Message, read: Sequence[str]) -> None:
    """Copy the fields that templates may read, other than those that are normalised or read."""
    for key, value in raw.items():
        if value is not None and key not in _NORMALISED_KEYS and key not in read:
            message[key] = value


def _weight_of(raw: Mapping[str, Any]) -> int:
    for key in _WEIGHT_KEYS:
        value = raw.get(key)
        if value is None:
            continue
        if value not in (0, 1):
            raise RowRejected(
                "bad_weight", f"{key} is {preview(value)}; a mask can hold 0 and 1 only"
            )
        return int(value)
    return 1


def has_reasoning(message: Message) -> bool:
    """Return whether a message has reasoning that is more than white space."""
    return any(message.get(key, "").strip() for key in REASONING_KEYS)


def _message_of_parts(role: str, content: object) -> Message:
    """Return a message of a content that is absent or a list of typed parts."""
    if content is None:
        return {"role": role, "content": ""}
    if not isinstance(content, Sequence) or isinstance(content, str):
        raise RowRejected(
            "bad_content", f"content of {role} is {preview(content)}; give text or a list of parts"
        )
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[dict[str, Any]] = []
    for part in content:
        if isinstance(part, str):
            part = {"type": "text", "text": part}
        part_type = _type_of_part(part)
        if part_type in _CALL_PARTS:
            calls += _calls_of(_first_value(part, ("value", part_type), part))
            continue
        text = _text_of_part(role, part, part_type)
        # A template writes reasoning, text and calls in this order.
        if calls or (texts and part_type in _REASONING_PARTS):
            raise RowRejected(
                "bad_content", f"a {part_type} part comes after a later kind: {preview(part)}"
            )
        if part_type in _TEXT_PARTS:
            texts.append(text)
        else:
            reasoning.append(text)
    message: Message = {"role": role, "content": "".join(texts)}
    if reasoning:
        message["reasoning_content"] = "".join(reasoning)
    if calls:
        message["tool_calls"] = calls
    return message


def _type_of_part(part: Any) -> Any:
    if isinstance(part, Mapping):
        return part.get("type")
    return None


def _text_of_part(role: str, part: Any, part_type: Any) -> str:
    """Return the text of a part of text or reasoning. Raises `RowRejected` for other parts."""
    what = f"a part of the content of {role} is {preview(part)}"
    if part_type in _MEDIA_PARTS:
        raise RowRejected("media", what)
    if part_type not in _TEXT_PARTS and part_type not in _REASONING_PARTS:
        raise RowRejected("bad_content", what)
    for key in ("text", "value", "content", part_type):
        text = part.get(key)
        if isinstance(text, str):
            return text
    raise RowRejected("bad_content", f"{what}; it has no text")


def _first_value(fields: Mapping[str, Any], keys: Sequence[str], default: Any = None) -> Any:
    for key in keys:
        if fields.get(key) is not None:
            return fields[key]
    return default


def _calls_of(value: object) -> list[dict[str, Any]]:
    """Normalise one tool call, a list of them, or JSON of either; arguments become objects.

    Raises `RowRejected`.
    """
    if isinstance(value, str):
        value = parse_json(value, "bad_tool_call", "a tool call")
    calls = [value] if isinstance(value, Mapping) else value
    if not isinstance(calls, Sequence) or isinstance(calls, str) or not calls:
        raise RowRejected(
            "bad_tool_call", f"tool calls are {preview(value)}; give a list of objects with a name"
        )
    return [_call_of(call) for call in calls]


def _call_of(call: object) -> dict[str, Any]:
    if isinstance(call, str):
        call = parse_json(call, "bad_tool_call", "a tool call")
    if not isinstance(call, Mapping):
        raise RowRejected("bad_tool_call", f"a tool call is {preview(call)}; it must be an object")
    function = call.get("function", call)
    name = None
    if isinstance(function, Mapping):
        name = function.get("name")
    if not isinstance(name, str) or not name:
        raise RowRejected("bad_tool_call", f"a tool call is {preview(call)}; it has no name")
    arguments = _first_value(function, ("arguments", "parameters", "input"))
    if isinstance(arguments, str):
        if arguments.strip():
            arguments = parse_json(arguments, "bad_tool_call", "arguments")
        else:
            arguments = None
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        raise RowRejected(
            "bad_tool_call", f"arguments of {name} are {preview(arguments)}; give an object"
        )
    normalised: dict[str, Any] = {"type": "function"}
    if call.get("id") is not None:
        normalised["id"] = call["id"]
    normalised["function"] = {"name": name, "arguments": dict(arguments)}
    return normalised


def tools_of(value: object) -> list[dict[str, Any]] | None:
    """Normalise the tools of a conversation, each as {"type": "function", "function": ...}.

    Returns None if there are none. Raises `RowRejected`.
    """
    if isinstance(value, str):
        if value.strip():
            value = parse_json(value, "bad_tools", "tools")
        else:
            value = None
    if value is None:
        return None
    tools = [value] if isinstance(value, Mapping) else value
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        raise RowRejected("bad_tools", f"tools are {preview(value)}; give a list of objects")
    normalised = []
    for tool in tools:
        if isinstance(tool, str):
            tool = parse_json(tool, "bad_tools", "a tool")
        if not isinstance(tool, Mapping):
            raise RowRejected("bad_tools", f"a tool is {preview(tool)}; it must be an object")
        tool = dict(tool)
        if "name" in tool and "function" not in tool and "type" not in tool:
            tool = {"type": "function", "function": tool}
        normalised.append(tool)
    return normalised or None


def parse_json(text: str, reason: str, what: str) -> Any:
    """Parse JSON inside a text, even if it was encoded twice.

    Raises `RowRejected` with `reason`.
    """
    value: Any = text
    try:
        for _ in range(2):
            value = loads(value)
            if not isinstance(value, str):
                return value
    except (ValueError, RecursionError) as error:
        raise RowRejected(reason, f"{what}: {preview(text)} is not valid JSON ({error})") from None
    return value
