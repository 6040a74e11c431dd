"""Hugging Face's Trainer on headrace streams: every row once over all ranks, equal steps, resuming by state."""

from __future__ import annotations

import json

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
    return list(zip(*(json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(ranks)), strict=True))


def real_rows(ranks, steps=slice(None)):
    """The rows that all ranks trained, without the filling row of a rank that had none left."""
    return sorted(row for rank in ranks for batch in rank["rows"][steps] for row in batch)


@pytest.mark.parametrize("workers", [0, 2])
def test_every_row_is_trained_once_an_epoch_in_equal_steps(tmp_path, data, workers):
    (ranks,) = on_ranks(tmp_path, 2, {"data": data, "folder": str(tmp_path / "out"), "workers": workers})

    steps = -(-ROWS // (2 * BATCH))
    assert [2 * steps, 2 * steps] == [len(rank["rows"]) for rank in ranks]
    assert [2 * steps, 2 * steps] == [rank["max_steps"] for rank in ranks] == [rank["step"] for rank in ranks]
    for epoch in range(2):
        seen = real_rows(ranks, slice(epoch * steps, (epoch + 1) * steps))
        filled = 1  # the last step has one row: a rank without any runs a row that counts nothing
        assert list(range(ROWS)) == sorted(set(seen))
        assert ROWS + filled == len(seen)
