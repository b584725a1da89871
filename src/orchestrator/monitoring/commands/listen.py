"""Where a verb of this room listens."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

LOOPBACK = "127.0.0.1"
_PLACE = re.compile(r"(?:\[(?P<six>[^]]+)\]|(?P<four>[^:\[\]]*))(?::(?P<port>\d{1,5}))?")


def add_listen(parser: argparse.ArgumentParser, port: int) -> None:
    """--listen ADDRESS[:PORT], as (address, port)."""
    parser.add_argument(
        "--listen",
        type=_place(port),
        default=(LOOPBACK, port),
        metavar="ADDRESS[:PORT]",
        help=f"where to listen ({LOOPBACK}:{port}; port 0: any free one)",
    )


def _place(port: int) -> Callable[[str], tuple[str, int]]:
    def read(text: str) -> tuple[str, int]:
        found = _PLACE.fullmatch(text)
        if found is None or int(found["port"] or 0) > 65535:
            raise argparse.ArgumentTypeError(
                f"found {text!r}, wanted an address such as 10.0.0.5, :{port}, [::1]:{port}"
            )
        return found["six"] or found["four"] or LOOPBACK, int(found["port"] or port)

    return read
