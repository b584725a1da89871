"""A gang as a LeaderWorkerSet of Kubernetes (leaderworkerset.x-k8s.io/v1). Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.engines.registry import dialect
from orchestrator.model.plan import GangPlan, NodePlan
from orchestrator.planning.redaction import HIDDEN

API_VERSION = "leaderworkerset.x-k8s.io/v1"
_OF_THE_HOST = ("PATH", "HOME", "CUDA_VISIBLE_DEVICES")
"""Variables that name the host's places and GPU numbers; a container has its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What only the cluster's operator knows. image: holds the engine; rdma_resource: what the RDMA device plugin
    offers, '' for a container that is privileged instead; cpus: exclusive ones of each pod, 0 for no claim; secret:
    name of the Secret that holds the plan's secret variables by their names."""

    image: str
    namespace: str = "default"
    rdma_resource: str = ""
    cpus: int = 0
    secret: str = ""
    shm: str = "64Gi"


def lws(gang: GangPlan, cluster: Cluster) -> dict[str, Any]:
    """The object, ready to be written as YAML. gang: as planning.redaction shows it.

    Every pod starts the same shell words: which node it is decides what differs, for a worker may be put on any of
    the gang's nodes. The rendezvous and the ranks' numbers are those that the controller gives.
    """
    leader = gang.nodes[0]
    pod = {"metadata": {"labels": {"app": dns_name(gang.name)}}, "spec": _pod(gang, leader, cluster)}
    worker = {"metadata": pod["metadata"], "spec": _pod(gang, leader, cluster)}
    engine = dialect(gang.dialect).engine(gang.engine_version)
    serving = pod["spec"]["containers"][0]
    serving["ports"] = [{"name": "http", "containerPort": gang.http_port}]
    serving["readinessProbe"] = {
        "httpGet": {"path": engine.http["alive"], "port": gang.http_port},
        "initialDelaySeconds": 60, "periodSeconds": 10, "timeoutSeconds": 25,
    }  # fmt: skip
    return {
        "apiVersion": API_VERSION,
        "kind": "LeaderWorkerSet",
        "metadata": {"name": dns_name(gang.name), "namespace": cluster.namespace},
        "spec": {
            "replicas": 1,
            "startupPolicy": "LeaderCreated",
            "leaderWorkerTemplate": {
                "size": gang.layout.nnodes,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": pod,
                "workerTemplate": worker,
            },
        },
    }


def _pod(gang: GangPlan, leader: NodePlan, cluster: Cluster) -> dict[str, Any]:
    rdma = gang.layout.nnodes > 1 and "NCCL_IB_DISABLE" not in dict(leader.env)
    gpus = gang.layout.gpus_per_node
    limits: dict[str, str] = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    if rdma and cluster.rdma_resource:
        limits[cluster.rdma_resource] = "1"
    if cluster.cpus:
        limits |= {"cpu": str(cluster.cpus), "memory": "256Gi"}
    security: dict[str, Any] = {"capabilities": {"add": ["IPC_LOCK"]}} if rdma else {}
    if rdma and not cluster.rdma_resource:
        security["privileged"] = True
    container: dict[str, Any] = {
        "name": "engine",
        "image": cluster.image,
        "command": ["/bin/sh", "-c", _script(gang, rdma=rdma)],
        "env": [
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            *(_variable(name, value, cluster) for name, value in _same(gang.nodes)),
        ],
        "resources": {"limits": limits},
        "securityContext": security,
        "volumeMounts": [
            {"name": "model", "mountPath": leader.model_path, "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - a mount's place
        ],
    }
    return {
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In",
                                   "values": [node.name for node in gang.nodes]}]}
        ]}}},
        "containers": [container],
        "volumes": [
            {"name": "model", "hostPath": {"path": leader.model_path, "type": "Directory"}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": cluster.shm}},
        ],
    }  # fmt: skip


def _variable(name: str, value: str, cluster: Cluster) -> dict[str, Any]:
    if value != HIDDEN:
        return {"name": name, "value": value.replace("$(", "$$(")}
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": cluster.secret or "l40s-secrets", "key": name}}}


def _same(nodes: Sequence[NodePlan]) -> list[tuple[str, str]]:
    """What all nodes have."""
    others = [dict(node.env) for node in nodes[1:]]
    return [
        (name, value)
        for name, value in nodes[0].env
        if name not in _OF_THE_HOST and all(env.get(name) == value for env in others)
    ]


def _script(gang: GangPlan, *, rdma: bool) -> str:
    """Shell words: what differs between the nodes, then the engine. Kubernetes puts values in place of $(NAME)."""
    same = {name for name, _ in _same(gang.nodes)}
    lines = ["set -eu", *(["ulimit -l unlimited"] if rdma else [])]
    cases = []
    for node in gang.nodes:
        own = [(name, value) for name, value in node.env if name not in same and name not in _OF_THE_HOST]
        words = " ".join(f"{name}={shlex.quote(value)}" for name, value in own if value != HIDDEN)
        cases.append(f"{shlex.quote(node.name)}) {f'export {words}' if words else ':'} ;;")
    other = '*) echo "$NODE_NAME is not a node of the plan" >&2; exit 1 ;;'
    lines += ['case "$NODE_NAME" in', *cases, other, "esac", f"exec {_command(gang)}"]
    return "\n".join(lines)


def _command(gang: GangPlan) -> str:
    """The leader's words, with the controller's rendezvous and rank (docs/reference/labels-annotations-and-environment-
    variables of LWS)."""
    port = gang.dist_init.rpartition(":")[2]
    given = {"--dist-init-addr": f'"$LWS_LEADER_ADDRESS:{port}"', "--nnodes": '"$LWS_GROUP_SIZE"',
             "--node-rank": '"$LWS_WORKER_INDEX"'}  # fmt: skip
    words: list[str] = []
    argv = ("python3", *gang.nodes[0].argv[1:])
    for before, word in zip(("", *argv), argv, strict=False):
        words.append(given.get(before) or shlex.quote(word))
    return " ".join(words)


def dns_name(name: str) -> str:
    """A name as Kubernetes takes it (RFC 1123 label)."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:50] or "gang"
