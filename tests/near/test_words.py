"""Texts that differ in form alone have the same words, wherever texts are compared."""

import polars as pl
import pyarrow as pa
import pytest

import headrace
from headrace.near.words import folded, plain_names, words_of
from headrace.stream.audit.overlap import Benchmark, RowTexts, find_overlaps, texts_of

PLAIN = "what is the name of the strasse that leads to the zoo of sisyphos"
FORMS = {
    "markdown": PLAIN.replace("name", "_name_").replace("zoo", "**zoo**"),
    "snake case": PLAIN.replace(" ", "_"),
    "full width": PLAIN.replace("what is the name", "\uff57\uff48\uff41\uff54 is the name"),
    "zero width": PLAIN.replace("strasse", "str\u200bas\u200dse"),
    "soft hyphens": PLAIN.replace("sisyphos", "sisy\u00adphos"),
    "case": PLAIN.upper(),
    "sharp s": PLAIN.replace("strasse", "stra\u00dfe"),
    "marks of order": f"\ufeff\u202a{PLAIN}\u202c",
    "blanks of other kinds": PLAIN.replace(" ", "\u3000\u00a0"),
}


def by_words(text: str) -> list[str]:
    return words_of(pl.Series([text]))[0].to_list()


@pytest.mark.parametrize("form", FORMS)
def test_an_item_in_another_form_is_found(form: str) -> None:
    items = Benchmark.of(RowTexts(*_rows([PLAIN])), 13)
    found = find_overlaps({"b": items}, [("train", "a", 0, RowTexts(*_rows([FORMS[form]])))])

    assert by_words(PLAIN) == by_words(FORMS[form])
    assert [(1.0, 0)] == [(overlap.fraction, overlap.item) for overlap in found]


def _rows(texts: list[str]):
    found = texts_of(pa.table({"text": texts}))
    return found.row, found.texts


def test_ascii_and_other_texts_of_one_column_are_folded_alike_and_null_stays() -> None:
    texts = pl.Series(
        ["ABC", None, "\uff21BC", "abc\u200b", "\u03a3\u03af\u03c3\u03c5\u03c6\u03bf\u03c2"]
    )

    assert ["abc", None, "abc", "abc", "\u03c3\u03af\u03c3\u03c5\u03c6o\u03c3"] == folded(
        texts
    ).to_list()
    assert ["a b"] == plain_names(pl.Series([" \u200bA \u00a0\t B"])).to_list()


def test_items_too_short_to_look_for_are_counted(tmp_path) -> None:
    (tmp_path / "items.txt").write_text(f"{PLAIN}\nred or blue?\n\n...\nyes\n")
    (tmp_path / "rows.jsonl").write_text('{"text": "red or blue? yes"}\n')
    report = headrace.find_leaks(
        headrace.open(tmp_path / "rows.jsonl"), against=[tmp_path / "items.txt"]
    )

    assert ([1], [2]) == (list(report.items.values()), list(report.short_items.values()))
