"""Settings types for files: local paths and object-store paths. They refuse secrets."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, SerializationInfo, WrapValidator

from headrace.credentials import refuse_credentials


def _as_places(value: object, check: Any) -> tuple[Path, ...]:
    from headrace.storage.places import path_of  # settings alone load no data libraries

    entries = [value] if isinstance(value, str | PurePath) else value
    if not isinstance(entries, list | tuple):
        return tuple(check(value))
    places = tuple(path_of(each) for each in entries if isinstance(each, str | PurePath))
    # An object's path is no `Path`, so its text is checked: how many there are, and that all are paths.
    check([str(each) if isinstance(each, PurePath) else each for each in entries])
    return places


def _told(places: tuple[Path, ...], info: SerializationInfo) -> Any:
    return [str(each) for each in places] if info.mode == "json" else places


def _as_local(value: object) -> object:
    from headrace.storage.places import local_path_of  # settings alone load no data libraries

    return local_path_of(value, "a setting") if isinstance(value, str | PurePath) else value


def _as_path_or_text(value: object) -> object:
    if isinstance(value, str) and "{" not in value:  # a template may hold any sign
        refuse_credentials(value)
    return value


LocalPath = Annotated[Path, BeforeValidator(_as_local)]
PathOrTemplate = Annotated[str, BeforeValidator(_as_path_or_text)]
Places = Annotated[tuple[Path, ...], WrapValidator(_as_places), PlainSerializer(_told)]
