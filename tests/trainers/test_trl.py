"""TRL's trainers on headrace streams: rows that TRL tokenises, and packed bins."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler

pytest.importorskip("trl", reason="needs trl")

from accelerate.data_loader import BatchSamplerShard
from hf_cases import language_model, trl_arguments, word_tokenizer
from test_hf import on_ranks
from trl.trainer.utils import RepeatSampler

import headrace
from headrace.errors import SettingsError
from headrace.stream.ranks.topology import Topology
from headrace.trainers.generation import PromptBatches
from headrace.trainers.hf import HeadraceTrainerMixin, SplitLoader
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
@pytest.mark.parametrize("kind", ["DPO", "Reward"])
def test_a_preference_trainer_trains_and_evaluates_each_pair_once(pairs, tmp_path, kind):
    out = str(tmp_path / "out")
    run = {
        "call": "preference",
        "kind": kind,
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


GENERATIONS = {
    "call": "generation",
    "batch_size": 3,
    "num_generations": 4,  # the second of three prompts is on both of two ranks
    "num_iterations": 2,
    "gradient_accumulation_steps": 2,
    "save_strategy": "steps",
    "save_steps": 1,
    "num_train_epochs": 2,
    "stream": {"shuffle": True, "seed": 3},
}


def groups(ranks):
    """The prompts of each generation batch: those of all ranks side by side, as TRL gathers rewards, in groups of four."""
    batches = []
    for parts in zip(*(rank["told"] for rank in ranks), strict=True):
        gathered = sum(parts, [])
        batches.append([gathered[first : first + 4] for first in range(0, len(gathered), 4)])
    return batches


def prompts(batches):
    """The prompt of each group, which has no other."""
    assert [{1}] * len(batches) == [{len(set(group)) for group in batch} for batch in batches]
    return [[group[0] for group in batch] for batch in batches]


@given(st.data())
def test_generation_batches_are_those_of_trl_on_any_ranks(pairs, data):
    """What TRL's sampler and Accelerate's shards give each rank, if they read rows in the order of the stream."""
    ranks = data.draw(st.integers(1, 6), "ranks")
    rows, steps, group = (data.draw(st.integers(1, 4), name) for name in ("rows", "steps", "group"))
    size = ranks * rows * steps
    assume(size % group == 0 and size // group <= PAIRS)
    iterations = data.draw(st.integers(1, 2), "iterations")
    lines = headrace.open(pairs)
    options = {"batch_format": "rows", "shuffle": True, "remainder": "drop"}
    order = [row["prompt"] for (row,) in lines.stream(batch_size=1, **options)]

    for rank in range(ranks):
        batches = PromptBatches.of(
            SimpleNamespace(
                generation_batch_size=size,
                num_generations=group,
                steps_per_generation=steps,
                num_iterations=iterations,
                world_size=ranks,
                process_index=rank,
            )
        )
        topology = Topology(rank=rank, world_size=ranks)
        stream = lines.stream(batch_size=rows, topology=topology, **options)
        loader = SplitLoader(batches.stream_of(stream), batches.of_rank, repeats=batches.repeats)
        sampler = RepeatSampler(order, group, size // group, steps * iterations, shuffle=False)
        shard = BatchSamplerShard(BatchSampler(sampler, rows * steps, drop_last=False), ranks, rank)
        expected = [[order[index] for index in indices] for indices in shard]

        assert len(loader) == len(expected)
        assert expected == [[row["prompt"] for row in batch] for batch in loader]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mask_entities", {"mask_entities": ["3 7"], "entity_column": "prompt"}),
        ("on_bad_block", {"on_bad_block": "quarantine"}),
    ],
)
def test_no_completions_are_generated_for_rows_that_are_not_valid(pairs, name, options):
    batches = PromptBatches(prompts=3, completions=4, first=0, stop=12, repeats=1)
    stream = headrace.open(pairs).stream(batch_size=3, batch_format="rows", **options)
    with raised(SettingsError, setting=name, remedy="a dataset without these rows"):
        batches.stream_of(stream)


@pytest.mark.slow
def test_grpo_groups_belong_to_one_prompt_and_each_prompt_comes_once_an_epoch(pairs, tmp_path):
    out = str(tmp_path / "out")
    run = {**GENERATIONS, "data": pairs, "folder": out, "steps_per_generation": 2}
    again = {**run, "folder": str(tmp_path / "again"), "resume": f"{out}/checkpoint-4"}
    whole, resumed = on_ranks(tmp_path, 2, run, again)
    alone = {**run, "folder": str(tmp_path / "alone"), "steps_per_generation": 4}
    # inside the third batch, which begins again
    (one,) = on_ranks(tmp_path / "one", 1, {**alone, "resume": f"{out}/checkpoint-5"})

    trained, epoch = prompts(groups(whole)), PAIRS // 3
    assert [3] * 2 * epoch == [len(batch) for batch in trained]
    for first in (0, epoch):
        assert list(range(PAIRS)) == sorted(sum(trained[first : first + epoch], []))
    assert trained[:epoch] != trained[epoch:]
    for rank, rest in zip(whole, resumed, strict=True):
        # two steps of the optimizer for each generation batch
        assert (4 * epoch, 4 * epoch) == (rank["step"], rank["max_steps"])
        assert rank["told"][2:] == rest["told"]
        assert rank["losses"] == rest["losses"]
        assert rank["weights"] == rest["weights"]
    assert trained[2:] == prompts(groups(one))


@pytest.mark.slow
def test_rloo_leaves_out_less_than_a_generation_batch_or_goes_on_in_the_next_epoch(pairs, tmp_path):
    run = {**GENERATIONS, "kind": "RLOO", "data": pairs, "batch_size": 4, "num_iterations": 1}
    # without a reference, which it would load by the name of the model
    run |= {"folder": str(tmp_path / "out"), "save_strategy": "no", "beta": 0.0}
    left_out, continued = on_ranks(
        tmp_path,
        1,
        {**run, "stream": {"shuffle": True, "remainder": "drop"}},
        {**run, "stream": {"shuffle": True, "samples_per_epoch": 16}},
    )

    for first in (0, 7):
        batch = sum(prompts(groups(left_out))[first : first + 7], [])
        assert 14 == len(set(batch)) == len(batch)
    both = sum(prompts(groups(continued)), [])
    assert (32, list(range(PAIRS))) == (len(both), sorted(both[:PAIRS]))
    assert list(range(PAIRS)) == sorted(both[PAIRS : 2 * PAIRS])


@pytest.mark.filterwarnings("ignore")  # TRL's and transformers' own
@pytest.mark.parametrize(
    ("base", "name", "settings"),
    [
        ("DPOTrainer", "precompute_ref_log_probs", {"precompute_ref_log_probs": True}),
        ("SFTTrainer", "packing", {"packing": True}),
        ("SFTTrainer", "shuffle_dataset", {"shuffle_dataset": True}),
        ("GRPOTrainer", "remainder", {"num_generations": 2, "gradient_accumulation_steps": 2}),
        ("RLOOTrainer", "eval_dataset", {"num_generations": 2}),
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
    stream = rows.stream(batch_size=2, batch_format="rows")
    with raised(SettingsError, setting=name):
        kind(
            language_model(),
            args=arguments,
            train_dataset=stream,
            eval_dataset=stream if name == "eval_dataset" else None,
            processing_class=word_tokenizer(),
            **(rewards if "num_generations" in settings else {}),
        )
