"""Read datasets of the Hugging Face hub as sources: `hf://datasets/OWNER/NAME@REVISION/PATH`.

The branch or tag is resolved to a commit once, when the source is named, and the files of that commit are listed once
per machine; ranks that open it together resolve and list it once in all. `huggingface_hub` fetches them into its own
cache, by its own rules (HF_TOKEN, HF_ENDPOINT, HF_HUB_CACHE, HF_HUB_OFFLINE). Each file is checked against the digest
in the hub's listing, SHA-256 for large files and git's SHA-1 for others. It is checked again if its size or times have
changed since.

The rest of headrace sees a view of the files of that commit (see `dataset.views`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote, unquote

from headrace.credentials import refuse_credentials
from headrace.dataset.views import is_whole, write_view
from headrace.digest import canonical_json, sha256_file, sha256_hex
from headrace.engine.local import run_tasks
from headrace.errors import CorruptShard, InputError, MissingExtra
from headrace.formats.hub_files import choose, dataset_info
from headrace.formats.saved import is_saved, saved_files
from headrace.printable import printable
from headrace.storage import local

_ADDRESS = re.compile(
    r"hf:/+datasets/([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(refs/(?:convert|pr)/[^/@\s]+|[^/@\s]+))?(?:/(.*))?",
    re.ASCII | re.DOTALL,
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_DOWNLOADS = 8  # at a time, the client's default
_PIECE = 1 << 20


# Returns the function's result, possibly computed by another rank; the name is the same in all ranks.
Once = Callable[[str, Callable[[], str]], str]


def fetched(address: str | PurePath, cache_dir: str | Path | None = None, once: Once = lambda name, ask: ask()) -> Path:
    """Fetch the files of an address that are not in the cache, and return the directory of their view.

    cache_dir: as for `headrace.open`; the files themselves are in the cache of `huggingface_hub`. once: how ranks
    resolve the commit and the listing together. Raises `InputError` if neither the hub nor its cache has them,
    `CorruptShard` for a file with other bytes, and `MissingExtra`.
    """
    from headrace.storage.cache_room import cache_directory

    refuse_credentials(address)
    match = _ADDRESS.fullmatch(str(address))
    if match is None:
        raise InputError(
            f"{address}: is not an address of a dataset on the hub; give hf://datasets/OWNER/NAME, optionally with"
            " @REVISION and /PATH after it"
        )
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingExtra("huggingface_hub", "hub") from error
    repository, path = match[1], (match[3] or "").strip("/")
    # `formats.saved` knows views by these names.
    home = local.make_directory(cache_directory(cache_dir) / "hub" / repository.replace("/", "--"))
    hub = _Hub(str(address), repository, huggingface_hub, home, once)
    commit = hub.commit(unquote(match[2] or "main"))
    name = repository.partition("/")[2] + (f"-{sha256_hex(path.encode())[:8]}" if path else "")
    view = local.make_directory(home / commit) / name  # the directory's name may become a dataset's name in a blend
    with local.alone(home / f".{commit}.lock"), _quiet(huggingface_hub):
        if not is_whole(view):
            _make(view, hub, commit, path)
    return view


class _Hub:
    """A repository, accessed through the client, with responses kept below `home`."""

    def __init__(self, address: str, repository: str, client: Any, home: Path, once: Once) -> None:
        self.address, self.repository, self._client, self._home, self._once = address, repository, client, home, once
        self._api = client.HfApi()

    def commit(self, revision: str) -> str:
        """Return the commit of a branch or tag, from the hub; offline, the last one seen."""
        if _COMMIT.fullmatch(revision):
            return revision
        kept = self._home / f"{quote(revision, safe='')}.ref"
        found = self._once(f"hub/{self.repository}@{revision}", partial(self._asked, revision, kept))
        self._keep(kept, found.encode())
        return found

    def _asked(self, revision: str, kept: Path) -> str:
        try:
            found = str(self._api.dataset_info(self.repository, revision=revision).sha)
        except Exception as error:  # the client passes on errors of its transport
            if self._is_offline() and kept.is_file():
                return kept.read_text()
            raise self._failure(error, f"the commit of {revision}") from error
        if not _COMMIT.fullmatch(found):
            raise InputError(f"{self.address}: the hub's commit {found[:80]!r} is not one; check HF_ENDPOINT")
        return found

    def listing(self, commit: str) -> dict[str, list[Any]]:
        """Return size and digest of every file of a commit: the SHA-256 of a large file, else git's SHA-1."""
        kept = self._home / f"{commit}.json"
        with suppress(OSError, ValueError):
            return dict(json.loads(kept.read_bytes()))
        text = self._once(f"hub/{self.repository}@{commit}/files", partial(self._listed, commit))
        self._keep(kept, text.encode())
        return dict(json.loads(text))

    def _listed(self, commit: str) -> str:
        try:
            entries = self._api.list_repo_tree(self.repository, revision=commit, recursive=True, repo_type="dataset")
            files = [each for each in entries if isinstance(each, self._client.hf_api.RepoFile)]
        except Exception as error:
            raise self._failure(error, f"the list of files of commit {commit}") from error
        found = {each.path: [each.size, each.blob_id if each.lfs is None else each.lfs.sha256] for each in files}
        return canonical_json(found).decode()

    def _keep(self, path: Path, data: bytes) -> None:
        with local.storing(path), local.beside(path) as temporary:
            temporary.write_bytes(data)
            os.replace(temporary, path)

    def fetch(self, name: str, commit: str, told: Sequence[Any]) -> Path:
        """Return a file in the client's cache, complete and with the digest in the listing."""
        try:
            path = Path(self._api.hf_hub_download(self.repository, name, revision=commit, repo_type="dataset"))
        except Exception as error:
            raise self._failure(error, name) from error
        size, digest = told
        if path.stat().st_size != size or digest != (sha256_file(path) if len(digest) == 64 else _git_digest(path)):
            raise CorruptShard(
                f"{path}: is not the file of {self.repository} at {commit}, which has {size:,} bytes and the digest"
                f" {digest}; delete {path.resolve()} and run again to fetch it again"
            )
        return path

    def _failure(self, error: Exception, what: str) -> InputError:
        cause = error.__cause__ or error if isinstance(error, FileNotFoundError) else error
        why = printable(" ".join(str(cause).split()), 300)
        remedy = "check the name, the revision, HF_TOKEN for a private repository, and HF_ENDPOINT"
        if self._is_offline():
            remedy = (
                "HF_HUB_OFFLINE is set and this is not in the cache: open the address once where the hub is within"
                " reach, or give the directory of a download"
            )
        return InputError(f"{self.address}: the hub did not give {what} ({type(cause).__name__}: {why}); {remedy}")

    def _is_offline(self) -> bool:
        return bool(self._client.constants.HF_HUB_OFFLINE)


