"""Addresses and flow control over netlink: this machine's own, and messages byte by byte."""

from __future__ import annotations

import os
import socket
import struct

import pytest

from orchestrator.node.network.netlink import (
    UnixSocket,
    addresses_in,
    flow_control,
    flow_control_in,
    flow_control_request,
    unix_names,
    unix_names_in,
)


def message(kind: int, body: bytes) -> bytes:
    padded = body + bytes(-len(body) % 4)
    return struct.pack("=IHHII", 16 + len(body), kind, 2, 1, 0) + padded


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def new_address(family: int, prefix: int, index: int, *attributes: bytes) -> bytes:
    return message(20, struct.pack("=BBBBI", family, prefix, 0, 0, index) + b"".join(attributes))


PFC = bytes([8, 1 << 3, 0, 0]) + bytes(132)
DONE = message(3, bytes(4))


def test_messages() -> None:
    four, six = socket.inet_aton("10.0.0.11"), socket.inet_pton(socket.AF_INET6, "fe80::1")
    stream = (
        new_address(2, 24, 5, attribute(1, four), attribute(2, four), attribute(3, b"bond0\0"))
        + new_address(10, 64, 5, attribute(1, six))
        + new_address(7, 0, 9, attribute(1, b"??"))
        + DONE
        + new_address(2, 24, 6, attribute(1, four))
    )
    assert list(addresses_in(stream)) == [
        (5, {"family": "inet", "address": "10.0.0.11", "prefixlen": 24}),
        (5, {"family": "inet6", "address": "fe80::1", "prefixlen": 64}),
    ]


def test_on_a_point_to_point_link_the_local_end_counts() -> None:
    mine, peer = socket.inet_aton("10.8.0.2"), socket.inet_aton("10.8.0.1")
    ((_, found),) = addresses_in(new_address(2, 32, 3, attribute(1, peer), attribute(2, mine)) + DONE)
    assert found["address"] == "10.8.0.2"


def test_an_error_is_raised() -> None:
    with pytest.raises(PermissionError):
        list(addresses_in(message(2, struct.pack("=i", -1) + bytes(16))))


@pytest.mark.parametrize("cut", [b"", b"\0" * 15, struct.pack("=IHHII", 3, 20, 0, 0, 0), new_address(2, 24, 1)[:18]])
def test_cut_off_messages_end_quietly(cut: bytes) -> None:
    assert list(addresses_in(cut)) == []


def answer(*attributes: bytes, kind: int = 78) -> bytes:
    return message(kind, struct.pack("=BBH", 0, 21, 0) + b"".join(attributes))


def test_a_request_names_the_interface() -> None:
    asked = flow_control_request("ens1f0")
    assert struct.unpack_from("=IHH", asked) == (len(asked), 78, 1)
    assert asked[16:20] == bytes([0, 21, 0, 0])
    assert asked[20:] == attribute(1, b"ens1f0\0")


@pytest.mark.parametrize("flag", [0, 0x8000])
def test_the_state_is_found_among_the_other_settings(flag: int) -> None:
    settings = attribute(1, bytes(24)) + attribute(2, PFC)
    assert flow_control_in(answer(attribute(1, b"ens1f0\0"), attribute(13 | flag, settings))) == PFC


@pytest.mark.parametrize(
    "state",
    [
        b"",
        answer(),
        answer(attribute(1, b"ens1f0\0")),
        answer(attribute(13, attribute(1, bytes(24)))),
        answer(struct.pack("=i", -95), kind=2),
        answer(struct.pack("=HH", 99, 13)),
        answer(struct.pack("=HH", 0, 13)),
    ],
)
def test_an_answer_without_it_is_none(state: bytes) -> None:
    assert flow_control_in(state) == b""


def test_this_machine_is_asked_without_rights_and_without_failing() -> None:
    for state in flow_control().values():
        assert len(bytes.fromhex(state)) >= 4


def socket_of(name: bytes, *attributes: bytes) -> bytes:
    return message(20, b"\x01" * 16 + attribute(0, name) + b"".join(attributes))


def test_names_of_unix_sockets_come_with_their_owner() -> None:
    owner = attribute(7, struct.pack("=I", 1000))
    messages = socket_of(b"\0a b\nc", owner) + message(20, b"\x01" * 16) + message(3, b"")
    assert list(unix_names_in(messages)) == [(b"\0a b\nc", UnixSocket(1000, 0x01010101))]


def test_a_kernel_that_does_not_tell_owners_is_an_error() -> None:
    with pytest.raises(OSError, match="does not tell"):
        list(unix_names_in(socket_of(b"\0a")))
    with pytest.raises(OSError, match="No such file"):
        list(unix_names_in(message(2, struct.pack("=i", -2))))


def test_this_machines_unix_sockets_are_named_or_refused() -> None:
    with socket.socket(socket.AF_UNIX) as shown:
        shown.bind(b"\0a test of netlink\n")
        try:
            names = unix_names()
        except OSError:
            return
        assert names[b"\0a test of netlink\n"] == UnixSocket(os.geteuid(), os.fstat(shown.fileno()).st_ino)
