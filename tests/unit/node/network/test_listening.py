from __future__ import annotations

import sys

import pytest

from orchestrator.node.network.listening import is_kept


def entry(*words: str) -> str:
    """An address and port as this machine's kernel writes them, of 32-bit words in network order."""
    return "".join(
        int.from_bytes(bytes.fromhex(word), sys.byteorder).to_bytes(4, "big").hex() for word in words
    ).upper()


OURS, ANY = entry("0A000001") + ":1F40", entry("00000000") + ":1F40"
MAPPED = entry("00000000", "00000000", "0000FFFF", "0A000001") + ":1F40"
ANY_6 = entry(*["00000000"] * 4) + ":1F40"
LINK = entry("FE800000", "00000000", "00000000", "00000001") + ":1F40"


@pytest.mark.parametrize(
    ("local", "address", "port", "kept"),
    [
        (OURS, "10.0.0.1", 8000, True),
        (OURS, "10.0.0.1", 8001, False),
        (OURS, "10.0.0.2", 8000, False),
        (OURS, "0.0.0.0", 8000, True),
        (OURS, "", 8000, True),
        (OURS, "node0", 8000, True),  # a name may stand for any
        (ANY, "10.0.0.2", 8000, True),
        (MAPPED, "10.0.0.1", 8000, True),
        (MAPPED, "10.0.0.2", 8000, False),
        (ANY_6, "10.0.0.2", 8000, True),
        (LINK, "fe80::1%eth0", 8000, True),
        (LINK, "fe80::2%eth0", 8000, False),
    ],
)
def test_a_listener_keeps_its_own_address_or_all(local: str, address: str, port: int, kept: bool) -> None:
    assert is_kept(local, address, port) is kept
