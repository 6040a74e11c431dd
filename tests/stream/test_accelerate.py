"""Under Accelerate: what is prepared, what must not be, and what would happen if it were."""

import json

import pytest

pytest.importorskip("accelerate", reason="needs accelerate")

from accelerate import skip_first_batches
from accelerate_cases import deliver_on_rank, new_stream
from rank_processes import run_ranks
from script_processes import held_store
from torch_cases import ROWS, dataset_of, real_rows

from headrace.stream.loader.stream_loader import NotADataLoader
from raised import raised

EVERY = list(range(sum(ROWS)))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    store = held_store()
    run_ranks(deliver_on_rank, 2, 2, store.port, str(folder))
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


def rows(ranks, *titles):
    return sorted(
        row for rank in ranks for title in titles for batch in rank[title] for row in batch
    )


def test_a_stream_passes_through_prepare_and_gives_every_row_once(ranks):
    assert all(rank["same stream"] for rank in ranks)
    assert rows(ranks, "prepared stream") == EVERY
    assert rows(ranks, "unprepared loader") == EVERY
    assert len({len(rank["prepared stream"]) for rank in ranks}) == 1


def test_a_stream_resumes_under_accelerate(ranks):
    for rank in ranks:
        assert rank["prepared stream"] == rank["before"] + rank["rest"]
    assert rows(ranks, "before", "rest in other batches") == EVERY


@pytest.mark.parametrize(
    ("title", "who"),
    [
        ("prepared loader", "Accelerate's DataLoaderDispatcher"),
        ("rows, dispatched", "Accelerate's DataLoaderDispatcher"),
        ("rows, split", "Accelerate's DataLoaderDispatcher"),
        ("rows, cut again", "accelerate's IterableDatasetShard"),
        ("split by node", "split_dataset_by_node of datasets"),
    ],
)
def test_what_would_share_out_the_rows_again_is_refused_on_every_rank(ranks, title, who):
    """`prepare(DataLoader(torch_dataset, batch_size=None))` and what does the same."""
    for rank in ranks:
        assert rank[title].startswith(who)
        assert "each of the 2 ranks its own share already" in rank[title]
        assert (
            "give the loop dataset.data_loader(), or headrace.open(...).stream(...), as it is"
            in rank[title]
        )
    assert all("NoneType" in rank["no dispatch"] for rank in ranks)  # Accelerate's own error
    assert list(range(49)) == rows(ranks, "rows, as they are")


@pytest.mark.parametrize("title", ["stream", "loader", "workers"])
def test_the_last_window_of_gradient_accumulation_is_stepped(ranks, title):
    for rank in ranks:
        windows = rank[f"windows of a {title}"]
        assert len(windows) % 4
        assert [(number + 1) % 4 == 0 for number in range(len(windows) - 1)] == windows[:-1]
        assert windows[-1]
        assert not rank[f"left of a {title}"]


def test_even_batches_repeat_rows_and_uneven_ones_are_unequal_steps(ranks):
    """`prepare(DataLoader(map_dataset, …))`."""
    assert len(rows(ranks, "even")) == 23 + 7
    assert len(set(rows(ranks, "even"))) == 23
    assert [len(rank["uneven"]) for rank in ranks] == [3, 2]


def test_gathering_for_metrics_keeps_the_filling_rows_of_a_stream(ranks):
    """`gather_for_metrics`."""
    for rank in ranks:
        assert rank["gathered for metrics"] == 2 * 5
        assert rank["real"] < 2 * 5


def test_skipping_batches_names_the_state_and_of_a_loader_reads_what_it_skips():
    """`skip_first_batches(stream, 5)` to resume."""
    with raised(NotADataLoader, remedy="to go on after some batches use load_state_dict"):
        skip_first_batches(new_stream(), 3)
    assert not hasattr(new_stream(), "dataset")

    loader = dataset_of(0).data_loader()
    whole = [real_rows(batch) for batch in dataset_of(0).data_loader()]
    assert whole[3:] == [real_rows(batch) for batch in skip_first_batches(loader, 3)]
