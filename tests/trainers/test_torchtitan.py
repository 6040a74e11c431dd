"""The loader for torchtitan: every bin once over all ranks, steps that do not depend on them, resume on any number."""

import importlib.util
import json
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packed_stream_cases import make_bins, table_of
from rank_processes import run_ranks
from script_processes import held_store
from titan_modules import NAME, Configs, Microbatches, module_over
from titan_ranks import train_on_rank

from headrace.errors import SettingsError, StreamError
from raised import raised

INSTALLED = importlib.util.find_spec("torchtitan") is not None
SHARDS = (1, 13, 4, 9, 2, 11, 5)
ROWS = sum(SHARDS)
WIDTH = 80
BINS = make_bins(ROWS, least_tokens=2)


@pytest.fixture(scope="module")
def patch(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "HOME", str(tmp_path_factory.mktemp("home"))
        )  # indexes of plain shards are kept below it
        yield patch


@pytest.fixture(scope="module", params=["torchtitan", "configs", "microbatches"])
def titan(request, patch):
    if request.param == "torchtitan" and not INSTALLED:
        pytest.skip("needs torchtitan, see `make titan`")
    with pytest.MonkeyPatch.context() as here:
        stand_ins = {"configs": Configs, "microbatches": Microbatches}
        yield module_over(stand_ins.get(request.param), here)
        here.delitem(sys.modules, NAME)


@pytest.fixture(scope="module")
def out(tmp_path_factory, patch):
    """Seven uneven shards of bins, and as many of sequences."""
    root = tmp_path_factory.mktemp("out")
    table, first = table_of(BINS), 0
    for number, rows in enumerate(SHARDS):
        for name, part in (("bins", table), ("sequences", sequences())):
            path = root / name / "train" / f"shard-{number}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(part.slice(first, rows), path, row_group_size=3)
        first += rows
    return root


def sequences():
    return pa.table(
        {"input_ids": [[token for sequence in each for token, _ in sequence] for each in BINS]}
    )


def build(titan, out, rank=0, ranks=1, batch=2, **settings):
    chosen = {
        "dataset_path": str(out / settings.get("rows", "bins")),
        "infinite": False,
        "seed": 5,
    } | settings
    return titan.HeadraceDataLoader(
        titan.HeadraceDataLoader.Config(**chosen),
        dp_world_size=ranks,
        dp_rank=rank,
        tokenizer=None,
        **sizes(titan, batch),
    )


def sizes(titan, batch, width=WIDTH):
    """The sizes of a batch as this torchtitan tells them."""
    if titan._types is None:
        return {"seq_len": width, "local_batch_size": batch, "snapshot_every_n_steps": 1}
    return {"max_context_length": width, "num_tokens_per_microbatch": batch * width}


def as_rows(batch):
    """Tokens, labels and positions of a batch in whatever form, [rows, WIDTH] each."""
    if isinstance(batch, tuple):
        inputs, labels = batch
        return inputs["input"], labels, inputs["positions"]
    assert batch.num_valid_tokens == (batch.labels != -100).sum()
    assert batch.padding_mask.shape == batch.input.shape
    return [each.view(-1, WIDTH) for each in (batch.input, batch.labels, batch.positions)]


def loaders(titan, out, ranks, batch, step=12, state=None, **settings):
    made = [
        build(titan, out, rank, ranks, batch, global_batch_size=step, **settings)
        for rank in range(ranks)
    ]
    for loader in made if state else []:
        loader.load_state_dict(json.loads(json.dumps(state)))
    return made


def taken(loaders, drawn, steps=None):
    """What all ranks train in each step: counts of (token, label, position). drawn: batches of a rank and step."""
    passes, found = [iter(loader) for loader in loaders], []
    while len(found) != steps:
        batches = [[next(each, None) for _ in range(drawn)] for each in passes]
        if any(None in rank for rank in batches):
            assert all(
                batch is None for rank in batches for batch in rank
            )  # all ranks end, and between steps
            break
        found.append(Counter())
        for tokens, labels, positions in (as_rows(batch) for rank in batches for batch in rank):
            assert {tokens.shape, labels.shape, positions.shape} == {
                (loaders[0]._batch_rows, WIDTH)
            }
            rows = (each[labels != -100].tolist() for each in (tokens, labels, positions))
            found[-1].update(zip(*rows, strict=True))
    return found


