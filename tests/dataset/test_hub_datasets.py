"""Datasets of the hub are sources at a commit: what the client fetches from a hub on this machine, checked and pinned."""

import importlib
import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hub_server import Handler, Repository, serving

import headrace
from headrace.cli.init.look import look
from headrace.dataset.hub import choose
from headrace.errors import CorruptShard, HeadraceError, InputError
from headrace.formats.listing import list_files
from headrace.packing.blend import blend_of
from headrace.stream.ranks.group import Group
from raised import raised

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")

NAME, FIRST, SECOND = "mill/visits", "1" * 40, "2" * 40
ROWS = pl.DataFrame({"number": range(100), "text": [f"row {number}" for number in range(100)]})


def parquet(rows: pl.DataFrame) -> bytes:
    data = io.BytesIO()
    rows.write_parquet(data)
    return data.getvalue()


def readme(*configurations: dict[str, Any]) -> bytes:
    return f"---\nlicense: mit\nconfigs: {json.dumps(configurations)}\n---\n# Visits\n".encode()


SHARDS = {
    "data/train-00000-of-00002.parquet": parquet(ROWS[:50]),
    "data/train-00001-of-00002.parquet": parquet(ROWS[50:80]),
    "data/test-00000-of-00001.parquet": parquet(ROWS[80:]),
    "README.md": b"# Visits\n",
}


@pytest.fixture
def repository() -> Repository:
    return Repository({FIRST: SHARDS}, {"main": FIRST})


@pytest.fixture
def asked(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[str]]:
    """What a hub with one repository is asked."""
    with serving({NAME: repository}) as (url, requests):
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        set_up(
            monkeypatch,
            ENDPOINT=url,
            HUGGINGFACE_CO_URL_TEMPLATE=url + "/{repo_id}/resolve/{revision}/{filename}",
            HF_HUB_CACHE=str(tmp_path / "hub"),
            HF_TOKEN_PATH=str(tmp_path / "token"),
            HF_HUB_OFFLINE=False,
        )
        yield requests


def set_up(monkeypatch: pytest.MonkeyPatch, **constants: object) -> None:
    """Give the client constants, which it reads of the environment when it is imported, wherever it keeps them."""
    importlib.import_module("huggingface_hub.hf_api")
    for module in [
        each for name, each in sys.modules.items() if name.startswith("huggingface_hub")
    ]:
        for name, value in constants.items():
            if name in vars(module):
                monkeypatch.setattr(module, name, value)
    # Clients before 1.0 keep a session that is offline, or not, for good.
    getattr(importlib.import_module("huggingface_hub.utils"), "reset_sessions", int)()


def told(requests: list[str]) -> list[str]:
    """What was asked of the repository."""
    return [each for each in requests if "visits" in each]


def numbers(path: str, split: str | None = None) -> list[int]:
    found = headrace.open(path)
    return sorted(found[split or found.splits[0]].to_arrow()["number"].to_pylist())


def rewritten(path: str, out: Path) -> Any:
    return headrace.prepare(headrace.Rewrite(source=path), out)


def test_splits_are_those_that_names_tell(asked: list[str]) -> None:
    found = headrace.open(f"hf://datasets/{NAME}")

    assert {"train": 80, "test": 20} == dict(found.split_rows)
    assert ROWS[:80].equals(found["train"].to_polars().collect())


