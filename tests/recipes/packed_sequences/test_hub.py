"""Tokenizers by name: the hub's cache, a hub of one's own on this machine, and what a run says of them."""

import gzip
import hashlib
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from chats import QWEN, chat, needs_data, rows_of, small_tokenizer
from recipe_cases import write_jsonl

import headrace
from headrace.errors import SettingsError
from headrace.packing.chats import hub
from headrace.packing.chats.settings import ChatSettings
from raised import raised

NAME = "mill/small-chat"
FIRST, SECOND = "1" * 40, "2" * 40
ROWS = [
    chat(f"how many apples has crate {number}?", f"crate {number} has {number * 7}")
    for number in range(60)
]


def cache_snapshot(
    cache: Path, files: Path, commit: str, name: str = NAME, ref: str = "main"
) -> Path:
    """Put files into the cache as the hub's client lays them out: blobs, a snapshot of links, a ref."""
    folder = cache / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / commit
    for each in (folder / "blobs", folder / "refs", snapshot):
        each.mkdir(parents=True, exist_ok=True)
    for file in files.iterdir():
        blob = folder / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
        shutil.copyfile(file, blob)
        (snapshot / file.name).symlink_to(os.path.relpath(blob, snapshot))
    (folder / "refs" / ref).write_text(commit)
    return snapshot


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of the hub, and no hub."""
    import huggingface_hub.constants as constants

    found = tmp_path / "home" / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(found))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return found


@pytest.fixture
def files(tmp_path):
    return small_tokenizer(tmp_path / "files")


def prepared(tmp_path, tokenizer, out="out", **settings):
    source = tmp_path / "chats.jsonl"
    if not source.exists():
        write_jsonl(source, ROWS)
    recipe = headrace.PackedSequences(blend=source, tokenizer=tokenizer, pack_size=1024, **settings)
    return headrace.prepare(recipe, tmp_path / out)


def test_a_name_is_the_commit_behind_main_in_the_cache(cache, files):
    snapshot = cache_snapshot(cache, files, FIRST)

    assert f"{NAME}@{FIRST}" == ChatSettings(tokenizer=NAME).tokenizer
    assert f"{NAME}@{FIRST}" == ChatSettings(tokenizer=f"{NAME}@{FIRST}").tokenizer
    assert snapshot == hub.directory_of(NAME)


def test_a_path_comes_before_a_name(cache, files, tmp_path, monkeypatch):
    cache_snapshot(cache, files, FIRST)
    small_tokenizer(tmp_path / NAME)
    monkeypatch.chdir(tmp_path)

    assert Path(NAME) == ChatSettings(tokenizer=NAME).tokenizer


@pytest.mark.parametrize(
    "text",
    [
        "qwen3",
        "/a/b",
        "./a/b",
        "a/b/c",
        "a/tokenizer.json",
        "a/tokenizer.json.gz",
        "../b",
        "a--b/c",
        "a/..b",
    ],
)
def test_what_is_no_name_stays_a_path(cache, text):
    assert Path(text) == ChatSettings(tokenizer=text).tokenizer


@pytest.mark.slow
def test_the_same_commit_is_the_same_run_wherever_the_cache_is(cache, files, tmp_path, monkeypatch):
    import huggingface_hub.constants as constants

    cache_snapshot(cache, files, FIRST)
    one = prepared(tmp_path, NAME, "one")
    elsewhere = tmp_path / "elsewhere"
    cache_snapshot(elsewhere, files, FIRST, ref="v1")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(elsewhere))
    other = prepared(tmp_path, f"{NAME}@v1", "other")

    assert one.manifest.run_id == other.manifest.run_id
    written = [(each.run / "manifest.json").read_bytes() for each in (one, other)]
    assert written[0] == written[1]
    assert str(tmp_path).encode() not in written[0]


@pytest.mark.slow
def test_a_branch_that_moved_is_another_run(cache, files, tmp_path):
    cache_snapshot(cache, files, FIRST)
    before = prepared(tmp_path, NAME)
    cache_snapshot(cache, files, SECOND)
    after, pinned = prepared(tmp_path, NAME), prepared(tmp_path, f"{NAME}@{FIRST}")

    assert before.manifest.run_id != after.manifest.run_id
    assert before.manifest.run_id == pinned.manifest.run_id


@pytest.mark.slow
def test_a_run_says_repository_commit_and_files(cache, files, tmp_path):
    cache_snapshot(cache, files, FIRST)
    by_name, by_path = prepared(tmp_path, NAME), prepared(tmp_path, files, "by-path")

    told = by_name.manifest.metadata["encoder"]
    digests = {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in files.iterdir()}
    assert {"repository": NAME, "commit": FIRST, "files": digests} == told["tokenizer"]
    assert f"{NAME}@{FIRST}" == json.loads((by_name.run / "config.json").read_bytes())["tokenizer"]
    # What is packed is the same as with the same files by path, whose identity knows nothing of the hub.
    assert told["fingerprint"] == by_path.manifest.metadata["encoder"]["fingerprint"]
    assert by_name.manifest.metadata["groups"] == by_path.manifest.metadata["groups"]
    assert "tokenizer" not in by_path.manifest.metadata["encoder"]
    assert by_name.manifest.run_id != by_path.manifest.run_id


def test_the_identity_of_a_path_is_what_it_always_was(cache, files):
    recipe = headrace.PackedSequences(blend="chats.jsonl", tokenizer=files)

    assert "tokenizer" not in recipe.identity_settings()


def check_of(out):
    (found,) = [each for each in headrace.verify(out).checks if each.name == "tokenizer"]
    return found


def test_verify_says_whether_the_cache_holds_the_tokenizer(cache, files, tmp_path):
    snapshot = cache_snapshot(cache, files, FIRST)
    prepared(tmp_path, NAME)
    assert "those that the run was made with" in check_of(tmp_path / "out").detail

    (snapshot / "tokenizer_config.json").resolve().write_text("{}")
    assert "is not the file that the run was made with" in check_of(tmp_path / "out").problem

    shutil.rmtree(cache)
    check = check_of(tmp_path / "out")
    assert check.problem is None
    assert "not compared, it is not in the hub's cache" in check.detail


def test_verify_of_a_run_by_a_path_that_is_gone_asks_no_hub(cache, files, tmp_path, monkeypatch):
    shutil.move(files, tmp_path / "mill" / "small-chat")
    monkeypatch.chdir(tmp_path)
    prepared(tmp_path, NAME)
    shutil.rmtree(tmp_path / "mill")

    assert "tokenizer" not in [each.name for each in headrace.verify(tmp_path / "out").checks]


def test_a_name_that_nobody_knows_says_where_it_was_looked_for(cache):
    download = f"hf download {NAME} --revision v2 --exclude '*.safetensors'"
    with raised(SettingsError, setting="tokenizer", value=f"{NAME}@v2", remedy=download) as caught:
        ChatSettings(tokenizer=f"{NAME}@v2")

    assert f"not in the cache {cache}" in str(caught.value)
    assert "HF_HUB_OFFLINE" in str(caught.value)


def test_a_slow_tokenizer_is_refused_by_name(cache, tmp_path):
    (tmp_path / "slow").mkdir()
    for name in ("tokenizer_config.json", "tokenizer.model", "tokenization_mill.py"):
        (tmp_path / "slow" / name).write_text("{}")
    cache_snapshot(cache, tmp_path / "slow", FIRST)

    with raised(SettingsError, setting="tokenizer", value=NAME, remedy="save_pretrained"):
        ChatSettings(tokenizer=NAME)


def test_code_that_a_repository_brings_is_not_run(cache, tmp_path):
    files = small_tokenizer(
        tmp_path / "files", auto_map={"AutoTokenizer": ["tokenization_mill.Mill", None]}
    )
    (files / "tokenization_mill.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit('ran')\n"
    )
    cache_snapshot(cache, files, FIRST)

    assert prepared(tmp_path, NAME).manifest.splits["train"].rows > 0
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
@needs_data
def test_a_real_tokenizer_by_its_name_gives_the_run_of_its_files(cache, tmp_path):
    (tmp_path / "files").mkdir()
    packed = (QWEN / "tokenizer.json.gz").read_bytes()
    (tmp_path / "files" / "tokenizer.json").write_bytes(gzip.decompress(packed))
    shutil.copy(QWEN / "tokenizer_config.json", tmp_path / "files")
    cache_snapshot(cache, tmp_path / "files", FIRST, name="Qwen/Qwen3-8B")
    write_jsonl(tmp_path / "chats.jsonl", rows_of("test.jsonl.gz", 40))

    by_name, by_path = prepared(tmp_path, "Qwen/Qwen3-8B"), prepared(tmp_path, QWEN, "by-path")

    assert by_name.manifest.metadata["groups"] == by_path.manifest.metadata["groups"]


class Hub(http.server.BaseHTTPRequestHandler):
    """What the hub's client asks for, of one repository: its commit, the files there are, and each file."""

    files: Path
    commit = FIRST
    asked: list[str]

    def do_GET(self):
        self.answer(with_body=True)

    def do_HEAD(self):
        self.answer(with_body=False)

    def answer(self, *, with_body):
        path = unquote(urlsplit(self.path).path)
        self.asked.append(path)
        files = {each.name: each.read_bytes() for each in sorted(self.files.iterdir())}
        headers = {"X-Repo-Commit": self.commit}
        resolved = re.fullmatch(rf"/{NAME}/resolve/(?:main|{self.commit})/([^/]+)", path)
        if re.fullmatch(rf"/api/models/{NAME}(/revision/(main|{self.commit}))?", path):
            told = {
                "id": NAME,
                "sha": self.commit,
                "siblings": [{"rfilename": each} for each in files],
            }
            status, body, headers = (
                200,
                json.dumps(told).encode(),
                {**headers, "Content-Type": "application/json"},
            )
        elif re.fullmatch(rf"/api/models/{NAME}/tree/{self.commit}", path):
            tree = [
                {
                    "type": "file",
                    "path": each,
                    "size": len(data),
                    "oid": hashlib.sha1(data).hexdigest(),
                }
                for each, data in files.items()
            ]
            status, body, headers = (
                200,
                json.dumps(tree).encode(),
                {**headers, "Content-Type": "application/json"},
            )
        elif resolved and resolved[1] in files:
            body = files[resolved[1]]
            status, headers = 200, {**headers, "ETag": f'"{hashlib.sha1(body).hexdigest()}"'}
        else:
            what = "RevisionNotFound" if f"/{NAME}/" in path else "RepoNotFound"
            status, body, headers = 404, b"", {"X-Error-Code": what, "X-Error-Message": "not here"}
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def served(files):
    """A hub on this machine that has one repository: its address, and what it was asked for."""
    (files / "model.safetensors").write_bytes(b"weights that nobody asked for")
    handler = type("Served", (Hub,), {"files": files, "asked": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", handler
    server.shutdown()
    thread.join()
    server.server_close()


def command(*words, cwd, endpoint="http://127.0.0.1:9", offline=False, home="home"):
    """The command line, with a home and a hub of its own."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HF_", "TRANSFORMERS_"))
    }
    env = {**kept, "HF_HOME": str(cwd / home), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": str(int(offline))}  # fmt: skip
    line = [sys.executable, "-c", "from headrace.cli import command; command()", *map(str, words)]
    return subprocess.run(line, cwd=cwd, capture_output=True, text=True, check=False, env=env)


def pack(name, *, cwd, out="out", **more):
    words = (
        "pack",
        "chats.jsonl",
        "--out",
        out,
        "--tokenizer",
        name,
        "--pack-size",
        1024,
        "--json",
    )
    return command(*words, cwd=cwd, **more)


@pytest.mark.slow
def test_the_command_fetches_what_is_not_in_the_cache_once_and_only_a_tokenizer(served, tmp_path):
    endpoint, handler = served
    write_jsonl(tmp_path / "chats.jsonl", ROWS)

    fetched = pack(NAME, cwd=tmp_path, endpoint=endpoint)
    assert 0 == fetched.returncode, fetched.stderr
    assert "" == fetched.stderr
    assert any(path.endswith("/tokenizer.json") for path in handler.asked)
    assert not any("safetensors" in path for path in handler.asked)
    handler.asked.clear()
    again = pack(NAME, cwd=tmp_path, out="again", endpoint=endpoint)
    offline = pack(f"{NAME}@{FIRST}", cwd=tmp_path, out="offline", offline=True)

    assert handler.asked == []
    first, second, third = (json.loads(each.stdout) for each in (fetched, again, offline))
    assert first["run_id"] == second["run_id"] == third["run_id"]
    checked = command("verify", "out", "--json", cwd=tmp_path, offline=True)
    assert f"{NAME}@{FIRST}: the files in the hub's cache are those" in checked.stdout


@pytest.mark.slow
def test_a_snapshot_with_a_part_of_the_files_is_completed(served, tmp_path):
    endpoint, handler = served
    write_jsonl(tmp_path / "chats.jsonl", ROWS)
    (tmp_path / "part").mkdir()
    shutil.copy(handler.files / "tokenizer.json", tmp_path / "part")
    snapshot = cache_snapshot(tmp_path / "home" / "hub", tmp_path / "part", FIRST)
    done = pack(NAME, cwd=tmp_path, endpoint=endpoint)

    assert 0 == done.returncode, done.stderr
    assert {"tokenizer.json", "tokenizer_config.json"} == {each.name for each in snapshot.iterdir()}


@pytest.mark.slow
def test_a_cached_branch_stays_until_it_is_fetched_again(served, tmp_path):
    endpoint, handler = served
    write_jsonl(tmp_path / "chats.jsonl", ROWS)
    before = pack(NAME, cwd=tmp_path, endpoint=endpoint)
    handler.commit = SECOND
    here = pack(NAME, cwd=tmp_path, endpoint=endpoint)
    fresh = pack(NAME, cwd=tmp_path, endpoint=endpoint, home="another")

    first, second, third = (json.loads(each.stdout)["run_id"] for each in (before, here, fresh))
    assert first == second != third


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mill/unknown", "RepositoryNotFoundError"),
        (f"{NAME}@v9", "RevisionNotFoundError"),
    ],
)
def test_what_the_hub_does_not_have_is_said_on_the_command_line(served, tmp_path, name, words):
    write_jsonl(tmp_path / "chats.jsonl", ROWS)
    done = pack(name, cwd=tmp_path, endpoint=served[0])

    assert 2 == done.returncode
    assert f"--tokenizer is '{name}': " in done.stderr
    assert f"not in the cache {tmp_path}/home/hub" in done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_without_network_or_cache_the_command_says_what_to_do(tmp_path):
    write_jsonl(tmp_path / "chats.jsonl", ROWS)
    for done in (pack(NAME, cwd=tmp_path), pack(NAME, cwd=tmp_path, offline=True)):
        assert 2 == done.returncode
        assert f"hf download {NAME} --revision main" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_init_writes_the_commit_and_peek_takes_a_name(files, tmp_path):
    write_jsonl(tmp_path / "chats.jsonl", ROWS)
    cache_snapshot(tmp_path / "home" / "hub", files, FIRST)

    written = (
        "init",
        "pack",
        "chats.jsonl",
        "--tokenizer",
        NAME,
        "--out",
        "out",
        "--config",
        "pack.yaml",
    )
    made = command(*written, cwd=tmp_path, offline=True)
    shown = command(
        "peek",
        "chats.jsonl",
        "--mask",
        "--tokenizer",
        NAME,
        "--rows",
        1,
        cwd=tmp_path,
        offline=True,
    )

    assert 0 == made.returncode, made.stderr
    assert f"tokenizer: {NAME}@{FIRST}\n" in (tmp_path / "pack.yaml").read_text()
    assert "tokens in the loss" in shown.stdout
