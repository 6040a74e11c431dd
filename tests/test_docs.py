"""Every code block of the README and the docs runs, in order, as a reader would run them; or says why not.

A block is left out only by a comment on the line before it: <!-- not run: why -->. Python blocks of a page share their
names, console blocks run their `$` lines, YAML blocks become the file named in their first comment, and so do Python
blocks whose first line is only `# NAME.py`: scripts, which the page's console blocks start; on several ranks they run in
processes that have torch already, as starting one costs seconds (a real torchrun: test_stream_cli). A text block right
after a Python block, and what follows a `$` line, is compared with what was really printed; run ids may differ.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest
from script_processes import run_script
from typer.main import get_command

import headrace
import headrace.errors
from headrace.cli import app
from headrace.dataset.manifest import FORMAT_VERSION

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ELSEWHERE = ("CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/measurements.md")
FENCE = re.compile(r"(?P<before>[^\n]*)\n```(?P<language>\w*)\n(?P<text>.*?)\n```", re.DOTALL)
SCRIPT = re.compile(r"# (\w+\.py)\n")
TORCHRUN = re.compile(r"torchrun --standalone --nproc-per-node (\d+) (?=\w+\.py\b)")
RUN_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    skip: bool


def blocks_of(page: Path) -> list[Block]:
    found = []
    for match in FENCE.finditer(page.read_text("utf-8")):
        found.append(
            Block(match["language"], match["text"], match["before"].startswith("<!-- not run: "))
        )
    return found


def same_text(text: str) -> str:
    return RUN_ID.sub("RUN", "\n".join(line.rstrip() for line in text.strip().splitlines()))


def run_console(text: str, where: Path) -> None:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "COLUMNS": "120",
    }
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        if ranks := TORCHRUN.match(command):
            printed = run_script(where, int(ranks[1]), shlex.split(command[ranks.end() :]))
        else:
            done = subprocess.run(
                shlex.split(command),
                cwd=where,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{command}\n{done.stderr}"
            printed = done.stdout
        if expected.strip():
            assert same_text(expected) == same_text(printed)


@pytest.mark.smoke("README.md")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_runs_and_prints_what_the_page_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    printed: str | None = None
    for block in blocks_of(page):
        if block.skip:
            continue
        if script := SCRIPT.match(block.text):
            (tmp_path / script[1]).write_text(block.text + "\n")
        elif block.language == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(textwrap.dedent(block.text), str(page), "exec"), names)
            printed = out.getvalue()
            continue
        if block.language == "text" and printed:
            assert same_text(block.text) == same_text(printed)
        elif block.language == "console":
            run_console(block.text, tmp_path)
        elif block.language == "yaml":
            name = re.match(r"# (\S+?),? ", block.text)
            assert name is not None, "a YAML block begins with `# FILENAME, what it is for`"
            (tmp_path / name[1]).write_text(block.text + "\n")
            run_console(f"$ headrace run {name[1]}", tmp_path)
        printed = None


def test_pages_have_blocks_that_run() -> None:
    run = [block for block in blocks_of(ROOT / "README.md") if not block.skip and block.language]

    assert len(run) >= 4


def test_every_relative_link_leads_to_a_file() -> None:
    for page in [*PAGES, *(ROOT / page for page in ELSEWHERE)]:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text("utf-8")):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_guarantee_names_tests_that_exist() -> None:
    guarantees = (ROOT / "docs/guarantees.md").read_text("utf-8")
    listed = (ROOT / "tests/README.md").read_text("utf-8")
    laws = re.findall(r"^- \*\*(.+?)\.\*\*", guarantees, re.MULTILINE)
    named = re.findall(r"`(tests/[\w./]+)`", listed)

    assert len(laws) > 10
    assert [re.sub(r"\[(.+?)\]\(.*?\)", r"\1", law) for law in laws] == re.findall(
        r"^\| (?!law)(\w.+?) \|", listed, re.MULTILINE
    )
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_public_name_is_in_the_reference() -> None:
    reference = "".join(page.read_text("utf-8") for page in (ROOT / "docs/api").glob("*.md"))
    shown = set(
        re.findall(r"^::: headrace\.(\w+|types\.\w+|tabular\.\w+)$", reference, re.MULTILINE)
    )
    public = set(headrace.__all__) - set(dir(headrace.errors))
    public |= {
        f"{module.__name__.rpartition('.')[2]}.{name}"
        for module in (headrace.types, headrace.tabular)
        for name in module.__all__
    }

    assert public - shown == set()


def test_the_page_of_the_format_names_its_version() -> None:
    said = re.findall(
        r"the format version, now (\d+)", (ROOT / "docs/format.md").read_text("utf-8")
    )

    assert [str(FORMAT_VERSION)] == said


def commands_named_on(page: Path) -> list[list[str]]:
    """Commands between backticks, as words; of what is no whole command, such as `headrace …`, the first words."""
    found = re.findall(r"`headrace ([^`]*)`", FENCE.sub("", page.read_text("utf-8")))
    return [shlex.split(each.partition("…")[0]) for each in found]


def test_commands_and_flags_between_backticks_exist() -> None:
    top, unknown, named = get_command(app), [], 0
    for page in [
        *PAGES,
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
        *(ROOT / "examples").rglob("*.md"),
    ]:
        for words in commands_named_on(page):
            command, options = top, set()
            for word in words:
                named += 1
                below = getattr(command, "commands", {})
                if word.startswith("-"):
                    flag = word.partition("=")[0]
                    unknown += [f"{page.name}: {' '.join(words)}"] if flag not in options else []
                elif word in below:
                    command = below[word]
                elif command is top:
                    unknown.append(f"{page.name}: {' '.join(words)}")
                elif below:  # `init RECIPE`, `histories SOURCE`
                    command = below.get("prepare", below.get("split"))
                options = {
                    flag for each in command.params for flag in (*each.opts, *each.secondary_opts)
                }

    assert unknown == []
    assert named > 100
