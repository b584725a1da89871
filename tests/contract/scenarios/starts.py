"""Starts that fail: missing peers, occupied ports, missing files, wrong arguments."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.contract.contract import Scenario, See
from tests.contract.under_test import READY, EngineUnderTest, Node, named, title

_SOON = ("--dist-timeout", "1")


def _ends(node: Node, see: See, words: str, who: str = "node") -> None:
    see(f"{who}-code", node.exit_code())
    see(f"{who}-line", node.says(words))
    see(f"{who}-cause", node.cause())
    see(f"{who}-left", node.left_behind())


def _nobody_comes(engine: EngineUnderTest, see: See) -> None:
    leader = engine.start_node(0, extra=_SOON)
    _ends(leader, see, r"DistStoreError: Timed out after 2 seconds waiting for clients\. 1/2 clients joined\.")
    see("sigquit-line", leader.says(r"Received sigquit from a child process\. It usually means the child failed\."))


def _no_leader(engine: EngineUnderTest, see: See) -> None:
    worker = engine.start_node(1, extra=_SOON)
    _ends(worker, see, r"DistNetworkError: The client socket has timed out after 1000ms")


def _rendezvous_taken(engine: EngineUnderTest, see: See) -> None:
    with _listening("127.0.0.1", engine.dist_port):
        leader = engine.start_node(0, extra=_SOON)
        _ends(leader, see, r"DistNetworkError: The server socket has failed to listen .*EADDRINUSE")


def _http_taken(engine: EngineUnderTest, see: See) -> None:
    with _answering("127.0.0.1", engine.http_port, 404):
        node = engine.start_node(0, nnodes=1)
        node.until_says(r"ERROR:    \[Errno 98\] error while attempting to bind")
        see("after", "lives" if node.process.poll() is None else "ended")
        _ends(node, see, r"address already in use")
        see("warm-up-line", node.says(r"Initialization failed\. warmup error: Traceback"))
        see("ready-line", node.says(READY))


def _http_taken_by_an_engine(engine: EngineUnderTest, see: See) -> None:
    with _answering("127.0.0.1", engine.http_port, 200):
        node = engine.start_node(0, nnodes=1)
        _ends(node, see, r"address already in use")
        see("ready-line", node.says(READY))


@contextmanager
def _answering(address: str, port: int, status: int) -> Iterator[None]:
    """Another HTTP server, which gives every request the same answer."""

    class Stranger(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = b'{"is_generation": true, "model_path": "another", "text": "", "meta_info": {}}'
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815 - http.server's naming

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: the test's output is not its log."""

    server = ThreadingHTTPServer((address, port), Stranger)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def _listening(address: str, port: int) -> Iterator[None]:
    with socket.socket() as other:
        other.bind((address, port))
        other.listen()
        yield


def _rank_killed_early(engine: EngineUnderTest, see: See) -> None:
    leader = engine.start_node(0)
    leader.until_says(r"Init parallel begin\.")
    os.kill(leader.child("sglang::scheduler_TP0"), signal.SIGKILL)
    _ends(leader, see, r"RuntimeError: Rank 0 scheduler died during initialization \(exit code: -9\)\.")


def _told_while_loading(engine: EngineUnderTest, see: See) -> None:
    """Each node waits for the other at its own rendezvous; so both load for as long as it takes to distinguish them."""
    for name, node_rank in (("leader", 0), ("worker", 1)):
        engine.dist_port += node_rank
        node = engine.start_node(node_rank)
        node.until_says(r"Init parallel begin\.")
        node.children()
        node.signal(signal.SIGTERM)
        see(f"{name}-code", node.exit_code())
        see(f"{name}-left", node.left_behind())


def _model_missing(engine: EngineUnderTest, see: See) -> None:
    worker = engine.start_node(1, model=engine.folder / "nowhere" / engine.model.name, extra=_SOON)
    _ends(worker, see, r"Repo id must be in the form")
    see("before-rendezvous", not worker.says("Init parallel begin"))


def _with_model(words: str, change: Callable[[Path], None]) -> Callable[[EngineUnderTest, See], None]:
    def play(engine: EngineUnderTest, see: See) -> None:
        model = engine.folder / "changed" / engine.model.name
        shutil.copytree(engine.model, model)
        change(model)
        _ends(engine.start_node(0, nnodes=1, model=model), see, words)

    return play


def _heads_not_divisible(engine: EngineUnderTest, see: See) -> None:
    model = engine.folder / "changed" / engine.model.name
    shutil.copytree(engine.model, model)
    _set(model, num_attention_heads=7)
    leader = engine.start(model=model)[0]
    see("code", leader.exit_code())
    errors = re.findall(r"(?m)^(RuntimeError: cannot reshape tensor|AssertionError: .*)", leader.text())
    see("error", errors[0] if errors else "another")
    see("cause", leader.cause())
    see("left", leader.left_behind())


