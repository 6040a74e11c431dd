"""A certificate says what was proved of a run and nothing of where or when, and any other run or byte is noticed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from report_cases import RUNS, split_run

import headrace
from commands import headrace as command
from headrace.digest import canonical_json, sha256_hex
from headrace.errors import CorruptShard
from raised import raised


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return split_run(tmp_path_factory.mktemp("split") / "run")


def sealed(certificate: dict[str, Any]) -> bytes:
    """The certificate with a digest that fits, as somebody would who changes one."""
    rest = {name: value for name, value in certificate.items() if name != "digest"}
    return canonical_json({**rest, "digest": sha256_hex(canonical_json(rest))})


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RUNS)
def test_any_recipe_gives_the_same_bytes_wherever_its_run_is(recipe: str, tmp_path: Path) -> None:
    out = RUNS[recipe](tmp_path / "a")
    first = headrace.certify(out, workers=1)
    moved = shutil.copytree(out, tmp_path / "elsewhere" / "b", symlinks=True)
    again = headrace.certify(moved, workers=2)

    assert canonical_json(first) == canonical_json(again)
    assert str(tmp_path) not in json.dumps(first)
    assert first["digest"] == sha256_hex(
        canonical_json({k: v for k, v in first.items() if k != "digest"})
    )
    verdict = headrace.verify(out)
    assert [each["check"] for each in first["proved"]] == [
        each.name for each in verdict.checks if each.category == "law"
    ]
    assert [each["check"] for each in first["counted"]] == [
        each.name for each in verdict.checks if each.category == "count"
    ]
    rows = first["rows"]
    assert rows["splits"] == {
        name: each.rows for name, each in headrace.open(out).manifest.splits.items()
    }


def test_what_nobody_kept_apart_is_not_proved(tmp_path: Path, split: Path) -> None:
    unproved = headrace.certify(split)["not_proved"]
    assert any("exactly the same content" in each for each in unproved)
    assert any("val is from the time of train" in each for each in unproved)

    for duplicates, proved in (("group", True), ("count", False)):
        certificate = headrace.certify(
            RUNS["packed_sequences"](tmp_path / duplicates, duplicates=duplicates)
        )
        assert ("content apart" in [each["check"] for each in certificate["proved"]]) is proved
        assert ("content apart" in [each["check"] for each in certificate["counted"]]) is not proved
        assert (
            any("exactly the same content" in each for each in certificate["not_proved"])
            is not proved
        )
        assert certificate["settings"]["duplicates"] == duplicates


def test_a_source_that_is_gone_leaves_a_check_unchecked_and_the_certificate_true(
    tmp_path: Path,
) -> None:
    out = RUNS["series"](tmp_path / "run")
    certificate = headrace.certify(out)
    shutil.rmtree(tmp_path / "run" / "raw")
    after = headrace.certify(out)

    assert (certificate["unchecked"], after["unchecked"]) == ([], ["later rows change nothing"])
    assert str(tmp_path) not in json.dumps(after)


def test_a_run_with_a_problem_gets_no_certificate(split: Path, tmp_path: Path) -> None:
    out = shutil.copytree(split, tmp_path / "out", symlinks=True)
    (shard, *_) = sorted(out.glob("runs/*/training_data/train/*"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.chmod(0o644)
    shard.write_bytes(data)

    with raised(CorruptShard, remedy="nothing is certified"):
        headrace.certify(out)
    done = command("verify", out, "--certificate", tmp_path / "certificate.json")
    assert done.returncode == 1
    assert not (tmp_path / "certificate.json").exists()


def test_the_command_writes_the_same_certificate_again(split: Path, tmp_path: Path) -> None:
    path = tmp_path / "certificate.json"
    assert command("verify", split, "--certificate", path).returncode == 0
    data = path.read_bytes()
    assert json.loads(data) == headrace.certify(split)
    assert command("verify", split, "--certificate", path).returncode == 0
    assert path.read_bytes() == data


def test_entities_with_the_same_series_are_counted(tmp_path: Path) -> None:
    lines = ["who,date,target,x"]
    for name, seed in (("a", 1), ("b", 2), ("same as a", 1)):
        for day in range(40):
            lines.append(
                f"{name},2024-0{1 + day // 28}-{day % 28 + 1:02d},{(day * seed * 7) % 11},{day * seed % 5}"
            )
    (tmp_path / "raw.csv").write_text("\n".join(lines) + "\n")
    series = headrace.Series(
        source=tmp_path / "raw.csv",
        entity="who",
        target="target",
        future_features=["x"],
        min_train_years=0,
    )
    headrace.prepare(series, tmp_path / "out")
    (check,) = [
        each for each in headrace.verify(tmp_path / "out").checks if each.name == "same values"
    ]

    assert (
        check.detail
        == "1 of 3 entities have the values of an earlier one, such as 'same as a' those of 'a'"
    )
    report = headrace.find_leaks(headrace.open(tmp_path / "out"))
    assert report.near_ids is not None  # the columns of the output are found without naming them
    assert [each.split for each in report.periods] == ["train", "val", "test"]
