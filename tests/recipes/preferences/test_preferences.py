"""Preference pairs, judged answers and prompts: the tokens of an independent rendering, every row in one split."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chats import DEMOS, QWEN, needs_data, rows_of, small_tokenizer
from recipe_cases import write_jsonl

import headrace
from headrace.dataset.open import FinishedRun, find_run
from headrace.errors import InputError, SettingsError
from headrace.packing.chats.rejections import RowRejected
from headrace.packing.chats.settings import ChatForm
from headrace.packing.preferences.layouts import question_of
from headrace.packing.preferences.verify import verify_preferences
from headrace.run.prepare import Prepared
from raised import raised
from tables import digests

ASKED = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "how many apples are there"},
]
GOOD, BAD = (
    {"role": "assistant", "content": "forty two"},
    {"role": "assistant", "content": "no idea"},
)
SHAREGPT = [
    {"from": "system", "value": "be brief"},
    {"from": "human", "value": "how many apples are there"},
]
ALPACA = {
    "instruction": "how many apples",
    "input": "are there",
    "system": "be brief",
    "history": [],
}
BINARIZED = {"prompt": "how many apples are there", "messages": [*ASKED, GOOD], "score_chosen": 8.0}

PAIRS = {
    "TRL": {"prompt": ASKED, "chosen": [GOOD], "rejected": [BAD]},
    "TRL without a prompt": {"chosen": [*ASKED, GOOD], "rejected": [*ASKED, BAD]},
    "texts": {
        "system": "be brief",
        "prompt": ASKED[1]["content"],
        "chosen": "forty two",
        "rejected": "no idea",
    },
    "a prompt beside conversations": {
        **BINARIZED,
        "chosen": [*ASKED, GOOD],
        "rejected": [*ASKED, BAD],
    },
    "a prompt that begins before conversations": {
        "prompt": ASKED,
        "chosen": [ASKED[1], GOOD],
        "rejected": [ASKED[1], BAD],
    },
    "OpenRLHF": {
        "system": "be brief",
        "question": ASKED[1]["content"],
        "chosen": "forty two",
        "rejected": "no idea",
    },
    "LLaMA-Factory": {
        "conversations": SHAREGPT,
        "chosen": {"from": "gpt", "value": "forty two"},
        "rejected": {"from": "gpt", "value": "no idea"},
    },
    "LLaMA-Factory of messages": {"messages": ASKED, "chosen": GOOD, "rejected": BAD},
    "LLaMA-Factory alpaca": {**ALPACA, "chosen": "forty two", "rejected": "no idea"},
}
JUDGED = {
    "TRL": {"prompt": ASKED, "completion": [GOOD], "label": True},
    "texts": {
        "system": "be brief",
        "prompt": ASKED[1]["content"],
        "response": "forty two",
        "label": 1,
    },
    "LLaMA-Factory": {
        "conversations": [*SHAREGPT, {"from": "gpt", "value": "forty two"}],
        "kto_tag": True,
    },
    "LLaMA-Factory alpaca": {**ALPACA, "output": "forty two", "kto_tag": "true"},
}
PROMPTS = {
    "verl": {
        "data_source": "sums",
        "prompt": ASKED,
        "reward_model": {"style": "rule", "ground_truth": "42"},
    },
    "TRL": {"prompt": ASKED, "answer": "42"},
    "a question": {"system": "be brief", "question": ASKED[1]["content"], "answer": "42"},
    "LLaMA-Factory": {"conversations": SHAREGPT},
    "LLaMA-Factory alpaca": ALPACA,
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def prepared(blend: Any, out: Path, tokenizer: Path, **asked: Any) -> Prepared:
    """A run that keeps everything in train unless asked otherwise."""
    settings = {"train_ratio": 1, "val_ratio": 0, "test_ratio": 0} | asked
    workers = settings.pop("workers", 2)
    return headrace.prepare(
        headrace.Preferences(blend=blend, tokenizer=tokenizer, **settings), out, workers=workers
    )


def rows_in(out: Path, split: str = "train") -> list[dict[str, Any]]:
    return [
        row
        for path in sorted((out / "splits" / split).iterdir())
        for row in pq.read_table(path).to_pylist()
    ]


def loaded(directory: Path) -> Any:
    """The tokenizer as transformers loads it."""
    return pytest.importorskip("transformers").PreTrainedTokenizerFast.from_pretrained(directory)


def rendered(
    tokenizer: Any, prompt: list[dict], answer: dict, **more: Any
) -> tuple[list[int], list[int]]:
    """The tokens of a prompt and of an answer through its end token, by transformers alone."""
    given = {"tokenize": False, **more}
    asked = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, **given)
    whole = tokenizer.apply_chat_template([*prompt, answer], **given)
    assert whole.startswith(asked)
    end = whole.rindex(tokenizer.eos_token) + len(tokenizer.eos_token)
    encoded = (
        tokenizer(part, add_special_tokens=False)["input_ids"]
        for part in (asked, whole[len(asked) : end])
    )
    return tuple(encoded)


@pytest.mark.slow
@pytest.mark.smoke("judged-layouts1")
@pytest.mark.parametrize(
    ("kind", "layouts"), [("pairs", PAIRS), ("judged", JUDGED), ("prompts", PROMPTS)]
)
def test_every_layout_gives_the_tokens_of_another_renderer(
    kind: str, layouts: dict, tmp_path: Path, tokenizer
) -> None:
    own = loaded(tokenizer)
    prompt, good = rendered(own, ASKED, GOOD)
    _, bad = rendered(own, ASKED, BAD)
    expected = {
        "prompt_ids": prompt,
        "chosen_ids": good,
        "rejected_ids": bad,
        "completion_ids": good,
        "label": True,
    }

    for number, (name, row) in enumerate(layouts.items()):
        source = write_jsonl(tmp_path / f"{number}.jsonl", [row])
        prepared(source, tmp_path / f"out-{number}", tokenizer, kind=kind, columns=())
        (found,) = rows_in(tmp_path / f"out-{number}")
        # The texts of instructions are joined by a line break, which the other layouts have a space for.
        if "alpaca" in name:
            asked = [ASKED[0], {"role": "user", "content": "how many apples\nare there"}]
            assert rendered(own, asked, GOOD)[0] == found.pop("prompt_ids"), name
        found.pop("prompt", None)
        assert {key: expected[key] for key in found} == found, name
    assert 0 < len(found) or kind == "prompts"


@pytest.mark.slow
@needs_data
def test_real_chats_have_the_tokens_of_another_renderer(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        packed = QWEN / f"{name}.gz"
        data = (
            gzip.decompress(packed.read_bytes()) if packed.exists() else (QWEN / name).read_bytes()
        )
        (tmp_path / "qwen").mkdir(exist_ok=True)
        (tmp_path / "qwen" / name).write_bytes(data)
    own = loaded(tmp_path / "qwen")
    asked = rows_of("train.jsonl.gz", 150)
    rows = [
        {
            "prompt": [{"role": "user", "content": row["question"]}],
            "chosen": row["answer"],
            "rejected": other["answer"],
        }
        for row, other in zip(asked, [*asked[1:], asked[0]], strict=True)
    ]
    for row in rows_of("glaive_toolcall_en_demo.json.gz", 150):
        turns = [
            {"role": {"human": "user"}.get(each["from"]), "content": each["value"]}
            for each in row["conversations"]
        ]
        rows.append(
            {
                "prompt": turns[:1],
                "tools": json.loads(row["tools"]),
                "chosen": "Yes.",
                "rejected": "No: 1 < 2",
            }
        )
    source = write_jsonl(tmp_path / "rows.jsonl", rows)

    run = prepared(source, tmp_path / "out", tmp_path / "qwen")

    found = rows_in(tmp_path / "out")
    assert len(rows) == len(found) == run.manifest.splits["train"].rows
    for row, tokens in zip(rows, found, strict=True):
        tools = row.get("tools")
        tools = [
            tool if "function" in tool else {"type": "function", "function": tool}
            for tool in tools or ()
        ] or None
        for name in ("chosen", "rejected"):
            answer = {"role": "assistant", "content": row[name]}
            expected = rendered(own, row["prompt"], answer, tools=tools)
            assert expected == (tokens["prompt_ids"], tokens[f"{name}_ids"])
    assert headrace.verify(tmp_path / "out").problems == []
    assert (DEMOS / "glaive_toolcall_en_demo.json.gz").exists()


def pairs(count: int, answers: int = 3) -> list[dict[str, Any]]:
    """Pairs with several for each question."""
    return [
        {
            "prompt": f"question {number // answers}",
            "chosen": f"yes {number}",
            "rejected": f"no {number}",
            "n": number,
        }
        for number in range(count)
    ]


RATIOS = {"train_ratio": 0.8, "val_ratio": 0.1, "test_ratio": 0.1}


@pytest.mark.slow
def test_every_row_is_in_one_split_with_the_others_of_its_prompt(
    tmp_path: Path, tokenizer: Path
) -> None:
    rows = [
        *pairs(120),
        {"prompt": "same", "chosen": "x", "rejected": "x"},
        {"prompt": "a", "chosen": "b"},
    ]
    source = write_jsonl(tmp_path / "rows.jsonl", rows)
    runs = [
        prepared(
            source,
            tmp_path / str(workers),
            tokenizer,
            columns="n",
            max_bad_share=0.1,
            workers=workers,
            **RATIOS,
        )
        for workers in (1, 3)
    ]

    found = {split: rows_in(tmp_path / "1", split) for split in ("train", "val", "test")}
    assert list(range(120)) == sorted(row["n"] for split in found.values() for row in split)
    splits = [{row["n"] // 3 for row in each} for each in found.values()]
    assert all(splits)
    assert sum(map(len, splits)) == len(set.union(*splits)) == 40
    dropped = {reason: count for reason, count in runs[0].manifest.dropped.items() if count}
    assert {"same_answers": 1, "unknown_layout": 1} == dropped
    listed = [
        json.loads(line) for line in (tmp_path / "1" / "rejected.jsonl").read_text().splitlines()
    ]
    assert [121, 122] == sorted(each["line"] for each in listed)
    assert digests(runs[0].run) == digests(runs[1].run)
    assert headrace.verify(tmp_path / "1").problems == []


@pytest.mark.parametrize("kind", ["pairs", "prompts"])
def test_columns_are_left_out(tmp_path: Path, tokenizer: Path, kind: Any) -> None:
    union = pa.UnionArray.from_dense(
        pa.array([0] * 9, pa.int8()), pa.array(range(9), pa.int32()), [pa.array(range(9))]
    )
    rows = {"prompt": ["Is it"] * 9, "chosen": ["yes"] * 9, "rejected": ["no"] * 9, "n": range(9)}
    table = pa.table({**rows, "m": range(9), "u": union})
    source = tmp_path / "a.arrow"
    with pa.ipc.new_file(source, table.schema) as writer:
        writer.write_table(table)
    options = {"kind": kind, "duplicates": "allow", "unread": ["chosen", "rejected"]}
    prepared(source, tmp_path / "out", tokenizer, drop_columns=["u", "m"], **options)

    names = set(rows_in(tmp_path / "out")[0])
    assert "n" in names
    assert not names & {"u", "m"}
    for name in ("columns", "drop_columns"):
        with raised(SettingsError, setting=name, value=["no"]):
            chosen = ["n", "no"] if name == "columns" else ["u", "no"]
            prepared(source, tmp_path / name, tokenizer, **{name: chosen}, **options)


@pytest.mark.slow
def test_columns_go_through_as_they_are(tmp_path: Path, tokenizer: Path) -> None:
    table = pa.table(
        {
            "prompt": [ASKED] * 40,
            "data_source": ["sums"] * 40,
            "reward_model": [
                {"style": "rule", "ground_truth": str(number)} for number in range(40)
            ],
            "extra_info": [{"index": number, "tags": ["a"] * (number % 3)} for number in range(40)],
        }
    )
    pq.write_table(table, tmp_path / "one.parquet")
    pq.write_table(table.drop_columns("data_source"), tmp_path / "two.parquet")
    prepared(
        {
            "datasets": [
                {"name": name, "path": str(tmp_path / f"{name}.parquet")} for name in ("one", "two")
            ]
        },
        tmp_path / "out",
        tokenizer,
        kind="prompts",
    )

    found = pa.concat_tables(
        [pq.read_table(path) for path in (tmp_path / "out/splits/train").iterdir()]
    )
    for name in ("reward_model", "extra_info", "prompt"):
        assert [*table[name].to_pylist()] * 2 == found[name].to_pylist()
    assert ["sums"] * 40 + [None] * 40 == found["data_source"].to_pylist()
    assert 1 == len(set(map(tuple, found["prompt_ids"].to_pylist())))
    rows = next(
        iter(headrace.open(tmp_path / "out").stream("train", batch_size=8, batch_format="rows"))
    )
    assert {"prompt", "prompt_ids", "data_source", "reward_model", "extra_info", "valid"} == set(
        rows[0]
    )


@pytest.mark.smoke(every=3)
@pytest.mark.parametrize(
    ("row", "kind", "reason"),
    [
        ({"prompt": "q", "completion": "a"}, "judged", "no_label"),
        ({"prompt": "q", "completion": "a", "label": "good"}, "judged", "no_label"),
        ({"prompt": "q", "chosen": "a", "rejected": "a"}, "pairs", "same_answers"),
        ({"prompt": [GOOD], "chosen": "a", "rejected": "b"}, "pairs", "no_prompt"),
        (
            {"prompt": ASKED, "chosen": [GOOD, ASKED[1], GOOD], "rejected": "b"},
            "pairs",
            "several_turns",
        ),
        ({"chosen": [*ASKED, GOOD], "rejected": [ASKED[1], BAD]}, "pairs", "prompts_differ"),
        ({"messages": [*ASKED, GOOD]}, "prompts", "no_prompt"),
        ({"text": "q"}, "prompts", "unknown_layout"),
        ({"prompt": "q", "chosen": "a " * 200, "rejected": "b"}, "pairs", "too_long"),
    ],
)
def test_rows_that_cannot_be_told_are_counted(
    row: dict, kind: str, reason: str, tmp_path: Path, tokenizer
) -> None:
    good = {"prompt": "fine", "chosen": "a", "rejected": "b", "completion": "a", "label": True}
    source = write_jsonl(tmp_path / "rows.jsonl", [good, row])

    run = prepared(source, tmp_path / "out", tokenizer, kind=kind, max_bad_share=1, max_tokens=100)

    assert {reason: 1} == {name: count for name, count in run.manifest.dropped.items() if count}


def test_texts_without_a_template_share_what_they_begin_with(
    tmp_path: Path, tokenizer: Path
) -> None:
    row = {
        "chosen": "Human: hi there Assistant: hello",
        "rejected": "Human: hi there Assistant: go away",
    }
    source = write_jsonl(tmp_path / "rows.jsonl", [row])
    blend = {"name": "hh", "path": str(source), "layout": "raw_completion"}

    prepared(blend, tmp_path / "out", tokenizer)

    (found,) = rows_in(tmp_path / "out")
    own = loaded(tokenizer)
    texts = {name: own.decode(ids) for name, ids in found.items()}
    assert "Human: hi there Assistant:" == texts["prompt_ids"]
    assert (" hello<|im_end|>", " go away<|im_end|>") == (
        texts["chosen_ids"],
        texts["rejected_ids"],
    )


@pytest.mark.slow
def test_columns_of_several_types_and_rows_without_texts_are_refused(
    tmp_path: Path, tokenizer: Path
) -> None:
    rows = [{"prompt": "q", "truth": 1}, {"prompt": "r", "truth": "two"}]
    source = write_jsonl(tmp_path / "rows.jsonl", rows)

    with raised(InputError, column="truth", remedy="write them as text"):
        prepared(source, tmp_path / "out", tokenizer, kind="prompts")
    with raised(InputError, column="prompt_ids", remedy="name those to copy"):
        prepared(
            write_jsonl(tmp_path / "ids.jsonl", [{"prompt": "q", "prompt_ids": [1]}]), tmp_path / "out", tokenizer,
            kind="prompts",
        )  # fmt: skip
    with raised(SettingsError, setting="tokenizer"):
        headrace.Preferences(blend=source)


@pytest.mark.slow
def test_a_swapped_answer_and_a_moved_prompt_are_found(tmp_path: Path, tokenizer: Path) -> None:
    source = write_jsonl(tmp_path / "rows.jsonl", pairs(90))
    prepared(source, tmp_path / "out", tokenizer, **RATIOS)
    (train,), (test,) = (
        [*(tmp_path / "out/splits" / split).iterdir()] for split in ("train", "test")
    )
    table = pq.read_table(train)

    assert headrace.verify(tmp_path / "out").problems == []
    swapped = table.rename_columns(["prompt_ids", "rejected_ids", "chosen_ids"]).select(
        table.column_names
    )
    pq.write_table(swapped.cast(table.schema), train.resolve())
    assert any(
        "other prompts or answers" in problem for problem in headrace_checks(tmp_path / "out")
    )
    pq.write_table(pa.concat_tables([pq.read_table(test), table.slice(0, 1)]), test.resolve())
    assert any(
        "prompts are in test and train" in problem for problem in headrace_checks(tmp_path / "out")
    )


def test_an_answer_that_ends_with_another_token_is_found(tmp_path: Path, tokenizer: Path) -> None:
    source = write_jsonl(tmp_path / "rows.jsonl", pairs(3))
    prepared(source, tmp_path / "out", tokenizer)
    (shard,) = {path.resolve() for path in (tmp_path / "out/splits/train").iterdir()}

    assert [] == headrace_checks(tmp_path / "out")
    table = pq.read_table(shard)
    ids = [[*row[:-1], 7] for row in table["rejected_ids"].to_pylist()]
    index = table.schema.get_field_index("rejected_ids")
    column = pa.array(ids, table.schema.field(index).type)
    shard.chmod(0o644)
    pq.write_table(table.set_column(index, table.schema.field(index), column), shard)
    problems = headrace_checks(tmp_path / "out")
    assert any("3 of 6 trained turns end with no stop" in problem for problem in problems)


def headrace_checks(out: Path) -> list[str]:
    """What the recipe's own checks find; the digests would tell as well."""
    return [
        each.problem for each in verify_preferences(FinishedRun(*find_run(out)), 1) if each.problem
    ]


