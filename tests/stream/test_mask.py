"""Rows of masked entities are false in `valid`; batches, steps and states are those of a stream without the mask."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stream_cases import ranks
from torch.utils.data import DataLoader

import headrace
from headrace.errors import SettingsError
from raised import raised

ROWS, MASKED = 307, ("3", "11", "nobody")


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    root = tmp_path_factory.mktemp("masked")
    entity = np.random.default_rng(0).integers(0, 20, ROWS)
    for part, rows in enumerate(np.split(np.arange(ROWS), [100, 150])):
        pq.write_table(
            pa.table({"row": rows, "who": entity[rows]}),
            root / f"part-{part}.parquet",
            row_group_size=40,
        )
    return root, np.isin(entity, [3, 11])


def stream_of(root, **options):
    return headrace.open(root).stream(
        **{
            "batch_size": 16,
            "batch_format": "numpy",
            "entity_column": "who",
            "mask_entities": MASKED,
            **options,
        }
    )


def plain(batches):
    return [
        {name: np.asarray(value).tolist() for name, value in batch.items() if name != "valid"}
        for batch in batches
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True},
        {"shuffle": False, "remainder": "pad"},
        {"shuffle": True, "shuffle_rows": 64, "lanes": 3, "columns": ["row"]},
        {"shuffle": True, "shuffle_rows": 64, "on_bad_block": "quarantine"},
        {"shuffle": True, "samples_per_epoch": 400, "batch_format": "torch"},
    ],
)
@pytest.mark.parametrize("world_size", [1, 3])
def test_only_the_mask_differs_from_a_stream_without_it(shards, options, world_size):
    root, masked = shards
    for topology in ranks(world_size):
        without = {**options, "mask_entities": (), "entity_column": None}
        expected, found = (
            list(stream_of(root, topology=topology, **each)) for each in (without, options)
        )

        assert plain(expected) == plain(found)
        for before, now in zip(expected, found, strict=True):
            assert np.array_equal(
                np.asarray(before["valid"]) & ~masked[np.asarray(now["row"])],
                np.asarray(now["valid"]),
            )


def test_a_mask_begins_in_the_middle_of_an_epoch(shards):
    root, masked = shards
    first = stream_of(root, shuffle=True, mask_entities=(), entity_column=None)
    batches = iter(first)
    taken = [next(batches) for _ in range(7)]
    rest = stream_of(root, shuffle=True)
    rest.load_state_dict(first.state_dict())
    found = list(rest)

    whole = list(stream_of(root, shuffle=True, mask_entities=(), entity_column=None))
    assert plain(whole) == plain([*taken, *found])
    assert all(np.array_equal(~masked[batch["row"]], batch["valid"]) for batch in found)


@pytest.mark.parametrize("batch_format", ["arrow", "rows"])
def test_other_forms_of_batches_have_the_mask_too(shards, batch_format):
    root, masked = shards
    for batch in stream_of(root, batch_format=batch_format, columns=["row"]):
        rows = batch if isinstance(batch, list) else batch.to_pylist()

        assert all(
            {"row", "valid"} == row.keys() and row["valid"] != masked[row["row"]] for row in rows
        )


def test_claimed_blocks_are_masked(shards):
    root, masked = shards
    found = list(stream_of(root, distribution="dynamic", topology=ranks(1)[0]))

    real = np.concatenate([batch["row"][batch["valid"]] for batch in found])
    assert np.flatnonzero(~masked).tolist() == sorted(real.tolist())


@pytest.mark.slow
def test_workers_give_the_same_mask(shards):
    root, _ = shards
    options = {
        "batch_size": 16,
        "batch_format": "torch",
        "entity_column": "who",
        "mask_entities": MASKED,
        "shuffle": True,
    }
    alone = list(headrace.open(root).stream(**options))
    dataset = headrace.open(root).torch_dataset(num_workers=2, **options)

    together = list(DataLoader(dataset, batch_size=None, num_workers=2))
    assert [batch["valid"].tolist() for batch in alone] == [
        batch["valid"].tolist() for batch in together
    ]


def test_ranks_compare_a_digest_of_the_mask(shards):
    root, _ = shards
    contracts = [
        stream_of(root, mask_entities=names).contract()["mask"]
        for names in (MASKED, MASKED[::-1], ("3",))
    ]

    assert contracts[0] == contracts[1] != contracts[2]
    assert stream_of(root, mask_entities=(), entity_column=None).contract()["mask"] is None
    assert not any(name in contract for contract in contracts for name in ("nobody",))


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"mask_entities": "3"}, {"setting": "mask_entities", "value": "3"}),
        ({"mask_entities": [3]}, {"setting": "mask_entities", "value": [3]}),
        ({"mask_entities": ()}, {"setting": "entity_column", "remedy": "give them"}),
        ({"entity_column": None}, {"remedy": "one of"}),
        ({"pack": 64}, {"setting": "mask_entities", "remedy": "when the rows are packed"}),
    ],
)
def test_what_cannot_be_masked_is_refused(shards, options, fields):
    with raised(SettingsError, **fields):
        stream_of(shards[0], **options)


def test_entities_of_a_column_that_is_not_there_are_refused(shards):
    with pytest.raises(SettingsError, match="'other'"):
        stream_of(shards[0], entity_column="other")


def test_a_blend_refuses_a_mask(shards):
    with raised(SettingsError, setting="mask_entities", remedy="mask or erase entities in each"):
        headrace.blend([headrace.open(shards[0])]).stream(
            batch_size=4, mask_entities=["3"], entity_column="who"
        )
