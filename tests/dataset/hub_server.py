"""A hub on this machine: datasets as commits of files, behind the API that the hub's client speaks."""

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

LARGE = (".parquet", ".arrow", ".gz")  # kept as LFS files, fetched through a redirect


@dataclass
class Repository:
    """Commits by their hash, and the commit of each branch. bodies: other bytes than the listing tells, by path."""

    commits: dict[str, dict[str, bytes]]
    branches: dict[str, str]
    private: bool = False
    bodies: dict[str, bytes] = field(default_factory=dict)


def git_digest(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    repositories: dict[str, Repository]
    asked: list[str]
    token = "hf_secretsecretsecret"
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_POST(self) -> None:
        self.answer(with_body=True)

    def answer(self, *, with_body: bool) -> None:
        given = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = unquote(urlsplit(self.path).path)
        self.asked.append(f"{self.command} {path}")
        status, headers, body = self.response(path, given)
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def response(self, path: str, given: bytes) -> tuple[int, dict[str, str], bytes]:
        parts = path.strip("/").split("/")
        if parts[0] == "lfs":
            return 200, {"ETag": f'"{parts[1]}"'}, self.body_of_large(parts[1])
        if parts[:2] == ["api", "datasets"]:
            name, verb = "/".join(parts[2:4]), "/".join(parts[4:5])
        else:
            name, verb = "/".join(parts[1:3]), "/".join(parts[3:4])
        repository = self.repositories.get(name)
        if repository is None or (
            repository.private and self.headers.get("Authorization") != f"Bearer {self.token}"
        ):
            return (
                401,
                {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"},
                b"",
            )
        at, rest = (
            ("main", "")
            if verb == ""
            else self.revision(repository, "/".join(parts[5 if parts[0] == "api" else 4 :]))
        )
        commit = repository.branches.get(at, at)
        files = repository.commits.get(commit)
        if files is None:
            return (
                404,
                {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"},
                b"",
            )
        if verb in ("", "revision"):
            told = {"id": name, "sha": commit, "siblings": [{"rfilename": each} for each in files], "private": repository.private, "tags": [], "downloads": 0, "likes": 0}  # fmt: skip
            return 200, {"Content-Type": "application/json"}, json.dumps(told).encode()
        if verb in ("tree", "paths-info"):
            wanted = sorted(files)
            if verb == "paths-info":
                wanted = [each for each in json.loads(given)["paths"] if each in files]
            below = f"{rest}/" if rest and verb == "tree" else ""
            tree = [self.entry(each, files[each]) for each in wanted if each.startswith(below)]
            if verb == "tree":
                above = {str(each) for name in files for each in PurePosixPath(name).parents} - {
                    "."
                }
                tree += [
                    {"type": "directory", "path": each, "oid": "0" * 40, "size": 0}
                    for each in sorted(above)
                    if each.startswith(below)
                ]
                if "recursive=true" not in self.path.lower():
                    tree = [each for each in tree if "/" not in str(each["path"])[len(below) :]]
            return 200, {"Content-Type": "application/json"}, json.dumps(tree).encode()
        if verb == "resolve" and rest in files:
            entry = self.entry(rest, files[rest])
            told_headers = {"X-Repo-Commit": commit}
            if "lfs" in entry:
                large = entry["lfs"]
                assert isinstance(large, dict)
                elsewhere = f"http://localhost:{self.headers['Host'].rpartition(':')[2]}"  # as large files are
                return 302, {**told_headers, "Location": f"{elsewhere}/lfs/{large['oid']}", "X-Linked-Etag": f'"{large["oid"]}"', "X-Linked-Size": str(large["size"])}, b""  # fmt: skip
            return (
                200,
                {**told_headers, "ETag": f'"{entry["oid"]}"'},
                repository.bodies.get(rest, files[rest]),
            )
        return 404, {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"}, b""

    def revision(self, repository: Repository, text: str) -> tuple[str, str]:
        known = sorted([*repository.branches, *repository.commits], key=len, reverse=True)
        found = next(
            (each for each in known if text == each or text.startswith(f"{each}/")),
            text.partition("/")[0],
        )
        return found, text[len(found) + 1 :]

    def entry(self, name: str, data: bytes) -> dict[str, object]:
        entry: dict[str, object] = {
            "type": "file",
            "path": name,
            "size": len(data),
            "oid": git_digest(data),
        }
        if name.endswith(LARGE):
            entry["lfs"] = {
                "oid": hashlib.sha256(data).hexdigest(),
                "size": len(data),
                "pointerSize": 128,
            }
        return entry

    def body_of_large(self, digest: str) -> bytes:
        for repository in self.repositories.values():
            for files in repository.commits.values():
                for name, data in files.items():
                    if hashlib.sha256(data).hexdigest() == digest:
                        return repository.bodies.get(name, data)
        raise AssertionError(digest)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True


@contextmanager
def serving(repositories: dict[str, Repository]) -> Iterator[tuple[str, list[str]]]:
    """Give the address of a hub with these repositories, and the list of what it is asked."""
    asked: list[str] = []
    server = _Server(
        ("127.0.0.1", 0), type("Served", (Handler,), {"repositories": repositories, "asked": asked})
    )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
