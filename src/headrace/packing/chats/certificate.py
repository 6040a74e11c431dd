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

_ASKED = "qzj one"
_ANSWERED = "wvk two"
_ASKED_AGAIN = "qzj three"
_THOUGHT = "zzx four"
_RESULT = "vvj five"
_VALUE = "kkq six"
_TOOL = "zjq_seven"


def _user(text: str = _ASKED) -> Message:
    return {"role": "user", "content": text}


def _answer(text: str = _ANSWERED, **more: Any) -> Message:
    return {"role": "assistant", "content": text, **more}


def _call() -> Message:
    function = {"name": _TOOL, "arguments": {"value": _VALUE}}
    return _answer("", tool_calls=[{"type": "function", "id": "a1b2c3d4e", "function": function}])


_RESULT_MESSAGE = {
    "role": "tool",
    "name": _TOOL,
    "tool_call_id": "a1b2c3d4e",
    "content": _RESULT,
}
_TOOL_DEFINITION = {
    "type": "function",
    "function": {
        "name": _TOOL,
        "description": "none",
        "parameters": {
            "type": "object",
            "properties": {"value": {"type": "string", "description": "none"}},
            "required": ["value"],
        },
    },
}


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a template does.

    stops: the special token that a trained turn ends with, by what follows it (see `PLACES`); "" if
    there is none. What the template refuses is absent. prompt: the generation prompt.
    prompt_written: whether only on request. begin: the special token that conversations begin with.
    reasoning: by the key that the template reads, or "<think>" for reasoning inside the content,
    and by position of the turn. repeats: whether the same conversation gives the same text twice.
    dated: whether the template asks for the date.
    """

    stops: dict[str, str] = field(default_factory=dict)
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
    question = [_user()]
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
    return Certificate(
        stops=_stops(turns),
        prompt=prompt,
        prompt_written=prompt_written,
        begin=begin,
        reasoning=_reasoning(turns),
        tools=_written(turns, [_user(), _answer()], [_TOOL], tools=True),
        calls=_written(turns, [_user(), _call()], [_TOOL, _VALUE], tools=True),
        results=_written(
            turns, [_user(), _call(), _RESULT_MESSAGE, _answer()], [_RESULT], tools=True
        ),
        repeats=plain == again,
        dated=turns.template.asks_for_date,
    )


def _stops(turns: Turns) -> dict[str, str]:
    """Return the special token that ends the first trained turn of a conversation, by position."""
    with_result = [_user(), _call(), _RESULT_MESSAGE, _answer()]
    probes: dict[str, tuple[list[Message], int, bool]] = {
        "last": ([_user(), _answer()], 1, False),
        "user": ([_user(), _answer(), _user(_ASKED_AGAIN), _answer("wvk eight")], 1, False),
        "tool": (with_result, 1, True),
        "call": ([_user(), _call()], 1, True),
    }
    stops = {}
    for position, (messages, trained, with_tools) in probes.items():
        weights = [0] * len(messages)
        weights[trained] = 1
        tools = [_TOOL_DEFINITION] if with_tools else None
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
    return stops


def _reasoning(turns: Turns) -> dict[str, dict[str, Written]]:
    result = {}
    for key in (turns.reasoning_key, "<think>"):
        answer = _answer(**{REASONING_KEYS[0]: _THOUGHT})
        if key == "<think>":
            answer = _answer(f"<think>\n{_THOUGHT}\n</think>\n\n{_ANSWERED}")
        result[key] = {
            "last": _written(turns, [_user(), answer], [_THOUGHT]),
            "earlier": _written(
                turns, [_user(), answer, _user(_ASKED_AGAIN), _answer("y")], [_THOUGHT]
            ),
        }
    return result


def _written(
    turns: Turns, messages: Sequence[Message], texts: Sequence[str], *, tools: bool = False
) -> Written:
    """Return whether a template writes all of these texts of a conversation."""
    chat = Conversation(list(messages), [0] * len(messages), [_TOOL_DEFINITION] if tools else None)
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
        alone = _text(turns, [_user()])
        if alone != _text(turns, [_user()], prompt=True):
            return ""
        answered = _text(turns, [_user(), _answer()])
        followed = _text(turns, [_user(), _answer(), _user(_ASKED_AGAIN)])
    except RowRejected:
        return ""
    after_user = alone.partition(_ASKED)[2]
    after_answer = answered.partition(_ANSWERED)[2]
    before_answer = answered.partition(_ASKED)[2].partition(_ANSWERED)[0]
    between = followed.partition(_ANSWERED)[2]
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
        return _text(turns, [_answer()]).partition(_ANSWERED)[0]
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
    if check.never:
        lines.append(f"ends generation, and no trained turn: {', '.join(check.never)}")
    if certificate["dated"]:
        lines.append("asks for the date, which the setting date fixes")
    if not certificate["repeats"]:
        lines.append("writes another text each time")
    return lines
