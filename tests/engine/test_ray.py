"""The Ray engine on a real cluster of three nodes: the same bytes as locally, whatever dies meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from recipe_runs import MIDDLE, RECIPES, recipes_over

import headrace
from headrace.engine.ray import RayEngine, ray_engine
from headrace.errors import EngineError, InputError, SettingsError
from headrace.run.events import Event, StageBegan, TaskDone
from headrace.run.prepare import Prepared, prepare
from headrace.storage.local import strays
from raised import raised
from tables import digests, small_source, write_rows

pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"
)
NODE = {"num_cpus": 1, "object_store_memory": 80_000_000}
PATHS = os.pathsep.join([str(Path(headrace.__file__).parents[1]), str(Path(__file__).parents[1])])
PATIENCE_S = 200


class Nodes:
    """A cluster of a head that stays and two nodes that can be killed, and a connection of this process to it."""

    def __init__(self) -> None:
        import ray
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(
            initialize_head=True, head_node_args=NODE | {"include_dashboard": False}
        )
        # Connected while there is no other node: of several on one machine Ray may take any as ours, and one that we kill
        # would take this process with it. One connection for all tests: each new one starts worker processes of its own.
        ray.init(address=self.address, log_to_driver=False, logging_level="ERROR")
        self.others = [None, None]
        self.mend()

    @property
    def address(self) -> str:
        return self.cluster.address

    def kill(self, place: int) -> None:
        self.cluster.remove_node(self.others[place], allow_graceful=False)
        self.others[place] = None

    def mend(self) -> None:
        """Nodes that were killed are replaced."""
        self.others = [
            self.cluster.add_node(wait=False, **NODE) if node is None else node
            for node in self.others
        ]
        self.cluster.wait_for_nodes(timeout=PATIENCE_S)  # Ray's own limit is 30 s


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")  # tests run beside others
        patch.setenv("PYTHONPATH", PATHS)
        made = Nodes()
        yield made
        ray.shutdown()
        made.cluster.shutdown()


@pytest.fixture
def cluster(nodes: Nodes) -> Nodes:
    return nodes


@pytest.fixture
def mended(nodes: Nodes) -> Nodes:
    nodes.mend()
    return nodes


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Callable[[], Any]]:
    return recipes_over(tmp_path_factory.mktemp("source"))


def on_ray(recipe: Any, out: Path, cluster: Nodes, **more: Any) -> Prepared:
    return prepare(recipe, out, engine="ray", address=cluster.address, **more)


@pytest.mark.smoke("packed_sequences")
@pytest.mark.parametrize("name", RECIPES)
def test_a_cluster_writes_the_bytes_that_threads_write(
    tmp_path: Path, cluster: Nodes, recipes: Mapping[str, Any], name: str
) -> None:
    alone: list[Event] = []
    spread: list[Event] = []
    expected = prepare(recipes[name](), tmp_path / "local", workers=2, on_event=alone.append)
    found = on_ray(recipes[name](), tmp_path / "ray", cluster, on_event=spread.append)

    assert digests(expected.run) == digests(found.run)
    assert Counter(map(repr, alone)) == Counter(
        repr(each).replace("/ray/", "/local/") for each in spread
    )
    assert [] == strays(tmp_path / "ray")


@pytest.mark.slow
def test_the_error_of_the_first_failing_task_comes_back_as_it_was_raised(
    tmp_path: Path, cluster: Nodes
) -> None:
    source = small_source(tmp_path / "in", count=5)
    for number in (3, 1):
        write_rows(
            source / f"part-{number:05d}.csv", ("id", "date", "row"), [("1", "no date", "1")]
        )
    recipe = headrace.TemporalSplit(
        source=source, time="date", entity="id", split_date="2025-01-01"
    )
    with pytest.raises(InputError) as alone:
        prepare(recipe, tmp_path / "local")
    with pytest.raises(InputError) as spread:
        on_ray(recipe, tmp_path / "ray", cluster)

    assert "part-00001.csv" in str(spread.value)
    assert str(alone.value) == str(spread.value)


@pytest.mark.slow
def test_a_run_that_stopped_goes_on_with_another_engine(
    tmp_path: Path, cluster: Nodes, recipes: Mapping[str, Any]
) -> None:
    def stop(event: Event) -> None:
        if isinstance(event, TaskDone) and event.stage == "split":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        on_ray(recipes["temporal_split"](), tmp_path / "out", cluster, on_event=stop)
    events: list[Event] = []
    prepare(recipes["temporal_split"](), tmp_path / "out", on_event=events.append)
    done = {event.stage: event.done for event in events if isinstance(event, StageBegan)}

    assert 6 == done["scan"]
    assert done["split"] >= 1


INTERRUPTED = """
import sys
from headrace.engine.ray import ray_engine
from headrace.errors import HeadraceError

