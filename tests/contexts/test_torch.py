"""Contexts through torch: the same as Grain's, batches made at once, resumed by number."""

import numpy as np
import pytest
from prepared_histories import prepared

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, DistributedSampler  # noqa: E402 - only where torch is

from headrace.contexts import open_contexts  # noqa: E402
from headrace.contexts.torch import ContextDataset, arrays_of  # noqa: E402
from headrace.errors import SettingsError  # noqa: E402


@pytest.fixture(scope="module")
def contexts(tmp_path_factory):
    return open_contexts(prepared(tmp_path_factory.mktemp("torch"), small=100, large=2))


def test_batches_are_tensors_of_the_same_contexts(contexts):
    dataset = ContextDataset(contexts, epochs=2)
    expected = contexts.batch(range(2 * len(contexts)))
    plain = list(DataLoader(dataset, batch_size=7, collate_fn=arrays_of))
    collated = list(DataLoader(dataset, batch_size=7))

    for batches in (plain, collated):
        for name, array in expected.items():
            together = torch.cat([batch[name] for batch in batches])
            assert together.dtype == torch.int32
            assert (together.numpy() == array).all()


@pytest.mark.smoke("fork")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_it_goes_on_at_any_position_and_with_workers(contexts, method):
    dataset = ContextDataset(contexts, epochs=2)
    rest = DataLoader(
        dataset, batch_size=4, sampler=range(13, len(dataset)), collate_fn=arrays_of, num_workers=1,
        multiprocessing_context=method,
    )  # fmt: skip

    together = np.concatenate([batch["inputs"].numpy() for batch in rest])
    assert (together == contexts.batch(range(13, len(dataset)))["inputs"]).all()


def test_ranks_share_an_epoch(contexts):
    dataset = ContextDataset(contexts)
    seen = []
    for rank in range(2):
        sampler = DistributedSampler(
            dataset, num_replicas=2, rank=rank, shuffle=False, drop_last=True
        )
        seen += list(sampler)

    assert len(set(seen)) == len(seen) >= len(dataset) - 1


def test_positions_outside_are_refused(contexts):
    dataset = ContextDataset(contexts)
    with pytest.raises(IndexError, match=f"of {len(dataset)}"):
        dataset[len(dataset)]
    with pytest.raises(SettingsError, match="epochs"):
        ContextDataset(contexts, epochs=0)