def test_a_commit_is_listed_once_and_asked_for_nothing_when_it_is_named(asked: list[str]) -> None:
    for _ in range(2):
        headrace.open(f"hf://datasets/{NAME}")
    listings_of = [each for each in told(asked) if "/tree/" in each]
    fetched = [each for each in asked if each.startswith("GET /lfs/")]
    asked.clear()
    headrace.open(f"hf://datasets/{NAME}@main")
    branch = told(asked)
    asked.clear()
    headrace.open(f"hf://datasets/{NAME}@{FIRST}")

    assert [f"GET /api/datasets/{NAME}/tree/{FIRST}"] == listings_of
    assert 3 == len(fetched) == len(set(fetched))
    assert [f"GET /api/datasets/{NAME}/revision/main"] == branch
    assert [] == told(asked)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("data/test-00000-of-00001.parquet", range(80, 100)),
        ("data/train-*.parquet", range(80)),
        ("**/*-of-00002.parquet", range(80)),
        ("extra", range(7)),
        ("extra/deep/rows.jsonl", range(7)),
    ],
)
def test_a_path_is_a_file_a_pattern_or_a_directory(
    repository: Repository, asked: list[str], path: str, expected: range
) -> None:
    repository.commits[FIRST] = {
        **SHARDS,
        "extra/deep/rows.jsonl": ROWS[:7].write_ndjson().encode(),
    }

    assert list(expected) == numbers(f"hf://datasets/{NAME}@main/{path}")
    assert not any(
        "test" in each for each in told(asked) if "resolve" in each and "test" not in path
    )


def test_a_path_may_be_a_path_object(asked: list[str]) -> None:
    assert list(range(80)) == sorted(
        headrace.open(Path(f"hf://datasets/{NAME}"))["train"].to_arrow()["number"].to_pylist()
    )


def test_revisions_are_branches_and_references_with_slashes(
    repository: Repository, asked: list[str]
) -> None:
    repository.commits[SECOND] = {"default/train/0000.parquet": parquet(ROWS[:5])}
    repository.branches["refs/convert/parquet"] = repository.branches["v2"] = SECOND

    for revision in ("v2", "refs/convert/parquet", "refs%2Fconvert%2Fparquet"):
        assert list(range(5)) == numbers(f"hf://datasets/{NAME}@{revision}/default", "train")


def test_configurations_name_their_splits_and_files(
    repository: Repository, asked: list[str]
) -> None:
    splits = [
        {"split": "sft_a", "path": "data/train-*"},
        {"split": "sft_b", "path": ["data/test-*"]},
    ]
    repository.commits[FIRST] = {
        **SHARDS,
        "README.md": readme({"config_name": "default", "data_files": splits}),
        "more.csv": b"a,b\n1,2\n",
    }
    found = headrace.open(f"hf://datasets/{NAME}")

    assert {"sft_a": 80, "sft_b": 20} == dict(found.split_rows)


def test_several_configurations_without_a_default_are_refused_and_chosen_by_path(
    repository: Repository, asked: list[str]
) -> None:
    two = [{"config_name": name, "data_files": f"data/{name}-*"} for name in ("train", "test")]
    repository.commits[FIRST] = {**SHARDS, "README.md": readme(*two)}

    with raised(InputError, remedy="such as /data/train-* of train"):
        headrace.open(f"hf://datasets/{NAME}")

    assert list(range(80)) == numbers(f"hf://datasets/{NAME}/data/train-*")


def test_a_saved_dataset_on_the_hub_has_the_splits_that_it_lists(
    repository: Repository, asked: list[str], tmp_path: Path
) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    parts = {"first": ROWS[:30], "second": ROWS[30:]}
    datasets.DatasetDict(
        {name: datasets.Dataset.from_polars(each) for name, each in parts.items()}
    ).save_to_disk(tmp_path / "saved")
    files = {
        f"saved/{path.relative_to(tmp_path / 'saved').as_posix()}": path.read_bytes()
        for path in sorted((tmp_path / "saved").rglob("*"))
        if path.is_file()
    }
    repository.commits[FIRST] = {**files, "saved/first/cache-0123.arrow": b"not rows"}

    assert {"first": 30, "second": 70} == dict(
        headrace.open(f"hf://datasets/{NAME}/saved").split_rows
    )


def test_files_of_equal_bytes_are_read_both(repository: Repository, asked: list[str]) -> None:
    repository.commits[FIRST] = {f"part-{number}.parquet": parquet(ROWS[:5]) for number in range(2)}

    assert sorted([*range(5), *range(5)]) == numbers(f"hf://datasets/{NAME}")


