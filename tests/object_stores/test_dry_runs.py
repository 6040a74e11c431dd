"""A dry run of a source in an object store says what one of the same files on a disk says, and fetches a part of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from fault_proxy import FaultProxy
from store_cases import split_of, upload, write_raw
from typer.testing import CliRunner

import headrace
from headrace.cli import app
from headrace.cli.estimate.measured import Estimate, estimate
from headrace.cli.estimate.sized import sized

SAMPLE = 20_000


def estimated(recipe: Any, sample_bytes: int = SAMPLE) -> Estimate:
    found = estimate(recipe, sized(recipe.source_files()), sample_bytes=sample_bytes)
    assert isinstance(found, Estimate), found
    return found


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_objects_are_estimated_as_files_are(suffix: str, s3: str, tmp_path: Path) -> None:
    upload(write_raw(tmp_path / "raw", shards=6, rows=900, suffix=suffix), f"{s3}/raw")
    here, there = estimated(split_of(tmp_path / "raw")), estimated(split_of(f"{s3}/raw"))

    assert (here.rows, here.out_bytes, here.stages, here.share) == (there.rows, there.out_bytes, there.stages, there.share)  # fmt: skip
    assert "without the time to fetch" in there.how
    assert "without the time to fetch" not in here.how


@pytest.mark.smoke("s3")
def test_every_store_is_asked(every_proxied: tuple[str, FaultProxy], tmp_path: Path) -> None:
    place, _ = every_proxied
    upload(write_raw(tmp_path / "raw", shards=2, rows=100), f"{place}/raw")
    rewrite = headrace.Rewrite(source=f"{place}/raw", cache_dir=tmp_path / "cache")

    assert 213 == estimated(rewrite).rows


@pytest.mark.parametrize("name", ["a.parquet", "b.csv"])
def test_of_a_large_object_a_part_is_fetched(name: str, proxied: tuple[str, FaultProxy], tmp_path: Path) -> None:
    place, proxy = proxied
    rows = pl.select(row=pl.int_range(300_000)).with_columns(
        entity=pl.format("e{}", pl.col("row") % 999),
        time=pl.format("20{}-03-01", 20 + pl.col("row") % 6),
        x=pl.col("row").hash(7),
    )
    (tmp_path / "raw").mkdir()
    if name == "a.parquet":
        rows.write_parquet(tmp_path / "raw" / name, row_group_size=10_000, compression="uncompressed")
    else:
        rows.write_csv(tmp_path / "raw" / name)
    upload(tmp_path / "raw", f"{place}/raw")
    before = proxy.seen.body_bytes
    found = estimated(split_of(f"{place}/raw/{name}"))

    assert found.rows == pytest.approx(300_000, rel=0.2)
    assert 0 < proxy.seen.body_bytes - before < (tmp_path / "raw" / name).stat().st_size / 4


def test_the_command_says_it_and_knows_what_is_finished(s3: str, tmp_path: Path) -> None:
    upload(write_raw(tmp_path / "raw"), f"{s3}/raw")
    settings = {**split_of(f"{s3}/raw").config(), "out": f"{s3}/out"}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(settings))

    def told(*flags: str) -> dict[str, Any]:
        done = CliRunner().invoke(app, ["run", str(tmp_path / "c.yaml"), "--json", *flags])
        assert done.exit_code == 0, (done.output, done.exception)
        record: dict[str, Any] = json.loads(done.stdout)
        return record

    before = told("--dry-run")
    made = told("--work-dir", str(tmp_path / "work"))
    after = told("--dry-run")

    assert before["rows"] == made["source"]["rows"]
    assert ("new", "finished: it would be reused") == (before["state"], after["state"])
    assert before["run"] == made["run"]
