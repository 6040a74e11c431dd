"""Read rows of any common layout as conversations, texts or token ids. Pure.

| layout | columns |
|---|---|
| messages | `messages`: objects with role and content |
| conversations | `conversations`: objects with from and value |
| instruction | `instruction`, optional `input`, `output`, optional `system`, `history` (pairs) |
| prompt_completion | `prompt`, `completion` (or `response`): texts of user and assistant, or lists of messages |
| raw_completion | the same as texts without a template: the completion is trained |
| question_answer | `question`, `answer` |
| text | `text`: no template, everything is trained |
| tokens | `input_ids`, optional `loss_mask` or `labels` (-100: not trained), optional `attention_mask` |

With layout "auto", each row has the first layout whose columns it has; raw_completion must be requested. A mapping of
columns gives other names: {"user": "problem", "assistant": "solution"} makes conversations of any two columns, and
{"messages": "chat", "role": "speaker"} renames the columns of a layout. Every chat layout may have a column `tools`.

A normalised message has `role` (system, developer, user, assistant, tool) and `content` (text). If the row has them, it
also has `reasoning_content` (text), `tool_calls` ({"type": "function", "function": {"name", "arguments": an object}})
and the fields that templates may read (name, tool_call_id and any other).

Images, audio and video are refused: parts of a content, columns `images`, `audios` and `videos`, and a column `image`
beside a text with the tag `<image>`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from types import MappingProxyType
from typing import Any
from unicodedata import normalize

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64
from headrace.formats.strict_json import loads
from headrace.packing.chats.preference_columns import preference_column, refuse_preference
from headrace.packing.chats.words import Layout, RowRejected, shown

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
_MEDIA_PARTS = frozenset(
    ("image", "image_url", "input_image", "audio", "audio_url", "input_audio", "video", "video_url")
)
_MEDIA_COLUMNS = ("images", "audios", "videos")
_CALL_PARTS = ("tool_call", "function_call", "tool_use")

_ANSWERS = frozenset(("messages", "conversations", "assistant", "output", "completion", "answer", "text", "input_ids"))
_NO_COLUMNS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Conversation:
    """Normalised messages. weights: per message 1 (trained) or 0. values: additional variables for the template."""

    messages: list[Message]
    weights: list[int]
    tools: list[dict[str, Any]] | None = None
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Text:
    """A text that is not rendered by a template, trained from character `trained_from` on."""

    text: str
    trained_from: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """Token ids from elsewhere, with a mask of 0 and 1 of the same length."""

    ids: I64
    mask: npt.NDArray[np.uint8]


Sample = Conversation | Text | Tokens


def digest_of_texts(texts: Sequence[str]) -> bytes:
    """Digest texts, ignoring case, character width and white space; 16 bytes."""
    plain = (text if text.isascii() else normalize("NFKC", text) for text in texts)
    joined = "\0".join(" ".join(text.casefold().split()) for text in plain)
    return blake2b(joined.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def content_of(sample: Sample) -> bytes:
    """Digest the user turns or the prompt of a row, or all of it if it has neither; 16 bytes. Tokens count in full."""
    if isinstance(sample, Tokens):  # an untrained prefix may be just a begin token of all rows
        return blake2b(sample.ids.astype("<i8").tobytes(), digest_size=16).digest()
    if isinstance(sample, Text):
        return digest_of_texts([sample.text[: sample.trained_from].strip() or sample.text])
    asked = [message["content"] for message in sample.messages if message["role"] == "user"]
    texts = [text for text in asked if text.strip()] or [message["content"] for message in sample.messages]
    return digest_of_texts(texts)


def sample_of(
    row: object,
    layout: Layout = "auto",
    columns: Mapping[str, str] = _NO_COLUMNS,
    filters: Mapping[str, Collection[str]] = _NO_COLUMNS,
) -> Sample:
    """Read the content of a row. Raises `RowRejected` with the reason if it cannot be read without a guess.

    filters: columns that selected the rows, so they do not mark a row as preference data.
    """
    if type(row) is not dict and not isinstance(row, Mapping):
        raise RowRejected("not_an_object", f"the row is {shown(row)}")
    judging = preference_column(row)
    if judging is not None and judging not in filters and _ANSWERS.isdisjoint(columns):
        refuse_preference(row, judging)
    cells = Cells(row, columns)
    if layout == "auto":
        layout = _found_layout(cells)
    sample = LAYOUTS[layout][0](cells)
    if isinstance(sample, Conversation) and not sample.messages:
        raise RowRejected("no_messages", f"layout {layout}: the conversation is empty")
    return sample


def layout_of(row: Mapping[str, Any], columns: Mapping[str, str] = _NO_COLUMNS) -> Layout:
    """Find the layout that "auto" uses for a row. Raises `RowRejected` if there is none."""
    return _found_layout(Cells(row, columns))


@dataclass(frozen=True, slots=True)
class Cells:
    """A row whose columns have the names that layouts use."""

    row: Mapping[str, Any]
    columns: Mapping[str, str]

    def get(self, name: str) -> Any:
        return self.row.get(self.columns.get(name, name) if self.columns else name)

    def name(self, name: str) -> str:
        return self.columns.get(name, name)

    def text(self, *names: str) -> str:
        for name in names:
            value = self.get(name)
            if isinstance(value, str):
                return value
            if value is not None:
                raise RowRejected("bad_content", f"{self.name(name)} is {shown(value)}; it must be text")
        raise RowRejected("unknown_layout", f"no column {self.name(names[0])}; there are {shown(list(self.row))}")

    def numbers(self, name: str) -> I64 | None:
        value = self.get(name)
        if value is None:
            return None
        try:
            numbers = np.asarray(value)
        except (ValueError, OverflowError):  # lists of different lengths inside
            numbers = np.empty((0, 0))
        if numbers.ndim != 1 or (numbers.dtype.kind not in "iub" and len(numbers)):
            raise RowRejected("bad_tokens", f"{self.name(name)} is {shown(value)}; give a list of whole numbers")
        return numbers.astype(np.int64)


def _found_layout(cells: Cells) -> Layout:
    if "assistant" in cells.columns:
        return "question_answer"
    for layout, (_, first, others) in LAYOUTS.items():
        if (
            first
            and cells.get(first) is not None
            and (not others or any(cells.get(name) is not None for name in others))
        ):
            return layout
    if any(cells.name(name) in cells.row for name in ("messages", "conversations")):
        raise RowRejected("no_messages", f"there is no conversation; columns are {shown(list(cells.row))}")
    raise RowRejected("unknown_layout", f"none of the known layouts has the columns {shown(list(cells.row))}")


def listed(cells: Cells, value: object, role: str = "role", content: str = "content") -> Conversation:
    """Build a conversation from a list of messages. role, content: their keys, unless the mapping names others."""
    if isinstance(value, str):
        value = parsed(value, "broken_json", "messages")
    if value is None:
        raise RowRejected("no_messages", f"there is no conversation; columns are {shown(list(cells.row))}")
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise RowRejected("bad_content", f"messages are {shown(value)}; give a list")
    keys = cells.columns.get("role", role), cells.columns.get("content", content)
    messages, weights = [], []
    for raw in value:
        own = keys
        if isinstance(raw, Mapping) and keys[0] not in raw:  # some files name the keys of the other layout
            own = ("from", "value") if "from" in raw else ("role", "content")
        message, weight = message_of(raw, *own)
        messages.append(message)
        weights.append(weight)
    return _conversation(cells, messages, weights)


def _conversation(cells: Cells, messages: list[Message], weights: list[int]) -> Conversation:
    """Build a conversation of messages and the columns beside them. Raises `RowRejected` for images and the like."""
    for name in _MEDIA_COLUMNS:
        if cells.row.get(name):
            raise RowRejected("media", f"column {name} holds {shown(cells.row[name])}")
    if cells.row.get("image") and any("<image>" in message["content"] for message in messages):
        raise RowRejected("media", f"column image holds {shown(cells.row['image'])}, for the tag <image> in a message")
    system = cells.get("system")
    if isinstance(system, str) and system.strip() and messages and messages[0]["role"] != "system":
        messages, weights = [{"role": "system", "content": system}, *messages], [0, *weights]
    values = cells.get("values") if "values" in cells.columns else cells.row.get("chat_template_kwargs")
    values = values if values is not None and isinstance(values, Mapping) else {}
    return Conversation(messages, weights, tools_of(cells.get("tools")), values)


def _pairs(cells: Cells, *pairs: tuple[str, str]) -> Conversation:
    messages: list[Message] = []
    for user, assistant in pairs:
        messages += ({"role": "user", "content": user}, {"role": "assistant", "content": assistant})
    return _conversation(cells, messages, [0, 1] * len(pairs))


def _instruction(cells: Cells) -> Conversation:
    history = cells.get("history") or []
    try:
        pairs = [(user, assistant) for user, assistant in history]
    except (TypeError, ValueError):
        pairs = [(None, None)]
    if not all(isinstance(text, str) for pair in pairs for text in pair):
        raise RowRejected("bad_content", f"history is {shown(history)}; give pairs of texts")
    asked, more = cells.text("instruction"), cells.get("input")
    if isinstance(more, str) and more.strip():
        asked = f"{asked}\n{more}"
    elif more is not None and not isinstance(more, str):
        raise RowRejected("bad_content", f"input is {shown(more)}; it must be text")
    return _pairs(cells, *pairs, (asked, cells.text("output")))


def _prompt_completion(cells: Cells) -> Conversation:
    prompt, completion = cells.get("prompt"), cells.get("completion")
    completion = cells.get("response") if completion is None else completion
    if isinstance(prompt, str) and isinstance(completion, str):
        return _pairs(cells, (prompt, completion))
    before = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    after = [{"role": "assistant", "content": completion}] if isinstance(completion, str) else completion
    if not isinstance(before, Sequence) or not isinstance(after, Sequence):
        raise RowRejected("bad_content", f"prompt is {shown(prompt)}, completion {shown(completion)}")
    whole = listed(cells, [*before, *after])
    asked = len(whole.messages) - len(after)  # with a system message of its own column
    return replace(whole, weights=[0] * asked + whole.weights[asked:])


def _raw_completion(cells: Cells) -> Text:
    prompt = cells.text("prompt")
    return Text(prompt + cells.text("completion", "response"), len(prompt))


def _question_answer(cells: Cells) -> Conversation:
    user, assistant = ("user", "assistant") if "assistant" in cells.columns else ("question", "answer")
    return _pairs(cells, (cells.text(user), cells.text(assistant)))


def _tokens(cells: Cells) -> Tokens:
    ids, mask, labels = (cells.numbers(name) for name in ("input_ids", "loss_mask", "labels"))
    if ids is None or not len(ids):
        raise RowRejected("no_messages", f"{cells.name('input_ids')} are empty")
    for name, values in (("loss_mask", mask), ("labels", labels)):
        if values is not None and len(values) != len(ids):
            raise RowRejected("bad_tokens", f"{len(ids)} tokens have {len(values)} values of {cells.name(name)}")
    if mask is None and labels is not None:
        mask = labels != -100
        if (labels[mask] != ids[mask]).any():
            raise RowRejected(
                "bad_tokens", "labels are neither the token at their position nor -100; do not shift them"
            )
    if mask is None:
        mask = np.ones(len(ids), np.int64)
    if not ((mask == 0) | (mask == 1)).all():
        raise RowRejected("bad_tokens", f"the mask holds {shown(np.unique(mask).tolist())}; give 0 and 1")
    attention = cells.numbers("attention_mask")
    if attention is not None:
        if len(attention) != len(ids):
            raise RowRejected("bad_tokens", f"{len(ids)} tokens have an attention mask of {len(attention)} values")
        ids, mask = ids[attention != 0], mask[attention != 0]
        if not len(ids):
            raise RowRejected("nothing_trained", "the attention mask leaves no token")
    return Tokens(ids, mask.astype(np.uint8))


# Layout: its reader, the column that identifies it, and columns of which it also needs one. In the order of "auto".
LAYOUTS: dict[Layout, tuple[Callable[[Cells], Sample], str, tuple[str, ...]]] = {
    "tokens": (_tokens, "input_ids", ()),
    "messages": (lambda cells: listed(cells, cells.get("messages")), "messages", ()),
    "conversations": (lambda cells: listed(cells, cells.get("conversations"), "from", "value"), "conversations", ()),
    "instruction": (_instruction, "instruction", ("output",)),
    "prompt_completion": (_prompt_completion, "prompt", ("completion", "response")),
    "question_answer": (_question_answer, "question", ("answer",)),
    "text": (lambda cells: Text(cells.text("text")), "text", ()),
    "raw_completion": (_raw_completion, "", ()),
}
_BESIDE = ("input", "history", "loss_mask", "labels", "attention_mask", "tools", "system", "role", "content", "values")
_OF_PREFERENCES = ("chosen", "rejected", "label")
NAMES = frozenset(
    {name for _, first, others in LAYOUTS.values() for name in (first, *others)} - {""}
    | {*_BESIDE, *_OF_PREFERENCES, "user", "assistant"}
)
"""Columns that a mapping may give other names."""


def message_of(raw: object, role_key: str, content_key: str) -> tuple[Message, int]:
    """Normalise a message and return it with its weight, 1 or 0. Raises `RowRejected`."""
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
    if message["role"] != "assistant":
        return message, 0
    for key in WEIGHT_KEYS:
        if (value := raw.get(key)) is not None:
            if value not in (0, 1):
                raise RowRejected("bad_weight", f"{key} is {shown(value)}; a mask can hold 0 and 1 only")
            return message, int(value)
    return message, 1


def reasons(message: Message) -> bool:
    """Return whether a message has reasoning of its own that is more than white space."""
    return any(message.get(key, "").strip() for key in REASONING_KEYS)


def calls_of(value: object) -> list[dict[str, Any]]:
    """Normalise one tool call, a list of them, or JSON of either; arguments become objects. Raises `RowRejected`."""
    if isinstance(value, str):
        value = parsed(value, "bad_tool_call", "a tool call")
    calls = [value] if isinstance(value, Mapping) else value
    if not isinstance(calls, Sequence) or isinstance(calls, str) or not calls:
        raise RowRejected("bad_tool_call", f"tool calls are {shown(value)}; give a list of objects with a name")
    normal = []
    for call in calls:
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
        normal.append({"type": "function", **kept, "function": {"name": inner["name"], "arguments": dict(arguments)}})
    return normal


def tools_of(value: object) -> list[dict[str, Any]] | None:
    """Normalise the tools of a conversation, each as {"type": "function", "function": ...}; None if there are none."""
    if isinstance(value, str):
        value = parsed(value, "bad_tools", "tools") if value.strip() else None
    if value is None:
        return None
    tools = [value] if isinstance(value, Mapping) else value
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        raise RowRejected("bad_tools", f"tools are {shown(value)}; give a list of objects")
    normal = []
    for tool in tools:
        if isinstance(tool, str):
            tool = parsed(tool, "bad_tools", "a tool")
        if not isinstance(tool, Mapping):
            raise RowRejected("bad_tools", f"a tool is {shown(tool)}; it must be an object")
        bare = "name" in tool and "function" not in tool and "type" not in tool
        normal.append({"type": "function", "function": dict(tool)} if bare else dict(tool))
    return normal or None


def parsed(text: str, reason: str, what: str) -> Any:
    """Parse JSON inside a text, even if it was encoded twice. Raises `RowRejected` with this reason."""
    value: Any = text
    try:
        for _ in range(2):
            value = loads(value)
            if not isinstance(value, str):
                return value
    except (ValueError, RecursionError) as error:
        raise RowRejected(reason, f"{what}: {shown(text)} is not valid JSON ({error})") from None
    return value


def _with_content(role: str, content: object) -> Message:
    """Return a message with a text as content, if that is absent or a list of typed parts."""
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
        if kind in _MEDIA_PARTS:
            raise RowRejected("media", f"a part of the content of {role} is {shown(part)}")
        if kind not in _TEXT_PARTS and kind not in _REASONING_PARTS:
            raise RowRejected("bad_content", f"a part of the content of {role} is {shown(part)}")
        text = next((part[key] for key in ("text", "value", "content", kind) if isinstance(part.get(key), str)), None)
        if text is None:
            raise RowRejected("bad_content", f"a part of the content of {role} is {shown(part)}; it has no text")
        if calls or (texts and kind in _REASONING_PARTS):  # a template writes reasoning, text, calls in this order
            raise RowRejected("bad_content", f"a {kind} part comes after a later kind: {shown(part)}")
        (texts if kind in _TEXT_PARTS else reasoning).append(text)
    message: Message = {"role": role, "content": "".join(texts)}
    if reasoning:
        message["reasoning_content"] = "".join(reasoning)
    if calls:
        message["tool_calls"] = calls
    return message
