"""Whether a memory fraction that was asked for leaves an engine what it needs beside weights and KV cache. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.finding import Finding
from orchestrator.model.plan import Memory
from orchestrator.planning.memory import Flags
from orchestrator.planning.needs import fraction_for
from orchestrator.protocol.severity import Severity

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
    """Too little by what was measured of such a rank, else beside the engine's own fraction.

    own: the budget with that; None where it has no room for a KV cache
    """
    if own is None or asked.reserve is None or own.reserve is None or asked.static_fraction is None:
        return
    if asked.needed is None:
        wanted, enough, fraction = own.reserve, _LEAST * own.reserve, own.static_fraction
    else:
        wanted, enough, fraction = asked.needed, asked.needed, fraction_for(asked, asked.needed)
    if asked.reserve >= enough or fraction is None:
        return
    lines = (*asked.explanation, *own.explanation)
    evidence = dict.fromkeys(line for line in lines if line.startswith(("reserved for", "needed of the reserve")))
    yield Finding(
        id=ID,
        severity=Severity.SLOW,
        node="",
        title=f"gang {gang}: a memory fraction of {asked.static_fraction:g} leaves {asked.reserve / _GIB:.2f} GiB for"
        f" graphs and activations, of {wanted / _GIB:.2f} wanted",
        evidence=tuple(evidence),
        effect="graphs are captured for smaller batches or not at all, and a long prompt may end the gang with CUDA out"
        " of memory",
        fix=f"leave {' or '.join(FRACTIONS)} out, or give at most {fraction:g}",
    )
