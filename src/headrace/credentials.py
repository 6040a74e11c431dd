"""Places whose text holds a password or a signature are refused: paths are printed, logged and kept in manifests."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.errors import SettingsError

_CREDENTIALS = re.compile(
    r":/{1,2}[^/@\s]*:[^/@\s]*@"  # scheme://user:password@host
    r"|^(https?|s?ftps?|ssh):/{1,2}[^/@\s]+@"  # https://token@host; abfss://container@host names no user
    r"|[?#;&].*(sig|signature|token|credential|password|secret|key|sas)="
    r"|(accountkey|sharedaccesssignature|sharedaccesskey)=",
    re.IGNORECASE,
)


def refuse_credentials(value: object) -> None:
    """Raise `SettingsError` for a place whose text holds a password or a signature, without repeating it."""
    for each in value if isinstance(value, tuple | list) else (value,):
        if isinstance(each, str | Path) and _CREDENTIALS.search(str(each)):
            raise SettingsError(
                "a path holds credentials (a user's password, or a signature behind its '?'); give the path alone, and "
                "the credentials by the environment or the machine's role"
            )
