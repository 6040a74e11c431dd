"""Hugging Face's Trainer on headrace streams: every row once over all ranks, equal steps, resuming by state."""

from __future__ import annotations

import json
from collections import Counter
from itertools import accumulate

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("transformers", reason="needs transformers")

from hf_cases import BATCH, run_on_rank, write_rows
from rank_processes import run_ranks
from script_processes import held_store

ROWS = 49  # on two ranks of four rows: a last step of one row, so that a rank has none


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return str(write_rows(tmp_path_factory.mktemp("hf") / "data", ROWS))


def on_ranks(folder, ranks, *runs):
    """What came of these runs, by run and rank."""
    folder.mkdir(exist_ok=True)
    store = held_store()
    run_ranks(run_on_rank, ranks, ranks, store.port, str(folder), list(runs))
    return list(
        zip(
            *(json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(ranks)),
            strict=True,
        )
    )


def real_rows(ranks, steps=slice(None)):
    """The rows that all ranks trained, without the filling row of a rank that had none left."""
    return sorted(row for rank in ranks for batch in rank["rows"][steps] for row in batch)


@pytest.mark.smoke("0")
@pytest.mark.parametrize("workers", [0, 2])
def test_every_row_is_trained_once_an_epoch_in_equal_steps(tmp_path, data, workers):
    (ranks,) = on_ranks(
        tmp_path, 2, {"data": data, "folder": str(tmp_path / "out"), "workers": workers}
    )

    steps = -(-ROWS // (2 * BATCH))
    assert [2 * steps, 2 * steps] == [len(rank["rows"]) for rank in ranks]
    assert (
        [2 * steps, 2 * steps]
        == [rank["max_steps"] for rank in ranks]
        == [rank["step"] for rank in ranks]
    )
    for epoch in range(2):
        seen = real_rows(ranks, slice(epoch * steps, (epoch + 1) * steps))
        filled = 1  # the last step has one row: a rank without any runs a row that counts nothing
        assert list(range(ROWS)) == sorted(set(seen))
        assert ROWS + filled == len(seen)


ACCUMULATED = {"gradient_accumulation_steps": 2, "save_strategy": "steps", "save_steps": 1}


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory):
    """Two epochs of seven batches in windows of two: whole, and resumed within an epoch and at its end."""
    folder = tmp_path_factory.mktemp("resumed")
    out, again = str(folder / "out"), str(folder / "again")
    whole = {"data": data, "folder": out, **ACCUMULATED}
    resumed = [
        {**whole, "folder": again, "resume": f"{out}/checkpoint-{step}"} for step in (2, 4, 6)
    ]
    return folder, on_ranks(
        folder, 2, whole, {**whole, "stop": 3, "folder": f"{out}-stopped"}, *resumed
    )


@pytest.mark.slow
def test_the_last_window_is_stepped_and_the_schedule_knows_all_steps(runs):
    for rank in runs[1][0]:
        assert (8, 8) == (
            rank["step"],
            rank["max_steps"],
        )  # windows of 2, 2, 2 and 1 batches, twice
        assert 8 == len(rank["losses"])
        assert rank["rates"] == pytest.approx(
            [1e-2 * (1 - step / 8) for step in range(8)]
        )  # linear, down to 0
        assert rank["epochs"] == pytest.approx([2 / 7, 4 / 7, 6 / 7, 1, 9 / 7, 11 / 7, 13 / 7, 2])


@pytest.mark.slow
@pytest.mark.parametrize(("run", "step", "batches"), [(2, 2, 4), (3, 4, 7), (4, 6, 11)])
def test_a_resumed_run_goes_on_as_the_whole_one_did(runs, run, step, batches):
    for whole, resumed in zip(runs[1][0], runs[1][run], strict=True):
        assert whole["rows"][batches:] == resumed["rows"]
        assert whole["losses"] == resumed["losses"]  # the first ones are those of the checkpoint
        assert whole["weights"] == resumed["weights"]
        assert whole["epochs"] == pytest.approx(resumed["epochs"])
        assert whole["rates"] == resumed["rates"]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 3])