def trained():
    """What the bins train, told in plain Python."""
    counted = Counter()
    for sequence in (sequence for sequences in BINS for sequence in sequences):
        for place, ((token, _), (label, is_trained)) in enumerate(pairwise(sequence)):
            counted[token, label, place] += is_trained
    return +counted


@pytest.mark.parametrize(("ranks", "batch"), [(1, 12), (1, 3), (2, 3), (3, 2), (3, 4), (4, 1)])
def test_an_epoch_trains_every_label_once_in_steps_that_do_not_depend_on_ranks(
    titan, out, ranks, batch
):
    steps = taken(loaders(titan, out, ranks, batch), 12 // ranks // batch)

    assert steps == taken(loaders(titan, out, 1, 12), 1)
    assert len(steps) == -(-ROWS // 12)
    assert sum(steps, Counter()) == trained()


@pytest.mark.parametrize(("ranks", "batch"), [(3, 2), (2, 3), (4, 3), (1, 12)])
def test_a_checkpoint_of_three_ranks_resumes_on_any_number(titan, out, ranks, batch):
    whole = taken(loaders(titan, out, 3, 2), 2)
    before = loaders(titan, out, 3, 2)
    taken(before, 2, steps=2)
    states = [loader.state_dict() for loader in before]

    assert states[0] == states[1] == states[2]
    assert whole[2:] == taken(
        loaders(titan, out, ranks, batch, state=states[0]), 12 // ranks // batch
    )


@pytest.mark.slow
def test_processes_resume_a_distributed_checkpoint_on_fewer(out):
    """Ranks of three processes, then of two, whose checkpoints are made by torch."""
    for ranks, steps in ((3, 2), (2, None)):
        store = held_store()
        run_ranks(train_on_rank, ranks, ranks, store.port, str(out), WIDTH, steps)
    told = {path.name: json.loads(path.read_text()) for path in out.glob("?-of-?.json")}
    before = [told[f"{rank}-of-3.json"] for rank in range(3)]
    after = [told[f"{rank}-of-2.json"] for rank in range(2)]

    assert [2] * 3 + [-(-ROWS // 12) - 2] * 2 == [len(steps) for steps in before + after]
    every = Counter(token for rank in before + after for step in rank for token in step)
    assert Counter(token for token, _, _ in trained().elements()) == every


def test_a_state_inside_a_step_is_that_before_it(titan, out):
    loader = build(titan, out, batch=3, global_batch_size=12)
    batches = iter(loader)
    begin = loader.state_dict()
    for _ in range(3):
        next(batches)
        assert loader.state_dict() == begin
    next(batches)

    assert loader.state_dict() != begin


def test_the_end_of_an_epoch_is_an_end_and_infinite_goes_on_with_another_order(titan, out):
    (loader,) = loaders(titan, out, 1, 12)
    first = taken([loader], 1)
    end = loader.state_dict()

    assert [] == taken(loaders(titan, out, 3, 4, state=end), 1)
    epochs = taken(loaders(titan, out, 1, 12, infinite=True), 1, steps=2 * len(first))
    assert first == epochs[: len(first)]
    assert first != epochs[len(first) :]
    assert trained() == sum(epochs[len(first) :], Counter())
    assert epochs[len(first) :] == taken(
        loaders(titan, out, 3, 4, state=end, infinite=True), 1, steps=len(first)
    )


def test_validation_takes_every_row_in_one_pass_that_can_be_repeated(titan, out):
    validation = [build(titan, out, rank, 3, 2, shuffle=False) for rank in range(3)]

    for _ in range(2):
        assert trained() == sum(taken(validation, 1), Counter())


def test_sequences_are_packed_while_they_are_streamed(titan, out):
    steps = taken(loaders(titan, out, 3, 2, rows="sequences"), 2)

    expected = Counter()
    for tokens in sequences()["input_ids"].to_pylist():
        expected.update(zip(tokens, tokens[1:], range(len(tokens)), strict=False))
    assert expected == sum(steps, Counter())


@pytest.mark.parametrize(("ranks", "batch"), [(2, 3), (1, 12)])
def test_sequences_that_are_left_are_packed_anew_for_other_ranks(titan, out, ranks, batch):
    before = loaders(titan, out, 3, 2, rows="sequences")
    begin = taken(before, 2, steps=2)
    rest = loaders(titan, out, ranks, batch, state=before[0].state_dict(), rows="sequences")

    whole = sum(taken(loaders(titan, out, 3, 2, rows="sequences"), 2), Counter())
    assert whole == sum(begin + taken(rest, 12 // ranks // batch), Counter())


def test_positions_can_be_left_out(titan, out):
    if titan._types is not None:
        pytest.skip("after 0.3 batches always have them")
    inputs, _ = next(iter(build(titan, out, positions="none")))

    assert {"input"} == set(inputs)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"global_batch_size": 8, "ranks": 3}, "share a multiple of 6"),
        ({"global_batch_size": 0}, "share a multiple of 2"),
        ({"dataset_path": None}, "dataset_path: it is not set"),
        ({"rows": "chats", "dataset_path": "."}, "rows"),
        ({"positions": "all"}, "positions"),
    ],
)
def test_settings_that_cannot_work_are_refused(titan, out, settings, says):
    with pytest.raises(SettingsError, match=says):
        build(titan, out, **settings)


def test_rows_wider_than_the_sequence_length_are_refused(titan, out):
    config = build(titan, out, options={"packed": "varlen"}).config
    narrow = titan.HeadraceDataLoader(
        config, dp_world_size=1, dp_rank=0, **sizes(titan, 2, width=8)
    )

    with pytest.raises(StreamError, match="pad_to is 8"):
        list(narrow)


def test_epochs_without_a_batch_are_no_endless_loop(titan, out):
    with raised(StreamError, path=out / "bins", remedy="choose another split"):
        next(iter(build(titan, out, batch=64, infinite=True, options={"remainder": "drop"})))


def test_the_state_of_another_loader_is_refused(titan, out):
    with raised(StreamError, remedy="exclude_from_loading"):
        build(titan, out).load_state_dict({"dp_rank_0": b"", "world_size": 1})


def test_a_config_builds_the_loader(titan, out):
    config = titan.HeadraceDataLoader.Config(dataset_path=str(out / "bins"), infinite=False)

    loader = config.build(dp_world_size=1, dp_rank=0, tokenizer=None, **sizes(titan, 2))

    assert isinstance(loader, titan.HeadraceDataLoader)
    assert trained() == sum(taken([loader], 1), Counter())


def test_after_0_3_the_trainer_says_what_a_step_draws_and_whether_data_repeat(titan, out):
    if titan._types is None:
        pytest.skip("before, configs say it")
    config = titan.HeadraceDataLoader.Config(
        dataset_path=str(out / "bins"), seed=5, max_num_documents=8
    )
    layout = SimpleNamespace(num_accumulation_steps=2, num_pp_microbatches=3)
    given = {"dp_world_size": 1, "dp_rank": 0, "tokenizer": None, "optimizer_step_layout": layout}

    loader = replace(config, repeat=False).build(**given, **sizes(titan, 2))

    assert loader.max_num_documents == 8
    assert taken([loader], 6) == taken(loaders(titan, out, 1, 12), 1)
    with raised(SettingsError, setting="num_tokens_per_microbatch", value=WIDTH + 1):
        config.build(**given, max_context_length=WIDTH, num_tokens_per_microbatch=WIDTH + 1)
