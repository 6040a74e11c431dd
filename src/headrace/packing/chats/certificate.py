"""Probe a chat template before the first row: what it does with every kind of text.

A template is a program, so what it does is found by rendering short conversations. The probes go
through the code that makes masks, so a certificate states what a model will be trained on: the
token that ends a turn, by what follows the turn; what becomes of reasoning, tools, calls and
results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import SettingsError
from headrace.packing.chats.layouts import Conversation
from headrace.packing.chats.marks import shared_start
from headrace.packing.chats.messages import REASONING_KEYS, Message
from headrace.packing.chats.probes import (
    ANSWERED,
    ASKED,
    ASKED_AGAIN,
    RESULT,
    RESULT_MESSAGE,
    THOUGHT,
    TOOL,
    TOOL_DEFINITION,
    VALUE,
    answer,
    call,
    user,
)
from headrace.packing.chats.rejections import RowRejected

if TYPE_CHECKING:
    from headrace.packing.chats.render import Turns

PLACES = {
    "last": "after the last answer",
    "user": "before a user",
    "tool": "before a tool",
    "call": "after a last call",
}
Written = Literal["written", "left out", "refused"]


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a template does.

    stops: the special token that a trained turn ends with, by what follows it (see `PLACES`); "" if
    there is none. What the template refuses is absent. spaced: whether white space after it is
    trained, as some `{% generation %}` blocks do. prompt: the generation prompt.
    prompt_written: whether only on request. begin: the special token that conversations begin with.
    reasoning: by the key that the template reads, or "<think>" for reasoning inside the content,
    and by position of the turn. repeats: whether the same conversation gives the same text twice.
    dated: whether the template asks for the date.
    """

    stops: dict[str, str] = field(default_factory=dict)
    spaced: bool = False
    prompt: str = ""
    prompt_written: Literal["on request", "always", "never"] = "never"
    begin: str = ""
    reasoning: dict[str, dict[str, Written]] = field(default_factory=dict)
    tools: Written = "refused"
    calls: Written = "refused"
    results: Written = "refused"
    repeats: bool = True
    dated: bool = False


def certificate_of(turns: Turns) -> Certificate | None:
    """Probe a template; None if it writes no conversation of a user and an assistant."""
    try:
        return _probed(turns)
    except (RowRejected, SettingsError):
        return None


def _probed(turns: Turns) -> Certificate:
    question = [user()]
    plain = _text(turns, question)
    again = _text(turns, question)
    prompted = _text(turns, question, prompt=True)
    prompt = turns.constant_prompt
    prompt_written: Literal["on request", "always", "never"] = "always" if prompt else "never"
    if prompted != plain:
        prompt_written = "on request"
        prompt = prompted[shared_start(plain, prompted) :]
    begin = ""
    if turns.specials.bos and plain.startswith(turns.specials.bos):
        begin = turns.specials.bos
    stops, spaced = _stops(turns)
    return Certificate(
        stops=stops,
        spaced=spaced,
        prompt=prompt,
        prompt_written=prompt_written,
        begin=begin,
        reasoning=_reasoning(turns),
        tools=_written(turns, [user(), answer()], [TOOL], tools=True),
        calls=_written(turns, [user(), call()], [TOOL, VALUE], tools=True),
        results=_written(turns, [user(), call(), RESULT_MESSAGE, answer()], [RESULT], tools=True),
        repeats=plain == again,
        dated=turns.template.asks_for_date,
    )


def _stops(turns: Turns) -> tuple[dict[str, str], bool]:
    """Return the special token that ends the first trained turn of a conversation, by position, and
    whether white space follows one inside the turn.
    """
    with_result = [user(), call(), RESULT_MESSAGE, answer()]
    probes: dict[str, tuple[list[Message], int, bool]] = {
        "last": ([user(), answer()], 1, False),
        "user": ([user(), answer(), user(ASKED_AGAIN), answer("wvk eight")], 1, False),
        "tool": (with_result, 1, True),
        "call": ([user(), call()], 1, True),
    }
    stops = {}
    spaced = False
    for position, (messages, trained, with_tools) in probes.items():
        weights = [0] * len(messages)
        weights[trained] = 1
        tools = [TOOL_DEFINITION] if with_tools else None
        try:
            rendered = turns.render(Conversation(messages, weights, tools))
        except RowRejected:
            continue
        if not rendered.spans:
            continue
        begin, end = rendered.spans[-1]
        text = rendered.text[begin:end]
        marks = turns.specials.spans(text)
        stops[position] = ""
        if marks and not text[marks[-1][1] :].strip():
            stops[position] = text[slice(*marks[-1])]
            spaced |= marks[-1][1] < len(text)
    return stops, spaced


