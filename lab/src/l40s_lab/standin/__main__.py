"""`python3 -m standin --plays 0.5.23 [--flags FILE] -- <sglang arguments>`: a node of an engine without a model.

A launcher that stands for `python3 -m sglang.launch_server ARGS` ends in the same place: it puts the directory that
holds this package on PYTHONPATH and runs the line above with ARGS. Knobs are environment variables:

STANDIN_SPEED       multiplies the length of every phase (1: about 7 s from launch to ready)
STANDIN_STEP_MS     least milliseconds for one token (0; the reference cluster needs about 20)
STANDIN_SAYS_MODEL  every answer ends with the name of the model that is served
STANDIN_PEER_DEATH  follow: ranks end when a peer's connection ends; otherwise they take no notice
STANDIN_DEATHS      cuda: ranks end as processes with CUDA do, and so do their peers; see cuda_death.py
STANDIN_FAIL        failures on demand, see failures.py
STANDIN_FLAGS       file with the version's flags, or a directory of such files
STANDIN_GPU_MIB     memory of a GPU (46068, an L40S)
STANDIN_LOAD_BARRIER_S, STANDIN_ORPHAN_S, SGLANG_HEALTH_CHECK_TIMEOUT: see settings.py
L40S_LAB_GPU_CLAIMS directory of the GPU memory claims (/run/l40s-lab/gpu-claims)
"""

from __future__ import annotations

import argparse
import gc
import sys

from .config import FLAG, merged
from .flags import FlagListMissing, Given, build_parser, find_flag_list
from .launcher import launch
from .settings import read_settings
from .versions import PLAYED


def main(argv: list[str], version: str, flags: str | None = None) -> int:
    """Play this version with SGLang's own arguments; returns the exit status."""
    played = PLAYED[version]
    try:
        parser = build_parser(find_flag_list(played, flags))
    except FlagListMissing as error:
        sys.stderr.write(f"stand-in: {error}\n")
        return 2
    try:
        settings = read_settings(played, Given(parser, merged(argv) if FLAG in parser._option_string_actions else argv))
    except ValueError as error:
        sys.stderr.write(f"ValueError: {error}\n")
        return 1
    del parser
    gc.collect()
    gc.freeze()  # ranks are forks: memory in use now stays shared
    return launch(settings)


def _command_line() -> int:
    parser = argparse.ArgumentParser(prog="standin", description=__doc__, allow_abbrev=False)
    parser.add_argument("--plays", choices=sorted(PLAYED), required=True, help="the SGLang version to play")
    parser.add_argument("--flags", help="file with that version's flags")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="-- and SGLang's arguments")
    words = parser.parse_args()
    arguments = words.arguments[1:] if words.arguments[:1] == ["--"] else words.arguments
    return main(arguments, words.plays, words.flags)


if __name__ == "__main__":
    sys.exit(_command_line())
