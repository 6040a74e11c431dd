"""A stage of tasks."""

from pathlib import Path

from headrace.errors import InputError
from headrace.run.context import RunContext, Task, TaskFiles
from raised import raised


def test_two_tasks_of_a_stage_cannot_write_one_file(tmp_path: Path) -> None:
    def write(files: TaskFiles) -> dict[str, int]:
        files.write("data/day.bin", b"the same bytes, which would pass for the file of both")
        return {"rows_in": 1}

    tasks = [Task(name, 0, write) for name in ("day.2024-01-01.csv", "day.2024-01-02.csv")]
    context = RunContext(tmp_path, 1, lambda event: None)

    with raised(InputError, path=tmp_path / "data/day.bin") as caught:
        context.stage("copy", tasks)
    assert all(task.subject in str(caught.value) for task in tasks)
