"""Chats that fit no bin, cut between turns: every label once, every piece with the head, no turn in two parts."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chats import CHATML, QWEN, needs_data, rows_of, settings_of, small_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from recipe_cases import labels, packed, sequences_in, write_jsonl

import headrace
from headrace.packing.chats.tokenise import ChatEncoder
from headrace.packing.chats.turns import Border, cut_at_turns
from headrace.packing.sequences import cut_at_borders

FOLDED = (  # the system prompt is written into the first user's turn
    "{% for m in messages if m.role != 'system' %}{{ '<|im_start|>' + m.role + '\n' }}{% if loop.first and "
    "messages[0].role == 'system' %}{{ messages[0].content + '\n' }}{% endif %}{{ m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
GENERATION = (
    "{{ '<s>' }}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}"
    "{{ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@st.composite
def long_chats(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Messages of 0 or 1 system prompt, then turns of any roles and lengths; some answers are not trained."""
    messages = (
        [{"role": "system", "content": "s" * draw(st.integers(1, 20))}]
        if draw(st.booleans())
        else []
    )
    for number in range(draw(st.integers(1, 12))):
        messages.append({"role": "user", "content": f"u{number}" + "q" * draw(st.integers(0, 25))})
        if draw(st.booleans()):
            messages.append(
                {"role": "tool", "content": f"t{number}" + "r" * draw(st.integers(0, 25))}
            )
        answer = {"role": "assistant", "content": f"a{number}" + "z" * draw(st.integers(0, 25))}
        messages.append(answer if draw(st.integers(0, 4)) else {**answer, "weight": 0})
    messages[-1] = {"role": "assistant", "content": "the end"}
    return messages


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> list[ChatEncoder]:
    directory = tmp_path_factory.mktemp("tokenizers")
    tokenizers = [
        small_tokenizer(directory / str(number), text)
        for number, text in enumerate((CHATML, GENERATION))
    ]
    return [ChatEncoder(settings_of(each)[0]) for each in tokenizers]


def runs_of(ids: np.ndarray, mask: np.ndarray) -> list[list[int]]:
    """The trained stretches of a sequence, as ids."""
    edges = np.flatnonzero(np.diff(mask, prepend=0, append=0)).tolist()
    return [ids[begin:end].tolist() for begin, end in zip(edges[::2], edges[1::2], strict=True)]


@pytest.mark.slow
@given(messages=long_chats(), which=st.integers(0, 1), room=st.integers(40, 120))
def test_every_label_is_trained_once_and_every_piece_is_the_head_and_whole_turns(
    encoders: list[ChatEncoder], messages: list[dict[str, Any]], which: int, room: int
) -> None:
    found = encoders[which]
    whole = found.encode([{"messages": messages}], cut_over=room)
    pieces = cut_at_borders(whole, room)
    cut, divided, repeated, lost = pieces.encoded, pieces.divided, pieces.repeated, pieces.lost

    texts = ["".join(text for text, _ in parts) for parts in found.texts(cut)]
    (source,) = ("".join(text for text, _ in parts) for parts in found.texts(whole))
    start, *turns = re.split(r"(?=<\|im_start\|>)", source)
    head = start + (turns.pop(0) if messages[0]["role"] == "system" else "")
    if not divided:
        assert cut.lengths.tolist() == whole.lengths.tolist()
        fitting = [
            run for run in runs_of(whole.tokens, whole.mask) if len(run) + len(head) + 22 <= room
        ]
        assert whole.lengths[0] <= room or not fitting
        return
    assert all(length <= room for length in cut.lengths)
    for text in texts:
        assert text.startswith(head)
        own = re.split(r"(?=<\|im_start\|>)", text[len(head) :])
        own = own[1:] if own[0] == "" else own
        assert own in [turns[at : at + len(own)] for at in range(len(turns))]
    trained = [runs_of(cut.tokens[a:b], cut.mask[a:b]) for a, b in pairwise(cut.offsets.tolist())]
    every = runs_of(whole.tokens, whole.mask)
    kept = [run for run in every if run in [other for runs in trained for other in runs]]
    assert [run for runs in trained for run in runs] == kept
    assert lost["labels"] == sum(map(len, every)) - sum(map(len, kept))
    assert len(whole.tokens) + repeated == len(cut.tokens) + lost["tokens"]
    assert all(len(run) + len(head.encode()) + 22 > room for run in every if run not in kept)


