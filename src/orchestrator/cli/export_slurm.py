"""`l40s-deploy export slurm`: a gang as an sbatch script."""

from __future__ import annotations

import argparse

from orchestrator.cli.exported_plan import MODEL, add_plan_options, planned, show
from orchestrator.cli.screen import Screen
from orchestrator.model.inventory import Inventory
from orchestrator.workflows.plan.exports import slurm

NAME = "slurm"
SUMMARY = "print a gang as an sbatch script that checks every node first"
EXAMPLE = f"l40s-deploy export slurm {MODEL} > gang0.sbatch && sbatch gang0.sbatch"


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this kind."""
    add_plan_options(parser)


def run(args: argparse.Namespace, inventory: Inventory, screen: Screen) -> int:
    """Print it."""
    return show(slurm(planned(args, inventory)), args, screen)
