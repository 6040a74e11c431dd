"""Read datasets of the Hugging Face hub as sources: `hf://datasets/OWNER/NAME@REVISION/PATH`.

The branch or tag is resolved to a commit once, when the source is named, and the files of that
commit are listed once per machine; ranks that open it together resolve and list it once in all.
`huggingface_hub` fetches them into its own cache, by its own rules (HF_TOKEN, HF_ENDPOINT,
HF_HUB_CACHE, HF_HUB_OFFLINE). Each file is checked against the digest in the hub's listing, SHA-256
for large files and git's SHA-1 for others. It is checked again if its size or times have changed
since.

The YAML head of README.md may define configurations, each with the patterns of its splits. If it
defines none, file names decide: `data/SPLIT-00000-of-00003.parquet` as `push_to_hub` writes them,
else the rules of `formats.names`. A path in the address takes precedence over both.

The rest of headrace sees a view of the files of that commit (see `formats.saved`).
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote, unquote

from headrace.credentials import refuse_credentials
from headrace.digest import canonical_json, sha256_hex
from headrace.engine.local import run_tasks
from headrace.errors import CorruptShard, InputError, MissingExtra
from headrace.formats.names import Mixed, splits_of
from headrace.formats.registry import FORMATS
from headrace.formats.saved import is_saved, is_whole_view, saved_files, write_view
from headrace.gate.json import read_object
from headrace.printable import printable
from headrace.storage import local
from headrace.storage.cache_room import cache_directory
from headrace.storage.object_store import matches

_ADDRESS = re.compile(
    r"hf:/+datasets/([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(refs/(?:convert|pr)/[^/@\s]+|[^/@\s]+))?(?:/(.*))?",
    re.ASCII | re.DOTALL,
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_DOWNLOADS = 8  # at a time, the client's default
_ABOUT = {
    "config.json",
    "dataset_info.json",
    "dataset_infos.json",
    "dataset_dict.json",
    "state.json",
}
_SHARDED = re.compile(r"data/(\w+(?:\.\w+)*)-\d{5}-of-\d{5}[^/]*\.[^/]*")
_HEAD = re.compile(r"---[ \t]*\r?\n(.*?\n)---[ \t]*(?:\r?\n|\Z)", re.DOTALL)

# Returns the function's result, possibly computed by another rank; the name is the same in all
# ranks.
Once = Callable[[str, Callable[[], str]], str]


def fetched(
    address: str | PurePath,
    cache_dir: str | Path | None = None,
    once: Once = lambda name, ask: ask(),
) -> Path:
    """Fetch the files of an address that are not in the cache, and return the directory of their
    view.

    cache_dir: as for `headrace.open`; the files themselves are in the cache of `huggingface_hub`.
    once: how ranks resolve the commit and the listing together. Raises `InputError` if neither the
    hub nor its cache has them, `CorruptShard` for a file with other bytes, and `MissingExtra`.
    """
    refuse_credentials(address)
    match = _ADDRESS.fullmatch(str(address))
    if match is None:
        raise InputError(
            "is not an address of a dataset on the hub",
            path=address,
            remedy="give hf://datasets/OWNER/NAME, optionally with @REVISION and /PATH after it",
        )
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingExtra("huggingface_hub", "hub") from error
    repository = match[1]
    path = (match[3] or "").strip("/")
    # `formats.saved` knows views by these names.
    home = local.make_directory(cache_directory(cache_dir) / "hub" / repository.replace("/", "--"))
    hub = _Hub(str(address), repository, huggingface_hub, home, once)
    commit = hub.commit(unquote(match[2] or "main"))
    name = repository.partition("/")[2] + (f"-{sha256_hex(path.encode())[:8]}" if path else "")
    # the directory's name may become a dataset's name in a blend
    view = local.make_directory(home / commit) / name
    with local.alone(home / f".{commit}.lock"), _quiet(huggingface_hub):
        if not is_whole_view(view, _address_of(repository, commit, path)):
            _make(view, hub, commit, path)
    return view


def _address_of(repository: str, commit: str, path: str) -> str:
    return f"hf://datasets/{repository}@{commit}{f'/{path}' if path else ''}"


class _Hub:
    """A repository, accessed through the client, with responses kept below `home`."""

    def __init__(self, address: str, repository: str, client: Any, home: Path, once: Once) -> None:
        self.address = address
        self.repository = repository
        self._client = client
        self._home = home
        self._once = once
        self._api = client.HfApi()

    def commit(self, revision: str) -> str:
        """Return the commit of a branch or tag, from the hub; offline, the last one seen."""
        if _COMMIT.fullmatch(revision):
            return revision
        record = self._home / f"{quote(revision, safe='')}.ref"
        commit = self._once(
            f"hub/{self.repository}@{revision}", partial(self._asked, revision, record)
        )
        local.write_over(record, commit.encode())
        return commit

    def _asked(self, revision: str, record: Path) -> str:
        try:
            commit = str(self._api.dataset_info(self.repository, revision=revision).sha)
        except Exception as error:  # the client passes on errors of its transport
            if self._is_offline() and record.is_file():
                return record.read_text()
            raise self._failure(error, f"the commit of {revision}") from error
        if not _COMMIT.fullmatch(commit):
            raise InputError(
                f"the hub's commit {commit[:80]!r} is not one",
                path=self.address,
                remedy="check HF_ENDPOINT",
            )
        return commit

    def listing(self, commit: str) -> dict[str, list[Any]]:
        """Return size and digest of every file of a commit: the SHA-256 of a large file, else git's
        SHA-1.
        """
        record = self._home / f"{commit}.json"
        with suppress(CorruptShard):
            return read_object(record)
        text = self._once(f"hub/{self.repository}@{commit}/files", partial(self._listed, commit))
        local.write_over(record, text.encode())
        return dict(json.loads(text))

    def _listed(self, commit: str) -> str:
        try:
            entries = self._api.list_repo_tree(
                self.repository, revision=commit, recursive=True, repo_type="dataset"
            )
            files = []
            for entry in entries:
                if isinstance(entry, self._client.hf_api.RepoFile):
                    files.append(entry)
        except Exception as error:
            raise self._failure(error, f"the list of files of commit {commit}") from error
        listing = {}
        for entry in files:
            listing[entry.path] = [
                entry.size,
                entry.blob_id if entry.lfs is None else entry.lfs.sha256,
            ]
        return canonical_json(listing).decode()

    def fetch(self, name: str, commit: str, expected: Sequence[Any]) -> Path:
        """Return a file in the client's cache, complete and with the digest in the listing."""
        try:
            path = Path(
                self._api.hf_hub_download(
                    self.repository, name, revision=commit, repo_type="dataset"
                )
            )
        except Exception as error:
            raise self._failure(error, name) from error
        size, digest = expected
        git_start = b"blob %d\0" % path.stat().st_size
        if len(digest) == 64:
            begun = hashlib.sha256()
        else:
            begun = hashlib.sha1(git_start, usedforsecurity=False)
        with path.open("rb", buffering=0) as file:
            actual = hashlib.file_digest(file, lambda: begun).hexdigest()
        if path.stat().st_size != size or actual != digest:
            raise CorruptShard(
                f"is not the file of {self.repository} at {commit}, which has {size:,} bytes and"
                f" the digest {digest}",
                path=path,
                remedy=f"delete {path.resolve()} and run again to fetch it again",
            )
        return path

    def _failure(self, error: Exception, what: str) -> InputError:
        if isinstance(error, FileNotFoundError):
            cause = error.__cause__ or error
        else:
            cause = error
        why = printable(" ".join(str(cause).split()), 300)
        problem = f"the hub did not give {what} ({type(cause).__name__}: {why})"
        remedy = "check the name, the revision, HF_TOKEN for a private repository, and HF_ENDPOINT"
        if self._is_offline():
            problem += "; HF_HUB_OFFLINE is set and this is not in the cache"
            remedy = (
                "open the address once where the hub is within reach, or give the directory of a"
                " download"
            )
        return InputError(problem, path=self.address, remedy=remedy)

    def _is_offline(self) -> bool:
        return bool(self._client.constants.HF_HUB_OFFLINE)


