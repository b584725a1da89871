"""Shared by the faults of ranks and agents: the process that an argument names."""

from __future__ import annotations

from l40s_lab.faults import words
from l40s_lab.faults.registry import Words
from l40s_lab.node.living import LivingNode
from l40s_lab.processes import Identity
from orchestrator.model.errors import InputError

_MOST_RANKS = 4096


def rank(node: LivingNode, asked: Words) -> Identity:
    """The process of a TP rank on this node."""
    wanted = words.number(asked, 0, what="a TP rank", lowest=0, highest=_MOST_RANKS)
    ranks = node.ranks()
    if wanted not in ranks:
        runs = f"it runs {', '.join(map(str, sorted(ranks)))}" if ranks else "no rank runs there"
        raise InputError(f"TP rank {wanted} is not on {node.name}: {runs}", where="ARG", fix="l40s-deploy status")
    return ranks[wanted]