def _make(view: Path, hub: _Hub, commit: str, path: str) -> None:
    """Fetch and check the files of a view, and write the view in one step."""
    listing = hub.listing(commit)
    if not listing:
        raise InputError(f"{hub.address}: commit {commit} has no files")
    root = f"{path}/" if path else ""
    top = {name[len(root) :].partition("/")[0] for name in listing if name.startswith(root)}
    info = None
    if is_saved(Path(path), top):
        about = [name for name in listing if name.startswith(root) and name.endswith(".json")]
        snapshot = _snapshot(_fetch_all(hub, commit, about, listing), about)
        found = saved_files(snapshot / path, top) or {}
        splits = {split: [f"{root}{name}" for name in own] for split, own in found.items()}
    else:
        readme = None
        if not path and "README.md" in listing:
            readme = hub.fetch("README.md", commit, listing["README.md"]).read_text("utf-8", "replace")
        splits = choose(hub.address, listing, path, readme)
        info = None if readme is None else dataset_info(hub.address, readme)
    names = sorted({name for own in splits.values() for name in own})
    missing = next((name for name in names if name not in listing), None)
    if missing is not None:
        raise InputError(f"{hub.address}: {missing} is listed by the dataset and not in the repository; upload it")
    paths = _fetch_all(hub, commit, names, listing)
    files = dict(zip(names, paths, strict=True))
    address = f"hf://datasets/{hub.repository}@{commit}{f'/{path}' if path else ''}"
    shown = {split: {name: files[name] for name in own} for split, own in splits.items()}
    write_view(view, address, shown, {} if info is None else {"dataset_info": info})


def _fetch_all(hub: _Hub, commit: str, names: Sequence[str], listing: Mapping[str, Sequence[Any]]) -> list[Path]:
    return run_tasks([partial(hub.fetch, name, commit, listing[name]) for name in names], _DOWNLOADS)


def _snapshot(paths: Sequence[Path], names: Sequence[str]) -> Path:
    """Return the directory that the names are relative to."""
    return paths[0].parents[names[0].count("/")]


def _git_digest(path: Path) -> str:
    """Return the SHA-1 that git uses for the content of a file."""
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


@contextmanager
def _quiet(client: Any) -> Iterator[None]:
    """Keep the client's progress bars out of logs."""
    bars = client.utils
    if sys.stderr.isatty() or bars.are_progress_bars_disabled():
        yield
        return
    bars.disable_progress_bars()
    try:
        yield
    finally:
        bars.enable_progress_bars()
