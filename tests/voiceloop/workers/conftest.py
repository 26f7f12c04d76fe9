"""The scripted roles of `tests/faults`, importable by the name that workers know them by."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTED = Path(__file__).parents[2] / "faults" / "scripted_roles.py"


@pytest.fixture(scope="module")
def scripted_roles() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("scripted_roles", SCRIPTED)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["scripted_roles"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["scripted_roles"]
