"""Compile and render Jinja chat templates in a sandbox, without a clock or randomness.

The environment is the one that templates are written for: trimmed blocks, loop controls,
`raise_exception`, `tojson` that keeps characters, and `{% generation %}` blocks. There is no clock:
`strftime_now` gives the configured date, or refuses.

Jinja's own sandbox decides what may be read. This one also removes what could get around it (the
filter `attr`) and what would give other text in another run (`lipsum`, the filter `random`). Long
texts, lists and numbers are refused at the point where they are made, with an error that says so.
Time and memory are not limited here: outside of tests, templates are compiled and rendered in
`render_process`.

A rendering also reports two things beside its text. `{% generation %}` blocks are enclosed in
marks, which are Unicode noncharacters that no text may hold. And `tojson` records what it writes
(`Trace`), because JSON is the one part of a rendering that is not a message's own text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property, partial
from types import BuiltinMethodType
from typing import Any

from headrace.errors import MissingExtra, SettingsError, setting_name
from headrace.packing.chats.digits import dumps, loads
from headrace.packing.chats.marks import (
    GENERATED_BEGIN,
    GENERATED_END,
    json_mark,
    marked_numbers,
    unmarked,
)
from headrace.packing.chats.rejections import RowRejected, preview

try:
    import jinja2
    from jinja2 import nodes
    from jinja2.compiler import CodeGenerator, Frame
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.runtime import Context, LoopContext
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace
except ImportError as error:
    raise MissingExtra("jinja2", "chat") from error

_MOST_CHARACTERS = 64 << 20
_MOST_BITS = 4096  # of a product of integers
_TRACE = "__headrace_trace"  # the variable that holds the `Trace` of a rendering
_DICT_NAMES = frozenset(dir(dict))
_KNOWN_TYPES = frozenset(
    (str, list, tuple, LoopContext)
)  # whether the sandbox allows their attributes depends on type and name
_MOST_SOURCE = 1 << 20
_PROMPT = "add_generation_prompt"
_PLACES = frozenset(("role", "last", "first", "index", "index0", "length", "previtem", "nextitem"))


@dataclass(slots=True)
class Trace:
    """A record of one rendering.

    texts: what `tojson` wrote, in order. marked: whether `tojson` adds marks around it.

    owners: the owner of each part of a message, by its `id`. owned: the owner of each text, None if
    it has none. inside: the numbers of the marked texts inside each text.
    """

    marked: bool = False
    texts: list[str] = field(default_factory=list)
    owners: Mapping[int, int] = field(default_factory=dict)
    owned: list[int | None] = field(default_factory=list)
    inside: list[list[int]] = field(default_factory=list)


class _Generation(Extension):
    """The tag `{% generation %}…{% endgeneration %}`, which encloses its content in marks."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_between_marks"), [], [], body).set_lineno(line)

    def _between_marks(self, caller: Any) -> str:
        return f"{GENERATED_BEGIN}{caller()}{GENERATED_END}"


class _Generator(CodeGenerator):
    """A code generator that looks up names in plain dicts (the messages) inline, which halves the
    time of a template.

    The result is the same as the sandbox's: a name that is not an attribute of `dict` is found in
    the dict there too, only after two exceptions.
    """

    def visit_Getattr(self, node: nodes.Getattr, frame: Frame) -> None:  # noqa: N802 - jinja2's name
        if node.attr in _DICT_NAMES:
            super().visit_Getattr(node, frame)
        else:
            self._looked_up(node, node.attr, "getattr", frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802 - jinja2's name
        if isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):
            self._looked_up(node, node.arg.value, "getitem", frame)
        else:
            super().visit_Getitem(node, frame)

    def visit_Add(self, node: nodes.BinExpr, frame: Frame) -> None:  # noqa: N802 - jinja2's name
        grows = not isinstance(node.left, nodes.Const) and not isinstance(node.right, nodes.Const)
        self.write("environment.bounded(" if grows else "")  # adding a constant grows linearly
        super().visit_Add(node, frame)
        self.write(")" if grows else "")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 - jinja2's name
        self.write("environment.bounded(")
        super().visit_Concat(node, frame)
        self.write(")")

    def _looked_up(
        self, node: nodes.Getattr | nodes.Getitem, name: str, how: str, frame: Frame
    ) -> None:
        self.write(f"(_found[{name!r}] if type(_found := (")
        self.visit(node.node, frame)
        self.write(f")) is dict and {name!r} in _found else environment.{how}(_found, {name!r}))")


