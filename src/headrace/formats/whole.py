"""Whether a Parquet file is whole: what one is called that is not, and whether its pages' checksums are looked at."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pyarrow as pa

from headrace.errors import InputError

Pages = Literal["check", "trust"]  # trust: of a shard whose own checksum was found right


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
