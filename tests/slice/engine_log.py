"""What SGLang 0.5 says in its log of memory, graphs and steps. Pure: a log's text in, figures out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

from tests.gpu.tuned import LINES

_FIGURES = {
    "before_weights_gib": r"Load weight begin\. avail mem=([\d.]+)",
    "weights_gib": r"Load weight end\..*?mem usage=([\d.]+)",
    "loading_s": r"Load weight end\. elapsed=([\d.]+)",
    "kv_gib": r"KV size: ([\d.]+)",
    "kv_tokens": r"#tokens: (\d+)",
    "after_pool_gib": r"Memory pool end\. avail mem=([\d.]+)",
    "graphs_gib": r"Capture \w+ decode CUDA graph end\..*?mem usage=([\d.]+)",
    "graphs_s": r"Capture \w+ decode CUDA graph end\..*?elapsed=([\d.]+)",
    "prefill_graphs_gib": r"Capture \w+ prefill CUDA graph end\..*?mem usage=([\d.]+)",
    "prefill_graphs_s": r"Capture \w+ prefill CUDA graph end\..*?elapsed=([\d.]+)",
    "free_when_ready_gib": r"max_total_num_tokens=.*?available_gpu_mem=([\d.]+)",
}
"""Each rank's. The engine writes GB and means GiB (get_available_gpu_memory divides by 1 << 30)."""
_OF_ALL = {
    "fraction": r"mem_fraction_static(?:=|': )([\d.]+)",
    "chunk": r"chunked_prefill_size(?:=|': )(\d+)",
    "max_running": r"max_running_requests(?:=|': )(\d+)",
}
_STEP = re.compile(r"Decode batch.*?#running-req: (\d+).*?cuda graph: (\w+).*?gen throughput \(token/s\): ([\d.]+)")
_OUT_OF_MEMORY = re.compile(r"(?:torch\.)?OutOfMemoryError.*|.*CUDA out of memory.*")


@dataclass(frozen=True)
class Steps:
    """Decode steps of one batch size. graph: as the engine calls it; lines: how many log lines say so"""

    requests: int
    graph: bool
    lines: int
    tok_s: float

    @property
    def step_ms(self) -> float:
        """Of one step: each request gets a token."""
        return 1e3 * self.requests / self.tok_s

    def figures(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "graph": self.graph,
            "lines": self.lines,
            "tok_s": self.tok_s,
            "step_ms": round(self.step_ms, 2),
        }


def memory(logs: Iterable[str]) -> dict[str, Any]:
    """Of all nodes' logs: for each figure what every rank says, in the order of the logs."""
    texts = list(logs)
    found: dict[str, Any] = {}
    for name, pattern in _FIGURES.items():
        numbers = [float(number) for text in texts for number in re.findall(pattern, text)]
        if numbers:
            found[name] = [int(number) for number in numbers] if name == "kv_tokens" else numbers
    for name, pattern in _OF_ALL.items():
        if numbers := [float(number) for text in texts for number in re.findall(pattern, text)]:
            found[name] = numbers[-1]
    return found


def steps(text: str) -> list[Steps]:
    """The leader's decode steps by batch size; the first line of a batch also counts its prefill, so it is left out."""
    by_size: dict[tuple[int, bool], list[float]] = {}
    for requests, graph, tok_s in _STEP.findall(text):
        if float(tok_s) > 0:
            by_size.setdefault((int(requests), graph == "True"), []).append(float(tok_s))
    return [
        Steps(requests, graph, len(speeds) - 1, round(median(speeds[1:]), 1))
        for (requests, graph), speeds in sorted(by_size.items())
        if len(speeds) > 1
    ]


def out_of_memory(logs: Iterable[str]) -> list[str]:
    """Lines that say so."""
    return [line[:300] for text in logs for line in _OUT_OF_MEMORY.findall(text)][:3]


def tuned_files(logs: Iterable[str]) -> int:
    """How many tuned files it says that it reads."""
    return len({line for text in logs for line in text.splitlines() if any(words in line for words in LINES)})
