"""Settings types for files: local paths and object-store paths. They refuse secrets."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, SerializationInfo, WrapValidator

from headrace.credentials import refuse_credentials


def _as_places(value: object, check: Any) -> tuple[Path, ...]:
    from headrace.storage.places import path_of  # settings alone load no data libraries

    entries = value
    if isinstance(value, str | PurePath):
        entries = [value]
    if not isinstance(entries, list | tuple):
        return tuple(check(value))
    paths = tuple(path_of(entry) for entry in entries if isinstance(entry, str | PurePath))
    # The path of an object is not a `Path`, so its text is checked.
    check([str(entry) if isinstance(entry, PurePath) else entry for entry in entries])
    return paths


def _as_texts(paths: tuple[Path, ...], info: SerializationInfo) -> Any:
    if info.mode == "json":
        return [str(path) for path in paths]
    return paths


def _as_local(value: object) -> object:
    from headrace.storage.places import local_path_of  # settings alone load no data libraries

    if isinstance(value, str | PurePath):
        return local_path_of(value, "a setting")
    return value


def _as_path_or_text(value: object) -> object:
    if isinstance(value, str) and "{" not in value:  # a template may hold any sign
        refuse_credentials(value)
    return value


def _as_run(value: object) -> object:
    if isinstance(value, PurePath):
        value = str(value)
    if isinstance(value, str):
        refuse_credentials(value)
    return value


RunPath = Annotated[str, BeforeValidator(_as_run)]
LocalPath = Annotated[Path, BeforeValidator(_as_local)]
PathOrTemplate = Annotated[str, BeforeValidator(_as_path_or_text)]
Places = Annotated[tuple[Path, ...], WrapValidator(_as_places), PlainSerializer(_as_texts)]
