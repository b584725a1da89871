"""What a release staged before requests said it in types (protocol 0), filled from the environment and the command line
that it did stage. The one reader of these: what is staged again has the types."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.engines.engine import SERVED_FLAG, Engine
from orchestrator.engines.registry import Dialect, dialects
from orchestrator.planning.environment import network
from orchestrator.protocol.planned import Layout, Transport
from orchestrator.protocol.staging import PROTOCOL, StagingRequest


@dataclass(frozen=True, slots=True)
class Completed:
    """A request of this release's protocol; unknown: what could not be found, for the operator, each as text."""

    request: StagingRequest
    unknown: tuple[str, ...] = ()


def completed(request: StagingRequest, given: Collection[str]) -> Completed:
    """The request with what it lacks; as it is where nothing does. given: the keys that were staged"""
    if request.protocol >= PROTOCOL:
        return Completed(_named(request, given))
    filled, unknown = replace(request, protocol=PROTOCOL), []
    if "flags" not in given:
        command, flags = _parts(request.argv)
        filled = replace(filled, command=command, flags=flags)
    filled = _named(filled, given)
    engines = _engines(dialects().get(request.watch.dialect), request)
    if "network" not in given:
        address = _address(request, engines)
        planned = Transport.RDMA if request.device == "cuda" and request.nnodes > 1 else Transport.NONE
        filled = replace(filled, network=network(request.env, planned, address))
        if not address and request.nnodes > 1:
            unknown.append("the node's address, so its interface is not found anew")
    if "layout" not in given:
        filled = replace(filled, layout=_layout(filled, engines), graph_batch=_graph_batch(filled, engines))
        if filled.layout is None:
            unknown.append("the layout, so golden answers and kernel checks are not compared")
    if request.gpus and not request.gpu_uuids:
        unknown.append("the UUIDs of its GPUs, so they are known by index alone")
    return Completed(filled, tuple(unknown))


def _named(request: StagingRequest, given: Collection[str]) -> StagingRequest:
    """With the names that its engine answers to, by its flags: the first ones that said them had no key for it."""
    if "served" in given:
        return request
    names = next((names for flag, *names in reversed(request.flags) if flag == SERVED_FLAG), [])
    return replace(request, served=tuple(names))


def _parts(argv: Sequence[str]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """The words before the flags, and each flag with its values, `--flag=value` as two words, so that a secret one is
    seen."""
    starts = [place for place, word in enumerate(argv) if word.startswith("--") and word != "--"]
    flags = []
    for start, end in zip(starts, [*starts, len(argv)][1:], strict=True):
        name, equals, value = argv[start].partition("=")
        flags.append((name, *([value] if equals else []), *argv[start + 1 : end]))
    return tuple(argv[: starts[0]] if starts else argv), tuple(flags)


def _engines(family: Dialect | None, request: StagingRequest) -> list[Engine]:
    """What the engine may be: its version where the node was to find that installed, else every one of its family, the
    newest first; none of a family that is not known here."""
    if family is None:
        return []
    newest_first = [family.engine(version) for version in reversed(family.versions)]
    version = request.packages.get(newest_first[0].package)
    return [family.engine(version)] if version else newest_first


def _address(request: StagingRequest, engines: Sequence[Engine]) -> str:
    """By which the other nodes know this one: what its engine was told, else the only one that the gang has for it."""
    names = [engine.variables["address"] for engine in engines if "address" in engine.variables]
    by_engine = next((request.env[name] for name in names if request.env.get(name)), "")
    known = [address for address, name in request.addresses.items() if name == request.node]
    only = known[0] if len(known) == 1 else ""
    leader = request.leader.address if request.leads else ""
    return by_engine or leader or only


def _is_degree(text: str) -> bool:
    return text.isdecimal() and len(text) <= 9 and int(text) > 0


def _layout(request: StagingRequest, engines: Sequence[Engine]) -> Layout | None:
    """The engine's degrees, 1 where it was told none; None where one is no number, or the engine is not known here."""
    if not engines:
        return None
    names, values = engines[0].names, _values(request)
    attention = [engine.attention.flag for engine in engines if engine.attention and engine.attention.flag in values]
    wanted = {
        "tensor_parallel": names.tensor_parallel,
        "pipeline_parallel": names.pipeline_parallel,
        "expert_parallel": names.expert_parallel,
        "attention_data_parallel": next(iter(attention), None),
    }
    degrees = {degree: values.get(flag, "1") for degree, flag in wanted.items() if flag}
    if not all(map(_is_degree, degrees.values())):
        return None
    each = len(request.gpus) or len(request.tp_ranks)
    return Layout(**{degree: int(text) for degree, text in degrees.items()}, nnodes=request.nnodes, gpus_per_node=each)


def _graph_batch(request: StagingRequest, engines: Sequence[Engine]) -> int | None:
    sizes = [_values(request).get(engine.names.cuda_graph_max_bs, "") for engine in engines]
    return next((int(size) for size in sizes if size.isdecimal() and len(size) <= 9), None)


def _values(request: StagingRequest) -> Mapping[str, str]:
    """The last value of each flag that has one."""
    return {flag: values[-1] for flag, *values in request.flags if values}
