"""A run is identified by what was asked of which bytes, is reused when it is there, and is resumed when it is not done."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.errors import CorruptShard, InputError, RunBusy, SettingsError, StoreError
from headrace.run import identity
from headrace.run.events import Event, StageBegan
from headrace.run.prepare import Prepared, prepare
from headrace.split.settings import TemporalSplit
from headrace.storage.local import TEMP_PREFIX, strays
from raised import raised
from tables import HEADER, digests, small_rows, small_source, split, write_rows

PATHS = os.pathsep.join([str(Path(headrace.__file__).parents[1]), str(Path(__file__).parents[1])])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return small_source(tmp_path / "in", count=4)


def child(code: str, *arguments: object, **more: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": PATHS}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more
    )


def run_ids(source: Path, out: Path, **asked: Any) -> str:
    return split(source, out, **asked).manifest.run_id


# --- identity ---


@pytest.mark.parametrize(
    "asked",
    [{"seed": 7}, {"train_ratio": 0.6}, {"split_date": "2024-12-01"}, {"layout": "single"}, {"format": "parquet"}, {"compression": "gz"},
     {"val_in_test": "drop"}, {"lineage": "columns"}, {"dialect": {"null_values": ["NA"]}}, {"types": {"row": "int32"}}, {"time_zone": "Europe/Berlin"}],
    ids=str,
)  # fmt: skip
def test_every_setting_that_can_change_a_byte_changes_the_run(
    tmp_path: Path, source: Path, asked: dict[str, Any]
) -> None:
    assert run_ids(source, tmp_path / "out") != run_ids(source, tmp_path / "out", **asked)


@pytest.mark.parametrize(
    "asked",
    [
        {"workers": 1},
        {"workers": 3},
        {"on_event": print},
        {"split_date": "20250101"},
        {"split_date": "2025-01-01T00:00:00+00:00"},
    ],
    ids=str,
)
def test_what_changes_no_byte_does_not_change_the_run(
    tmp_path: Path, source: Path, asked: dict[str, Any]
) -> None:
    assert run_ids(source, tmp_path / "one") == run_ids(source, tmp_path / "two", **asked)


def test_a_source_that_was_moved_is_the_same_source(tmp_path: Path, source: Path) -> None:
    before = run_ids(source, tmp_path / "one")
    source.rename(tmp_path / "elsewhere")

    assert (
        before
        == run_ids(tmp_path / "elsewhere", tmp_path / "two")
        == run_ids(tmp_path / "elsewhere" / "part-*.csv", tmp_path / "three")
    )


def test_a_touched_file_is_another_source_unless_contents_are_compared(
    tmp_path: Path, source: Path
) -> None:
    stat, content = (
        run_ids(source, tmp_path / "out"),
        run_ids(source, tmp_path / "out", fingerprint_by="content"),
    )
    os.utime(source / "part-00001.csv", ns=(1, 1))

    assert stat != run_ids(source, tmp_path / "out")
    assert content == run_ids(source, tmp_path / "out", fingerprint_by="content")


@pytest.mark.parametrize("how", ["stat", "content"])
def test_another_byte_another_name_or_another_file_is_another_source(
    tmp_path: Path, source: Path, how: str
) -> None:
    ids = [run_ids(source, tmp_path / "out", fingerprint_by=how)]
    path = source / "part-00001.csv"
    path.write_bytes(path.read_bytes().replace(b"2024-02", b"2024-03", 1))
    ids.append(run_ids(source, tmp_path / "out", fingerprint_by=how))
    path.rename(source / "part-00009.csv")
    ids.append(run_ids(source, tmp_path / "out", fingerprint_by=how))
    write_rows(source / "part-00010.csv", HEADER, [])
    ids.append(run_ids(source, tmp_path / "out", fingerprint_by=how))

    assert 4 == len(set(ids))


def test_the_format_version_is_part_of_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    one = identity.run_id("temporal_split", {"a": 1}, "f")
    monkeypatch.setattr(identity, "FORMAT_VERSION", identity.FORMAT_VERSION + 1)

    assert one != identity.run_id("temporal_split", {"a": 1}, "f")


def test_a_signature_counts_by_its_names_and_not_by_its_path(tmp_path: Path, source: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text("id,date,row\n")
    (tmp_path / "three").write_text("id,date,number\n")
    ids = [TemporalSplit(source=source, time="date", entity="id", split_date="2025-01-01", signature=tmp_path / name).identity_settings() for name in ("one", "two", "three")]  # fmt: skip

    assert ids[0] == ids[1] != ids[2]


@pytest.mark.parametrize("workers", [0, -1])
def test_less_than_one_worker_is_an_error(tmp_path: Path, source: Path, workers: int) -> None:
    with pytest.raises(
        SettingsError, match=f"workers is {workers}; expected an integer of 1 or more"
    ):
        split(source, tmp_path / "out", workers=workers)


# --- reuse ---


def test_a_finished_run_is_reused_and_nothing_is_computed(tmp_path: Path, source: Path) -> None:
    first = split(source, tmp_path / "out")
    before = digests(first.run)
    events: list[Event] = []
    second = split(source, tmp_path / "out", on_event=events.append)

    assert ("computed", "reused") == (first.how, second.how)
    assert [] == [event for event in events if isinstance(event, StageBegan)]
    assert before == digests(second.run)
    assert first.manifest == second.manifest


def test_a_run_leaves_its_tree_and_nothing_else(tmp_path: Path, source: Path) -> None:
    run = split(source, tmp_path / "out").run

    assert {
        "config.json",
        "manifest.json",
        "index.parquet",
        "receipts",
        "_SUCCESS",
        "training_data",
        "oot_data",
        "splits",
        ".lock",
    } == {path.name for path in run.iterdir()}
    assert [] == strays(tmp_path / "out")
    assert {"runs", "splits"} == {path.name for path in (tmp_path / "out").iterdir()}


@pytest.mark.slow
def test_the_stage_of_a_run_killed_behind_its_manifest_is_removed_by_the_next(
    tmp_path: Path, source: Path
) -> None:
    kill_at(source, tmp_path / "out", "manifest.linked")
    (stage,) = (tmp_path / "out" / "runs").glob("*/stage")
    prepared = split(source, tmp_path / "out")

    assert "reused" == prepared.how
    assert not stage.exists()
    assert (prepared.run / "_SUCCESS").exists()


# --- resume ---

KILL = """
import os, signal, sys
from headrace.run.events import Step
from tables import split

