"""Which weight files a node's ranks read: all of a checkpoint, or those with layers of their pipeline stages."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

from orchestrator.node import below
from orchestrator.node.agent.weights import INDEX

_LAYER = re.compile(r"(?:^|\.)layers\.(\d{1,6})\.")


def of_checkpoint(folder: str, first: int = 0, last: int = 0, stages: int = 1) -> list[str]:
    """Paths by name, of the index where there is one, else of all .safetensors files; none where nothing can be read.

    first, last: pipeline stages of the node's ranks. A file with a tensor of no layer (embedding, head, norms) is
    everybody's.
    """
    try:
        with open(f"{folder}/{INDEX}", "rb") as file:
            weight_map = json.load(file)["weight_map"]
        held = _layers(folder, first, last, stages)
        names = sorted({below.plain_path(name, hidden=True) for name in _wanted(weight_map, held)})
    except FileNotFoundError:
        names = sorted(name for name in _listed(folder) if name.endswith(".safetensors"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []
    return [f"{folder}/{name}" for name in names]


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _wanted(weight_map: Mapping[str, str], held: range | None) -> list[str]:
    return [name for tensor, name in weight_map.items() if held is None or _is_in(tensor, held)]


def _is_in(tensor: str, held: range) -> bool:
    found = _LAYER.search(tensor)
    return found is None or int(found[1]) in held


def _layers(folder: str, first: int, last: int, stages: int) -> range | None:
    """The layers of some stages; None for all. The last stages have one more where they can't be equal (sglang 0.5.23,
    distributed/utils.py: get_pp_indices)."""
    if stages <= 1:
        return None
    with open(f"{folder}/config.json", "rb") as file:
        config = json.load(file)
    text = config.get("text_config")
    count = int((text if isinstance(text, dict) else config)["num_hidden_layers"])
    each, more = divmod(count, stages)

    def begin(stage: int) -> int:
        return stage * each + max(0, stage - (stages - more))

    return range(begin(first), begin(last + 1))
