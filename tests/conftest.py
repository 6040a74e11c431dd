"""Settings all tests share. Small table writers and readers are in `tables`."""

import os

from hypothesis import HealthCheck, Phase, settings

pytest_plugins = ["store_fixtures"]  # of tests/object_stores

settings.register_profile(
    "headrace", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.register_profile(
    "headrace-no-shrink", settings.get_profile("headrace"), phases=[Phase.explicit, Phase.generate]
)
settings.load_profile("headrace")

os.environ.setdefault("HEADRACE_REPORT", "never")  # pages are what tests/report asks for; drawing takes a second a run
