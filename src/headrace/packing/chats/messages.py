"""Normalise messages, tool calls and tools of conversations. Pure.

A normalised message has `role` (system, developer, user, assistant, tool) and `content` (text). If
the row has them, it also has `reasoning_content` (text; other names of it are renamed),
`tool_calls` ({"type": "function", "function": {"name", "arguments": an object}}) and the fields
that templates may read (name, tool_call_id and any other). A null is an absent key. Parts of a
content that are images, audio or video are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from headrace.digest import loads
from headrace.packing.chats import digits
from headrace.packing.chats.rejections import RowRejected, preview
from headrace.packing.chats.words import (
    ROLE_AND_TYPE,
    SourceText,
    characters_of,
    holds_words,
    reasoning_length,
    texts_of_content,
)

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
_WEIGHT_KEYS = ("weight", "loss_weight", "loss_mask", "train", "training", "trainable")
_NORMALISED_KEYS = frozenset(
    {"role", "content", "tool_calls", "function_call", *_WEIGHT_KEYS, *REASONING_KEYS}
)
_TEXT_PARTS = frozenset(("text", "input_text", "output_text"))
_REASONING_PARTS = frozenset(("reasoning", "thinking", "reasoning_content"))
_CALL_PARTS = frozenset(("tool_call", "function_call", "tool_use"))
_IMAGE_PARTS = frozenset(("image", "image_url", "input_image"))
_CONTENT_NAMES = frozenset(("value", "text", "content", "message", "body", "response", "answer"))
_MEDIA_PARTS = _IMAGE_PARTS | {"audio", "audio_url", "input_audio", "video", "video_url"}


class MessageKeys(NamedTuple):
    """The keys of messages. weight: an additional name of the flag that says what is trained.

    roles: additional names of roles.
    """

    role: str = "role"
    content: str = "content"
    weight: str | None = None
    roles: Mapping[str, str] = MappingProxyType({})


class ReadMessage(NamedTuple):
    """A normalised message, its weight (1: trained, 0), and the texts of its source."""

    message: Message
    weight: int
    texts: list[SourceText]


def message_of(raw: object, keys: MessageKeys) -> ReadMessage:
    """Normalise a message. Raises `RowRejected`."""
    if type(raw) is not dict and not isinstance(raw, Mapping):
        raise RowRejected("bad_content", f"a message is {preview(raw)}; it must be an object")
    word = raw.get(keys.role)
    content = raw.get(keys.content)
    if word in _CALL_ROLES:
        message: Message = {"role": "assistant", "content": "", "tool_calls": _calls_of(content)}
    else:
        role = _role_of(word, keys)
        message = {"role": role, "content": content}
        if type(content) is not str:
            message = _message_of_parts(role, content)
        elif len(raw) == 2:
            return ReadMessage(message, int(role == "assistant"), texts_of_content(role, content))
    _copy_others(raw, message, (keys.role, keys.content, keys.weight))
    if raw.get("tool_calls"):
        message["tool_calls"] = message.get("tool_calls", []) + _calls_of(raw["tool_calls"])
    elif raw.get("function_call"):
        message["tool_calls"] = _calls_of(raw["function_call"])
    _read_reasoning(raw, message)
    weight = _weight_of(raw, keys.weight, message["role"])
    _check_content(raw, message, weight, keys)
    return ReadMessage(message, weight, _texts_of(raw, message["role"], keys))


def _role_of(word: object, keys: MessageKeys) -> str:
    """Return the role that a word names, in any case. Raises `RowRejected`."""
    if isinstance(word, str):
        role = keys.roles.get(word) or ROLES.get(word) or ROLES.get(word.strip().lower())
        if role is not None:
            return role
    raise RowRejected("unknown_role", f"{keys.role} is {preview(word)}")


def _read_reasoning(raw: Mapping[str, Any], message: Message) -> None:
    """Set `reasoning_content` from the key that holds reasoning. Raises `RowRejected`."""
    for key in REASONING_KEYS:
        reasoning = raw.get(key)
        if reasoning is None:
            continue
        if not isinstance(reasoning, str):
            raise RowRejected("bad_content", f"{key} is {preview(reasoning)}; it must be text")
        if message.setdefault("reasoning_content", reasoning) != reasoning:
            raise RowRejected("bad_content", f"{key} differs from other reasoning of the message")


def _check_content(
    raw: Mapping[str, Any], message: Message, weight: int, keys: MessageKeys
) -> None:
    """Raise `RowRejected` for a message without content whose words lie elsewhere, and for an
    answer that says nothing.
    """
    if raw.get(keys.content) is not None or message.get("tool_calls"):
        return
    if has_reasoning(message):
        return
    for key, value in raw.items():
        if key in (keys.role, keys.weight) or not isinstance(value, str) or not value.strip():
            continue
        if key in _CONTENT_NAMES or " " in value.strip():
            raise RowRejected(
                "bad_content",
                f"a message has no {keys.content}, and {key} is {preview(value)}; name the key with"
                f" mapping, content={key}",
            )
    if weight and message["role"] == "assistant":
        raise RowRejected("no_answer", f"{keys.content} of an assistant message is missing or null")


def _copy_others(raw: Mapping[str, Any], message: Message, read: Sequence[str | None]) -> None:
    """Copy the fields that templates may read, other than those that are normalised or read."""
    for key, value in raw.items():
        if value is not None and key not in _NORMALISED_KEYS and key not in read:
            message[key] = value


def _texts_of(raw: Mapping[str, Any], role: str, keys: MessageKeys) -> list[SourceText]:
    """Return the texts of a message's source."""
    texts: list[SourceText] = []
    for key, value in raw.items():
        is_name = key in ROLE_AND_TYPE and key != keys.content and isinstance(value, str)
        if value is None or is_name or key in (keys.role, keys.weight, *_WEIGHT_KEYS):
            continue
        if key == keys.content:
            if raw.get(keys.role) in _CALL_ROLES:
                texts.append(SourceText("calls", characters_of(value), "tool_calls"))
            elif isinstance(value, str):
                texts += texts_of_content(role, value)
            else:
                texts += _texts_of_parts(role, value)
        elif key in ("tool_calls", "function_call"):
            if characters := characters_of(value):
                texts.append(SourceText("calls", characters, "tool_calls"))
        elif key in REASONING_KEYS:
            texts.append(SourceText("reasoning", len(value), "reasoning_content"))
        elif characters := characters_of(value):
            texts.append(SourceText("keys", characters, key))
    return texts