class _Sandbox(ImmutableSandboxedEnvironment):
    """An immutable sandbox that does not let small values grow into large numbers or texts."""

    code_generator_class = _Generator
    intercepted_binops = frozenset(("*", "**", "%"))

    def __init__(self, day: date | None) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        self._safe: set[tuple[type, str]] = set()  # attributes that are allowed for every value
        self.filters["tojson"] = _tojson
        del self.filters["attr"], self.filters["random"], self.globals["lipsum"]

        def refuse(message: str) -> None:
            raise jinja2.TemplateError(message)

        def date_text(form: str) -> str:
            if day is None:
                raise SettingsError(
                    "the chat template asks for today's date, which would change the data from day"
                    f" to day, and {setting_name('date')} is not given",
                    remedy="give one",
                )
            return day.strftime(form)

        self.globals["raise_exception"], self.globals["strftime_now"] = refuse, date_text

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        if obj is Namespace or (
            type(obj) is BuiltinMethodType
            and type(obj.__self__) is str
            and not obj.__name__.startswith("format")
        ):
            kwargs.pop("_loop_vars", None)  # these do not loop, and `getattr` allowed them
            kwargs.pop("_block_vars", None)
            return self.bounded(obj(*args, **kwargs))
        return super().call(context, obj, *args, **kwargs)

    def bounded(self, value: Any) -> Any:
        """Return a text or list that was concatenated.

        Raises `RowRejected` if it is longer than a rendering may be.
        """
        if isinstance(value, str | list) and len(value) > _MOST_CHARACTERS:
            raise RowRejected(
                "template_limit", f"the template made a text of {len(value):,} characters"
            )
        return value

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        sizes = []
        for operand in (left, right):
            sizes.append(
                len(operand) if isinstance(operand, str | bytes | list | tuple) else abs(operand)
            )
        if operator == "**" and max(sizes) > 64:
            raise RowRejected(
                "template_limit", f"{preview(left)} ** {preview(right)} in the template"
            )
        integers = isinstance(left, int) and isinstance(right, int)
        if operator == "*" and integers and left.bit_length() + right.bit_length() > _MOST_BITS:
            raise RowRejected("template_limit", "a product of large numbers in the template")
        if (
            operator == "*"
            and sizes[0] * sizes[1] > _MOST_CHARACTERS
            and not all(isinstance(operand, int | float) for operand in (left, right))
        ):
            raise RowRejected(
                "template_limit", "a text or list times a large number in the template"
            )
        if operator == "%" and isinstance(left, str) and len(left) > 1 << 16:
            raise RowRejected("template_limit", "a long format in the template")
        return super().call_binop(context, operator, left, right)

    def getattr(self, obj: Any, attribute: str) -> Any:
        object_type = type(obj)
        if object_type is dict and attribute not in _DICT_NAMES:  # absent: `_Generator` has checked
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if object_type is Namespace and not attribute.startswith("_"):
            try:
                return getattr(obj, attribute)
            except AttributeError:
                return self.undefined(obj=obj, name=attribute)
        if object_type not in _KNOWN_TYPES:
            return super().getattr(obj, attribute)
        if (object_type, attribute) in self._safe:
            return getattr(obj, attribute)
        value = super().getattr(obj, attribute)
        # `format` is wrapped, and stays so
        is_own = getattr(value, "__self__", None) is obj or object_type is LoopContext
        if (
            is_own
            and hasattr(object_type, attribute)
            and self.is_safe_attribute(obj, attribute, value)
        ):
            self._safe.add((object_type, attribute))
        return value


