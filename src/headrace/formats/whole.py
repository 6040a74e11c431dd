"""What every reader of Parquet is opened with: page checksums, the unit of old times, and one name for damage."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pyarrow as pa

from headrace.errors import InputError

Pages = Literal["check", "trust"]  # trust: of a shard whose own checksum was found right
# Spark writes times as INT96. Arrow would make nanoseconds of them, which wrap around: 9999-12-31 becomes 1816-03-29.
INT96_UNIT = "us"


@contextmanager
def whole_parquet(path: Path) -> Generator[None, None, None]:
    """Inside, what Arrow or the system says of this file raises `InputError`, but for `FileNotFoundError`."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(
            f"{path}: is no whole Parquet file ({error}); the file is cut or damaged, fetch it again"
        ) from error
