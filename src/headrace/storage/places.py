"""Settings that name files: local paths, or paths in object stores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator

from headrace.storage.remote_path import path_of


def _as_places(value: object) -> object:
    if isinstance(value, str | Path):
        return (path_of(value),)
    if isinstance(value, list | tuple):
        return tuple(path_of(each) if isinstance(each, str | Path) else each for each in value)
    return value


Places = Annotated[tuple[Path, ...], BeforeValidator(_as_places)]
