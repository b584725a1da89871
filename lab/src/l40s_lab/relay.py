"""A slow cable, or one that flips bytes, in the lab's own network:

    python -m l40s_lab.relay LINK BRIDGE MTU DELAY_MS JITTER_MS [FROM TO]

A kernel may lack netem, so frames pass through a process: LINK moves from its bridge to a separate one with a TAP in
it, and a second TAP takes its place. TAPs offer no offloads, so every frame arrives complete, with its checksum. stdout
says `ready` once frames pass. When this process ends, the TAPs disappear and LINK is cut off.

Between the IPv4 addresses FROM and TO, one byte in every MiB of TCP data is flipped and its checksum put right, as
memory or a card does that corrupts data. Only frames of the full MTU are touched: short messages pass.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import socket
import struct
import sys
import time

from l40s_lab.namespaces.links import batch

_TUNSETIFF = 0x400454CA
_TAP_NO_INFO = 0x0002 | 0x1000
_LARGEST_FRAME = 65535
_EVERY = 1 << 20
_FIRST = 64 << 10
"""Bytes until the first flip: less than the smallest transfer that is compared."""
_IP, _TCP = 14, 6


def private_bridge(link: str) -> str:
    """Name of the bridge that LINK is moved to."""
    return f"d{link}"


def main(link: str, bridge: str, mtu: int, delay_s: float, jitter_s: float, *between: str) -> None:
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
    _relay({near: far, far: near}, delay_s, jitter_s, _Flips(mtu, *between) if between else None)


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


def _relay(other: dict[int, int], delay_s: float, jitter_s: float, flips: _Flips | None) -> None:
    waiting: list[tuple[float, int, int, bytes]] = []
    count = 0
    while True:
        until = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        readable, _, _ = select.select(list(other), [], [], until)
        now = time.monotonic()
        for tap in readable:
            count += 1
            late = max(0.0, delay_s + random.uniform(-jitter_s, jitter_s))  # noqa: S311 - no secret
            frame = os.read(tap, _LARGEST_FRAME)
            heapq.heappush(waiting, (now + late, count, other[tap], flips.pass_on(frame) if flips else frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, tap, frame = heapq.heappop(waiting)
            try:
                os.write(tap, frame)
            except OSError:
                continue  # its end is down: the frame is lost, as on any cable


if __name__ == "__main__":
    name, bridge, mtu, delay, jitter, *between = sys.argv[1:]
    main(name, bridge, int(mtu), float(delay) / 1000, float(jitter) / 1000, *between)
