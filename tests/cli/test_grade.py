"""The last line of a run: pass, warn or fail, and what it lost."""

import datetime
import json
from pathlib import Path

import pytest

from commands import headrace as command

DAYS = [f"2024-{1 + n % 12:02d}-{1 + n % 28:02d}" for n in range(600)]
SPLIT = ("--time", "when", "--split-date", "2024-07-01")


def source(tmp_path: Path, amount: str = "{n}.5", times: int = 1) -> str:
    """Events of customers. times: rows of each."""
    lines = [f"c{n // times},{DAYS[(n * 7) % 600]},{amount.format(n=n)}" for n in range(len(DAYS))]
    path = tmp_path / "events.csv"
    path.write_text("\n".join(["customer,when,amount", *lines]) + "\n")
    return str(path)


def graded(tmp_path: Path, *words: object) -> tuple[int, str]:
    """The exit code, and the last line."""
    done = command("split", *words, "--out", tmp_path / "out")
    return done.returncode, done.stdout.splitlines()[-1]


def test_a_run_that_loses_little_passes(tmp_path: Path) -> None:
    assert (0, "pass: nothing to note") == graded(tmp_path, source(tmp_path), *SPLIT)


def test_rows_lost_are_warned_of_and_fail_above_the_share(tmp_path: Path) -> None:
    path = source(tmp_path, times=60)
    entity = ("--entity", "customer")
    code, line = graded(tmp_path, path, *SPLIT, *entity)
    assert (0, True) == (code, line.startswith("warn: "))
    assert "most as train_entity_after_cutoff" in line
    code, line = graded(tmp_path, path, *SPLIT, *entity, "--max-dropped", "0.1")

    assert (1, True) == (code, line.startswith("fail: "))
    assert "--max-dropped" in line
    again = command("split", path, *SPLIT, *entity, "--out", tmp_path / "out", "--json")
    assert "warn" == json.loads(again.stdout)["grade"]["word"], "a run that is reused is graded too"


def test_a_configuration_holds_the_share(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(
        f"recipe: temporal_split\nsource: {source(tmp_path, times=60)}\ntime: when\n"
        f"entity: customer\nsplit_date: 2024-10-01\nmax_dropped: 0.1\nout: {tmp_path}/out\n"
    )

    assert 1 == command("run", config).returncode


def test_a_table_of_texts_alone_is_told(tmp_path: Path) -> None:
    code, line = graded(tmp_path, source(tmp_path, amount="EUR {n}"), *SPLIT)

    assert (0, True) == (code, line.startswith("warn: no column"))


@pytest.mark.parametrize(
    ("days", "words", "code", "told"),
    [
        ((0, 200), (), 0, "overlap in calendar time"),
        ((0, 0), ("--past-features", "x"), 0, "pass: "),
        ((0, 0), (), 0, "warn: the warning above"),  # that both are one series
    ],
    ids=["overlap", "pass", "no features"],
)
def test_series_are_graded(
    days: tuple[int, int], words: tuple[str, ...], code: int, told: str, tmp_path: Path
) -> None:
    (tmp_path / "raw").mkdir()
    for name, first in zip("ab", days, strict=True):
        lines = [f"{day(first + n)},{n % 7},{(n + ord(name)) % 5}" for n in range(300)]
        (tmp_path / f"raw/{name}.csv").write_text("\n".join(["date,y,x", *lines]) + "\n")
    done = command("series", tmp_path / "raw", "--target", "y", *words, "--out", tmp_path / "out")

    assert code == done.returncode, done.stderr
    assert told in done.stdout.splitlines()[-1]


def test_entities_left_out_fail_above_half(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    for name in "abc":
        lines = [f"{day(n // (2 if name > 'a' else 1))},{n % 7},{n % 5}" for n in range(300)]
        (tmp_path / f"raw/{name}.csv").write_text("\n".join(["date,y,x", *lines]) + "\n")
    words = ("series", tmp_path / "raw", "--target", "y", "--past-features", "x")
    done = command(*words, "--out", tmp_path / "out")

    assert 1 == done.returncode
    assert "2 of 3 entities are left out" in done.stdout
    assert 0 == command(*words, "--out", tmp_path / "out", "--max-dropped", "1").returncode


def day(number: int) -> str:
    return (datetime.date(2020, 1, 1) + datetime.timedelta(number)).isoformat()
