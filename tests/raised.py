"""Expect errors by their fields, so that their wording can change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from headrace.errors import HeadraceError

Error = TypeVar("Error", bound=HeadraceError)


@contextmanager
def raised(error_type: type[Error], **fields: object) -> Iterator[pytest.ExceptionInfo[Error]]:
    """Expect an error whose fields (setting, path, row, column, value, remedy) are these.

    A path may be a `Path`. Of a remedy, a part suffices.
    """
    with pytest.raises(error_type) as caught:
        yield caught
    error = caught.value
    for name, expected in fields.items():
        actual = getattr(error, name)
        if name == "remedy":
            assert str(expected) in (error.remedy or ""), error
        elif name == "path":
            assert actual == str(expected), error
        else:
            assert actual == expected, error
