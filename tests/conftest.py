"""Settings all tests share. Small table writers and readers are in `tables`."""

import gc
import os
from collections import Counter, defaultdict

import pytest
from hypothesis import HealthCheck, Phase, settings

pytest_plugins = ["store_fixtures"]  # of tests/object_stores


# Only a power cut shows what a sync is good for, and a tiny run waits for the disk most of its time. The processes that
# tests start sync as ever; their order of writing, syncing and linking is what tests/faults/test_sync_order.py looks at.
def _without_waiting(descriptor: int) -> None:
    os.fstat(descriptor)  # as ever, what is not open is an error


os.fsync = _without_waiting

settings.register_profile(
    "headrace",
    deadline=None,
    derandomize=True,
    # how long examples take to draw says how busy the machine is
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.register_profile(
    "headrace-no-shrink", settings.get_profile("headrace"), phases=[Phase.explicit, Phase.generate]
)
# `make test` asks for it with --hypothesis-profile; a law that says how many examples it needs asks `laws.examples`.
settings.register_profile("headrace-fast", settings.get_profile("headrace"), max_examples=20)
settings.load_profile("headrace")

os.environ.setdefault(
    "HEADRACE_REPORT", "never"
)  # pages are what tests/report asks for; drawing takes a second a run


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses among the tests
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark as slow the cases of a test that its smoke marker does not name, or that are not each n-th by `every=n`."""
    unseen: dict[str, set[str]] = defaultdict(set)
    cases: Counter[str] = Counter()
    for item in items:
        if isinstance(item, pytest.Function) and (smoke := item.get_closest_marker("smoke")):
            case = item.callspec.id
            name = item.nodeid.removesuffix(f"[{case}]")
            unseen.setdefault(name, set(smoke.args)).discard(case)
            every = smoke.kwargs.get("every")
            if case not in smoke.args and (every is None or cases[name] % every):
                item.add_marker("slow")
            cases[name] += 1
    wrong = {name: cases for name, cases in unseen.items() if cases}
    if wrong and not any("::" in argument for argument in config.args):
        raise pytest.UsageError(
            f"smoke markers name cases that do not exist: {wrong}; correct the ids"
        )


def pytest_collection_finish() -> None:
    """Keep the collector from looking at the libraries: half a million objects, 0.3 s each time that a test collects."""
    gc.collect()
    gc.freeze()
