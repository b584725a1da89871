"""A node whose firewall silently drops one TCP port."""

from __future__ import annotations

from l40s_lab.faults import words
from l40s_lab.faults.registry import Fault, Undo, Words
from l40s_lab.node.living import LivingNode

FAULT = Fault(
    name="firewall-port",
    argument="P",
    summary="the node's firewall silently drops incoming packets for TCP port P",
    shows="connections that time out, the node's own nft ruleset",
    levels=(1, 2),
)


def strike(node: LivingNode, asked: Words) -> Undo:
    """Like rules that an operator added."""
    words.at_most(asked, 1)
    port = words.number(asked, 0, what="a TCP port", lowest=1, highest=65535)
    chain = f"chain input {{ type filter hook input priority 0; policy accept;\n tcp dport {port} drop;\n }}"
    node.nft_here(f"table inet drop_{port} {{\n{chain}\n}}\n")
    return {"port": port}


def heal(node: LivingNode, undo: Undo) -> None:
    """The table has no other contents."""
    node.nft_here(f"delete table inet drop_{int(undo['port'])}\n")
