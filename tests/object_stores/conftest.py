"""Object stores for tests: real servers in child processes on the loopback, started and stopped here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_proxy import FaultProxy
from store_servers import CANARY, S3Server, fresh_bucket

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


@pytest.fixture
def proxied(s3_environment: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, FaultProxy]]:
    """The address of an empty bucket behind a proxy, and the proxy, which does no harm until it is told to."""
    name = fresh_bucket(s3_environment)
    with FaultProxy(s3_environment.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        object_store.forget_buckets()
        yield f"s3://{name}", proxy
        object_store.forget_buckets()
