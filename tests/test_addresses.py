"""Every path that a user gives is resolved or refused by name: no local directory called like a scheme, no secret told."""

import os
from pathlib import Path

import numpy as np
import pyarrow.fs as pafs
import pytest
from typer.testing import CliRunner

import headrace
from headrace.cli import app
from headrace.errors import HeadraceError, SettingsError, StoreError
from headrace.report.write import write_report
from headrace.storage import local
from headrace.storage.object_store import ObjectPath
from headrace.storage.places import path_of
from tables import small_source, split

CANARY = "c4nary-0f-a-secret"
NEEDED = ("--time", "date", "--entity", "id", "--split-date", "2025-01-01")
ELSEWHERE = (
    "hdfs://host/x",
    "abfss://c@host/x",
    "memory://x",
    "https://host/x",
    "ftp:/host/x",
    "C:/x",
    "c:\\x",
    "file://host/x",
)
SECRETS = (
    f"https://user:{CANARY}@host/x",
    f"https://{CANARY}@host/x",
    f"s3://user:{CANARY}@bucket/x",
    f"gs://bucket/x?token={CANARY}",
    f"az://container/x?sv=1&sig={CANARY}",
    f"S3://bucket/x?X-Amz-Signature={CANARY}",
    f"https://host/x#access_token={CANARY}",
    f"AccountName=a;AccountKey={CANARY}",
)  # fmt: skip
COMMANDS = {
    "split --out": ("split", "SOURCE", *NEEDED, "--out", "X"),
    "split SOURCE": ("split", "X", *NEEDED, "--out", "out"),
    "split --work-dir": ("split", "SOURCE", *NEEDED, "--out", "s3://bucket/x", "--work-dir", "X"),
    "split --signature": ("split", "SOURCE", *NEEDED, "--out", "out", "--signature", "X"),
    "run --out": ("run", "run.yaml", "--out", "X"),
    "run --set": ("run", "run.yaml", "--out", "out", "--set", "source=X"),
    "run CONFIG": ("run", "X"),
    "rewrite --out": ("rewrite", "SOURCE", "--out", "X"),
    "pack --out": ("pack", "SOURCE", "--out", "X"),
    "pack --tokenizer": ("pack", "SOURCE", "--out", "out", "--tokenizer", "X"),
    "histories --out": ("histories", "prepare", "SOURCE", "--out", "X"),
    "series --out": ("series", "SOURCE", "--target", "x", "--out", "X"),
    "init SOURCE": ("init", "split", "X", "--out", "out", "--config", "new.yaml"),
    "init --out": ("init", "split", "SOURCE", "--out", "X", "--config", "new.yaml"),
    "init --config": ("init", "split", "SOURCE", "--out", "out", "--config", "X"),
    "inspect --to": ("inspect", "OUT", "--to", "X"),
    "plan": ("plan", "X", "--ranks", "2", "--batch-size", "8"),
    "inspect": ("inspect", "X"),
    "verify": ("verify", "X"),
    "gc": ("gc", "X"),
}
READS_ONLY = {"run CONFIG", "split --signature", "pack --tokenizer", "series --out"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a source, a run and settings, and a home of its own."""
    (tmp_path / "in").mkdir()
    small_source(tmp_path / "in", count=1, rows=60)
    (tmp_path / "here").mkdir()
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    Path("run.yaml").write_text(
        f"recipe: temporal_split\nsource: {tmp_path / 'in'}\ntime: date\nentity: id\nsplit_date: 2025-01-01\n"
    )
    return tmp_path / "here"


def told(name: str, address: str, root: Path) -> str:
    """What a command says that fails."""
    words = {
        "X": address,
        "SOURCE": str(root / "in"),
        "OUT": str(root / "out"),
        "source=X": f"source={address}",
    }
    result = CliRunner().invoke(app, [words.get(each, each) for each in COMMANDS[name]])
    assert result.exit_code != 0, (name, address, result.output)
    assert result.exception is not None
    return f"{result.output} {result.exception} {result.exception!r}"


@pytest.mark.smoke(every=3)
@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_tells_a_secret_or_makes_a_directory_of_an_address(
    here: Path, name: str
) -> None:
    before = set(os.listdir(here))
    for address in SECRETS:
        assert CANARY not in told(name, address, here.parent), address

    assert before == set(os.listdir(here))


@pytest.mark.smoke(every=4)
@pytest.mark.parametrize("name", sorted(set(COMMANDS) - READS_ONLY))
def test_a_scheme_that_is_not_known_is_refused_by_name(here: Path, name: str) -> None:
    if "OUT" in COMMANDS[name]:
        split(here.parent / "in", here.parent / "out")
    before = set(os.listdir(here))
    for address in ELSEWHERE:
        assert (
            "headrace reads or writes" in (said := told(name, address, here.parent))
            or "may name a host" in said
        ), said

    assert before == set(os.listdir(here))


@pytest.mark.parametrize(
    "address", [*ELSEWHERE, *SECRETS, "s3://bucket/x.parquet", "S3://bucket/x.parquet"]
)
def test_no_function_that_writes_makes_a_directory_of_an_address(here: Path, address: str) -> None:
    before = set(os.listdir(here))
    prepared = split(here.parent / "in", here.parent / "out")
    for write in (
        lambda: headrace.ParquetShardWriter(address),
        lambda: headrace.ParquetShardWriter(Path(address)),
        lambda: headrace.ParquetShardWriter(address, filesystem=pafs.LocalFileSystem()),
        lambda: write_report(prepared.out, to=address),
        lambda: headrace.open(here.parent / "in", cache_dir=address),
        lambda: headrace.collect("s3://bucket/out", work_dir=address),
        lambda: (
            local.make_directory(Path(address).parent) if "://" in address else path_of(address)
        ),
    ):
        with pytest.raises((SettingsError, StoreError)) as raised:
            write()
        assert CANARY not in str(raised.value)

    assert before == set(os.listdir(here))


def test_a_home_directory_and_a_file_address_are_local_paths(here: Path) -> None:
    out = split(here.parent / "in", Path("~/one")).out
    assert here.parent / "home" / "one" == out
    out = split(here.parent / "in", f"file://{here.parent}/two%20three").out  # type: ignore[arg-type]
    assert here.parent / "two three" == out
    with headrace.ParquetShardWriter(f"file://localhost{here.parent}/bins.parquet") as writer:
        writer.write_bin(0, np.arange(4), np.ones(4, int), np.zeros(1, int))

    assert (here.parent / "bins.parquet").is_file()
    assert ["run.yaml"] == os.listdir(here)


def test_a_scheme_in_capitals_is_the_same_store() -> None:
    assert isinstance(path_of("S3://bucket/a"), ObjectPath)
    assert path_of("s3://bucket/a") == path_of("S3://bucket/a") == path_of(Path("S3://bucket/a"))


def test_errors_are_ours() -> None:
    with pytest.raises(HeadraceError, match="drive C: is not a place"):
        path_of("C:\\data")


@pytest.mark.parametrize("secret", SECRETS)
def test_no_setting_that_names_a_file_takes_a_secret(secret: str) -> None:
    split_settings = {"source": "x", "time": "d", "entity": "g", "split_date": "2025-01-01"}
    for make in (
        lambda: headrace.TemporalSplit(**{**split_settings, "source": secret}),
        lambda: headrace.TemporalSplit(**split_settings, signature=secret),
        lambda: headrace.PackedSequences(blend="x", tokenizer=secret),
        lambda: headrace.PackedSequences(blend="x.jsonl", chat_template=secret),
        lambda: headrace.Series(source="x", target="q", entities=f"@{secret}"),
        lambda: headrace.Rewrite(source="x", cache_dir=secret),
    ):
        with pytest.raises(SettingsError) as raised:
            make()

        assert CANARY not in str(raised.value)
