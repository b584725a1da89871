"""A slow cable: `python -m orchestrator.lab.relay LINK BRIDGE MTU DELAY_MS JITTER_MS`, in the lab's own network.

A kernel may lack netem, so frames pass through a process: LINK moves from its bridge to a separate one with a TAP in
it, and a second TAP takes its place. TAPs offer no offloads, so every frame arrives complete, with its checksum. stdout
says `ready` once frames pass. When this process ends, the TAPs disappear and LINK is cut off.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time

from orchestrator.lab.namespaces.links import batch

_TUNSETIFF = 0x400454CA
_TAP_NO_INFO = 0x0002 | 0x1000
_LARGEST_FRAME = 65535


def private_bridge(link: str) -> str:
    """Name of the bridge that LINK is moved to."""
    return f"d{link}"


def main(link: str, bridge: str, mtu: int, delay_s: float, jitter_s: float) -> None:
    """Relay until the process is killed."""
    near, far = _tap(f"t{link}"), _tap(f"u{link}")
    own = private_bridge(link)
    batch(
        [
            f"link set t{link} mtu {mtu}",
            f"link set u{link} mtu {mtu}",
            f"link add name {own} type bridge forward_delay 0",
            f"link set {link} master {own}",
            f"link set t{link} master {own} up",
            f"link set u{link} master {bridge} up",
            f"link set {own} up",
        ]
    )
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    _relay({near: far, far: near}, delay_s, jitter_s)


def _tap(name: str) -> int:
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP_NO_INFO))
    return tap


def _relay(other: dict[int, int], delay_s: float, jitter_s: float) -> None:
    waiting: list[tuple[float, int, int, bytes]] = []
    count = 0
    while True:
        until = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        readable, _, _ = select.select(list(other), [], [], until)
        now = time.monotonic()
        for tap in readable:
            count += 1
            late = max(0.0, delay_s + random.uniform(-jitter_s, jitter_s))  # noqa: S311 - no secret
            heapq.heappush(waiting, (now + late, count, other[tap], os.read(tap, _LARGEST_FRAME)))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, tap, frame = heapq.heappop(waiting)
            try:
                os.write(tap, frame)
            except OSError:
                continue  # its end is down: the frame is lost, as on any cable


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]) / 1000, float(sys.argv[5]) / 1000)
