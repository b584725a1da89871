"""The flags that we know and render, against the real parsers: 0.5.23 as the lab installs it, and 0.4.4 from its
wheel, with stubs in place of what its parser imports (torch, CUDA) and never calls.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.engine.kinds import SAME_AS_THE_ENGINES

from l40s_lab.engine.environment import ENGINE_STACK, ensure_engine
from orchestrator.engines.engine import Intent
from orchestrator.engines.known_flags import Option, known_flags
from orchestrator.engines.registry import engine_of
from orchestrator.loading.profiles import load_profile, load_stack, profile_names
from orchestrator.loading.resources import template
from orchestrator.model.inventory import NodeSpec, Reach
from orchestrator.model.profile import CudaGraphs
from orchestrator.planning import engine_command as commands
from orchestrator.protocol.planned import Layout

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(1200),
    SAME_AS_THE_ENGINES,
]

LAYOUT = Layout(tensor_parallel=16, attention_data_parallel=4, nnodes=2, gpus_per_node=16)

VERSIONS = {"0.5.23": ("sglang-0.5.23", ENGINE_STACK), "0.4.4.post3": ("sglang-0.4.4-l40s",)}
"""The stacks of each version."""
KEY = "sk-0123456789abcdef"

ASK = """
import argparse, contextlib, io, json, sys
from sglang.srt.server_args import ServerArgs

def parser():
    made = argparse.ArgumentParser(prog="sglang")
    ServerArgs.add_cli_args(made)
    return made

def verdict(words):
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            if "--config" in words:
                from sglang.srt.utils.server_args_config_parser import ConfigArgumentMerger
                words = ConfigArgumentMerger(parser()).merge_config_with_args(words)
            return {"key": parser().parse_args(words).api_key, "error": ""}
    except SystemExit:
        return {"key": None, "error": said.getvalue().strip().splitlines()[-1]}

answer = {
    "flags": [
        {"spellings": action.option_strings, "nargs": action.nargs,
         "choices": None if action.choices is None else [str(choice) for choice in action.choices]}
        for action in parser()._actions if action.option_strings
    ],
    "verdicts": [verdict(words) for words in json.load(sys.stdin)],
}
with open(sys.argv[1], "w") as file:
    json.dump(answer, file)
"""
"""Runs in the engine's environment; the answer goes to a file, since the engine's imports print freely."""

STUB = """
def __getattr__(name):
    return str
"""


@dataclass(frozen=True)
class Answer:
    """flags: as argparse holds them; rejections: argparse's last line for each command line, '' if accepted;
    keys: the API key that it would serve with."""

    version: str
    flags: Sequence[Mapping[str, Any]]
    rejections: Mapping[str, str]
    keys: Mapping[str, str | None]


def words_of(options: Iterable[Option]) -> tuple[str, ...]:
    return tuple(word for option in options for word in (option.flag, *option.values))


def rendered(version: str, folder: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The command line of a node, for every profile on every stack of this version; and with an API key."""
    node = NodeSpec(name="node1", gang="gang0", node_rank=1, reach=Reach(host="10.0.0.2"))
    for stack in map(load_stack, VERSIONS[version]):
        adapter = engine_of(stack)
        new = adapter.names.pipeline_parallel is not None
        for profile in map(load_profile, profile_names()):
            intent = Intent(
                model_path=f"/workspace/{profile.directory}",
                layout=replace(LAYOUT, pipeline_parallel=1 + new, expert_parallel=1 + new),
                whole_dense=new,
                node_rank=1,
                dist_init="10.0.0.1:5000",
                host="0.0.0.0",
                port=8000,
                nccl_port=5100 if new else None,
                trust_remote_code=profile.trust_remote_code,
                graphs=adapter.graphs(profile),
            )
            options = commands.options(adapter, intent, profile, stack, node, ())
            yield f"{profile.name} on {stack.name}", words_of(options)
        listed = replace(intent, graphs=CudaGraphs(sizes=(1, 2, 4, 8), torch_compile_max_bs=8))
        options = commands.options(adapter, listed, profile, stack, node, ())
        yield f"listed sizes, compiled, on {stack.name}", words_of(options)
        for name, text in adapter.secret_files(KEY, template("launch_with_secrets.py")):
            (folder / name).write_text(text)
        _, more = adapter.with_secrets(stack.launch or adapter.launch, str(folder))
        by_stub = () if more else tuple((folder / "engine-secrets.args").read_text().splitlines())
        yield f"key on {stack.name}", (*by_stub, *words_of((*options, *more)))


