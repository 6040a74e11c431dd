"""Refuse identifiers that a reader has to learn first: part of `make check`.

`identifiers.txt` lists the words, each with what to write in its place. They are refused as names of variables,
parameters, functions, classes and attributes in src/headrace. A class name is also refused where a second module
defines it. Names that other libraries define, such as numpy's `dtype.kind`, are not ours to choose.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OTHERS = {"dtype.kind", "parameter.kind"}  # numpy's and inspect's


def main() -> None:
    """Print every refused identifier; exit with 1 if there is one."""
    lines = (ROOT / "release" / "identifiers.txt").read_text().splitlines()
    refused = dict(line.split("\t", 1) for line in lines if line and not line.startswith("#"))
    problems = []
    classes: dict[str, str] = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        tree = ast.parse(path.read_text())
        for line, name in identifiers(tree):
            if name in refused:
                where = path.relative_to(ROOT)
                problems.append(f"{where}:{line}: {name}; write {refused[name]}")
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
            yield node.lineno, node.name
        elif isinstance(node, ast.Attribute):
            owner = node.value
            last = getattr(owner, "attr", getattr(owner, "id", ""))
            if f"{last}.{node.attr}" not in OTHERS:
                yield node.lineno, node.attr


if __name__ == "__main__":
    main()
