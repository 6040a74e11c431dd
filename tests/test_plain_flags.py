"""--types, --dialect and --cache-dir of the commands that look at plain shards."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.cli.settings_flags import null_values_of, types_of
from headrace.errors import SettingsError
from raised import raised


def json_of(*arguments) -> dict:
    done = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture
def shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "a.csv").write_text("n,x,t\n" + "".join(f"{n},{n}.5,NA\n" for n in range(20)))
    return tmp_path / "a.csv"


def test_peek_shows_the_declared_types(shard: Path, tmp_path: Path) -> None:
    flags = [
        "--types",
        "n=int16",
        "--types",
        "x=float32,t=int8",
        "--dialect",
        "null_values=NA",
        "--cache-dir",
        tmp_path / "c",
    ]
    record = json_of("peek", shard, "--rows", 1, *flags)

    assert {"n": "int16", "x": "float32", "t": "int8"} == {
        each["name"]: each["type"] for each in record["schema"]
    }
    assert [{"n": 0, "x": 0.5, "t": None}] == record["rows"]
    assert list((tmp_path / "c").glob("index-*.arrows"))
    assert not (tmp_path / "home").exists()


@pytest.mark.smoke(every=2)
@pytest.mark.parametrize(
    "command", [["plan", "--ranks", 2, "--batch-size", 4], ["where", "--ranks", 2, "--batch-size", 4, "--row", "a.csv:3"]], ids=str
)  # fmt: skip
def test_every_command_takes_them(command: list, shard: Path, tmp_path: Path) -> None:
    name, *flags = command
    record = json_of(name, shard, *flags, "--types", "n=int64", "--types", "t=int64", "--dialect", "null_values=NA", "--cache-dir", tmp_path / "c")  # fmt: skip

    assert record.get("rows", 20) == 20
    assert list((tmp_path / "c").glob("index-*.arrows"))
    assert not (tmp_path / "home").exists()


def test_a_type_that_is_none_ends_in_one_message(shard: Path) -> None:
    with raised(SettingsError, setting="types", value="n"):
        types_of(["n"])
    with raised(SettingsError, setting="types", remedy="give one type"):
        types_of(["n=int8", "n=int16"])
    done = CliRunner().invoke(app, ["peek", str(shard), "--types", "n=int65"])

    assert isinstance(done.exception, SettingsError)
    assert ("types", "int65") == (done.exception.setting, done.exception.value)


def test_words_are_read_one_by_one_or_with_commas() -> None:
    assert {"a": "int8", "b=c": "text"} == types_of(["a=int8,b=c=text", "a=int8"])
    assert ("NA", "", "-") == null_values_of(["NA,", "-", "NA"])
    assert {} == types_of(None)
