"""What tests know of the servers that they start."""

from __future__ import annotations

import secrets
import urllib.request
from dataclasses import dataclass

CANARY = "CANARY7f3d"


@dataclass(frozen=True)
class S3Server:
    """An S3 server on the loopback."""

    port: int

    def environment(self, port: int | None = None) -> dict[str, str]:
        """How its users find it, at its own port or at that of a proxy."""
        return {
            "AWS_ACCESS_KEY_ID": f"KEY{CANARY}",
            "AWS_SECRET_ACCESS_KEY": f"SECRET{CANARY}",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or self.port}",
            "AWS_ALLOW_HTTP": "true",
        }

    def request(self, method: str, path: str, data: bytes = b"") -> bytes:
        """A request of our own, beside the library under test."""
        headers = {"Authorization": "AWS4-HMAC-SHA256 Credential=test/20200101/us-east-1/s3/aws4_request"}
        asked = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data or None, headers, method=method)
        with urllib.request.urlopen(asked, timeout=60) as answer:
            found: bytes = answer.read()
            return found


def fresh_bucket(server: S3Server) -> str:
    """The name of a new, empty bucket."""
    name = f"bucket-{secrets.token_hex(6)}"
    server.request("PUT", f"/{name}")
    return name
