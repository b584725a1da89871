"""Addresses over netlink: this machine's own, and messages byte by byte."""

from __future__ import annotations

import socket
import struct

import pytest

from orchestrator.node.network.addresses import addresses, parse


def message(kind: int, body: bytes) -> bytes:
    padded = body + bytes(-len(body) % 4)
    return struct.pack("=IHHII", 16 + len(body), kind, 2, 1, 0) + padded


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def new_address(family: int, prefix: int, index: int, *attributes: bytes) -> bytes:
    return message(20, struct.pack("=BBBBI", family, prefix, 0, 0, index) + b"".join(attributes))


DONE = message(3, bytes(4))


def test_this_machine_has_a_loopback() -> None:
    loopback = {"family": "inet", "address": "127.0.0.1", "prefixlen": 8}
    assert loopback in addresses()["lo"]


def test_messages() -> None:
    four, six = socket.inet_aton("10.0.0.11"), socket.inet_pton(socket.AF_INET6, "fe80::1")
    stream = (
        new_address(2, 24, 5, attribute(1, four), attribute(2, four), attribute(3, b"bond0\0"))
        + new_address(10, 64, 5, attribute(1, six))
        + new_address(7, 0, 9, attribute(1, b"??"))
        + DONE
        + new_address(2, 24, 6, attribute(1, four))
    )
    assert list(parse(stream)) == [
        (5, {"family": "inet", "address": "10.0.0.11", "prefixlen": 24}),
        (5, {"family": "inet6", "address": "fe80::1", "prefixlen": 64}),
    ]


def test_on_a_point_to_point_link_the_local_end_counts() -> None:
    mine, peer = socket.inet_aton("10.8.0.2"), socket.inet_aton("10.8.0.1")
    ((_, found),) = parse(new_address(2, 32, 3, attribute(1, peer), attribute(2, mine)) + DONE)
    assert found["address"] == "10.8.0.2"


def test_an_error_is_raised() -> None:
    with pytest.raises(PermissionError):
        list(parse(message(2, struct.pack("=i", -1) + bytes(16))))


@pytest.mark.parametrize("cut", [b"", b"\0" * 15, struct.pack("=IHHII", 3, 20, 0, 0, 0), new_address(2, 24, 1)[:18]])
def test_cut_off_messages_end_quietly(cut: bytes) -> None:
    assert list(parse(cut)) == []
