"""Requests to the kernel about flow control, and how its answers are read."""

from __future__ import annotations

import struct

import pytest

from orchestrator.node.network.flow_control import flow_control, parse, request

PFC = bytes([8, 1 << 3, 0, 0]) + bytes(132)


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def answer(*attributes: bytes, kind: int = 78) -> bytes:
    body = struct.pack("=BBH", 0, 21, 0) + b"".join(attributes)
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 1, 0) + body


def test_a_request_names_the_interface() -> None:
    asked = request("ens1f0")
    assert struct.unpack_from("=IHH", asked) == (len(asked), 78, 1)
    assert asked[16:20] == bytes([0, 21, 0, 0])
    assert asked[20:] == attribute(1, b"ens1f0\0")


@pytest.mark.parametrize("flag", [0, 0x8000])
def test_the_state_is_found_among_the_other_settings(flag: int) -> None:
    settings = attribute(1, bytes(24)) + attribute(2, PFC)
    assert parse(answer(attribute(1, b"ens1f0\0"), attribute(13 | flag, settings))) == PFC


@pytest.mark.parametrize(
    "message",
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
def test_an_answer_without_it_is_none(message: bytes) -> None:
    assert parse(message) == b""


def test_this_machine_is_asked_without_rights_and_without_failing() -> None:
    for state in flow_control().values():
        assert len(bytes.fromhex(state)) >= 4
