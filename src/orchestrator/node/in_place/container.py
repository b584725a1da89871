"""A program in place of the engine, in a container of the engine's image: its GPUs, its user, the node's network.

The program and its order come by standard input; its end ends the program, as for an engine
(docs/decisions/0005). Standard output carries what the program says on the pipe of its own, standard error its log.
"""

from __future__ import annotations

import os
import subprocess
import threading
from contextlib import suppress
from functools import partial

from orchestrator.node.agent.run import Run
from orchestrator.node.engine import engine_container, helper_process
from orchestrator.protocol.staging import ContainerOrder

_INSIDE = """import os, signal, sys
def taken(size):
    place = os.memfd_create("order", 0)
    while size:
        part = os.read(0, min(size, 65536))
        if not part:
            sys.exit("what to run did not arrive")
        size -= os.write(place, part)
    os.lseek(place, 0, os.SEEK_SET)
    return place
program, said = taken(int(sys.argv[1])), taken(int(sys.argv[2]))
we = os.getpid()
if os.fork() == 0:
    if os.fork() == 0:
        while os.read(0, 4096):
            pass
        os.kill(we, signal.SIGKILL)
    os._exit(0)
os.wait()
os.dup2(said, 0)
results = os.dup(1)
os.set_inheritable(results, True)
os.dup2(2, 1)
os.execv(sys.executable, [sys.executable, f"/proc/self/fd/{program}", str(results)])
"""
"""What the image's Python runs: it becomes the program, after it has left a process that kills it when the standard
input of whoever started the container ends."""
_LIMITS = ("--ulimit", "memlock=-1:-1", "--ulimit", "nofile=1048576:1048576")
_RIGHTS = ("--cap-add", "IPC_LOCK", "--cap-add", "SYS_NICE")
_CACHES = "XDG_CACHE_HOME"
_DEVICES = "/dev/infiniband"


def start(run: Run, order: ContainerOrder, name: str, program: bytes, said: bytes) -> subprocess.Popen[bytes]:
    """Begin it. Its limits, devices and mounts are those of templates/launch_container.sh.j2."""
    inside = engine_container.of_the_image(run.env)
    caches = inside.get(_CACHES, "")
    words = engine_container.run_words(order, name, helper_process.owner(run))
    words += ["--ipc", "host", "--workdir", "/", *_machine(run, order)]
    kept = os.path.isdir(caches)
    if kept:
        words += ["--mount", f"type=bind,src={caches},dst={caches}"]
    words += ["--env", f"HOME={caches if kept else '/tmp'}"]  # noqa: S108 - the container's own
    for variable in sorted(inside):
        words += ["--env", variable]
    words += ["--entrypoint", engine_container.PYTHON, order.image, "-c", _INSIDE, str(len(program)), str(len(said))]
    child = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        env={**os.environ, **inside},
        preexec_fn=partial(helper_process.die_with, os.getpid()),  # noqa: PLW1509 - one thread
    )
    threading.Thread(target=_give, args=(child, program + said), daemon=True).start()
    return child


def _machine(run: Run, order: ContainerOrder) -> list[str]:
    if run.device != "cuda":
        return []
    words = [*_LIMITS, *_RIGHTS]
    if os.path.isdir(_DEVICES):
        words += ["--device", _DEVICES]
    if order.program == "docker":
        words += ["--gpus", '"device={}"'.format(",".join(map(str, run.gpus)))]
    else:
        words += [word for gpu in run.gpus for word in ("--device", f"nvidia.com/gpu={gpu}")]
    return words


def _give(child: subprocess.Popen[bytes], text: bytes) -> None:
    """The pipe stays open: its end is the end of the container. One that could not start reads nothing."""
    assert child.stdin is not None
    with suppress(BrokenPipeError):
        child.stdin.write(text)
        child.stdin.flush()
