"""Messages as chat templates expect them, from the many ways in which they are written down. Pure.

A normalised message has `role` (system, developer, user, assistant, tool) and `content` (text); where they were given
also `reasoning_content` (text), `tool_calls` ({"type": "function", "function": {"name", "arguments": an object}}) and
the fields that templates may look at (name, tool_call_id and any other). What cannot be normalised without a guess
raises `RowRejected`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.formats.json_text import loads
from headrace.packing.chats.words import RowRejected, shown

Message = dict[str, Any]

ROLES = {
    **{name: name for name in ("system", "developer", "user", "assistant", "tool")},
    **dict.fromkeys(("human", "prompter", "customer"), "user"),
    **dict.fromkeys(("gpt", "model", "bot", "chatgpt", "ai"), "assistant"),
    **dict.fromkeys(("observation", "function", "function_response", "tool_response", "ipython"), "tool"),
}
CALL_ROLES = ("function_call", "tool_call")  # messages whose whole content is a call
WEIGHT_KEYS = ("weight", "loss_weight", "train")
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
_OWN_KEYS = frozenset({"role", "content", "tool_calls", "function_call", *WEIGHT_KEYS})
_TEXT_PARTS = ("text", "input_text", "output_text")
_REASONING_PARTS = ("reasoning", "thinking", "reasoning_content")
_CALL_PARTS = ("tool_call", "function_call", "tool_use")


def message_of(raw: object, role_key: str, content_key: str) -> tuple[Message, int]:
    """Normalise one message; with it 1 if it may be trained on, else 0. Raises `RowRejected`."""
    if type(raw) is not dict and not isinstance(raw, Mapping):
        raise RowRejected("bad_content", f"a message is {shown(raw)}; it must be an object")
    word = raw.get(role_key)
    content = raw.get(content_key)
    if word in CALL_ROLES:
        message: Message = {"role": "assistant", "content": "", "tool_calls": calls_of(content)}
    else:
        role = ROLES.get(word) if isinstance(word, str) else None
        if role is None:
            raise RowRejected("unknown_role", f"{role_key} is {shown(word)}")
        message = {"role": role, "content": content} if type(content) is str else _with_content(role, content)
    for key, value in raw.items():
        if value is None or key in _OWN_KEYS or key in (role_key, content_key):
            continue
        message[key] = value
    if raw.get("tool_calls"):
        message["tool_calls"] = message.get("tool_calls", []) + calls_of(raw["tool_calls"])
    elif raw.get("function_call"):
        message["tool_calls"] = calls_of(raw["function_call"])
    for key in REASONING_KEYS:
        if key in message and not isinstance(message[key], str):
            raise RowRejected("bad_content", f"{key} is {shown(message[key])}; it must be text")
    return message, _weight_of(raw) if message["role"] == "assistant" else 0


def reasons(message: Message) -> bool:
    """Tell whether a message carries reasoning of its own that is more than white space."""
    return any(message.get(key, "").strip() for key in REASONING_KEYS)


def calls_of(value: object) -> list[dict[str, Any]]:
    """Normalise one tool call, a list of them, or JSON of either; arguments become objects. Raises `RowRejected`."""
    if isinstance(value, str):
        value = parsed(value, "bad_tool_call", "a tool call")
    calls = [value] if isinstance(value, Mapping) else value
    if not isinstance(calls, Sequence) or isinstance(calls, str) or not calls:
        raise RowRejected("bad_tool_call", f"tool calls are {shown(value)}; give a list of objects with a name")
    return [_call_of(each) for each in calls]


def tools_of(value: object) -> list[dict[str, Any]] | None:
    """Normalise the tools of a conversation, each as {"type": "function", "function": ...}; None for none."""
    if isinstance(value, str):
        value = parsed(value, "bad_tools", "tools") if value.strip() else None
    if value is None:
        return None
    tools = [value] if isinstance(value, Mapping) else value
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        raise RowRejected("bad_tools", f"tools are {shown(value)}; give a list of objects")
    return [_tool_of(each) for each in tools] or None


def parsed(text: str, reason: str, what: str) -> Any:
    """Read JSON inside a text, also if it was encoded twice. Raises `RowRejected` with that reason."""
    value: Any = text
    try:
        for _ in range(2):
            value = loads(value)
            if not isinstance(value, str):
                return value
    except (ValueError, RecursionError) as error:
        raise RowRejected(reason, f"{what}: {shown(text)} is no JSON ({error})") from None
    return value


def _tool_of(tool: object) -> dict[str, Any]:
    if isinstance(tool, str):
        tool = parsed(tool, "bad_tools", "a tool")
    if not isinstance(tool, Mapping):
        raise RowRejected("bad_tools", f"a tool is {shown(tool)}; it must be an object")
    if "function" in tool or "name" not in tool or "type" in tool:
        return dict(tool)
    return {"type": "function", "function": dict(tool)}


def _call_of(call: object) -> dict[str, Any]:
    if isinstance(call, str):
        call = parsed(call, "bad_tool_call", "a tool call")
    if not isinstance(call, Mapping):
        raise RowRejected("bad_tool_call", f"a tool call is {shown(call)}; it must be an object")
    inner = call.get("function", call)
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str) or not inner["name"]:
        raise RowRejected("bad_tool_call", f"a tool call is {shown(call)}; it has no name")
    given = next((inner[key] for key in ("arguments", "parameters", "input") if inner.get(key) is not None), None)
    if isinstance(given, str):
        given = parsed(given, "bad_tool_call", "arguments") if given.strip() else None
    arguments = {} if given is None else given
    if not isinstance(arguments, Mapping):
        raise RowRejected("bad_tool_call", f"arguments of {inner['name']} are {shown(arguments)}; give an object")
    kept = {"id": call["id"]} if call.get("id") is not None else {}
    return {"type": "function", **kept, "function": {"name": inner["name"], "arguments": dict(arguments)}}


def _with_content(role: str, content: object) -> Message:
    """A message whose content is absent or a list of typed parts."""
    if content is None:
        return {"role": role, "content": ""}
    if not isinstance(content, Sequence) or isinstance(content, str):
        raise RowRejected("bad_content", f"content of {role} is {shown(content)}; give text or a list of parts")
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[dict[str, Any]] = []
    for part in content:
        if isinstance(part, str):
            part = {"type": "text", "text": part}
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in _CALL_PARTS:
            calls += calls_of(next((part[key] for key in ("value", kind) if part.get(key) is not None), part))
            continue
        if kind not in _TEXT_PARTS and kind not in _REASONING_PARTS:
            raise RowRejected("bad_content", f"a part of the content of {role} is {shown(part)}")
        text = next((part[key] for key in ("text", "value", "content", kind) if isinstance(part.get(key), str)), None)
        if text is None:
            raise RowRejected("bad_content", f"a part of the content of {role} is {shown(part)}; it has no text")
        if calls or (texts and kind in _REASONING_PARTS):  # a template writes reasoning, text, calls in this order
            raise RowRejected("bad_content", f"a {kind} part stands behind a later kind: {shown(part)}")
        (texts if kind in _TEXT_PARTS else reasoning).append(text)
    message: Message = {"role": role, "content": "".join(texts)}
    if reasoning:
        message["reasoning_content"] = "".join(reasoning)
    if calls:
        message["tool_calls"] = calls
    return message


def _weight_of(raw: Mapping[str, Any]) -> int:
    for key in WEIGHT_KEYS:
        value = raw.get(key)
        if value is None:
            continue
        if value not in (0, 1):
            raise RowRejected("bad_weight", f"{key} is {shown(value)}; a mask can hold 0 and 1 only")
        return int(value)
    return 1
