"""Datasets, plans and manifests show themselves in notebooks; no text of the data becomes markup."""

import re
from html.parser import HTMLParser
from pathlib import Path

from pure_order import make_plan
from report_cases import split_run

import headrace
from headrace.dataset.html import table_html


class Cells(HTMLParser):
    """Every tag that opens, and the texts between."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:  # noqa: ARG002 - the name HTMLParser gives it
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_manifests_and_datasets_show_their_rows(runs: dict[str, Path]) -> None:
    for out in runs.values():
        dataset = headrace.open(out)
        assert dataset.manifest is not None
        for shown in (dataset, dataset.manifest):
            texts = Cells(shown._repr_html_()).texts
            for name, rows in dataset.split_rows.items():
                assert f"{rows:,}" == texts[texts.index(name) + 1]


def test_a_plan_shows_its_steps(runs: dict[str, Path]) -> None:
    plan = make_plan(
        headrace.open(runs["temporal_split"]).split_index("train"),
        batch_size=8,
        world_size=3,
        shuffle=True,
    )
    texts = Cells(plan._repr_html_()).texts

    assert f"{plan.steps_per_rank:,}" == texts[texts.index("steps of each rank") + 1]
    assert f"{plan.padded_rows:,}" == texts[texts.index("repeated rows") + 1]


def test_what_was_prepared_and_verified_shows_itself(tmp_path: Path) -> None:
    out = split_run(tmp_path / "<b>")
    split = headrace.TemporalSplit(source=tmp_path / "<b>/raw", time="time", entity="customer", split_date="2025-01-01", train_ratio=0.7)  # fmt: skip
    prepared, verdict = headrace.prepare(split, out), headrace.verify(out)
    shown = Cells(prepared._repr_html_())

    assert "b" not in shown.tags[shown.tags.index("table") :]
    assert f"reused: {prepared.run}" in "".join(shown.texts)
    assert "train" in shown.texts
    assert len(verdict.checks) == Cells(verdict._repr_html_()).texts.count("ok")
    assert f"Verdict({verdict.run_id}: {len(verdict.checks)} checks, all hold)" == repr(verdict)
    assert repr(prepared).startswith(f"Prepared(temporal_split, reused, {str(prepared.run)!r}: ")
    loader = headrace.open(out).stream(
        "train", batch_size=8, topology=headrace.Topology(rank=1, world_size=3)
    )
    assert "StreamLoader('train': batches of 8, rank 1 of 3, epoch 0)" == repr(loader)


def test_names_of_columns_stay_text(tmp_path: Path) -> None:
    nasty = "<script>alert(1)</script>"
    shown = headrace.open(split_run(tmp_path / "run", nasty=nasty))._repr_html_()

    assert "script" not in Cells(shown).tags
    assert nasty in "".join(Cells(shown).texts)


def test_long_tables_are_cut_and_say_so() -> None:
    shown = table_html("t", ["n"], [[n] for n in range(50)])

    assert 41 == len(re.findall("<tr>", shown))
    assert "and 10 more" in shown
