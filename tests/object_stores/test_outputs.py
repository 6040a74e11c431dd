"""Runs whose output, source or both are in a store: the same bytes as on a disk, whatever happens on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fault_proxy import FaultProxy, Faults
from recipe_runs import RECIPES, recipes_over
from store_cases import files_on_disk, rows_of, shards_of, split_of, tree, upload, write_raw
from store_servers import CANARY

import headrace
from headrace.errors import CorruptShard, InputError, SettingsError, StoreError
from headrace.report.report_data import read_run
from headrace.report.write import page_of
from headrace.run import in_store
from headrace.run.collect import collect
from headrace.run.events import Event, Step
from headrace.run.receipts import FileRecord
from headrace.storage.object_store import ObjectPlace
from headrace.storage.places import path_of, place_of
from raised import raised


@pytest.mark.smoke("packed_sequences")
@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_writes_the_same_files_to_a_store(s3: str, tmp_path: Path, name: str) -> None:
    recipe = recipes_over(tmp_path / "source", rows=300, shards=3)[name]
    local = headrace.prepare(recipe(), tmp_path / "out", workers=2)

    remote = headrace.prepare(recipe(), f"{s3}/some/out", workers=2, work_dir=tmp_path / "work")
    again = headrace.prepare(recipe(), f"{s3}/some/out", workers=2, work_dir=tmp_path / "work")

    assert shards_of(f"{s3}/some/out") == files_on_disk(tmp_path / "out")
    assert remote.manifest.run_id == local.manifest.run_id
    assert (remote.how, again.how) == ("computed", "reused")
    assert str(remote.run) == f"{s3}/some/out/runs/{local.manifest.run_id}"
    assert headrace.verify(f"{s3}/some/out").problems == []
    assert list((tmp_path / "work" / "work").iterdir()) == []


@pytest.mark.slow
@pytest.mark.smoke("csv.gz")
@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "parquet"])
def test_source_and_output_in_a_store(s3: str, tmp_path: Path, suffix: str) -> None:
    raw = write_raw(tmp_path / "raw", suffix=suffix.removesuffix(".gz"))
    if suffix.endswith("gz"):
        for path in sorted(raw.iterdir()):
            subprocess.run(["gzip", "-n", str(path)], check=True)
    upload(raw, f"{s3}/raw")
    local = headrace.prepare(split_of(str(raw)), tmp_path / "out", workers=2)

    remote = headrace.prepare(
        split_of(f"{s3}/raw"), f"{s3}/out", workers=2, work_dir=tmp_path / "work"
    )

    here, there = headrace.open(local.run), headrace.open(remote.run)
    for split in ("train", "val", "test"):
        assert rows_of(there, split) == rows_of(here, split)
    assert json.loads((remote.run / "config.json").read_bytes())["source"] == [f"{s3}/raw"]


@pytest.mark.slow
def test_a_source_of_chats_and_pings_in_a_store(s3: str, tmp_path: Path) -> None:
    recipes_over(tmp_path / "source", rows=300, shards=3)
    for part in ("tokens", "pings", "series"):
        upload(tmp_path / "source" / part, f"{s3}/{part}")
    names = sorted(path.name for path in (tmp_path / "source" / "tokens").iterdir())

    packed = headrace.PackedSequences(
        blend=[f"{s3}/tokens/{name}" for name in names], pack_size=512
    )
    histories = headrace.Histories(
        source=f"{s3}/pings", peer="dst_addr", partitions=4, train_ratio=0.6
    )
    rewrite = headrace.Rewrite(source=f"{s3}/pings", cache_dir=tmp_path / "cache")
    series = headrace.Series(
        source=f"{s3}/series",
        target="flow",
        future_features=["warmth"],
        min_train_years=0.2,
        batch_size=2,
    )
    made_of = {"packed": packed, "histories": histories, "rewrite": rewrite, "series": series}
    for place, recipe in made_of.items():
        made = headrace.prepare(recipe, tmp_path / place, workers=2)

        assert sum(each.rows for each in made.manifest.splits.values()) > 0
        assert headrace.verify(tmp_path / place).problems == []


@pytest.mark.slow
def test_a_prepared_dataset_in_a_store_is_rewritten(s3: str, tmp_path: Path) -> None:
    raw = write_raw(tmp_path / "raw")
    headrace.prepare(split_of(str(raw)), f"{s3}/out", work_dir=tmp_path / "work")

    made = headrace.prepare(
        headrace.Rewrite(source=f"{s3}/out"), f"{s3}/faster", work_dir=tmp_path / "work"
    )

    assert rows_of(headrace.open(made.run), "train") == rows_of(headrace.open(f"{s3}/out"), "train")


@pytest.mark.slow
def test_a_changed_source_is_another_run(s3: str, tmp_path: Path) -> None:
    raw = write_raw(tmp_path / "raw")
    upload(raw, f"{s3}/raw")
    first = headrace.prepare(split_of(f"{s3}/raw"), f"{s3}/out", work_dir=tmp_path / "work")
    place = path_of(f"{s3}/raw/part-00000.csv")
    place_of(place).replace(place.read_bytes().replace(b"\n0,e0,", b"\n0,e9,"))  # as many bytes
    second = headrace.prepare(split_of(f"{s3}/raw"), f"{s3}/out", work_dir=tmp_path / "work")

    assert first.manifest.run_id != second.manifest.run_id
    assert headrace.open(f"{s3}/out").manifest == second.manifest
    assert headrace.open(f"{s3}/out", run=first.manifest.run_id).manifest == first.manifest


class Stop(BaseException):
    """As if the process had been killed."""


@pytest.mark.slow
@pytest.mark.parametrize("work", ["same", "other"])
def test_a_run_that_was_stopped_goes_on_from_what_the_store_has(
    s3: str, tmp_path: Path, work: str
) -> None:
    raw = write_raw(tmp_path / "raw", shards=5)
    headrace.prepare(split_of(str(raw)), tmp_path / "out", workers=1)
    expected = files_on_disk(tmp_path / "out")
    steps: list[str] = []

    def note(event: Event) -> None:
        if isinstance(event, Step):
            steps.append(event.name)

    headrace.prepare(
        split_of(str(raw)), f"{s3}/count", workers=1, work_dir=tmp_path / "w", on_event=note
    )
    stops = [
        place
        for place, step in enumerate(steps)
        if step in ("receipt.linked", "index.linked", "manifest.linked")
    ]
    for number, stop in enumerate([*stops[5::2], len(steps) - 1]):
        out, seen = f"{s3}/out-{number}", [0]

        def stopping(event: Event, stop: int = stop, seen: list[int] = seen) -> None:
            if isinstance(event, Step):
                seen[0] += 1
                if seen[0] > stop:
                    raise Stop

        with pytest.raises(Stop):
            headrace.prepare(
                split_of(str(raw)), out, workers=1, work_dir=tmp_path / "w", on_event=stopping
            )
        there = {name for name in tree(out) if "/receipts/split-" in name}
        again: list[str] = []
        place = tmp_path / ("w" if work == "same" else f"w-{number}")
        headrace.prepare(
            split_of(str(raw)), out, workers=1, work_dir=place,
            on_event=lambda event, again=again: again.append(event.subject)  # type: ignore[misc]
            if isinstance(event, Step) and event.name == "receipt.linked" else None,
        )  # fmt: skip

        assert shards_of(out) == expected
        assert len([each for each in again if each.startswith("split")]) == 5 - len(there)


_CHILD = """
import sys
from store_cases import split_of
import headrace
headrace.prepare(split_of(sys.argv[1]), sys.argv[2], workers=2, work_dir=sys.argv[3])
"""


@pytest.mark.slow
def test_a_killed_process_leaves_nothing_that_a_rerun_minds(
    proxied: tuple[str, FaultProxy], tmp_path: Path
) -> None:
    bucket, proxy = proxied
    raw = write_raw(tmp_path / "raw", shards=6)
    headrace.prepare(split_of(str(raw)), tmp_path / "out", workers=1)
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    arguments = [sys.executable, "-c", _CHILD, str(raw), f"{bucket}/out", str(tmp_path / "work")]
    for puts in (3, 12):
        proxy.begin(Faults())
        child = subprocess.Popen(
            arguments, env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.PIPE
        )
        while child.poll() is None and proxy.seen.requests["PUT"] < puts:
            try:
                child.wait(0.005)
            except subprocess.TimeoutExpired:
                continue
        child.send_signal(signal.SIGKILL)
        child.communicate()
    headrace.prepare(split_of(str(raw)), f"{bucket}/out", work_dir=tmp_path / "work")

    assert shards_of(f"{bucket}/out") == files_on_disk(tmp_path / "out")
    assert headrace.verify(f"{bucket}/out").problems == []


@pytest.mark.slow
def test_two_processes_make_one_run(s3: str, tmp_path: Path) -> None:
    raw = write_raw(tmp_path / "raw")
    headrace.prepare(split_of(str(raw)), tmp_path / "out", workers=1)
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(raw), f"{s3}/out", str(tmp_path / f"work-{number}")],
            env={**os.environ, "PYTHONPATH": path},
            stderr=subprocess.PIPE,
        )
        for number in range(2)
    ]
    told = [child.communicate(timeout=250)[1].decode() for child in children]

    assert [child.returncode for child in children] == [0, 0], told
    assert shards_of(f"{s3}/out") == files_on_disk(tmp_path / "out")
    assert headrace.verify(f"{s3}/out").problems == []


@pytest.mark.slow
def test_a_stage_that_vanishes_while_it_is_fetched_is_made_again(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = write_raw(tmp_path / "raw", shards=5)
    headrace.prepare(split_of(str(raw)), tmp_path / "out", workers=1)

    def stopping(event: Event) -> None:
        if (
            isinstance(event, Step)
            and event.name == "receipt.linked"
            and event.subject == "split-00003"
        ):
            raise Stop

    with pytest.raises(Stop):
        headrace.prepare(
            split_of(str(raw)), f"{s3}/out", workers=1, work_dir=tmp_path / "w", on_event=stopping
        )
    fetch, gone = in_store._fetch, []

    def vanishing(target: Path, run: Path, record: FileRecord) -> bool:
        if record.path.startswith("stage/"):
            gone.append(record.path)
            place_of(target / record.path).delete()
        return fetch(target, run, record)

    monkeypatch.setattr(in_store, "_fetch", vanishing)
    headrace.prepare(split_of(str(raw)), f"{s3}/out", work_dir=tmp_path / "other")

    assert gone
    assert shards_of(f"{s3}/out") == files_on_disk(tmp_path / "out")
    assert headrace.verify(f"{s3}/out").problems == []


@pytest.mark.slow
def test_a_stage_that_vanishes_while_it_is_published_is_no_error(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = write_raw(tmp_path / "raw", shards=5)
    headrace.prepare(split_of(str(raw)), tmp_path / "out", workers=1)
    read, finished, gone = ObjectPlace.read, [], []

    def vanishing(place: ObjectPlace) -> bytes:
        if finished and "/stage/" in str(place.path):
            gone.append(str(place.path))
            place.delete()
        return read(place)

    def other_finishes(event: Event) -> None:
        if isinstance(event, Step) and event.name == "receipt.linked" and not finished:
            headrace.prepare(split_of(str(raw)), f"{s3}/out", work_dir=tmp_path / "other")
            finished.append(True)

    monkeypatch.setattr(ObjectPlace, "read", vanishing)
    headrace.prepare(
        split_of(str(raw)), f"{s3}/out", workers=1, work_dir=tmp_path / "w", on_event=other_finishes
    )

    assert gone
    assert shards_of(f"{s3}/out") == files_on_disk(tmp_path / "out")
    assert headrace.verify(f"{s3}/out").problems == []


@pytest.mark.slow
def test_other_bytes_under_a_name_stop_the_run(s3: str, tmp_path: Path) -> None:
    raw = write_raw(tmp_path / "raw")
    run = headrace.prepare(
        split_of(str(raw)), f"{s3}/first", work_dir=tmp_path / "work"
    ).manifest.run_id
    place_of(path_of(f"{s3}/out/runs/{run}/training_data/train/part-00001.csv")).put_new(
        b"something else"
    )

    with pytest.raises(CorruptShard, match=r"part-00001\.csv"):
        headrace.prepare(split_of(str(raw)), f"{s3}/out", work_dir=tmp_path / "work")
    assert collect(f"{s3}/out", incomplete="remove", work_dir=tmp_path / "work").removed
    headrace.prepare(split_of(str(raw)), f"{s3}/out", work_dir=tmp_path / "work")

    assert headrace.verify(f"{s3}/out").problems == []


@pytest.mark.slow
def test_gc_leaves_finished_runs_alone(s3: str, tmp_path: Path) -> None:
    raw = write_raw(tmp_path / "raw")
    headrace.prepare(split_of(str(raw)), f"{s3}/out", work_dir=tmp_path / "work")
    before = tree(f"{s3}/out")

    assert collect(f"{s3}/out", incomplete="remove", work_dir=tmp_path / "work").removed == ()
    assert tree(f"{s3}/out") == before


def test_gc_removes_a_lone_object_among_unfinished_runs(s3: str, tmp_path: Path) -> None:
    made = headrace.prepare(
        split_of(str(write_raw(tmp_path / "raw"))), f"{s3}/out", work_dir=tmp_path / "work"
    )
    stray = path_of(f"{s3}/out/runs/stray")
    place_of(stray).put_new(b"12345")

    swept = collect(f"{s3}/out", incomplete="remove", work_dir=tmp_path / "work")

    assert ((stray,), 5) == (swept.removed, swept.bytes)
    assert [made.run] == list((path_of(f"{s3}/out") / "runs").iterdir())


@pytest.mark.slow
def test_the_report_of_a_run_in_a_store_is_the_same(s3: str, tmp_path: Path) -> None:
    raw = write_raw(tmp_path / "raw")
    here = headrace.prepare(split_of(str(raw)), tmp_path / "out")
    there = headrace.prepare(split_of(str(raw)), f"{s3}/out", work_dir=tmp_path / "work")

    pages = [page_of(read_run(run)) for run in (here.run, there.run)]

    assert pages[0].title == pages[1].title == "temporal split: out"
    assert pages[0].tables[0] == pages[1].tables[0]


@pytest.mark.slow
def test_headerless_shards_in_a_store_take_their_names_from_a_local_signature(
    s3: str, tmp_path: Path
) -> None:
    raw = write_raw(tmp_path / "raw")
    expected = headrace.prepare(split_of(str(raw)), tmp_path / "out")
    header = ""
    for path in sorted(raw.iterdir()):
        header, _, rows = path.read_text().partition("\n")
        path.write_text(rows)
    upload(raw, f"{s3}/raw")
    (tmp_path / "signature.csv").write_text(f"{header}\n")

    made = headrace.prepare(
        split_of(f"{s3}/raw", signature=tmp_path / "signature.csv", format="parquet"),
        tmp_path / "other",
    )

    assert rows_of(headrace.open(made.run), "train") == rows_of(
        headrace.open(expected.run), "train"
    )


def test_a_setting_that_must_be_local_refuses_a_path_of_an_object(s3: str) -> None:
    with raised(SettingsError, remedy="give a local path"):
        split_of("raw", signature=path_of(f"{s3}/signature.csv"))


@pytest.mark.slow
def test_no_credential_is_in_any_file_or_message(s3: str, tmp_path: Path) -> None:
    raw = write_raw(tmp_path / "raw")
    made = headrace.prepare(split_of(str(raw)), f"{s3}/out", work_dir=tmp_path / "work")

    found: dict[str, Any] = {**tree(f"{s3}/out"), **tree(tmp_path)}
    assert [name for name, data in found.items() if CANARY.encode() in data or CANARY in name] == []
    assert CANARY not in repr(made) + repr(headrace.open(f"{s3}/out"))


@pytest.mark.slow
def test_verify_names_a_pointer_to_another_run(s3: str, tmp_path: Path) -> None:
    raw = write_raw(tmp_path / "raw")
    first, _ = (
        headrace.prepare(split_of(str(raw), seed=seed), f"{s3}/out", work_dir=tmp_path / "work")
        for seed in (1, 2)
    )
    assert [] == headrace.verify(f"{s3}/out").problems
    place = path_of(f"{s3}/out/splits.json")
    record = json.loads(place.read_bytes())
    mixed = {**record["splits"], "train": f"runs/{first.manifest.run_id}/training_data/train"}

    for changed in (json.dumps({**record, "splits": mixed}), json.dumps({"run": record["run"]})):
        place_of(place).replace(changed.encode())
        assert any("does not name run" in each for each in headrace.verify(f"{s3}/out").problems)
    place_of(place).delete()
    assert any("splits.json: is missing" in each for each in headrace.verify(f"{s3}/out").problems)


@pytest.mark.slow
@pytest.mark.smoke("replaced")
@pytest.mark.parametrize("change", ["replaced", "deleted"])
def test_an_object_that_changes_during_the_run_ends_it(
    s3: str, tmp_path: Path, change: str
) -> None:
    upload(write_raw(tmp_path / "raw"), f"{s3}/raw")
    place = path_of(f"{s3}/raw/part-00003.csv")

    def listen(event: Event) -> None:
        if isinstance(event, Step) and event.subject == "split-00003":
            if change == "deleted":
                place_of(place).delete()
            else:
                place_of(place).replace(
                    place.read_bytes().replace(b",e1,", b",e2,")
                )  # as many bytes

    with pytest.raises(
        InputError, match=r"part-00003\.csv: (changed|was deleted) while it was read"
    ):
        headrace.prepare(split_of(f"{s3}/raw"), tmp_path / "out", workers=1, on_event=listen)

    assert [] == list((tmp_path / "out").glob("runs/*/manifest.json"))


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_entities_are_erased_from_a_run_in_a_store(
    s3: str, tmp_path: Path, suffix: str, monkeypatch: Any
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    split = split_of(write_raw(tmp_path / "raw", suffix=suffix))
    options = {"workers": 2, "work_dir": tmp_path / "work"}
    local, remote = (
        headrace.prepare(split, tmp_path / "out"),
        headrace.prepare(split, f"{s3}/some/out", **options),
    )
    entity = rows_of(headrace.open(tmp_path / "out"), "train")[0]["entity"]

    done = headrace.forget(f"{s3}/some/out", [entity], **options)
    headrace.forget(tmp_path / "out", [entity], old_run="delete")

    def shards(out: str | Path) -> dict[str, bytes]:
        return {name: data for name, data in shards_of(out).items() if "forgotten.json" not in name}

    assert headrace.verify(f"{s3}/some/out").problems == []
    assert headrace.verify(f"{s3}/some/out", run=remote.manifest.run_id).problems == []
    assert done.run.name == headrace.verify(tmp_path / "out").run_id
    assert entity not in {
        row["entity"] for row in rows_of(headrace.open(f"{s3}/some/out"), "train")
    }
    with (
        monkeypatch.context() as patch,
        raised(StoreError, path=remote.run, remedy="deletes what it is told"),
    ):
        patch.setattr(ObjectPlace, "delete", lambda place: None)
        headrace.forget(f"{s3}/some/out", [entity], old_run="delete", **options)
    headrace.forget(
        f"{s3}/some/out", [entity], old_run="delete", **options
    )  # done before: only the old run goes
    ours = {
        name: data
        for name, data in files_on_disk(tmp_path / "out").items()
        if "forgotten.json" not in name
    }
    assert shards(f"{s3}/some/out") == ours
    assert not local.run.exists()


@pytest.mark.slow
def test_a_run_has_one_manifest_wherever_it_is_made_and_every_object_is_vouched_for(
    s3: str, tmp_path: Path
) -> None:
    raw = write_raw(tmp_path / "raw")
    local = headrace.prepare(split_of(str(raw)), tmp_path / "out", workers=1)
    remote = headrace.prepare(split_of(str(raw)), f"{s3}/out", workers=2, work_dir=tmp_path / "w")

    assert (local.run / "manifest.json").read_bytes() == (remote.run / "manifest.json").read_bytes()
    names = [fact.name for fact in place_of(remote.run).files_below()]
    assert not [name for name in names if name.startswith("stage/")]
    place_of(remote.run / "notes.txt").replace(b"1")
    assert f"{remote.run}/notes.txt: is not part" in headrace.verify(f"{s3}/out").problems[0]
    place_of(remote.run / "notes.txt").delete()
    for name in names:
        if name in ("manifest.json", "_SUCCESS"):
            continue
        data = (remote.run / name).read_bytes()
        for harmed in (None, data[:-1] + bytes([data[-1] ^ 1]), data + b"\n"):
            if harmed is None:
                place_of(remote.run / name).delete()
            else:
                place_of(remote.run / name).replace(harmed)
            assert name in headrace.verify(f"{s3}/out").problems[0], harmed
        place_of(remote.run / name).replace(data)
    assert [] == headrace.verify(f"{s3}/out").problems


@pytest.mark.slow
def test_a_copy_that_the_store_makes_wrongly_is_found(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = write_raw(tmp_path / "raw")

    def alias(place: ObjectPlace, target: Path) -> None:
        data = place.read()
        place_of(target).replace(data[:-1] + bytes([data[-1] ^ 1]))

    monkeypatch.setattr(ObjectPlace, "alias", alias)

    with pytest.raises(StoreError, match="oot_data/.* is not the copy"):
        headrace.prepare(split_of(str(raw)), f"{s3}/out", workers=1, work_dir=tmp_path / "w")
    assert not (path_of(f"{s3}/out") / "splits.json").exists()