source, out, step, count, layout = sys.argv[1:]
seen = 0
def on_event(event):
    global seen
    if isinstance(event, Step) and event.name == step:
        seen += 1
        if seen == int(count):
            os.kill(os.getpid(), signal.SIGKILL)
split(source, out, workers=1, on_event=on_event, layout=layout)
"""


def kill_at(source: Path, out: Path, step: str, count: int = 1, layout: str = "sharded") -> None:
    process = child(KILL, source, out, step, count, layout)
    _, errors = process.communicate()
    assert -signal.SIGKILL == process.returncode, errors


def began(source: Path, out: Path, **asked: Any) -> tuple[Prepared, dict[str, int]]:
    """Resume; how many tasks of each stage were found done."""
    events: list[Event] = []
    prepared = split(source, out, workers=1, on_event=events.append, **asked)
    return prepared, {event.stage: event.done for event in events if isinstance(event, StageBegan)}


@pytest.mark.slow
def test_a_killed_run_keeps_its_finished_tasks(tmp_path: Path, source: Path) -> None:
    kill_at(source, tmp_path / "out", "receipt.linked", 6)  # 4 of the scan, 2 of the split
    prepared, done = began(source, tmp_path / "out")

    assert {"scan": 4, "split": 2} == done
    assert digests(split(source, tmp_path / "other", workers=1).run) == digests(prepared.run)


def test_a_finished_run_has_no_unfinished_file_of_a_killed_attempt(
    tmp_path: Path, source: Path
) -> None:
    def on_event(event: Event) -> None:
        if isinstance(event, StageBegan) and event.stage == "split":
            for run in (tmp_path / "out/runs").iterdir():
                directory = run / "training_data/train"
                directory.mkdir(parents=True, exist_ok=True)
                (directory / f"{TEMP_PREFIX}part-00000.csv-01234567").write_bytes(b"half of it")

    prepared = split(source, tmp_path / "out", on_event=on_event)

    assert [] == strays(prepared.run)


def damage_missing(path: Path) -> None:
    path.unlink()


def damage_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def damage_flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def damage_empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.slow
@pytest.mark.smoke(
    "training_data/train/part-00000.csv-redone0-damage_flip",
    "receipts/split-00001.json-redone2-damage_cut",
    "stage/scan-00002.rows.arrow-redone3-damage_missing",
)
@pytest.mark.parametrize("harm", [damage_missing, damage_cut, damage_flip, damage_empty])
@pytest.mark.parametrize(
    ("what", "redone"),
    [("training_data/train/part-00000.csv", {"scan": 4, "split": 3}), ("training_data/test/part-00000.csv", {"scan": 4, "split": 3}),
     ("receipts/split-00001.json", {"scan": 4, "split": 3}), ("stage/scan-00002.rows.arrow", {"scan": 3, "split": 4})],
)  # fmt: skip
def test_a_task_whose_files_were_harmed_is_done_again(
    tmp_path: Path, source: Path, harm: Callable[[Path], None], what: str, redone: dict[str, int]
) -> None:
    kill_at(source, tmp_path / "out", "index.linked")
    (run,) = (tmp_path / "out" / "runs").iterdir()
    harm(run / what)
    prepared, done = began(source, tmp_path / "out")

    assert redone == done
    assert digests(split(source, tmp_path / "other", workers=1).run) == digests(prepared.run)


@pytest.mark.slow
@pytest.mark.smoke("damage_cut")
@pytest.mark.parametrize("harm", [damage_cut, damage_empty])
def test_an_unfinished_file_of_a_stage_without_receipt_is_made_again(
    tmp_path: Path, source: Path, harm: Callable[[Path], None]
) -> None:
    kill_at(source, tmp_path / "out", "shard.linked", 1)
    (path,) = (tmp_path / "out" / "runs").glob("*/stage/scan-00000.rows.arrow")
    harm(path)
    prepared = split(source, tmp_path / "out")

    assert digests(split(source, tmp_path / "other").run) == digests(prepared.run)


def test_a_damaged_manifest_is_an_error_that_names_it(tmp_path: Path, source: Path) -> None:
    run = split(source, tmp_path / "out").run
    damage_cut(run / "manifest.json")
    (run / "manifest.json").write_text("{")

    with raised(CorruptShard, path=run / "manifest.json", remedy="restore it"):
        split(source, tmp_path / "out")


# --- several writers ---

HOLD = """
import sys
from headrace.run.events import Step
from tables import split

