"""Rows that judge or compare answers are refused wherever chats are read, and harmless columns are not."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from recipe_cases import packed, token_rows, write_jsonl

import headrace
from headrace.cli.init.look import Data
from headrace.cli.init.options import InitPackOptions
from headrace.errors import InputError, SettingsError
from headrace.packing.chats.layouts import Conversation, sample_of
from headrace.packing.chats.rejections import RowRejected
from headrace.packing.init import pack_sections
from raised import raised

CHAT = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
SHAREGPT = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
TURN = CHAT[1:]
REFUSED = {
    "TRL DPO": {"prompt": CHAT[:1], "chosen": TURN, "rejected": TURN},
    "TRL DPO without a prompt": {"chosen": CHAT, "rejected": CHAT},
    "TRL DPO beside messages": {"messages": CHAT, "chosen": TURN, "rejected": TURN},
    "TRL KTO": {"prompt": "q", "completion": "a", "label": False},
    "TRL KTO of messages": {"prompt": CHAT[:1], "completion": TURN, "label": True},
    "KTO beside messages": {"messages": CHAT, "label": False},
    "KTO as text": {"messages": CHAT, "label": "False"},
    "TRL tokens": {"input_ids": [1, 2], "rejected_input_ids": [1, 3], "chosen_input_ids": [1, 2]},
    "KTO tokens": {"input_ids": [1, 2], "label": False},
    "reward scores": {"prompt": "q", "completion": "a", "score_chosen": 1.0, "score_rejected": 0.2},
    "OpenRLHF DPO": {"question": "q", "answer": "a", "chosen": "a", "rejected": "b"},
    "OpenRLHF KTO": {"prompt": "q", "response": "a", "score": 1, "label": True},
    "verl rollouts": {"prompt": "q", "response": "a", "rewards": [0.0, 1.0]},
    "LLaMA-Factory DPO": {
        "instruction": "q",
        "input": "",
        "output": "a",
        "chosen": "a",
        "rejected": "b",
    },
    "LLaMA-Factory DPO of conversations": {
        "conversations": SHAREGPT,
        "chosen": SHAREGPT[1],
        "rejected": SHAREGPT[1],
    },
    "LLaMA-Factory KTO": {"conversations": SHAREGPT, "kto_tag": False},
    "LLaMA-Factory KTO of instructions": {"instruction": "q", "output": "a", "kto_tag": True},
    "rejected_input": {"messages": CHAT, "rejected_input": "x"},
    "ms-swift": {"messages": CHAT, "rejected_response": "b"},
    "ms-swift messages": {"messages": CHAT, "rejected_messages": CHAT},
    "dispreferred": {"question": "q", "answer": "a", "dispreferred": "b"},
    "scores of several": {"prompt": "q", "response": "a", "scores": [1, 2, 3]},
    "ranks": {"messages": CHAT, "ranks": [2, 1]},
}
TAKEN = {
    "a class": {"messages": CHAT, "label": "maths"},
    "a number of a class": {"question": "q", "answer": "a", "label": 3},
    "a truth about a text": {"text": "a", "label": False},
    "a quality": {"messages": CHAT, "score": 4.5, "reward": 1.0},
    "nothing rejected": {"messages": CHAT, "rejected": None, "label": None},
    "labels of tokens": {"input_ids": [1, 2], "labels": [-100, 2]},
    "a word within a word": {"messages": CHAT, "unrejectedness": 1},
}


@pytest.mark.parametrize("name", REFUSED)
def test_rows_that_judge_answers_are_refused(name: str) -> None:
    with pytest.raises(RowRejected) as found:
        sample_of(REFUSED[name])

    assert "preference_data" == found.value.reason
    assert "filters=" in found.value.detail or "mapping" in found.value.detail


@pytest.mark.parametrize("name", TAKEN)
def test_harmless_columns_are_no_preference_data(name: str) -> None:
    assert sample_of(TAKEN[name]) is not None


def test_whoever_says_what_is_good_gets_it() -> None:
    chosen = sample_of(
        {"prompt": "q", "chosen": CHAT, "rejected": CHAT}, "auto", {"messages": "chosen"}
    )
    kept = sample_of({"messages": CHAT, "label": True}, "auto", {}, {"label": ["True"]})

    assert isinstance(chosen, Conversation)
    assert isinstance(kept, Conversation)
    assert ["user", "assistant"] == [message["role"] for message in chosen.messages]


def test_a_run_stops_at_the_first_such_row(tmp_path: Path) -> None:
    rows = [*token_rows(20), {**token_rows(1)[0], "label": False}]
    source = write_jsonl(tmp_path / "a.jsonl", rows)

    with raised(InputError, path="a/a.jsonl", row="line 21"):
        packed([{"name": "a", "path": str(source)}], tmp_path / "out")
    assert not list((tmp_path / "out").glob("runs/*/manifest.json"))


@pytest.mark.slow
def test_the_filter_of_the_advice_keeps_the_good_rows(tmp_path: Path) -> None:
    rows = [{**row, "label": bool(number % 2)} for number, row in enumerate(token_rows(60))]
    source = write_jsonl(tmp_path / "a.jsonl", rows)
    made = packed(
        [{"name": "a", "path": str(source), "filters": {"label": ["True"]}}], tmp_path / "out"
    )

    assert 30 == made.manifest.dropped["filtered"]
    assert 30 == sum(made.manifest.metadata["source_rows"].values())


def test_init_refuses_them_before_it_proposes_columns(tmp_path: Path) -> None:
    source = write_jsonl(
        tmp_path / "a.jsonl", [{"prompt": "q", "chosen": "a", "rejected": "b"}] * 5
    )

    with pytest.raises(SettingsError, match="column rejected is 'b'.*assistant=chosen"):
        pack_sections(InitPackOptions([str(source)], str(tmp_path / "out"), None), Data([source]))


@pytest.mark.parametrize(
    "extra",
    [{"label": [True, False]}, {"rejected_input_ids": [[1], [2]]}, {"scores": [[1.0], [2.0]]}],
)
def test_packing_while_streaming_refuses_them(tmp_path: Path, extra: dict) -> None:
    pq.write_table(pa.table({"input_ids": [[1, 2, 3], [4, 5]], **extra}), tmp_path / "a.parquet")

    with raised(SettingsError, column=next(iter(extra)), remedy="columns=['input_ids']"):
        list(headrace.open(tmp_path, cache_dir=tmp_path / "cache").stream(batch_size=1, pack=8))
    assert list(
        headrace.open(tmp_path, cache_dir=tmp_path / "cache").stream(
            batch_size=1, pack=8, columns=["input_ids"]
        )
    )