@given(
    turns=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=30),
    head=st.integers(0, 8),
    room=st.integers(18, 60),
)
def test_pieces_of_turns_that_fit_leave_out_nothing_and_repeat_a_quarter_at_most(
    turns: list[tuple[int, int]], head: int, room: int
) -> None:
    sizes = [size for pair in turns for size in pair]
    at = head + np.cumsum([0, *sizes])
    mask = np.concatenate(
        [
            np.zeros(head, np.uint8),
            *(np.full(size, n % 2, np.uint8) for n, size in enumerate(sizes)),
        ]
    )
    borders = [Border(int(place), number % 2 == 0) for number, place in enumerate(at)]

    pieces = cut_at_turns(mask, borders, head + room)

    assert [piece.trained for piece in pieces] == [head, *(piece.end for piece in pieces[:-1])]
    assert pieces[-1].end == len(mask)
    for piece in pieces:
        assert piece.end - piece.begin <= room
        assert piece.trained - piece.begin <= room // 4
        assert {piece.begin, piece.trained, piece.end} <= set(at.tolist())


@pytest.mark.slow
def test_a_run_conserves_labels_and_says_what_is_repeated(tmp_path: Path) -> None:
    tokenizer = small_tokenizer(tmp_path / "tokenizer")
    answers = [f"answer {number} of a long talk" for number in range(40)]
    talk = [{"role": "system", "content": "be brief"}]
    for answer in answers:
        talk += [{"role": "user", "content": "go on"}, {"role": "assistant", "content": answer}]
    path = write_jsonl(
        tmp_path / "in.jsonl", [{"messages": talk[: 3 + 2 * number]} for number in range(40)]
    )

    run = packed(path, tmp_path / "out", tokenizer=tokenizer, pack_size=256, too_long="turns")

    metadata = run.manifest.metadata
    assert metadata["too_long"]["divided"] > 20
    assert metadata["encoded"]["encoded_labels"] == metadata["packed"]["labels"]
    assert (
        metadata["repeated"]["too_long"]["tokens"]
        == metadata["packed"]["tokens"] - metadata["encoded"]["encoded_tokens"]
    )
    written = [
        each
        for split in ("train", "valid", "test")
        for each in sequences_in(tmp_path / "out", split)
    ]
    assert metadata["packed"]["labels"] == sum(map(labels, written))
    assert headrace.verify(tmp_path / "out").problems == []


def test_a_chat_whose_system_prompt_is_in_a_turn_is_not_cut(tmp_path: Path) -> None:
    tokenizer = small_tokenizer(tmp_path / "tokenizer", FOLDED)
    long = [{"role": "system", "content": "be brief"}]
    long += 30 * [{"role": "user", "content": "go on"}, {"role": "assistant", "content": "yes"}]
    short = [
        {"messages": [{"role": "user", "content": f"q{number}"}, long[2]]} for number in range(20)
    ]
    path = write_jsonl(tmp_path / "in.jsonl", [{"messages": long}, *short])

    run = packed(path, tmp_path / "out", tokenizer=tokenizer, pack_size=128, too_long="turns")

    assert run.manifest.dropped["too_long"] == 1
    assert run.manifest.metadata["too_long"]["divided"] == 0


@pytest.mark.slow
@pytest.mark.smoke("400")
@needs_data
@pytest.mark.parametrize("longest", [400, 800])
def test_real_calls_of_tools_keep_their_tools_and_lose_only_answers_longer_than_a_bin(
    longest: int,
) -> None:
    found = ChatEncoder(settings_of(QWEN)[0])
    rows = rows_of("glaive_toolcall_en_demo.json.gz", 80)
    whole = found.encode(rows, cut_over=longest)
    pieces = cut_at_borders(whole, longest)
    cut, divided, lost = pieces.encoded, pieces.divided, pieces.lost

    assert divided >= 10
    sources = ["".join(text for text, _ in parts) for parts in found.texts(whole)]
    places = dict(zip(whole.rows.tolist(), range(len(whole.rows)), strict=True))
    for row, parts in zip(cut.rows.tolist(), found.texts(cut), strict=True):
        text, source = "".join(text for text, _ in parts), sources[places[row]]
        head = source[: source.index("<|im_start|>user")]
        assert "</tools>" in head or not rows[row].get("tools") or rows[row]["tools"] == "[]"
        assert text.startswith(head)
        assert text[len(head) :] in source
    gone = 0
    for number, (begin, end) in enumerate(pairwise(whole.offsets.tolist())):
        own = [runs_of(cut.tokens[a:b], cut.mask[a:b]) for (a, b), row in zip(pairwise(cut.offsets.tolist()), cut.rows, strict=True) if row == whole.rows[number]]  # fmt: skip
        kept = [run for runs in own for run in runs]
        every = runs_of(whole.tokens[begin:end], whole.mask[begin:end])
        assert kept == [run for run in every if run in kept]
        gone += sum(map(len, every)) - sum(map(len, kept))
    assert lost["labels"] == gone
