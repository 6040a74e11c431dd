"""Read rows of any common layout as conversations, texts or token ids. Pure.

Each entry of `LAYOUTS` is one layout: the columns that identify it, and how its rows are read. With
layout "auto", each row has the first layout that recognises it; raw_completion must be requested. A
mapping of columns gives other names: {"user": "problem", "assistant": "solution"} makes
conversations of any two columns, and {"messages": "chat", "role": "speaker"} renames the columns of
a layout. Every chat layout may have the columns `tools`, `system` and `chat_template_kwargs`.

Images, audio and video are refused: parts of a content, columns `images`, `audios` and `videos`,
and a column `image` beside a text with the tag `<image>`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, NamedTuple
from unicodedata import normalize

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64
from headrace.formats.column_paths import value_at
from headrace.packing.chats.messages import (
    Message,
    MessageKeys,
    message_of,
    parse_json,
    tools_of,
)
from headrace.packing.chats.preference_columns import preference_column, refuse_preference
from headrace.packing.chats.rejections import RowRejected, preview
from headrace.packing.chats.words import (
    PROMPT_COLUMNS,
    Fate,
    SourceText,
    characters_of,
    texts_in,
    texts_of_content,
    unread_columns,
)

AUTO = "auto"

_MEDIA_COLUMNS = ("images", "audios", "videos")
_ANSWER_COLUMNS = frozenset(
    (
        "messages",
        "conversations",
        "assistant",
        "output",
        "completion",
        "answer",
        "text",
        "input_ids",
    )
)
_NO_COLUMNS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Conversation:
    """Normalised messages.

    weights: per message 1 (trained) or 0. values: more template variables. texts: of the source,
    per message.
    """

    messages: list[Message]
    weights: list[int]
    tools: list[dict[str, Any]] | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    texts: list[list[SourceText]] = field(default_factory=list, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Text:
    """A text that is not rendered by a template, trained from character `trained_from` on."""

    text: str
    trained_from: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class TokenSample:
    """Token ids from elsewhere, with a mask of 0 and 1 of the same length."""

    ids: I64
    mask: npt.NDArray[np.uint8]


Sample = Conversation | Text | TokenSample


@dataclass(frozen=True, slots=True)
class Cells:
    """A row whose columns have the names that layouts use. roles: additional names of roles."""

    row: Mapping[str, Any]
    columns: Mapping[str, str]
    roles: Mapping[str, str] = field(default_factory=dict)

    def get(self, name: str) -> Any:
        if name in self.columns:
            return value_at(self.row, self.columns[name])
        return self.row.get(name)

    def name(self, name: str) -> str:
        return self.columns.get(name, name)

    def text(self, *names: str) -> str:
        """Return the text in the first of these columns that is not null. Raises `RowRejected`."""
        for name in names:
            value = self.get(name)
            if isinstance(value, str):
                return value
            if value is not None:
                raise RowRejected(
                    "bad_content", f"{self.name(name)} is {preview(value)}; it must be text"
                )
        raise RowRejected(
            "unknown_layout",
            f"no column {self.name(names[0])}; there are {preview(list(self.row))}",
        )

    def numbers(self, name: str) -> I64 | None:
        """Return a flat list of whole numbers; None if it is null. Raises `RowRejected`."""
        value = self.get(name)
        if value is None:
            return None
        try:
            numbers = np.asarray(value)
        except (ValueError, OverflowError):  # lists of different lengths inside
            numbers = np.empty((0, 0))
        if numbers.ndim != 1 or (numbers.dtype.kind not in "iub" and len(numbers)):
            raise RowRejected(
                "bad_tokens", f"{self.name(name)} is {preview(value)}; give a list of whole numbers"
            )
        return numbers.astype(np.int64)


@dataclass(frozen=True, slots=True)
class ChatLayout:
    """How chats lie in a row.

    column: identifies the layout; "": it is never found, only requested. required: columns of which
    it also needs one. optional: columns that it reads if they are there.
    """

    name: str
    read: Callable[[Cells], Sample]
    column: str = ""
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()

    def recognises(self, cells: Cells) -> bool:
        """Return whether a row has the columns of this layout."""
        if not self.column or cells.get(self.column) is None:
            return False
        return not self.required or any(cells.get(name) is not None for name in self.required)


def digest_of_texts(texts: Sequence[str]) -> bytes:
    """Digest texts, ignoring case, character width and white space; 16 bytes."""
    plain = (text if text.isascii() else normalize("NFKC", text) for text in texts)
    joined = "\0".join(" ".join(text.casefold().split()) for text in plain)
    return blake2b(joined.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def content_of(sample: Sample) -> bytes:
    """Digest the user turns or the prompt of a row, or all of it if it has neither; 16 bytes.

    Tokens count in full.
    """
    if isinstance(sample, TokenSample):  # an untrained prefix may be just a begin token of all rows
        return blake2b(sample.ids.astype("<i8").tobytes(), digest_size=16).digest()
    if isinstance(sample, Text):
        return digest_of_texts([sample.text[: sample.trained_from].strip() or sample.text])
    questions = []
    for message in sample.messages:
        if message["role"] == "user" and message["content"].strip():
            questions.append(message["content"])
    return digest_of_texts(questions or [message["content"] for message in sample.messages])


class ReadRow(NamedTuple):
    """The content of a row, and the layout in which it lies."""

    sample: Sample
    layout: str


def sample_of(
    row: object,
    layout: str = AUTO,
    columns: Mapping[str, str] = _NO_COLUMNS,
    filters: Mapping[str, Collection[str]] = _NO_COLUMNS,
    roles: Mapping[str, str] = _NO_COLUMNS,
) -> Sample:
    """Read the content of a row; see `read_row`."""
    return read_row(row, layout, columns, filters, roles).sample


def read_row(
    row: object,
    layout: str = AUTO,
    columns: Mapping[str, str] = _NO_COLUMNS,
    filters: Mapping[str, Collection[str]] = _NO_COLUMNS,
    roles: Mapping[str, str] = _NO_COLUMNS,
) -> ReadRow:
    """Read the content of a row. Raises `RowRejected` if it cannot be read without a guess.

    filters: columns that selected the rows, so they do not mark a row as preference data. roles:
    additional names of roles.
    """
    if type(row) is not dict and not isinstance(row, Mapping):
        raise RowRejected("not_an_object", f"the row is {preview(row)}")
    judging = preference_column(row)
    if judging is not None and judging not in filters and _ANSWER_COLUMNS.isdisjoint(columns):
        refuse_preference(row, judging)
    cells = Cells(row, columns, roles)
    if layout == AUTO:
        entry = _find_layout(cells)
    else:
        entry = LAYOUTS[layout]
    sample = entry.read(cells)
    if isinstance(sample, Conversation) and not sample.messages:
        raise RowRejected("no_messages", f"layout {entry.name}: the conversation is empty")
    return ReadRow(sample, entry.name)


@dataclass(frozen=True, slots=True)
class Beside:
    """The texts of a row beside its messages.

    fates: what becomes of them. unread_prompt: a column of a prompt that is in no message, if any.
    """

    fates: list[Fate]
    unread_prompt: str | None = None


def texts_beside(
    row: Mapping[str, Any],
    sample: Sample,
    layout: str,
    columns: Mapping[str, str] = _NO_COLUMNS,
) -> Beside:
    """Account for the columns of a row that are not its messages. layout: that of the row."""
    cells = Cells(row, columns)
    read = _columns_read(cells, LAYOUTS[layout], sample)
    fates: list[Fate] = []
    unread_prompt = None
    if isinstance(sample, Text):
        fates.append(Fate("content", "trained", len(sample.text) - sample.trained_from))
        if sample.trained_from:
            fates.append(Fate("content", "context", sample.trained_from))
    elif isinstance(sample, Conversation):
        if tools := characters_of(cells.get("tools")):
            fates.append(Fate("tools", "context", tools))
        if values := characters_of(sample.values):
            fates.append(Fate("columns", "context", values))
        for name in PROMPT_COLUMNS:
            value = row.get(name)
            if name in read or not value or not isinstance(value, str | list | tuple):
                continue
            read.add(name)
            written = _is_in_messages(value, sample.messages)
            fates.append(Fate("prompt", "context" if written else "unread", characters_of(value)))
            if not written:
                unread_prompt = name
    fates += unread_columns(row, read)
    fates += _unread_fields(row, [path for path in columns.values() if path not in row])
    return Beside(fates, unread_prompt)


def _unread_fields(row: Mapping[str, Any], paths: Sequence[str]) -> list[Fate]:
    """Return the texts of columns of which only the fields at these paths are read."""
    fates = []
    for root in sorted({path.partition(".")[0] for path in paths} & {*row}):
        unread = characters_of(row[root])
        for path in paths:
            if path.partition(".")[0] == root:
                unread -= characters_of(value_at(row, path))
        if unread > 0:
            fates.append(Fate("columns", "unread", unread))
    return fates


def _columns_read(cells: Cells, entry: ChatLayout, sample: Sample) -> set[str]:
    """Return the columns of a row that its layout reads."""
    names = [entry.column, *entry.optional, "tools", "values", "chat_template_kwargs"]
    names += [name for name in entry.required if cells.get(name) is not None][:1]
    if entry.name == "raw_completion":
        names += ["prompt", "completion" if cells.get("completion") is not None else "response"]
    if entry.name == "question_answer":
        names = ["tools", "values", "chat_template_kwargs", "question", "answer"]
        if "assistant" in cells.columns:
            names[-2:] = ["user", "assistant"]
    if isinstance(sample, Conversation):
        first = sample.texts[0]
        if first and first[0].text_type == "prompt":
            names.append("system")
    if not cells.columns:
        return set(names)
    read = set()
    for name in names:
        column = cells.name(name)
        if column not in cells.row:
            column = column.partition(".")[0]
        read.add(column)
    return read


def _is_in_messages(value: Any, messages: Sequence[Message]) -> bool:
    """Return whether the texts of a prompt are parts of messages."""
    contents = [message["content"] or "" for message in messages]
    return all(any(text.strip() in content for content in contents) for text in texts_in(value))


def layout_of(row: Mapping[str, Any], columns: Mapping[str, str] = _NO_COLUMNS) -> str:
    """Find the layout that "auto" uses for a row. Raises `RowRejected` if there is none."""
    return _find_layout(Cells(row, columns)).name


def _find_layout(cells: Cells) -> ChatLayout:
    if "assistant" in cells.columns:
        return LAYOUTS["question_answer"]
    # a row that lacks a mapped column must not be read as something else
    for name, path in cells.columns.items():
        if name in _LAYOUT_COLUMNS and cells.get(name) is None:
            raise RowRejected(
                "unknown_layout",
                f"mapping says that {name} is {path}, which this row does not have; columns are"
                f" {preview(list(cells.row))}",
            )
    for layout in LAYOUTS.values():
        if layout.recognises(cells):
            return layout
    columns = preview(list(cells.row))
    if any(cells.name(name) in cells.row for name in ("messages", "conversations")):
        raise RowRejected("no_messages", f"there is no conversation; columns are {columns}")
    raise RowRejected("unknown_layout", f"none of the known layouts has the columns {columns}")


def read_messages(cells: Cells, value: object, *, role: str, content: str) -> Conversation:
    """Build a conversation from a list of messages, or JSON of one.

    role, content: their keys, unless the mapping names others. Raises `RowRejected`.
    """
    if isinstance(value, str):
        value = parse_json(value, "broken_json", "messages")
    if value is None:
        raise RowRejected(
            "no_messages", f"there is no conversation; columns are {preview(list(cells.row))}"
        )
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise RowRejected("bad_content", f"messages are {preview(value)}; give a list")
    role = cells.columns.get("role", role)
    content = cells.columns.get("content", content)
    usual = MessageKeys(role, content, cells.columns.get("weight"), cells.roles)
    messages = []
    weights = []
    texts = []
    for raw in value:
        keys = usual
        if isinstance(raw, Mapping) and role not in raw:
            # Some files name the keys of the other layout.
            if "from" in raw:
                keys = replace(usual, role="from", content="value")
            else:
                keys = replace(usual, role="role", content="content")
        read = message_of(raw, keys)
        messages.append(read.message)
        weights.append(read.weight)
        texts.append(read.texts)
    return _conversation(cells, messages, weights, texts)


def read_messages_column(cells: Cells) -> Conversation:
    """Read the column `messages`: objects with role and content."""
    return read_messages(cells, cells.get("messages"), role="role", content="content")


def _read_conversations(cells: Cells) -> Conversation:
    return read_messages(cells, cells.get("conversations"), role="from", content="value")


def _conversation(
    cells: Cells,
    messages: list[Message],
    weights: list[int],
    texts: list[list[SourceText]],
) -> Conversation:
    """Build a conversation of messages and the columns beside them.

    Raises `RowRejected` for images and the like.
    """
    for name in _MEDIA_COLUMNS:
        if cells.row.get(name):
            raise RowRejected("media", f"column {name} holds {preview(cells.row[name])}")
    if cells.row.get("image") and any("<image>" in message["content"] for message in messages):
        raise RowRejected(
            "media",
            f"column image holds {preview(cells.row['image'])}, for the tag <image> in a message",
        )
    system = cells.get("system")
    if isinstance(system, str) and system.strip() and messages and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": system}, *messages]
        weights = [0, *weights]
        texts = [[SourceText("prompt", len(system), "content")], *texts]
    values = cells.row.get("chat_template_kwargs")
    if "values" in cells.columns:
        values = cells.get("values")
    if not isinstance(values, Mapping):
        values = {}
    return Conversation(messages, weights, tools_of(cells.get("tools")), values, texts)


def _conversation_of_pairs(cells: Cells, *pairs: tuple[str, str]) -> Conversation:
    messages: list[Message] = []
    texts = []
    for user, assistant in pairs:
        messages.append({"role": "user", "content": user})
        messages.append({"role": "assistant", "content": assistant})
        texts.append(texts_of_content("user", user))
        texts.append(texts_of_content("assistant", assistant))
    return _conversation(cells, messages, [0, 1] * len(pairs), texts)


def _read_instruction(cells: Cells) -> Conversation:
    history = cells.get("history") or []
    try:
        pairs = [(user, assistant) for user, assistant in history]
    except (TypeError, ValueError):
        pairs = [(None, None)]
    if not all(isinstance(text, str) for pair in pairs for text in pair):
        raise RowRejected("bad_content", f"history is {preview(history)}; give pairs of texts")
    instruction = cells.text("instruction")
    question = instruction
    material = cells.get("input") or ""
    if isinstance(material, str) and material.strip():
        question = f"{instruction}\n{material}"
    elif not isinstance(material, str):
        raise RowRejected("bad_content", f"input is {preview(material)}; it must be text")
    chat = _conversation_of_pairs(cells, *pairs, (question, cells.text("output")))
    if question is not instruction:  # without the line break between them
        chat.texts[-2] = texts_of_content("user", instruction + material)
    return chat


def _read_prompt_completion(cells: Cells) -> Conversation:
    prompt = cells.get("prompt")
    completion = cells.get("completion")
    if completion is None:
        completion = cells.get("response")
    if isinstance(prompt, str) and isinstance(completion, str):
        return _conversation_of_pairs(cells, (prompt, completion))
    if isinstance(prompt, str):
        before = [{"role": "user", "content": prompt}]
    else:
        before = prompt
    after = completion
    if isinstance(completion, str):
        after = [{"role": "assistant", "content": completion}]
    if not isinstance(before, Sequence) or not isinstance(after, Sequence):
        raise RowRejected(
            "bad_content", f"prompt is {preview(prompt)}, completion {preview(completion)}"
        )
    chat = read_messages(cells, [*before, *after], role="role", content="content")
    prompt_messages = len(chat.messages) - len(after)  # with a system message of its own column
    return replace(chat, weights=[0] * prompt_messages + chat.weights[prompt_messages:])


def _read_raw_completion(cells: Cells) -> Text:
    prompt = cells.text("prompt")
    return Text(prompt + cells.text("completion", "response"), len(prompt))


def _read_question_answer(cells: Cells) -> Conversation:
    user = "question"
    assistant = "answer"
    if "assistant" in cells.columns:
        user = "user"
        assistant = "assistant"
    return _conversation_of_pairs(cells, (cells.text(user), cells.text(assistant)))


def _read_text(cells: Cells) -> Text:
    return Text(cells.text("text"))


def _read_tokens(cells: Cells) -> TokenSample:
    ids = cells.numbers("input_ids")
    if ids is None or not len(ids):
        raise RowRejected("no_messages", f"{cells.name('input_ids')} are empty")
    mask = _mask_of_tokens(cells, ids)
    attention = cells.numbers("attention_mask")
    if attention is not None:
        if len(attention) != len(ids):
            raise RowRejected(
                "bad_tokens",
                f"{len(ids)} tokens have an attention mask of {len(attention)} values",
            )
        ids = ids[attention != 0]
        mask = mask[attention != 0]
        if not len(ids):
            raise RowRejected("nothing_trained", "the attention mask leaves no token")
    return TokenSample(ids, mask.astype(np.uint8))


def _mask_of_tokens(cells: Cells, ids: I64) -> npt.NDArray[Any]:
    """Return the mask of a row of tokens, from `loss_mask`, else from `labels`, else all ones."""
    mask = cells.numbers("loss_mask")
    labels = cells.numbers("labels")
    for name, values in (("loss_mask", mask), ("labels", labels)):
        if values is not None and len(values) != len(ids):
            raise RowRejected(
                "bad_tokens",
                f"{len(ids)} tokens have {len(values)} values of {cells.name(name)}",
            )
    if mask is not None:
        if not ((mask == 0) | (mask == 1)).all():
            raise RowRejected(
                "bad_tokens", f"the mask holds {preview(np.unique(mask).tolist())}; give 0 and 1"
            )
        return mask
    if labels is None:
        return np.ones(len(ids), np.int64)
    trained: npt.NDArray[np.bool_] = labels != -100
    if (labels[trained] != ids[trained]).any():
        raise RowRejected(
            "bad_tokens",
            "labels are neither the token at their position nor -100; do not shift them",
        )
    return trained


_ENTRIES = (
    ChatLayout(
        "tokens", _read_tokens, "input_ids", optional=("loss_mask", "labels", "attention_mask")
    ),
    ChatLayout("messages", read_messages_column, "messages", optional=("role", "content")),
    ChatLayout("conversations", _read_conversations, "conversations"),
    ChatLayout("instruction", _read_instruction, "instruction", ("output",), ("input", "history")),
    ChatLayout("prompt_completion", _read_prompt_completion, "prompt", ("completion", "response")),
    ChatLayout(
        "question_answer", _read_question_answer, "question", ("answer",), ("user", "assistant")
    ),
    ChatLayout("text", _read_text, "text"),
    ChatLayout("raw_completion", _read_raw_completion),
)
LAYOUTS = {layout.name: layout for layout in _ENTRIES}
"""All layouts by name, in the order in which "auto" tries them."""

_LAYOUT_COLUMNS = frozenset(layout.column for layout in _ENTRIES if layout.column)
_COLUMNS_BESIDE = ("tools", "system", "values", "weight", "chosen", "rejected", "label")
NAMES = frozenset(
    name
    for layout in _ENTRIES
    for name in (layout.column, *layout.required, *layout.optional, *_COLUMNS_BESIDE)
    if name
)
"""Columns that a mapping may give other names."""
