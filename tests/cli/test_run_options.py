"""`headrace run` with --set, and what it answers to names that are none."""

import json
import os
from pathlib import Path

import pytest
import yaml

from commands import headrace
from headrace.cli.settings_file import check_names, read_config, with_settings
from headrace.errors import SettingsError
from raised import raised


@pytest.fixture
def config(tmp_path: Path) -> Path:
    raw = tmp_path / "raw"
    raw.mkdir()
    rows = [f"c{n % 20},{2024 + n % 2}-03-{n % 28 + 1:02d},{n}" for n in range(200)]
    (raw / "part-0.csv").write_text("\n".join(["customer,time,x", *rows]) + "\n")
    record = {
        "recipe": "temporal_split",
        "source": str(raw),
        "out": str(tmp_path / "out"),
        "time": "time",
        "entity": "customer",
        "split_date": "2025-01-01",
        "train_ratio": 0.5,
    }
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(record))
    return path


@pytest.mark.parametrize("key", ["null", "1", "true", "2024-01-01"])
def test_a_setting_is_named_by_a_text(tmp_path: Path, key: str) -> None:
    (tmp_path / "config.yaml").write_text(f"source: raw\n{key}: dst_addr\n")

    with raised(SettingsError, path=tmp_path / "config.yaml", remedy="write names as text"):
        read_config(tmp_path / "config.yaml")


def test_set_replaces_and_nests() -> None:
    record = {"seed": 1, "scaling": {"target": {"strategy": "unified"}}}
    changed = with_settings(
        record,
        [
            "seed=7",
            "dialect.null_values=[NA, '']",
            "scaling.target.strategy=per_group",
            "scaling.features=null",
        ],
    )

    assert {
        "seed": 7,
        "dialect": {"null_values": ["NA", ""]},
        "scaling": {"target": {"strategy": "per_group"}, "features": None},
    } == changed
    assert {"seed": 1, "scaling": {"target": {"strategy": "unified"}}} == record


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("seed", "write e.g. settings seed=7"),
        ("=3", "write e.g. settings seed=7"),
        ("x=[", "quote it"),
        ("seed.x=3", "set all of seed"),
    ],
)
def test_set_says_what_is_wrong(text: str, remedy: str) -> None:
    with raised(SettingsError, setting="settings", value=text, remedy=remedy):
        with_settings({"seed": 1}, [text])


def test_unknown_names_are_answered_with_the_nearest_of_all() -> None:
    with raised(SettingsError, path="c.yaml") as caught:
        check_names("c.yaml", {"wrkers": 2, "sorce": "x", "seed": 1}, ["source", "seed"])

    assert "'wrkers' is not a setting; did you mean 'workers'?" in str(caught.value)
    assert "'sorce' is not a setting; did you mean 'source'?" in str(caught.value)
    assert "'seed'" not in str(caught.value)


def test_files_that_were_copied_are_the_same_source_by_their_content(
    config: Path, tmp_path: Path
) -> None:
    raw = tmp_path / "raw" / "part-0.csv"
    by_content = json.loads(headrace("run", config, "--fingerprint-by", "content", "--json").stdout)
    raw.write_bytes(raw.read_bytes())
    os.utime(raw, ns=(1, 1))
    config.write_text(config.read_text() + "fingerprint_by: content\n")
    again = json.loads(headrace("run", config, "--json").stdout)
    by_time = json.loads(headrace("run", config, "--fingerprint-by", "stat", "--json").stdout)
    wrong = headrace("run", config, "--set", "fingerprint_by=bytes")

    assert by_content["run_id"] == again["run_id"] != by_time["run_id"]
    assert "reused" == again["how"]
    assert (2, True) == (
        wrong.returncode,
        "--fingerprint-by is 'bytes'; it should be 'stat' or 'content'" in wrong.stderr,
    )


def test_wrong_names_in_the_file_end_with_the_nearest(config: Path) -> None:
    config.write_text(config.read_text().replace("temporal_split", "temporal_splitt"))
    recipe = headrace("run", config)
    config.write_text(
        config.read_text().replace("temporal_splitt", "temporal_split").replace("out:", "oput:")
    )
    name = headrace("run", config)

    assert (2, 2) == (recipe.returncode, name.returncode)
    assert "did you mean 'temporal_split'" in recipe.stderr
    assert "'oput' is not a setting; did you mean 'out'?" in name.stderr


def test_a_directory_in_place_of_a_configuration_is_told_what_writes_one(tmp_path: Path) -> None:
    with raised(SettingsError, path=tmp_path, remedy="write one with `headrace init "):
        read_config(tmp_path)
