"""The rank is found where it is told, and a launcher without a rank is an error."""

import numpy as np
import pytest

from headrace.errors import SettingsError, StreamError
from headrace.stream.ranks import topology
from headrace.stream.ranks.topology import Topology, capture, confirm
from raised import raised


def told(**environ):
    topology = capture(environ=environ)
    return topology.rank, topology.world_size, topology.source


def test_the_environment_tells_rank_and_world_size():
    assert told(RANK="2", WORLD_SIZE="4") == (2, 4, "environment")
    assert told(WORLD_SIZE="1") == (0, 1, "environment")


def test_a_process_alone_is_rank_0_of_1():
    assert told() == (0, 1, "alone")
    assert told(SLURM_NTASKS="1") == (0, 1, "alone")


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is 2 but RANK is not set"),
        ({"RANK": "1"}, "RANK is 1 but WORLD_SIZE is not set"),
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "3"}, r"SLURM_NTASKS is 8 \(SLURM_PROCID is 3\)"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_SIZE is 2"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK='one'"),
    ],
)
def test_a_launcher_without_a_rank_is_an_error(environ, message):
    with pytest.raises(StreamError, match=message):
        capture(environ=environ)


def test_a_rank_that_does_not_exist_is_an_error():
    with raised(SettingsError, setting="rank", value=4):
        capture(environ={"RANK": "4", "WORLD_SIZE": "4"})
    with raised(SettingsError, setting="rank", value=True):
        Topology(rank=True, world_size=4)


def test_without_a_group_nothing_contradicts_the_capture():
    confirm(Topology(rank=1, world_size=2, source="environment"))


def test_integers_of_numpy_are_ranks():
    ours = Topology(rank=np.int64(1), world_size=np.int32(2), partners=np.uint8(3))

    assert ours == Topology(rank=1, world_size=2, partners=3)
    assert {int} == {type(value) for value in (ours.rank, ours.world_size, ours.partners)}
    for name, value in (("world_size", 2.0), ("partners", np.bool_(True)), ("rank", -1)):
        with raised(SettingsError, setting=name, value=value):
            Topology(**{"rank": 0, "world_size": 2, name: value})


def test_a_mesh_whose_dimensions_have_no_names_is_warned_of(monkeypatch, caplog):
    monkeypatch.setattr(topology, "_dimensions", lambda: {"dim_0": 2, "dim_1": 2})
    topology._warn_once.cache_clear()
    topology._check_mesh_is_given(Topology(rank=0, world_size=4))

    assert "device mesh have no names" in caplog.text
