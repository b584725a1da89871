"""Whether a memory fraction that was asked for leaves an engine what it needs beside weights and KV cache. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.plan import Memory
from orchestrator.planning.memory import Flags

ID = "MEMORY-RESERVE-SMALL"
FRACTIONS = ("--mem-fraction-static", "--gpu-memory-utilization")
"""Of SGLang and of vLLM, by their first spelling."""
_LEAST = 0.5
"""Of what the engine's own fraction reserves: a margin of ours, not measured. The engine's rule counts graphs and the
activations of a whole chunk, and a model may need less."""
_GIB = 1 << 30


def engines_own(flags: Flags) -> Flags:
    """The flags without a memory fraction: the engine then computes its own."""
    return {flag: values for flag, values in flags.items() if flag not in FRACTIONS}


def findings(gang: str, asked: Memory, own: Memory | None) -> Iterator[Finding]:
    """own: the budget with the engine's own fraction; None where that has no room for a KV cache."""
    if own is None or asked.reserve is None or own.reserve is None or asked.static_fraction is None:
        return
    if asked.reserve >= _LEAST * own.reserve:
        return
    left, wanted = asked.reserve / _GIB, own.reserve / _GIB
    yield Finding(
        id=ID,
        severity=Severity.SLOW,
        node="",
        title=f"gang {gang}: a memory fraction of {asked.static_fraction:g} leaves {left:.2f} GiB for graphs and"
        f" activations, of {wanted:.2f} wanted",
        evidence=tuple(line for one in (asked, own) for line in one.explanation if line.startswith("reserved for")),
        effect="graphs are captured for smaller batches or not at all, and a long prompt may end the gang with CUDA out"
        " of memory",
        fix=f"leave {' or '.join(FRACTIONS)} out, or give at most {own.static_fraction:g}",
    )