def _texts_of_parts(role: str, parts: Sequence[Any]) -> list[SourceText]:
    """Return the texts of a content that is a list of typed parts."""
    texts: list[SourceText] = []
    content = ""
    for part in parts:
        if isinstance(part, str):
            content += part
            continue
        part_type = part.get("type")
        if part_type in _CALL_PARTS:
            texts.append(SourceText("calls", characters_of(part), "tool_calls"))
            continue
        text = _text_of_part(role, part, part_type)
        if part_type in _TEXT_PARTS:
            content += text
        else:
            texts.append(SourceText("reasoning", len(text), "reasoning_content"))
        if len(part) > 2:  # besides type and text
            texts += _texts_beside(part)
    return [*texts_of_content(role, content), *texts]


def _texts_beside(part: Mapping[str, Any]) -> list[SourceText]:
    """Return the texts of a typed part beside the one that is read."""
    texts = []
    read = _text_key(part)
    for key, value in part.items():
        if key == read or (key in ROLE_AND_TYPE and isinstance(value, str)):
            continue
        if characters := characters_of(value):
            texts.append(SourceText("parts", characters, key if holds_words(value) else ""))
    return texts


def _weight_of(raw: Mapping[str, Any], name: str | None, role: str) -> int:
    """Return whether a message is trained, as its flags say; only answers can be.

    Raises `RowRejected`.
    """
    weights: dict[str, int] = {}
    for key in (name, *_WEIGHT_KEYS):
        value = None if key is None else raw.get(key)
        if key is None or value is None:
            continue
        if value not in (0, 1):
            raise RowRejected(
                "bad_weight", f"{key} is {preview(value)}; a mask can hold 0 and 1 only"
            )
        weights[key] = int(value)
    if len({*weights.values()}) > 1:
        raise RowRejected("bad_weight", f"flags of a message disagree: {preview(weights)}")
    weight = next(iter(weights.values()), int(role == "assistant"))
    if weight and role != "assistant":
        raise RowRejected(
            "bad_weight", f"{next(iter(weights))} is 1 for role {role}; only answers are trained"
        )
    return weight


