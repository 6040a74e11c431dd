"""Release notes by fragments: `make changelog` puts the files of changes/ into CHANGELOG.md and removes them.

A fragment is `changes/NAME.KIND.md`: NAME is the number of an issue or a word or two, KIND one of `KINDS`, the text one
item for users, without a bullet. They come by kind, then by name, numbers first, so the composed text does not depend
on who wrote last.
"""

import argparse
import re
import sys
import textwrap
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("added", "changed", "fixed", "removed", "security")
_NAME = re.compile(r"([a-z0-9]+(?:-[a-z0-9]+)*)\.([a-z]+)\.md")
_SECTION = re.compile(r"^## (\S+) \((.+)\)$", re.MULTILINE)


def problems(name: str, text: str) -> list[str]:
    """What is wrong with a fragment; empty if nothing is."""
    found = _NAME.fullmatch(name)
    if not found:
        return [f"changes/{name}: is no NAME.KIND.md, NAME of a-z, 0-9 and hyphens; rename it"]
    wrong = []
    if found[2] not in KINDS:
        wrong.append(f"changes/{name}: the kind is {found[2]!r}; give one of {', '.join(KINDS)}")
    body = text.strip()
    if not body or "\n\n" in body:
        wrong.append(f"changes/{name}: has {'several paragraphs' if body else 'no text'}; write one paragraph")
    elif re.match(r"[-*#]", body) or not body.endswith("."):
        wrong.append(f"changes/{name}: begins {body[:20]!r}, ends {body[-10:]!r}; write sentences, without a bullet")
    return wrong


def compose(changelog: str, fragments: dict[str, str], version: str, when: str) -> str:
    """The changelog with the fragments at the end of this version's section, which is made if it is not the first.

    when: the day of the release, or "unreleased". Raises `ValueError` for fragments with problems.
    """
    if wrong := [each for name, text in sorted(fragments.items()) for each in problems(name, text)]:
        raise ValueError("\n".join(wrong))
    first = _SECTION.search(changelog)
    if first is None or first[1] != version:
        start = len(changelog) if first is None else first.start()
        changelog = f"{changelog[:start].rstrip()}\n\n## {version} ({when})\n\n{changelog[start:]}"
        first = _SECTION.search(changelog)
        assert first is not None
    later = _SECTION.search(changelog, first.end())
    end = len(changelog) if later is None else later.start()
    head, body, rest = changelog[: first.start()], changelog[first.end() : end].strip("\n"), changelog[end:]
    for kind in KINDS:
        items = [_item(fragments[name]) for name in sorted(fragments, key=_order) if name.endswith(f".{kind}.md")]
        body = _with_items(body, kind.capitalize(), items) if items else body
    parts = [f"{head}## {version} ({when})", body, rest.rstrip("\n")]
    return "\n\n".join(part for part in parts if part) + "\n"


def _order(name: str) -> tuple[bool, int, str]:
    word = name.partition(".")[0]
    return (False, int(word), "") if word.isdigit() else (True, 0, word)


def _item(text: str) -> str:
    return textwrap.fill(
        " ".join(text.split()), 120, initial_indent="- ", subsequent_indent="  ", break_long_words=False
    )


def _with_items(body: str, title: str, items: list[str]) -> str:
    heading = f"### {title}"
    lines = body.split("\n") if body else []
    if heading not in lines:
        return "\n".join([*lines, *([""] if lines else []), heading, "", *items])
    start = lines.index(heading) + 1
    end = next((n for n in range(start, len(lines)) if lines[n].startswith("### ")), len(lines))
    while not lines[end - 1]:
        end -= 1
    return "\n".join([*lines[:end], *items, *lines[end:]])


def main(arguments: list[str]) -> int:
    """Checks or composes; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("check", "compose"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    parser.add_argument("--version", default=project["version"])
    parser.add_argument("--date", default="unreleased", help="the day of a release: 2026-12-31")
    asked = parser.parse_args(arguments)
    paths = [path for path in sorted((ROOT / "changes").iterdir()) if path.name != "README.md"]
    fragments = {path.name: path.read_text() for path in paths}
    if wrong := [each for name, text in fragments.items() for each in problems(name, text)]:
        print(*wrong, sep="\n", file=sys.stderr)
        return 1
    if asked.verb == "compose":
        changelog = ROOT / "CHANGELOG.md"
        changelog.write_text(compose(changelog.read_text(), fragments, asked.version, asked.date))
        for path in paths:
            path.unlink()
    print(f"{len(fragments)} fragments", "composed" if asked.verb == "compose" else "are well formed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
