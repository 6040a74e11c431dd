"""No bound admits a release with a known hole in what headrace, or a user of it, feeds with bytes of others."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))[
    "project"
]

# package: the first release without any of these, by what each lets in. Only holes with a fixed release are listed.
FIRST_WITHOUT: dict[str, tuple[str, str]] = {
    "accelerate": ("1.15", "CVE-2026-69112: a checkpoint names files outside its directory"),
    "datasets": ("5.0.1", "PYSEC-2026-3716: metadata names files outside the dataset"),
    "duckdb": ("1.1", "CVE-2024-41672: files are read where that was forbidden"),
    "huggingface-hub": ("0.25", "none is known; the lowest that was run"),
    "jinja2": (
        "3.1.6",
        "CVE-2025-27516, CVE-2024-56326, CVE-2024-56201: a template leaves the sandbox",
    ),
    "lightning": ("2.6.6", "CVE-2026-58659, CVE-2026-31221: a checkpoint runs code"),
    "numpy": ("1.22", "CVE-2021-41496: an array of a file overflows a buffer"),
    "pillow": ("12.3", "PYSEC-2026-2253 to 2257, 3451 to 3453, CVE-2026-40192: images"),
    "pyarrow": (
        "23.0.1",
        "CVE-2026-25087, CVE-2023-47248: an Arrow file writes to freed memory, runs code",
    ),
    "pydantic": ("2.4", "CVE-2024-3772: a text takes exponential time"),
    "pyyaml": ("5.4", "CVE-2020-14343: a document runs code"),
    "ray": (
        "2.55",
        "CVE-2026-41486: Parquet runs code; CVE-2026-32981, CVE-2026-27482, CVE-2025-62593: the dashboard",
    ),
    "scikit-learn": ("1.5", "CVE-2024-5206: a fitted object keeps the texts it saw"),
    "skops": ("0.13", "CVE-2025-54886, CVE-2025-54412, CVE-2025-54413: a file runs code"),
    "torch": (
        "2.10",
        "CVE-2026-24747, CVE-2025-32434: a checkpoint runs code with weights_only=True",
    ),
    "tqdm": ("4.66.3", "CVE-2024-34062: an argument of its command runs code"),
    "transformers": (
        "5.10",
        "CVE-2026-9856, CVE-2026-5241, CVE-2026-4372: a model writes files, runs code",
    ),
}


def bounds() -> list[tuple[str, str, str]]:
    """(group, package, lower bound) of everything that the core and the extras ask for."""
    groups = {"core": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
    found = []
    for group, asked in groups.items():
        for each in asked:
            match = re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?(?:>=([0-9.]+))?", each)
            assert match is not None, each
            found.append((group, re.sub(r"[-_.]+", "-", match[1]).lower(), match[2] or "0"))
    return found


def release(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


@pytest.mark.parametrize("package", FIRST_WITHOUT)
def test_no_bound_admits_a_known_hole(package: str) -> None:
    asked = {(group, bound) for group, name, bound in bounds() if name == package}
    first, hole = FIRST_WITHOUT[package]

    assert asked, f"nothing asks for {package} any more"
    assert {(group, bound) for group, bound in asked if release(bound) < release(first)} == set(), (
        hole
    )