def on_event(event):
    if isinstance(event, Step) and event.name == "receipt.linked":
        print("working", flush=True)
        sys.stdin.readline()
print(split(sys.argv[1], sys.argv[2], workers=1, on_event=on_event).how, flush=True)
"""


@pytest.mark.slow
def test_a_run_that_another_process_works_on_is_busy(tmp_path: Path, source: Path) -> None:
    holder = child(HOLD, source, tmp_path / "out", stdin=subprocess.PIPE)
    assert holder.stdout is not None
    assert "working\n" == holder.stdout.readline()

    with raised(RunBusy, remedy="wait for it and run again"):
        split(source, tmp_path / "out")
    other = split(source, tmp_path / "out", seed=7)
    output, errors = holder.communicate("\n" * 50)

    assert "computed" == other.how
    assert 0 == holder.returncode, errors
    assert "computed" in output
    assert "reused" == split(source, tmp_path / "out").how


@pytest.mark.slow
def test_a_killed_holder_does_not_block_the_next(tmp_path: Path, source: Path) -> None:
    holder = child(HOLD, source, tmp_path / "out", stdin=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    holder.kill()
    holder.communicate()

    assert "computed" == split(source, tmp_path / "out").how


RACE = """
import sys
from headrace.errors import RunBusy
from tables import split
sys.stdin.readline()
try:
    print(split(sys.argv[1], sys.argv[2], workers=1).how)
except RunBusy:
    print("busy")
"""


@pytest.mark.slow
def test_writers_that_race_end_well_or_find_the_run_busy(tmp_path: Path, source: Path) -> None:
    expected = digests(split(source, tmp_path / "alone").run)
    for number in range(3):
        out = tmp_path / f"out{number}"
        racers = [child(RACE, source, out, stdin=subprocess.PIPE) for _ in range(3)]
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("\n")
            racer.stdin.flush()
        ended = [(racer.communicate()[0].strip(), racer.returncode) for racer in racers]

        assert {0} == {code for _, code in ended}
        assert {"computed"} <= {word for word, _ in ended} <= {"computed", "reused", "busy"}
        assert expected == digests(split(source, out).run)
        assert [] == strays(out)


# --- failures ---


def left(out: Path) -> list[str]:
    """Temporary files and manifests below the output directory."""
    return [
        path.name
        for path in out.rglob("*")
        if path.name.startswith(TEMP_PREFIX) or path.name == "manifest.json"
    ]


@pytest.mark.parametrize("format_", ["csv", "parquet", "jsonl"])
@pytest.mark.parametrize("layout", ["sharded", "single"])
def test_a_source_that_changes_while_it_is_read_is_an_error_and_leaves_nothing_half_done(
    tmp_path: Path, source: Path, format_: str, layout: str
) -> None:
    def touch(event: Event) -> None:
        if isinstance(event, StageBegan) and event.stage == "split":
            path = source / "part-00003.csv"
            path.write_bytes(path.read_bytes() + b"007,2024-01-01,9\n")

    with raised(InputError, path=source / "part-00003.csv", remedy="run again"):
        split(source, tmp_path / "out", on_event=touch, format=format_, layout=layout)
    assert [] == left(tmp_path / "out")
    assert "computed" == split(source, tmp_path / "out", format=format_, layout=layout).how


@pytest.mark.parametrize("format_", ["csv", "parquet", "jsonl"])
def test_a_bad_row_late_in_the_source_leaves_nothing_half_done(
    tmp_path: Path, source: Path, format_: str
) -> None:
    rows = [*small_rows(200), ("7", "2024-01-01", "x")]
    write_rows(source / "part-00009.csv", HEADER, rows)

    with pytest.raises(InputError, match=r"part-00009\.csv: row 201"):
        split(source, tmp_path / "out", format=format_, types={"row": "int32"})
    assert [] == left(tmp_path / "out")


LIMITED = """
import resource, signal, sys
from headrace.errors import HeadraceError
from tables import split
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
try:
    split(sys.argv[1], sys.argv[2], workers=2, format=sys.argv[4], layout=sys.argv[5])
