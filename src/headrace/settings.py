"""Settings: frozen, checked when built, with errors that say how to mend them."""

from __future__ import annotations

import difflib
import functools
import reprlib
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from headrace.credentials import refuse_credentials
from headrace.errors import SettingsError


def _as_tuple(value: object) -> object:
    if isinstance(value, str | Path):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]


def _as_paths(value: object) -> object:
    found = _as_tuple(value)
    refuse_credentials(found)
    return found


Paths = Annotated[tuple[Path, ...], BeforeValidator(_as_paths)]


class Settings(BaseModel):
    """Base of every recipe's settings. Raises `SettingsError`, never pydantic's own error."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=False)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise SettingsError(*_explain(type(self), error)) from None


def load_yaml(text: str) -> Any:
    """A YAML document whose mappings hold each key once. Raises `yaml.YAMLError`, which says line and column."""
    return _strict_loader()(text).get_single_data()


@functools.cache
def _strict_loader() -> Any:
    import yaml  # a command without a configuration file does not wait for it

    class StrictLoader(yaml.SafeLoader):
        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            seen = set()
            for key, _ in node.value:
                name = (key.tag, key.value)
                if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                    continue
                if name in seen:
                    raise yaml.MarkedYAMLError(None, None, f"the key {shown(key.value)} stands twice", key.start_mark)
                seen.add(name)
            return node

    return StrictLoader


def shown(value: object, most: int = 200) -> str:
    """A value in a message: short, whatever was given. A few bytes of YAML can stand for billions of values."""
    short = reprlib.Repr()
    short.maxlevel, short.maxstring, short.maxother, short.maxlong = 2, most, most, most
    text = short.repr(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _explain(model: type[BaseModel], error: ValidationError) -> list[str]:
    lines = []
    told = f"known: {', '.join(model.model_fields)}"  # once is enough
    for problem in error.errors():
        name = ".".join(str(part)[:80] for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            near = difflib.get_close_matches(name, model.model_fields, n=1)
            hint = f"did you mean {near[0]!r}?" if near else told
            told = told if near else "nor is this"
            lines.append(f"{model.__name__}: {name!r} is no setting; {hint}")
        elif problem["type"] == "missing":
            lines.append(f"{model.__name__}: {name} is required; give it")
        elif problem["type"] == "value_error":
            lines.append(f"{model.__name__}: {problem['ctx']['error']}")
        else:
            lines.append(f"{model.__name__}: {name} is {shown(problem['input'])}: {problem['msg']}")
    return lines
