"""Chat templates: Jinja as tokenizers ship it, rendered in the sandbox, and what can be read off their source.

The environment is the one templates are written for: trimmed blocks, loop controls, `raise_exception`, `tojson` that
keeps characters, `{% generation %}` blocks, and no clock: `strftime_now` gives the date that was set, or refuses.

Nothing here limits time or memory: outside of tests, templates are compiled and rendered in `render_process`.

Two things are told by every rendering beside its text. `{% generation %}` blocks stand between marks, Unicode
noncharacters that no text may hold. And `tojson` notes what it writes (`Trace`), because JSON is the one part of a
rendering that is not a message's own text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from functools import cached_property
from typing import Any

from headrace.digest import sha256_hex
from headrace.errors import MissingExtra, SettingsError
from headrace.packing.chats.rejects import RowRejected, shown
from headrace.packing.chats.sandbox import TRACE, Sandbox, Trace, joined

try:
    import jinja2
    from jinja2 import nodes
    from jinja2.runtime import Context
except ImportError as error:
    raise MissingExtra("jinja2", "chat") from error

__all__ = ["Template", "Trace"]

_MOST_SOURCE = 1 << 20
_PROMPT = "add_generation_prompt"
_PLACES = frozenset(("role", "last", "first", "index", "index0", "length", "previtem", "nextitem"))


class Template:
    """A compiled chat template. Raises `SettingsError` if the source is no template."""

    def __init__(self, source: str, *, special: Mapping[str, str], values: Mapping[str, Any], day: date | None) -> None:
        if len(source) > _MOST_SOURCE:
            raise SettingsError(f"the chat template has {len(source):,} characters; the most is {_MOST_SOURCE:,}")
        self.source = source
        self._environment = Sandbox(day)
        self._globals = {**self._environment.globals, "documents": None, **special, **values}
        try:
            self._compiled = self._environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            line = getattr(error, "lineno", None)
            where = "" if line is None else f", line {line}"
            raise SettingsError(f"the chat template{where}: {error}; give another with chat_template=") from error

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        values: Mapping[str, Any],
        *,
        trace: Trace,
        generation_prompt: bool = False,
    ) -> str:
        """The text of a conversation. Raises `RowRejected` (template_error, template_limit)."""
        variables = {
            **self._globals,
            "messages": messages,
            "tools": tools,
            **values,
            "add_generation_prompt": generation_prompt,
            TRACE: trace,
        }
        try:
            context = Context(self._environment, variables, None, self._compiled.blocks)
            return joined(self._compiled.root_render_func(context))
        except (RowRejected, SettingsError):
            raise
        except (RecursionError, MemoryError) as error:
            raise RowRejected("template_limit", f"{type(error).__name__} in the template") from None
        except Exception as error:  # noqa: BLE001 - a template raises whatever the methods of its values raise
            raise RowRejected("template_error", f"{type(error).__name__}: {shown(str(error), 200)}") from None

    @property
    def digest(self) -> str:
        """SHA-256 of the source."""
        return sha256_hex(self.source.encode())

    @cached_property
    def has_generation_blocks(self) -> bool:
        """Whether the template itself says what is generated."""
        return any(each.name == "_between_marks" for each in self._tree.find_all(nodes.ExtensionAttribute))

    @cached_property
    def writes_tools(self) -> bool:
        """Whether the template looks at the tools of a conversation at all."""
        return any(name.name == "tools" for name in self._tree.find_all(nodes.Name))

    @cached_property
    def fixed_prompt(self) -> bool:
        """Whether what is written for `add_generation_prompt` depends on roles and places alone, on no content.

        True only where that can be read off the source: wherever the word is asked for, it is in a condition; under it
        and in the conditions around it nothing of a message is looked at but its role and place, and no variable that
        the template sets.
        """
        names = list(self._tree.find_all(nodes.Name))
        stored = {name.name for name in names if name.ctx != "load"} - {_PROMPT, "message", "messages", "loop"}
        asked = sum(name.name == _PROMPT and name.ctx == "load" for name in names)
        found = list(_prompt_branches(self._tree, []))
        in_tests = sum(sum(name.name == _PROMPT for name in _all(branch.test, nodes.Name)) for branch, _ in found)
        return asked == in_tests and all(
            _looks_at_roles_only(node, stored) for branch, around in found for node in (branch, *around)
        )

    @cached_property
    def _tree(self) -> nodes.Template:
        return self._environment.parse(self.source)


def _all(node: nodes.Node, kinds: Any) -> Iterator[Any]:
    """Nodes of these kinds: the node itself and those below it."""
    if isinstance(node, kinds):
        yield node
    yield from node.find_all(kinds)


def _prompt_branches(node: nodes.Node, around: list[nodes.Node]) -> Iterator[tuple[Any, list[nodes.Node]]]:
    """Every condition that asks for the generation prompt, with the conditions around it."""
    if isinstance(node, nodes.If | nodes.CondExpr):
        if any(name.name == _PROMPT for name in _all(node.test, nodes.Name)):
            yield node, around
        around = [*around, node.test]
    for child in node.iter_child_nodes():
        yield from _prompt_branches(child, around)


def _looks_at_roles_only(node: nodes.Node, stored: set[str]) -> bool:
    if any(name.name in stored for name in _all(node, nodes.Name)) or next(_all(node, nodes.Call), None) is not None:
        return False
    if any(each.attr not in _PLACES for each in _all(node, nodes.Getattr)):
        return False
    keys = [each.arg for each in _all(node, nodes.Getitem)]
    whole = {id(each.node) for each in _all(node, (nodes.Getattr, nodes.Getitem))}
    bare = [name for name in _all(node, nodes.Name) if name.name in ("message", "messages") and id(name) not in whole]
    constant = [key.value for key in keys if isinstance(key, nodes.Const)]
    return (
        not bare
        and all(isinstance(key, nodes.Const | nodes.Neg | nodes.Sub) for key in keys)
        and all(not isinstance(value, str) or value in _PLACES for value in constant)
    )
