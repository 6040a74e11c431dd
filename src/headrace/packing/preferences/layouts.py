"""Read rows that compare or judge answers, and rows of prompts, as one prompt and its answers.

Pure.

The prompt is in one of these columns, or, if a row has none of them, in the common beginning of
both answers.

| columns | prompt |
|---|---|
| `messages`, `conversations` | a list of messages; in judged rows the last one is the answer |
| `instruction`, `input`, `system`, `history` | as in rows of instructions |
| `prompt` | a text, which is a user's turn, or a list of messages |
| `question` | a text |

`chosen` and `rejected` are a text, a message, or a list of messages. Lists that begin with a turn
other than the assistant's are whole conversations, and their common beginning is the prompt. A
judged answer is `completion`, `response`, `output` or `answer`, and `label` or `kto_tag` says
whether it was liked. With layout "raw_completion" all of them are texts, and no template is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.packing.chats.layouts import (
    AUTO,
    LAYOUTS,
    Cells,
    Conversation,
    read_messages,
    read_messages_column,
)
from headrace.packing.chats.messages import Message
from headrace.packing.chats.rejections import RowRejected, preview
from headrace.packing.chats.settings import ChatForm
from headrace.packing.chats.words import characters_of
from headrace.packing.preferences.settings import ANSWERS, LABEL, Kind

LABELS = (LABEL, "kto_tag")
_ANSWERED = {
    "instruction": "output",
    "prompt_completion": "completion",
    "question_answer": "answer",
}
_SOME_ANSWER = "x"  # the rendering of the prompt does not depend on it
# 1 and 0 are equal to the first two
_TRUTHS = {True: True, False: False, "true": True, "false": False}


@dataclass(frozen=True)
class Question:
    """A prompt and its answers, as messages or as texts without a template.

    label: of a judged answer. sizes: characters of each answer in the row, with those of the prompt
    if they are there again.
    """

    prompt: list[Message] | str
    answers: list[list[Message] | str]
    label: bool | None = None
    tools: list[dict[str, Any]] | None = None
    values: Mapping[str, Any] | None = None
    sizes: Sequence[int] = ()

    def rows(self) -> list[dict[str, Any]]:
        """Return a row of prompt and completion for each answer, or for a dummy answer if there is
        none.
        """
        raw = isinstance(self.prompt, str)
        if raw:
            some: Any = _SOME_ANSWER
        else:
            some = [{"role": "assistant", "content": _SOME_ANSWER}]
        common = {"prompt": self.prompt, "tools": self.tools, "chat_template_kwargs": self.values}
        return [{**common, "completion": answer} for answer in self.answers or [some]]


def question_of(row: Mapping[str, Any], form: ChatForm, row_type: Kind) -> Question:
    """Read a row. Raises `RowRejected` if it cannot be read without a guess."""
    cells = Cells(row, form.mapping, form.roles)
    label = None
    if row_type == "judged":
        label = _label(cells)
    answers = []
    if row_type == "pairs":
        _check_answers(cells)
    if form.layout == "raw_completion":
        return _raw(cells, row_type, label)
    if row_type == "pairs":
        answers = [_turns(cells, cells.get(name)) for name in ANSWERS[row_type]]
        if any(turns[0]["role"] not in ("assistant", "tool") for turns in answers):
            return _implicit(cells, answers)
    layout = form.layout
    if layout == AUTO:
        layout = _layout_of_prompt(cells, row_type)
    if layout not in ("messages", "conversations"):
        chat, answers = _single(cells, layout, row_type, answers)
        return _question(chat, answers, label)
    keys = {"role": "role", "content": "content"}
    if layout == "conversations":
        keys = {"role": "from", "content": "value"}
    chat = read_messages(cells, cells.get(layout), **keys)
    if row_type == "judged":
        answers = [chat.messages[-1:]]
        chat = _without_last(chat)
    return _question(chat, answers, label)


def _check_answers(cells: Cells) -> None:
    """Raise `RowRejected` unless the row has both answers of a pair."""
    for name in ANSWERS["pairs"]:
        if cells.get(name) is None:
            raise _missing(cells, f"column {cells.name(name)}")


def _layout_of_prompt(cells: Cells, row_type: Kind) -> str:
    """Return the first layout whose column the row has. Raises `RowRejected` if it has none."""
    for name in ("messages", "conversations", *_ANSWERED):
        if cells.get(LAYOUTS[name].column) is not None:
            return name
    needed = [*ANSWERS[row_type]]
    if row_type == "judged":
        needed.append(LABEL)
    what = "column of a prompt"
    if needed:
        what = f"column of a prompt beside {' and '.join(needed)}"
    raise _missing(cells, what)


def _missing(cells: Cells, what: str) -> RowRejected:
    return RowRejected("unknown_layout", f"no {what}; there are {preview(list(cells.row))}")


def _turns(cells: Cells, value: object) -> list[Message]:
    """Read an answer: a text, a message, or a list of them."""
    if isinstance(value, str):
        return [{"role": "assistant", "content": value}]
    answer_cells = Cells(
        {"messages": [value] if isinstance(value, Mapping) else value},
        cells.columns,
        cells.roles,
    )
    turns = read_messages_column(answer_cells).messages
    if not turns:
        raise RowRejected("no_messages", "an answer has no message")
    return turns


def _implicit(cells: Cells, answers: Sequence[list[Message]]) -> Question:
    """Split two conversations into their common beginning and the rest of each."""
    shared = 0
    for one, other in zip(*answers, strict=False):
        if one != other:
            break
        shared += 1
    if not shared:
        raise RowRejected(
            "prompts_differ",
            f"the conversations differ from the first message on: {preview(answers[0])}",
        )
    leading = _with_prompt(cells, answers[0][:shared])
    chat = read_messages(cells, leading, role="role", content="content")
    question = _question(chat, [turns[shared:] for turns in answers], None)
    return replace(question, sizes=[*map(characters_of, answers)])


def _with_prompt(cells: Cells, shared: list[Message]) -> list[Message]:
    """Join the column of the prompt with the beginning that both conversations share.

    Raises `RowRejected` if they do not fit together.
    """
    prompt = cells.get("prompt")
    if not prompt:
        return shared
    if isinstance(prompt, str):
        if any(prompt.strip() in (message["content"] or "") for message in shared):
            return shared
    else:
        keys = {"messages": prompt}
        before = read_messages_column(Cells(keys, cells.columns, cells.roles)).messages
        for size in range(min(len(before), len(shared)), 0, -1):
            if before[len(before) - size :] == shared[:size]:
                return [*before, *shared[size:]]
        if before and before[-1]["role"] == "system" and shared[0]["role"] != "system":
            return [*before, *shared]
    raise RowRejected(
        "prompts_differ",
        f"{cells.name('prompt')} is {preview(prompt)}, which the conversations do not begin with",
    )


def _single(
    cells: Cells, layout: str, row_type: Kind, answers: list[list[Message]]
) -> tuple[Conversation, list[list[Message]]]:
    """Read a prompt beside its answer, by the layout of rows that have both."""
    if layout not in _ANSWERED:
        raise RowRejected(
            "unknown_layout", f"layout {layout} has no prompt; there are {preview(list(cells.row))}"
        )
    name = _ANSWERED[layout]
    if row_type == "judged":
        value = cells.get(name)
        if value is None and layout == "prompt_completion":
            value = cells.get("response")
        if value is None:
            raise _missing(cells, f"column {cells.name(name)}")
        answers = [_turns(cells, value)]
    stand_in = Cells({**cells.row, cells.name(name): _SOME_ANSWER}, cells.columns, cells.roles)
    chat = LAYOUTS[layout].read(stand_in)
    assert isinstance(chat, Conversation)  # as these layouts are
    return _without_last(chat), answers


def _raw(cells: Cells, row_type: Kind, label: bool | None) -> Question:
    if row_type == "judged":
        answer = cells.text("completion", "response")
        return Question(cells.text("prompt"), [answer], label, sizes=[len(answer)])
    if row_type == "prompts":
        return Question(cells.text("prompt"), [])
    answers = [cells.text(name) for name in ANSWERS[row_type]]
    sizes = [*map(len, answers)]
    if cells.get("prompt") is not None:
        return Question(cells.text("prompt"), [*answers], sizes=sizes)
    shared = next(
        (at for at, (one, other) in enumerate(zip(*answers, strict=False)) if one != other),
        min(map(len, answers)),
    )
    prompt = answers[0][:shared]
    if len(prompt) == min(map(len, answers)) and prompt.split():
        body = prompt.rstrip()  # one text extends the other: cut before its last word
        prompt = body[: len(body) - len(body.split()[-1])]
    prompt = prompt.removesuffix(" ")  # a space belongs to the word after it
    if not prompt:
        raise RowRejected(
            "prompts_differ", f"the texts differ from the first character on: {preview(answers[0])}"
        )
    return Question(prompt, [text[len(prompt) :] for text in answers], sizes=sizes)


def _question(chat: Conversation, answers: Sequence[list[Message]], label: bool | None) -> Question:
    if not chat.messages:
        raise RowRejected("no_messages", "there is no prompt")
    if chat.messages[-1]["role"] == "assistant":
        raise RowRejected(
            "no_prompt", f"the prompt ends with an answer: {preview(chat.messages[-1]['content'])}"
        )
    for turns in answers:
        if [turn["role"] for turn in turns] != ["assistant"]:
            roles = ", ".join(turn["role"] for turn in turns) or "nothing"
            raise RowRejected(
                "several_turns", f"an answer is {roles}; it must be one turn of the assistant"
            )
    sizes = [*map(characters_of, answers)]
    return Question(chat.messages, [*answers], label, chat.tools, chat.values, sizes)


def _without_last(chat: Conversation) -> Conversation:
    return replace(chat, messages=chat.messages[:-1], weights=chat.weights[:-1])


def _label(cells: Cells) -> bool:
    for name in LABELS:
        value = cells.get(name)
        if isinstance(value, str):
            value = value.strip().lower()
        if isinstance(value, bool | int | str) and value in _TRUTHS:
            return _TRUTHS[value]
        if value is not None:
            raise RowRejected(
                "no_label", f"{cells.name(name)} is {preview(value)}; give true or false"
            )
    raise RowRejected(
        "no_label", f"no column label or kto_tag; there are {preview(list(cells.row))}"
    )
