"""A cable that delays, doubles, reorders or loses frames, or flips bytes, in the lab's own network:

    python -m l40s_lab.relay LINK BRIDGE MTU TREATMENT

A kernel may lack netem, so frames pass through a process: LINK moves from its bridge to a separate one with a TAP in
it, and a second TAP takes its place. TAPs offer no offloads, so every frame arrives complete, with its checksum. stdout
says `ready` once frames pass. When this process ends, the TAPs disappear and LINK is cut off.

TREATMENT is a Treatment as a JSON object. A flipped byte's checksum is put right, as memory or a card does that
corrupts data; only frames of the full MTU are touched: short messages pass.
"""

from __future__ import annotations

import fcntl
import heapq
import json
import os
import random
import select
import socket
import struct
import sys
import time
from dataclasses import dataclass

from l40s_lab.namespaces.links import batch

_TUNSETIFF = 0x400454CA
_TAP_NO_INFO = 0x0002 | 0x1000
_LARGEST_FRAME = 65535
_EVERY = 1 << 20
_FIRST = 64 << 10
"""Bytes until the first flip: less than the smallest transfer that is compared."""
_IP, _TCP = 14, 6


@dataclass(frozen=True, kw_only=True)
class Treatment:
    """What happens to the frames of both directions.

    delay_s, jitter_s: each is late by the first, more or less up to the second
    doubled:           this share of them arrives twice
    overtaken:         this share is late by another `overtaken_by_s`, so that later ones arrive before them
    longest:           bytes of an IP packet; longer ones are lost, and nobody is told. 0: none
    between:           two IPv4 addresses: from the first to the second one byte in every MiB of TCP data is flipped
    """

    delay_s: float = 0.0
    jitter_s: float = 0.0
    doubled: float = 0.0
    overtaken: float = 0.0
    overtaken_by_s: float = 0.01
    longest: int = 0
    between: tuple[str, ...] = ()

    def arrivals(self, frame: bytes) -> list[float]:
        """Seconds after which a frame arrives: once, twice or never."""
        if self.longest and len(frame) - _IP > self.longest:
            return []
        late = max(0.0, self.delay_s + random.uniform(-self.jitter_s, self.jitter_s))  # noqa: S311 - no secret
        if random.random() < self.overtaken:  # noqa: S311 - no secret
            late += self.overtaken_by_s
        return [late, late] if random.random() < self.doubled else [late]  # noqa: S311 - no secret


def private_bridge(link: str) -> str:
    """Name of the bridge that LINK is moved to."""
    return f"d{link}"


def main(link: str, bridge: str, mtu: int, treatment: Treatment) -> None:
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
    _relay({near: far, far: near}, treatment, _Flips(mtu, *treatment.between) if treatment.between else None)


def _tap(name: str) -> int:
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP_NO_INFO))
    return tap


class _Flips:
    """Flips bytes of what passes from one address to another."""

    def __init__(self, mtu: int, start: str, end: str) -> None:
        self.mtu, self.way = mtu, socket.inet_aton(start) + socket.inet_aton(end)
        self.left = _FIRST
        """Bytes of data until the next flip."""

    def pass_on(self, frame: bytes) -> bytes:
        """The frame as it arrives."""
        if frame[12:14] != b"\x08\x00" or frame[_IP + 9] != _TCP or frame[_IP + 12 : _IP + 20] != self.way:
            return frame
        if int.from_bytes(frame[_IP + 2 : _IP + 4], "big") < self.mtu:
            return frame
        head = _IP + (frame[_IP] & 15) * 4
        data = head + (frame[head + 12] >> 4) * 4
        self.left -= len(frame) - data
        if self.left > 0:
            return frame
        self.left = _EVERY
        return _flipped(frame, head, (data + len(frame)) // 2)


def _flipped(frame: bytes, head: int, place: int) -> bytes:
    """One byte of a TCP segment, and its checksum as RFC 1624 corrects it. head: where the TCP header begins"""
    changed, word = bytearray(frame), place - (place - head) % 2
    changed[place] ^= 0xFF
    before, after = (struct.unpack_from("!H", one, word)[0] for one in (frame, changed))
    total = (~struct.unpack_from("!H", frame, head + 16)[0] & 0xFFFF) + (~before & 0xFFFF) + after
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    struct.pack_into("!H", changed, head + 16, ~total & 0xFFFF)
    return bytes(changed)


def _relay(other: dict[int, int], treatment: Treatment, flips: _Flips | None) -> None:
    waiting: list[tuple[float, int, int, bytes]] = []
    count = 0
    while True:
        until = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        readable, _, _ = select.select(list(other), [], [], until)
        now = time.monotonic()
        for tap in readable:
            frame = os.read(tap, _LARGEST_FRAME)
            passed = flips.pass_on(frame) if flips else frame
            for late in treatment.arrivals(frame):
                count += 1
                heapq.heappush(waiting, (now + late, count, other[tap], passed))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, tap, frame = heapq.heappop(waiting)
            try:
                os.write(tap, frame)
            except OSError:
                continue  # its end is down: the frame is lost, as on any cable


if __name__ == "__main__":
    name, on_bridge, bytes_of_mtu, asked = sys.argv[1:]
    main(name, on_bridge, int(bytes_of_mtu), Treatment(**json.loads(asked)))
