"""Refuse paths that hold a password or a signature, because paths are printed, logged and kept in
manifests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath

from headrace.errors import SettingsError

# https://token@host; abfss://container@host names no user
_CREDENTIALS = re.compile(
    r":/{1,2}[^/@\s]*:[^/@\s]*@"  # scheme://user:password@host
    r"|^(https?|s?ftps?|ssh):/{1,2}[^/@\s]+@"
    r"|[?#;&].*(sig|signature|token|credential|password|secret|key|sas)="
    r"|(accountkey|sharedaccesssignature|sharedaccesskey)=",
    re.IGNORECASE,
)


def refuse_credentials(value: object) -> None:
    """Raise `SettingsError` for a place whose text holds a password or a signature, without
    repeating it.
    """
    for path in value if isinstance(value, tuple | list) else (value,):
        if isinstance(path, str | PurePath) and _CREDENTIALS.search(str(path)):
            raise SettingsError(
                "a path holds credentials (a user's password, or a signature behind its '?')",
                remedy=(
                    "give the path alone, and the credentials by the environment or the machine's"
                    " role"
                ),
            )


_USER = re.compile(r"(:/{1,2})[^/@\s'\"]*@")
_QUERY = re.compile(
    r"\?[^\s'\"]*(?:sig|signature|token|credential|password|secret|key)=[^\s'\"]*", re.IGNORECASE
)
_SECRET_NAME = re.compile(
    r"SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIAL|_KEY$|ACCESS_KEY", re.IGNORECASE
)
_SHORTEST = 8  # characters; a shorter value is found in ordinary text


def without_secrets(text: str, environ: Mapping[str, str]) -> str:
    """Replace users, passwords and signatures in addresses, and secrets of the environment, with
    "…".
    """
    for name, value in environ.items():
        if len(value) >= _SHORTEST and _SECRET_NAME.search(name):
            text = text.replace(value, "…")
    return _QUERY.sub("?…", _USER.sub(r"\1…@", text))
