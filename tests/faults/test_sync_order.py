"""What power failure asks for, seen from the system calls: write, fsync of the file, link to its name, fsync of its
directory; and the manifest after everything that it names."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fault_recipes import RECIPES, settings_of
from fault_table import note
from forks import PATHS

STRACE = shutil.which("strace")
CHILD = "import json, sys; from pathlib import Path; from fault_recipes import make; make(sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3]))"
CALLS = "openat,open,creat,write,pwrite64,writev,pwritev,fsync,fdatasync,link,linkat,rename,renameat,renameat2,close,sendfile,copy_file_range,ftruncate"
LINE = re.compile(r"^\d+ +\d+\.\d+ (\w+)\((.*)\) += (-?\d+)")
PATH_OF = re.compile(r"^\d+<(.*?)>")
TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')


@dataclass
class Seen:
    """When things happened, by the number of the call. written, synced: of a file, at last; linked: temporary name to
    (name, when); directory: all syncs of a directory."""

    written: dict[str, int] = field(default_factory=dict)
    synced: dict[str, int] = field(default_factory=dict)
    linked: dict[str, tuple[str, int]] = field(default_factory=dict)
    directory: dict[str, list[int]] = field(default_factory=dict)


def traced(name: str, out: Path, log: Path) -> Seen:
    """The calls of an undisturbed run, in the order in which they ended."""
    command = [STRACE, "-f", "-ttt", "-y", "-s", "4096", "-e", f"trace={CALLS}", "-o", str(log)]
    command += [sys.executable, "-c", CHILD, name, json.dumps(settings_of(name)), str(out)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(PATHS)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if "ptrace" in done.stderr and "not permitted" in done.stderr:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr[-3000:]
    return parsed(log)


def parsed(log: Path) -> Seen:
    seen, waiting = Seen(), {}
    for number, line in enumerate(log.read_text(errors="replace").splitlines()):
        pid = line.split(" ", 1)[0]
        if line.endswith("<unfinished ...>"):
            waiting[pid] = line.removesuffix("<unfinished ...>").rstrip()
            continue
        resumed = re.search(r"<\.\.\. \w+ resumed>", line)
        if resumed:
            line = waiting.pop(pid) + line[resumed.end() :]
        match = LINE.match(line)
        if match is None or match[3].startswith("-"):
            continue
        call, arguments = match[1], match[2]
        path = PATH_OF.match(arguments)
        if (
            call
            in (
                "write",
                "pwrite64",
                "writev",
                "pwritev",
                "sendfile",
                "copy_file_range",
                "ftruncate",
            )
            and path
        ):
            seen.written[path[1]] = number
        elif call in ("fsync", "fdatasync") and path:
            seen.synced[path[1]] = number
            seen.directory.setdefault(path[1], []).append(number)
        elif call in ("link", "linkat", "rename", "renameat", "renameat2"):
            names = TEXT.findall(arguments)
            seen.linked[names[0]] = names[-1], number
    return seen


@pytest.mark.smoke("series")
@pytest.mark.skipif(STRACE is None, reason="there is no strace here")
@pytest.mark.parametrize("name", RECIPES)
def test_every_published_name_is_durable_before_anything_names_it(
    tmp_path: Path, name: str
) -> None:
    seen = traced(name, tmp_path / "out", tmp_path / "log")
    (run,) = (tmp_path / "out" / "runs").iterdir()
    target_of = {target: (temporary, when) for temporary, (target, when) in seen.linked.items()}
    _, manifest_at = target_of[str(run / "manifest.json")]
    checked = 0
    for path in sorted(each for each in run.rglob("*") if each.is_file() and not each.is_symlink()):
        if path.name in (".lock", "_SUCCESS") or path.parent.name == "receipts":
            continue
        temporary, linked_at = target_of[str(path)]
        if (
            temporary in target_of or temporary not in seen.written
        ):  # a second name of a file that was synced under its first
            assert temporary.startswith(str(run)), temporary
            continue
        checked += 1

        assert seen.written[temporary] < seen.synced[temporary] < linked_at, path
        after = [at for at in seen.directory.get(str(path.parent), []) if at > linked_at]
        assert after, f"{path.parent} was not synced after {path.name} got its name"
        if path.name != "manifest.json":
            assert any(at < manifest_at for at in after), (
                f"{path} may be named by a manifest before it is durable"
            )
    assert checked >= 4
    note("order of fsync", name, files=checked)
