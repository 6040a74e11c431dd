"""An S3 server on the loopback that stalls: what it does is in the name of the object that is asked for.

One object of `SIZE` bytes has any number of names, PLACE/FAULT-TIMES: the first TIMES requests for it meet the fault.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

SIZE = 200_000
DATA = bytes(number % 251 for number in range(SIZE))
OTHER = bytes(number % 241 for number in range(SIZE))


@dataclass(frozen=True)
class Asked:
    """A request: its method, and the headers that matter here."""

    method: str
    range: str | None
    if_match: str | None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class StallingStore:
    """Use as a context manager. asked: the requests for each object; pages: how many pages were listed."""

    def __init__(self) -> None:
        self.asked: dict[str, list[Asked]] = {}
        self.pages: Counter[str] = Counter()
        self._over = threading.Event()
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *_: Any) -> None:
                pass

            def handle(self) -> None:
                with suppress(OSError):  # the client has gone
                    super().handle()

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_PUT(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                kind, is_bad = self._fault()
                if kind in ("lost", "kept"):
                    self._headers(200, '"v1"', 0)
                elif is_bad:
                    self._stall()

            def do_GET(self) -> None:
                asked = urlsplit(self.path)
                if "list-type" in parse_qs(asked.query):
                    self._list(parse_qs(asked.query).get("prefix", [""])[0])
                    return
                kind, is_bad = self._fault()
                if kind == "lost":
                    self.send_response(404)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                elif is_bad and kind == "silent":
                    self._stall()
                else:
                    self._give(kind, is_bad)

            def _give(self, kind: str, is_bad: bool) -> None:
                tag, data = '"v1"', DATA
                if kind.endswith("replaced") and not is_bad:
                    tag, data = '"v2"', OTHER
                if self.headers.get("If-Match") not in (None, tag) and not kind.startswith("deaf"):
                    self._headers(412, tag, 0)
                    return
                start, stop = 0, SIZE
                match = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or "")
                whole = match is None or (is_bad and kind == "whole")
                if match is not None and not whole:
                    if match[1]:
                        start = int(match[1])
                        stop = min(SIZE, int(match[2] or SIZE - 1) + 1)
                    else:
                        start = SIZE - int(match[2])
                if is_bad and kind == "elsewhere":
                    start, stop = start + 1, stop + 1
                self._headers(
                    200 if whole else 206, tag, stop - start, None if whole else (start, stop)
                )
                if self.command != "HEAD":
                    self._send(kind if is_bad else "", data[start:stop])

            def _send(self, kind: str, body: bytes) -> None:
                if kind == "headers":
                    self._stall()
                elif kind.startswith(("middle", "deaf")):
                    self.wfile.write(body[: len(body) // 2])
                    self._stall()
                elif kind == "short":
                    self.wfile.write(body[:-1])
                    self.close_connection = True
                elif kind == "trickle":
                    for at in range(0, len(body), 20):
                        self.wfile.write(body[at : at + 20])
                        if store._over.wait(0.02):
                            break
                elif kind == "slow":  # but not too slow
                    for at in range(0, len(body), 5000):
                        self.wfile.write(body[at : at + 5000])
                        if store._over.wait(0.1):
                            break
                else:
                    self.wfile.write(body)

            def _headers(
                self, status: int, tag: str, size: int, part: tuple[int, int] | None = None
            ) -> None:
                self.send_response(status)
                self.send_header("ETag", tag)
                self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
                if part is not None:
                    self.send_header("Content-Range", f"bytes {part[0]}-{part[1] - 1}/{SIZE}")
                self.send_header("Content-Length", str(size))
                self.end_headers()

            def _fault(self) -> tuple[str, bool]:
                name = urlsplit(self.path).path.partition("/bucket/")[2]
                headers = self.headers
                asked = store.asked.setdefault(name, [])
                asked.append(Asked(self.command, headers.get("Range"), headers.get("If-Match")))
                kind, _, times = name.partition("-")
                return kind, len(asked) <= int(times or 0)

            def _stall(self) -> None:
                store._over.wait(60)
                self.close_connection = True

            def _list(self, prefix: str) -> None:
                store.pages[prefix] += 1
                names = [] if "empty" in prefix else [f"{prefix}{number}" for number in range(3)]
                entries = "".join(
                    f"<Contents><Key>{name}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified>"
                    f'<ETag>"v1"</ETag><Size>3</Size></Contents>'
                    for name in names
                )
                body = (
                    '<?xml version="1.0"?><ListBucketResult><Name>bucket</Name>'
                    "<IsTruncated>true</IsTruncated><NextContinuationToken>same</NextContinuationToken>"
                    f"{entries}</ListBucketResult>"
                ).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )

    def __enter__(self) -> StallingStore:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
