"""The real engine's environment: where it is, when it is built, how a build fails (nothing is built here). The tiny
model: complete, readable by the official library, the same every time, divisible by 8 ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from l40s_lab.engine import environment as engine
from l40s_lab.engine import model as engine_model
from l40s_lab.engine.model import tiny_model
from l40s_lab.life import wanted
from l40s_lab.life.request import Request
from orchestrator.hosts.steps import runner
from orchestrator.hosts.steps.bundle import bare
from orchestrator.hosts.steps.runner import HostEvent, HostResult
from orchestrator.loading.profiles import stack_lock
from orchestrator.model.per_node import PerNode
from orchestrator.protocol.errors import NodeError

Run = Callable[..., PerNode[HostResult]]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("L40S_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("L40S_TORCH_CPU_SOURCE", raising=False)
    return tmp_path / "cache"


def building(calls: list[Mapping[str, Any]]) -> Run:
    def run(playbook: str, **arguments: Any) -> PerNode[HostResult]:
        calls.append(arguments["variables"])
        environment = Path(arguments["variables"]["engine_env_path"])
        (environment / "bin").mkdir(parents=True)
        arguments["on_step"](HostEvent("localhost", "Install the locked packages", "started"))
        return PerNode({"localhost": HostResult(ok=1, changed=1, skipped=0)}, {})

    return run


@pytest.fixture
def calls(cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Any]]:
    """The variables of each build."""
    made: list[Mapping[str, Any]] = []
    monkeypatch.setattr(runner, "run_playbook", building(made))
    return made


def test_it_is_built_once(cache: Path, calls: list[Mapping[str, Any]]) -> None:
    said: list[str] = []
    environment = engine.ensure_engine(said.append)
    assert environment.is_relative_to(cache / "engines")
    assert environment.name == "venv"
    assert "Install the locked packages ..." in said
    said.clear()
    assert engine.ensure_engine(said.append) == environment
    assert (len(calls), said) == (1, [])


def test_two_at_once_build_it_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Mapping[str, Any]] = []
    waiting, build = threading.Event(), building(calls)

    def slow(playbook: str, **arguments: Any) -> PerNode[HostResult]:
        assert waiting.wait(20)
        return build(playbook, **arguments)

    def progress(text: str) -> None:
        if "waiting" in text:
            waiting.set()

    monkeypatch.setattr(runner, "run_playbook", slow)
    both = [threading.Thread(target=engine.ensure_engine, args=(progress,)) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join(30)
        assert not thread.is_alive()
    assert len(calls) == 1


@pytest.mark.usefixtures("calls")
def test_what_a_killed_build_left_is_removed() -> None:
    environment = engine.ensure_engine()
    (environment.parent / "complete").unlink()
    (environment / "half").touch()
    assert engine.ensure_engine() == environment
    assert not (environment / "half").exists()


@pytest.mark.usefixtures("calls")
def test_another_lock_file_or_python_is_another_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = engine.ensure_engine()
    lock = tmp_path / f"{engine.ENGINE_STACK}.lock"
    lock.write_text(bare(stack_lock(engine.ENGINE_STACK).read_text()))
    monkeypatch.setattr(engine, "stack_lock", lambda name: lock)
    assert engine.ensure_engine() == first, "hashes prove what is in it, and do not change it"
    lock.write_text("sglang==0.5.24\n")
    said: list[str] = []
    second = engine.ensure_engine(said.append)
    assert str(first.parent) in said[-1], "the old one stays, and is named"
    assert engine.ensure_engine() == second
    monkeypatch.setattr(engine, "python_version", lambda: "3.99")
    assert len({first, second, engine.ensure_engine()}) == 3


@pytest.mark.parametrize(
    ("what", "fix"),
    [
        ("No matching distribution found for torch==2.13.0+cpu", "L40S_TORCH_CPU_SOURCE"),
        ("The virtual environment was not created because ensurepip is not available", "python3-venv"),
        ("[Errno 28] No space left on device", "run it again"),
    ],
)
def test_a_failed_build_says_what_to_do_and_is_not_taken_for_complete(
    calls: list[Mapping[str, Any]], monkeypatch: pytest.MonkeyPatch, what: str, fix: str
) -> None:
    failure = NodeError(what, where="localhost", fix="correct it and run it again")
    with monkeypatch.context() as failing:
        failing.setattr(runner, "run_playbook", lambda *_, **__: PerNode({}, {"localhost": failure}))
        with pytest.raises(NodeError) as caught:
            engine.ensure_engine()
    assert caught.value.what == what and fix in caught.value.fix
    engine.ensure_engine()
    assert len(calls) == 1


def test_the_model_is_made_once_for_each_version_of_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = engine.ensure_model()
    assert (model.is_relative_to(cache), model.name) == (True, "tiny-deepseek-v3")
    (model / "config.json").write_text("mine")
    assert engine.ensure_model() == model
    assert (model / "config.json").read_text() == "mine"
    (model / engine_model.INDEX_FILE).unlink()
    engine.ensure_model()
    assert (model / "config.json").read_text() != "mine", "without its index it counts as half-made"
    changed = tmp_path / "engine_model.py"
    changed.write_text(Path(engine_model.__file__).read_text() + "\n")
    monkeypatch.setattr(engine_model, "__file__", str(changed))
    assert engine.ensure_model() != model


def test_the_source_of_torch_can_be_named(calls: list[Mapping[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("L40S_TORCH_CPU_SOURCE", "/wheels")
    engine.ensure_engine()
    assert calls[0]["engine_env_torch_source"] == "/wheels"


def test_the_lock_file_pins_every_package_and_names_the_stack_s_engine() -> None:
    lock = stack_lock(engine.ENGINE_STACK)
    packages = [line for line in bare(lock.read_text()).splitlines() if line and not line.startswith("#")]
    assert all("==" in package for package in packages)
    assert {"sglang==0.5.23", "torch==2.13.0+cpu"} <= set(packages)


@pytest.mark.parametrize(
    ("ranks", "models"), [(1, ["tiny-deepseek-v3"]), (8, ["tiny-deepseek-v3", "tiny-deepseek-v3-tp32"])]
)
def test_nodes_with_several_ranks_show_a_model_that_32_can_divide(
    cache: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, models: list[str]
) -> None:
    monkeypatch.setattr(engine, "ensure_engine", lambda *_: cache / "venv")
    monkeypatch.setattr(engine_model, "tiny_model", lambda directory, sizes: directory)
    shows, stack = wanted._engine(Request(engine="sglang", ranks=ranks), "/", print)
    assert [show.inside for show in shows[1:]] == [f"/workspace/{model}" for model in models]
    assert {Path(show.outside).name for show in shows[1:]} == set(models) and stack == engine.ENGINE_STACK


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model") / "made" / "here")


def test_the_same_seed_gives_the_same_bytes(model: Path, tmp_path: Path) -> None:
    again, other = tiny_model(tmp_path / "again"), tiny_model(tmp_path / "other", seed=1)
    for file in sorted(path.name for path in model.iterdir()):
        assert (again / file).read_bytes() == (model / file).read_bytes(), file
    assert (other / "model.safetensors").read_bytes() != (model / "model.safetensors").read_bytes()
