"""Where a rank stands, by its Python frames: in a collective, in a graph's replay, in code of its own. Pure.

Frames are `function (file:line)`, the innermost first, as py-spy gives them, with files below site-packages. The names
are those of torch 2.6 to 2.14, SGLang 0.4 and 0.5, vLLM 0.3x, FlashInfer and Triton.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Activity(str, Enum):
    """COLLECTIVE: in an operation with other ranks. POINT: sends to, or receives from, one of them. GRAPH: replays a
    CUDA graph. GPU: waits for its GPU. COMPILES, TUNES. IDLE: waits for requests. OWN: in any other code."""

    COLLECTIVE = "collective"
    POINT = "point-to-point"
    GRAPH = "graph"
    GPU = "gpu"
    COMPILES = "compiles"
    TUNES = "tunes"
    IDLE = "idle"
    OWN = "own"


WAITS = (Activity.COLLECTIVE, Activity.POINT, Activity.GRAPH, Activity.GPU)
"""Of these a rank comes on only with others, or with its GPU."""

_FRAME = re.compile(r"(?P<function>[^\s(]{1,200}) \((?P<file>.{1,300}):(?P<line>\d{1,7})\)")
_COLLECTIVES = re.compile(
    r"_?(?:all_reduce|all_gather|reduce_scatter|broadcast|barrier|monitored_barrier|all_to_all|gather|scatter|reduce)"
    r"(?:_(?:into_tensor|tensor|single|object|object_list|coalesced|base|pyobj|in_place|out_place|v|uneven))?"
)
_POINTS = re.compile(r"(?:send|recv|isend|irecv|batch_isend_irecv|send_object_list|recv_object_list)")
_OF_COLLECTIVES = re.compile(r"torch/distributed/|distributed/(?:device_communicators|parallel_state|communication_op)")
_LIBRARY = re.compile(r"torch/distributed/|contextlib\.py|distributed/(?:device_communicators|parallel_state)")
_OF_OTHERS = re.compile(r"torch/|triton/|flashinfer/|contextlib")
_NAMED = (
    (Activity.TUNES, re.compile(r"choose_one|_profile_single_kernel|flashinfer_autotune|_flashinfer_autotune"),
     re.compile(r"autotuner\.py|kernel_warmup\.py|model_runner\.py")),
    (Activity.COMPILES,
     re.compile(r"_?compile|compile_\w{1,40}|build|build_and_load|_run_ninja_build|run_ninja|ninja_build|load_inline"
                r"|_jit_compile|make_\w{0,20}bin|nvrtc\w{0,40}"),
     re.compile(r"triton/|torch/utils/cpp_extension|deep_gemm/|flashinfer/jit|tvm_ffi/|torch/_inductor/")),
    (Activity.GRAPH, re.compile(r"replay"), re.compile(r"torch/cuda/graphs\.py|cuda_?graph")),
    (Activity.GPU, re.compile(r"synchronize"), re.compile(r"torch/cuda/")),
    (Activity.IDLE, re.compile(r"recv_requests|_?recv_reqs|process_input_requests|recv_multipart|recv_pyobj|poll"
                               r"|_?process_input_queue|dequeue|acquire_read"),
     re.compile(r"scheduler\w{0,60}\.py|zmq/|v1/engine/core\.py|shm_broadcast\.py|request_receiver\.py")),
)  # fmt: skip
"""Activity, function and file of the frames that show it."""
MOST_CALLERS = 12
LONGEST = 160


@dataclass(frozen=True, slots=True)
class StackPlace:
    """Where a rank stood at one instant.

    operation: of a collective, its name; where: the innermost frame of the engine's own code; path: the frames that
    called the operation, which two ranks in the same one have in common
    """

    activity: Activity
    where: str = ""
    operation: str = ""
    path: tuple[str, ...] = ()


def place_of(frames: Sequence[str]) -> StackPlace:
    """From one stack. Raises ValueError for an empty one."""
    if not frames:
        raise ValueError("an empty stack shows no place")
    read = [(frame, _FRAME.fullmatch(frame)) for frame in frames]
    parts = [(frame, match["function"].rpartition(".")[2], match["file"]) for frame, match in read if match]
    for activity, functions, files in _NAMED:
        if activity not in (Activity.IDLE, Activity.GPU) and _shows(parts, functions, files):
            return StackPlace(activity, _own(parts, frames))
    collective = _collective(parts, frames)
    if collective is not None:
        return collective
    for activity, functions, files in _NAMED[-2:]:
        if _shows(parts, functions, files):
            return StackPlace(activity, _own(parts, frames))
    return StackPlace(Activity.OWN, frames[0][:LONGEST])


def _shows(parts: Sequence[tuple[str, str, str]], functions: re.Pattern[str], files: re.Pattern[str]) -> bool:
    return any(functions.fullmatch(function) and files.search(file) for _, function, file in parts)


def _collective(parts: Sequence[tuple[str, str, str]], frames: Sequence[str]) -> StackPlace | None:
    """The operation that the engine called: the outermost one of those that the innermost belongs to."""
    inner = 0
    name = activity = None
    for place, (_, function, file) in enumerate(parts):
        if not _OF_COLLECTIVES.search(file) and not _LIBRARY.search(file):
            break
        if _OF_COLLECTIVES.search(file):
            kind = _kind_of(function)
            name, activity, inner = (function, kind, place) if kind else (name, activity, inner)
    if activity is None or name is None:
        return None
    path = tuple(frame for frame, _, file in parts[inner + 1 :] if not _LIBRARY.search(file))
    return StackPlace(activity, _own(parts, frames), name, path[:MOST_CALLERS])


def _kind_of(function: str) -> Activity | None:
    if _COLLECTIVES.fullmatch(function):
        return Activity.COLLECTIVE
    return Activity.POINT if _POINTS.fullmatch(function) else None


def _own(parts: Sequence[tuple[str, str, str]], frames: Sequence[str]) -> str:
    """The innermost frame that is no library's."""
    own = (frame for frame, _, file in parts if not _OF_OTHERS.match(file) and not _LIBRARY.search(file))
    return next(own, frames[0])[:LONGEST]
