"""A run is not opened in too little address space, by whatever name it is opened."""

from pathlib import Path

import pytest

from headrace.contexts import open_contexts
from headrace.errors import StoreError
from headrace.windows import open_windows
from raised import raised


def test_contexts_and_windows_are_refused_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.shortage.address_limit", lambda: 1 << 30)

    with raised(StoreError, remedy="raise that limit"):
        open_contexts(tmp_path, "train", context_tokens=64)
    with raised(StoreError, remedy="raise that limit"):
        open_windows(tmp_path, "train", input_length=2, output_length=1)
