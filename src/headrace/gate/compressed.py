"""Decompress small files, gzip or ZIP, that may be bombs.

A megabyte of either can become a gigabyte. What it becomes is bounded by the larger of 64 MiB and
200 times its size, before it does.
"""

from __future__ import annotations

import gzip
import io
import zipfile
import zlib

from headrace.gate import MOST_GROWTH

_LEAST_BUDGET = 64 << 20


def gunzip(data: bytes) -> bytes:
    """Decompress gzip. Raises `ValueError`, and nothing else."""
    budget = _budget(data)
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            content = file.read(budget + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(str(error)) from error
    _check(data, len(content))
    return content


def check_archive(data: bytes) -> None:
    """Refuse a ZIP archive whose members become too large together; readers hold each to the size
    that is declared.

    Raises `ValueError` for a bomb, and what `zipfile` raises for damage.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        _check(data, sum(member.file_size for member in archive.infolist()))


def _budget(data: bytes) -> int:
    return max(_LEAST_BUDGET, MOST_GROWTH * len(data))


def _check(data: bytes, size: int) -> None:
    if size > _budget(data):
        raise ValueError(
            f"it decompresses to more than {_budget(data) >> 20:,} MiB, which no file of"
            f" {len(data):,} bytes should"
        )
