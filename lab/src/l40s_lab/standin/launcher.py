"""The launcher of one node, SGLang's parent process: starts the ranks, serves HTTP, and ends as the real one does."""

from __future__ import annotations

import http.client
import json
import os
import select
import signal
import socket
import threading
import time

from . import answers
from .children import Child, fork, kill_all, kill_self
from .engine import Engine, Status
from .leader_web import leader_handler
from .log import Log, raw
from .model import Model, read_model
from .played import Played, trace
from .rank import Links, live
from .settings import Rank, Settings
from .title import die_with, set_title
from .web import Server, WorkerHandler, uvicorn_lines

_SCHEDULER_EXIT_S = 15.0
"""How long a leader waits for its ranks after ShutdownReq (tokenizer_manager.py)."""
_LOOK_S = 5.0
"""How often the leader checks for SIGTERM (sigterm_watchdog), and a launcher checks ranks that load."""
_WATCH_S = 1.0
"""How often the leader checks its children while it serves (SubprocessWatchdog)."""
_READY = "The server is fired up and ready to roll!"
_WARM_UP_TRIES = 120
_SETTLE_S = 5.0
_COREDUMP_WAIT_S = 60.0
"""Time that a leader spends on its crash dump before it ends, without answering HTTP; the second value applies if ranks
still live (tokenizer_manager.py, dump_requests_before_crash; $SGLANG_CUDA_COREDUMP_BEFORE_CRASH_WAIT_SECS)."""


def launch(settings: Settings) -> int:
    """Run this node's part of the engine. Returns the exit status, unless a signal ends it."""
    return _Launcher(settings).run()


