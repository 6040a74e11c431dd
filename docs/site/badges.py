"""Draw docs/pictures/badges.svg from what pyproject.toml says: licence, Python versions, strict types.

python docs/site/badges.py
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs/pictures/badges.svg"
PER_LETTER, PADDING, GAP, HEIGHT = (
    6.6,
    12,
    8,
    20,
)  # of 11 px DejaVu Sans; textLength makes other fonts as wide


def badges(settings: dict[str, Any]) -> list[tuple[str, str]]:
    """List label and value of each badge."""
    versions = [
        each.rpartition(" ")[2] for each in settings["project"]["classifiers"] if ":: 3." in each
    ]
    strict = settings["tool"]["mypy"]["strict"]
    return [
        ("licence", settings["project"]["license"]),
        ("python", f"{versions[0]} – {versions[-1]}"),
        ("types", "mypy --strict" if strict else "mypy"),
    ]


def drawn(found: list[tuple[str, str]]) -> str:
    """Draw the badges in a row, dark text boxes that read on light and dark pages."""
    parts, left = [], 0.0
    for label, value in found:
        for text, colour in ((label, "#555"), (value, "#00796b")):
            inner = len(text) * PER_LETTER
            parts.append(
                f'<rect x="{left:.1f}" width="{inner + PADDING:.1f}" height="{HEIGHT}" fill="{colour}"/>'
                f'<text x="{left + PADDING / 2:.1f}" y="14" textLength="{inner:.1f}">{text}</text>'
            )
            left += inner + PADDING
        left += GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{left - GAP:.0f}" height="{HEIGHT}" role="img"'
    title = "; ".join(f"{label}: {value}" for label, value in found)
    return (
        f'{head} aria-label="{title}"><g font-family="DejaVu Sans,Verdana,sans-serif" font-size="11" fill="#fff">'
        f"{''.join(parts)}</g></svg>\n"
    )


if __name__ == "__main__":
    PICTURE.write_text(
        drawn(badges(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8")))), "utf-8"
    )
