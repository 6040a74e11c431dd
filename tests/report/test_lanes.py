"""The page of a plan draws what the plan says: every block where it is read, what is read twice, and who idles."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from browser import Tab
from test_browser import check

import headrace
from headrace.report.figure import Page
from headrace.report.lanes import plan_page
from headrace.report.write import publish
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.passes import RowPasses
from headrace.stream.order.advice import mixing_of_plan
from headrace.stream.order.epoch import EpochOrder
from headrace.stream.order.plan import Plan, estimate_peak_bytes
from headrace.stream.ranks.topology import Topology


def plan_of(path: Path, *, ranks: int, better: dict[str, float] | None = None, **settings: object) -> tuple[Plan, Page]:
    dataset = headrace.open(path)
    index = dataset.split_index("train")
    options = StreamOptions(**{"shuffle": True, "batch_size": 4, **settings})
    topology = Topology(rank=0, world_size=ranks)
    plan = RowPasses(index, dataset.block_reader("train"), options, topology).begin(0).plan()
    record = {
        "read_amplification": 1.0,
        "better_lanes": better,
        "peak_memory_bytes_per_rank": estimate_peak_bytes(plan),
        "mixing": {kind: asdict(found) for kind, found in mixing_of_plan(index, plan).items()},
    }
    return plan, plan_page(plan, index, record)


def stretches(page: Page) -> list[dict[str, object]]:
    chart = next(each for each in page.figures if each.key == "lanes").chart
    assert chart is not None
    return list(chart.spec["data"]["values"])


def words(page: Page, key: str) -> str:
    return next(each for each in page.figures if each.key == key).answer


@pytest.mark.parametrize("lanes", [None, 3, 8])
@pytest.mark.parametrize("shuffle", [True, False])
def test_the_stretches_of_a_line_follow_each_other_and_last_the_epoch(
    runs: dict[str, Path], lanes: int | None, shuffle: bool
) -> None:
    plan, page = plan_of(runs["temporal_split"], ranks=2, lanes=lanes, shuffle=shuffle)
    lines: dict[object, list[dict[str, object]]] = {}
    for each in stretches(page):
        lines.setdefault(each["label"], []).append(each)

    assert plan.order.lanes == len(lines)
    for each in lines.values():
        ends = [stretch["to"] for stretch in each]
        assert 0 == each[0]["from"]
        assert [stretch["from"] for stretch in each[1:]] == pytest.approx(ends[:-1])
        assert plan.steps_per_rank - 1 <= ends[-1] <= plan.steps_per_rank


def test_every_block_with_rows_is_named(runs: dict[str, Path]) -> None:
    plan, page = plan_of(runs["temporal_split"], ranks=2)
    assert isinstance(plan.order, EpochOrder)
    hints = " ".join(str(each["hint"]) for each in stretches(page))
    index = headrace.open(runs["temporal_split"]).split_index("train")

    for block in np.flatnonzero(index.rows):
        assert index.shards[index.shard_of_block[block]].rsplit("/", 1)[-1] in hints


def test_lanes_that_readers_do_not_divide_are_called_shared_and_the_way_out_is_said(runs: dict[str, Path]) -> None:
    plan, page = plan_of(runs["temporal_split"], ranks=3, lanes=4)

    assert {"decoded by several readers"} == {each["role"] for each in stretches(page)}
    assert plan.read_amplification > 2
    assert "--lanes" not in words(page, "amplification")
    _, advised = plan_of(runs["temporal_split"], ranks=3, lanes=4, better={"lanes": 6, "read_amplification": 1.234})
    assert "With --lanes 6 it would be at most 1.23 times." in words(advised, "amplification")
    assert "good" != next(each for each in advised.figures if each.key == "amplification").tone
    _, mended = plan_of(runs["temporal_split"], ranks=3, lanes=6)
    assert {f"rank {lane % 3}, lane {lane}" for lane in range(6)} == {each["label"] for each in stretches(mended)}


def test_readers_without_rows_are_idle_and_named(runs: dict[str, Path]) -> None:
    plan, page = plan_of(runs["temporal_split"], ranks=9, distribution="round_robin")
    idle = {f"rank {rank}" for rank in np.flatnonzero(plan.rows_per_rank == 0)}

    assert idle
    assert idle <= {each["label"] for each in stretches(page) if each["role"] == "nothing left"}
    assert f"{len(idle)} readers have no row at all" in words(page, "load")


def test_what_batches_meet_stands_beside_a_permutation(runs: dict[str, Path]) -> None:
    _, page = plan_of(runs["temporal_split"], ranks=1)
    _, in_order = plan_of(runs["temporal_split"], ranks=1, shuffle=False)
    figures = [next(each for each in one.figures if each.key == "mixing") for one in (page, in_order)]

    assert ["good", "warning"] == [each.tone for each in figures]
    assert "A global step, 4 rows, meets" in words(page, "mixing")
    assert any("classes" in name for name, _ in page.tiles)


def test_thousands_of_readers_are_drawn_as_a_few(runs: dict[str, Path]) -> None:
    _, page = plan_of(runs["temporal_split"], ranks=2000, batch_size=1, lanes=2000)

    assert 24 == len({each["label"] for each in stretches(page)})
    assert "24 of 2,000 are drawn" in words(page, "lanes")


@pytest.mark.slow
@pytest.mark.smoke("settings1")
@pytest.mark.parametrize(
    "settings", [{"ranks": 4}, {"ranks": 9, "distribution": "by_size"}, {"ranks": 2, "samples_per_epoch": 100}]
)  # fmt: skip
def test_the_page_opens_in_a_browser(
    settings: dict[str, object], runs: dict[str, Path], tab: Tab, tmp_path: Path
) -> None:
    _, page = plan_of(runs["temporal_split"], **settings)  # type: ignore[arg-type]

    check(tab, publish(page, tmp_path / "plan.html"), f"plan-{'-'.join(map(str, settings.values()))}")
