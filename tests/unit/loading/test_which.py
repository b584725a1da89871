"""Which cluster a command uses, in the order that --help promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.loading.which import choose_inventory
from orchestrator.protocol.errors import InputError


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("L40S_LAB_ROOT", str(tmp_path / "labs"))
    monkeypatch.delenv("L40S_INVENTORY", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("all: {}\n")
    return path


def test_the_order_of_preference(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = make(place / "labs" / "rehearsal" / "inventory.yml")
    assert choose_inventory(None).path == lab and "the running lab 'rehearsal'" in choose_inventory(None).reason
    make(place / "inventory" / "hosts.yml")
    assert choose_inventory(None).path == Path("inventory/hosts.yml")
    monkeypatch.setenv("L40S_INVENTORY", "/etc/cluster.yml")
    assert choose_inventory(None).path == Path("/etc/cluster.yml")
    assert choose_inventory("mine.yml").path == Path("mine.yml")


def test_of_several_labs_one_must_be_named(place: Path) -> None:
    make(place / "labs" / "a" / "inventory.yml")
    make(place / "labs" / "b" / "inventory.yml")
    with pytest.raises(InputError, match="several labs are running"):
        choose_inventory(None)
    make(place / "labs" / "lab" / "inventory.yml")
    with pytest.raises(InputError, match="several labs are running"):
        choose_inventory(None)


def test_nothing_to_choose_from_says_how_to_get_something(place: Path) -> None:
    with pytest.raises(InputError) as refusal:
        choose_inventory(None)
    assert "lab up" in refusal.value.fix
