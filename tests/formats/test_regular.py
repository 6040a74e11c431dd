"""Delimited text is regular where a plain pattern says so, whatever is checked at once."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.formats import regular
from laws import examples

PIECES = ['"', '""', "\n", "\r\n", "\r", " ", "\t", ",", "1", "0x", "X", "é", '"a b"', '"l\nm"']
FIELDS = ["1", "2.5", "", '""', "a b", '"a b"', '"x ""y"" z"', '"a\nb"', '"a, b\tc"', "é" * 40]


@st.composite
def texts(draw: st.DrawFn) -> str:
    rows = st.lists(st.lists(st.sampled_from(FIELDS), min_size=1, max_size=3).map(",".join))
    text = draw(st.sampled_from(["\n", "\r\n"])).join(draw(rows))
    at = draw(st.integers(0, len(text)))
    return text[:at] + "".join(draw(st.lists(st.sampled_from(PIECES), max_size=5))) + text[at:]


def expected(text: str, separator: str) -> str | None:
    space = "[ \t]"
    if separator == "\t":
        space = " "
    plain = rf'(?!{space})[^"\r\n{separator}]*(?<!{space})'
    quoted = r'"(?![ \t])((?:[^"]|"")*)(?<![ \t])"'
    field = f"(?:{quoted}|{plain})"
    row = f"{field}(?:{separator}{field})*"
    if re.search("\r(?!\n)", text) or not re.fullmatch(f"{row}(?:\r?\n{row})*", text):
        return None
    if any("\n" in inside for inside in re.findall('"([^"]*)"', text)):
        return "several lines"
    return "one line"


@settings(max_examples=examples(400), deadline=None)
@given(texts(), st.sampled_from([",", "\t"]), st.sampled_from([1, 64, 100, 1 << 18]))
def test_text_is_regular_where_a_pattern_says_so(text, separator, checked_at_once):
    data = text.encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regular, "_CHECKED_AT_ONCE", checked_at_once)

        assert expected(text, separator) == regular.regular_rows(data, ord(separator))
    assert regular.has_hexadecimal(data) == bool(re.search("0[xX]", text))


@pytest.mark.parametrize("data", [b"\xef\xbb\xbf1,2\n", b"1,\xff\n", b'1,"\xff"\n'])
def test_marks_and_bytes_that_are_not_utf8_are_irregular(data):
    assert regular.regular_rows(data, ord(",")) is None
