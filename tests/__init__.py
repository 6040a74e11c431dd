"""A package of its own, so that no `tests` that a library installed is found in its place by processes of tests."""
