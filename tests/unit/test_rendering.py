"""The launch script: a shell executes exactly the plan, whatever the plan contains."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jinja2 import UndefinedError
from tests.support.reference_plan import plan_of
from tests.support.waiting import examples

from orchestrator.loading.resources import template
from orchestrator.model.plan import GangPlan
from orchestrator.protocol.staging import NodePlan
from orchestrator.rendering import launch_script

TEXT = template("launch.sh.j2")
TELL = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]))"


def planned(stack: str = "sglang-0.4.4-l40s") -> tuple[NodePlan, GangPlan]:
    plan = plan_of(stack=stack)
    return plan.gangs[0].nodes[1], plan.gangs[0]


def run(script: str, folder: Path, **env: str) -> tuple[list[str], dict[str, str], str]:
    file = folder / "launch.sh"
    file.write_text(script, "utf-8")
    done = subprocess.run(
        ["/bin/sh", str(file)], env={"PATH": os.environ["PATH"], **env}, capture_output=True, timeout=20, check=True
    )
    argv, environment, cwd = json.loads(done.stdout)
    return argv, environment, cwd


def telling(node: NodePlan, folder: Path) -> NodePlan:
    """The same plan, whose engine prints its arguments and environment."""
    return replace(node, command=(sys.executable, "-c", TELL), working_dir=str(folder))


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed; `make setup` installs it")
@pytest.mark.parametrize("stack", ["sglang-0.4.4-l40s", "sglang-0.5.23"])
def test_shellcheck_finds_nothing(stack: str) -> None:
    node, whole = planned(stack)
    script = launch_script(node, whole, "abc", TEXT)
    done = subprocess.run(
        ["shellcheck", "-s", "sh", "-"], input=script, text=True, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout


def test_what_starts_is_the_plan_and_stale_settings_of_the_shell_are_gone(tmp_path: Path) -> None:
    node, whole = planned()
    argv, env, cwd = run(
        launch_script(telling(node, tmp_path), whole, "abc", TEXT), tmp_path, NCCL_ALGO="Ring", SGLANG_X="1", KEPT="1"
    )
    assert tuple(argv) == node.argv[3:]
    assert dict(node.env).items() <= env.items()
    assert "NCCL_ALGO" not in env and "SGLANG_X" not in env
    assert env["KEPT"] == "1"
    assert cwd == str(tmp_path)


def test_every_source_stands_as_a_comment() -> None:
    node, whole = planned()
    script = launch_script(node, whole, "abc", TEXT)
    for name, source in node.sources.items():
        assert f"# {source}\n" in script or f"#   {name}: {source}\n" in script


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    value=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30),
    source=st.text(max_size=30),
)
def test_no_value_and_no_source_escapes_its_quotes(tmp_path: Path, value: str, source: str) -> None:
    node, whole = planned()
    hostile = replace(
        telling(node, tmp_path),
        env={**node.env, "MINE": value},
        sources={**node.sources, "MINE": source, "--port": source},
        flags=(*node.flags[:-1], (*node.flags[-1], value)),
    )
    argv, env, _ = run(launch_script(hostile, whole, "abc", TEXT), tmp_path, LC_ALL="C.UTF-8", PYTHONUTF8="1")
    assert argv[-1] == value
    assert env["MINE"] == value


def test_a_template_that_names_something_unknown_is_a_defect_and_not_an_empty_word() -> None:
    node, whole = planned()
    with pytest.raises(UndefinedError):
        launch_script(node, whole, "abc", "{{ nonsense }}")


def test_nothing_of_the_callers_is_loaded_into_the_engine(tmp_path: Path) -> None:
    """Variables that would change how Python, the loader, PyTorch or a kernel compiler works."""
    callers = {"PYTORCH_CUDA_ALLOC_CONF": "x", "FLASHINFER_LOGLEVEL": "x", "TRITON_INTERPRET": "1", "PYTHONPATH": "/x",
               "LD_PRELOAD": ""}  # fmt: skip
    plain, gang = planned()
    _, env, _ = run(launch_script(telling(plain, tmp_path), gang, "abc", TEXT), tmp_path, **callers)
    planned_too = dict(plain.env)
    assert {name: env[name] for name in callers if name in env and name not in planned_too} == {}
