"""An operator's own stacks and profiles are found next to the inventory, from any working directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.cli.main import main
from orchestrator.loading.inventory import load_inventory
from orchestrator.loading.profiles import (
    load_profile,
    load_stack,
    profile_names,
    reported_profile,
    reported_stack,
    stack_names,
)
from orchestrator.loading.resources import data_dir
from orchestrator.protocol.errors import InputError

SHIPPED = data_dir("inventory")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")


def inventory(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "hosts.yml"
    file.write_text("all: {children: {gangs: {children: {g: {hosts: {a: }}}}}}")
    return file


def copied(kind: str, of: str, to: Path, **changes: str) -> None:
    text = (SHIPPED / kind / f"{of}.yml").read_text("utf-8")
    for key, value in changes.items():
        text = text.replace(f"{key}: {of}\n", f"{key}: {value}\n", 1)
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(text)


@pytest.mark.parametrize("below", ["stacks", "inventory/stacks"])
def test_a_stack_beside_the_inventory(tmp_path: Path, below: str) -> None:
    copied("stacks", "sglang-0.5.23", tmp_path / "cluster" / below / "mine.yml", name="mine")
    with pytest.raises(InputError):
        load_stack("mine")
    load_inventory(inventory(tmp_path / "cluster"))
    assert load_stack("mine").name == "mine" and {"mine", "sglang-0.5.23"} <= set(stack_names())
    load_inventory(inventory(tmp_path / "other"))
    with pytest.raises(InputError):
        load_stack("mine")


def test_a_stack_that_the_inventory_names_by_its_path_is_known_by_its_name_too(tmp_path: Path) -> None:
    copied("stacks", "sglang-0.5.23", tmp_path / "kept/mine.yml", name="mine")
    file = inventory(tmp_path / "cluster")
    file.write_text(file.read_text().replace("{a: }", f"{{a: {{l40s_stack: {tmp_path}/kept/mine.yml}}}}"))
    load_inventory(file)
    assert load_stack("mine").name == "mine"
    load_inventory(inventory(tmp_path / "other"))
    with pytest.raises(InputError):
        load_stack("mine")


def test_a_profile_beside_the_inventory_comes_before_a_shipped_one(tmp_path: Path) -> None:
    file = tmp_path / "cluster/models/tiny-deepseek-v3.yml"
    copied("models", "tiny-deepseek-v3", file)
    file.write_text(file.read_text().replace("vocab_size: ", "vocab_size: 9"))
    shipped = load_profile("tiny-deepseek-v3")
    load_inventory(inventory(tmp_path / "cluster"))
    assert load_profile("tiny-deepseek-v3").dimensions.vocab_size != shipped.dimensions.vocab_size
    assert len(profile_names()) == len(list((SHIPPED / "models").glob("*.yml")))


@pytest.mark.parametrize("name", ["mine", "sglang-0.5.23"], ids=["called otherwise than its file", "as a shipped one"])
def test_what_a_node_runs_is_the_stack_that_the_inventory_names_by_its_path(tmp_path: Path, name: str) -> None:
    changed = tmp_path / "kept/changed.yml"
    copied("stacks", "sglang-0.5.23", changed, name=name)
    changed.write_text(changed.read_text().replace("engine_version: 0.5.23", "engine_version: 0.5.17"))
    file = inventory(tmp_path / "cluster")
    file.write_text(file.read_text().replace("{a: }", f"{{a: {{l40s_stack: {changed}}}}}"))
    load_inventory(file)
    assert (reported_stack(name).name, reported_stack(name).engine_version) == (name, "0.5.17")
    assert reported_stack("sglang-0.4.4-l40s").engine_version.startswith("0.4.4")
    with pytest.raises(InputError):
        reported_stack("changed.yml")


def test_models_lists_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copied("models", "tiny-deepseek-v3", tmp_path / "cluster/models/mine.yml", name="mine")
    assert main(["models", "-i", str(inventory(tmp_path / "cluster")), "--json"]) == 0
    assert "mine" in {model["name"] for model in json.loads(capsys.readouterr().out)["models"]}


@pytest.mark.parametrize("name", ["x" * 300, "", "../stacks/sglang-0.5.23", "a\0b", "évil", "evil.yml", "~/evil.yml"])
def test_a_name_that_a_node_reports_is_looked_up_and_never_a_path(tmp_path: Path, name: str) -> None:
    for lookup in (reported_stack, reported_profile, load_stack, load_profile):
        with pytest.raises(InputError):
            lookup(name)


def test_a_file_that_exists_is_no_name_of_a_node(tmp_path: Path) -> None:
    evil = tmp_path / "elsewhere" / "evil.yml"
    copied("stacks", "sglang-0.5.23", evil)
    copied("models", "DeepSeek-V3-0324", tmp_path / "elsewhere" / "model.yml")
    assert load_stack(str(evil)).name == "sglang-0.5.23"
    for name in (str(evil), "evil.yml"):
        with pytest.raises(InputError, match="a node reports the stack"):
            reported_stack(name)
    with pytest.raises(InputError, match="a node reports the model"):
        reported_profile("model.yml")
    assert reported_stack("sglang-0.5.23").name == "sglang-0.5.23"
