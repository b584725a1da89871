"""Settings in the inventory's l40s_env that take a transport from NCCL, with what each costs here."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import RAILS, Area
from orchestrator.rules.support.cluster import Cluster
from orchestrator.rules.support.registry import Rule
from orchestrator.rules.support.transport_cost import cost

RULE = Rule(
    id="NCCL-SETTINGS",
    title="l40s_env turns off one of NCCL's transports",
    explain=(
        "NCCL_P2P_DISABLE, NCCL_IB_DISABLE, NCCL_SHM_DISABLE and similar settings are often copied from machine to"
        " machine as workarounds. Each turns off a path that this machine may need; one that turns off nothing here is"
        " not reported. NCCL-FILES reports the same settings in nccl.conf. A unit's or a shell's NCCL_* have no"
        " effect: the launch script clears what the plan did not set."
    ),
    reads=("`l40s_env` of the inventory", "path types of GPUs and RDMA cards"),
    source="NCCL user guide, environment variables; templates/launch.sh.j2",
    weight=27,
    needs=(*RAILS, Area.NUMA),
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding per node and setting."""
    for node in cluster.nodes:
        for name, value in node.spec.overrides.env:
            price = cost(cluster, node, name, value)
            if price:
                yield Finding(
                    id=RULE.id,
                    severity=Severity.SLOW,
                    node=node.name,
                    devices=(name,),
                    title=f"l40s_env sets {name}={value}",
                    evidence=(f"inventory: {node.name}: l40s_env.{name} = {value}",),
                    effect=price,
                    fix=f"remove {name} from l40s_env, then run `l40s-deploy doctor` to find the problem that it"
                    " worked around",
                )
