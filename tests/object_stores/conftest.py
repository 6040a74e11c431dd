"""These tests need a store to talk to."""

import pytest

pytest.importorskip("obstore", reason="needs the extra s3")
pytest.importorskip("moto", reason="needs moto[server]")
