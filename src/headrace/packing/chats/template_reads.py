"""Find out what a chat template looks for in the texts of messages, from its source alone. Pure.

Most templates write a content as it is, trim it, and look for a few tags in it. All conversations of one shape that
hold none of these tags are written alike, so a rendering can be put together from the skeleton of another conversation
without running the template. `texts_looked_for` lists the tags, or returns None if the source does not show them. The
list holds for conversations whose messages have only a role and a content, each content a text of more than white
space.

Every expression has a kind: "text", a content or a part cut out of one; "parts", a list of such texts; "joined", texts
put together with others; "message", "messages"; "space", an object with such values as attributes; and "blind", a value
that contents change only through the shape. A template may do anything with blind values. For other kinds, an operation
that is not known to be harmless makes the answer None. A variable has the widest kind of all its assignments.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from headrace.errors import MissingExtra

try:
    from jinja2 import nodes
except ImportError as error:
    raise MissingExtra("jinja2", "chat") from error

Kind = Literal["blind", "text", "parts", "joined", "message", "messages", "space"]

_WRITTEN: frozenset[Kind] = frozenset(("blind", "text", "joined"))
_ITEMS: dict[Kind, Kind] = {"messages": "message", "parts": "text", "blind": "blind"}
_TYPES_OF_TEXT = {
    **dict.fromkeys(("string", "defined", "iterable", "sequence"), True),
    **dict.fromkeys(("none", "undefined", "mapping", "number", "boolean"), False),
}
_CUTS, _SEARCHES = frozenset(("strip", "lstrip", "rstrip")), frozenset(("startswith", "endswith", "split"))
_OF_CALLS = frozenset(("caller", "kwargs", "self", "varargs"))  # other names for the arguments of a macro
_HARMLESS = frozenset(("range", "raise_exception", "strftime_now"))


class _Untold(Exception):
    """The source does not show what a content may change."""


def texts_looked_for(tree: nodes.Template) -> frozenset[str] | None:
    """List the texts that a template compares with contents or looks for in them; None if other texts may matter."""
    reader = _Reader({each.name for each in tree.find_all(nodes.Name) if each.ctx != "load"})
    try:
        while True:  # until no assignment widens the kind of a variable
            before = dict(reader.kinds)
            reader.block(tree.body)
            if reader.kinds == before:
                return frozenset(reader.wanted)
    except _Untold:
        return None


class _Reader:
    """The state of reading a template.

    kinds: of variables by name, and of attributes of namespaces, with a dot before the name.
    sure: the variables around the node that are messages and nothing else; macros: the names of their parameters.
    """

    def __init__(self, stored: set[str]) -> None:
        self.kinds: dict[str, Kind] = {"messages": "messages", "loop": "space"}
        self.kinds |= {".previtem": "message", ".nextitem": "message"}
        self.wanted: set[str] = set()
        self.sure: frozenset[str] = frozenset()
        self.macros: dict[str, list[str]] = {}
        self.stored = stored

    def block(self, body: list[nodes.Node]) -> None:
        for node in body:
            self.statement(node)

    def statement(self, node: nodes.Node) -> None:
        match node:
            case nodes.Output():
                if not {self.kind(each) for each in node.nodes} <= _WRITTEN:
                    raise _Untold
            case nodes.If():
                for each in (node, *node.elif_):
                    holds = self.truth(each.test)
                    if holds is not False:
                        self.block(each.body)
                    if holds:
                        return
                self.block(node.else_)
            case nodes.For():
                over = self.kind(node.iter)
                if over not in _ITEMS or node.recursive:
                    raise _Untold
                self.assign(node.target, _ITEMS[over])
                name = node.target.name if isinstance(node.target, nodes.Name) else ""
                with self.inside(self.sure | {name} if self.are_messages(node.iter) else self.sure - {name}):
                    if node.test is not None:
                        self.truth(node.test)
                    self.block(node.body)
                self.block(node.else_)
            case nodes.Assign():
                self.assign(node.target, self.kind(node.node))
            case nodes.AssignBlock() if node.filter is None:
                self.block(node.body)
                self.assign(node.target, "joined")
            case nodes.Macro():
                self.blind(*node.defaults)
                self.macros[node.name] = [each.name for each in node.args]
                with self.inside(frozenset()):
                    self.block(node.body)
            case nodes.Continue() | nodes.Break():
                pass
            case _:
                raise _Untold

    @contextmanager
    def inside(self, sure: frozenset[str]) -> Iterator[None]:
        before, self.sure = self.sure, sure
        yield
        self.sure = before

    def assign(self, target: nodes.Node, kind: Kind) -> None:
        match target:
            case nodes.Name():
                self.sure -= {target.name}
                self.widen(target.name, kind)
            case nodes.NSRef():
                self.widen(f".{target.attr}", kind)
            case nodes.Tuple() if kind == "blind":
                for each in target.items:
                    self.assign(each, kind)
            case _:
                raise _Untold

    def widen(self, name: str, kind: Kind) -> None:
        self.kinds[name] = self.widest([self.kinds.get(name, kind), kind])

    def are_messages(self, node: nodes.Node) -> bool:
        """Return whether this is a list of messages, whatever the shape."""
        if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
            return self.are_messages(node.node)
        return isinstance(node, nodes.Name) and node.name == "messages" and "messages" not in self.stored

    def field_of_message(self, node: nodes.Node) -> str | None:
        """Return the field of a message that this certainly is; None for everything else."""
        match node:
            case nodes.Getattr(node=owner, attr=name):
                pass
            case nodes.Getitem(node=owner, arg=nodes.Const(value=str(name))):
                pass
            case _:
                return None
        match owner:
            case nodes.Name():
                return name if owner.name in self.sure else None
            case nodes.Getitem(arg=nodes.Const(value=0)):
                return name if self.are_messages(owner.node) and isinstance(owner.node, nodes.Name) else None
        return None

    def truth(self, node: nodes.Node) -> bool | None:
        """Return a condition's value if it is the same for every supported conversation; None if the shape decides."""
        match node:
            case nodes.Not():
                holds = self.truth(node.node)
                return None if holds is None else not holds
            case nodes.And() | nodes.Or():
                ends = isinstance(node, nodes.Or)  # the value that settles it
                left = self.truth(node.left)
                if left is ends:
                    return ends
                right = self.truth(node.right)
                return ends if right is ends else right if left is not None else None
            case nodes.Test():
                return self.test(node)
        if (field := self.field_of_message(node)) is not None:
            return True if field == "content" else None if field == "role" else False
        if self.kind(node) == "space":
            raise _Untold
        return None

    def test(self, node: nodes.Test) -> bool | None:
        kind, field = self.kind(node.node), self.field_of_message(node.node)
        if kind in ("text", "message") and node.name in _TYPES_OF_TEXT:
            return _TYPES_OF_TEXT[node.name] if field == "content" else None
        if kind != "blind":
            raise _Untold
        self.blind(*node.args)
        if field not in (None, "role", "content") and node.name in ("defined", "none", "string", "mapping"):
            return False
        return None

    def kind(self, node: nodes.Node) -> Kind:
        match node:
            case nodes.Const() | nodes.TemplateData():
                return "blind"
            case nodes.Name() if node.name not in _OF_CALLS:
                return self.kinds.get(node.name, "blind")
            case nodes.List() | nodes.Tuple():
                return self.blind(*node.items)
            case nodes.Dict():
                return self.blind(*(each for pair in node.items for each in (pair.key, pair.value)))
            case nodes.Getattr():
                return self.attribute(node, node.attr)
            case nodes.Getitem():
                return self.item(node)
            case nodes.CondExpr():
                holds = self.truth(node.test)
                options = [node.expr1] if holds else [node.expr2] if holds is False else [node.expr1, node.expr2]
                return self.widest([self.kind(each) for each in options if each is not None])
            case nodes.And() | nodes.Or():
                return self.widest([self.kind(node.left), self.kind(node.right)])
            case nodes.Not() | nodes.Test():
                self.truth(node)
                return "blind"
            case nodes.Compare():
                return self.comparison(node)
            case nodes.Add() | nodes.Concat():
                parts = node.nodes if isinstance(node, nodes.Concat) else [node.left, node.right]
                kinds = {self.kind(each) for each in parts}
                if not kinds <= _WRITTEN:
                    raise _Untold
                return "joined" if kinds - {"blind"} else "blind"
            case nodes.BinExpr():
                return self.blind(node.left, node.right)
            case nodes.UnaryExpr():
                return self.blind(node.node)
            case nodes.Filter():
                return self.filtered(node)
            case nodes.Call():
                return self.call(node)
        raise _Untold

    def blind(self, *parts: nodes.Node) -> Kind:
        for each in parts:
            if self.kind(each) != "blind":
                raise _Untold
        return "blind"

    def widest(self, kinds: list[Kind]) -> Kind:
        found: set[Kind] = {*kinds} - {"blind"}
        if found == {"text", "joined"}:
            return "joined"
        if len(found) > 1:
            raise _Untold
        return found.pop() if found else "blind"

    def attribute(self, node: nodes.Getattr | nodes.Getitem, name: str) -> Kind:
        owner = self.kind(node.node)
        if owner == "message":
            return "text" if name == "content" else "blind"
        if owner == "space":
            return self.kinds.get(f".{name}", "blind")
        if owner != "blind":
            raise _Untold
        return "blind"

    def item(self, node: nodes.Getitem) -> Kind:
        if isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):
            return self.attribute(node, node.arg.value)
        owner = self.kind(node.node)
        if owner not in _ITEMS:
            raise _Untold
        if isinstance(node.arg, nodes.Slice):
            self.blind(*(each for each in (node.arg.start, node.arg.stop, node.arg.step) if each is not None))
            return owner
        self.blind(node.arg)
        return _ITEMS[owner]

    def comparison(self, node: nodes.Compare) -> Kind:
        kinds = [self.kind(node.expr), *(self.kind(each.expr) for each in node.ops)]
        if {*kinds} == {"blind"}:
            return "blind"
        if len(kinds) > 2:
            raise _Untold
        (operand,) = node.ops
        match (*kinds, operand.op):
            case ("text", "blind", "eq" | "ne"):
                self.want(operand.expr)
            case ("blind", "text", "eq" | "ne" | "in" | "notin"):
                self.want(node.expr)
            case ("blind", "message", "in" | "notin"):  # whether it has a field
                pass
            case _:
                raise _Untold
        return "blind"

    def want(self, node: nodes.Expr) -> None:
        """Record a constant that is looked for in a content."""
        if not isinstance(node, nodes.Const):
            raise _Untold
        if isinstance(node.value, str):
            self.wanted |= {node.value} - {""}

    def filtered(self, node: nodes.Filter) -> Kind:
        if node.node is None or node.dyn_args is not None or node.dyn_kwargs is not None:
            raise _Untold
        kind = self.kind(node.node)
        arguments = [*node.args, *(each.value for each in node.kwargs)]
        if kind == "blind":
            return self.blind(*arguments)
        if arguments:
            raise _Untold
        match kind, node.name:
            case ("text" | "joined", "trim" | "string") | ("messages" | "parts", "list"):
                return kind
            case ("messages", "length" | "count"):
                return "blind"
            case ("messages" | "parts", "first" | "last"):
                return _ITEMS[kind]
        raise _Untold

    def call(self, node: nodes.Call) -> Kind:
        if node.dyn_args is not None or node.dyn_kwargs is not None:
            raise _Untold
        given = [self.kind(each) for each in node.args]
        named: dict[str, Kind] = {each.key: self.kind(each.value) for each in node.kwargs}
        kinds = {*given, *named.values()}
        if isinstance(node.node, nodes.Name):
            name = node.node.name
            if name in self.macros:
                for parameter, kind in [*zip(self.macros[name], given, strict=False), *named.items()]:
                    self.widen(parameter, kind)
                return "joined"
            if name == "namespace" and not given:
                for attribute, kind in named.items():
                    self.widen(f".{attribute}", kind)
                return "space"
            if name in _HARMLESS and (kinds <= {"blind"} or name == "raise_exception"):
                return "blind"
            raise _Untold
        if not isinstance(node.node, nodes.Getattr):
            raise _Untold
        owner, method = self.kind(node.node.node), node.node.attr
        if owner == "blind" and kinds <= {"blind"}:
            return "blind"
        first = node.args[0].value if node.args and isinstance(node.args[0], nodes.Const) else None
        if named:
            raise _Untold
        if (
            owner in ("text", "joined")
            and method in _CUTS
            and (not node.args or (isinstance(first, str) and first.isspace()))
        ):
            return owner
        if not isinstance(first, str) or not first:
            raise _Untold
        if owner == "message" and method == "get":
            return "text" if first == "content" else self.blind(*node.args)
        if owner == "text" and method in _SEARCHES:
            self.want(node.args[0])
            self.blind(*node.args[1:])
            return "parts" if method == "split" else "blind"
        raise _Untold