address, directory = sys.argv[1:]

def task(place):
    def work(tell):
        import time
        from pathlib import Path

        try:
            (Path(directory) / f"began-{place}").touch()
            while True:  # until it is cancelled
                time.sleep(0.05)
        finally:
            (Path(directory) / f"ended-{place}").touch()
    return work

with ray_engine(address) as engine:
    try:
        engine.run([task(place) for place in range(20)], 3, on_event=print)
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.mark.slow
def test_an_interrupt_ends_the_tasks_and_lets_them_clean_up(tmp_path: Path, cluster: Nodes) -> None:
    command = [sys.executable, "-c", INTERRUPTED, cluster.address, str(tmp_path)]
    child = subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": PATHS}, stdout=subprocess.PIPE, text=True
    )
    wait_until(lambda: len(list(tmp_path.glob("began-*"))) == 3)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=PATIENCE_S)

    assert "interrupted" in out
    assert {f"ended-{place}" for place in range(3)} == {
        path.name for path in tmp_path.glob("ended-*")
    }


CONNECTION_LOST = """
import sys
import time

import ray
from headrace.engine.ray import ray_engine

address, connected_again = sys.argv[1:]

def task(place):
    return lambda tell: time.sleep(10_000) if place else tell("done")

def done(event):
    ray.shutdown()
    if connected_again == "yes":
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    raise KeyboardInterrupt

with ray_engine(address) as engine:
    try:
        engine.run([task(place) for place in range(3)], 3, on_event=done)
    except KeyboardInterrupt:
        print("interrupted, connected again:", "yes" if ray.is_initialized() else "no")
"""


@pytest.mark.slow
@pytest.mark.parametrize("connected_again", ["no", "yes"])
def test_an_interrupt_without_the_connection_of_its_tasks_goes_on_and_connects_to_nothing(
    cluster: Nodes, connected_again: str
) -> None:
    command = [sys.executable, "-c", CONNECTION_LOST, cluster.address, connected_again]
    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": PATHS},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )

    assert f"interrupted, connected again: {connected_again}\n" == done.stdout, done.stderr


