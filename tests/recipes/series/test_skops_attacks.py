"""Files of fitted objects that name what no pipeline needs, or hide behind a name that is trusted."""

import io
import json
import zipfile
from pathlib import Path

import pytest

from headrace.errors import CorruptShard
from headrace.series.pipelines.objects import from_skops, to_skops
from raised import raised


def test_skops_files_with_strange_types_are_refused() -> None:
    data = to_skops([[Path]])

    with raised(CorruptShard, remedy="do not trust this file"):
        from_skops(data, "x.skops")
    with raised(CorruptShard, remedy="restore it or prepare the run again"):
        from_skops(data[:50], "x.skops")


@pytest.mark.parametrize("func", ["__class__", "__reduce__", "append"])
def test_a_trusted_name_in_a_skops_file_is_no_way_to_another_object(func: str) -> None:
    """skops below 0.12 looked up any attribute of any object, if the node bore the name of a trusted type."""
    with zipfile.ZipFile(io.BytesIO(to_skops([1]))) as archive:
        schema = json.loads(archive.read("schema.json"))
    inner = {
        **{
            key: value for key, value in schema.items() if key not in ("protocol", "_skops_version")
        },
        "__id__": 999,
    }
    schema["__class__"], schema["__module__"], schema["__loader__"] = "dtype", "numpy", "MethodNode"
    schema["content"] = {"func": func, "obj": inner}
    forged = io.BytesIO()
    with zipfile.ZipFile(forged, "w") as archive:
        archive.writestr("schema.json", json.dumps(schema))

    with raised(CorruptShard, remedy="restore it or prepare the run again"):
        from_skops(forged.getvalue(), "x.skops")
