"""What pages say is what the runs hold; they cost little, and never touch what they are about."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import polars as pl
import pytest
from chats import small_tokenizer
from report_cases import RUNS, histories_run, packed_run, series_run, split_run

import headrace
from headrace.errors import InputError
from headrace.report import charts
from headrace.report.figure import Figure, Page, Table
from headrace.report.page import html_of
from headrace.report.picture import svg_of
from headrace.report.report_data import read_run
from headrace.report.write import REPORT, page_of, write_report
from raised import raised


def figure(page: Page, key: str) -> Figure:
    return next(each for each in page.figures if each.key == key)


def total(figure: Figure) -> float:
    """Everything in the numbers of a picture, but for their labels."""
    assert figure.chart is not None
    return sum(float(cell.replace(",", "")) for row in figure.chart.rows for cell in row[1:])


@pytest.mark.parametrize("recipe", RUNS)
def test_every_picture_has_an_answer_and_numbers(recipe: str, runs: dict[str, Path]) -> None:
    page = page_of(read_run(runs[recipe]))
    keys = [each.key for each in page.figures]

    assert keys
    assert len(set(keys)) == len(keys)
    assert sum(each.chart is not None for each in page.figures) <= 6
    for each in page.figures:
        assert each.question.endswith("?")
        assert len(each.answer) > 10
        assert each.chart is None or each.chart.rows


@pytest.mark.parametrize("recipe", RUNS)
def test_rows_in_the_pictures_are_those_of_the_run(recipe: str, runs: dict[str, Path]) -> None:
    metadata = read_run(runs[recipe])
    page = page_of(metadata)
    rows = figure(page, "rows").chart

    assert rows is not None
    assert int(metadata.manifest.source["rows"]) == sum(
        int(row[1].split(" ")[0].replace(",", "")) for row in rows.rows
    )


def test_the_timeline_counts_every_row_of_every_split(runs: dict[str, Path]) -> None:
    metadata = read_run(runs["temporal_split"])
    chart = figure(page_of(metadata), "timeline").chart
    assert chart is not None
    found = dict.fromkeys(metadata.splits, 0.0)
    for each in chart.picture.marks:
        found[each.role] += each.high - each.low

    assert {name: each.rows for name, each in metadata.manifest.splits.items()} == pytest.approx(
        found
    )


def test_histories_count_the_rows_that_cover_each_interval(runs: dict[str, Path]) -> None:
    metadata = read_run(runs["histories"])
    rows = pl.read_parquet(metadata.run.root / "rows.parquet")
    chart = figure(page_of(metadata), "timeline").chart
    assert chart is not None
    bars = chart.picture.marks

    assert bars
    for each in bars:
        begin, end = each.begin / 1000, each.end / 1000
        last = end == max(bar.end for bar in bars) / 1000
        covering = rows.filter(
            (pl.col("split") == each.role)
            & ((pl.col("first_time") <= end) if last else (pl.col("first_time") < end))
            & (pl.col("last_time") >= begin)
        )
        assert len(covering) == each.high - each.low


def test_entities_are_counted_in_the_shards(runs: dict[str, Path]) -> None:
    metadata = read_run(runs["temporal_split"])
    known = metadata.manifest.metadata
    found = figure(page_of(metadata), "entities")

    assert "no customer is in both train and test" in found.answer
    assert f"train: {known['train_entities']} entities" in found.answer
    assert f"val: {known['val_entities']} entities" in found.answer


def test_a_run_whose_splits_overlap_is_called_a_leak(tmp_path: Path) -> None:
    out = split_run(tmp_path / "run")
    metadata = read_run(out)
    test, train = (
        sorted((metadata.run.root / "training_data" / split).iterdir())
        for split in ("test", "train")
    )
    ours, theirs = (path[0].read_bytes().split(b"\n")[1].split(b",")[0] for path in (train, test))
    test[0].write_bytes(test[0].read_bytes().replace(b"\n" + theirs + b",", b"\n" + ours + b","))

    assert "both train and test, a leak" in figure(page_of(read_run(out)), "entities").answer


def test_tokens_of_packed_bins_are_trained_read_or_empty(runs: dict[str, Path]) -> None:
    metadata = read_run(runs["packed_sequences"])
    page = page_of(metadata)
    groups = metadata.manifest.metadata["groups"]

    assert sum(group["bins"] for group in groups) * 128 == total(figure(page, "contents"))
    assert sum(group["sequences"] for group in groups) == total(figure(page, "lengths"))
    cut = metadata.manifest.metadata["too_long"]["truncated"]
    assert cut
    assert f"{cut} sequence" in figure(page, "left-out").answer


def test_roles_are_counted_by_what_is_trained(tmp_path: Path) -> None:
    tokenizer = small_tokenizer(tmp_path)
    rows = [
        {
            "messages": [
                {"role": "system", "content": "be kind"},
                {"role": "user", "content": f"question {n}"},
                {"role": "assistant", "content": "a draft", "train": 0},
                {"role": "user", "content": "again"},
                {"role": "assistant", "content": f"answer {n}"},
            ]
        }
        for n in range(40)
    ]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    headrace.prepare(
        headrace.PackedSequences(
            blend=[{"name": "a", "path": str(tmp_path / "chats.jsonl")}],
            tokenizer=tokenizer,
            pack_size=256,
        ),
        tmp_path / "out",
    )
    found = figure(page_of(read_run(tmp_path / "out")), "roles")

    assert found.chart is not None
    assert [["assistant", "40", "40"], ["user", "0", "80"], ["system", "0", "40"]] == [
        *map(list, found.chart.rows)
    ]
    assert found.answer.startswith("In the loss: 40 of 80 assistant messages")


def test_token_rows_have_no_roles(runs: dict[str, Path]) -> None:
    assert "roles" not in {each.key for each in page_of(read_run(runs["packed_sequences"])).figures}


def test_legacy_pickles_have_a_page_without_their_lengths(tmp_path: Path) -> None:
    page = page_of(read_run(packed_run(tmp_path / "run", packed_storage="legacy_npy_pickle")))

    assert {"contents", "fill"} <= {each.key for each in page.figures}
    assert "lengths" not in {each.key for each in page.figures}


@pytest.mark.parametrize("format_", ["array_record", "arrow"])
def test_histories_count_each_entity_once(format_: str, tmp_path: Path) -> None:
    metadata = read_run(histories_run(tmp_path / "run", format=format_, max_row_bytes="2KiB"))
    found = figure(page_of(metadata), "entities")

    assert sum(metadata.manifest.metadata["entities"].values()) == total(found)
    assert re.search(r"\d+ entities are cut into several rows", found.answer)


@pytest.mark.parametrize("layout", ["files", "packed"])
def test_series_say_who_failed_and_what_was_filled(layout: str, tmp_path: Path) -> None:
    out = series_run(tmp_path / "run", layout=layout)
    page = page_of(read_run(out))
    summary = json.loads((read_run(out).run.root / "quality_summary.json").read_bytes())

    assert list(summary["excluded_entities"]) == ["probe_005"]
    assert "1 entity of 6 (16.7 %) was left out: probe_005." in figure(page, "quality").answer
    labels = set(figure(page, "availability").chart.picture.rows)
    assert set(summary["retained_entities"]) == labels
    assert ", none left out," not in figure(page, "availability").answer
    filled = {
        row[0]: [int(cell.replace(",", "")) for cell in row[1:]]
        for row in figure(page, "filled").chart.rows
    }
    assert set(filled) == {"rain", "flow"}
    assert "2 of 3 columns had gaps" in figure(page, "filled").answer
    assert filled["rain"][1] > 0 == filled["flow"][1]


def holes_of(out: Path) -> dict[str, tuple[int, int]]:
    """The steps and the values of the target of each entity, counted in the readable files."""
    found: dict[str, tuple[int, int]] = {}
    for path in sorted((read_run(out).run.root / "processed_time_series").rglob("*.parquet")):
        table = pl.read_parquet(path)
        for (entity,), own in table.group_by(table.columns[0]):
            steps, values = found.get(entity, (0, 0))
            found[entity] = steps + len(own), values + int(own["flow"].is_not_nan().sum())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("entities", [6, 60])
def test_holes_are_counted_in_the_values(entities: int, tmp_path: Path) -> None:
    out = series_run(tmp_path / "run", entities=entities)
    page, there = page_of(read_run(out)), holes_of(out)
    chart = figure(page, "availability" if entities == 6 else "holes").chart
    assert chart is not None
    drawn: dict[str, list[int]] = {}
    for mark in chart.picture.marks:
        values, steps = (
            int(each.replace(",", ""))
            for each in re.search(r"in ([\d,]+) of ([\d,]+) step", mark.hint).groups()
        )
        own = drawn.setdefault(mark.row, [0, 0])
        own[0] += steps
        own[1] += values

    assert {name: there[name] for name in drawn} == {
        name: tuple(own) for name, own in drawn.items()
    }
    assert len(drawn) == min(40, entities - 1)
    least = min(values / steps for steps, values in there.values())
    assert least == min(values / steps for steps, values in drawn.values())


def test_folds_have_no_tiles_or_colours_of_their_cells(tmp_path: Path) -> None:
    page = page_of(read_run(split_run(tmp_path / "run", folds=headrace.Rolling(n=2, step="30d"))))

    assert [("folds", "2")] == [tile for tile in page.tiles if tile[0] == "folds"]
    assert not [tile for tile in page.tiles if tile[0].startswith("cell")]
    assert "cell" not in str([each.chart.picture for each in page.figures if each.chart])


@pytest.mark.slow
def test_many_series_are_counted_instead_of_drawn_one_by_one(tmp_path: Path) -> None:
    out = series_run(tmp_path / "run", entities=60, layout="packed")
    found = figure(page_of(read_run(out)), "availability")

    assert len(found.chart.rows) <= 80
    assert "probe_003" not in str(found.chart.picture)


def test_writing_a_page_changes_nothing_else_and_replaces_an_older_one(tmp_path: Path) -> None:
    out = split_run(tmp_path / "run")
    root = read_run(out).run.root
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    (root / REPORT).write_text("an older one")
    page = write_report(out)
    after = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}

    assert root / REPORT == page
    assert before == {path: data for path, data in after.items() if path != page}
    assert after[page].startswith(b"<!doctype html>")
    assert len(after[page]) < 1_500_000
    assert not headrace.verify(out).problems


@pytest.mark.slow
def test_a_page_is_the_same_twice(runs: dict[str, Path], tmp_path: Path) -> None:
    pages = [
        write_report(runs["histories"], to=tmp_path / f"{n}.html").read_bytes() for n in range(2)
    ]

    assert pages[0] == pages[1]


def test_the_page_asks_for_nothing_from_anywhere(runs: dict[str, Path], tmp_path: Path) -> None:
    page = write_report(runs["series"], to=tmp_path / "page.html").read_text()

    assert set(re.findall(r"https?://[^\"' ]+", page)) <= {"http://www.w3.org/2000/svg"}


def test_without_a_finished_run_there_is_no_page(tmp_path: Path) -> None:
    with raised(InputError, path=tmp_path / "nothing", remedy="of a prepared dataset"):
        write_report(tmp_path / "nothing")


def test_words_alone_take_a_line_and_numbers_are_not_broken() -> None:
    chart = charts.bars(["a"], [1], ["plain"], unit="rows")
    figures = [
        Figure("one", "?", "Run `headrace verify <run>`."),
        Figure("two", "?", "Yes.", chart),
    ]
    table = Table("counts", ["what", "rows"], [["a", "1,234"], ["12 of 13", "2 %"]])
    html = html_of(Page("t", "s", [], figures, [table]))

    assert '<section class="figure full" id="one">' in html
    assert '<section class="figure half" id="two">' in html
    assert "Run <code>headrace verify &lt;run&gt;</code>." in html
    assert '<td>a</td><td class="number">1,234</td>' in html
    assert '<td>12 of 13</td><td class="number">2 %</td>' in html


def rectangles(chart: charts.Chart, label: str) -> list[ElementTree.Element]:
    root = ElementTree.fromstring(svg_of(chart.picture, label))
    assert {"svg", "rect", "text"} == {each.tag.rpartition("}")[2] for each in root.iter()}
    return [each for each in root if each.tag.endswith("rect")]


def test_names_from_the_data_are_texts_of_a_picture_and_no_colours() -> None:
    name = "<b onclick=\"alert(1)\"> & 'x'\0"
    chart = charts.bars([name, "other"], [1, 2], [name, "train"], unit="rows")
    found = rectangles(chart, name)

    assert ["var(--plain)", "var(--train)"] == [each.get("fill") for each in found]
    assert str(found[0].get("aria-label")).startswith("<b onclick=\"alert(1)\"> & 'x'\\x00: 1")


def test_a_median_at_the_lowest_end_is_drawn() -> None:
    chart = charts.quantiles([("x", "train", [0.0, 0.0, 0.0, 1.0, 9.0])])
    widths = [float(str(each.get("width"))) for each in rectangles(chart, "quantiles")]

    assert 3 == len(widths)
    assert min(widths) > 0
