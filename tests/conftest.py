"""Settings all tests share. Small table writers and readers are in `tables`."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "headrace", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.load_profile("headrace")
