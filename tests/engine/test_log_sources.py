"""The lines that prove or deny an option, as the installed engine's own source would write them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from l40s_lab.engine.environment import ensure_engine
from orchestrator.engines.causes import PCIE_IPC
from orchestrator.engines.registry import dialect

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

SOURCE = "sglang/srt/distributed/device_communicators/pcie_ipc_ar.py"


def said(source: Path) -> list[str]:
    """The arguments of its logger, with numbers and words filled in."""
    found = []
    for node in ast.walk(ast.parse(source.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            words = node.args[0]
            if ast.unparse(node.func.value) == "logger" and isinstance(words, ast.Constant):
                found.append(str(words.value).replace("%d", "8").replace("%s", "words"))
    return found


def test_one_line_of_the_engine_proves_the_pcie_all_reduce_and_others_deny_it() -> None:
    (source,) = ensure_engine().glob(f"lib/python3*/site-packages/{SOURCE}")
    lines = said(source)
    ((variable, proof),), (denial,) = dialect("sglang-0.5").engine("0.5.23").proofs.items(), PCIE_IPC
    proving = [line for line in lines if re.search(proof.pattern, line)]
    denying = [line for line in lines if re.search(denial.pattern, line)]
    assert len(proving) == 1 and "workspace built" in proving[0]
    assert len(denying) >= 4 and not set(proving) & set(denying)
    variables = source.parents[2].joinpath("environ.py").read_text()
    assert re.search(rf"^\s*{variable} = EnvBool", variables, re.MULTILINE)
