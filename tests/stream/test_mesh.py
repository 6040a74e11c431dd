"""The rank of a stream by a device mesh, as each process of a job sees it."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import pytest
from stream_cases import Numbers, index_of

from headrace.errors import SettingsError
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.ranks.topology import Topology, resolve_topology
from raised import raised

NAMES = ("pp", "dp", "fsdp", "tp")
ROWS = [17, 30, 5]


class Mesh:
    """A DeviceMesh as one of its processes sees it, without the processes."""

    def __init__(self, shape: tuple[int, ...], coordinates: tuple[int, ...] | None) -> None:
        self.mesh_dim_names = NAMES[: len(shape)]
        self.shape = shape
        self._coordinates = coordinates

    def get_coordinate(self) -> tuple[int, ...] | None:
        return self._coordinates


def meshes(shape: tuple[int, ...]) -> list[Mesh]:
    return [Mesh(shape, coordinates) for coordinates in product(*map(range, shape))]


@pytest.mark.parametrize("shape", [(1, 4, 1, 1), (2, 2, 3, 2), (3, 1, 2, 4)])
@pytest.mark.parametrize("data_dims", ["dp", ("dp",), ("dp", "fsdp"), ["fsdp", "dp"]])
def test_partners_have_one_rank_and_every_rank_has_as_many_partners(
    shape: tuple[int, ...], data_dims: Any
) -> None:
    topologies = [resolve_topology(None, mesh, data_dims) for mesh in meshes(shape)]
    ranks = [topology.rank for topology in topologies]
    world_size = prod(size for name, size in zip(NAMES, shape, strict=True) if name in data_dims)

    assert {world_size} == {topology.world_size for topology in topologies}
    assert {prod(shape) // world_size} == {topology.partners for topology in topologies}
    assert sorted(ranks) == sorted(list(range(world_size)) * (prod(shape) // world_size))
    by_coordinates: dict[Any, set[int]] = {}
    for mesh, rank in zip(meshes(shape), ranks, strict=True):
        along = tuple(
            place
            for name, place in zip(NAMES, mesh.get_coordinate(), strict=True)
            if name in data_dims
        )
        by_coordinates.setdefault(along, set()).add(rank)
    assert all(len(found) == 1 for found in by_coordinates.values())
    assert [min(found) for _, found in sorted(by_coordinates.items())] == list(range(world_size))


def test_every_row_comes_once_over_the_ranks_of_a_mesh() -> None:
    rows: dict[int, list[int]] = {}
    for mesh in meshes((1, 2, 2, 2)):
        topology = resolve_topology(None, mesh, ("dp", "fsdp"))
        stream = StreamLoader(
            index_of(ROWS),
            Numbers(ROWS),
            StreamOptions(batch_size=4, shuffle=True),
            topology=topology,
        )
        seen = [row for batch in stream for row in batch["row"][batch["valid"]].tolist()]
        assert rows.setdefault(topology.rank, seen) == seen
    assert sorted(row for seen in rows.values() for row in seen) == list(range(sum(ROWS)))


@pytest.mark.parametrize(
    ("mesh", "data_dims", "topology", "name"),
    [
        (Mesh((2, 2), (0, 0)), "data", None, "data_dims"),
        (Mesh((2, 2), (0, 0)), None, None, "mesh"),
        (Mesh((2, 2), None), "dp", None, "mesh"),
        (None, "dp", None, "data_dims"),
        (Mesh((2, 2), (0, 0)), "dp", Topology(rank=0, world_size=2), "topology"),
    ],
)
def test_a_mesh_that_does_not_say_the_rank_is_refused(
    mesh: Mesh | None, data_dims: str | None, topology: Topology | None, name: str
) -> None:
    with raised(SettingsError, setting=name):
        resolve_topology(topology, mesh, data_dims)