def has_reasoning(message: Message) -> bool:
    """Return whether a message has reasoning that is more than white space, under a key or between
    tags.
    """
    if message.get("reasoning_content", "").strip():
        return True
    return message["role"] == "assistant" and reasoning_length(message["content"] or "") > 0


def without_reasoning(message: Message) -> Message:
    """Return a message without its reasoning."""
    message = {key: value for key, value in message.items() if key != "reasoning_content"}
    if message["role"] == "assistant":
        message["content"] = message["content"][reasoning_length(message["content"]) :]
    return message


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
        part_type = part.get("type") if isinstance(part, Mapping) else None
        part_type = part_type if isinstance(part_type, str) else None
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


def _text_of_part(role: str, part: Any, part_type: Any) -> str:
    """Return the text of a part of text or reasoning. Raises `RowRejected` for other parts."""
    what = f"a part of the content of {role} is {preview(part)}"
    if part_type in _MEDIA_PARTS:
        raise RowRejected("media", what)
    if part_type not in _TEXT_PARTS and part_type not in _REASONING_PARTS:
        raise RowRejected("bad_content", what)
    key = _text_key(part)
    if key is None:
        raise RowRejected("bad_content", f"{what}; it has no text")
    text: str = part[key]
    return text


def _text_key(part: Mapping[str, Any]) -> str | None:
    """Return the key of a typed part that holds its text; None if there is none."""
    for key in ("text", "value", "content", part.get("type")):
        if key is not None and isinstance(part.get(key), str):
            return key
    return None


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
        value = parse_json(value, "bad_tool_call", "a tool call", digits.loads)
    calls = [value] if isinstance(value, Mapping) else value
    if not isinstance(calls, Sequence) or isinstance(calls, str) or not calls:
        raise RowRejected(
            "bad_tool_call", f"tool calls are {preview(value)}; give a list of objects with a name"
        )
    return [_call_of(call) for call in calls]


def _call_of(call: object) -> dict[str, Any]:
    if isinstance(call, str):
        call = parse_json(call, "bad_tool_call", "a tool call", digits.loads)
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
            arguments = parse_json(arguments, "bad_tool_call", "arguments", digits.loads)
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


def with_json_arguments(message: Message, *, ensure_ascii: bool) -> Message:
    """Return a message whose calls have their arguments as JSON text."""
    calls = []
    for call in message["tool_calls"]:
        function = dict(call["function"])
        function["arguments"] = digits.dumps(function["arguments"], ensure_ascii=ensure_ascii)
        calls.append({**call, "function": function})
    return {**message, "tool_calls": calls}


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


def parse_json(text: str, reason: str, what: str, read: Callable[[str], Any] = loads) -> Any:
    """Parse JSON inside a text, even if it was encoded twice.

    Raises `RowRejected` with `reason`.
    """
    value: Any = text
    try:
        for _ in range(2):
            value = read(value)
            if not isinstance(value, str):
                return value
    except (ValueError, RecursionError) as error:
        raise RowRejected(reason, f"{what}: {preview(text)} is not valid JSON ({error})") from None
    return value