def _without_config(model: Path) -> None:
    (model / "config.json").unlink()


def _without_shard(model: Path) -> None:
    """The index names a second shard, which was not copied."""
    index = model / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["lm_head.weight"] = "model-2.safetensors"
    index.write_text(json.dumps(content))


def _without_weights(model: Path) -> None:
    (model / "model.safetensors").unlink()


def _cut_short(model: Path) -> None:
    weights = model / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])


def _set(model: Path, **values: int) -> None:
    config = model / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **values}))


def _refused(*extra: str, words: str) -> Callable[[EngineUnderTest, See], None]:
    def play(engine: EngineUnderTest, see: See) -> None:
        _ends(engine.start_node(0, nnodes=1, extra=extra), see, words)

    return play


def _flags_refused(engine: EngineUnderTest, see: See) -> None:
    wrong = {
        "gone": (("--cuda-graph-max-bs", "32"), r"ambiguous option: --cuda-graph-max-bs could match"),
        "unknown": (("--enable-flashinfer-mla",), r"unrecognized arguments: --enable-flashinfer-mla"),
        "number": (("--dist-timeout", "soon"), r"argument --dist-timeout: invalid int value: 'soon'"),
        "choice": (("--attention-backend", "nonsense"), r"argument --attention-backend: invalid choice: 'nonsense'"),
        "size": (("--max-total-tokens", "8x"), r"argument --max-total-tokens: Invalid integer value: '8x'"),
    }
    nodes = {name: (engine.start_node(0, nnodes=1, extra=extra), words) for name, (extra, words) in wrong.items()}
    for name, (node, words) in nodes.items():
        see(name, f"{node.exit_code()}, {node.says(words)}, {node.cause()}")


def _alone(engine: EngineUnderTest, see: See) -> None:
    secrets = engine.folder / "secrets.yml"
    secrets.write_text('api-key: "sesame"\n')
    extra = ("--enable-metrics", "--config", str(secrets), "--max-total-tokens", "3k", "--served-model-name", "tiny")
    (node,) = engine.start(nnodes=1, extra=extra)
    engine.ready()
    see("titles", node.titles())
    see("prefix", node.says(r"(?m)^\[[-\d]+ [:\d]+\] Load weight begin\.") and not node.says(r" TP0\] "))
    see("phases", node.phases())
    see("open", node.statuses("/health", "/health_generate", "/ready", "/metrics"))
    see("closed", node.statuses("/v1/models", "/server_info", "/flush_cache", "/ping"))
    see("with-key", ", ".join(node.status(path, key="sesame") for path in ("/v1/models", "/server_info")))
    see("key-in-title", "sesame" in title(node.pid))
    see("wrong-key", node.status("/v1/models", key="guess"))
    see("served-name", json.loads(node.ask("/v1/models", key="sesame")[1])["data"][0]["id"])
    see("other-name", named(*node.ask("/v1/completions", {"model": "nobody", "prompt": "a"}, key="sesame")))
    see("tokens", json.loads(node.ask("/server_info", key="sesame")[1])["max_total_num_tokens"])
    metrics = node.ask("/metrics")[1].decode()
    see("metrics", all(f"sglang:{name}{{" in metrics for name in ("num_running_reqs", "gen_throughput")))
    node.signal(signal.SIGTERM)
    see("code", node.exit_code())
    see("left", node.left_behind())


STARTS = (
    Scenario(name="nobody-comes", play=_nobody_comes),
    Scenario(name="no-leader", play=_no_leader),
    Scenario(name="rendezvous-taken", play=_rendezvous_taken),
    Scenario(name="http-taken", play=_http_taken, pace=0.01),
    Scenario(name="http-taken-by-an-engine", play=_http_taken_by_an_engine),
    Scenario(name="rank-killed-early", play=_rank_killed_early),
    Scenario(name="told-while-loading", play=_told_while_loading),
    Scenario(name="model-missing", runs="turns", play=_model_missing),
    Scenario(
        name="config-missing",
        play=_with_model(r"ValueError: Unrecognized model in .* Should have a `model_type` key", _without_config),
    ),
    Scenario(name="shard-missing", play=_with_model(r"references 1 shard file\(s\) missing", _without_shard)),
    Scenario(
        name="weights-missing",
        play=_with_model(r"RuntimeError: Cannot find any model weights with `", _without_weights),
    ),
    Scenario(name="shard-cut-short", play=_with_model(r"SafetensorError", _cut_short)),
    Scenario(name="heads-not-divisible", play=_heads_not_divisible),
    Scenario(
        name="nodes-not-divisible",
        play=_refused("--nnodes", "2", "--tp-size", "3", words=r"tp_size must be divisible by number of nodes"),
    ),
    Scenario(name="flags-refused", play=_flags_refused),
    Scenario(name="alone", play=_alone),
)
