"""Settings: frozen, checked when built, with errors that say how to mend them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    ValidationInfo,
)

from headrace.checks import duration_us, nearest
from headrace.credentials import refuse_credentials
from headrace.errors import NO_VALUE, SettingsError, setting_name
from headrace.printable import short_repr

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


def _as_tuple(value: object) -> object:
    if isinstance(value, str | PurePath):
        return (value,)
    if isinstance(value, list):
        return tuple(value)
    return value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]


def _check_column_names(
    value: tuple[str, ...] | None, info: ValidationInfo
) -> tuple[str, ...] | None:
    """Refuse no column, a repeated one, and `drop_columns` beside `columns`."""
    if value is None:
        return None
    name = setting_name(str(info.field_name))
    if not value or len(set(value)) < len(value):
        raise ValueError(f"{name} is {list(value)}; name at least one, and each once")
    if info.field_name == "drop_columns" and info.data.get("columns") is not None:
        raise ValueError(f"{name} and {setting_name('columns')} are both given; give one of them")
    return value


# The columns to write, or those to leave out: `columns`, and after it `drop_columns`.
ColumnChoice = Annotated[Names | None, AfterValidator(_check_column_names)]


_MOST_PARTS = 4  # year, month, day and hour


def _one_or_more(value: object) -> object:
    columns = _as_tuple(value)
    if not isinstance(columns, tuple):
        return value
    if len(columns) == 1:
        return columns[0]
    if not 1 < len(columns) <= _MOST_PARTS:
        raise ValueError(f"has {len(columns)} columns; give one, or up to {_MOST_PARTS} parts")
    return columns


# the column of the time, or those of its parts: date and clock; or year, month, day and hour
TimeColumns = Annotated[str | tuple[str, ...], BeforeValidator(_one_or_more)]
# what becomes of rows with the same content
Duplicates = Literal["group", "drop", "count", "allow"]


def never_groups(why: str) -> AfterValidator:
    """Refuse "group" for `Duplicates` in a recipe whose rows cannot move to another split.

    why: ends the sentence.
    """

    def check(value: str) -> str:
        if value == "group":
            raise ValueError(
                f"{setting_name('duplicates')} is 'group', and {why}; choose 'drop', 'count' or"
                " 'allow'"
            )
        return value

    return AfterValidator(check)


def known_duration(name: str, value: str, *, remedy: str = "leave it out", other: str = "") -> str:
    """Return a time such as 30d as it is.

    Raises `ValueError`, as pydantic asks, for other texts and no time at all.

    remedy: what to do about the latter; other: what else a text may be.
    """
    try:
        none = not duration_us(name, value)
    except SettingsError as error:
        raise ValueError(f"{error.marked}{other}") from None
    if none:
        raise ValueError(f"{setting_name(name)} is {value!r}, which is not a time; {remedy}")
    return value


def _as_paths(value: object) -> object:
    entries = _as_tuple(value)
    refuse_credentials(entries)
    return entries


Paths = Annotated[tuple[Path, ...], BeforeValidator(_as_paths)]


class Settings(BaseModel):
    """Base of every recipe's settings. Raises `SettingsError`, never pydantic's own error."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=False)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _explained(type(self), error) from None

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy the settings with other values, without what was derived from the old ones."""
        copied = super().model_copy(update=update, deep=deep)
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied


def load_yaml(text: str) -> Any:
    """Load a YAML document whose mappings hold each key once.

    Raises `yaml.YAMLError`, which says line and column.
    """
    return _strict_loader()(text).get_single_data()


_MERGE = "tag:yaml.org,2002:merge"


@functools.cache
def _strict_loader() -> Any:
    import yaml  # a command without a configuration file does not wait for it

    class StrictLoader(yaml.SafeLoader):
        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            _refuse_repeated_keys(node)
            return node

        def flatten_mapping(self, node: Any) -> None:
            """Merge as YAML says: own keys count before merged ones, and earlier mappings of a list
            before later ones.

            PyYAML 6.0.4 lets later ones count. Each key is kept once, so merges of merges do not
            multiply.
            """
            name_pairs = [pair for pair in node.value if pair[0].tag != _MERGE]
            if len(name_pairs) == len(node.value):
                super().flatten_mapping(node)
                return
            pairs: dict[object, Any] = {}
            for mapping in _merged_mappings(node):
                self.flatten_mapping(mapping)
                pairs |= {_name_of(pair[0]): pair for pair in mapping.value}
            pairs |= {_name_of(pair[0]): pair for pair in name_pairs}
            node.value = list(pairs.values())

    return StrictLoader


def _refuse_repeated_keys(node: Any) -> None:
    import yaml

    seen = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
            continue
        name = (key.tag, key.value)
        if name in seen:
            problem = f"the key {short_repr(key.value)} appears twice"
            raise yaml.MarkedYAMLError(None, None, problem, key.start_mark)
        seen.add(name)


def _merged_mappings(node: Any) -> Iterator[Any]:
    """Yield the mappings that a mapping merges, those that count less first."""
    import yaml

    for key, value in node.value:
        if key.tag != _MERGE:
            continue
        merged = value.value if isinstance(value, yaml.SequenceNode) else [value]
        for mapping in reversed(merged):
            if not isinstance(mapping, yaml.MappingNode):
                problem = "only mappings can be merged with <<"
                raise yaml.MarkedYAMLError(None, None, problem, mapping.start_mark)
            yield mapping


def _name_of(key: Any) -> object:
    import yaml

    if isinstance(key, yaml.ScalarNode):
        return (key.tag, key.value)
    return id(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Problem:
    """One problem of a model's values. value: `NO_VALUE` if the text names it."""

    text: str
    value: object
    remedy: str | None


