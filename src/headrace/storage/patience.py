"""How slowly an object store may send: two settings, read where its credentials are, in the
environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.errors import SettingsError

BYTES = "HEADRACE_STORE_STALL_BYTES"
SECONDS = "HEADRACE_STORE_STALL_SECONDS"
_MOST = {BYTES: 1 << 30, SECONDS: 3600}
_GIVE_UP = 5  # times `seconds` without progress, after which no request is sent again
_UPLOADED_PER_S = 128 << 10  # bytes; how far an upload has come cannot be seen


@dataclass(frozen=True)
class Patience:
    """The least that a request must bring: `bytes` in `seconds`. A request that brings less has
    stalled.
    """

    bytes: int = 16 << 10
    seconds: float = 30.0

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Patience:
        """Read the settings. Raises `SettingsError`, which names the variable."""
        return cls(
            bytes=int(_number(environment, BYTES, cls.bytes)),
            seconds=_number(environment, SECONDS, cls.seconds),
        )

    @property
    def without_progress_s(self) -> float:
        """Seconds after which a stalled transfer is an error."""
        return _GIVE_UP * self.seconds

    def upload_s(self, size: int) -> float:
        """Seconds that the upload of `size` bytes may take."""
        return self.seconds + size / _UPLOADED_PER_S


def _number(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name, "").strip()
    if not text:
        return default
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= _MOST[name] or (name == BYTES and number != int(number)):
        raise SettingsError(
            setting=name,
            value=text,
            remedy=f"give a number above 0 and up to {_MOST[name]:,} in the environment",
        )
    return number
