"""`headrace init DATA`: the recipe is chosen, and what is not certain is refused with what to give."""

import json
from pathlib import Path

import pytest
import yaml

import headrace
from commands import headrace as command
from headrace.cli.init.choose import fits
from headrace.errors import SettingsError
from raised import raised

EVENTS = "customer,when,amount\n" + "".join(
    f"c{n % 37},2024-{1 + n % 12:02d}-{1 + n % 28:02d},{n}.5\n" for n in range(600)
)
CHATS = "".join(
    json.dumps({"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": "yes"}]}) + "\n"
    for n in range(50)
)  # fmt: skip
READINGS = "at,sensor\n" + "".join(
    f"2024-01-{1 + n // 24:02d}T{n % 24:02d}:00,{n % 7}.25\n" for n in range(480)
)
REVIEWS = "when,who,text\n" + "".join(
    f"2024-{1 + n % 12:02d}-03,u{n % 40},fine thing {n}\n" for n in range(400)
)


def written(tmp_path: Path, name: str, text: str) -> str:
    path = tmp_path / "raw" / name
    path.parent.mkdir()
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("events.csv", EVENTS, "split"),
        ("chats.jsonl", CHATS, "pack"),
        ("readings.csv", READINGS, "split"),
        ("reviews.csv", REVIEWS, "split"),
    ],
)
def test_the_recipe_is_chosen_by_the_data(tmp_path: Path, name: str, text: str, word: str) -> None:
    assert word == fits([written(tmp_path, name, text)], "out")[0].word


def test_what_is_written_runs(tmp_path: Path) -> None:
    source = written(tmp_path, "events.csv", EVENTS)
    config = tmp_path / "config.yaml"
    done = command("init", source, "--out", str(tmp_path / "out"), "--config", str(config))
    run = command("run", str(config))
    settings = yaml.safe_load(config.read_text())

    assert (0, 0) == (done.returncode, run.returncode), done.stderr + run.stderr
    assert ("temporal_split", "customer", "when") == tuple(
        settings[name] for name in ("recipe", "entity", "time")
    )
    assert "series" in done.stdout
    assert set(headrace.open(tmp_path / "out").splits) >= {"train", "test"}


def test_readings_are_no_entities(tmp_path: Path) -> None:
    best = fits([written(tmp_path, "readings.csv", READINGS)], "out")[0]
    settings = {name: value for part in best.sections for name, value in part.settings.items()}

    assert "at" == settings["time"]
    assert not isinstance(settings["entity"], str)
    assert "train_ratio" not in settings


def test_times_in_several_forms_are_refused_and_not_drawn_at_random(tmp_path: Path) -> None:
    text = "at,x\n" + "".join(f"2024/01/{n:02d} 10:00,{n}\n" for n in range(1, 20))
    text += "".join(f"2024/02/{n:02d} 10:00:30,{n}\n" for n in range(1, 20))
    with raised(SettingsError, remedy="write them in one form"):
        fits([written(tmp_path, "a.csv", text)], "out")
