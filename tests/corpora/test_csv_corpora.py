"""Delimited text is read as a strict parser reads it under the types shown, or refused by name."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from corpus import Outcome, figures, run_corpus
from csv_corpora import CSV, SEEDS, SPECTRUM, check_spectrum

needs_corpora = pytest.mark.skipif(not SPECTRUM.is_dir(), reason="no corpora here")
FEW = ("quotes_and_newlines", "newlines_crlf", "empty", "utf8", *(f"seed-{n}" for n in range(6)))


def _law(directory: Path, ids: Sequence[str] | None) -> list[Outcome]:
    outcomes = run_corpus(CSV, directory, ids=ids)
    failures = [failure for outcome in outcomes for failure in outcome.failures]
    print(figures(outcomes))
    assert not failures, "\n".join(failures)
    return outcomes


@needs_corpora
def test_the_strict_parser_reads_what_stands_beside_the_files() -> None:
    check_spectrum()


@needs_corpora
@pytest.mark.slow
def test_a_few_files_are_equal_or_refused_by_name(tmp_path: Path) -> None:
    _law(tmp_path, FEW)


@needs_corpora
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_file_is_equal_or_refused_by_name(tmp_path: Path) -> None:
    outcomes = _law(tmp_path, None)
    spectrum = [outcome for outcome in outcomes if not outcome.id.startswith("seed-")]
    refused = [outcome for outcome in outcomes if outcome.word == "refused"]

    assert all(outcome.word == "equal" for outcome in spectrum)
    assert len(refused) < 0.2 * SEEDS