def _explained(model: type[BaseModel], error: ValidationError) -> SettingsError:
    """Return the error of a model's values: with fields, or if there are several, with lines."""
    problems: list[_Problem] = []
    without_path = False
    hint = f"known: {', '.join(model.model_fields)}"  # once is enough
    for details in error.errors():
        if details["type"] in ("path_type", "too_short") and without_path:
            continue  # a list of rows has one problem for each, and is empty without them
        without_path |= details["type"] == "path_type"
        problem = _problem(model, details, hint)
        if problem.remedy == hint:
            hint = "nor is this"
        problems.append(problem)
    if len(problems) == 1:
        (only,) = problems
        return SettingsError(only.text, value=only.value, remedy=only.remedy)
    lines = []
    for problem in problems:
        lines.append("; ".join(filter(None, [problem.text, problem.remedy])))
    return SettingsError(*lines)


def _problem(model: type[BaseModel], details: ErrorDetails, hint: str) -> _Problem:
    first, *others = [str(part)[:80] for part in details["loc"]] or [""]
    name = ".".join([setting_name(first) if first.isidentifier() else first, *others])
    if details["type"] == "value_error":
        # its text names the setting
        value = details["input"] if details["loc"] else NO_VALUE
        return _Problem(text=str(details["ctx"]["error"]), value=value, remedy=None)
    if details["type"] == "extra_forbidden":
        remedy = nearest(".".join([first, *others]), model.model_fields, hint)
        return _Problem(text=f"{name} is not a setting", value=NO_VALUE, remedy=remedy)
    if details["type"] == "missing":
        return _Problem(text=f"{name} is required", value=NO_VALUE, remedy="give it")
    value = details["input"]
    text = f"{name} is {short_repr(value)}"
    if details["type"] == "path_type":
        text += ", neither a path nor a table"
        remedy = "give a path, or make it a table, such as with polars.DataFrame(…)"
        return _Problem(text=text, value=value, remedy=remedy)
    rule = details["msg"].replace("Input should", "it should")
    return _Problem(text=text, value=value, remedy=rule)
