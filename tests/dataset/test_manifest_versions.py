"""A run of another format is refused with what to do about it, and the format has one number."""

import json
from pathlib import Path

import pytest

import headrace
from headrace.dataset import manifest
from headrace.run import identity
from raised import raised
from tables import small_source


@pytest.mark.parametrize(
    ("version", "remedy"), [(1, "prepare the run again"), (10, "upgrade headrace"), (None, "upgrade headrace")]
)  # fmt: skip
def test_a_run_of_another_format_says_what_to_do(
    tmp_path: Path, version: int | None, remedy: str
) -> None:
    recipe = headrace.TemporalSplit(
        source=small_source(tmp_path / "raw"), time="date", entity="id", split_date="2025-01-01"
    )
    path = headrace.prepare(recipe, tmp_path / "out", workers=1).run / manifest.MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": version}))

    with raised(headrace.InputError, path=path, remedy=remedy):
        headrace.open(tmp_path / "out")


def test_runs_and_their_manifests_have_one_format_version() -> None:
    assert (
        manifest.FORMAT_VERSION
        == identity.FORMAT_VERSION
        == manifest.Manifest.__dataclass_fields__["format_version"].default
    )