def test_texts_of_which_one_extends_the_other_are_cut_before_a_word() -> None:
    row = {"chosen": "Q: how many A: forty two", "rejected": "Q: how many A: forty"}
    question = question_of(row, ChatForm(layout="raw_completion"), "pairs")

    assert "Q: how many A:" == question.prompt
    assert [" forty two", " forty"] == question.answers


def test_a_prompt_that_conversations_do_not_begin_with_is_refused() -> None:
    row = {"prompt": "never said", "chosen": [*ASKED, GOOD], "rejected": [*ASKED, BAD]}

    with pytest.raises(RowRejected) as error:
        question_of(row, ChatForm(), "pairs")
    assert "prompts_differ" == error.value.reason


def characters_of(value: Any) -> int:
    """The characters of all texts, other than names of roles and types."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        named = ("role", "from", "type")
        values = [inner for key, inner in value.items() if key not in named or not isinstance(inner, str)]  # fmt: skip
        return sum(map(characters_of, values))
    return sum(map(characters_of, value)) if isinstance(value, list) else 0


@pytest.mark.parametrize(
    ("kind", "layouts"), [("pairs", PAIRS), ("judged", JUDGED), ("prompts", PROMPTS)]
)
def test_the_account_adds_up_to_the_characters_of_each_row(
    kind: str, layouts: dict, tmp_path: Path, tokenizer: Path
) -> None:
    rows = [{**row, "note": "an id", "more": ["b", {"c": "d"}]} for row in layouts.values()]
    rows.append({"unknown": "nothing to read", "chosen": "a", "rejected": "b"})
    source = write_jsonl(tmp_path / "in.jsonl", rows)
    run = prepared(source, tmp_path / "out", tokenizer, kind=kind, columns=(), duplicates="allow", max_bad_share=1, workers=1)  # fmt: skip

    words = run.manifest.metadata["words"]
    expected = sum(characters_of(value) for row in rows for value in row.values())
    assert expected == sum(count for fates in words.values() for count, _ in fates.values())
    assert ("trained" in words["content"]) == (kind != "prompts")
    assert {"left_out", "unread"} <= words["columns"].keys()
