"""What the controller stages on a node: one gang's plan as the agent's request (docs/agent.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from orchestrator.engines.engine import STUB_FILE
from orchestrator.engines.registry import dialect
from orchestrator.gang.pace import allowed_s
from orchestrator.loading.resources import Library, template
from orchestrator.model.errors import FindingsError, InputError
from orchestrator.model.inventory import GangSpec, NodeSpec
from orchestrator.model.plan import GangPlan, NodePlan
from orchestrator.model.secret_text import fingerprint, is_secret, shown_flags
from orchestrator.planning.steps.plan import api_key
from orchestrator.protocol.staging import (
    Asked,
    CanaryOrder,
    ContainerOrder,
    Endpoint,
    Ports,
    SecretFile,
    Secrets,
    ServiceOrder,
    StagingRequest,
    launch_digest,
    repair,
)


def staging_requests(
    gang: GangSpec,
    plan: GangPlan,
    scripts: dict[str, str],
    *,
    plan_id: str,
    run_id: str,
    key: str,
    hung_after_s: float | None = None,
    asked: Asked | None = None,
) -> dict[str, StagingRequest]:
    """By node name. key: the run's secret for the leader link, in hex. hung_after_s: None for
    what the engine's dialect says. asked: what the plan was made for."""
    specs = {node.name: node for node in gang.nodes}
    engine, allowed = dialect(plan.dialect).engine(plan.engine_version), allowed_s(plan.model_bytes)
    packages = _packages(plan.stack)
    wanted = plan.canary
    canary = CanaryOrder(prompt=wanted.prompt, max_tokens=wanted.max_tokens, expect_any=wanted.expect_any)
    return {
        node.name: StagingRequest(
            state_dir=specs[node.name].state_dir,
            gang=plan.name,
            run_id=run_id,
            node=node.name,
            node_rank=node.node_rank,
            nnodes=len(plan.nodes),
            members=tuple(member.name for member in plan.nodes),
            addresses=_addresses(gang, plan),
            plan_id=plan_id,
            asked=asked,
            model=plan.model,
            stack=plan.stack,
            device=plan.device,
            layout=plan.layout,
            graph_batch=node.graph_batch,
            network=node.network,
            engine_user=specs[node.name].engine_user,
            argv=node.argv,
            command=node.command,
            flags=node.flags,
            env=dict(node.env),
            gpus=node.gpus,
            gpu_uuids=node.gpu_uuids,
            tp_ranks=node.tp_ranks,
            working_dir=node.working_dir,
            model_path=node.model_path,
            venv_python="" if node.container else node.command[0],
            packages={} if node.container else packages,  # an image is known by its digest
            container=_container(node),
            limits=_limits(specs[node.name], node),
            ports=Ports(check_free=_ports(specs[node.name], node, plan)),
            leader=Endpoint(address=plan.agent_address, port=plan.agent_port),
            key=key,
            lease_s=plan.lease_s,
            service=ServiceOrder(url=plan.service_url) if node.node_rank == 0 else None,
            canary=canary if node.node_rank == 0 else None,
            watch=replace(engine.watch(dict(node.env)), allowed_s=allowed).hung_after(hung_after_s),
            api_key=plan.api_key or None,
            secrets=_secrets(gang, plan, node),
            launch_script=scripts[node.name],
            launch_sha256=launch_digest(scripts[node.name]),
        )
        for node in plan.nodes
    }


def other_checkpoint(
    requests: Mapping[str, StagingRequest], told: Mapping[str, Mapping[str, str]]
) -> FindingsError | None:
    """Why a gang can't start where a node has another checkpoint than most of the others, or, where no copy has a
    majority, than the leader; None where all are the same. told: digests by file name, by node, of the files that each
    could read."""
    for name in dict.fromkeys(name for files in told.values() for name in files):
        digests = {node: told[node][name] for node in requests if name in told.get(node, {})}
        usual = max(digests.values(), key=list(digests.values()).count)
        good = next(node for node, digest in digests.items() if digest == usual)
        odd = [node for node, digest in digests.items() if digest != usual]
        if odd:
            folder = Path(requests[odd[0]].model_path)
            return FindingsError(
                f"{name} is not the one that {good} has: the nodes hold different checkpoints"
                + (f" ({', '.join(odd[1:])} too)" if odd[1:] else ""),
                where=f"{odd[0]}: {folder}",
                fix=repair(requests[good].model_path, odd[0], good),
            )
    return None


def _addresses(gang: GangSpec, plan: GangPlan) -> dict[str, str]:
    """Node names by address: the engine's errors name a peer by its address."""
    reached = {node.reach.host: node.name for node in gang.nodes}
    return {**reached, **{node.address: node.name for node in plan.nodes}}


def _container(node: NodePlan) -> ContainerOrder | None:
    return ContainerOrder(program=node.container.program, image=node.container.image) if node.container else None


def _secrets(gang: GangSpec, plan: GangPlan, node: NodePlan) -> Secrets:
    """What the node keeps in files of its own (docs/agent.md); the key goes to the leader alone, who serves."""
    redact = tuple(value for name, value in node.env if is_secret(name, value))
    hidden = zip(node.flags, shown_flags(node.flags), strict=True)
    redact += tuple(value for flag, seen in hidden for value, word in zip(flag, seen, strict=True) if value != word)
    if not plan.api_key or node.node_rank != 0:
        return Secrets(redact=redact)
    key = api_key(gang)
    if fingerprint(key) != plan.api_key:
        raise InputError(
            "the API key changed since the plan was made", where=f"gang {gang.name}", fix="run the command again"
        )
    named = dialect(plan.dialect).engine(plan.engine_version).secret_files(key, template(STUB_FILE))
    return Secrets(
        files=tuple(SecretFile(name=name, text=text) for name, text in named),
        redact=(key, *redact),
        authorization=f"Bearer {key}",
    )


def _packages(name: str) -> dict[str, str]:
    """Versions that the node must find installed; a stack that was made for a plan and is gone can't be judged."""
    try:
        stack = Library.stack(name)
    except InputError:
        return {}
    engine = dialect(stack.dialect).engine(stack.engine_version)
    versions = {engine.package: stack.engine_version, "torch": stack.torch_version}
    return {package: version for package, version in versions.items() if version}


def _ports(spec: NodeSpec, node: NodePlan, plan: GangPlan) -> tuple[Endpoint, ...]:
    """Where this node will listen: HTTP everywhere, rendezvous on the leader. The agent binds its own port itself."""
    http = Endpoint(address="" if spec.http_host == "0.0.0.0" else spec.http_host, port=plan.http_port)  # noqa: S104
    rendezvous = urlsplit(f"//{plan.dist_init}")
    if node.node_rank == 0 and rendezvous.hostname and rendezvous.port and len(plan.nodes) > 1:
        return http, Endpoint(address=rendezvous.hostname, port=rendezvous.port)
    return (http,)


def _limits(spec: NodeSpec, node: NodePlan) -> dict[str, int]:
    """RDMA registers memory without end; -1 is unlimited. A machine shown below another root has limits of its own."""
    if node.container is not None:
        return {}  # its daemon sets them
    return {"memlock": -1} if node.network.rdma and spec.fs_root == "/" else {}