def _make(view: Path, hub: _Hub, commit: str, path: str) -> None:
    """Fetch and check the files of a view, and write the view in one step."""
    listing = hub.listing(commit)
    if not listing:
        raise InputError(
            f"commit {commit} has no files", path=hub.address, remedy="give another revision"
        )
    root = ""
    if path:
        root = f"{path}/"
    top = {name[len(root) :].partition("/")[0] for name in listing if name.startswith(root)}
    info = None
    if is_saved(top):
        about = [name for name in listing if name.startswith(root) and name.endswith(".json")]
        paths = _fetch_all(hub, commit, about, listing)
        snapshot = paths[0].parents[about[0].count("/")]  # the directory that names are relative to
        saved = saved_files(snapshot / path, top) or {}
        splits = {}
        for split, files_of_split in saved.items():
            splits[split] = [f"{root}{name}" for name in files_of_split]
    else:
        readme = None
        if not path and "README.md" in listing:
            readme = hub.fetch("README.md", commit, listing["README.md"]).read_text(
                "utf-8", "replace"
            )
        splits = choose(hub.address, listing, path, readme)
        if readme is None:
            info = None
        else:
            info = dataset_info(hub.address, readme)
    names = sorted({name for files_of_split in splits.values() for name in files_of_split})
    missing = next((name for name in names if name not in listing), None)
    if missing is not None:
        raise InputError(
            f"{missing} is listed by the dataset and not in the repository",
            path=hub.address,
            remedy="upload it",
        )
    paths = _fetch_all(hub, commit, names, listing)
    files = dict(zip(names, paths, strict=True))
    address = _address_of(hub.repository, commit, path)
    linked = {}
    for split, files_of_split in splits.items():
        linked[split] = {name: files[name] for name in files_of_split}
    write_view(view, address, linked, {} if info is None else {"dataset_info": info})


