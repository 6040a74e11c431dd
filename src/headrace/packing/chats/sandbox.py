"""The sandbox that chat templates run in: Jinja without a way out, without a clock and without dice.

Jinja's own sandbox decides what may be read. This one also leaves out what could reach around it (the filter `attr`)
and what would give other text in another run (`lipsum`, the filter `random`). Long texts, lists and numbers are refused
where they are made, with an error that says so. Time and memory are limited elsewhere, in `render_process`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from types import BuiltinMethodType
from typing import Any

from headrace.errors import MissingExtra, SettingsError
from headrace.packing.chats.marks import GENERATED_BEGIN, GENERATED_END, json_mark
from headrace.packing.chats.rejects import RowRejected, shown

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

MOST_CHARACTERS = 64 << 20
_MOST_BITS = 4096  # of a product of whole numbers
TRACE = "__headrace_trace"  # the variable that carries a rendering's notes
_DICT_NAMES = frozenset(dir(dict))
_KNOWN_TYPES = frozenset((str, list, tuple, LoopContext))  # the sandbox judges their attributes by type and name alone


@dataclass(slots=True)
class Trace:
    """What a rendering did. texts: what `tojson` wrote, in order; marked: whether it puts marks around it.

    owners: by `id` of a part of a message, whose it is; owned: per text its owner, None where it has none.
    """

    marked: bool = False
    texts: list[str] = field(default_factory=list)
    owners: Mapping[int, int] = field(default_factory=dict)
    owned: list[int | None] = field(default_factory=list)


def joined(pieces: Any) -> str:
    """The text of a rendering. Raises `RowRejected` (template_limit) as soon as it is too long."""
    found, size = [], 0
    for piece in pieces:
        found.append(piece)
        size += len(piece)
        if size > MOST_CHARACTERS:
            raise RowRejected("template_limit", f"the template wrote more than {MOST_CHARACTERS:,} characters")
    return "".join(found)


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}`: what is inside stands between marks."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_between_marks"), [], [], body).set_lineno(line)

    def _between_marks(self, caller: Any) -> str:
        return f"{GENERATED_BEGIN}{caller()}{GENERATED_END}"


class _Generator(CodeGenerator):
    """Looks up names in plain objects, the messages, where they stand: half of what a template does.

    A name that is no attribute of `dict` is found in an object by the sandbox too, after two exceptions.
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
        self.write("environment.bounded(" if grows else "")  # with a constant it grows by as much each time
        super().visit_Add(node, frame)
        self.write(")" if grows else "")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 - jinja2's name
        self.write("environment.bounded(")
        super().visit_Concat(node, frame)
        self.write(")")

    def _looked_up(self, node: nodes.Getattr | nodes.Getitem, name: str, how: str, frame: Frame) -> None:
        self.write(f"(_found[{name!r}] if type(_found := (")
        self.visit(node.node, frame)
        self.write(f")) is dict and {name!r} in _found else environment.{how}(_found, {name!r}))")


class Sandbox(ImmutableSandboxedEnvironment):
    """The sandbox: immutable, and no large numbers or texts out of small ones."""

    code_generator_class = _Generator
    intercepted_binops = frozenset(("*", "**", "%"))

    def __init__(self, day: date | None) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self._safe: set[tuple[type, str]] = set()  # attributes that it allows, whatever the value
        self.filters["tojson"] = _tojson
        del self.filters["attr"], self.filters["random"], self.globals["lipsum"]
        self.globals["raise_exception"] = _refuse
        self.globals["strftime_now"] = lambda form: _date_text(day, form)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        if obj is Namespace or (
            type(obj) is BuiltinMethodType and type(obj.__self__) is str and not obj.__name__.startswith("format")
        ):
            kwargs.pop("_loop_vars", None)  # these loop over nothing, and `getattr` let them through
            kwargs.pop("_block_vars", None)
            return self.bounded(obj(*args, **kwargs))
        return super().call(context, obj, *args, **kwargs)

    def bounded(self, value: Any) -> Any:
        """A text or list that was put together, if it is no longer than a rendering may be."""
        if isinstance(value, str | list) and len(value) > MOST_CHARACTERS:
            raise RowRejected("template_limit", f"the template made a text of {len(value):,} characters")
        return value

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        sizes = [len(each) if isinstance(each, str | bytes | list | tuple) else abs(each) for each in (left, right)]
        if operator == "**" and max(sizes) > 64:
            raise RowRejected("template_limit", f"{shown(left)} ** {shown(right)} in the template")
        whole = isinstance(left, int) and isinstance(right, int)
        if operator == "*" and whole and left.bit_length() + right.bit_length() > _MOST_BITS:
            raise RowRejected("template_limit", "a product of large numbers in the template")
        if (
            operator == "*"
            and sizes[0] * sizes[1] > MOST_CHARACTERS
            and not all(isinstance(each, int | float) for each in (left, right))
        ):
            raise RowRejected("template_limit", "a text or list times a large number in the template")
        if operator == "%" and isinstance(left, str) and len(left) > 1 << 16:
            raise RowRejected("template_limit", "a long format in the template")
        return super().call_binop(context, operator, left, right)

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict and attribute not in _DICT_NAMES:  # absent: the generator has looked
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if kind is Namespace and not attribute.startswith("_"):
            try:
                return getattr(obj, attribute)
            except AttributeError:
                return self.undefined(obj=obj, name=attribute)
        if kind not in _KNOWN_TYPES:
            return super().getattr(obj, attribute)
        if (kind, attribute) in self._safe:
            return getattr(obj, attribute)
        found = super().getattr(obj, attribute)
        own = getattr(found, "__self__", None) is obj or kind is LoopContext  # `format` is wrapped, and stays so
        if own and hasattr(kind, attribute) and self.is_safe_attribute(obj, attribute, found):
            self._safe.add((kind, attribute))
        return found


@jinja2.pass_context
def _tojson(
    context: Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as model tokenizers write it: characters kept, nothing escaped for HTML."""
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    trace = context.resolve_or_missing(TRACE)
    if not isinstance(trace, Trace):
        return text
    trace.texts.append(text)
    if not trace.marked:
        return text
    trace.owned.append(trace.owners.get(id(value)))
    return json_mark(len(trace.texts) - 1, text)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _date_text(day: date | None, form: str) -> str:
    if day is None:
        raise SettingsError(
            "the chat template asks for today's date, which would change the data from day to day; give date="
        )
    return day.strftime(form)
