"""A node's engine in a container: what it is shown of the node, and what of its environment the image decides."""

from __future__ import annotations

import re
from collections.abc import Iterable

from orchestrator.engines.registry import engine_of
from orchestrator.model.errors import InputError
from orchestrator.model.inventory import NodeSpec
from orchestrator.model.plan import Container
from orchestrator.model.profile import Stack
from orchestrator.planning.environment import Setting

PYTHON = "python3"
"""The image's own, in place of the virtual environment's."""
OF_THE_HOST = ("PATH", "CUDA_VISIBLE_DEVICES", "TIKTOKEN_ENCODINGS_BASE")
"""Variables that name the host's places and GPU numbers; a container has its own."""


def launch_words(stack: Stack) -> tuple[str, ...]:
    """The stack's launch words, else its engine's, with the image's interpreter where it runs in a container."""
    launch = stack.launch or engine_of(stack).launch
    if stack.install == "venv":
        return launch
    return tuple(PYTHON if word == "{venv}/bin/python3" else word for word in launch)


def inside(stack: Stack, settings: Iterable[Setting]) -> tuple[Setting, ...]:
    """The environment as the engine sees it."""
    if stack.install == "venv":
        return tuple(settings)
    all_settings = tuple(settings)
    caches = next(setting.value for setting in all_settings if setting.name == "XDG_CACHE_HOME")
    home = Setting("HOME", caches, "a directory in the container that the engine's user can write to")
    kept = (home if setting.name == "HOME" else setting for setting in all_settings)
    return tuple(setting for setting in kept if setting.name not in OF_THE_HOST)


def container(
    stack: Stack, node: NodeSpec, *, gpus: tuple[int, ...], rdma: bool, shown: Iterable[tuple[str, bool]]
) -> Container | None:
    """`NodePlan.container`; None where the stack is a virtual environment.

    Raises InputError for a directory that no mount option can carry.
    """
    if stack.install == "venv":
        return None
    places = tuple(shown)
    for path, _ in places:
        if re.search(r"""[,"\n]""", path):
            raise InputError(
                f"{path!r} can't be mounted into a container",
                where=f"node {node.name}",
                fix="use a path without commas and quotes",
            )
    cuda = stack.device == "cuda"
    return Container(
        program=stack.install, image=stack.image, gpus=gpus if cuda else (), rdma=rdma and cuda, shown=places
    )
