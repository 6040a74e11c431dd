"""Write the tables of docs/performance.md and benchmarks/measurements.md from the results that the programs here kept.

    python benchmarks/performance_page.py [--take build/bench]

`--take` first copies the results of a run into benchmarks/results. The text between `<!-- table: PROGRAM/TABLE -->` and
`<!-- end -->` is that table of benchmarks/results/PROGRAM.json. `<!-- runs -->` says when and with which versions each
program ran, and `<!-- headline -->` is a choice of ratios. A table without a result stays unchanged. The words
around the tables are written by hand.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from figures import Cell, Table, markdown, of_json

ROOT = Path(__file__).parents[1]
SPEED = "speed, of the first's"
SECOND = "speed, of the second's"
BEST_FIT = "times our best fit"
PEER = "headrace makes times as many"
RESULTS = ROOT / "benchmarks" / "results"
PAGES = (
    ROOT / "docs" / "performance.md",
    ROOT / "benchmarks" / "measurements.md",
)  # the summary, and every table
MARKED = re.compile(
    r"(?P<begin><!-- (?:table: (?P<name>[\w/-]+)|(?P<part>runs|headline)) -->\n)(?P<kept>.*?)(?P<end><!-- end -->)",
    re.S,
)
HEADLINE = (  # (what is compared, PROGRAM/TABLE, the row that begins so, its column)
    (
        "Streaming ordinary Parquet, shuffled, compared with a loop over pyarrow",
        "streaming/numbers_numpy",
        "headrace",
        SPEED,
    ),
    ("The same, compared with a loop over Polars", "streaming/numbers_numpy", "headrace", SECOND),
    ("In order, compared with a loop over pyarrow", "streaming/in_order_numpy", "headrace", SPEED),
    (
        "Rewritten files, shuffled, each shard checked, compared with pyarrow on ordinary ones",
        "streaming/numbers_numpy",
        "headrace, rewritten",
        SPEED,
    ),
    (
        "The same, compared with Polars on ordinary ones",
        "streaming/numbers_numpy",
        "headrace, rewritten",
        SECOND,
    ),
    (
        "CSV with types, in order, compared with a loop over Polars",
        "streaming/csv",
        "headrace",
        SPEED,
    ),
    ("CSV with types, shuffled", "streaming/csv_shuffled", "headrace", SPEED),
    (
        "Lists of tokens, padded, compared with a loop over pyarrow",
        "streaming/tokens",
        "headrace",
        SPEED,
    ),
    ("Two DataLoader workers, compared with pyarrow", "streaming/workers", "headrace", SPEED),
    (
        "Splitting CSV by time and entity, compared with pandas",
        "split/csv",
        "the pandas",
        "times headrace's",
    ),
    ("Splitting Parquet, compared with pandas", "split/parquet", "the pandas", "times headrace's"),
    (
        "Packing 100,000 lengths, compared with trl",
        "packing/pack-100000",
        "trl bfd, whole",
        BEST_FIT,
    ),
    (
        "Tokenizing chats, compared with a loop (CPU)",
        "tokenising/chats",
        "headrace",
        "the loop takes times the CPU",
    ),
    (
        "Building histories, compared with a DuckDB sort (CPU)",
        "histories/engines",
        "DuckDB",
        "times the first's",
    ),
    ("Windows of series, compared with neuralhydrology", "series/peers", "neuralhydrology", PEER),
    (
        "Preparing basins, compared with the usual design (CPU)",
        "series_prep/basins",
        "usual",
        "times headrace",
    ),
)
MOST_BUSY = 0.1
COUNTED = {
    "blend_peers",
    "leaks",
    "loader_workers",
    "order",
    "other_loaders",
}  # without a clock: other processes change nothing
SHOWN = ("Python", "numpy", "pyarrow")

Results = Mapping[str, Mapping[str, Any]]


def compose(page: str, results: Results) -> str:
    """The page with the tables of these results, by program. Raises `ValueError` for a table that no program makes."""
    if not results:
        return page
    found = {
        f"{name}/{each['name']}": of_json(each)
        for name, kept in results.items()
        for each in kept["tables"]
    }

    def put(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None:
            made = runs(results) if match["part"] == "runs" else headline(found, results)
            return f"{match['begin']}\n{markdown(made)}\n\n{match['end']}"
        if name in found:
            title = f"**{found[name].title}**"
            return f"{match['begin']}\n{title}\n\n{markdown(found[name])}\n\n{match['end']}"
        if name.partition("/")[0] in results:
            program = name.partition("/")[0]
            raise ValueError(
                f"benchmarks/measurements.md asks for the table {name}, which benchmarks/results/{program}.json lacks;"
                f" run all of it: make bench-{program} performance"
            )
        return match[0]

    return MARKED.sub(put, page)


def runs(results: Results) -> Table:
    """A row for each program: what was run, when, how long, and with which versions."""
    rows: list[tuple[Cell, ...]] = []
    for _, kept in sorted(results.items()):
        others = [
            f"{name} {version}"
            for name, version in kept["versions"].items()
            if name not in (*SHOWN, "headrace")
        ]
        took = f"{kept['wall_s'] / 60:.1f}"
        rows.append((f"`{kept['command']}`", kept["date"], took, ", ".join(others) or "–"))
    minutes = sum(kept["wall_s"] for kept in results.values()) / 60
    note = f"{conditions(results)} Together: {minutes:.0f} minutes."
    return Table("runs", "What was run", ("command", "date", "minutes", "versions"), rows, note)


def conditions(results: Results) -> str:
    """The machines and the versions of these runs."""
    machines = sorted({kept["machine"] for kept in results.values()})
    versions = sorted(
        {
            ", ".join(f"{name} {kept['versions'][name]}" for name in SHOWN)
            for kept in results.values()
        }
    )
    return f"Machine: {'; '.join(machines)}. Everywhere: {'; '.join(versions)}."


def headline(found: Mapping[str, Table], results: Results) -> Table:
    """Those of the chosen ratios that were measured. Raises `ValueError` if a table has no such row or column."""
    shown: dict[str, Mapping[str, Any]] = {}
    rows: list[tuple[Cell, ...]] = []
    for words, name, begins, head in HEADLINE:
        table = found.get(name)
        if table is None:
            continue
        lines = [row for row in table.rows if str(row[0]).startswith(begins)]
        if head not in table.heads or not (lines or table.missing):
            raise ValueError(
                f"the headline asks {name} for the row {begins!r} and the column {head!r}"
            )
        cell = lines[0][table.heads.index(head)] if lines else "not measured"
        program = name.partition("/")[0]
        shown[program] = results[program]
        rows.append((words, cell, f"`{program}`"))
    dates = sorted({kept["date"] for kept in shown.values()})
    note = f"Measured on {', '.join(dates)}. {conditions(shown)}"
    return Table("headline", "Ratios", ("what", "times as fast", "`make bench-…`"), rows, note)


def read_pages() -> dict[Path, str]:
    """Read the text of both pages."""
    return {path: path.read_text("utf-8") for path in PAGES}


def asked_for(page: str) -> set[str]:
    """List PROGRAM/TABLE of every table on the page."""
    return {match["name"] for match in MARKED.finditer(page) if match["name"]}


def too_busy(results: Results) -> list[str]:
    """Tables that others took more than a tenth of the machine from while they were measured, with how much."""
    return [
        f"{program}/{table} {share:.0%}"
        for program, kept in sorted(results.items())
        for table, share in kept.get("busy", {}).items()
        if share > MOST_BUSY and program not in COUNTED
    ]


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """What was kept, by program."""
    return {
        path.stem: json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))
    }


def main() -> int:
    """Take, compose, write; 1 if a table of the page was never measured, or one does not go with the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--take", type=Path, help="copy the results of this folder first")
    asked = parser.parse_args()
    pages = read_pages()
    programs = {name.partition("/")[0] for text in pages.values() for name in asked_for(text)}
    taken = (
        {}
        if asked.take is None
        else {path.stem: path for path in asked.take.glob("*.json") if path.stem in programs}
    )
    busy = too_busy({name: json.loads(path.read_text("utf-8")) for name, path in taken.items()})
    if busy:
        print(
            f"measured while other processes kept the machine busy, measure again: {'; '.join(busy)}",
            file=sys.stderr,
        )
        return 1
    results = read_results(RESULTS) | {
        name: json.loads(path.read_text("utf-8")) for name, path in taken.items()
    }
    try:
        composed = {path: compose(text, results) for path, text in pages.items()}
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    RESULTS.mkdir(exist_ok=True)
    for path in taken.values():
        (RESULTS / path.name).write_bytes(path.read_bytes())
    for path, text in composed.items():
        path.write_text(text, "utf-8")
    never = sorted(programs - set(results))
    if never:
        print(
            f"tables of {', '.join(never)} are left as they are: benchmarks/results has nothing of them",
            file=sys.stderr,
        )
    return int(bool(never))


if __name__ == "__main__":
    sys.exit(main())