WRONG = {
    "a flag of the other version": {
        "0.5.23": ("--model-path", "m", "--cuda-graph-max-bs", "32"),
        "0.4.4.post3": ("--model-path", "m", "--cuda-graph-max-bs-decode", "32"),
    },
    "no number": dict.fromkeys(VERSIONS, ("--model-path", "m", "--tp-size", "two")),
    "no such backend": dict.fromkeys(VERSIONS, ("--model-path", "m", "--attention-backend", "nonsense")),
}


@pytest.fixture(scope="module")
def parser_of_0_4_4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH with the real server_args.py of the wheel and stubs for the rest."""
    folder = tmp_path_factory.mktemp("sglang-0.4.4")
    words = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder), "sglang==0.4.4.post3"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        pytest.skip(f"the wheel can't be downloaded: {done.stderr.strip().splitlines()[-1:]}")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for name in ("server_args", "reasoning_parser"):
            archive.extract(f"sglang/srt/{name}.py", folder)
    for name, text in {
        "__init__": "",
        "srt/__init__": "",
        "srt/utils": STUB,
        "srt/hf_transformers_utils": STUB,
    }.items():
        (folder / "sglang" / f"{name}.py").write_text(text)
    return folder


@pytest.fixture(scope="module", params=list(VERSIONS))
def answer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Answer:
    version: str = request.param
    folder = tmp_path_factory.mktemp("parser")
    cases = dict(rendered(version, folder)) | {name: words[version] for name, words in WRONG.items()}
    env = {"PATH": "/usr/bin:/bin", "SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1"}
    if version == "0.5.23":
        python = str(ensure_engine() / "bin" / "python3")
    else:
        python, env["PYTHONPATH"] = sys.executable, str(request.getfixturevalue("parser_of_0_4_4"))
    done = subprocess.run(
        [python, "-c", ASK, folder / "answer.json"],
        input=json.dumps(list(cases.values())),
        env=env,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    document = json.loads((folder / "answer.json").read_text())
    verdicts = dict(zip(cases, document["verdicts"], strict=True))
    return Answer(
        version=version,
        flags=document["flags"],
        rejections={case: verdict["error"] for case, verdict in verdicts.items()},
        keys={case: verdict["key"] for case, verdict in verdicts.items()},
    )


def test_what_we_render_is_accepted(answer: Answer) -> None:
    rejected = {case: words for case, words in answer.rejections.items() if words and case not in WRONG}
    assert not rejected
    assert len(answer.rejections) > len(WRONG)


def test_an_api_key_in_a_file_reaches_the_engine(answer: Answer) -> None:
    keyed = {case: key for case, key in answer.keys.items() if case.startswith("key on ")}
    assert set(keyed.values()) == {KEY}
    assert {key for case, key in answer.keys.items() if case not in keyed} == {None}


@pytest.mark.parametrize("case", WRONG)
def test_what_we_refuse_is_rejected(answer: Answer, case: str) -> None:
    assert "error" in answer.rejections[case]


def test_our_list_of_flags_is_the_parser_s(answer: Answer) -> None:
    ours = known_flags(answer.version).by_spelling
    theirs = {spelling: flag for flag in answer.flags for spelling in flag["spellings"]}
    assert set(ours) ^ set(theirs) <= {"-h", "--help"}
    takes = {None: {"one"}, 0: {"none"}, "?": {"optional"}, "+": {"many"}, "*": {"many"}}
    wrong = {
        spelling: (ours[spelling].takes, flag["nargs"])
        for spelling, flag in theirs.items()
        if spelling in ours and ours[spelling].takes not in takes[flag["nargs"]]
    }
    assert not wrong
    choices = {
        spelling: (ours[spelling].choices, flag["choices"])
        for spelling, flag in theirs.items()
        if spelling in ours and ours[spelling].choices and set(ours[spelling].choices) != set(flag["choices"] or ())
    }
    assert not choices
