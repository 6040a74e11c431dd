"""DDP and FSDP over real gloo processes: equal steps, every row once per epoch, and the rest of an epoch on other ranks.

The same five processes form one group after another: starting processes and importing torch is what costs.
"""

import json
from itertools import chain

import pytest
import torch
from rank_processes import run_ranks
from training_cases import ROWS, train_on_rank

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="needs torch with gloo",
)

TOTAL = sum(ROWS)
STOP = 7  # of two workers, one is a batch ahead there
EVEN = 8  # where both workers of a rank gave as many batches


def whole(model="ddp", *, workers=0, batch_size=5, stop=STOP, save):
    """Two epochs from the beginning, with a checkpoint in the second one."""
    return {
        "model": model,
        "workers": workers,
        "batch_size": batch_size,
        "epochs": [0, 1],
        "stop": [1, stop],
        "save": save,
    }


def rest(checkpoint, model="ddp", *, workers=0, batch_size=5, epochs=(1,)):
    """What a checkpoint left of the second epoch."""
    return {
        "model": model,
        "workers": workers,
        "batch_size": batch_size,
        "epochs": list(epochs),
        "resume": checkpoint,
    }


def train_groups(folder, groups):
    """What each rank saw: [group][job] is a list over ranks."""
    processes = max(world_size for _, world_size, _ in groups)
    run_ranks(train_on_rank, processes, str(folder), groups)
    records = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(processes)]
    return {
        name: {title: [record[name][title] for record in records[:world_size]] for title in jobs}
        for name, world_size, jobs in groups
    }


def flat(parts):
    return list(chain.from_iterable(parts))


def rows_of(ranks, epoch, *, steps=slice(None)):
    return [row for rank in ranks for row in flat(rank["seen"][epoch][steps])]


def check_steps(ranks):
    """Equal steps everywhere, as many as len() said, and the batches that the pure order gives."""
    for rank in ranks:
        assert rank["planned"] == next(iter(rank["seen"].values()))
        for epoch in rank["seen"]:
            assert len(rank["seen"][epoch]) == len(ranks[0]["seen"][epoch])


def check_two_epochs(ranks):
    check_steps(ranks)
    for epoch in ("0", "1"):
        assert list(range(TOTAL)) == sorted(rows_of(ranks, epoch))
        assert all(rank["len"] == len(rank["seen"][epoch]) for rank in ranks)
    assert rows_of(ranks, "0") != rows_of(ranks, "1")


def check_same_resume(before, after, *, stop):
    """The same batches as without the stop, and in the end the same weights, bit by bit."""
    check_steps(after)
    for rank, (old, new) in enumerate(zip(before, after, strict=True)):
        assert old["seen"]["1"][stop:] == new["seen"]["1"], rank
    assert before[0]["weights"]
    assert before[0]["weights"] == after[0]["weights"]


def check_other_resume(before, after, *, stop):
    check_steps(after)
    assert list(range(TOTAL)) == sorted(
        rows_of(before, "1", steps=slice(stop)) + rows_of(after, "1")
    )
    if "2" in after[0]["seen"]:
        assert list(range(TOTAL)) == sorted(rows_of(after, "2"))


@pytest.mark.slow
def test_two_epochs_are_whole_and_a_stop_resumes_exactly_on_the_same_and_on_other_ranks(tmp_path):
    groups = [
        (
            "two",
            2,
            {
                "whole": whole(save="two"),
                "workers": whole(workers=2, stop=EVEN, save="two-workers"),
                "uneven": whole(workers=2, save="two-uneven"),
                "fsdp": whole("fsdp", save="fsdp"),
                "same": rest("two"),
                "same workers": rest("two-workers", workers=2),
                "same fsdp": rest("fsdp", "fsdp"),
            },
        ),
        (
            "four",
            4,
            {
                "whole": whole(batch_size=4, save="four"),
                "fsdp": whole("fsdp", workers=1, batch_size=3, save="four-fsdp"),
                "same fsdp": rest("four-fsdp", "fsdp", workers=1, batch_size=3),
                "of two": rest("two", batch_size=3, epochs=(1, 2)),
                "of two workers": rest("two-workers", workers=1, batch_size=2),
                "of two uneven": rest("two-uneven", batch_size=6, epochs=(1, 2)),
                "of fsdp": rest("fsdp", "fsdp", workers=1, batch_size=7),
            },
        ),
        (
            "three",
            3,
            {
                "whole": whole(workers=1, batch_size=4, save="three"),
                "of two": rest("two", batch_size=4),
            },
        ),
        (
            "five",
            5,
            {
                "of three": rest("three", batch_size=3, epochs=(1, 2)),
                "of three fsdp": rest("three", "fsdp", workers=1, batch_size=6),
            },
        ),
        (
            "back",
            2,
            {
                "of four": rest("four", batch_size=6, workers=2, epochs=(1, 2)),
                "of four fsdp": rest("four-fsdp", "fsdp", batch_size=2),
            },
        ),
    ]
    runs = train_groups(
        tmp_path, groups
    )  # one test: a fixture would run once in every process of pytest-xdist
    two, four = runs["two"], runs["four"]

    for ranks in (
        two["whole"],
        two["workers"],
        two["uneven"],
        two["fsdp"],
        four["whole"],
        four["fsdp"],
    ):
        check_two_epochs(ranks)
    check_same_resume(two["whole"], two["same"], stop=STOP)
    check_same_resume(two["workers"], two["same workers"], stop=EVEN)
    check_same_resume(two["fsdp"], two["same fsdp"], stop=STOP)
    check_same_resume(four["fsdp"], four["same fsdp"], stop=STOP)
    check_other_resume(two["whole"], four["of two"], stop=STOP)
    check_other_resume(two["workers"], four["of two workers"], stop=EVEN)
    check_other_resume(two["uneven"], four["of two uneven"], stop=STOP)
    check_other_resume(two["fsdp"], four["of fsdp"], stop=STOP)
    check_other_resume(two["whole"], runs["three"]["of two"], stop=STOP)
    check_two_epochs(runs["three"]["whole"])
    check_other_resume(runs["three"]["whole"], runs["five"]["of three"], stop=STOP)
    check_other_resume(runs["three"]["whole"], runs["five"]["of three fsdp"], stop=STOP)
    check_other_resume(four["whole"], runs["back"]["of four"], stop=STOP)
    check_other_resume(four["fsdp"], runs["back"]["of four fsdp"], stop=STOP)