except HeadraceError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.slow
@pytest.mark.smoke("csv-sharded-3000", "parquet-single-12000")
@pytest.mark.parametrize("limit", [300, 3000, 12_000])
@pytest.mark.parametrize(
    ("format_", "layout"),
    [("csv", "sharded"), ("parquet", "sharded"), ("csv", "single"), ("parquet", "single")],
)
def test_a_full_disk_is_an_error_that_names_the_place_and_the_run_is_resumed_later(
    tmp_path: Path, limit: int, format_: str, layout: str
) -> None:
    source = small_source(tmp_path / "in", count=3, rows=2000)
    process = child(LIMITED, source, tmp_path / "out", limit, format_, layout)
    output, errors = process.communicate()

    assert (0, "") == (process.returncode, errors)
    assert output.startswith(f"StoreError {tmp_path / 'out'}")
    assert "the file would be larger than is allowed here" in output
    assert [] == left(tmp_path / "out")
    resumed = split(source, tmp_path / "out", format=format_, layout=layout)
    assert digests(split(source, tmp_path / "other", format=format_, layout=layout).run) == digests(
        resumed.run
    )


def test_a_place_that_cannot_be_written_is_an_error_that_names_it(
    tmp_path: Path, source: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")

    with raised(SettingsError, setting="out", path=tmp_path / "file", remedy="another output"):
        split(source, tmp_path / "file" / "out")


@pytest.mark.skipif(
    os.geteuid() == 0 and not Path("/proc/sys").is_dir(), reason="root may write everywhere here"
)
def test_a_read_only_directory_is_an_error_that_names_it(tmp_path: Path, source: Path) -> None:
    place = Path("/proc/sys") if os.geteuid() == 0 else tmp_path / "locked"
    if os.geteuid() != 0:
        place.mkdir(mode=0o500)

    with pytest.raises(StoreError, match=rf"{place}/out.*: "):
        split(source, place / "out")


def test_a_recipe_is_prepared_by_its_settings_alone(tmp_path: Path, source: Path) -> None:
    recipe = TemporalSplit(
        source=source, time="date", entity="id", split_date="2025-01-01", train_ratio=0.5
    )
    one, two = prepare(recipe, tmp_path / "one"), prepare(recipe, str(tmp_path / "two"))

    assert digests(one.run) == digests(two.run)


def test_a_run_can_be_made_again_after_its_directory_is_removed(
    tmp_path: Path, source: Path
) -> None:
    first = split(source, tmp_path / "out")
    before = digests(first.run)
    shutil.rmtree(first.run)

    assert before == digests(split(source, tmp_path / "out").run)


def test_a_warning_that_nobody_hears_is_logged(
    tmp_path: Path, source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = TemporalSplit(source=source, time="date", entity="id", split_date="2099-01-01")
    prepare(recipe, tmp_path / "out")

    assert [each.name for each in caplog.records if "test is empty" in each.getMessage()] == [
        "headrace"
    ]


OUTPUTS = {
    "a link to nothing": (lambda out: out.symlink_to("nowhere"), "make that directory", "nowhere"),
    "a loop of links": (lambda out: out.symlink_to(out.name), "make that directory", "out"),
    "a file": (lambda out: out.write_text(""), "choose another", ""),
    "a link to a file": (lambda out: out.symlink_to(__file__), "choose another", __file__),
}


@pytest.mark.parametrize("parent", [False, True])
@pytest.mark.parametrize("kind", OUTPUTS)
def test_an_output_that_cannot_be_a_directory_is_named(
    tmp_path: Path, source: Path, kind: str, parent: bool
) -> None:
    make, remedy, target = OUTPUTS[kind]
    out = tmp_path / "out"
    make(out)

    with raised(SettingsError, path=out, setting="out", remedy=remedy) as caught:
        split(source, out / "more" if parent else out)
    assert target in str(caught.value)
    assert [] == list(tmp_path.glob("out/*"))


def test_an_output_may_be_a_link_to_a_directory(tmp_path: Path, source: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to("disk")

    assert "computed" == split(source, tmp_path / "out").how
    assert (tmp_path / "disk" / "splits").is_symlink()