def _fetch_all(
    hub: _Hub, commit: str, names: Sequence[str], listing: Mapping[str, Sequence[Any]]
) -> list[Path]:
    return run_tasks(
        [partial(hub.fetch, name, commit, listing[name]) for name in names], _DOWNLOADS
    )


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


def choose(
    address: str, names: Collection[str], path: str, readme: str | None
) -> dict[str, list[str]]:
    """Return the data files of each split, sorted; of a single split "" if nothing names splits.

    address: for messages; names: of all files of the repository; path: a file, directory or pattern
    in it, or ""; readme: the text of README.md. Raises `InputError` if no file matches, or the
    configuration is ambiguous.
    """
    data = sorted(filter(_is_data, names))
    if not path and readme is not None:
        configurations = _configurations(address, readme)
        if configurations:
            return _of_configuration(address, configurations, data)
    if path in names:
        return {"": [path]}
    root, chosen = _below(path, data)
    if not path:
        sharded = [match for match in map(_SHARDED.fullmatch, chosen) if match is not None]
        if sharded:
            return _grouped([match[0] for match in sharded], [match[1] for match in sharded])
    if not chosen:
        listed = ", ".join(sorted(names)[:5]) + (", …" if len(names) > 5 else "")
        what = "holds no .csv, .tsv, .jsonl, .json, .parquet or .arrow file"
        if path:
            what = f"holds no data file {path!r}"
        raise InputError(f"the commit {what}; it has {listed or 'no files'}", path=address)
    try:
        return _grouped(chosen, splits_of([name[len(root) :] for name in chosen]))
    except Mixed as mixed:
        raise InputError(
            f"{root}{mixed.belongs} belongs to a split by its name, and {root}{mixed.without}"
            " to none",
            path=address,
            remedy="add the path or pattern of the files that you want to the address",
        ) from None


def _below(path: str, data: Sequence[str]) -> tuple[str, list[str]]:
    """Return the directory that a directory or pattern names, with a slash, and its data files."""
    if not any(sign in path for sign in "*?["):
        root = f"{path}/" if path else ""
        return root, [name for name in data if name.startswith(root)]
    parts = path.split("/")
    chosen = []
    for name in data:
        if matches(name.split("/"), parts):
            chosen.append(name)
    fixed = next(depth for depth, part in enumerate(parts) if set(part) & set("*?["))
    return "".join(f"{part}/" for part in parts[:fixed]), chosen


