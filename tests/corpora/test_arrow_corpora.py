"""Every file of the Parquet and Arrow corpora is read as pyarrow reads it, or refused by name."""

from pathlib import Path

import pytest
from arrow_corpora import ARROW, LARGE, PARQUET
from corpus import SHARED, Corpus, figures, run_corpus

import headrace
from headrace.errors import InputError
from raised import raised

needs_corpora = pytest.mark.skipif(
    not SHARED.is_dir(), reason="needs the corpora in ../shared/data/corpora"
)
FEW = {
    "parquet": (
        "data/uniform_encryption.parquet.encrypted",
        "data/nested_maps.snappy.parquet",
        "data/alltypes_plain.parquet",
    ),
    "arrow": (
        "arrow-ipc-stream_integration_cpp-21.0.0/generated_map.arrow_file",
        "arrow-ipc-stream_integration_cpp-21.0.0/generated_binary_view.stream",
    ),
}
CORPORA = [pytest.param(PARQUET, id="parquet"), pytest.param(ARROW, id="arrow")]


def _law(corpus: Corpus, directory: Path, ids: tuple[str, ...] | None) -> None:
    outcomes = run_corpus(corpus, directory, ids=ids, servers=1 if ids else 2)
    failures = [failure for outcome in outcomes for failure in outcome.failures]
    print(figures(outcomes))

    assert outcomes
    assert not failures, "\n".join(failures)


@needs_corpora
@pytest.mark.parametrize("corpus", CORPORA)
def test_a_few_files_are_equal_or_refused_by_name(corpus: Corpus, tmp_path: Path) -> None:
    name = corpus.address.partition(":")[2].lower()

    _law(corpus, tmp_path, FEW[name])


@needs_corpora
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("corpus", CORPORA)
def test_every_file_is_equal_or_refused_by_name(corpus: Corpus, tmp_path: Path) -> None:
    _law(corpus, tmp_path, None)


@needs_corpora
@pytest.mark.faults  # gigabytes
def test_a_row_group_of_more_text_than_arrow_holds_in_a_map_is_refused(tmp_path: Path) -> None:
    path = SHARED / "parquet" / LARGE
    dataset = headrace.open(path, cache_dir=tmp_path)

    with raised(InputError, path=path, column="arr", remedy="smaller row groups"):
        dataset["all"].to_arrow()
