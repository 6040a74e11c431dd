"""Find a tokenizer by its name on the Hugging Face hub: `org/name`, or `org/name@revision`.

A name is pinned when settings are built: the commit of the branch or tag replaces it and identifies
the tokenizer in the run. The cache of this machine comes first. Only files that it lacks are
requested from the hub, and only the files of a tokenizer. No code of a repository is run, whatever
its configuration names: tokenizer.json is enough.

`huggingface_hub` knows the location and layout of the cache. It reads its own environment variables
(HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE, HF_ENDPOINT, HF_TOKEN).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.digest import sha256_hex
from headrace.errors import MissingExtra, SettingsError
from headrace.printable import printable

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)
_ALWAYS = FILES[:2]  # a cached snapshot without these was made for other files
_NAME = re.compile(
    r"(?!\S*(?:--|\.\.))([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([^\s@]+))?", re.ASCII
)
_COMMIT = re.compile(r"[0-9a-f]{40}")


def is_name(text: str) -> bool:
    """Return whether a text names a repository of the hub.

    A text that exists as a local path does not.
    """
    return (
        _NAME.fullmatch(text) is not None
        and not text.endswith((".json", ".gz"))
        and not Path(text).exists()
    )


def parts_of(name: str) -> tuple[str, str]:
    """Return the repository and the revision of a name."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise SettingsError(
            "not a name on the hub",
            setting="tokenizer",
            value=name,
            remedy="give ORG/NAME or ORG/NAME@REVISION",
        )
    return match[1], match[2] or "main"


def pinned(name: str) -> str:
    """Return the name with its current commit as revision.

    Raises `SettingsError`, `MissingExtra`.
    """
    repository, revision = parts_of(name)
    if _COMMIT.fullmatch(revision):
        return name
    return f"{repository}@{directory_of(name).name}"


def directory_of(name: str) -> Path:
    """Return the cache directory with the tokenizer's files; fetch files that are missing.

    Raises `SettingsError` if they are neither in the cache nor available from the hub,
    `MissingExtra`.
    """
    directory = cached_directory(name)
    if directory is not None and all((directory / name).is_file() for name in _ALWAYS):
        return directory
    repository, revision = parts_of(name)
    hub = _hub()

    class OnTerminals(hub.utils.tqdm):  # type: ignore[misc, name-defined]  # its module may be missing
        """A progress bar that is hidden unless the output is a terminal."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **{"disable": None, **options})

    try:
        fetched = hub.snapshot_download(
            repository, revision=revision, allow_patterns=list(FILES), tqdm_class=OnTerminals
        )
    except Exception as error:  # the client does not wrap errors of its transport
        # not in the cache: the cause says why
        if isinstance(error, FileNotFoundError):
            cause = error.__cause__ or error
        else:
            cause = error
        why = printable(" ".join(str(cause).split()), 300)
        raise SettingsError(
            "it is not a path on this machine, it is not in the cache"
            f" {hub.constants.HF_HUB_CACHE}, and the hub did not give it ({type(cause).__name__}:"
            f" {why})",
            setting="tokenizer",
            value=name,
            remedy=(
                "check the name, or fetch it where the hub is within reach, `hf download"
                f" {repository} --revision {revision} --exclude '*.safetensors'`, and bring the"
                " cache here or give the directory"
            ),
        ) from error
    directory = Path(fetched)
    if not (directory / FILES[0]).is_file():
        raise SettingsError(
            f"there is no tokenizer.json in {directory}",
            setting="tokenizer",
            value=name,
            remedy=(
                "fetch it if the hub has one, `hf download"
                f" {repository} --revision {revision} tokenizer.json`, or else convert the slow"
                " tokenizer with transformers,"
                f" `AutoTokenizer.from_pretrained({repository!r}).save_pretrained(DIRECTORY)`,"
                " and give the directory"
            ),
        )
    return directory


def cached_directory(name: str) -> Path | None:
    """Return the cache directory of this revision, or None. Does not contact the hub."""
    repository, revision = parts_of(name)
    snapshot_download = _hub().snapshot_download
    try:
        directory = snapshot_download(
            repository, revision=revision, allow_patterns=list(FILES), local_files_only=True
        )
    except FileNotFoundError:
        return None
    return Path(directory)


def record_of(name: str) -> dict[str, Any]:
    """Return a pinned tokenizer's record for the manifest: repository, commit, SHA-256 of each
    file.
    """
    repository, commit = parts_of(name)
    return {"repository": repository, "commit": commit, "files": digests_in(directory_of(name))}


def digests_in(directory: Path) -> Mapping[str, str]:
    """Return the SHA-256 of each of a tokenizer's files in a directory."""
    result = {}
    for name in FILES:
        if (directory / name).is_file():
            result[name] = sha256_hex((directory / name).read_bytes())
    return result


def _hub() -> Any:
    try:
        import huggingface_hub
    except ModuleNotFoundError:
        raise MissingExtra("huggingface_hub", "chat") from None
    return huggingface_hub
