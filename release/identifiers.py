"""Refuse identifiers that a reader has to learn first: part of `make check`.

`identifiers.txt` lists the words, each with what to write in its place. They are refused as names of variables,
parameters, functions, classes and attributes in src/headrace. A class name is also refused where a second module
defines it. Names that other libraries define, such as numpy's `dtype.kind`, are not ours to choose, and a setting keeps
its name in files of settings.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OTHERS = {"dtype.kind", "parameter.kind"}  # numpy's and inspect's
FILE_METHODS = {"tell"}  # of Python's file protocol
SETTINGS = {"kind"}  # folds and preferences have a setting of this name
# refused as a part of a longer name too
PARTS = {"apart", "asked", "begins", "found", "nobody", "taken", "tell", "told", "wanted"}
SETTINGS_MODULES = {"settings.py", "options.py"}


def main() -> None:
    """Print every refused identifier; exit with 1 if there is one."""
    lines = (ROOT / "release" / "identifiers.txt").read_text().splitlines()
    refused = dict(line.split("\t", 1) for line in lines if line and not line.startswith("#"))
    problems = []
    classes: dict[str, str] = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        tree = ast.parse(path.read_text())
        settings = setting_lines(tree) if path.name in SETTINGS_MODULES else set()
        for line, name in identifiers(tree):
            where = path.relative_to(ROOT)
            word = name.strip("_")
            if word in refused and not (name in SETTINGS and line in settings):
                problems.append(f"{where}:{line}: {name}; write {refused[word]}")
            for part in sorted(PARTS & set(word.split("_")) - {word}):
                problems.append(
                    f"{where}:{line}: {name}; write {refused.get(part, 'another word')}"
                )
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                where = f"{path.relative_to(ROOT)}:{node.lineno}"
                first = classes.setdefault(node.name, where)
                if first != where:
                    problems.append(f"{where}: class {node.name} is defined in {first} already")
    print("\n".join(problems), end="\n" if problems else "")
    sys.exit(1 if problems else 0)


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each identifier that the module itself chooses or uses."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node.name not in FILE_METHODS:
                yield node.lineno, node.name
        elif isinstance(node, ast.Attribute):
            owner = node.value
            last = getattr(owner, "attr", getattr(owner, "id", ""))
            is_setting = node.attr in SETTINGS and last in ("settings", "options")
            if (
                f"{last}.{node.attr}" not in OTHERS
                and node.attr not in FILE_METHODS
                and not is_setting
            ):
                yield node.lineno, node.attr


def setting_lines(tree: ast.AST) -> set[int]:
    """Return the lines of the fields of all classes of a module of settings."""
    lines = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            lines |= {line.lineno for line in node.body if isinstance(line, ast.AnnAssign)}
    return lines


if __name__ == "__main__":
    main()
