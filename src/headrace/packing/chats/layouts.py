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

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
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
)

AUTO = "auto"

_MEDIA_COLUMNS = ("images", "audios", "videos")
_BESIDE_MESSAGES = frozenset((*_MEDIA_COLUMNS, "image", "system", "tools", "chat_template_kwargs"))
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


@dataclass(slots=True)  # never changed, but freezing takes most of the time to make one
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


_HEADER = r"(?:<\|im_start\|>|<start_of_turn>|<\|start_header_id\|>|<\|)"


def _speaker(names: str, token: str) -> re.Pattern[str]:
    """Build a pattern of the words that introduce a turn."""
    title = rf"(?:^|\n|#)[^\w\n]{{0,8}}(?:{names})[^\w\n]{{0,4}}:"
    return re.compile(rf"{re.escape(token)}|{title}|{_HEADER}(?:{names})\b", re.IGNORECASE)


_ASKS = _speaker("user|human|prompter|customer|question|instruction|q", "[INST]")
_ANSWERS = _speaker("assistant|gpt|model|bot|ai|answer|response|a", "[/INST]")
_BEGINNING = 500  # characters, in which a transcript's first question begins


def is_transcript(text: str) -> bool:
    """Return whether a text looks like a chat, as in "User: … Assistant: …"."""
    asks = _ASKS.search(text, 0, _BEGINNING)
    return asks is not None and _ANSWERS.search(text, asks.end()) is not None


@dataclass(slots=True)  # made for every row, and freezing takes most of that
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
    plain = []
    for text in texts:
        narrow = text if text.isascii() else normalize("NFKC", text)
        plain.append(" ".join(narrow.casefold().split()))
    joined = "\0".join(plain)
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


class Beside(NamedTuple):
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
    if not columns and isinstance(sample, Conversation) and row.keys() <= _ALL_READ[layout]:
        return Beside([])
    cells = Cells(row, columns)
    required = None
    for name in LAYOUTS[layout].required:
        if cells.get(name) is not None:
            required = name
            break
    unread = _unread_columns(
        tuple(row),
        tuple(columns.items()),
        layout,
        required,
        is_chat=isinstance(sample, Conversation),
        system=isinstance(sample, Conversation) and _has_system(sample),
    )
    fates = _fates_beside_messages(cells, sample)
    unread_prompt = None
    for name in unread:
        value = row[name]
        characters = characters_of(value)
        fate = Fate("columns", "unread", characters)
        is_prompt = name in PROMPT_COLUMNS or name == cells.name("system")
        if not isinstance(sample, TokenSample) and characters and is_prompt:
            fate = Fate("prompt", "context", characters)
            if not _is_written(value, sample):
                fate = Fate("prompt", "unread", characters)
                unread_prompt = name
        if characters or type(value) is str:
            fates.append(fate)
    if columns:
        fates += _unread_fields(row, [path for path in columns.values() if path not in row])
    return Beside(fates, unread_prompt)


def _has_system(chat: Conversation) -> bool:
    """Return whether the first message is of the column `system`."""
    return bool(chat.texts[0]) and chat.texts[0][0].text_type == "prompt"


def _fates_beside_messages(cells: Cells, sample: Sample) -> list[Fate]:
    """Return the fates of a plain text, or of what accompanies messages."""
    if isinstance(sample, Text):
        fates = [Fate("content", "trained", len(sample.text) - sample.trained_from)]
        if sample.trained_from:
            fates.insert(0, Fate("content", "context", sample.trained_from))
        return fates
    fates = []
    if isinstance(sample, Conversation):
        # JSON text counts as the texts in it
        tools = sample.tools or cells.get("tools")
        if tools and (characters := characters_of(tools)):
            fates.append(Fate("tools", "context", characters))
        values = sample.values or cells.get(_values_column(cells))
        if values and (characters := characters_of(values)):
            fates.append(Fate("columns", "context", characters))
    return fates