class _Launcher:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._version = settings.version
        self._log = Log()
        self._children: list[Child] = []
        self._readers: dict[Rank, int] = {}
        self._serving = False
        self._interrupted = False

    def run(self) -> int:
        name = self._version.name
        self._log.line(
            f"[stand-in] l40s-deploy's stand-in plays SGLang {name}: it loads no model, uses no GPU, and its answers "
            "are canned."
        )
        self._log.line(f"server_args=ServerArgs({', '.join(f'{k}={v!r}' for k, v in self._settings.given.items())})")
        try:
            self._check()
            return self._lead() if self._settings.node_rank == 0 else self._follow()
        except (Played, OSError, ValueError) as error:
            raw(trace(error))
            self._kill_tree(include_parent=False)
            return 1

    def _check(self) -> None:
        """Errors that the launcher itself reports, before it starts a rank."""
        settings = self._settings
        if (settings.tp_size * settings.pp_size) % settings.nnodes:
            raise Played("AssertionError", "tp_size must be divisible by number of nodes")
        if self._version.checks_model_first or settings.node_rank == 0:
            read_model(settings.model_path, self._version, settings.quantization)

    # -- the leader ---------------------------------------------------------------------------------------------

    def _lead(self) -> int:
        requests, rank_requests = socket.socketpair()
        rank_tokens, detokenizer_in = socket.socketpair()
        detokenizer_out, tokens = socket.socketpair()
        inner = (rank_requests, rank_tokens, detokenizer_in, detokenizer_out)
        signal.signal(signal.SIGQUIT, self._on_sigquit)
        self._start_ranks(
            Links(os.getpid(), -1, rank_requests, rank_tokens), (requests, tokens, detokenizer_in, detokenizer_out)
        )
        self._children.append(
            fork(
                "detokenizer",
                lambda: _detokenize(detokenizer_in, detokenizer_out),
                [*(end.fileno() for end in (requests, tokens, rank_requests, rank_tokens)), *self._readers.values()],
            )
        )
        for end in inner:
            end.close()
        facts = self._await_ranks()
        engine = Engine(requests, tokens, facts["max_total_num_tokens"])
        return self._serve(engine, read_model(self._settings.model_path, self._version, self._settings.quantization))

    def _serve(self, engine: Engine, model: Model) -> int:
        """Serve HTTP until the end."""
        settings = self._settings
        *starting, running = uvicorn_lines(settings.host, settings.port)
        for line in starting:
            self._log.uvicorn(line)
        try:
            server = Server(settings.host, settings.port, leader_handler(settings, model, engine))
        except OSError as error:
            return self._serve_nothing(error)
        self._log.uvicorn(running)
        self._serving = True
        self._stop_watching = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: self._on_sigterm(engine))
        signal.signal(signal.SIGINT, lambda *_: self._on_sigint(server))
        work = [lambda: self._warm_up(engine), lambda: self._drain_when_told(engine, server)]
        if self._version.watches_ranks:
            work.append(self._watch_children)
        for task in work:
            threading.Thread(target=task, daemon=True).start()
        server.serve_forever(poll_interval=0.2)
        self._log.uvicorn("Shutting down")
        self._log.uvicorn(f"Finished server process [{os.getpid()}]")
        self._stop_watching.set()
        if any(child.alive() for child in self._children):
            self._kill_tree(include_parent=False)
        if self._interrupted:  # uvicorn raises it again after its shutdown
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        return 0

    def _serve_nothing(self, error: OSError) -> int:
        """The port is taken. uvicorn gives up and waits for the warm-up, which queries the other listener instead
        (http_server.py, lifespan and _execute_server_warmup): if that one answers, the engine reports `ready`."""
        where = (self._settings.host, self._settings.port)
        self._log.line(
            f"ERROR:    [Errno {error.errno}] error while attempting to bind on address {where}: address already in use"
        )
        self._log.uvicorn("Waiting for application shutdown.")
        if not self._settings.skip_warmup:
            if not self._ask_stranger():
                self._log.line(f"Initialization failed. warmup error: {trace(error)}")
                self._kill_tree(include_parent=True)
            self._log.line(_READY)
        self._log.uvicorn("Application shutdown complete.")
        self._kill_tree(include_parent=False)
        return self._version.http_taken_exit

    def _ask_stranger(self) -> bool:
        """Whether another process on our port answers like an engine, within 120 tries."""
        for _ in range(_WARM_UP_TRIES):
            self._pause(1.0)
            link = http.client.HTTPConnection(self._settings.host, self._settings.port, timeout=5)
            try:
                link.request("GET", self._version.model_path)
                if link.getresponse().status == http.HTTPStatus.OK:
                    return True
            except (OSError, http.client.HTTPException):
                continue
            finally:
                link.close()
        return False

    def _warm_up(self, engine: Engine) -> None:
        """One short generation, then ready (http_server.py, _wait_and_warmup)."""
        if not self._settings.skip_warmup:
            self._pause(1.0)
            for _ in engine.stream(answers.question("The capital city of France is", 8, True)):
                pass
        engine.status = Status.UP
        self._log.line(_READY)

    def _watch_children(self) -> None:
        """A dead child ends the node (srt/utils/watchdog.py, SubprocessWatchdog)."""
        while not self._stop_watching.wait(_WATCH_S * self._settings.speed):
            for child in self._children:
                if child.alive() or child.exit_code == 0:
                    continue
                self._log.line(
                    f"Subprocess {child.name} (pid={child.pid}) crashed with exit code {child.exit_code}. "
                    "Triggering SIGQUIT for cleanup..."
                )
                os.kill(os.getpid(), signal.SIGQUIT)
                return

    def _on_sigterm(self, engine: Engine) -> None:
        self._log.line("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
        engine.draining = True

    def _on_sigint(self, server: Server) -> None:
        self._interrupted = True
        threading.Thread(target=server.shutdown, daemon=True).start()

    def _wait_for_requests(self, engine: Engine) -> None:
        """Until none is left; an unhealthy engine that ends in order does not wait."""
        while True:
            left = engine.in_flight
            if self._version.orderly_shutdown and engine.status is Status.UNHEALTHY:
                self._log.line("Signal SIGTERM received while health check failed. Force exiting.")
                self._dump_before_crash()
                break
            self._tell_remaining(left)
            if not left:
                break
            self._pause(_LOOK_S)

    def _drain_when_told(self, engine: Engine, server: Server) -> None:
        """After SIGTERM: wait for the running requests without a time limit, then stop everything."""
        while not engine.draining:
            self._pause(_LOOK_S)
        self._wait_for_requests(engine)
        self._stop_watching.set()
        if not self._version.orderly_shutdown:
            self._kill_tree(include_parent=True)
        engine.shut_down()
        ranks = self._ranks()
        deadline = time.monotonic() + _SCHEDULER_EXIT_S * min(self._settings.speed, 1.0)
        while time.monotonic() < deadline and any(child.alive() for child in ranks):
            time.sleep(0.02)
        late = [child.pid for child in ranks if child.alive()]
        if late:
            self._log.line(
                f"Schedulers still alive {_SCHEDULER_EXIT_S:g}s after ShutdownReq, killing them before they "
                f"released: {late}"
            )
        self._kill_tree(include_parent=False)
        server.shutdown()

    def _tell_remaining(self, left: list[str]) -> None:
        if self._version.orderly_shutdown:
            self._log.line(
                f"Gracefully exiting... Remaining number of requests {len(left)}. "
                f"Remaining requests remaining_rids={left}."
            )
        else:
            self._log.line(f"Gracefully exiting... remaining number of requests {len(left)}")

    # -- the other nodes ----------------------------------------------------------------------------------------

    def _follow(self) -> int:
        signal.signal(signal.SIGQUIT, self._on_sigquit)
        self._start_ranks(Links(os.getpid(), -1), ())
        self._await_ranks()
        if self._version.worker_keeps_term:
            signal.signal(signal.SIGTERM, lambda *_: self._keep_term())
        if not self._version.worker_joins_ranks:
            return self._serve_dummy()
        self._start_dummy_server()
        # In order: a dead rank is not noticed or reaped until those before it have ended.
        for child in self._children:
            code = child.join()
            self._log.line(f"Scheduler or DataParallelController {child.pid} terminated with {code}")
        return 0

    def _serve_dummy(self) -> int:
        """0.4.4: the launcher stays in uvicorn.run and checks none of its ranks."""
        settings = self._settings
        try:
            server = self._dummy_server()
        except OSError as error:
            raw(
                f"ERROR:    [Errno {error.errno}] error while attempting to bind on address "
                f"('{settings.host}', {settings.port}): address already in use\n"
            )
            self._kill_tree(include_parent=False)
            return self._version.http_taken_exit
        for line in uvicorn_lines(settings.host, settings.port):
            raw(f"INFO:     {line}\n")
        server.serve_forever(poll_interval=0.2)
        return 0

    def _keep_term(self) -> None:
        self._log.line(
            f"SIGTERM received on node_rank {self._settings.node_rank}; waiting for the rank-0 ShutdownReq "
            "broadcast to stop the schedulers."
        )

    def _start_dummy_server(self) -> None:
        """/health of a node that is not the leader; the node continues if the port is taken."""
        try:
            server = self._dummy_server()
        except OSError as error:
            self._log.line(f"Dummy health check server failed to start: {error}")
            return
        threading.Thread(target=server.serve_forever, daemon=True, name="health-check-server").start()
        host, port = self._settings.host, self._settings.port
        shown = f"[{host}]" if ":" in host else host
        self._log.line(f"Dummy health check server started in background thread at {shown}:{port}")

    def _dummy_server(self) -> Server:
        joins = self._version.worker_joins_ranks
        paths = WorkerHandler.paths if joins else WorkerHandler.paths[:2]
        paths += ("/metrics",) if joins and self._settings.metrics else ()  # of its own ranks, in 0.5
        handler = type("BoundHandler", (WorkerHandler,), {"paths": paths, "access_log": not joins})
        return Server(self._settings.host, self._settings.port, handler)

    # -- both ---------------------------------------------------------------------------------------------------

    def _start_ranks(self, links: Links, outer: tuple[socket.socket, ...]) -> None:
        """Fork this node's ranks. `outer`: the socket ends that no rank may keep."""
        for number, rank in enumerate(self._settings.ranks):
            reader, writer = os.pipe()
            first = rank.world == 0
            mine = Links(links.launcher, writer, links.requests if first else None, links.tokens if first else None)
            foreign = [end.fileno() for end in outer] + [reader, *self._readers.values()]
            if not first:
                foreign += [end.fileno() for end in (links.requests, links.tokens) if end is not None]
            self._children.append(
                fork(f"scheduler_{number}", lambda rank=rank, mine=mine: live(self._settings, rank, mine), foreign)  # type: ignore[misc]
            )
            os.close(writer)
            self._readers[rank] = reader

    def _await_ranks(self) -> dict[str, int]:
        """Wait until all ranks of this node can serve. Raises Played(RuntimeError) if one dies instead."""
        facts: dict[str, int] = {}
        for number, reader in enumerate(self._readers.values()):
            while not select.select([reader], [], [], _LOOK_S * self._settings.speed)[0]:
                self._check_alive()
            line = os.read(reader, 65536)
            if not line:
                self._died(number)
            facts = facts or json.loads(line)
            os.close(reader)
        return facts

    def _check_alive(self) -> None:
        if not self._version.watches_ranks:
            return
        for number, child in enumerate(self._children[: len(self._readers)]):
            if not child.alive():
                self._died(number)

    def _died(self, number: int) -> None:
        child = self._children[number]
        deadline = time.monotonic() + 10
        while child.alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        # Its SIGQUIT, if it sent one, has been handled by now; the remaining ranks died without one.
        if self._version.watches_ranks:
            raise Played(
                "RuntimeError",
                f"Rank {number} scheduler died during initialization (exit code: {child.exit_code}). If exit code "
                "is -9 (SIGKILL), a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check.",
            )
        if self._settings.node_rank == 0:
            self._log.line(f"Rank {number} scheduler is dead. Please check if there are relevant logs.")
            self._log.line(f"Exit code: {child.exit_code}")
        raise Played("EOFError", "")

    def _on_sigquit(self, *_: object) -> None:
        """A child failed: everything on this node ends, including the launcher."""
        if self._serving and self._version.watches_ranks:
            self._stop_watching.set()
            self._log.line("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
            self._dump_before_crash()
        else:
            self._log.line("Received sigquit from a child process. It usually means the child failed.")
        self._kill_tree(include_parent=True)

    def _dump_before_crash(self) -> None:
        """There is nothing to dump: only the time that it takes is played."""
        self._log.line("Sleeping 5 seconds before crash diagnostics to let GPU activity settle.")
        self._pause(_SETTLE_S)
        if not any(child.alive() for child in self._ranks()):
            self._log.line("No live scheduler processes found; skipping py-spy and CUDA coredump.")
            return
        asked = self._settings.environment.get("SGLANG_CUDA_COREDUMP_BEFORE_CRASH_WAIT_SECS")
        seconds = float(asked) if asked else _COREDUMP_WAIT_S
        self._log.line(f"Waiting {seconds:.1f} seconds for CUDA coredumps before exiting.")
        self._pause(seconds)

    def _ranks(self) -> list[Child]:
        return [child for child in self._children if child.name != "detokenizer"]

    def _kill_tree(self, *, include_parent: bool) -> None:
        """End this node's processes with SIGKILL, including the launcher if asked to."""
        if self._version.watches_ranks:
            self._log.line(f"kill_process_tree called: parent_pid={os.getpid()}, {include_parent=}, pid={os.getpid()}")
        # The real one waits for none of them: it has ended long before CUDA lets them go.
        kill_all(self._children, wait=not (include_parent and self._settings.cuda_deaths))
        if include_parent:
            kill_self()

    def _pause(self, seconds: float) -> None:
        time.sleep(seconds * self._settings.speed)


def _detokenize(tokens: socket.socket, out: socket.socket) -> None:
    """SGLang's detokenizer process: all tokens of rank 0 pass through it."""
    set_title("sglang::detokenizer")
    die_with(os.getppid())
    while data := tokens.recv(65536):
        out.sendall(data)
    signal.pause()
