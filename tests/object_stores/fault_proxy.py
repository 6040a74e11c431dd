"""A proxy on the loopback that stands before a server and does what networks and stores do; it counts requests.

A fault is decided per request by its number, so a test is the same in every run: `Faults.rate` of them, spread by a
keyed hash. What is decided:

slow_down: 503 SlowDown, the server hears nothing. cut: the answer's body breaks off in the middle. short: the body is
shorter than its length says, then the connection ends. lost_reply: the server does it, the client hears nothing.
slow_start: the answer begins `delay_s` late. refuse, deny: 400 and 403, with an answer that repeats the request's headers.
"""

from __future__ import annotations

import hashlib
import http.client
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, unquote


@dataclass
class Faults:
    """What goes wrong. kind: None for nothing; methods, only: of which requests (by a part of their path); rate: of how
    many of those.
    """

    kind: str | None = None
    rate: float = 0.0
    methods: tuple[str, ...] = ("GET", "PUT", "HEAD", "POST")
    seed: int = 0
    only: str = ""
    delay_s: float = 0.2


@dataclass
class Seen:
    """What passed: requests by method, faults by kind, bytes that clients got, path and range of every request, and how
    many were under way at once.
    """

    requests: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    body_bytes: int = 0
    paths: list[tuple[str, str]] = field(default_factory=list)
    ranges: list[tuple[str, str]] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # a client that finds no room tries again after seconds


class FaultProxy:
    """Use as a context manager. port: where it listens.

    words: names of headers that the server knows by another name: client's name, value → server's name, value; a value
    of None stands for any.
    """

    def __init__(
        self, target_port: int, words: Mapping[str, tuple[str, str | None]] | None = None
    ) -> None:
        renamed = words or {}
        self.faults = Faults()
        self.seen = Seen()
        self._lock = threading.Lock()
        self._number = 0
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = (
                True  # a kernel holds back the second part of an answer for 40 ms
            )
            wbufsize = -1

            def log_message(self, *_: Any) -> None:
                pass

            def handle(self) -> None:
                with suppress(ConnectionError, TimeoutError):  # the client has gone
                    super().handle()

            def _pass(self) -> None:
                fault = proxy._decide(self.command, self.path, self.headers.get("Range") or "")
                self._open: Seen | None = proxy.seen
                try:
                    self._do(fault, proxy.faults.delay_s)
                finally:
                    self._over()

            def _over(self) -> None:
                """Count this request as over, before its client has the last byte and may ask again."""
                if self._open is not None:
                    with proxy._lock:
                        self._open.at_once -= 1
                    self._open = None

            def _do(self, fault: str | None, delay_s: float) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                data = self.rfile.read(size) if size else b""
                if fault == "slow_down":
                    self._answer(
                        503,
                        {"Content-Type": "application/xml"},
                        b"<Error><Code>SlowDown</Code></Error>",
                    )
                    return
                if fault in ("refuse", "deny"):
                    told = f"<Error><Code>Refused</Code><Message>{self.headers}</Message></Error>".encode()
                    self._answer(
                        400 if fault == "refuse" else 403, {"Content-Type": "application/xml"}, told
                    )
                    return
                connection = http.client.HTTPConnection("127.0.0.1", target_port, timeout=200)
                try:
                    headers = {
                        name: value
                        for name, value in self.headers.items()
                        if name.lower() not in ("connection", "expect")
                    }
                    for name in [each for each in headers if each.lower() in renamed]:
                        other, value = renamed[name.lower()]
                        found = headers.pop(name)
                        headers[other] = value or found
                    if "authorization" in renamed:  # some requests come without
                        headers.setdefault(*renamed["authorization"])
                    path, mark, query = self.path.partition("?")
                    if renamed:  # it writes every sign of a name as %XX
                        path = quote(unquote(path))
                    connection.request(
                        self.command, path + mark + query, body=data or None, headers=headers
                    )
                    answer = connection.getresponse()
                    body = answer.read()
                    kept = {
                        name: value
                        for name, value in answer.getheaders()
                        if name.lower() not in ("transfer-encoding", "connection", "content-length")
                    }
                    length = (
                        answer.getheader("Content-Length")
                        if self.command == "HEAD"
                        else str(len(body))
                    )
                finally:
                    connection.close()
                if fault == "slow_start":
                    time.sleep(delay_s)
                if fault == "lost_reply":
                    self._end()
                    return
                if fault in ("cut", "short") and len(body) > 1:
                    part = body[: len(body) // 2] if fault == "cut" else body[:-1]
                    self._answer(answer.status, kept, part, length=str(len(body)))
                    self._end()
                    return
                with proxy._lock:
                    proxy.seen.body_bytes += len(body)
                self._answer(answer.status, kept, body, length=length)

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _pass  # noqa: N815 - the names http.server asks for

            def _answer(
                self, status: int, headers: dict[str, str], body: bytes, length: str | None = None
            ) -> None:
                self.send_response_only(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", length if length is not None else str(len(body)))
                self.end_headers()
                body = body if self.command != "HEAD" else b""
                self.wfile.write(body[:-1])
                if len(body) > 1:
                    self.wfile.flush()
                self._over()
                self.wfile.write(body[-1:])
                self.wfile.flush()

            def _end(self) -> None:
                self.close_connection = True

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def begin(self, faults: Faults) -> None:
        """Count anew, with these faults."""
        with self._lock:
            self.faults, self.seen, self._number = faults, Seen(), 0

    @property
    def total(self) -> int:
        """Requests since `begin`."""
        return sum(self.seen.requests.values())

    def _decide(self, method: str, path: str, asked: str) -> str | None:
        with self._lock:
            self.seen.requests[method] += 1
            self.seen.paths.append((method, path))
            self.seen.ranges.append((path, asked))
            self.seen.at_once += 1
            self.seen.most_at_once = max(self.seen.most_at_once, self.seen.at_once)
            faults = self.faults
            if faults.kind is None or method not in faults.methods or faults.only not in path:
                return None
            self._number += 1
            drawn = hashlib.blake2b(
                f"{faults.seed}/{self._number}".encode(), digest_size=8
            ).digest()
            if int.from_bytes(drawn, "big") / 2**64 >= faults.rate:
                return None
            self.seen.faults[faults.kind] += 1
            return faults.kind