def _values_column(cells: Cells) -> str:
    return "values" if "values" in cells.columns else "chat_template_kwargs"


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


@lru_cache(maxsize=4096)
def _unread_columns(
    names: tuple[str, ...],
    columns: tuple[tuple[str, str], ...],
    layout: str,
    required: str | None,
    *,
    is_chat: bool,
    system: bool,
) -> tuple[str, ...]:
    """Return the columns of a row that its layout does not read.

    required: the column that it needs besides the first. system: whether the column `system` became
    a message.
    """
    mapped = dict(columns)
    entry = LAYOUTS[layout]
    read_names = [entry.column, *entry.optional]
    if layout == "question_answer":
        read_names = ["user", "assistant"] if "assistant" in mapped else ["question", "answer"]
    elif required is not None:
        read_names.append(required)
    if is_chat:
        read_names += ["tools", "values" if "values" in mapped else "chat_template_kwargs"]
    if system:
        read_names.append("system")
    read = set()
    for name in read_names:
        column = mapped.get(name, name)
        read.add(column if column in names else column.partition(".")[0])
    return tuple(name for name in names if name not in read)


def _is_written(value: Any, sample: Conversation | Text) -> bool:
    """Return whether the texts of a prompt are in the text or in messages of a row."""
    if isinstance(sample, Conversation):
        contents = [message["content"] or "" for message in sample.messages]
    else:
        contents = [sample.text]
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
    for layout in _ENTRIES:
        column = layout.column
        if (column in cells.row or column in cells.columns) and layout.recognises(cells):
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
                keys = usual._replace(role="from", content="value")
            else:
                keys = usual._replace(role="role", content="content")
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
    if not cells.columns and _BESIDE_MESSAGES.isdisjoint(cells.row):  # as in most rows
        return Conversation(messages, weights, None, {}, texts)
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
    return Conversation(
        messages, weights, tools_of(cells.get("tools")), _template_values(cells), texts
    )


def _template_values(cells: Cells) -> Mapping[str, Any]:
    """Return the variables of the template, an object or JSON of one. Raises `RowRejected`."""
    column = _values_column(cells)
    values = cells.get(column)
    if isinstance(values, str):
        values = parse_json(values, "broken_json", column) if values.strip() else None
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise RowRejected(
            "bad_content", f"{cells.name(column)} is {preview(values)}; give an object"
        )
    return values


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
    if material:  # without the line break between them
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
    ChatLayout("messages", read_messages_column, "messages"),
    ChatLayout("conversations", _read_conversations, "conversations"),
    ChatLayout("instruction", _read_instruction, "instruction", ("output",), ("input", "history")),
    ChatLayout("prompt_completion", _read_prompt_completion, "prompt", ("completion", "response")),
    ChatLayout("question_answer", _read_question_answer, "question", ("answer",)),
    ChatLayout("text", _read_text, "text"),
    ChatLayout(
        "raw_completion",
        _read_raw_completion,
        required=("completion", "response"),
        optional=("prompt",),
    ),
)
LAYOUTS = {layout.name: layout for layout in _ENTRIES}
"""All layouts by name, in the order in which "auto" tries them."""

_ALL_READ = {
    layout.name: frozenset((layout.column, *layout.required[:1], *layout.optional))
    for layout in _ENTRIES
}
"""Columns of which a layout reads all that a row has."""

_LAYOUT_COLUMNS = frozenset(layout.column for layout in _ENTRIES if layout.column)
_COLUMNS_BESIDE = ("tools", "system", "values", "chosen", "rejected", "label")
_KEYS_OF_MESSAGES = ("role", "content", "weight")
_SIDES = ("user", "assistant")  # a mapping of both makes conversations of two columns
NAMES = frozenset((*_COLUMNS_BESIDE, *_KEYS_OF_MESSAGES, *_SIDES)).union(
    _LAYOUT_COLUMNS, *(layout.required + layout.optional for layout in _ENTRIES)
)
"""Columns that a mapping may give other names."""
