"""What the machine refuses ends in one sentence: what ran out, the limit, what to do."""

from __future__ import annotations

import errno
import resource
import subprocess
import sys

import pytest
from store_cases import split_of, write_raw

import headrace
from headrace.cli.outermost import explain
from headrace.errors import InputError, MissingExtra
from headrace.shortage import least_address_space, shortage

GIB = 1 << 30
COMMAND = "import sys; sys.argv[0] = 'headrace'\nfrom headrace.cli import command\ncommand()\n"
STREAM = """
import headrace
batches = headrace.open({out!r}).stream("train", batch_size=7, batch_format="numpy")
print(sum(len(batch["x"]) for batch in batches))
"""
COMMANDS = {
    "split": lambda raw, out: [
        *("split", raw, "--out", f"{out}-again", "--time", "time", "--entity", "entity"),
        *("--split-date", "2025-01-01"),
    ],
    "inspect": lambda _, out: ["inspect", out],
    "verify": lambda _, out: ["verify", out],
    "peek": lambda raw, _: ["peek", raw],
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Raw shards, and a dataset of them."""
    place = tmp_path_factory.mktemp("limited")
    raw = write_raw(place / "raw", shards=2)
    headrace.prepare(split_of(str(raw)), place / "out", workers=1)
    return str(raw), str(place / "out")


def limited(code: str, arguments: list[str], limit: int) -> subprocess.CompletedProcess[str]:
    """Run Python in an address space of so many bytes."""

    def confine() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
        preexec_fn=confine,
    )


@pytest.mark.slow
@pytest.mark.smoke("verify-1.5", "split-0.5")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps this limit")
@pytest.mark.parametrize("gib", [0.5, 1.0, 1.5, 2.0])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_small_address_space_is_one_sentence(
    command: str, gib: float, prepared: tuple[str, str]
) -> None:
    done = limited(COMMAND, COMMANDS[command](*prepared), int(gib * GIB))

    assert done.returncode == 1, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("error: out of memory: ")
    assert f"{gib * GIB / 1e9:.2f} GB of address space (ulimit -v)" in done.stderr
    assert "raise that limit" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps this limit")
@pytest.mark.parametrize("more_gib", [0.1, 1.0, 2.0])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_larger_one_suffices_or_is_one_sentence(
    command: str, more_gib: float, prepared: tuple[str, str]
) -> None:
    """Three gigabytes once ended the process, as the library that draws reserves more."""
    limit = least_address_space() + int(more_gib * GIB)
    done = limited(COMMAND, COMMANDS[command](*prepared), limit)

    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr
    assert "bug" not in done.stderr
    if done.returncode:
        assert "out of memory" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps this limit")
def test_a_stream_in_python_says_it_too(prepared: tuple[str, str]) -> None:
    done = limited(STREAM.format(out=prepared[1]), [], int(1.5 * GIB))

    assert done.returncode == 1
    assert "headrace.errors.StoreError: out of memory: this process may use 1.61 GB" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps this limit")
@pytest.mark.parametrize("arguments", [["--help"], ["split", "--help"], ["--version"], ["doctor"]])
def test_what_needs_no_library_runs_all_the_same(arguments: list[str]) -> None:
    assert limited(COMMAND, arguments, GIB // 2).returncode == 0


def caused(outer: Exception, cause: Exception) -> Exception:
    outer.__cause__ = cause
    return outer


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory"),
        (OSError(errno.EMFILE, "Too many open files", "x.parquet"), "ulimit -n"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
        (ImportError("x.so: failed to map segment from shared object"), "memory"),
        (caused(ValueError("part"), MemoryError()), "memory"),
        (caused(KeyError("x"), OSError(errno.EMFILE, "Too many open files")), "ulimit -n"),
    ],
)
def test_what_ran_out_is_told(error: Exception, said: str) -> None:
    _, message, code = explain(error)

    assert code == 1
    assert said in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "error",
    [
        BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),  # a pipe that is full
        OSError(errno.ENOSPC, "No space left on device", "cache/x"),
        ValueError("a thread of thoughts"),
        ImportError("no metadata of package x"),
        KeyError("memory"),
    ],
)
def test_other_errors_are_what_they_are(error: Exception) -> None:
    assert shortage(error) is None
    assert str(error.args[min(1, len(error.args) - 1)]) in explain(error)[1]


def test_damage_that_is_a_lack_of_memory_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = caused(InputError("its files do not fit"), MemoryError("malloc of size 4 failed"))

    assert explain(wrong)[0] == "InputError"
    monkeypatch.setattr("headrace.cli.outermost.address_limit", lambda: 3 * GIB)
    assert "memory" in explain(wrong)[1]


def test_a_package_that_cannot_be_loaded_is_not_missing() -> None:
    def made(handled: ImportError) -> str:
        try:
            raise handled
        except ImportError:
            return str(MissingExtra("torch", "torch"))

    assert "torch is not installed" in made(ModuleNotFoundError("No module named 'torch'"))
    assert "torch cannot be loaded: libtorch.so: failed" in made(ImportError("libtorch.so: failed"))
