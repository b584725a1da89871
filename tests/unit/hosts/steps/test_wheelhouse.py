"""Wheels brought by the real pip from a folder, and its refusals in words."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.support.wheels import PACKAGES, small_stack

from orchestrator.hosts.steps import wheelhouse
from orchestrator.model.errors import InputError, Unreachable

OURS = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture(autouse=True)
def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)


@pytest.mark.parametrize("python", [OURS, "3.99"], ids=["our Python", "another"])
def test_every_package_of_the_lock_is_brought(tmp_path: Path, python: str) -> None:
    stack = small_stack(tmp_path / "stack", python)
    (tmp_path / "here").mkdir()
    told: list[str] = []
    wheelhouse.download(
        stack.with_suffix(".lock").read_text(),
        tmp_path / "here",
        python=python,
        find_links=str(stack.parent / "wheels"),
        deadline_s=60,
        progress=told.append,
    )
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == sorted(
        path.name for path in (stack.parent / "wheels").iterdir()
    ), "and the requirements, which may hold a password, are gone"
    assert len(told) == len(PACKAGES)


def test_a_package_that_nobody_has_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"l40s-nobody-has-this==1\.0") as caught:
        wheelhouse.download(
            "l40s-nobody-has-this==1.0\n", tmp_path, python=OURS, find_links="", deadline_s=60, progress=lambda _: None
        )
    assert "--find-links" in caught.value.fix


def test_a_deadline_ends_pip(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="within 0 s"):
        wheelhouse.download(
            "one==1.0\n", tmp_path, python=OURS, find_links="", deadline_s=0.05, progress=lambda _: None
        )
    assert not list(tmp_path.iterdir())
