"""What counts as a GPU in addition to NVIDIA's: for recordings of machines with other accelerators."""

from __future__ import annotations

import argparse
import re

from orchestrator.model.errors import InputError
from orchestrator.topology.build import AcceleratorClass, BuildOptions


def add_accelerators(parser: argparse.ArgumentParser) -> None:
    """--accelerator VENDOR:CLASS, as often as needed."""
    parser.add_argument(
        "--accelerator",
        action="append",
        default=[],
        metavar="VENDOR:CLASS",
        help="also treat PCI devices of this vendor and class (hex) as GPUs, for example 1bcf:0b4000",
    )


def build_options(args: argparse.Namespace) -> BuildOptions:
    """What --accelerator adds to NVIDIA's GPUs. Raises InputError for anything but two hex numbers."""
    return BuildOptions(accelerators=(*BuildOptions().accelerators, *map(_accelerator, args.accelerator)))


def _accelerator(text: str) -> AcceleratorClass:
    """`VENDOR:CLASS` as `lspci -n` prints them, the class with 4 or 6 digits."""
    found = re.fullmatch(r"(?:0x)?([0-9a-fA-F]{4}):(?:0x)?([0-9a-fA-F]{4})(?:[0-9a-fA-F]{2})?", text)
    if found is None:
        raise InputError(
            f"found {text!r}, wanted VENDOR:CLASS in hex", where="--accelerator", fix="--accelerator 1bcf:0b4000"
        )
    return AcceleratorClass(int(found[2], 16), int(found[1], 16))
