"""Object stores for tests: real servers in child processes on the loopback, started and stopped here.

The fixtures are a plugin of all tests, as tests of storage, of reading and of runs use them.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_proxy import FaultProxy
from store_servers import CANARY, GOOGLE_WORDS, AzureServer, S3Server, fresh_bucket

from headrace.storage import bucket as buckets

_INSTALLED = Path(__file__).parents[2] / "build/azurite/node_modules/.bin"
_PATIENCE_S = 200  # a machine may be slow to read the many files of a server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """An S3 server (moto's) in a child process."""
    pytest.importorskip("obstore", reason="needs the extra s3")
    pytest.importorskip("moto", reason="needs moto[server]")
    child = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("s3_child.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        port = next(line for line in child.stdout if line.strip().isdigit())
        yield S3Server(int(port))
    finally:
        child.terminate()  # a forked process of a failed test may hold the other end of its standard input
        child.wait(_PATIENCE_S)
        child.stdin.close()
        child.stdout.close()


@pytest.fixture
def s3_environment(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[S3Server]:
    """The environment of a user of that server; credentials are canaries."""
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    buckets.forget_buckets()
    yield s3_server
    buckets.forget_buckets()


@pytest.fixture
def s3(s3_environment: S3Server) -> str:
    """The address of an empty bucket."""
    assert CANARY in s3_environment.environment()["AWS_SECRET_ACCESS_KEY"]
    return f"s3://{fresh_bucket(s3_environment)}"


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    """Azurite in a child process; skips where it is not installed."""
    pytest.importorskip("obstore", reason="needs the extra s3")
    program = shutil.which(
        "azurite-blob", path=os.pathsep.join([str(_INSTALLED), os.environ.get("PATH", "")])
    )
    if program is None:
        pytest.skip("no azurite-blob; `make test` installs it where there is npm")
    place = tmp_path_factory.mktemp("azurite")
    flags = [
        "--inMemoryPersistence",
        "--skipApiVersionCheck",
        "--disableTelemetry",
        "--blobHost",
        "127.0.0.1",
    ]
    with (place / "told").open("wb") as told:
        child = subprocess.Popen(
            [program, *flags, "--blobPort", "0"], cwd=place, stdout=told, stderr=told
        )
        try:
            yield AzureServer(_port_told(place / "told", child))
        finally:
            child.terminate()
            child.wait(_PATIENCE_S)


def _port_told(place: Path, child: subprocess.Popen[bytes]) -> int:
    """The port that the server chose itself: one that was free a moment ago may be taken by anybody."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        told = place.read_text()
        listens = re.search(r"successfully listens on http://127\.0\.0\.1:(\d+)", told)
        if listens is not None:
            return int(listens[1])
        assert child.poll() is None, f"the server ended: {told}"
        assert time.monotonic() < until, f"the server does not begin: {told}"
        time.sleep(0.05)


@pytest.fixture
def az(azurite: AzureServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The address of an empty container."""
    for name, value in azurite.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    name = f"container-{secrets.token_hex(6)}"
    azurite.make_container(name)
    buckets.forget_buckets()
    yield f"az://{name}"
    buckets.forget_buckets()


@pytest.fixture
def gs(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The address of an empty bucket as Google's XML interface gives it.

    There is no emulator of that interface to install with pip; it is S3's but for the names of headers, which the proxy
    translates.
    """
    with FaultProxy(s3_server.port, GOOGLE_WORDS) as proxy:
        _speak_google(proxy, monkeypatch, tmp_path)
        yield f"gs://{fresh_bucket(s3_server)}"
        buckets.forget_buckets()


def _speak_google(proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    account = {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    told = {"gcs_base_url": f"http://127.0.0.1:{proxy.port}", **account}
    (home / "account.json").write_text(json.dumps(told))
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(home / "account.json"))
    monkeypatch.setenv("HOME", str(home / "home"))
    buckets.forget_buckets()


@pytest.fixture
def proxied(
    s3_environment: S3Server, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, FaultProxy]]:
    """The address of an empty bucket behind a proxy, and the proxy, which does no harm until it is told to."""
    name = fresh_bucket(s3_environment)
    with FaultProxy(s3_environment.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        buckets.forget_buckets()
        yield f"s3://{name}", proxy
        buckets.forget_buckets()


@pytest.fixture
def proxied_gs(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[tuple[str, FaultProxy]]:
    """The same of Google's interface; the proxy that translates does the harm."""
    with FaultProxy(s3_server.port, GOOGLE_WORDS) as proxy:
        _speak_google(proxy, monkeypatch, tmp_path)
        yield f"gs://{fresh_bucket(s3_server)}", proxy
        buckets.forget_buckets()


@pytest.fixture
def proxied_az(
    az: str, azurite: AzureServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, FaultProxy]]:
    """The same of Azurite."""
    with FaultProxy(azurite.port) as proxy:
        for name, value in azurite.environment(proxy.port).items():
            monkeypatch.setenv(name, value)
        buckets.forget_buckets()
        yield az, proxy
        buckets.forget_buckets()


@pytest.fixture(params=["proxied", "proxied_gs", "proxied_az"], ids=["s3", "gs", "az"])
def every_proxied(request: pytest.FixtureRequest) -> tuple[str, FaultProxy]:
    """Each kind of store behind a proxy."""
    found: tuple[str, FaultProxy] = request.getfixturevalue(request.param)
    return found