def test_other_ranks_train_what_the_first_ones_left(runs, data, tmp_path, ranks):
    folder, results = runs
    stopped = results[1]
    checkpoint = f"{folder}/out-stopped/checkpoint-3"
    (others,) = on_ranks(
        tmp_path,
        ranks,
        {"data": data, "folder": str(tmp_path / "out"), "resume": checkpoint, **ACCUMULATED},
    )

    left = -(-(ROWS - 48) // (BATCH * ranks))
    assert list(range(ROWS)) == real_rows(
        [{"rows": rank["rows"][:6]} for rank in stopped] + [{"rows": others[0]["rows"][:left]}]
    )
    for rank in others:
        whole = -(-ROWS // (BATCH * ranks))
        assert whole + left == len(rank["rows"])
        assert 3 + 1 + -(-whole // 2) == rank["step"] == rank["max_steps"]
        assert rank["epochs"][-1] == pytest.approx(2)
    assert list(range(ROWS)) == sorted(
        {row for rank in others for batch in rank["rows"][left:] for row in batch}
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["language", "score"])
def test_a_step_is_on_the_mean_of_its_real_rows(data, tmp_path, kind):
    """Also in a step with unequal numbers of rows or labels, and in the last window of an epoch."""
    plain = {
        "optim": "sgd",
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0,
        "learning_rate": 0.1,
    }
    run = {
        "data": data,
        "folder": str(tmp_path / "out"),
        "kind": kind,
        "gradient_accumulation_steps": 2,
        **plain,
    }
    (ranks,) = on_ranks(tmp_path / "two", 2, {**run, "model": {"attention_dropout": 0.0}})
    windows = []
    for epoch in range(2):
        steps = [
            [
                *(ranks[0]["rows"][7 * epoch + n]),
                *(ranks[1]["rows"][7 * epoch + n] if n < 6 else []),
            ]
            for n in range(7)
        ]
        windows += [sum(steps[n : n + 2], []) for n in range(0, 7, 2)]
    ((replay,),) = on_ranks(tmp_path / "one", 1, {"call": "replayed", "windows": windows, **run})

    assert (
        ranks[0]["weights"]
        == ranks[1]["weights"]
        == pytest.approx(replay["weights"], rel=1e-4, abs=1e-4)
    )


@pytest.mark.slow
def test_batches_by_length_train_each_row_once_by_its_weight_and_resume(data, tmp_path):
    """The number of a row is its length here, so batches of a step have unequal numbers of rows."""
    run = {
        "data": data,
        "optim": "sgd",
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0,
        "learning_rate": 0.1,
    }
    model = {"attention_dropout": 0.0}
    grouped = {
        "stream": {"group_by_length": "row", "batch_tokens": 100, "batch_size": 64},
        "model": model,
        "save_strategy": "steps",
        "save_steps": 3,
        **run,
    }
    resume = str(tmp_path / "out" / "checkpoint-3")
    whole, resumed = on_ranks(
        tmp_path / "two",
        2,
        {**grouped, "folder": str(tmp_path / "out")},
        {**grouped, "folder": str(tmp_path / "again"), "resume": resume},
    )
    steps = list(map(list, zip(*(rank["rows"] for rank in whole), strict=True)))
    windows = [[*first, *second] for first, second in steps]
    replay = {"call": "replayed", "kind": "language", "windows": windows, **run}
    ((replay,),) = on_ranks(tmp_path / "one", 1, {**replay, "folder": str(tmp_path)})

    assert sorted([*range(ROWS)] * 2) == real_rows(whole)
    assert any(len(first) != len(second) for first, second in steps)
    assert whole[0]["weights"] == pytest.approx(replay["weights"], rel=1e-4, abs=1e-4)
    for rank, later in zip(whole, resumed, strict=True):
        assert rank["rows"][3:] == later["rows"]
        assert rank["weights"] == later["weights"]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_evaluation_is_over_the_real_rows_alone(data, tmp_path, ranks):
    cases = [
        {"call": "evaluate", "data": data, "folder": str(tmp_path), "kind": kind}
        for kind in ("language", "score")
    ]
    for kind, results in zip(("language", "score"), on_ranks(tmp_path, ranks, *cases), strict=True):
        for found in results:
            assert (
                found["loss"]
                == found["test_loss"]
                == found["loss_alone"]
                == pytest.approx(found["exact"], rel=1e-5)
            )
            assert ROWS == found["metrics"][0] == found["predictions"]
        assert list(range(ROWS)) == sorted({row for found in results for row in found["rows"]}), (
            kind
        )


def write_sequences(path, *, packed):
    """Token rows of 2 to 11 tokens, each beginning with a number of its own; packed: as bins with masks."""
    sequences = [
        [1 + n, *((5 * n + 3 * place) % 64 for place in range(1 + n % 10))] for n in range(50)
    ]
    if packed:
        bins = [sequences[n : n + 3] for n in range(0, 50, 3)]
        starts = [list(accumulate((len(each) for each in one), initial=0))[:-1] for one in bins]
        table = pa.table({
            "input_ids": [sum(one, []) for one in bins],
            "loss_mask": [sum(([1] * (len(each) - 1) + [0] for each in one), []) for one in bins],
            "seq_start_id": starts,
        }).replace_schema_metadata({"loss_mask_alignment": "shift_left"})  # fmt: skip
    else:
        table = pa.table({"input_ids": sequences})
    pq.write_table(table, path)
    return sequences


@pytest.mark.slow
@pytest.mark.smoke("prepared")
@pytest.mark.parametrize("packing", ["streamed", "prepared"])
def test_packed_sequences_do_not_see_each_other(tmp_path, packing):
    sequences = write_sequences(tmp_path / "tokens.parquet", packed=packing == "prepared")
    usual = {
        "call": "packed_apart",
        "data": str(tmp_path / "tokens.parquet"),
        "folder": str(tmp_path / "out"),
    }
    ways = [("llama", "sdpa"), ("llama", "eager"), ("gpt2", "sdpa"), ("llama", "lengths")]
    cases = [
        {**usual, "form": form, "kind": kind, "attention": attention, "packing": packing}
        for form in ("varlen", "padded")
        for kind, attention in ways
    ]
    for case, (found,) in zip(cases, on_ranks(tmp_path, 1, *cases), strict=True):
        assert found["worst"] < 1e-4, case
        assert sorted(sequences) == sorted(found["sequences"]), case
        assert sum(map(len, sequences)) - len(sequences) == found["trained"], case


@pytest.mark.slow
def test_the_trainers_own_loaders_repeat_and_leave_out_rows(data, tmp_path):
    """What the loaders of the Trainer itself deliver."""
    kinds = ("map-style", "streaming", "iterable")
    cases = [
        {"call": "own_path", "data": data, "folder": str(tmp_path / kind), "dataset": kind}
        for kind in kinds
    ]
    for kind, ranks in zip(kinds, on_ranks(tmp_path, 2, *cases), strict=True):
        counts = Counter(row for rank in ranks for batch in rank["rows"] for row in batch)
        assert [7, 7] == [len(rank["rows"]) for rank in ranks]
        assert any(count > 1 for count in counts.values()), kind
        assert (len(counts) < ROWS) == (kind == "iterable"), kind
