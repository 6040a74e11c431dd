"""Object stores for tests: real servers in child processes on the loopback, started and stopped here."""

from __future__ import annotations

import json
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_proxy import FaultProxy
from store_servers import CANARY, GOOGLE_WORDS, AzureServer, S3Server, fresh_bucket

from headrace.storage import object_store

pytest.importorskip("obstore", reason="needs the extra s3")
pytest.importorskip("moto", reason="needs moto[server]")


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """An S3 server (moto's) in a child process."""
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
        child.stdin.close()
        child.wait(30)
        child.stdout.close()


@pytest.fixture
def s3_environment(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[S3Server]:
    """The environment of a user of that server; credentials are canaries."""
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    object_store.forget_buckets()
    yield s3_server
    object_store.forget_buckets()


@pytest.fixture
def s3(s3_environment: S3Server) -> str:
    """The address of an empty bucket."""
    assert CANARY in s3_environment.environment()["AWS_SECRET_ACCESS_KEY"]
    return f"s3://{fresh_bucket(s3_environment)}"


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    """Azurite in a child process; skips where it is not installed."""
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("no azurite-blob on the PATH; install it with: npm install -g azurite")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = [
        "--silent",
        "--inMemoryPersistence",
        "--skipApiVersionCheck",
        "--disableTelemetry",
        "--blobHost",
        "127.0.0.1",
    ]
    child = subprocess.Popen(
        [program, *flags, "--blobPort", str(port)],
        cwd=tmp_path_factory.mktemp("azurite"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(port, child)
        yield AzureServer(port)
    finally:
        child.terminate()
        child.wait(30)


def _wait_for(port: int, child: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert child.poll() is None, "the server ended"
            assert time.monotonic() < until, "the server does not answer"
            time.sleep(0.05)


@pytest.fixture
def az(azurite: AzureServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The address of an empty container."""
    for name, value in azurite.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    name = f"container-{secrets.token_hex(6)}"
    azurite.make_container(name)
    object_store.forget_buckets()
    yield f"az://{name}"
    object_store.forget_buckets()


@pytest.fixture
def gs(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The address of an empty bucket as Google's XML interface gives it.

    There is no emulator of that interface to install with pip; it is S3's but for the names of headers, which the proxy
    translates.
    """
    name = fresh_bucket(s3_server)
    with FaultProxy(s3_server.port, GOOGLE_WORDS) as proxy:
        account = tmp_path / "account.json"
        account.write_text(
            json.dumps(
                {
                    "gcs_base_url": f"http://127.0.0.1:{proxy.port}",
                    "disable_oauth": True,
                    "client_email": "",
                    "private_key": "",
                    "private_key_id": "",
                }
            )
        )
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(account))
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        object_store.forget_buckets()
        yield f"gs://{name}"
        object_store.forget_buckets()


@pytest.fixture
def proxied(s3_environment: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, FaultProxy]]:
    """The address of an empty bucket behind a proxy, and the proxy, which does no harm until it is told to."""
    name = fresh_bucket(s3_environment)
    with FaultProxy(s3_environment.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        object_store.forget_buckets()
        yield f"s3://{name}", proxy
        object_store.forget_buckets()
