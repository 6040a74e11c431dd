"""Pages that live outside docs/ – the changelog, how to contribute, the examples – as pages of the site.

Links to them stand in docs/ as they do in the repository (`../CHANGELOG.md`); on the site they are one level lower.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_ROOT = Path(__file__).parents[2]
_EXAMPLES = sorted(
    page.relative_to(_ROOT).as_posix() for page in _ROOT.glob("examples/*/README.md")
)
_OUTSIDE = ["CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", *_EXAMPLES]
_CONSOLE = re.compile(r'<div class="language-console highlight">.*?</div>', re.DOTALL)
_FLAG = re.compile(r"(?<=[\s>])--[a-z][\w-]*(?=[\s<=])")
_SETTINGS = re.compile(r"^<!-- settings of (\w+) -->$", re.MULTILINE)
_WAY_OUT = re.compile(r"\]\((\.\./)+(?=(?:CHANGELOG|CONTRIBUTING|LICENSE|examples/))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside."""
    for name in _OUTSIDE:
        files.append(
            File.generated(
                config, name, content=_with_links_inside((_ROOT / name).read_text("utf-8"))
            )
        )
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links that lead out of docs/ lead to the pages that came in, comments for the tests are left out, and settings
    are listed where a page asks for them."""
    up = "../" * page.file.src_uri.count("/")
    markdown = _SETTINGS.sub(_settings_of, _WAY_OUT.sub(f"]({up}", markdown))
    return re.sub(r"^<!-- not run: .*? -->\n", "", markdown, flags=re.MULTILINE)


def on_page_content(html: str, **_: Any) -> str:
    """Options in commands become one word each, which is not broken at its dashes."""
    return _CONSOLE.sub(lambda found: _FLAG.sub(r'<span class="flag">\g<0></span>', found[0]), html)


def _with_links_inside(text: str) -> str:
    """Links of a page from outside into docs/ lose that part of their path."""
    return re.sub(r"\]\(((?:\.\./)*)docs/", r"](\1", text)


def _settings_of(found: re.Match[str]) -> str:
    """Every setting of a recipe with its description, as a table. The settings model is the only place they are in."""
    from headrace.cli.settings_flags import describe
    from headrace.recipe import find_recipe

    fields = find_recipe(found[1]).settings().model_fields
    rows = [
        f"| `{name}` | {describe(field).replace('|', chr(92) + '|')} |"
        for name, field in fields.items()
    ]
    return "\n".join(["", "| setting | |", "|---|---|", *rows, ""])
