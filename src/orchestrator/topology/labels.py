"""Labels of a machine and its cables, from the output of the tools that know them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_PLACEHOLDERS = re.compile(r"(?i)(to be filled.*|default string|none|not specified|0+|system serial number|n/?a)?")
"""What boards report if no serial number was set."""
_NOWHERE = "0.0.0.0"  # noqa: S104 - a BMC without an address says so


@dataclass(frozen=True, slots=True)
class Bmc:
    """Addresses of the board's management controller, '' where unknown."""

    address: str = ""
    mac: str = ""


def serial(serials: Mapping[str, str]) -> str:
    """The number that a chassis is known by: its own, else the product's, else the board's."""
    said = (serials.get(name, "").strip() for name in ("chassis_serial", "product_serial", "board_serial"))
    return next((text for text in said if not _PLACEHOLDERS.fullmatch(text)), "")


def bmc(lines: Sequence[str]) -> Bmc:
    """From `ipmitool lan print`."""
    said = {key.strip(): value.strip() for key, _, value in (line.partition(": ") for line in lines)}
    address = said.get("IP Address", "")
    return Bmc(address if address != _NOWHERE else "", said.get("MAC Address", ""))


def switch_ports(text: str) -> dict[str, str]:
    """{interface: switch and port} from `lldpcli -f keyvalue show neighbors`; of several neighbours the first.

    An interface's name may hold a dot (a VLAN), so it is read up to the part's name.
    """
    said: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        match = _KEY.fullmatch(line.strip())
        if match:
            said.setdefault(match[1], {}).setdefault(match[2], match[3])
    return {name: words for name, keys in said.items() if (words := _words(keys))}


_KEY = re.compile(r"lldp\.(.{1,15}?)\.(chassis\.(?:name|mac|mgmt-ip)|port\.(?:ifname|descr|local|mac))=(.{1,200})")


def _words(keys: Mapping[str, str]) -> str:
    ports = ("port.ifname", "port.local", "port.descr", "port.mac")
    switch = next((keys[key] for key in ("chassis.name", "chassis.mgmt-ip", "chassis.mac") if key in keys), "")
    port = next((keys[key] for key in ports if key in keys), "")
    return f"{switch} {port}".strip()
