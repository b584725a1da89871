"""How long a node, or the router, may take for what it is asked, in seconds. A node that takes longer is unreachable.

What a phase of an engine's start may take is the model's (`gang/pace.py`); what an operator waits for is an option.
"""

from __future__ import annotations

import re

ANSWER_S = 15.0
"""A verb that reads or writes a few files."""
BOOT_S = 5.0
"""For the boot's id: asked every two seconds of a node that may be down."""
EXCERPT_S = 60.0
"""A log may be 128 MB."""
PREREQUISITES_S = 20.0
LOOK_S = 45.0
"""For the whole probe of one node: NVML's deadline, that of the files, and the path to it."""
NVML_S = 15.0
"""Without persistence mode the driver starts all GPUs at the first question, which takes seconds."""
STAGE_S = 30.0
ARM_S = 90.0
"""The leader's checks and those of its members, GPUs' memory becoming free included (LEADERS_CHECKS_S of the agent)."""
GO_S = 15.0
KILL_S = 60.0
"""To end all at once."""
STOP_S = 180.0
"""To end in good order: above every dialect's drain and shutdown together."""
MARGIN_S = 10.0
"""By which a node's own deadline is shorter than ours, so that it answers why."""
NETTEST_S = 240.0
"""For a gang's ranks; the boxes of the steps make some 15 s of 4 nodes."""
RAILS_ROUND_S = 60.0
"""For a round of RDMA ports: all nodes end it before one begins the next, since a sender that is early would find the
port of a node that still waits for another one."""
TEST_BEFORE_GO_S = NETTEST_S + 3 * RAILS_ROUND_S + 30.0
"""For a gang's whole network test: its ranks, the rounds of its RDMA ports (MOST_ROUNDS of nettest/rails.py), and to
start both."""
KERNELS_S = 600.0
"""For all kernels of a plan on one GPU: the engine is imported, and each kernel is compiled, from cold caches."""
KERNEL_S = 180.0
"""For one of them: the first one imports the engine, perhaps from a cold disk."""
INSPECT_S = 300.0
"""For the headers of all shards; a cold network file system takes its time."""
SAME_ROOT_S = 30.0
LOGIN_S = 20.0
"""For what a node does between a key that was accepted and our command: PAM, start-up files, sudo."""
LOGIN_GLANCE_S = 10.0
"""A glance waits so long for a login's end, and says then that it waits for that."""
FIRST_LINE_S = 60.0
SILENT_S = 60.0
"""A node at work on a checkpoint tells twice a second how far it is."""
TUNED_S = 30.0
"""For the tuned configs that a node has."""
TUNE_S = 60.0
"""To install or remove tuned configs."""
TUNE_RUN_S = 6 * 3600.0
"""For the jobs that a node's tuners take at a time."""
DIAL_S = 9.0
"""For the paths from one node to all others, tries and all."""
DIAL_TRY_S = 1.0
UNHEARD_TRY_S = 0.3
"""Where a node does not hear itself: only whether its ARP is answered can be seen, and that takes milliseconds."""
LISTEN_S = 30.0
"""Longer than any node dials, by what the slowest of them may begin later: a busy one listens seconds after the first.
A listener ends with its reader, so that a longer time costs nothing."""
LISTENER_END_S = 5.0
"""A listener notices within 0.2 s that its reader is gone."""
INIT_CONNECT_S = 10.0
PREPARE_S = 3600.0
"""For the whole playbook: packages, and an image or a virtual environment on every node."""
SETTLE_S = 120.0
"""After a boot drivers load and links train: what doctor finds meanwhile may pass."""
HOOK_S = 30.0
"""For an operator's command that a guard runs."""
NOTICE_S = 15.0
"""For a receiver to accept a notification."""
LAST_NOTICES_S = 20.0
"""For what is still to be sent when everything else has ended."""
WATCH_S = 4.0
"""A node that owes an answer for longer is shown as unreachable; answers take milliseconds."""
WATCH_FIRST_S = 6.0
"""For its first answer, connecting included."""
PROMPT_S = 120.0
"""For one prompt: 32 tokens at a third of a token a second, and whatever waits before it."""
DRAIN_S = 1800.0
"""For a gang's running requests, before it is stopped."""
ROUTER_ASK_S = 10.0
ROUTER_START_S = 60.0
TAKE_IN_S = 90.0
"""Above the router's own 60 s for a worker's start."""
TAKE_OUT_S = 15.0
HEALTH_S = 25.0
"""As long as the router itself waits for an answer about health (engines/router.py)."""
GLANCE_S = 3.0
"""The router's host has as long to answer `status`; the gangs are shown without it then."""
GLANCE_ASK_S = 2.0
HEALTH_ASK_S = 6.0
"""For the doctor's word on gangs that serve, beside `status`."""
BUSY_ASK_S = 1.5
"""For what an engine says that it is busy with, beside `status`."""
WATCH_NVML_S = 5.0
"""Who watches a GPU asks again soon."""
METRICS_S = 3.0
SCRAPE_S = 4.0
"""Below Prometheus' 5 s between two scrapes; connecting, NVML and the router have a part of it."""
SCRAPE_CONNECT_S = 3.0
SCRAPE_NVML_S = 2.0
SCRAPE_ROUTER_S = 1.0

UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(s|m|h|)")


def seconds_of(text: str) -> float | None:
    """5s, 10m, 2h, or bare seconds; None for another text."""
    match = _DURATION.fullmatch(text.strip())
    return float(match[1]) * UNITS[match[2]] if match else None
