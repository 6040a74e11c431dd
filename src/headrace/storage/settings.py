"""Types of settings that name files: local paths, or paths in object stores. They refuse secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator

from headrace.credentials import refuse_credentials


def _as_places(value: object) -> object:
    from headrace.storage.places import path_of  # settings alone load no data libraries

    if isinstance(value, str | Path):
        return (path_of(value),)
    if isinstance(value, list | tuple):
        return tuple(path_of(each) if isinstance(each, str | Path) else each for each in value)
    return value


def _as_local(value: object) -> object:
    from headrace.storage.places import local_path_of  # settings alone load no data libraries

    return local_path_of(value, "a setting") if isinstance(value, str | Path) else value


def _as_path_or_text(value: object) -> object:
    if isinstance(value, str) and "{" not in value:  # a template may hold any sign
        refuse_credentials(value)
    return value


LocalPath = Annotated[Path, BeforeValidator(_as_local)]
PathOrTemplate = Annotated[str, BeforeValidator(_as_path_or_text)]
Places = Annotated[tuple[Path, ...], BeforeValidator(_as_places)]
