"""What a store answered, in words: status and code alone, as bodies may repeat parts of a request. Pure."""

from __future__ import annotations

import re

_STATUS = re.compile(r"status code: (\d{3}[A-Za-z ]*)")
_CODE = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")


def is_answer(error: Exception) -> bool:
    """Whether the store said this itself, and no connection broke."""
    return _STATUS.search(str(error)) is not None


def told(error: Exception) -> str:
    """What a store answered, without what it may have repeated of the request."""
    text = str(error)
    parts = [each[1].strip() for each in (_STATUS.search(text), _CODE.search(text)) if each is not None]
    return ", ".join(parts) or type(error).__name__


def advice(error: Exception) -> str | None:
    """What to do about an answer that will be the same the next time; None: it may be asked for again."""
    name = type(error).__name__
    if name in ("PermissionDeniedError", "UnauthenticatedError") or told(error)[:3] in ("401", "403"):
        return "access is refused: check the credentials in the environment and what they may do"
    if name in ("NotImplementedError", "NotSupportedError", "InvalidPathError", "UnknownConfigurationKeyError"):
        return "the store cannot do this; see the guide to object stores"
    return None
