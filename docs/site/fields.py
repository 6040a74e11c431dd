"""Lines of a docstring such as `source: a file or a directory` as items of a list, names in bold."""

from __future__ import annotations

import re
from typing import Any

import griffe

_FIELD = re.compile(r"(?P<names>`?[a-z]\w*`?(?:, `?[a-z]\w*`?)*): (?P<rest>\S.*)")


class Fields(griffe.Extension):
    """Applied to every docstring that is shown."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = as_list(obj.docstring.value)


def as_list(text: str) -> str:
    """The text with its field lines as list items; the lines that go on with a field belong to it."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        field = _FIELD.fullmatch(line)
        if field is not None:
            if not inside and lines and lines[-1]:
                lines.append("")
            names = ", ".join(f"**{name.strip('`')}**" for name in field["names"].split(", "))
            lines.append(f"- {names}: {field['rest']}")
            inside = True
        elif inside and line and not line.startswith(" "):
            lines.append(f"  {line}")
        else:
            inside = inside and bool(line)
            lines.append(line)
    return "\n".join(lines)
