"""Draws the README's pictures: the report's drawing of the articles' node, and `status` of a gang that serves.

usage: .venv/bin/python scripts/picture.py    (writes docs/wiring.svg and docs/status.svg)
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from orchestrator.doctor.commands.examples import example_folder  # noqa: E402
from orchestrator.doctor.steps.doctor_report import page_of, report_html  # noqa: E402
from orchestrator.doctor.steps.recordings import examine_given, given  # noqa: E402
from orchestrator.gang.commands.gangs import gang_block  # noqa: E402
from orchestrator.gang.view import GangView, NodeView  # noqa: E402
from orchestrator.loading.resources import templates  # noqa: E402
from orchestrator.model.gang_state import GangState, NodeState  # noqa: E402
from orchestrator.protocol.report import RankReport, RankState  # noqa: E402

WIDTH = 100
HELD = 37 << 30
"""Bytes of GPU memory that the lab's stand-in engine claims for each rank."""


def wiring() -> str:
    """The drawing of the articles' node, out of the page of `doctor --example articles --report`."""
    page = report_html(page_of(examine_given(given([example_folder("articles")]))))
    drawings = re.findall(r'<svg class="inside".*?</svg>', page, re.DOTALL)
    head, _, body = drawings[0].partition(">")
    width, height = re.search(r'viewBox="0 0 (\d+) (\d+)"', head).groups()  # type: ignore[union-attr]
    light = re.sub(r"@media[^{]*\{(?:[^{}]*\{[^{}]*\})*[^{}]*\}", "", templates("page.css", "node_drawing.css"))
    paper = f'<rect width="{width}" height="{height}" fill="#ffffff" stroke="none"/>'
    lines = f'{head} xmlns="http://www.w3.org/2000/svg">\n<style>{light}</style>\n{paper}{body}\n'.splitlines()
    return "\n".join(line.rstrip() for line in lines if line.strip()) + "\n"


def status() -> str:
    """What `status` prints of the reference gang, as a terminal."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), markup=False, highlight=False, force_terminal=True)
    console.print("$ l40s-deploy status", style="bold")
    for block in gang_block(_gang()):
        console.print(block)
    picture = console.export_svg(title="l40s-deploy", unique_id="status")
    # rich asks a font server for its typeface; a picture in a repository needs no network
    return re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)


def _gang() -> GangView:
    nodes = tuple(
        NodeView(name=f"node{rank}", node_rank=rank, state=NodeState.READY, alive=True, ranks=_ranks(8 * rank))
        for rank in range(4)
    )
    return GangView(
        name="gang0",
        state=GangState.READY,
        model="DeepSeek-V3-0324-Block64x64",
        stack="sglang-0.5.23",
        service_url="http://10.0.0.10:8000",
        service_healthy=True,
        nodes=nodes,
    )


def _ranks(first: int) -> tuple[RankReport, ...]:
    return tuple(
        RankReport(tp_rank=first + gpu, gpu=gpu, state=RankState.ALIVE, gpu_memory_bytes=HELD) for gpu in range(8)
    )


PICTURES = {"docs/wiring.svg": wiring, "docs/status.svg": status}


if __name__ == "__main__":
    for place, draw in PICTURES.items():
        (ROOT / place).write_text(draw(), "utf-8")
