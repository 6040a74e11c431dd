"""Entities that share a value of `linked_by`, directly or through others, are in one split."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.errors import InputError, SettingsError
from raised import raised

HEADER = "who,when,email,phone,n"


def write(root: Path, rows: list[tuple[str, ...]], shards: int = 2) -> Path:
    root.mkdir()
    for shard in range(shards):
        lines = [HEADER, *(",".join(row) for row in rows[shard::shards])]
        (root / f"part-{shard}.csv").write_text("\n".join(lines) + "\n")
    return root


def customers(count: int = 300) -> list[tuple[str, ...]]:
    """Customers of 2024, each of whom comes back in 2025 under another number: by the same e-mail,
    or by a telephone that a third number shares with both.
    """
    draw = random.Random(5)
    rows = []
    for n in range(count):
        early = f"2024-0{1 + n % 9}-11"
        mail = f"mail{n}@example.com" if n % 4 else ("" if n % 8 else "none@x")
        rows.append((f"a{n}", early, mail, f"0{n:06d}", str(n)))
        if n % 3 == 0:
            rows.append((f"b{n}", "2025-02-01", mail.upper(), "", str(n)))
        elif n % 3 == 1:
            rows.append((f"c{n}", "2025-02-01", f"other{n}@example.com", f"0{n:06d}", str(n)))
            rows.append((f"d{n}", "2025-03-01", f"Other{n}@example.com", "", str(n)))
        else:
            rows.append((f"e{n}", "2025-02-01", f"new{n}@example.com", "", str(n)))
    draw.shuffle(rows)
    return rows


def prepare(source: Path, out: Path, **asked: Any) -> Any:
    split = headrace.TemporalSplit(
        source=source, time="when", entity="who", split_date="2025-01-01", train_ratio=0.5, **asked
    )
    return headrace.prepare(split, out)


def names(out: Path) -> dict[str, set[str]]:
    dataset = headrace.open(out)
    found = {}
    for split in dataset.splits:
        read = dataset.block_reader(split)
        blocks = range(len(dataset.split_index(split).rows))
        found[split] = {who for block in blocks for who in read(block, ["who"])["who"].to_pylist()}
    return found


def test_linked_entities_are_one_and_hubs_link_nothing(tmp_path: Path) -> None:
    source = write(tmp_path / "in", customers())
    made = prepare(source, tmp_path / "out", linked_by=["email", "phone"])
    found = names(tmp_path / "out")
    linked = made.manifest.metadata["linked"]
    trained = {name[1:] for name in found["train"]}
    tested = {name for name in found["test"] if name[0] in "cd"}

    assert [] == headrace.verify(tmp_path / "out").problems
    assert ["email 'none@x'"] == linked["named_hubs"]
    assert tested
    assert not trained & {name[1:] for name in tested}
    mailed = {name[1:] for name in found["test"] if name[0] == "b" and int(name[1:]) % 4}
    assert not trained & mailed
    assert {name for name in found["test"] if name[0] == "e"}
    checks = {check.name for check in headrace.verify(tmp_path / "out").checks}
    assert "linked entities are apart" in checks
    alone = prepare(source, tmp_path / "alone")
    assert "linked" not in alone.manifest.metadata
    assert trained & {name[1:] for name in names(tmp_path / "alone")["test"] if name[0] in "cd"}


def test_any_number_of_shards_links_alike(tmp_path: Path) -> None:
    rows = customers()
    found = []
    for shards in (1, 3):
        source = write(tmp_path / f"in{shards}", rows, shards)
        prepare(source, tmp_path / f"out{shards}", linked_by=["email", "phone"])
        found.append(names(tmp_path / f"out{shards}"))

    assert found[0] == found[1]


def test_one_unit_of_too_many_entities_is_refused(tmp_path: Path) -> None:
    rows = [(f"a{n}", "2024-01-01", f"m{n // 2}", f"p{(n + 1) // 2}", "1") for n in range(500)]
    source = write(tmp_path / "in", rows)

    with raised(InputError, column="email, phone", remedy="leave a column out"):
        prepare(source, tmp_path / "out", linked_by=["email", "phone"])


@pytest.mark.parametrize("asked", [{"linked_by": ["who"]}, {"linked_by": ["when"]}])
def test_columns_of_another_role_link_nothing(tmp_path: Path, asked: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="linked_by"):
        prepare(tmp_path, tmp_path / "out", **asked)
