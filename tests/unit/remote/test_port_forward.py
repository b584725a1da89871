"""The arguments for OpenSSH."""

from __future__ import annotations

from orchestrator.model.inventory import NodeSpec, Reach
from orchestrator.remote.port_forward import ssh_command


def test_the_level_that_tells_the_port_stands_before_the_inventorys_options() -> None:
    reach = Reach(host="a", connection="ssh", ssh_options=(("LogLevel", "ERROR"), ("configfile", "/c")))
    words = ssh_command(NodeSpec(name="a", gang="g", node_rank=0, reach=reach))
    assert words[:3] == ["ssh", "-F", "/c"]
    assert words.index("LogLevel=INFO") < words.index("LogLevel=ERROR")
