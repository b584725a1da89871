"""The command line of one node's engine, each flag with its source, and what its container is shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from orchestrator.engines.engine import SERVED_FLAG, Engine, Intent
from orchestrator.engines.known_flags import KnownFlags, Option
from orchestrator.engines.registry import engine_of
from orchestrator.model.engine_versions import holds_for
from orchestrator.model.inventory import NodeSpec
from orchestrator.model.profile import ModelProfile, Stack
from orchestrator.planning.environment import Setting
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.staging import Container, NodePlan


def options(
    engine: Engine, intent: Intent, profile: ModelProfile, stack: Stack, node: NodeSpec, extra: Sequence[str]
) -> tuple[Option, ...]:
    """Every flag of this node, checked against the version's list. A later source replaces an earlier one:
    the dialect's, the profile's, the stack's, the inventory's, the command line's. Raises InputError."""
    return tuple(_merged(engine, engine.options(intent), profile, stack, node, extra).values())


def asked(
    engine: Engine, profile: ModelProfile, stack: Stack, node: NodeSpec, extra: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """What decides about memory before a layout is chosen: every flag but the plan's own, by its first spelling; of
    those that several ask for, the last one's. Raises InputError."""
    graphs = engine.graph_options(engine.graphs(profile))
    return {name: option.values for name, option in _merged(engine, graphs, profile, stack, node, extra).items()}


def _merged(
    engine: Engine, ours: Iterable[Option], profile: ModelProfile, stack: Stack, node: NodeSpec, extra: Sequence[str]
) -> dict[str, Option]:
    """By each flag's first spelling."""
    flags = engine.flags()
    chosen = {flags.flag(option.flag, where=f"dialect {engine.dialect}").name: option for option in ours}
    for option in _added(engine, flags, profile, stack, node, extra):
        name = flags.flag(option.flag, where=option.source).name
        if name == engine.names.cuda_graph_max_bs:  # who sets it wants no list, which an engine would go by
            chosen.pop(engine.names.cuda_graph_sizes, None)
        replaced = chosen.get(name)
        instead = f", instead of {' '.join((replaced.flag, *replaced.values))}" if replaced else ""
        chosen[name] = Option(option.flag, option.values, option.source + instead)
    return chosen


def _added(
    engine: Engine, flags: KnownFlags, profile: ModelProfile, stack: Stack, node: NodeSpec, extra: Sequence[str]
) -> Iterable[Option]:
    wanted = [(flag, value) for versions, flag, value in profile.flags if holds_for(versions, engine.version)]
    profile_words = [word for pair in wanted for word in pair if word]
    stack_words = [word for pair in stack.flags for word in pair if word]
    for words, where, source in (
        (profile_words, f"model {profile.name}: flags", f"profile {profile.name}"),
        (stack_words, f"stack {stack.name}: flags", f"stack {stack.name}"),
        (node.overrides.args, f"inventory: {node.name}: l40s_args", "override: l40s_args in the inventory"),
        (extra, "command line: after --", "override: the command line"),
    ):
        for option in flags.given(words, where=where, source=source):
            _refuse_ours(engine, flags, option.flag, where)
            _refuse_another_device(stack, option, where)
            yield option


def _refuse_ours(engine: Engine, flags: KnownFlags, spelling: str, where: str) -> None:
    name = flags.flag(spelling, where=where).name
    for ours, instead in engine.ours.items():
        if ours in flags and flags.flag(ours, where=where).name == name:
            raise InputError(f"{spelling} is set by the plan", where=where, fix=f"remove it; instead, use {instead}")


def _refuse_another_device(stack: Stack, given: Option, where: str) -> None:
    if given.flag == "--device" and given.values != (stack.device,):
        raise InputError(
            f"--device {' '.join(given.values)}: stack {stack.name} is for {stack.device}",
            where=where,
            fix="remove it; instead, use --stack NAME with a stack for that device (its file says `device`)",
        )


def served(chosen: Iterable[Option]) -> tuple[str, ...]:
    """Names that the engine answers to, as it is told; () where it is told none."""
    return next((option.values for option in chosen if option.flag == SERVED_FLAG), ())


def graph_batch(engine: Engine, chosen: Iterable[Option]) -> int | None:
    """The largest batch that is captured as a CUDA graph, where it is said."""
    names, flags = engine.names, engine.flags()
    sizes = [
        size
        for option in chosen
        if flags.flag(option.flag, where=option.source).name == names.cuda_graph_max_bs
        for size in option.values
    ]
    numbers = [int(size) for size in sizes if size.isdecimal()]
    return numbers[-1] if numbers else None


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
    kept = {setting.name: setting for setting in settings if setting.name not in OF_THE_HOST}
    why = "a directory in the container that the engine's user can write to"
    return tuple({**kept, "HOME": Setting("HOME", kept["XDG_CACHE_HOME"].value, why)}.values())


def container(stack: Stack) -> Container | None:
    """`NodePlan.container`; None where the stack is a virtual environment."""
    return None if stack.install == "venv" else Container(program=stack.install, image=stack.image)


def refuse_mounts(part: NodePlan) -> None:
    """Raises InputError for a directory that no mount option of its container can carry."""
    for path, _ in part.mounts if part.container else ():
        if re.search(r"""[,"\n]""", path):
            raise InputError(
                f"{path!r} can't be mounted into a container",
                where=f"node {part.name}",
                fix="use a path without commas and quotes",
            )
