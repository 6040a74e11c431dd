"""TRL's trainers on headrace streams: rows that TRL tokenises, and packed bins."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("trl", reason="needs trl")

from hf_cases import language_model, trl_arguments, word_tokenizer
from test_hf import on_ranks

import headrace
from headrace.errors import SettingsError
from headrace.trainers.hf import HeadraceTrainerMixin
from raised import raised

PAIRS = 15  # on two ranks of two pairs: a last step of two pairs and one


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    rows = [{"prompt": f"{n} 7", "chosen": " yes", "rejected": " maybe no"} for n in range(PAIRS)]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return str(path)


def numbers(batches):
    """The first word of each prompt, of which there are six other words before."""
    return [prompt[0] - 6 for batch in batches for prompt in batch]


@pytest.mark.slow
def test_dpo_trains_and_evaluates_each_pair_once(pairs, tmp_path):
    out = str(tmp_path / "out")
    run = {
        "call": "preference",
        "data": pairs,
        "folder": out,
        "save_strategy": "steps",
        "save_steps": 2,
    }
    runs = [run, {**run, "folder": str(tmp_path / "again"), "resume": f"{out}/checkpoint-2"}]
    whole, resumed = on_ranks(tmp_path, 2, *runs)
    (alone,) = on_ranks(
        tmp_path / "one",
        1,
        {**run, "folder": str(tmp_path / "alone"), "resume": f"{out}/checkpoint-4"},
    )

    for rank in whole:
        assert (4, 4, 4) == (rank["step"], rank["max_steps"], len(rank["rows"]))
    assert list(range(PAIRS)) == sorted(n for rank in whole for n in numbers(rank["rows"]))
    assert list(range(PAIRS)) == sorted(n for rank in whole for n in numbers(rank["evaluated"]))
    for one, other in zip(whole, resumed, strict=True):
        assert one["rows"][2:] == other["rows"]
        assert one["losses"] == other["losses"]
        assert one["weights"] == other["weights"]
    # Trained to the end, hence only evaluated: by one rank over all pairs as by two over unequal numbers of them.
    assert whole[0]["loss"] == whole[1]["loss"] == pytest.approx(alone[0]["loss"], rel=1e-5)


@pytest.mark.filterwarnings("ignore")  # TRL's and transformers' own
@pytest.mark.parametrize(
    ("base", "name", "settings"),
    [
        ("DPOTrainer", "precompute_ref_log_probs", {"precompute_ref_log_probs": True}),
        ("SFTTrainer", "packing", {"packing": True}),
        ("SFTTrainer", "shuffle_dataset", {"shuffle_dataset": True}),
        ("GRPOTrainer", "train_dataset", {"num_generations": 2}),
        ("RLOOTrainer", "train_dataset", {"num_generations": 2}),
    ],
)
def test_what_trl_would_do_with_a_table_is_refused(pairs, tmp_path, base, name, settings):
    import trl

    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": f"{n} yes"}) + "\n" for n in range(PAIRS)))
    rows = headrace.open(texts if base == "SFTTrainer" else pairs)
    kind = type("OnStream", (HeadraceTrainerMixin, getattr(trl, base)), {})
    arguments = trl_arguments(
        getattr(trl, base.replace("Trainer", "Config")), str(tmp_path), **settings
    )
    rewards = {"reward_funcs": lambda completions, **_: [0.0 for _ in completions]}
    with raised(SettingsError, setting=name):
        kind(
            language_model(),
            args=arguments,
            train_dataset=rows.stream(batch_size=2, batch_format="rows"),
            processing_class=word_tokenizer(),
            **(rewards if "num_generations" in settings else {}),
        )
