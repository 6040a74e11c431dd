"""Nothing of an erased customer stays, also not a class that no other row has."""

from __future__ import annotations

from pathlib import Path

import headrace


def test_a_class_of_erased_rows_alone_is_gone(tmp_path: Path) -> None:
    lines = ["who,when,kind,text"]
    for n in range(400):
        kind = "secret" if n % 40 == 7 else "ab"[n % 2]
        lines.append(f"c{n % 40},2024-0{1 + n % 9}-01,{kind},text {n}")
    for n in range(20):
        lines.append(f"t{n},2025-01-02,a,later text {n}")
    (tmp_path / "raw.csv").write_text("\n".join(lines) + "\n")
    split = headrace.TemporalSplit(
        source=tmp_path / "raw.csv",
        time="when",
        entity="who",
        label="kind",
        split_date="2025-01-01",
    )
    headrace.prepare(split, tmp_path / "out")
    headrace.forget(tmp_path / "out", ["c7"])
    run = (tmp_path / "out" / "splits").resolve().parent

    assert {"a": 0, "b": 1} == headrace.open(tmp_path / "out").manifest.metadata["label_map"]
    assert [] == headrace.verify(tmp_path / "out").problems
    assert [] == [path for path in run.rglob("*.json") if "secret" in path.read_text()]
