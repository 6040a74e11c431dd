"""Cards of runs: read by the libraries that they are for, they give every split its rows."""

import json
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
import yaml
from typer.testing import CliRunner

import headrace
from headrace.cli import app
from headrace.errors import InputError
from headrace.report.card import features_of
from headrace.report.write import write_card


def run_of(out: Path) -> Path:
    return (out / "splits").resolve().parent


def front_of(card: Path) -> dict:
    return yaml.safe_load(card.read_text("utf-8").split("---\n")[1])


def sources(root: Path) -> Path:
    """Shards whose values suggest other types than the columns have: ids with zeros in front, NA as a text."""
    raw = root / "raw"
    raw.mkdir()
    for part in range(3):
        rows = [
            f"{part * 9 + n:05d},2024-0{1 + n % 9}-01,{'NA' if n % 2 else n if part else 'x'}" for n in range(30 + part)
        ]
        (raw / f"part-{part}.csv").write_text("\n".join(["who,when,what", *rows]) + "\n")
    return raw


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("card")
    split = headrace.TemporalSplit(source=sources(root), time="when", entity="who", split_date="2024-07-01")
    headrace.prepare(split, root / "out")
    return root / "out"


def test_datasets_loads_every_split_as_headrace_reads_it(splits: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the extra datasets")
    card = write_card(splits, "markdown", license_="cc-by-4.0")
    loaded = datasets.load_dataset(str(run_of(splits)), cache_dir=str(tmp_path))
    ours = headrace.open(splits)

    assert "cc-by-4.0" == front_of(card)["license"]
    assert {*ours.splits} == {*loaded}
    for name in ours.splits:
        assert ours[name].to_polars().collect().rows() == [tuple(row.values()) for row in loaded[name]]


def test_each_fold_is_a_configuration(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the extra datasets")
    raw = sources(tmp_path)
    split = headrace.TemporalSplit(
        source=raw, time="when", entity="who", folds=headrace.GroupKFold(k=3), format="parquet"
    )
    headrace.prepare(split, tmp_path / "out")
    write_card(tmp_path / "out", "markdown")
    for number in range(3):
        fold = headrace.open(tmp_path / "out").fold(number)
        loaded = datasets.load_dataset(str(run_of(tmp_path / "out")), f"fold_{number}", cache_dir=str(tmp_path / "hub"))

        assert {name: rows for name, rows in fold.split_rows.items() if rows} == loaded.num_rows


def test_rows_without_splits_are_called_train(tmp_path: Path) -> None:
    headrace.prepare(headrace.Rewrite(source=sources(tmp_path)), tmp_path / "out")
    front = front_of(write_card(tmp_path / "out", "markdown"))

    assert ["train"] == [each["split"] for each in front["configs"][0]["data_files"]]
    assert 93 == front["dataset_info"]["splits"][0]["num_examples"]


def test_a_card_names_no_path_of_the_source(splits: Path) -> None:
    for form in ("markdown", "croissant"):
        assert str(splits.parent) not in write_card(splits, form, license_="cc-by-4.0").read_text("utf-8")


def test_an_edited_card_is_not_replaced(splits: Path, tmp_path: Path) -> None:
    target = tmp_path / "README.md"
    write_card(splits, "markdown", to=target)
    write_card(splits, "markdown", to=target)
    target.write_text(target.read_text() + "From the sea.\n")

    with pytest.raises(InputError, match="exists already"):
        write_card(splits, "markdown", to=target)

    assert target.read_text().endswith("From the sea.\n")


def test_the_card_is_no_part_of_the_run(splits: Path) -> None:
    write_card(splits, "markdown", license_="cc-by-4.0")
    write_card(splits, "croissant", license_="cc-by-4.0")

    assert [] == headrace.verify(splits).problems


def test_croissant_has_every_shard_and_its_digest(splits: Path) -> None:
    import hashlib

    record = json.loads(write_card(splits, "croissant", license_="cc-by-4.0").read_text("utf-8"))
    files = [each for each in record["distribution"] if each["@type"] == "cr:FileObject"]

    assert {*pl.read_parquet(run_of(splits) / "index.parquet")["shard"]} == {each["contentUrl"] for each in files}
    for each in files:
        assert each["sha256"] == hashlib.sha256((run_of(splits) / each["contentUrl"]).read_bytes()).hexdigest()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the libraries that it uses
def test_mlcroissant_reads_every_row(splits: Path) -> None:
    mlcroissant = pytest.importorskip("mlcroissant", reason="needs mlcroissant")
    dataset = mlcroissant.Dataset(jsonld=str(write_card(splits, "croissant", license_="cc-by-4.0")))

    assert not dataset.metadata.ctx.issues.errors
    for name, rows in headrace.open(splits).split_rows.items():
        assert rows == sum(1 for _ in dataset.records(name))


def test_features_are_those_that_datasets_makes_of_the_schema() -> None:
    datasets = pytest.importorskip("datasets", reason="needs the extra datasets")
    kinds = [
        pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.large_string(),
        pa.binary(), pa.date32(), pa.timestamp("us"), pa.timestamp("ns", tz="UTC"), pa.list_(pa.int32()),
        pa.list_(pa.float32(), 3), pa.large_list(pa.int64()), pa.list_(pa.list_(pa.string())),
        pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))]), pa.decimal128(9, 2), pa.time64("us"),
    ]  # fmt: skip
    schema = pa.schema([(f"c{number}", kind) for number, kind in enumerate(kinds)])

    assert datasets.Features.from_arrow_schema(schema) == datasets.Features._from_yaml_list(features_of(schema))
    assert features_of(pa.schema([("a", pa.map_(pa.string(), pa.int32()))])) is None


def test_the_command_refuses_other_formats(splits: Path, tmp_path: Path) -> None:
    wrong = CliRunner().invoke(app, ["card", str(splits), "--format", "json"])
    right = CliRunner().invoke(app, ["card", str(splits), "--to", str(tmp_path / "card.md"), "--json"])

    assert wrong.exit_code != 0
    assert {"card": str(tmp_path / "card.md")} == json.loads(right.stdout)