def test_a_branch_that_moved_is_another_run_and_its_commit_is_recorded(
    repository: Repository, asked: list[str], tmp_path: Path
) -> None:
    source = f"hf://datasets/{NAME}@main/data/train-*.parquet"
    before, again = rewritten(source, tmp_path / "out"), rewritten(source, tmp_path / "out")
    repository.commits[SECOND] = dict(SHARDS)  # the same files
    repository.branches["main"] = SECOND
    after = rewritten(source, tmp_path / "out")
    pinned = rewritten(source.replace("main", FIRST), tmp_path / "out")

    assert "reused" == again.how == pinned.how
    assert before.manifest.run_id == pinned.manifest.run_id != after.manifest.run_id
    assert [source.replace("main", SECOND)] == after.manifest.source["hub"]
    assert [source.replace("main", SECOND)] == json.loads((after.run / "config.json").read_bytes())[
        "source"
    ]


def test_a_commit_is_the_same_run_and_the_same_order_on_any_machine(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = f"hf://datasets/{NAME}"
    one = rewritten(f"{source}/data/test-*.parquet", tmp_path / "one")
    first = headrace.open(source).split_index("train").identity
    monkeypatch.setenv("HOME", str(tmp_path / "another"))
    set_up(monkeypatch, HF_HUB_CACHE=str(tmp_path / "another/hub"))
    other = rewritten(f"{source}/data/test-*.parquet", tmp_path / "other")

    assert first == headrace.open(source).split_index("train").identity
    assert (one.run / "manifest.json").read_bytes() == (other.run / "manifest.json").read_bytes()


def test_ranks_that_saw_different_commits_do_not_agree(
    repository: Repository, asked: list[str]
) -> None:
    before = headrace.open(f"hf://datasets/{NAME}").split_index("train").identity
    repository.commits[SECOND] = dict(SHARDS)
    repository.branches["main"] = SECOND

    assert before != headrace.open(f"hf://datasets/{NAME}").split_index("train").identity


def test_ranks_resolve_and_list_a_branch_once_together(
    repository: Repository, asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch.distributed")
    store, found = torch.HashStore(), []
    ranks = [Group(store, process=number, processes=3) for number in range(3)]
    for number, rank in enumerate(ranks):  # with caches of their own, as on three machines
        monkeypatch.setattr("headrace.stream.ranks.group.default_group", lambda rank=rank: rank)
        found.append(
            headrace.open(f"hf://datasets/{NAME}", cache_dir=tmp_path / str(number)).split_index(
                "train"
            )
        )
        repository.commits[SECOND] = {"other.csv": b"number\n1\n"}
        repository.branches["main"] = SECOND

    assert 1 == len({each.identity for each in found})
    about = [each for each in told(asked) if "/revision/" in each or "/tree/" in each]
    assert [
        f"GET /api/datasets/{NAME}/revision/main",
        f"GET /api/datasets/{NAME}/tree/{FIRST}",
    ] == about


def test_what_one_process_asks_for_is_asked_by_another_where_it_fails() -> None:
    torch = pytest.importorskip("torch.distributed")
    store, asks = torch.HashStore(), []

    def ask(number: int) -> str:
        asks.append(number)
        time.sleep(0.1)
        if len(asks) == 1:
            raise InputError("no answer")
        return f"from {number}"

    def once(number: int) -> str:
        try:
            return Group(store, process=number, processes=4).once("name", lambda: ask(number))
        except InputError:
            return "failed"

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(once, range(4)))

    assert 2 == len(asks) == len(set(answers))
    assert ["failed", *[f"from {asks[1]}"] * 3] == sorted(answers)


@pytest.mark.parametrize("name", ["data/train-00001-of-00002.parquet", "rows.csv"])
def test_bytes_that_are_not_those_of_the_listing_are_refused(
    repository: Repository, asked: list[str], name: str
) -> None:
    files = {**SHARDS, "rows.csv": b"number\n1\n"}
    repository.commits[FIRST] = files
    repository.bodies[name] = files[name][:-1] + b"?"

    with raised(CorruptShard, remedy="run again to fetch it again"):
        headrace.open(f"hf://datasets/{NAME}/{name}")


def test_a_cached_file_that_changed_is_checked_again(asked: list[str], tmp_path: Path) -> None:
    source = f"hf://datasets/{NAME}"
    assert list(range(80)) == numbers(source, "train")
    blobs = [path for path in (tmp_path / "hub").rglob("blobs/*") if path.read_bytes() == SHARDS["data/train-00000-of-00002.parquet"]]  # fmt: skip
    stat = blobs[0].stat()
    blobs[0].write_bytes(blobs[0].read_bytes()[:-9] + b"?" + blobs[0].read_bytes()[-8:])
    os.utime(blobs[0], ns=(stat.st_atime_ns, stat.st_mtime_ns))

    with raised(CorruptShard, remedy=f"delete {blobs[0]}"):
        headrace.open(source)

    blobs[0].unlink()
    assert list(range(80)) == numbers(source, "train")


def test_a_cache_that_was_emptied_is_filled_again(asked: list[str], tmp_path: Path) -> None:
    source = f"hf://datasets/{NAME}"
    headrace.open(source)
    shutil.rmtree(tmp_path / "hub")

    assert list(range(80)) == numbers(source, "train")


def test_offline_the_last_commit_is_read_from_the_cache(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    online = numbers(f"hf://datasets/{NAME}", "train")
    asked.clear()
    set_up(monkeypatch, HF_HUB_OFFLINE=True)

    assert online == numbers(f"hf://datasets/{NAME}", "train")
    assert [] == told(asked)
    shutil.rmtree(tmp_path / "hub")
    with raised(InputError, remedy="open the address once where the hub is within reach"):
        headrace.open(f"hf://datasets/{NAME}")


def test_offline_what_was_never_seen_is_refused(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up(monkeypatch, HF_HUB_OFFLINE=True)

    with raised(InputError, remedy="give the directory of a download"):
        headrace.open(f"hf://datasets/{NAME}")


def test_a_private_repository_needs_the_token_of_the_client(
    repository: Repository, asked: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    repository.private = True
    monkeypatch.setenv("HF_TOKEN", "hf_wrongwrongwrong")
    with pytest.raises(InputError, match="HF_TOKEN for a private repository") as raised:
        headrace.open(f"hf://datasets/{NAME}")
    monkeypatch.setenv("HF_TOKEN", Handler.token)
    prepared = rewritten(f"hf://datasets/{NAME}", tmp_path / "out")

    assert "wrongwrong" not in str(raised.value)
    kept = [
        path
        for path in [*prepared.out.rglob("*"), *(tmp_path / "home").rglob("*")]
        if path.is_file()
    ]
    assert not any(Handler.token.encode() in path.read_bytes() for path in kept)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("hf://datasets/visits", "give hf://datasets/OWNER/NAME"),
        ("hf://mill/visits", "give hf://datasets/OWNER/NAME"),
        ("hf://datasets/mill/other", "did not give the commit of main"),
        (f"hf://datasets/{NAME}@v9", "did not give the commit of v9"),
        (
            f"hf://datasets/{NAME}/nowhere",
            "holds no data file 'nowhere'; it has README.md, data/test",
        ),
        (f"hf://datasets/{NAME}/*.csv", "holds no data file '\\*.csv'"),
        ("hf://user:secret@datasets/mill/visits", "holds credentials"),
    ],
)
def test_what_is_not_there_is_said(asked: list[str], address: str, words: str) -> None:
    with pytest.raises(HeadraceError, match=words):
        headrace.open(address)


def test_a_recipe_takes_one_split_and_says_how(asked: list[str]) -> None:
    settings = {"time": "number", "entity": "text", "split_date": "2024-01-01"}
    with pytest.raises(
        InputError, match=rf"hf://datasets/{NAME}@{FIRST}: holds several splits, train, test"
    ) as raised:
        headrace.TemporalSplit(source=f"hf://datasets/{NAME}", **settings).source_files()

    assert f"{FIRST}/data/train-00000-of-00002.parquet" in str(raised.value)


def test_a_recorded_configuration_makes_the_run_again(asked: list[str], tmp_path: Path) -> None:
    first = rewritten(f"hf://datasets/{NAME}/data/train-*.parquet", tmp_path / "out")
    settings = json.loads((first.run / "config.json").read_bytes())
    del settings["recipe"]

    assert "reused" == headrace.prepare(headrace.Rewrite(**settings), tmp_path / "out").how


def test_a_blend_and_a_look_at_columns_take_addresses(asked: list[str], tmp_path: Path) -> None:
    (tmp_path / "blend.json").write_text(
        json.dumps({"datasets": [{"name": "v", "path": f"hf://datasets/{NAME}/data"}]})
    )
    (source,) = dict(blend_of(tmp_path / "blend.json"))["datasets"]
    seen = look([f"hf://datasets/{NAME}/data/test-*.parquet"])

    assert 3 == len(list_files(source["path"], splits="keep").names)
    assert ["number", "text"] == list(seen.columns)


@pytest.mark.parametrize("text", ["---\nconfigs: [\n---\n", "---\n"])
def test_a_head_that_is_not_yaml_is_refused_and_one_without_configurations_is_not(
    text: str,
) -> None:
    if "configs" in text:
        with raised(InputError, path="hf://a/b", remedy="add the path of the files"):
            choose("hf://a/b", ["a.csv"], "", text)
    else:
        assert {"": ["a.csv"]} == choose("hf://a/b", ["a.csv"], "", text)


THEIRS = """
import datasets, json, sys
for name in sys.argv[1:]:
    found = datasets.load_dataset(name)
    print(json.dumps({split: sorted(rows.to_list(), key=str) for split, rows in found.items()}, default=str))
"""


@pytest.mark.slow
def test_rows_and_splits_are_those_of_load_dataset(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="datasets is not installed")
    rows = ROWS.with_columns(share=pl.col("number") / 7, even=pl.col("number") % 2 == 0)
    lines = {
        name: rows[start::2].write_ndjson().encode()
        for start, name in enumerate(("train.jsonl", "test.jsonl"))
    }
    splits = [
        {"split": "first", "path": "a/*.parquet"},
        {"split": "second", "path": ["b/**", "c.parquet"]},
    ]
    shards = {
        f"{name}.parquet": parquet(rows[at::4])
        for at, name in enumerate(("a/0", "a/1", "b/deep/0", "c"))
    }
    repositories = {
        "mill/sharded": {
            f"data/{split}-0000{n}-of-00002.parquet": parquet(rows[n::2])
            for split in ("train_sft", "gen")
            for n in (0, 1)
        },
        "mill/lines": {**lines, "README.md": b"# Rows\n"},
        "mill/directories": {
            f"{split}/part.parquet": parquet(rows[:9]) for split in ("train", "test")
        },
        "mill/configured": {
            **shards,
            "README.md": readme({"config_name": "all", "data_files": splits}),
        },
    }
    with serving(
        {name: Repository({FIRST: files}, {"main": FIRST}) for name, files in repositories.items()}
    ) as (
        url,
        _,
    ):
        env = {**os.environ, "HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "hf"), "HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", THEIRS, *repositories], env=env, capture_output=True, text=True
        )
        assert 0 == done.returncode, done.stderr
        ours = "\n".join(
            [
                "import headrace, json, sys",
                "for name in sys.argv[1:]:",
                "    found = headrace.open(f'hf://datasets/{name}')",
                "    rows = {each: sorted(found[each].to_arrow().to_pylist(), key=str) for each in found.splits}",
                "    print(json.dumps(rows, default=str))",
            ]
        )
        own = subprocess.run(
            [sys.executable, "-c", ours, *repositories], env=env, capture_output=True, text=True
        )
        assert 0 == own.returncode, own.stderr

    assert "" == own.stderr
    expected = [json.loads(line) for line in done.stdout.splitlines()]
    assert expected == [json.loads(line) for line in own.stdout.splitlines()]
    assert [{"train_sft", "gen"}, {"train", "test"}, {"train", "test"}, {"first", "second"}] == [
        *map(set, expected)
    ]


FEATURES = """
import datasets, headrace, json, sys
for name, path in zip(sys.argv[2:], [f"hf://datasets/{name}" for name in sys.argv[2:]]):
    found = datasets.load_dataset(name) if sys.argv[1] == "theirs" else headrace.open(path)
    rows = found["train"] if sys.argv[1] == "theirs" else found[found.splits[0]].to_datasets()
    print(json.dumps([rows.features.to_dict(), rows.data.to_pylist()], default=str))
"""


def about(*features: dict[str, Any], config_name: str = "default", configs: str = "") -> bytes:
    head: dict[str, Any] = {"dataset_info": {"config_name": config_name, "features": features}}
    head |= {"configs": [{"config_name": config_name, "data_files": configs}]} if configs else {}
    return f"---\n{json.dumps(head)}\n---\n".encode()


@pytest.mark.slow
def test_features_of_the_readme_are_those_of_load_dataset(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="datasets is not installed")
    label = {"name": "label", "dtype": {"class_label": {"names": {"0": "bad", "1": "good"}}}}
    images = [{"bytes": bytes([at]), "path": f"{at}.png"} for at in range(3)]
    nested = pl.DataFrame(
        {"label": [1, 0, None], "words": [["a"], [], None], "image": images, "more": [1, 2, 3]}
    )
    parts = [label, {"name": "words", "sequence": "string"}, {"name": "image", "dtype": "image"}]
    repositories = {
        "mill/texts": {
            "train.csv": b"label,zip,share\ngood,a9,1\nbad,99,2.5\n",
            "README.md": about(
                label, {"name": "zip", "dtype": "string"}, {"name": "share", "dtype": "float32"}
            ),
        },
        "mill/nested": {
            "data/train-00000-of-00001.parquet": parquet(nested),
            "README.md": about(
                *parts,
                {"name": "more", "dtype": "int64"},
                config_name="all",
                configs="data/train-*",
            ),
        },
    }
    found = {}
    with serving(
        {name: Repository({FIRST: files}, {"main": FIRST}) for name, files in repositories.items()}
    ) as (
        url,
        _,
    ):
        env = {**os.environ, "HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "hf"), "HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}  # fmt: skip
        for whose in ("theirs", "ours"):
            command = [sys.executable, "-c", FEATURES, whose, *repositories]
            done = subprocess.run(command, env=env, capture_output=True, text=True)
            assert 0 == done.returncode, done.stderr
            found[whose] = [json.loads(line) for line in done.stdout.splitlines()]

    assert found["theirs"] == found["ours"]
    assert {"names": ["bad", "good"], "_type": "ClassLabel"} == found["ours"][0][0]["label"]


def test_values_that_do_not_fit_the_features_of_the_readme_are_refused(
    repository: Repository, asked: list[str]
) -> None:
    pytest.importorskip("datasets", reason="datasets is not installed")
    readme = about({"name": "text", "dtype": "int64"})
    repository.commits[FIRST] = {"train.csv": b"text\nseven\n", "README.md": readme}

    with pytest.raises(
        InputError, match=r"do not fit the features in README\.md: .*seven.*to_arrow\(\)"
    ):
        headrace.open(f"hf://datasets/{NAME}")["train"].to_datasets()