@jinja2.pass_context
def _tojson(
    context: Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as model tokenizers do: characters are kept, and nothing is escaped for HTML."""
    write = partial(dumps, indent=indent, separators=separators, sort_keys=sort_keys)
    trace = context.resolve_or_missing(_TRACE)
    if not isinstance(trace, Trace) or not trace.marked:
        text = write(value, ensure_ascii=ensure_ascii)
        if isinstance(trace, Trace):
            trace.texts.append(text)
        return text
    text = write(value, ensure_ascii=False)
    trace.inside.append(marked_numbers(text))
    text = unmarked(text)
    if ensure_ascii:
        text = write(loads(text), ensure_ascii=True)
    trace.texts.append(text)
    trace.owned.append(trace.owners.get(id(value)))
    return json_mark(len(trace.texts) - 1, text)


class Template:
    """A compiled chat template. Raises `SettingsError` if the source is not a template."""

    def __init__(
        self,
        source: str,
        *,
        special: Mapping[str, str],
        values: Mapping[str, Any],
        day: date | None,
    ) -> None:
        if len(source) > _MOST_SOURCE:
            raise SettingsError(
                f"it has {len(source):,} characters, the most is {_MOST_SOURCE:,}",
                setting="chat_template",
                remedy="give another template",
            )
        self.source = source
        self._environment = _Sandbox(day)
        self._globals = {**self._environment.globals, "documents": None, **special, **values}
        try:
            self._compiled = self._environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            line = getattr(error, "lineno", None)
            raise SettingsError(
                f"it is not a template: {error}",
                setting="chat_template",
                row=None if line is None else f"line {line}",
                remedy="correct it, or give another",
            ) from error

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        values: Mapping[str, Any],
        *,
        trace: Trace,
        generation_prompt: bool = False,
    ) -> str:
        """Render a conversation. Raises `RowRejected` (template_error, template_limit)."""
        if self._reads_only_parts:
            messages = [
                {**message, "content": _parts(message.get("content"))} for message in messages
            ]
        prompt = {_PROMPT: generation_prompt, _TRACE: trace}
        return self._rendered({"messages": messages, "tools": tools, **values, **prompt})

    def _rendered(self, variables: Mapping[str, Any]) -> str:
        try:
            context = Context(
                self._environment, {**self._globals, **variables}, None, self._compiled.blocks
            )
            parts = []
            size = 0
            for part in self._compiled.root_render_func(context):
                parts.append(part)
                size += len(part)
                if size > _MOST_CHARACTERS:
                    raise RowRejected(
                        "template_limit",
                        f"the template wrote more than {_MOST_CHARACTERS:,} characters",
                    )
            return "".join(parts)
        except (RowRejected, SettingsError):
            raise
        except (RecursionError, MemoryError) as error:
            raise RowRejected("template_limit", f"{type(error).__name__} in the template") from None
        except Exception as error:  # noqa: BLE001 - a template raises whatever the methods of its values raise
            raise RowRejected(
                "template_error", f"{type(error).__name__}: {preview(str(error), 200)}"
            ) from None

    @cached_property
    def _reads_only_parts(self) -> bool:
        """Return whether the template ignores a content that is a text, and writes one that is a
        list of parts.
        """
        try:
            probes = (
                [{"role": "user", "content": content}] for content in ("xyzzy", _parts("xyzzy"))
            )
            written = []
            for messages in probes:
                written.append(
                    "xyzzy"
                    in self._rendered(
                        {"messages": messages, "tools": None, _PROMPT: False, _TRACE: Trace()}
                    )
                )
        except (RowRejected, SettingsError):
            return False
        return written == [False, True]

    @cached_property
    def has_generation_blocks(self) -> bool:
        """Return whether the template marks the generated text itself."""
        return any(
            node.name == "_between_marks" for node in self._tree.find_all(nodes.ExtensionAttribute)
        )

    @cached_property
    def asks_for_date(self) -> bool:
        """Return whether the template writes today's date."""
        return any(name.name == "strftime_now" for name in self._tree.find_all(nodes.Name))

    @cached_property
    def writes_tools(self) -> bool:
        """Return whether the template reads the tools of a conversation at all."""
        return any(name.name == "tools" for name in self._tree.find_all(nodes.Name))

    @cached_property
    def fixed_prompt(self) -> bool:
        """Return whether the text of `add_generation_prompt` depends on the roles and positions of
        messages alone.

        True only if the source shows it. Every use of that variable must be in a condition. Inside
        it, and in the conditions around it, nothing of a message is read but its role and position,
        and no variable that the template sets.
        """
        names = list(self._tree.find_all(nodes.Name))
        stored = {name.name for name in names if name.ctx != "load"} - {
            _PROMPT,
            "message",
            "messages",
            "loop",
        }
        uses = sum(name.name == _PROMPT and name.ctx == "load" for name in names)
        branches = list(_prompt_branches(self._tree, []))
        in_tests = 0
        for branch, around in branches:
            in_tests += sum(name.name == _PROMPT for name in _all(branch.test, nodes.Name))
            if not all(_looks_at_roles_only(node, stored) for node in (branch, *around)):
                return False
        return uses == in_tests

    @cached_property
    def _tree(self) -> nodes.Template:
        return self._environment.parse(self.source)


def _parts(content: str | None) -> list[dict[str, Any]]:
    """Return a content as the list of parts that some templates read."""
    if content:
        return [{"type": "text", "text": content}]
    return []


def _all(node: nodes.Node, kinds: Any) -> Iterator[Any]:
    """Yield nodes of these kinds: the node itself and its descendants."""
    if isinstance(node, kinds):
        yield node
    yield from node.find_all(kinds)


def _prompt_branches(
    node: nodes.Node, around: list[nodes.Node]
) -> Iterator[tuple[Any, list[nodes.Node]]]:
    """Yield every condition that reads the generation prompt, with the conditions around it."""
    if isinstance(node, nodes.If | nodes.CondExpr):
        if any(name.name == _PROMPT for name in _all(node.test, nodes.Name)):
            yield node, around
        around = [*around, node.test]
    for child in node.iter_child_nodes():
        yield from _prompt_branches(child, around)


def _looks_at_roles_only(node: nodes.Node, stored: set[str]) -> bool:
    if (
        any(name.name in stored for name in _all(node, nodes.Name))
        or next(_all(node, nodes.Call), None) is not None
    ):
        return False
    if any(access.attr not in _PLACES for access in _all(node, nodes.Getattr)):
        return False
    keys = [access.arg for access in _all(node, nodes.Getitem)]
    accessed = {id(access.node) for access in _all(node, (nodes.Getattr, nodes.Getitem))}
    bare = []
    for name in _all(node, nodes.Name):
        if name.name in ("message", "messages") and id(name) not in accessed:
            bare.append(name)
    constant = []
    for key in keys:
        if isinstance(key, nodes.Const):
            constant.append(key.value)
    return (
        not bare
        and all(isinstance(key, nodes.Const | nodes.Neg | nodes.Sub) for key in keys)
        and all(not isinstance(value, str) or value in _PLACES for value in constant)
    )
