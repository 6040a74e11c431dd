"""Settings of recipes that leave out rows that overlap benchmarks; imports no data libraries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from headrace.settings import Paths

if TYPE_CHECKING:
    from headrace.stream.audit.overlap import Benchmarks

IN_BENCHMARK = "in_benchmark"
_PANEL: dict[str, Any] = {"panel": "Benchmarks"}

Exclude = Annotated[
    Paths,
    Field(
        json_schema_extra=_PANEL,
        description=(
            "Files, or directories of files, of benchmark items: rows that overlap one are left out"
            " and counted, as `headrace leaks --against` finds them."
        ),
    ),
]
ExcludeWords = Annotated[
    int,
    Field(
        ge=3,
        json_schema_extra=_PANEL,
        description="Words in a row that an item and a row share; fewer: the whole item.",
    ),
]


def exclusion_identity(settings: Any) -> dict[str, Any]:
    """Return the part of the settings `exclude` and `exclude_ngram` that can change output bytes.

    It contains digests and no paths, and is empty if no benchmark is excluded.
    """
    if not settings.exclude:
        return {}
    from headrace.digest import sha256_file
    from headrace.stream.audit.overlap import find_benchmarks

    digests = {name: sha256_file(path) for path, name in find_benchmarks(settings.exclude).items()}
    return {"exclude": digests, "exclude_ngram": settings.exclude_ngram}


def read_excluded(exclude: Sequence[Path], ngram: int) -> Benchmarks | None:
    """Read the benchmarks to exclude, if there are any."""
    if not exclude:
        return None
    from headrace.stream.audit.overlap import Benchmarks

    return Benchmarks.read(exclude, ngram)
