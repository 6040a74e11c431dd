"""Folders that `save_to_disk` of datasets wrote give the rows that datasets itself reads from them."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from foreign_layouts import saved_dataset, saved_dict, text

import commands
import headrace
from headrace.errors import InputError
from headrace.formats.listing import list_files
from headrace.series.sources import source_files
from raised import raised

GSM8K = Path(__file__).parents[2].parent / "shared" / "data" / "job5-gsm8k" / "test.jsonl.gz"


@pytest.fixture(scope="module")
def datasets() -> Any:
    library = pytest.importorskip("datasets", reason="writes what is read here")
    library.disable_progress_bars()
    return library


@pytest.fixture(scope="module")
def questions(datasets: Any) -> Any:
    if not GSM8K.is_file():
        pytest.skip(f"{GSM8K} is not there: the data set is not in the repository")
    rows = [json.loads(line) for line in gzip.decompress(GSM8K.read_bytes()).splitlines()]
    kinds = datasets.Features(
        {
            "question": datasets.Value("string"),
            "answer": datasets.Value("large_string"),
            "row": datasets.Value("int32"),
            "length": datasets.ClassLabel(names=["short", "long"]),
            "grid": datasets.Array2D((1, 2), "int32"),
        }
    )
    more = [
        {**row, "row": at, "length": int(len(row["answer"]) > 300), "grid": [[at, -at]]}
        for at, row in enumerate(rows)
    ]
    return datasets.Dataset.from_list(more, features=kinds)


def records(dataset: Any, split: str = "all") -> list[dict[str, Any]]:
    return dataset[split].to_arrow().to_pylist()  # type: ignore[no-any-return]


def own(datasets: Any, root: Path) -> Any:
    """Read a folder with the library itself, without decoding what features say of values."""
    loaded = datasets.load_from_disk(str(root))
    if isinstance(loaded, datasets.Dataset):
        return loaded.with_format("arrow")[:].to_pylist()
    return {name: each.with_format("arrow")[:].to_pylist() for name, each in loaded.items()}


@pytest.mark.parametrize("saved", ["whole", "shuffled", "selected", "shards", "filtered"])
def test_a_saved_dataset_has_the_rows_that_its_library_reads(
    datasets: Any, questions: Any, tmp_path: Path, saved: str
) -> None:
    make = {
        "whole": lambda: questions,
        "shuffled": lambda: questions.shuffle(seed=3),
        "selected": lambda: questions.select([7, 1, 1, 400, 2]),
        "shards": lambda: questions.shuffle(seed=4).select(range(900)),
        "filtered": lambda: questions.filter(lambda row: row["row"] % 3 == 0),
    }
    make[saved]().save_to_disk(str(tmp_path / "data"), num_shards=7 if saved == "shards" else None)

    opened = headrace.open(tmp_path / "data", cache_dir=tmp_path / "cache")

    assert own(datasets, tmp_path / "data") == records(opened)
    assert {"all": make[saved]().num_rows} == dict(opened.split_rows)


def test_splits_of_a_saved_dict_are_those_that_it_names(
    datasets: Any, questions: Any, tmp_path: Path
) -> None:
    parts = questions.train_test_split(0.2, seed=1)
    whole = datasets.DatasetDict(
        {
            "train_sft": parts["train"],
            "test": parts["test"],
            "Unsupervised data": parts["test"].shuffle(seed=2),
        }
    )
    whole.save_to_disk(
        str(tmp_path / "data"), num_shards={"train_sft": 3, "test": 1, "Unsupervised data": 1}
    )

    opened = headrace.open(tmp_path / "data", cache_dir=tmp_path / "cache")

    assert ("test", "Unsupervised data", "train_sft") == opened.splits
    assert own(datasets, tmp_path / "data") == {
        split: records(opened, split) for split in opened.splits
    }
    assert own(datasets, tmp_path / "data" / "test") == records(
        headrace.open(tmp_path / "data" / "test")
    )
    rows = [
        row
        for batch in opened.stream("train_sft", batch_size=10, batch_format="numpy")
        for row in batch["row"]
    ]
    assert {row["row"] for row in records(opened, "train_sft")} == set(rows)
    with pytest.raises(InputError, match="several splits, test, Unsupervised data, train_sft"):
        list_files([tmp_path / "data"])
    headrace.prepare(headrace.Rewrite(source=tmp_path / "data"), tmp_path / "out")
    rewritten = headrace.open(tmp_path / "out")
    assert {split: records(opened, split) for split in opened.splits} == {
        split: records(rewritten, split) for split in rewritten.splits
    }


def test_init_of_chats_refuses_splits_that_it_has_no_word_for(
    datasets: Any, tmp_path: Path
) -> None:
    rows = datasets.Dataset.from_dict({"question": ["a", "b"], "answer": ["c", "d"]})
    datasets.DatasetDict({"train": rows, "unsupervised": rows}).save_to_disk(str(tmp_path / "data"))

    told = commands.headrace(
        "init", "pack", "data", "--out", "o", "--config", "c.yaml", cwd=tmp_path
    )

    assert "several splits, train, unsupervised" in told.stderr


def test_files_that_a_saved_dataset_does_not_list_are_not_its_rows(
    datasets: Any, questions: Any, tmp_path: Path
) -> None:
    questions.select(range(30)).save_to_disk(str(tmp_path / "data"), num_shards=5)
    questions.select(range(20)).save_to_disk(
        str(tmp_path / "data"), num_shards=2
    )  # shards of before stay
    datasets.load_from_disk(str(tmp_path / "data")).map(lambda row: {"row": -1})  # leaves a cache
    assert {"data-00000-of-00005.arrow"} < {
        path.name for path in (tmp_path / "data").glob("*.arrow")
    }
    assert list((tmp_path / "data").glob("cache-*.arrow"))

    opened = headrace.open(tmp_path / "data", cache_dir=tmp_path / "cache")

    assert own(datasets, tmp_path / "data") == records(opened)
    assert list(range(20)) == [each["row"] for each in records(opened)]
    for pattern in ("data/*.arrow", "**/*.arrow"):
        with pytest.raises(InputError, match="save_to_disk.*give .* itself"):
            list_files([tmp_path / pattern])


def test_types_do_not_depend_on_whether_the_library_is_imported(
    questions: Any, tmp_path: Path
) -> None:
    questions.save_to_disk(str(tmp_path / "data"))
    code = "import sys, headrace; print(headrace.open(*sys.argv[1:2], cache_dir=sys.argv[2])['all'].to_arrow().schema)"
    run = [sys.executable, "-c", code, str(tmp_path / "data"), str(tmp_path / "cache")]

    told = subprocess.run(run, check=True, capture_output=True, text=True).stdout

    assert (
        str(headrace.open(tmp_path / "data", cache_dir=tmp_path / "own")["all"].to_arrow().schema)
        == told.strip()
    )
    assert "extension" not in told


def test_every_recipe_takes_a_saved_dataset(datasets: Any, tmp_path: Path) -> None:
    rows = datasets.Dataset.from_dict(
        {
            "id": [f"10.0.0.{at % 20}" for at in range(400)],
            "t": [f"20{20 + at % 5}-0{1 + at % 9}-1{at // 45}" for at in range(400)],
            "x": [at / 3 for at in range(400)],
            "y": [float(at) for at in range(400)],
            "prompt": [f"10.1.0.{at % 7}" for at in range(400)],
        }
    )
    rows.save_to_disk(str(tmp_path / "raw"), num_shards=3)
    rows.to_parquet(str(tmp_path / "plain" / "a.parquet"))
    for name, recipe in {
        "split": lambda source: headrace.TemporalSplit(
            source=source, time="t", entity="id", split_date="2023-01-01"
        ),
        "rewrite": lambda source: headrace.Rewrite(source=source),
        "histories": lambda source: headrace.Histories(
            source=source,
            entity="id",
            time="t",
            dialect={"time_format": "iso"},
            peer="prompt",
            value="x",
        ),
    }.items():
        counts = []
        for source in ("raw", "plain"):
            headrace.prepare(recipe(tmp_path / source), tmp_path / name / source)
            counts.append(dict(headrace.open(tmp_path / name / source).split_rows))
        assert counts[0] == counts[1]
    listed = [f"data-0000{at}-of-00003.arrow" for at in range(3)]
    chats = headrace.PackedSequences(blend=str(tmp_path / "raw"), pack_size=8)
    assert listed == [path.name for each in chats.blend.find_files() for path in each.paths]
    series = headrace.Series(
        source=tmp_path / "raw",
        time="t",
        future_features=("x",),
        target="y",
        entity="id",
        static=tmp_path / "raw",
        static_features=("prompt",),
    )
    assert [*listed, *listed] == [path.name for path, _ in source_files(series)]


def test_a_listed_file_that_is_missing_is_named(tmp_path: Path) -> None:
    saved_dict(tmp_path)
    (tmp_path / "test" / "data-00000-of-00001.arrow").unlink()
    with pytest.raises(InputError, match=r"data-00000-of-00001\.arrow: cannot be read"):
        list_files([tmp_path / "test"])
    (tmp_path / "test" / "state.json").unlink()
    with raised(InputError, remedy="fetch it again"):
        headrace.open(tmp_path)


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"_data_files": [{"filename": "a.arrow"}], "_indices_data_files": [{"filename": "i.arrow"}]}, "flatten_indices"),
        ({"_data_files": [{"filename": "../a.arrow"}]}, "not an Arrow file beside it"),
        ({"_data_files": [{"filename": "state.json"}]}, "not an Arrow file beside it"),
        ({"_data_files": [{"filename": "b.arrow"}, {"filename": "a.arrow"}]}, "order"),
        ({"_data_files": [{"filename": "a.arrow"}, {"filename": "a.arrow"}]}, "order"),
        ({"_data_files": []}, "lists no files"),
        ({"_data_files": [None]}, "names None"),
        ({}, "_data_files is None"),
        ([], "a list, not an object"),
        ("{", "not JSON"),
    ],
)  # fmt: skip
def test_a_state_that_is_not_read_as_its_library_does_is_refused(
    tmp_path: Path, state: object, says: str
) -> None:
    saved_dataset(tmp_path)
    text(tmp_path / "state.json", state)

    with pytest.raises(InputError, match=rf"state\.json.*{says}"):
        headrace.open(tmp_path, cache_dir=tmp_path / "cache")


@pytest.mark.parametrize(
    "splits", [None, [], ["train", "train"], ["../train"], [".train"], [7], [""]]
)
def test_odd_names_of_splits_are_refused(tmp_path: Path, splits: object) -> None:
    saved_dict(tmp_path)
    text(tmp_path / "dataset_dict.json", {"splits": splits})

    with pytest.raises(InputError, match=r"dataset_dict\.json: splits is"):
        headrace.open(tmp_path)


def test_links_of_a_saved_dataset_are_followed(tmp_path: Path) -> None:
    saved_dataset(tmp_path / "real")
    (tmp_path / "linked").mkdir()
    for path in (tmp_path / "real").iterdir():
        (tmp_path / "linked" / path.name).symlink_to(path)

    assert ["data-00000-of-00001.arrow"] == list_files([tmp_path / "linked"]).names
    assert pa.types.is_int64(
        headrace.open(tmp_path / "linked")["all"].to_arrow().schema.field(0).type
    )
