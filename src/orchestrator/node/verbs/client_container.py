"""A benchmark client in a container of the engine's image: without a GPU, as the engine's user, on the node's network.

A container of its own and not an `exec` into the engine's: stopping it must not affect the engine.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial

from orchestrator.node.agent.run import Run
from orchestrator.node.engine import engine_container, helper_process
from orchestrator.protocol.staging import ENDS_WITH_STDIN, ContainerOrder


def start(
    run: Run, order: ContainerOrder, command: Sequence[str], folder: pathlib.Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Begin `python3 -m command`. folder: where it may write; environment: beside the run's own.

    Values reach the container by their names alone: a command line can be read by everybody on a machine.
    """
    inside = {**engine_container.of_the_image(run.env), **environment}
    words = [*engine_container.run_words(order, name(run), helper_process.owner(run)), "--workdir", str(folder)]
    words += ["--mount", f"type=bind,src={folder},dst={folder}"]
    if run.model_path:
        words += ["--mount", f"type=bind,src={run.model_path},dst={run.model_path},readonly"]
    words += ["--env", f"HOME={folder}"]
    for variable in sorted(inside):
        words += ["--env", variable]
    words += [
        "--entrypoint",
        "/bin/sh",
        order.image,
        "-c",
        ENDS_WITH_STDIN,
        "l40s-bench",
        engine_container.PYTHON,
        "-m",
        *command,
    ]
    return subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd="/",
        env={**os.environ, **inside},
        preexec_fn=partial(helper_process.die_with, os.getpid()),  # noqa: PLW1509 - one thread
    )


def name(run: Run) -> str:
    """Of the client's container; one client runs at a time."""
    return f"{run.unit_name}-bench"


def end(run: Run, order: ContainerOrder) -> None:
    """Remove the client's container, where it has not gone by itself."""
    engine_container.remove_named(order.program, name(run))
