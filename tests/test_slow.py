"""`make test` leaves out slow cases, but keeps one of every kind of process; with `make test-rest` nothing is left out."""

import ast
import re
from itertools import product
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
KINDS = {
    "a command": "test_cli.py::test_split_inspect_verify_gc_end_well",
    "ranks": "stream/test_gloo.py::test_ranks_and_workers_deliver_what_the_pure_order_says",
    "torchrun": "test_stream_cli.py::test_validation_under_torchrun_with_workers",
    "forked workers": "stream/test_torch.py::test_workers_deliver_the_batches_of_a_loop_without_any",
    "spawned workers": "stream/test_workers.py::test_workers_that_are_no_forks_give_the_same",
    "signals": "stream/test_endings.py::test_ctrl_c_ends_a_loop_and_all_it_started",
    "killed ranks": "stream/test_lost_processes.py::test_a_killed_process_ends_the_others_by_name",
    "killed runs": "faults/test_kills.py::test_kills_at_named_steps_tear_lose_and_double_nothing",
    "a full disk": "faults/test_disk.py::test_a_full_disk_is_named_and_the_run_completes_once_there_is_room",
    "fuzzed text": "fuzz/test_text_fuzz.py::test_text_is_read_as_others_read_it_or_refused",
    "object stores": "object_stores/test_every_store.py::test_a_dataset_is_made_and_read",
    "a browser": "report/test_browser.py::test_the_report_opens_without_network_or_complaint_and_every_figure_has_data",
    "pages of the docs": "test_docs.py::test_every_block_runs_and_prints_what_the_page_says",
    "examples": "test_examples.py::test_text_and_numbers_train_and_every_row_comes_once",
    "Ray": "engine/test_ray.py::test_a_cluster_writes_the_bytes_that_threads_write",
    "Lightning": "stream/test_lightning.py::test_every_epoch_delivers_every_row_once_in_an_order_of_its_own",
    "Lightning on ranks": "stream/test_lightning.py::test_ddp_ranks_take_equal_steps_and_other_ranks_resume_them",
    "Accelerate": "stream/test_accelerate.py::test_a_stream_resumes_under_accelerate",
    "Trainer of Hugging Face": "trainers/test_hf.py::test_every_row_is_trained_once_an_epoch_in_equal_steps",
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_case_of_each_kind_is_in_make_test(kind: str) -> None:
    file, name = KINDS[kind].split("::")
    tree = ast.parse((TESTS / file).read_text("utf-8"))
    (function,) = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    of_all = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node)
    ]
    marks = " ".join(map(ast.unparse, [*function.decorator_list, *of_all]))

    assert not re.search(r"mark\.(slow|faults)|mark\.smoke(\(\)|(?!\())", marks), (
        "nothing of it is left in `make test`"
    )


def test_make_test_and_make_test_rest_are_make_test_all() -> None:
    makefile = (TESTS.parent / "Makefile").read_text("utf-8")
    chosen = dict(
        re.findall(r'^(test[\w-]*):.*\n\t\$\(PYTEST\) -m "(.*?)"', makefile, re.MULTILINE)
    )

    assert ["test", "test-all", "test-rest"] == sorted(chosen)
    for faults, slow, hypothesis in product((False, True), repeat=3):
        runs = {
            name: eval(of, {"faults": faults, "slow": slow, "hypothesis": hypothesis})
            for name, of in chosen.items()
        }
        assert runs["test-all"] == (runs["test"] or runs["test-rest"])
        assert (
            not (runs["test"] and runs["test-rest"]) or hypothesis
        )  # laws run again, with all their examples
