"""A stand-in for NCCL's RAS: which ranks still respond, on rank 0's client port, in the JSON of NCCL's manual.

Each rank sends rank 0 a heartbeat once a second (UDP, to the rendezvous address). The real RAS threads keep a network
of TCP connections among all processes, and every process answers clients. This one has one communicator, and counts no
collectives.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from .settings import Rank, Settings

SPEAKS_S, SILENT_S = 1.0, 5.0
"""NCCL's own keep-alive and warning (src/ras/ras_internal.h)."""


def begin(settings: Settings, rank: Rank, nccl: str) -> None:
    """Start this rank's threads if the plan asks for RAS."""
    address = settings.environment.get("NCCL_RAS_ADDR", "")
    if not address or settings.environment.get("NCCL_RAS_ENABLE") == "0":
        return
    if rank.world == 0:
        _Hub(settings, nccl).start(address)
    threading.Thread(target=_speak, args=(settings, rank), daemon=True).start()


def _speak(settings: Settings, rank: Rank) -> None:
    where = (settings.dist_host, settings.dist_port)
    family = socket.AF_INET6 if ":" in settings.dist_host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as speaker:
        words = json.dumps({"rank": rank.world, "pid": os.getpid(), "gpu": rank.gpu}).encode()
        while True:
            with contextlib.suppress(OSError):
                speaker.sendto(words, where)
            time.sleep(SPEAKS_S)


class _Hub:
    """Rank 0's side: receives heartbeats of all ranks, answers one client at a time."""

    def __init__(self, settings: Settings, nccl: str) -> None:
        self._settings = settings
        self._nccl = nccl
        self._heard: dict[int, dict[str, Any]] = {}

    def start(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        try:
            clients = socket.create_server((host, int(port)))
            family = socket.AF_INET6 if ":" in self._settings.dist_host else socket.AF_INET
            ranks = socket.socket(family, socket.SOCK_DGRAM)
            ranks.bind((self._settings.dist_host, self._settings.dist_port))
        except OSError:
            return  # the real one also continues without RAS
        for work, place in ((self._hear, ranks), (self._answer, clients)):
            threading.Thread(target=work, args=(place,), daemon=True).start()

    def _hear(self, ranks: socket.socket) -> None:
        while True:
            data, sender = ranks.recvfrom(4096)
            try:
                told = json.loads(data)
                self._heard[int(told["rank"])] = {**told, "host": sender[0], "at": time.monotonic()}
            except (ValueError, KeyError, TypeError):
                continue

    def _answer(self, clients: socket.socket) -> None:
        while True:
            connection, _ = clients.accept()
            with connection:
                connection.settimeout(10.0)
                try:
                    self._serve(connection)
                except OSError:
                    continue

    def _serve(self, connection: socket.socket) -> None:
        for line in connection.makefile("r", encoding="ascii", errors="replace", newline="\n"):
            command = line.strip().lower()
            if command in ("status", "verbose status"):
                told = {rank: dict(one) for rank, one in self._heard.items()}
                connection.sendall(_json(told, self._nccl).encode())
                return
            if command != "set format json" and not command.startswith("timeout "):
                connection.sendall(f"ERROR: Unknown command {line.strip()}\n".encode())
                continue
            connection.sendall(b"OK\n")


def _silent(one: Mapping[str, Any]) -> bool:
    return time.monotonic() - float(one["at"]) > SILENT_S


def _json(told: Mapping[int, Mapping[str, Any]], nccl: str) -> str:
    def place(rank: int) -> dict[str, Any]:
        one = told[rank]
        return {"rank": rank, "host": one["host"], "pid": one["pid"], "cuda_dev": one["gpu"], "nvml_dev": one["gpu"]}

    fine = {
        "init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False,
    }  # fmt: skip
    counts = dict.fromkeys(("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"), 0)
    missing = [rank for rank in sorted(told) if _silent(told[rank])]
    there = [rank for rank in sorted(told) if rank not in missing]
    communicator = {
        "hash": "0x57414e44494e",
        "secondary_hash": "0x0:0x0",
        "size": len(told),
        "ranks_count": len(there),
        "missing_ranks_count": len(missing),
        "ranks": [{**place(rank), "status": fine, "collective_counts": counts} for rank in there],
        "missing_ranks": [
            {**place(rank), "status": {"unresponsive": True, "considered_dead": False}} for rank in missing
        ],
    }
    return json.dumps(
        {
            "nccl_version": nccl,
            "cuda_runtime_version": 13000,
            "cuda_driver_version": 13000,
            "timestamp": time.strftime("%Y-%m-%d %H:%M:%S"),
            "communicators_count": 1,
            "communicators": [communicator],
            "ras": {"collection_time_sec": 0.0, "timeouts_count": len(missing)},
        },
        indent=2,
    )
