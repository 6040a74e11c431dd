"""Fragments are well formed, and composing moves each into its version's section, once."""

import runpy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]
CHANGES: dict[str, Any] = runpy.run_path(str(ROOT / "release" / "changes.py"))
problems, compose, KINDS = CHANGES["problems"], CHANGES["compose"], CHANGES["KINDS"]

NAMES = st.from_regex(r"[1-9][0-9]{0,2}|[a-z]{1,5}(-[a-z]{1,5})?", fullmatch=True)
SENTENCES = st.lists(st.from_regex(r"[A-Za-z`,]{1,40}", fullmatch=True), min_size=1, max_size=30).map(" ".join)
FRAGMENTS = st.dictionaries(
    st.tuples(NAMES, st.sampled_from(KINDS)).map(lambda pair: f"{pair[0]}.{pair[1]}.md"),
    SENTENCES.map(lambda words: f"{words}.\n"),
    max_size=8,
)
OLD = "# Changelog\n\nThe newest first.\n\n## 0.2.0 (unreleased)\n\n- One.\n\n## 0.1.0 (2026-01-31)\n\n- Two.\n"


def test_the_fragments_of_this_project_are_well_formed() -> None:
    paths = [path for path in (ROOT / "changes").iterdir() if path.name != "README.md"]

    assert [] == [wrong for path in paths for wrong in problems(path.name, path.read_text())]


@pytest.mark.parametrize(
    ("name", "text", "wrong"),
    [
        ("8.md", "A text.", "is no NAME.KIND.md"),
        ("Eight.fixed.md", "A text.", "is no NAME.KIND.md"),
        ("8.fixes.md", "A text.", "the kind is 'fixes'"),
        ("8.fixed.md", " \n", "has no text"),
        ("8.fixed.md", "One.\n\nTwo.\n", "has several paragraphs"),
        ("8.fixed.md", "- A text.", "without a bullet"),
        ("8.fixed.md", "A text", "ends 'A text'"),
    ],
)
def test_a_malformed_fragment_is_told_and_composes_nothing(name: str, text: str, wrong: str) -> None:
    assert wrong in " ".join(problems(name, text))
    with pytest.raises(ValueError, match=name):
        compose(OLD, {name: text}, "0.2.0", "unreleased")


@given(FRAGMENTS, st.sampled_from(["0.2.0", "0.3.0"]))
def test_every_fragment_is_in_the_versions_section_once_and_nothing_else_changes(
    fragments: dict[str, str], version: str
) -> None:
    made = compose(OLD, fragments, version, "2026-02-28")
    section = made[made.index(f"## {version} (2026-02-28)") :].partition("\n## ")[0]
    items = [" ".join(part.split()) for part in ("\n" + section).replace("\n\n", "\n").split("\n- ")[1:]]
    items = [item.partition(" ###")[0] for item in items]

    assert sorted(items) == sorted(
        [" ".join(text.split()) for text in fragments.values()] + (["One."] if version == "0.2.0" else [])
    )
    assert made.endswith("\n\n## 0.1.0 (2026-01-31)\n\n- Two.\n")
    assert all(len(line) <= 120 for line in made.splitlines())


@given(FRAGMENTS, st.data())
def test_composing_twice_equals_composing_once_kind_by_kind(fragments: dict[str, str], data: Any) -> None:
    early = {name: text for name, text in fragments.items() if data.draw(st.booleans(), label=name)}
    late = {name: text for name, text in fragments.items() if name not in early}
    twice = compose(compose(OLD, early, "0.3.0", "unreleased"), late, "0.3.0", "2026-02-28")
    once = compose(OLD, fragments, "0.3.0", "2026-02-28")

    assert sorted(once.split("\n")) == sorted(twice.split("\n"))


def test_kinds_and_names_have_one_order() -> None:
    texts = {name: f"The text of {name[:-3]}." for name in ("b.fixed.md", "10.added.md", "9.added.md", "a.added.md")}

    made = compose("# Changelog\n", texts, "1.0.0", "unreleased")

    assert made == (
        "# Changelog\n\n## 1.0.0 (unreleased)\n\n### Added\n\n- The text of 9.added.\n- The text of 10.added.\n"
        "- The text of a.added.\n\n### Fixed\n\n- The text of b.fixed.\n"
    )
