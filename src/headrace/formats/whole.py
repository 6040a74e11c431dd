"""What a Parquet file that is cut or damaged is called, wherever its footer is read."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from headrace.errors import InputError


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
