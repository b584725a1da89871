"""The flags that we know and render, against the real parser of the engine that the lab installs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.engines.dialect import Intent
from orchestrator.engines.dialects import dialect
from orchestrator.engines.known_flags import known_flags
from orchestrator.lab.engine import ENGINE_STACK, ensure_engine
from orchestrator.loading.profiles import load_profile, profile_names
from orchestrator.loading.stacks import load_stack
from orchestrator.model.inventory import NodeSpec, Reach
from orchestrator.planning import commands

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

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
            parser().parse_args(words)
    except SystemExit:
        return said.getvalue().strip().splitlines()[-1]
    return ""

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
"""Runs in the engine's environment; the answer goes to a file, since the engine's imports print what they like."""


@dataclass(frozen=True)
class Answer:
    """flags: as argparse holds them; rejections: for each command line argparse's last words, '' where accepted."""

    flags: Sequence[Mapping[str, Any]]
    rejections: Mapping[str, str]


def rendered() -> Iterator[tuple[str, tuple[str, ...]]]:
    """What the second of two nodes would be started with, for every profile on every stack of this version."""
    node = NodeSpec(name="node1", gang="gang0", node_rank=1, reach=Reach(host="10.0.0.2"))
    for stack in (load_stack("sglang-0.5.23"), load_stack(ENGINE_STACK)):
        for profile in map(load_profile, profile_names()):
            intent = Intent(
                model_path=f"/workspace/{profile.directory}",
                tensor_parallel=16,
                pipeline_parallel=2,
                nnodes=2,
                node_rank=1,
                dist_init="10.0.0.1:5000",
                host="0.0.0.0",
                port=8000,
                nccl_port=5100,
                trust_remote_code=profile.trust_remote_code,
                cuda_graph_max_bs=profile.cuda_graph_max_bs,
                torch_compile_max_bs=profile.torch_compile_max_bs,
            )
            options = commands.options(dialect(stack.dialect), intent, profile, stack, node, ())
            yield f"{profile.name} on {stack.name}", commands.argv((), options, venv="")


WRONG = {
    "gone since 0.4.4": ("--model-path", "m", "--cuda-graph-max-bs", "32"),
    "no number": ("--model-path", "m", "--tp-size", "two"),
    "no such backend": ("--model-path", "m", "--attention-backend", "nonsense"),
}


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Answer:
    cases = dict(rendered()) | WRONG
    file = tmp_path_factory.mktemp("parser") / "answer.json"
    done = subprocess.run(
        [ensure_engine() / "bin" / "python3", "-c", ASK, file],
        input=json.dumps(list(cases.values())),
        env={"PATH": "/usr/bin:/bin", "SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    document = json.loads(Path(file).read_text())
    return Answer(document["flags"], dict(zip(cases, document["verdicts"], strict=True)))


def test_what_we_render_is_accepted(answer: Answer) -> None:
    rejected = {case: words for case, words in answer.rejections.items() if words and case not in WRONG}
    assert not rejected
    assert len(answer.rejections) > len(WRONG)


@pytest.mark.parametrize("case", WRONG)
def test_what_we_refuse_is_rejected(answer: Answer, case: str) -> None:
    assert "error" in answer.rejections[case]


def test_our_list_of_flags_is_the_parser_s(answer: Answer) -> None:
    ours = known_flags("0.5.23").by_spelling
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
