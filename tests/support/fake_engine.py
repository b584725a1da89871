"""A scripted engine for tests of the agent: real processes, no model. One process per rank, HTTP on node rank 0.

Behaviour comes from the environment:
    FAKE_RANKS       its TP ranks, for example 0,1
    FAKE_NODE_RANK   0 serves HTTP
    FAKE_HTTP        address:port to serve on
    FAKE_DELAY       seconds from start to ready
    FAKE_TEXT        what a completion answers
    FAKE_LINES       extra log lines at start, separated by |
    FAKE_EXIT        exit with this code instead of serving
    FAKE_TERM        'ignore': SIGTERM does nothing; 'slow': it takes 0.5 s
    FAKE_ORPHAN      '1': leaves a process with its own session and parent, which ignores every signal but KILL
    FAKE_TIED        its ranks die with it: '1' by PR_SET_PDEATHSIG, 'poll' with exit code 1 when they notice
    FAKE_DEATHS      'ranks': their ends show late, as with CUDA; 'all': its own too
    FAKE_OTHERS      titles of processes that it starts beside its ranks, for example engine::detokenizer
    FAKE_FLOOD       bytes of log to write at once
    FAKE_ACCESS      '1': requests other than the agent's probes are logged in the format of uvicorn's access log
    FAKE_STUCK       a file: while it exists, a generation probe gets 503 after the seconds in the file
    FAKE_TITLE       title of a rank's process, {} is its number
    FAKE_GPU_BYTES   GPU memory in bytes that each rank takes, on its GPU of FAKE_GPUS, for example 0,1 (needs a driver)
A rank exits with code 0 on SIGUSR1, as if its engine's leader had ordered it.
By default no process notices the death of another.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

RANK = """
import os, sys, time
import _signal as signal  # without its enumerations, a third of a rank's start
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))
if os.environ.get('FAKE_TIED') or len(sys.argv) > 1:
    import ctypes
if os.environ.get('FAKE_DEATHS'):
    from standin import cuda_death
    cuda_death.slow_exit()
if os.environ.get('FAKE_TIED') == '1':
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
parent = os.getppid()
while os.environ.get('FAKE_TIED') == 'poll':
    time.sleep(0.005)
    if os.getppid() != parent: sys.exit('the parent is gone')
def cuda(name, *arguments):
    code = getattr(ctypes.CDLL('libcuda.so.1'), name)(*arguments)
    if code: sys.exit(f'{name}: error {code}')
if len(sys.argv) > 1:
    context, address = ctypes.c_void_p(), ctypes.c_void_p()
    cuda('cuInit', 0)
    cuda('cuDevicePrimaryCtxRetain', ctypes.byref(context), int(sys.argv[1]))
    cuda('cuCtxSetCurrent', context)
    cuda('cuMemAlloc_v2', ctypes.byref(address), ctypes.c_size_t(int(os.environ['FAKE_GPU_BYTES'])))
while True: time.sleep(3600)
"""
ORPHAN = """
import os, signal, sys, time
if os.fork(): os._exit(0)
os.setsid()
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(number, signal.SIG_IGN)
while True: time.sleep(3600)
"""

READY = {"at": 0.0}
STANDIN = str(Path(__file__).parents[2] / "lab/src/l40s_lab")
STUCK = Path(os.environ.get("FAKE_STUCK", "/nowhere"))


def say(line: str) -> None:
    print(line, flush=True)


def serve(place: str) -> None:
    """Serve forever, by HTTP/1.0. Imported here because most processes don't serve; http.server takes twice as long."""
    from socketserver import StreamRequestHandler, ThreadingTCPServer

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            line = self.rfile.readline().decode("latin-1").strip()
            method, path, *_ = [*line.split(" "), ""]
            length = 0
            while header := self.rfile.readline().strip().lower():
                if header.startswith(b"content-length:"):
                    length = int(header.partition(b":")[2])
            if os.environ.get("FAKE_ACCESS") and "?" in path:
                host, port = self.client_address
                say(f'[2026-11-20 14:11:35] INFO:     {host}:{port} - "{line}" 200 OK')
            if method == "POST":
                self.rfile.read(length)
                self._answer(200, {"choices": [{"text": os.environ.get("FAKE_TEXT", " Paris")}]})
            elif method == "GET":
                self._answer(*self._got(path))

        def _got(self, path: str) -> tuple[int, object]:
            if path == "/metrics":
                return 200, {"worked_total": 1}
            if path == "/health_generate" and STUCK.is_file():
                with contextlib.suppress(FileNotFoundError):
                    time.sleep(float(STUCK.read_text() or 0))
                return 503, {}
            if path.startswith("/health"):
                return (200 if time.monotonic() >= READY["at"] else 503), {}
            return 200, {"data": [{"id": "fake"}]}

        def _answer(self, status: int, body: object) -> None:
            data = json.dumps(body).encode()
            self.wfile.write(b"HTTP/1.0 %d fake\r\nContent-Length: %d\r\n\r\n" % (status, len(data)) + data)

    class Server(ThreadingTCPServer):
        allow_reuse_address = daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Whoever asked went away."""

    address, _, port = place.rpartition(":")
    server = Server((address, int(port)), Handler)
    say("warming up")
    server.serve_forever()


def main() -> int:
    delay = float(os.environ.get("FAKE_DELAY", "0.3"))
    READY["at"] = time.monotonic() + delay
    for line in filter(None, os.environ.get("FAKE_LINES", "").split("|")):
        say(line)
    if os.environ.get("FAKE_EXIT"):
        return int(os.environ["FAKE_EXIT"])
    if os.environ.get("FAKE_FLOOD"):
        sys.stdout.write("x" * 99 + "\n")
        for _ in range(int(os.environ["FAKE_FLOOD"]) // 100):
            sys.stdout.write("x" * 99 + "\n")
    title = os.environ.get("FAKE_TITLE", "engine::rank_TP{}")
    if os.environ.get("FAKE_DEATHS") == "all":
        sys.path.insert(0, STANDIN)
        importlib.import_module("standin.cuda_death").slow_exit()
    environment = os.environ | {"PYTHONHOME": sys.base_prefix, "PYTHONPATH": STANDIN}  # argv[0], a title, shows no home
    numbers = os.environ["FAKE_RANKS"].split(",")
    gpus = [[gpu] for gpu in os.environ["FAKE_GPUS"].split(",")] if "FAKE_GPUS" in os.environ else [[]] * len(numbers)
    ranks = [
        subprocess.Popen([title.format(rank), "-sS", "-c", RANK, *gpu], executable=sys.executable, env=environment)
        for rank, gpu in zip(numbers, gpus, strict=True)
    ]
    for other in filter(None, os.environ.get("FAKE_OTHERS", "").split(",")):
        subprocess.Popen([other, "-sS", "-c", RANK], executable=sys.executable, env=environment)
    if os.environ.get("FAKE_ORPHAN"):
        subprocess.run([sys.executable, "-c", ORPHAN], check=True)

    def terminate(*_: object) -> None:
        how = os.environ.get("FAKE_TERM", "")
        if how == "ignore":
            return
        if how == "slow":
            time.sleep(0.5)
        say("gracefully exiting")
        for rank in ranks:
            rank.kill()
        os._exit(0)

    leads = os.environ.get("FAKE_NODE_RANK") == "0"
    signal.signal(signal.SIGTERM, terminate if leads else lambda *_: say("SIGTERM ignored"))
    for step in range(1, 5):
        say(f"loading {step}/4")
        time.sleep(delay / 4)
    if leads:
        serve(os.environ["FAKE_HTTP"])
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    sys.exit(main())
