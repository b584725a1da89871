"""Re-blocking on a node as the controller sees it: the node application as a separate process, over its lines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from orchestrator.checkpoint.steps.checkpoint import reblock_there
from orchestrator.model.inventory import NodeSpec, Reach
from orchestrator.protocol.jobs import Progress


def test_the_controller_hears_how_far_it_is_and_what_became_of_it(maker: Any, small: Any, tmp_path: Path) -> None:
    source = maker.write(tmp_path / "a", small)
    node = NodeSpec(
        name="node0",
        gang="gang0",
        node_rank=0,
        reach=Reach(host="localhost", connection="local", python=sys.executable),
    )
    heard: list[tuple[str, Progress]] = []
    done = reblock_there(
        node,
        str(source),
        str(tmp_path / "b"),
        block=64,
        with_proof=True,
        jobs=1,
        report=lambda doing, now: heard.append((doing, now)),
    )
    assert (done.old_block, done.new_block) == ((128, 128), (64, 64))
    assert done.written is not None and done.written.done == done.written.total > 0
    assert done.proof is not None and done.proof.tensors == len(maker.read(tmp_path / "b"))
    assert {doing for doing, _ in heard} == {"re-blocking", "proving"}
