"""verify finds what is wrong with a finished run, from the output alone, and says where."""

from collections.abc import Callable
from pathlib import Path

import pytest

import headrace
from headrace.dataset.manifest import INDEX, MANIFEST
from resealed import reseal, reseal_files


def prepared(tmp_path: Path, **settings: object) -> headrace.types.Prepared:
    """Four shards of 50 rows; 40 entities before 2025, others after."""
    source = tmp_path / "raw"
    source.mkdir()
    for shard in range(4):
        rows = ["id,date,x"]
        for n in range(50):
            number = shard * 50 + n
            rows.append(
                f"e{number % 60:02d},{2025 if number % 60 >= 40 else 2024}-05-{n % 28 + 1:02d},{number}"
            )
        (source / f"part-{shard}.csv").write_text("\n".join(rows) + "\n")
    recipe = headrace.TemporalSplit(
        source=source, time="date", entity="id", split_date="2025-01-01", **settings
    )
    return headrace.prepare(recipe, tmp_path / "out", workers=1)


def rewrite(run: Path, shard: Path, text: str) -> None:
    """Change a shard and make every digest fit again, as somebody would who hides it."""
    shard.unlink()  # its second name keeps the bytes
    shard.write_text(text)
    reseal_files(run)


def first(run: Path, split: str) -> Path:
    return sorted((run / "training_data" / split).iterdir())[0]


def problems(tmp_path: Path) -> list[str]:
    return headrace.verify(tmp_path / "out").problems


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"layout": "single"},
        {"format": "parquet"},
        {"format": "jsonl", "compression": "gz"},
        {"lineage": "columns"},
    ],
    ids=str,
)
def test_an_untouched_run_has_no_problem(tmp_path: Path, settings: dict[str, object]) -> None:
    prepared(tmp_path, **settings)

    assert problems(tmp_path) == []


def test_a_run_with_rows_of_no_entity_has_no_problem(tmp_path: Path) -> None:
    source = tmp_path / "raw.csv"
    rows = [f"{'' if n % 3 == 0 else f'e{n % 20}'},{2024 + n % 2}-02-03,{n}" for n in range(200)]
    source.write_text("id,date,x\n" + "\n".join(rows) + "\n")
    recipe = headrace.TemporalSplit(
        source=source, time="date", entity="id", split_date="2025-01-01", null_entity="own"
    )
    headrace.prepare(recipe, tmp_path / "out")

    assert problems(tmp_path) == []


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_a_flipped_byte_in_a_shard_is_found_and_named(tmp_path: Path, split: str) -> None:
    shard = first(prepared(tmp_path).run, split)
    data = bytearray(shard.read_bytes())
    data[-3] ^= 1
    shard.write_bytes(data)

    assert str(shard) in problems(tmp_path)[0]


def test_a_missing_shard_is_found_and_named(tmp_path: Path) -> None:
    shard = first(prepared(tmp_path).run, "train")
    shard.unlink()

    assert f"{shard}: is missing" in problems(tmp_path)[0]


@pytest.mark.parametrize("name", ["config.json", INDEX])
def test_a_changed_config_or_index_is_found(tmp_path: Path, name: str) -> None:
    path = prepared(tmp_path).run / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)

    assert any(str(path) in problem for problem in problems(tmp_path))


def test_a_damaged_manifest_is_refused(tmp_path: Path) -> None:
    (prepared(tmp_path).run / MANIFEST).write_text('{"format_version": 1, "format_version": 1}')

    with pytest.raises(headrace.errors.CorruptShard, match="key 'format_version' appears twice"):
        headrace.verify(tmp_path / "out")


def test_a_file_that_is_not_of_the_run_is_found(tmp_path: Path) -> None:
    stranger = prepared(tmp_path).run / "training_data" / "val" / "part-00099.csv"
    stranger.write_text("id,date,x\n")

    assert str(stranger) in problems(tmp_path)[0]


def test_changed_counts_are_found(tmp_path: Path) -> None:
    run = prepared(tmp_path).run
    reseal(run, lambda record: record["dropped"].update(null_entity=1))

    assert "dropped" in problems(tmp_path)[0]


def leaked_entity(run: Path) -> tuple[Path, str, int]:
    """A train entity in the second row of test."""
    entity = first(run, "train").read_text().splitlines()[1].split(",")[0]
    shard = first(run, "test")
    lines = shard.read_text().splitlines()
    assert len(entity) == len(lines[2].split(",")[0])
    lines[2] = ",".join([entity, *lines[2].split(",")[1:]])
    return shard, "\n".join(lines) + "\n", 2


def late_date(run: Path) -> tuple[Path, str, int]:
    """A row of train from after the cutoff, third of its shard."""
    shard = first(run, "train")
    lines = shard.read_text().splitlines()
    lines[3] = lines[3].replace("2024", "2026")
    return shard, "\n".join(lines) + "\n", 3


@pytest.mark.parametrize(
    ("harm", "says"), [(leaked_entity, "another split"), (late_date, "wrong side")]
)
def test_a_broken_law_is_found_even_if_all_digests_fit(
    tmp_path: Path, harm: Callable[[Path], tuple[Path, str, int]], says: str
) -> None:
    run = prepared(tmp_path).run
    shard, text, row = harm(run)
    rewrite(run, shard, text)

    found = problems(tmp_path)
    assert len(found) == 1
    assert f"{shard}: row {row}:" in found[0]
    assert says in found[0]


@pytest.mark.parametrize("layout", ["sharded", "single"])
def test_a_shard_of_test_among_those_of_train_is_not_of_the_run_whatever_its_name(
    tmp_path: Path, layout: str
) -> None:
    run = prepared(tmp_path, layout=layout).run
    assert [] == problems(tmp_path)
    copy = run / "training_data/train/test_processed_data_extra.csv"
    copy.write_bytes(first(run, "test").read_bytes())

    assert [f"{copy}: is not part of this run"] == problems(tmp_path)


def test_the_file_of_an_empty_test_split_is_of_the_run_and_of_one_without_some_entities(
    tmp_path: Path,
) -> None:
    source = tmp_path / "raw"
    source.mkdir()
    rows = [f"e{n % 20:02d},2024-05-{n % 28 + 1:02d},{n}" for n in range(200)]
    (source / "part-0.csv").write_text("\n".join(["id,date,x", *rows]) + "\n")
    recipe = headrace.TemporalSplit(
        source=source, time="date", entity="id", split_date="2025-01-01", layout="single"
    )
    run = headrace.prepare(recipe, tmp_path / "out").run
    assert (run / "training_data/test/test_processed_data.csv").is_file()
    assert [] == problems(tmp_path)
    headrace.forget(tmp_path / "out", ["e03"])

    assert [] == problems(tmp_path)