def _is_data(name: str) -> bool:
    parts = name.split("/")
    if any(part.startswith((".", "__")) for part in parts) or parts[-1] in _ABOUT:
        return False
    return parts[-1][0] != "_" and name.lower().endswith(FORMATS.endings)


def _grouped(names: Sequence[str], splits: Sequence[str]) -> dict[str, list[str]]:
    if not splits:
        return {"": [*names]}
    files_of: dict[str, list[str]] = {}
    for name, split in zip(names, splits, strict=True):
        files_of.setdefault(split, []).append(name)
    return files_of


def dataset_info(address: str, readme: str) -> dict[str, Any] | None:
    """Return the `dataset_info` in README.md of the configuration that `choose` takes without a
    path.
    """
    declared = _head(address, readme).get("dataset_info")
    infos = {}
    for info in declared if isinstance(declared, list) else [declared]:
        if isinstance(info, dict):
            infos[str(info.get("config_name", "default"))] = info
    names = _chosen(_configurations(address, readme)) or [*infos]
    return infos.get(names[0] if len(names) == 1 else "default")


def _head(address: str, readme: str) -> dict[str, Any]:
    import yaml

    from headrace.settings import load_yaml  # streams of other sources do without these libraries

    head = _HEAD.match(readme.removeprefix("\ufeff"))
    try:
        about = None
        if head is not None:
            about = load_yaml(head[1])
    except yaml.YAMLError as error:
        raise InputError(
            f"the head of README.md is not YAML: {error}",
            path=address,
            remedy="add the path of the files",
        ) from error
    if isinstance(about, dict):
        return about
    return {}


def _configurations(address: str, readme: str) -> dict[str, Mapping[str, Any]]:
    """Return the configurations for which README.md names files."""
    listed = _head(address, readme).get("configs")
    if not isinstance(listed, list):
        return {}
    result: dict[str, Mapping[str, Any]] = {}
    for configuration in listed:
        if (
            isinstance(configuration, dict)
            and "config_name" in configuration
            and (configuration.get("data_files") or configuration.get("data_dir"))
        ):
            result[str(configuration["config_name"])] = configuration
    return result


def _chosen(configurations: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the names of the only configuration, or of those marked as default."""
    result = []
    for name, configuration in configurations.items():
        if len(configurations) == 1 or name == "default" or configuration.get("default"):
            result.append(name)
    return result


def _of_configuration(
    address: str, configurations: Mapping[str, Mapping[str, Any]], data: Sequence[str]
) -> dict[str, list[str]]:
    """Return the files of the only configuration, or of the default one."""
    chosen = _chosen(configurations)
    if len(chosen) != 1:
        first, configuration = next((name, entry) for name, entry in configurations.items())
        pattern = next(iter(_patterns(configuration).values()))[0]
        raise InputError(
            f"README.md defines the configurations {', '.join(configurations)}, and none is"
            " the default",
            path=address,
            remedy=f"add the path of one's files to the address, such as /{pattern} of {first}",
        )
    configuration = configurations[chosen[0]]
    files_of: dict[str, list[str]] = {}
    for split, patterns in _patterns(configuration).items():
        matching = {
            name
            for pattern in patterns
            for name in data
            if matches(name.split("/"), pattern.split("/"))
        }
        if not matching:
            raise InputError(
                f"README.md says that split {split or 'train'} of {chosen[0]} is"
                f" {', '.join(patterns)}, and no data file has such a name",
                path=address,
                remedy="add the path of the files to the address",
            )
        files_of[split] = sorted(matching)
    return files_of


def _patterns(configuration: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the patterns of each split: `data_files` is a pattern, a list of them, or a list of
    splits.
    """
    files = configuration.get("data_files")
    directory = str(configuration.get("data_dir") or "").strip("/")
    if not files:
        return {"": [f"{directory}/**/*"]}
    if isinstance(files, list):
        entries = files
    else:
        entries = [files]
    patterns_of: dict[str, list[str]] = {}
    for entry in entries:
        if isinstance(entry, dict):
            split, path = (str(entry.get("split", "")), entry.get("path"))
        else:
            split, path = ("", entry)
        below = [str(one) for one in (path if isinstance(path, list) else [path])]
        patterns_of.setdefault(split, []).extend(
            f"{directory}/{one}" if directory else one for one in below
        )
    return patterns_of
