"""One thing that was looked at, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. advice: what to do; empty where all is well."""

    name: str
    found: str
    verdict: Verdict = "ok"
    advice: str = ""
