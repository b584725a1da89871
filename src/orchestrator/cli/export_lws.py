"""`l40s-deploy export lws`: a gang as a LeaderWorkerSet of Kubernetes."""

from __future__ import annotations

import argparse

from orchestrator.cli.exported_plan import MODEL, add_plan_options, planned, show
from orchestrator.cli.screen import Screen
from orchestrator.model.inventory import Inventory
from orchestrator.planning.lws import Cluster
from orchestrator.workflows.plan.exports import leader_worker_set

NAME = "lws"
SUMMARY = "print a gang as a LeaderWorkerSet of Kubernetes"
EXAMPLE = f"l40s-deploy export lws {MODEL} --image hub.example/sglang:0.4.4 --rdma-resource rdma/hca > lws.yml"


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this kind."""
    add_plan_options(parser)
    parser.add_argument("--image", default="", metavar="IMAGE", help="holds the engine (default: the stack's)")
    parser.add_argument("--namespace", default="default", metavar="NAME", help="of the objects (default)")
    parser.add_argument(
        "--rdma-resource",
        default="",
        metavar="NAME",
        help="what the RDMA device plugin offers (default: pods are privileged)",
    )
    parser.add_argument("--cpus", type=int, default=0, metavar="N", help="exclusive CPUs of each pod (default: none)")
    parser.add_argument("--secret", default="", metavar="NAME", help="Secret with the plan's secret variables")


def run(args: argparse.Namespace, inventory: Inventory, screen: Screen) -> int:
    """Print it."""
    cluster = Cluster(
        image=args.image,
        namespace=args.namespace,
        rdma_resource=args.rdma_resource,
        cpus=args.cpus,
        secret=args.secret,
    )
    return show(leader_worker_set(planned(args, inventory), cluster), args, screen)
