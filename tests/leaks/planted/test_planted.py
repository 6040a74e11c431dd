"""Each kind of planted leak is seen, or known not to be; without one there is no alarm."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from planted_kinds import ITEM, KINDS, TEST, TRAIN, Columns, Kind, clean

import headrace
from headrace.stream.audit.leaks import LeakReport

NOTHING = Kind("nothing", "not seen", lambda train, test: None)


def scan(root: Path, kind: Kind) -> LeakReport:
    train, test = clean(TRAIN, 1), clean(TEST, 2)
    kind.plant(train, test)
    for name, columns in (("train", train), ("test", test)):
        (root / name).mkdir()
        pq.write_table(pa.table(as_arrow(columns)), root / name / "a.parquet")
    asked = dict(kind.asked)
    if asked.pop("against", None):
        (root / "items.txt").write_text(ITEM + "\n")
        asked["against"] = [root / "items.txt"]
    return headrace.find_leaks(headrace.open(root), **{"entity": "who", **asked}, workers=1)


def as_arrow(columns: Columns) -> dict[str, pa.Array]:
    return {name: pa.array(list(values)) for name, values in columns.items()}


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_a_planted_leak_is_seen_as_its_list_says(tmp_path: Path, kind: Kind) -> None:
    report = scan(tmp_path, kind)

    assert (kind.verdict != "not seen") is kind.seen(report)
    assert (kind.verdict == "alarm") is (report.worst > 0.01)


@pytest.mark.parametrize("asked", [{}, {"label": "label"}, {"near": 0.8}, {"against": True}])
def test_without_a_leak_nothing_is_named(tmp_path: Path, asked: dict) -> None:
    report = scan(tmp_path, Kind("nothing", "not seen", NOTHING.plant, asked=asked))

    assert 0 == report.worst
    assert ((), (), ()) == (report.links, report.telling, report.overlaps)
    assert report.spellings is not None
    assert 0 == report.spellings.separate


def test_the_list_has_forty_kinds_of_different_names() -> None:
    assert len(KINDS) >= 40
    assert max(Counter(kind.name for kind in KINDS).values()) == 1
