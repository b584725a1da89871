#!/usr/bin/env python3
"""A stand-in of perftest's `ib_write_bw` for emulated nodes, which have RDMA ports in /sys and no RDMA.

Options, both ends and the table are the real program's (4.5), but no byte is moved. The bandwidth it reports is 97 %
of the slower port's rate; /run/slow-rails sets a device's rate, in Gb/s: `mlx5_1 10`.
"""

from __future__ import annotations

import argparse
import socket
import sys
from pathlib import Path

LINE = "-" * 87


def main() -> int:
    """Receive, or send to the named node."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-d", dest="device", required=True)
    parser.add_argument("-i", dest="port", type=int, default=1)
    parser.add_argument("-p", dest="tcp", type=int, default=18515)
    parser.add_argument("-s", dest="bytes", type=int, default=65536)
    parser.add_argument("-n", dest="times", type=int, default=5000)
    parser.add_argument("-x", dest="gid", type=int, default=0)
    parser.add_argument("--tclass", type=int, default=0)
    parser.add_argument("-S", "--sl", type=int, default=0)
    parser.add_argument("-F", action="store_true")
    parser.add_argument("--report_gbits", action="store_true", required=True)
    parser.add_argument("server", nargs="?", default="")
    asked = parser.parse_args()
    rate = rate_of(asked.device, asked.port)
    if not rate:
        sys.stderr.write(" Unable to find the Infiniband/RoCE device\n")
        return 1
    other = client(asked, rate) if asked.server else server(asked, rate)
    if other is None:
        return 1
    sys.stdout.write(table(asked.device, asked.bytes, asked.times, asked.gid, 0.97 * min(rate, other)))
    return 0


def rate_of(device: str, port: int) -> float:
    """The rate in Gb/s, as in /sys ('100 Gb/sec (4X EDR)'); 0 if there is no such port."""
    slow = Path("/run/slow-rails")
    for line in slow.read_text().splitlines() if slow.exists() else ():
        if line.split()[0] == device:
            return float(line.split()[1])
    file = Path(f"/sys/class/infiniband/{device}/ports/{port}/rate")
    return float(file.read_text().split()[0]) if file.exists() else 0.0


def server(asked: argparse.Namespace, rate: float) -> float | None:
    """The client; returns the rate."""
    sys.stdout.write(f"\n{'*' * 36}\n* Waiting for client to connect... *\n{'*' * 36}\n")
    with socket.create_server(("", asked.tcp)) as listener:
        connection, _ = listener.accept()
    return exchanged(connection, rate)


def client(asked: argparse.Namespace, rate: float) -> float | None:
    """The server; returns the rate."""
    try:
        connection = socket.create_connection((asked.server, asked.tcp), timeout=10)
    except OSError:
        sys.stderr.write(f"Couldn't connect to {asked.server}:{asked.tcp}\n")
        sys.stderr.write("Unable to open file descriptor for socket connection Unable to init the socket connection\n")
        return None
    return exchanged(connection, rate)


def exchanged(connection: socket.socket, rate: float) -> float | None:
    """Both ends exchange their parameters."""
    with connection:
        connection.sendall(f"{rate}\n".encode())
        said = connection.makefile().readline()
    if not said:
        sys.stderr.write("ethernet_read_keys: Couldn't read remote address\n Unable to read from socket/rdma_cm\n")
        return None
    return float(said)


def table(device: str, size: int, times: int, gid: int, gbps: float) -> str:
    """What the program prints at the end (src/perftest_parameters.h, REPORT_FMT)."""
    return f""" stand-in of ib_write_bw: no RDMA here, the figure is the ports' rate
{LINE}
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : {device}
 Number of qps   : 1\t\tTransport type : IB
 Connection type : RC\t\tUsing SRQ      : OFF
 TX depth        : 128
 CQ Moderation   : 1
 Mtu             : 4096[B]
 Link type       : Ethernet
 GID index       : {gid}
 Max inline data : 0[B]
 rdma_cm QPs\t : OFF
 Data ex. method : Ethernet
{LINE}
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 {size:<7d}    {times:<10d}       {gbps:<7.2f}            {gbps:<7.2f}\t\t   {gbps / size / 8e-3:<7.6f}
{LINE}
"""


if __name__ == "__main__":
    sys.exit(main())
