"""NCCL_IB_HCA, as NCCL reads it: which RDMA ports it takes."""

from __future__ import annotations


def takes(pin: str, device: str, port: int) -> bool:
    """Whether NCCL_IB_HCA so written takes a port: `^` means all others, `=` the whole name, else its beginning; `:N`
    one port. An empty one takes all (NCCL src/transport/net_ib, ncclIbInit: matchIfList; parseStringList)."""
    excluded, exact = pin.startswith("^"), pin.removeprefix("^").startswith("=")
    words = [word.split(":") for word in pin.lstrip("^=").split(",") if word]
    fits = any(
        (device == name if exact else device.startswith(name)) and (not rest or rest[0] in ("", str(port)))
        for name, *rest in words
    )
    return not words or fits != excluded


def names_ports(pin: str) -> tuple[str, ...]:
    """The ports that it names whole (`=mlx5_0:1,mlx5_1:1`), in its words; () where it is written otherwise."""
    names = pin[1:].split(",") if pin.startswith("=") else ()
    return tuple(name for name in names if name and "/" not in name)
