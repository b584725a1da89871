"""Runs in an engine's own environment: one rank's part of a model at each degree, while the other ranks are torch's
fake process group, and tensors are on the device `meta`.

argv of `main`: a JSON file of rows [folder with a config.json, tensor parallel degree]; the output file, with '' for
each row that the engine takes and its own words for each that it refuses.
"""

# mypy: ignore-errors

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore


def nobody_answers(shm_broadcast):
    """Groups of ranks that do not exist. shm_broadcast: the engine's module"""
    grouped = dist.new_group
    dist.new_group = lambda ranks=None, *_, **__: grouped(ranks, backend="fake")
    shm_broadcast.MessageQueue.create_from_process_group = staticmethod(lambda *_, **__: None)


def main(start, make, parallel_state):
    """start(folder, tensor): whatever `make` takes, in order; its errors are no refusals. make: the engine's own
    classes of the model. parallel_state: the engine's module"""

    def refusal(folder, tensor):
        dist.init_process_group(backend="fake", rank=0, world_size=tensor, store=FakeStore())
        started = start(folder, tensor)
        try:
            make(*started)
        except (ValueError, AssertionError) as refused:
            return f"{type(refused).__name__}: {refused}"
        finally:
            parallel_state.destroy_model_parallel()
            parallel_state.destroy_distributed_environment()
        return ""

    rows = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps([refusal(*row) for row in rows]))