@pytest.mark.slow
def test_a_process_that_ray_keeps_lets_go_of_what_tasks_shared(
    cluster: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np
    import ray

    values = np.arange(50_000)

    def holding(tell: Any) -> tuple[str, int]:
        from headrace.engine import ray as engine_ray

        engine_ray._KEEP_S = 0.05
        return ray.get_runtime_context().get_worker_id(), int(values[-1])

    def looks(worker: str) -> Callable[[], bool]:
        @ray.remote(num_cpus=1)
        def held() -> tuple[str, int]:
            from headrace.engine import ray as engine_ray

            return ray.get_runtime_context().get_worker_id(), len(engine_ray._loaded[1])

        return lambda: (worker, 0) in ray.get([held.remote() for _ in range(6)])

    with ray_engine(cluster.address) as engine:
        ((worker, last), *_) = engine.run([holding, holding], 1, on_event=print)

    assert 49_999 == last
    wait_until(looks(worker))


def test_an_error_that_is_not_ours_keeps_the_traceback_of_its_worker(cluster: Nodes) -> None:
    def breaks(tell: Any) -> None:
        raise KeyError("a bug")

    with ray_engine(cluster.address) as engine, pytest.raises(KeyError, match="a bug") as caught:
        engine.run([breaks], 1, on_event=print)

    assert "in breaks" in str(caught.value.__cause__)


def test_other_versions_on_a_node_are_refused(
    cluster: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.engine import ray as engine_ray

    own = engine_ray.library_versions()
    monkeypatch.setattr(engine_ray, "library_versions", lambda: own | {"pyarrow": "1.0"})
    with (
        ray_engine(cluster.address) as engine,
        raised(EngineError, remedy="install the same on all nodes"),
    ):
        engine.run([lambda tell: 1], 1, on_event=print)


@pytest.mark.slow
def test_a_connection_that_was_there_before_is_used_and_kept(cluster: Nodes) -> None:
    import ray

    with ray_engine(None) as engine:
        assert isinstance(engine, RayEngine)
        assert 3 == engine.default_workers()
    assert ray.is_initialized()
    with (
        raised(SettingsError, setting="address", remedy="call ray.shutdown() first"),
        ray_engine("10.0.0.1:1"),
    ):
        pass
    with (
        raised(SettingsError, setting="address", remedy="run on a machine of the cluster"),
        ray_engine("ray://10.0.0.1:1"),
    ):
        pass


def test_an_address_without_ray_is_refused_before_any_work(
    tmp_path: Path, recipes: Mapping[str, Any]
) -> None:
    with raised(SettingsError, setting="address", value="auto", remedy='engine="ray"'):
        prepare(recipes["temporal_split"](), tmp_path / "out", address="auto")
    with raised(SettingsError, setting="engine", value="dask", remedy="local, ray"):
        prepare(recipes["temporal_split"](), tmp_path / "out", engine="dask")  # type: ignore[arg-type]

    assert not (tmp_path / "out").exists()


def kill_in_the_middle(out: Path, cluster: Nodes, recipe: Any, stage: str, victim: int) -> Prepared:
    """The run, with a node killed when the first task of a stage has finished."""
    killed: list[str] = []

    def listen(event: Event) -> None:
        if isinstance(event, TaskDone) and event.stage == stage and not killed:
            killed.append(event.subject)
            cluster.kill(victim)

    made = on_ray(recipe, out, cluster, on_event=listen)

    assert killed
    return made


@pytest.mark.slow
def test_a_node_that_dies_in_the_middle_changes_nothing(
    tmp_path: Path, cluster: Nodes, recipes: Mapping[str, Any]
) -> None:
    expected = prepare(recipes["temporal_split"](), tmp_path / "local", workers=2)
    found = kill_in_the_middle(
        tmp_path / "ray", cluster, recipes["temporal_split"](), MIDDLE["temporal_split"], 0
    )

    assert digests(expected.run) == digests(found.run)


@pytest.mark.slow
def test_a_task_whose_node_dies_is_done_again_elsewhere(tmp_path: Path, cluster: Nodes) -> None:
    victim = cluster.others[1].node_id

    def task(place: int) -> Callable[[Any], int]:
        def work(tell: Any) -> int:
            import time
            from pathlib import Path

            import ray

            node = ray.get_runtime_context().get_node_id()
            (Path(directory) / f"{place}-{node}").touch()
            while node == victim or not any(Path(directory).glob(f"*-{victim}")):
                time.sleep(
                    0.05
                )  # until the node dies with us; on other nodes, until it has a task that can die
            tell(place)
            return place

        return work

    directory = str(tmp_path)
    finished: list[int] = []

    def done(place: int) -> None:
        finished.append(place)
        if len(finished) == 6:
            cluster.kill(1)

    with ray_engine(cluster.address) as engine:
        results = engine.run(
            [task(place) for place in range(9)], engine.default_workers(), on_event=done
        )

    assert list(range(9)) == results
    assert sorted(finished) == results
    (held,) = tmp_path.glob(f"*-{victim}")
    assert 2 == len(list(tmp_path.glob(f"{held.name.split('-')[0]}-*")))


@pytest.mark.faults
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("name", RECIPES)
def test_a_node_that_dies_in_the_middle_of_any_recipe_changes_nothing(
    tmp_path: Path, mended: Nodes, tmp_path_factory: pytest.TempPathFactory, name: str, victim: int
) -> None:
    recipe = recipes_over(tmp_path / "source", rows=40_000, shards=9)[name]
    expected = prepare(recipe(), tmp_path / "local", workers=2)
    found = kill_in_the_middle(tmp_path / "ray", mended, recipe(), MIDDLE[name], victim)

    assert digests(expected.run) == digests(found.run)


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < until
        time.sleep(0.05)
