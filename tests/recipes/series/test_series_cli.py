"""`headrace series`, `headrace run` and `headrace verify`: one job, said in different ways."""

import json
from pathlib import Path

import pytest
import yaml
from basins import a_basin, series, write_basins

from commands import headrace as run_command


def configuration(directory: Path, **more) -> Path:
    source = write_basins(directory / "in", {f"g{place}": a_basin(place) for place in range(4)})
    record = {
        "recipe": "series",
        "source": str(source),
        "target": "flow",
        "future_features": ["rain", "cold"],
        "frequency": "1d",
        "min_train_years": 0.02,
        "batch_size": 3,
        "preprocessing_configs": {
            "features": {
                "strategy": "unified",
                "pipeline": ["MinMaxScaler"],
                "fit_on_n_entities": 2,
            },
            "target": {
                "strategy": "per_group",
                "pipeline": [{"step": "StandardScaler", "with_mean": False}],
            },
        },
        "out": str(directory / "out"),
        **more,
    }
    path = directory / "config.yaml"
    path.write_text(yaml.safe_dump(record))
    return path


def test_series_run_and_the_library_make_the_same_run(tmp_path: Path) -> None:
    config = configuration(tmp_path)
    record = yaml.safe_load(config.read_text())
    flags = [
        tmp_path / "in",
        "--preprocessing-configs",
        json.dumps(record["preprocessing_configs"]),
    ]
    for name in ("target", "frequency", "min_train_years", "batch_size", "out"):
        flags += [f"--{name.replace('_', '-')}", record[name]]
    done = run_command("series", *flags, "--future-features", "rain,cold", "--json")
    again = run_command("run", config, "--json")
    same = series(
        tmp_path / "in", tmp_path / "library", preprocessing_configs=record["preprocessing_configs"]
    )

    assert (0, 0) == (done.returncode, again.returncode), done.stderr
    assert ("computed", "reused") == (
        json.loads(done.stdout)["how"],
        json.loads(again.stdout)["how"],
    )
    assert (
        same.manifest.run_id
        == json.loads(done.stdout)["run_id"]
        == json.loads(again.stdout)["run_id"]
    )


def test_the_summary_says_what_was_left_out_and_verify_checks_it(tmp_path: Path) -> None:
    config = configuration(tmp_path)
    (tmp_path / "in" / "broken.parquet").write_bytes(b"PAR1")
    done = run_command(
        "run", config, "--set", "max_imputation_gap_size=2", "--set", "layout=packed"
    )
    verified = run_command("verify", tmp_path / "out", "--json")

    assert 0 == done.returncode, done.stderr
    assert "4 of 5 entities" in done.stdout
    assert "broken" in done.stdout
    assert "1d" in done.stdout
    verdict = json.loads(verified.stdout)
    assert verdict["ok"], verdict
    assert "scalers are of train rows" in [check["name"] for check in verdict["checks"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "min_train_years"], "expected NAME=VALUE"),
        (["--set", "min_train_year=1"], "did you mean 'min_train_years'"),
        (["--set", "layout=wide"], "layout"),
        (["--set", "entities='@no.txt'"], "no.txt: cannot be read"),
    ],
)
def test_errors_are_one_message_and_an_exit_code(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = run_command("run", configuration(tmp_path), *arguments)

    assert 2 == done.returncode
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_a_file_of_entities_restricts_the_run(tmp_path: Path) -> None:
    config = configuration(tmp_path)
    (tmp_path / "some.txt").write_text("g2\n\ng0\nnobody\n")
    done = run_command("run", config, "--set", f"entities='@{tmp_path}/some.txt'", "--json")

    summary = json.loads(
        (Path(json.loads(done.stdout)["run"]) / "quality_summary.json").read_bytes()
    )
    assert ["g0", "g2"] == summary["retained_entities"]
    assert {"nobody": "no file has its name; correct entities"} == summary["excluded_entities"]


def test_settings_override_those_of_the_file(tmp_path: Path) -> None:
    pipelines = "{target: {strategy: per_group, pipeline: [MinMaxScaler]}}"
    changed = {
        "future_features": "rain",
        "dialect": "{null_values: ['-999']}",
        "preprocessing_configs": pipelines,
        "entities": "[g1, g2]",
        "bad_rows": "drop",
    }
    given = [word for name, value in changed.items() for word in ("--set", f"{name}={value}")]
    done = run_command("run", configuration(tmp_path), *given, "--json")

    assert 0 == done.returncode, done.stderr
    asked = json.loads((Path(json.loads(done.stdout)["run"]) / "config.json").read_bytes())
    names = ("future_features", "entities", "bad_rows")
    assert (["rain"], ["g1", "g2"], "drop") == tuple(asked[name] for name in names)
    assert ["-999"] == asked["dialect"]["null_values"]
    assert "MinMaxScaler" in json.dumps(asked["preprocessing_configs"]["target"])


def test_a_source_is_taken_as_by_other_commands(tmp_path: Path) -> None:
    source = write_basins(tmp_path / "in", {f"g{place}": a_basin(place) for place in range(2)})
    words = ["--out", tmp_path / "out", "--target", "flow", "--future-features", "rain"]
    done = run_command("series", source, *words, "--min-train-years", "0.02", "--json")

    assert 0 == done.returncode, done.stderr
    assert ["g0", "g1"] == json.loads(
        (Path(json.loads(done.stdout)["run"]) / "quality_summary.json").read_text()
    )["retained_entities"]


@pytest.mark.parametrize("command", ["series", "split", "rewrite", "histories"])
def test_a_configuration_is_no_data(command: str, tmp_path: Path) -> None:
    config = configuration(tmp_path)
    needed = {"split": ["--by", "g"], "series": ["--target", "f"]}
    done = run_command(command, config, "--out", tmp_path / "other", *needed.get(command, ()))

    assert 0 != done.returncode
    assert f"headrace run {config}" in "".join(done.stderr.split("\n"))


def test_data_are_no_configuration(tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text('[{"x": 1}]')
    done = run_command("run", tmp_path / "data.json", "--out", tmp_path / "out")

    assert 2 == done.returncode
    assert "headrace init" in done.stderr
