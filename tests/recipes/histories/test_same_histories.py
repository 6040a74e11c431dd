"""Rows with the measurements of another entity are counted, in whatever format and however many are read at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pings import Ping, dealt, histories, random_pings, write_pings

import headrace


def twins(pings: list[Ping], names: dict[str, str]) -> list[Ping]:
    """The pings of some entities again under other names."""
    return [
        replace(ping, src_addr=names[ping.src_addr]) for ping in pings if ping.src_addr in names
    ]


@pytest.mark.parametrize("format_", ["array_record", "arrow"])
def test_entities_with_the_same_measurements_are_counted(tmp_path: Path, format_: str) -> None:
    pings = random_pings(5, 1500, entities=8)
    first, second, *_ = sorted({ping.src_addr for ping in pings})
    names = {first: "10.9.8.7", second: "fe80::1"}
    again = twins(pings, names) + twins(pings, {first: "10.9.8.6"})
    histories(
        write_pings(tmp_path / "raw", dealt(pings + again, 3)), tmp_path / "out", format=format_
    )
    (check,) = [
        each for each in headrace.verify(tmp_path / "out").checks if each.name == "content counted"
    ]

    splits = {}
    for split in ("train", "test"):
        dataset = headrace.open(tmp_path / "out")
        if format_ == "arrow":
            for block in range(len(dataset.split_index(split).rows)):
                ids = dataset.block_reader(split)(block, ["src_id"])["src_id"].to_pylist()
                splits |= dict.fromkeys(ids, split)
    if splits:
        groups = [(first, "10.9.8.7", "10.9.8.6"), (second, "fe80::1")]
        apart = sum(
            splits[name] == "test" and any(splits[other] == "train" for other in group)
            for group in groups
            for name in group
        )
        report = headrace.find_leaks(dataset)
        assert (report.content, sum(report.repeated.values()) + report.shared[0].rows) == (
            ("event_time", "dst_addr", "rtt"),
            3,
        )
        assert report.shared[0].rows == apart
        assert check.detail == (
            f"{apart} entities have the content of an earlier split, compared by event_time,"
            " dst_addr, rtt"
        )
    assert (check.category, check.problem) == ("count", None)
