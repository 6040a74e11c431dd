"""Every file of JSON is read as a strict parser reads it, or refused by name."""

from pathlib import Path

import pytest
from corpus import SHARED, Corpus, Outcome, figures, run_corpus
from json_corpora import GENERATED, SEEDS, VALUES, WHOLE

needs_corpora = pytest.mark.skipif(
    not SHARED.is_dir(), reason="needs the corpora in ../shared/data/corpora"
)
FEW = (
    "y_array_empty",
    "n_structure_100000_opening_arrays",
    "i_string_invalid_utf-8",
    "i_structure_500_nested_arrays",
)


def _law(corpus: Corpus, directory: Path, ids: tuple[str, ...] | None) -> list[Outcome]:
    outcomes = run_corpus(corpus, directory, ids=ids, servers=1 if ids else 2)
    failures = [failure for outcome in outcomes for failure in outcome.failures]
    print(figures(outcomes))

    assert outcomes
    assert not failures, "\n".join(failures)
    return outcomes


@needs_corpora
def test_a_few_files_of_other_parsers_are_equal_or_refused_by_name(tmp_path: Path) -> None:
    _law(VALUES, tmp_path, FEW)


@needs_corpora
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "corpus", [pytest.param(VALUES, id="values"), pytest.param(WHOLE, id="whole")]
)
def test_every_file_of_other_parsers_is_equal_or_refused_by_name(
    corpus: Corpus, tmp_path: Path
) -> None:
    for outcome in _law(corpus, tmp_path, None):
        if outcome.id.startswith("n_"):
            assert outcome.word == "refused", outcome


def test_some_generated_files_are_equal_or_refused_by_name(tmp_path: Path) -> None:
    _law(GENERATED, tmp_path, tuple(f"seed-{seed}" for seed in range(1, SEEDS, 200)))


@pytest.mark.faults  # 2,000 files in six ways take a core ten minutes
@pytest.mark.timeout(3600)
def test_every_generated_file_is_equal_or_refused_by_name(tmp_path: Path) -> None:
    outcomes = _law(GENERATED, tmp_path, None)
    refused = [outcome for outcome in outcomes if outcome.word == "refused"]

    assert len(refused) < 0.2 * len(outcomes)
