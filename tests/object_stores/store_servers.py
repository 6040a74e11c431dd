"""What tests know of the servers that they start."""

from __future__ import annotations

import hmac
import secrets
import urllib.request
from base64 import b64decode, b64encode
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256

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
        headers = {
            "Authorization": "AWS4-HMAC-SHA256 Credential=test/20200101/us-east-1/s3/aws4_request"
        }
        asked = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data or None, headers, method=method
        )
        with urllib.request.urlopen(asked, timeout=200) as answer:
            found: bytes = answer.read()
            return found


@dataclass(frozen=True)
class AzureServer:
    """Azurite on the loopback. Its account and key are the ones that every emulator has."""

    port: int

    def environment(self, port: int | None = None) -> dict[str, str]:
        """How its users find it, at its own port or at that of a proxy."""
        return {
            "AZURE_STORAGE_USE_EMULATOR": "true",
            "AZURITE_BLOB_STORAGE_URL": f"http://127.0.0.1:{port or self.port}",
        }

    def make_container(self, name: str) -> None:
        """A new container; the request is signed with the shared key."""
        date = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        headers = f"x-ms-date:{date}\nx-ms-version:{_AZURE_VERSION}"
        told = "PUT" + "\n" * 12 + f"{headers}\n/{_ACCOUNT}/{_ACCOUNT}/{name}\nrestype:container"
        signed = b64encode(
            hmac.new(b64decode(_ACCOUNT_KEY), told.encode(), sha256).digest()
        ).decode()
        asked = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/{_ACCOUNT}/{name}?restype=container",
            headers={
                "x-ms-date": date,
                "x-ms-version": _AZURE_VERSION,
                "Authorization": f"SharedKey {_ACCOUNT}:{signed}",
                "Content-Length": "0",
            },
            method="PUT",
        )
        urllib.request.urlopen(asked, timeout=200).close()


_ACCOUNT, _AZURE_VERSION = "devstoreaccount1", "2021-08-06"
_ACCOUNT_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

GOOGLE_WORDS: dict[str, tuple[str, str | None]] = {
    "x-goog-if-generation-match": ("If-None-Match", "*"),
    "authorization": (
        "Authorization",
        "AWS4-HMAC-SHA256 Credential=test/20200101/us-east-1/s3/aws4_request",
    ),
    "x-goog-copy-source": ("x-amz-copy-source", None),
}


def fresh_bucket(server: S3Server) -> str:
    """The name of a new, empty bucket."""
    name = f"bucket-{secrets.token_hex(6)}"
    server.request("PUT", f"/{name}")
    return name
