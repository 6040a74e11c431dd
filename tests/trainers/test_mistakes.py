"""Every mistake that the page of a trainer warns of is a test, whose docstring begins with the page's words for it."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = re.compile(
    r"\| mistake \(`(?P<tests>tests/[\w/]+\.py)`\) \|.*\n\|[-|]+\n(?P<rows>(?:\|.*\n?)+)"
)


def mistakes() -> list[tuple[str, str]]:
    """The file of tests, and the first cell of each row."""
    found = []
    for page in sorted((ROOT / "docs" / "trainers").glob("*.md")):
        for table in TABLE.finditer(page.read_text("utf-8")):
            for row in table["rows"].splitlines():
                found.append((table["tests"], row.split(" | ")[0].removeprefix("| ")))
    return found


def docstrings(tests: str) -> list[str]:
    tree = ast.parse((ROOT / tests).read_text("utf-8"))
    functions = [each for each in tree.body if isinstance(each, ast.FunctionDef)]
    return [ast.get_docstring(each) or "" for each in functions if each.name.startswith("test_")]


def test_there_are_such_tables() -> None:
    assert len(mistakes()) >= 7


@pytest.mark.parametrize(("tests", "mistake"), mistakes())
def test_a_mistake_on_a_page_is_a_test(tests: str, mistake: str) -> None:
    assert any(text.startswith(mistake) for text in docstrings(tests)), (tests, mistake)
