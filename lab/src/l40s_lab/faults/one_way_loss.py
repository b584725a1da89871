"""A cable that loses packets in one direction."""

from __future__ import annotations

from l40s_lab.faults import words
from l40s_lab.faults.registry import Fault, Undo, Words
from l40s_lab.node.living import LivingNode

FAULT = Fault(
    name="one-way-loss",
    argument="[PERCENT [DEV]]",
    summary="PERCENT (default: 30) percent of all packets to DEV (default: the TCP side) are lost, but none from it",
    shows="connections that are slow or break while the link is up",
    levels=(1, 2),
    outside=True,
)
_ALL = 100


def strike(node: LivingNode, asked: Words) -> Undo:
    """In the lab's network: the node itself can't see the reason."""
    words.at_most(asked, 2)
    percent = words.number(asked, 0, what="percent", lowest=1, highest=_ALL, default=30)
    port = words.any_port(node.machine, asked[1:])
    link = node.link(port.name)
    which = f"numgen random mod 100 < {percent} " if percent < _ALL else ""
    drop = f'oifname "{link}" {which}drop;'
    hooks = "".join(
        f"chain {hook} {{ type filter hook {hook} priority 0;\n {drop}\n }}\n" for hook in ("forward", "output")
    )
    node.nft_outside(f"table bridge {_table(link)} {{\n{hooks}}}\n")
    return {"link": link}


def heal(node: LivingNode, undo: Undo) -> None:
    """The table has no other contents."""
    node.nft_outside(f"delete table bridge {_table(str(undo['link']))}\n")


def _table(link: str) -> str:
    return f"loss_{link}"