def _reasoning(turns: Turns) -> dict[str, dict[str, Written]]:
    result = {}
    for key in (turns.reasoning_key, "<think>"):
        thinking = answer(**{REASONING_KEYS[0]: THOUGHT})
        if key == "<think>":
            thinking = answer(f"<think>\n{THOUGHT}\n</think>\n\n{ANSWERED}")
        result[key] = {
            "last": _written(turns, [user(), thinking], [THOUGHT]),
            "earlier": _written(
                turns, [user(), thinking, user(ASKED_AGAIN), answer("wvk eight")], [THOUGHT]
            ),
        }
    return result


def _written(
    turns: Turns, messages: Sequence[Message], texts: Sequence[str], *, tools: bool = False
) -> Written:
    """Return whether a template writes all of these texts of a conversation."""
    chat = Conversation(list(messages), [0] * len(messages), [TOOL_DEFINITION] if tools else None)
    try:
        text = turns.render(chat).text
    except RowRejected as rejected:
        return "left out" if rejected.reason == "not_rendered" else "refused"
    return "written" if all(part in text for part in texts) else "left out"


def _text(turns: Turns, messages: Sequence[Message], *, prompt: bool = False) -> str:
    return turns.written(list(messages), prompt=prompt)


def constant_prompt(turns: Turns) -> str:
    """Return the generation prompt of a template that writes it without being asked; "" for
    others.

    Such a template ends every conversation with the header of an answer, which is no part of the
    answer before it.
    """
    try:
        alone = _text(turns, [user()])
        if alone != _text(turns, [user()], prompt=True):
            return ""
        answered = _text(turns, [user(), answer()])
        followed = _text(turns, [user(), answer(), user(ASKED_AGAIN)])
    except RowRejected:
        return ""
    after_user = alone.partition(ASKED)[2]
    after_answer = answered.partition(ANSWERED)[2]
    before_answer = answered.partition(ASKED)[2].partition(ANSWERED)[0]
    between = followed.partition(ANSWERED)[2]
    if between.startswith(after_answer) or not before_answer.startswith(after_user):
        return ""
    shared = _common_suffix(after_user, after_answer)
    header = _common_suffix(shared, _before_first_answer(turns) or shared)
    # whole tokens: two different ones may end with the same characters
    starts = [begin for begin, _ in turns.specials.spans(after_user)]
    least = len(after_user) - len(header)
    inside = [begin for begin in starts if begin >= least]
    if len(inside) == len(starts) and header == shared:
        inside = starts[1:]  # the first one ends the turn before
    if starts and inside:
        return after_user[inside[0] :]
    return header if not starts else ""


def _before_first_answer(turns: Turns) -> str:
    """Return the text before an answer that begins a conversation; "" if the template refuses
    it.
    """
    try:
        return _text(turns, [answer()]).partition(ANSWERED)[0]
    except RowRejected:
        return ""


def _common_suffix(first: str, second: str) -> str:
    size = shared_start(first[::-1], second[::-1])
    return first[len(first) - size :]


@dataclass(frozen=True, slots=True)
class StopCheck:
    """A comparison of the stops of templates with the tokens that end generation.

    trained: tokens that end trained turns. missing: positions without one. never: tokens that end
    generation, and no trained turn.
    """

    trained: list[str]
    missing: list[str]
    never: list[str]


def check_stops(certificate: Mapping[str, Any], ends: Sequence[str]) -> StopCheck:
    """Compare the stops of a certificate with the tokens that end generation."""
    stops = certificate["stops"]
    trained = sorted({stop for stop in stops.values() if stop})
    missing = [position for position, stop in stops.items() if not stop]
    return StopCheck(trained, missing, [token for token in ends if token not in trained])


def lines_of(name: str, certificate: Mapping[str, Any], ends: Sequence[str]) -> list[str]:
    """Describe a certificate in lines of text."""
    check = check_stops(certificate, ends)
    stops = []
    for position, stop in certificate["stops"].items():
        stops.append(f"{PLACES[position]} {stop or 'nothing'}")
    reasoning = []
    for key, positions in certificate["reasoning"].items():
        outcomes = ", ".join(
            f"{position} turn {outcome}" for position, outcome in positions.items()
        )
        reasoning.append(f"{key}: {outcomes}")
    lines = [
        f"template {name}: a trained turn ends with: {'; '.join(stops) or 'unknown'}",
        f"generation prompt: {certificate['prompt_written']}; begins with:"
        f" {certificate['begin'] or 'no special token'}",
        f"reasoning: {'; '.join(reasoning)}",
        f"tools {certificate['tools']}, calls {certificate['calls']}, results"
        f" {certificate['results']}",
    ]
    if check.trained and check.missing:
        lines.append(
            "no stop where nothing follows: the template ends a turn with the token of the next"
            " role, which is not in the text; chat_template may give one that writes it"
        )
    if check.never:
        lines.append(f"ends generation, and no trained turn: {', '.join(check.never)}")
    if certificate["dated"]:
        lines.append("asks for the date, which the setting date fixes")
    if not certificate["repeats"]:
        lines.append("writes another text each time")
    return lines
