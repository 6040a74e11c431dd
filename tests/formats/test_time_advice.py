"""A form of times that an error names reads the value, so that following it is no circle."""

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace
from headrace.errors import InputError, spell
from headrace.formats.dates import advice, parse_dates

FORMS = ["%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y %I:%M %p", "%b %d, %Y", "%B %d, %Y %H:%M", "%d/%b/%Y:%H:%M:%S +0000", "%a, %d %b %Y %H:%M:%S +0000", "%Y/%m/%d %H:%M:%S.5", "%d-%m-%y", "%Y%m%d%H%M", "%G-W%V-%u", "%Y-%j", "%H:%M"]  # fmt: skip
ODD = ["31/02/2025", "13/13/2025", "29.02.2023 10:00", "Mon, 05 Jan 2025", "2025-366", "2025-W54-1", "01/01/69", "2025123125", "0", "-1", "x", "TRUE", "inf", "1e400", "10:00"]  # fmt: skip
WRITTEN = st.tuples(st.datetimes(), st.sampled_from(FORMS)).map(
    lambda pair: pair[0].strftime(pair[1])
)


@given(st.one_of(WRITTEN, st.sampled_from(ODD)), st.sampled_from(["auto", "iso", "%d.%m.%Y"]))
def test_every_form_that_is_named_reads_the_value(text: str, form: str) -> None:
    column = pa.chunked_array([[text]])
    if not parse_dates(column, form).unreadable[0]:
        return
    said = spell(advice(text, form))
    for named in re.findall(r'"time_format": "([^"]*)"', said.partition("such as")[0]):
        assert not parse_dates(column, named).unreadable[0], said
    assert f'"{form}"' not in said


@pytest.mark.parametrize(
    ("word", "text", "remedy"),
    [
        ("datetime", "2024-01-01T10:00+02:00", "datetime_utc"),
        ("date", "2024-01-01 10:00", "datetime"),
        ("datetime_utc", "2024-01-01 10:00", "datetime"),
    ],
)
def test_a_time_of_another_type_than_declared_names_its_type(
    tmp_path: Path, word: str, text: str, remedy: str
) -> None:
    (tmp_path / "a.csv").write_text(f"n,t\n1,{text}\n")

    def read(types: dict[str, str], **options: Any) -> Any:
        opened = headrace.open(tmp_path / "a.csv", types=types, cache_dir=tmp_path, **options)
        return opened["all"].to_arrow()["t"][0].as_py()

    with pytest.raises(InputError) as caught:
        read({"t": word})
    assert f"declare it {remedy}" in (caught.value.remedy or "")
    assert datetime.fromisoformat(text) == read({"t": remedy})
