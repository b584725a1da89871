"""What `nvidia-smi` prints beside its matrices: its table, `-q` whole or in part, and lists of GPUs (`-L`, `nvlink -s`,
SGLang's check_env, vLLM's collect_env, gpustat).
"""

from __future__ import annotations

import re
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.topology.pasted import hosts
from orchestrator.topology.pasted.facts import Line, PastedFacts

_FUNCTION = r"[0-9A-F]{4,8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-9]"
_VERSION = r"\d{3}\.\d{1,3}(?:\.\d{1,3})?"
GPU = re.compile(rf"\s*GPU (?P<pci_bus_id>{_FUNCTION})\s*", re.IGNORECASE)
DRIVER = re.compile(rf"Driver Version {{2,64}}: ({_VERSION})\s*")
ATTACHED = re.compile(r"Attached GPUs {2,64}: (\d{1,3})\s*")
FIELD = re.compile(r"\s*([A-Z][\w .-]{1,40}?)\s+: (.{1,96})")
SECTION = re.compile(r"\s*(\S.*)")
PART = re.compile(
    r"\s{4,16}(PCI)\s*|\s{0,16}(Clocks (?:Throttle|Event) Reasons|Remapped Rows|Retired Pages|ECC Errors|Ecc Mode"
    r"|ECC Mode|GPU Link Info|PCIe Generation|Link Width|BAR1 Memory Usage|FB Memory Usage|Fabric|GPU Power Readings"
    r"|Power Readings|vGPU Software Licensed Product)\s*"
)
"""What begins a piece of `nvidia-smi -q` that grep or a reader cut out, without the GPU that it is about."""
TABLE = re.compile(
    r"\|?\s*(?P<indices>\d{1,3})\s+(?P<name>[A-Z][\w .-]{1,40}?)\s+(?P<persistence>On|Off|N/A)\s*"
    rf"\|\s+(?P<pci_bus_id>{_FUNCTION})"
    r"(?: {1,4}(?:On|Off|N/A) {0,4}\| {1,24}(?P<uncorrected>[1-9]\d{0,8}) \|?|(?:.{0,64}\b(?P<error>ERR!))?.*)",
    re.IGNORECASE,
)
LISTED = re.compile(
    r".{0,32}?\bGPU (?P<indices>(?:\d{1,3}, ?){0,63}\d{1,3}): (?P<name>(?:NVIDIA|Tesla|Quadro|GeForce)[\w .-]{2,60}?)"
    r"(?: \(UUID: (?:(?P<uuid>GPU-[0-9a-f-]{36})|[^)]{0,48})\))?\s*"
)
DCGM = re.compile(
    r"\|?\s{0,4}(?P<index>\d{1,3})\s{1,8}\| Name: (?P<name>(?:NVIDIA|Tesla|Quadro|GeForce)[\w .-]{2,60}?)\s*\|?"
)
DCGM_MORE = re.compile(rf"\|?\s{{2,12}}\| PCI Bus ID: (?P<pci_bus_id>{_FUNCTION})\s*\|?")
"""Of `dcgmi discovery -l`."""
INFORMATION = re.compile(r"Model:\s+(?P<name>(?:NVIDIA|Tesla|Quadro|GeForce)[\w .-]{2,60}?)\s*")
INFORMATION_MORE = re.compile(
    rf"(?:Bus Location:\s+(?P<pci_bus_id>{_FUNCTION})|GPU UUID:\s+(?P<uuid>GPU-[0-9a-f-]{{36}})"
    rf"|GPU Firmware:\s+(?P<driver>{_VERSION}))\s*"
)
"""Of /proc/driver/nvidia/gpus/*/information; a GPU that nobody has opened since the boot has no UUID there yet."""
GPUSTAT = re.compile(
    r"\[(?P<indices>\d{1,3})\] (?P<name>(?:NVIDIA|Tesla|Quadro|GeForce)[\w .-]{2,60}?) {1,8}\| {0,4}\d{1,3}[^|]{1,16}"
    r"\| {0,8}(?P<used>\d{1,7}) / (?P<total>\d{1,7}) (?:MB|MiB) \|.{0,400}"
)
ANY_DRIVER = re.compile(
    rf".{{0,32}}?\b(?:Nvidia driver version|CUDA Driver Version|Driver Version)\s*:\s+({_VERSION}).*"
)
HEAD = re.compile(rf"\|\s{{0,4}}NVIDIA-SMI \S{{3,24}}\s{{1,40}}(?:Driver|KMD) Version:? ({_VERSION})\s.*")
MEMORY = re.compile(
    r"\|?(?P<sensors>.{8,64})\|\s{1,24}(?P<used>\d{1,7})Mi?B / {1,8}(?P<total>\d{1,7})Mi?B \|"
    r"(?:\s{1,12}(?P<busy>\d{1,3})% {1,12}(?P<mode>[A-Z][\w. ]{2,16}?) {0,8}\|?)?.*"
)
PROCESS = re.compile(
    r"\|?\s{1,4}(?P<index>\d{1,3})\s+(?:(?:N/A|\d{1,3})\s+){0,2}(?P<pid>\d{1,8})\s+C(?:\+G)?\s+\S.{0,80}?\s"
    r"(?P<used>\d{1,7})MiB \|"
)
NVLINK = re.compile(
    r"\s{1,16}Link (?P<link>\d{1,2}): (?:(?P<state><inactive>|\d{1,4}(?:\.\d{1,3})? GB/s)"
    rf"|Remote Device (?P<remote>{_FUNCTION}): Link \d{{1,2}})\s*",
    re.IGNORECASE,
)
"""Of `nvlink -s` and -R."""

_LEAF = re.compile(r"\s*<(?P<tag>\w{2,64})>(?P<value>[^<>]{0,96})</(?P=tag)>\s*")
_OPENED = re.compile(r"\s*<(?:gpu id=\"(?P<gpu>[0-9A-Fa-f:.]{7,20})\"|(?P<tag>\w{2,64}))>\s*")
_TAGS = {
    "driver_version": "Driver Version", "attached_gpus": "Attached GPUs", "product_name": "Product Name",
    "uuid": "GPU UUID", "persistence_mode": "Persistence Mode", "compute_mode": "Compute Mode",
    "performance_state": "Performance State", "replay_counter": "Replays Since Reset", "gpu_temp": "GPU Current Temp",
    "total": "Total", "used": "Used", "max_link_gen": "Max", "current_link_gen": "Current", "max_link_width": "Max",
    "current_link_width": "Current", "current_ecc": "Current", "current_mig": "Current", "power_limit": "Power Limit",
    "current_power_limit": "Power Limit", "default_power_limit": "Default Power Limit",
    "remapped_row_corr": "Correctable Error", "remapped_row_unc": "Uncorrectable Error",
    "remapped_row_pending": "Pending", "remapped_row_failure": "Remapping Failure Occurred",
    "fb_memory_usage": "FB Memory Usage", "bar1_memory_usage": "BAR1 Memory Usage", "pcie_gen": "PCIe Generation",
    "link_widths": "Link Width", "remapped_rows": "Remapped Rows", "ecc_mode": "ECC Mode", "mig_mode": "MIG Mode",
    "clocks_throttle_reasons": "Clocks Throttle Reasons", "clocks_event_reasons": "Clocks Event Reasons",
}  # fmt: skip
"""Names of `nvidia-smi -q` by the tags of -x."""
_REASON_TAG = re.compile(r"clocks_(?:throttle|event)_reason_(\w{4,48})")
_ON = {"on": 1, "off": 0, "Enabled": 1, "Disabled": 0}
_MODES = {"Default": 0, "Prohibited": 2, "E. Process": 3, "Exclusive_Process": 3}
"""nvmlComputeMode_t by the words of nvidia-smi."""
_REASONS = {
    "Idle": 0x1,
    "Applications Clocks Setting": 0x2,
    "SW Power Cap": 0x4,
    "HW Slowdown": 0x8,
    "Sync Boost": 0x10,
    "SW Thermal Slowdown": 0x20,
    "HW Thermal Slowdown": 0x40,
    "HW Power Brake Slowdown": 0x80,
    "Display Clock Setting": 0x100,
}
"""Bits of nvmlClocksEventReasons."""
_ROWS = ("Correctable Error", "Uncorrectable Error", "Pending", "Remapping Failure Occurred")
"""In the order of nvmlDeviceGetRemappedRows."""
_POWER = {"Power Limit": "limit", "Current Power Limit": "limit", "Default Power Limit": "default"}
_MOST_PARTS = 64

_Gpu = MutableMapping[str, Any]


def without_tags(lines: Sequence[Line]) -> Sequence[Line]:
    """What `nvidia-smi -q -x` printed as -q does; all other lines as they are."""
    if not any(tag in line.text for line in lines for tag in ("<gpu id=", "<product_name>", "_usage>")):
        return lines
    return [replace(line, text=_without_tag(line.text)) for line in lines]


def _without_tag(line: str) -> str:
    if match := _LEAF.fullmatch(line):
        tag, value = match["tag"], match["value"].strip()
        reason = _REASON_TAG.fullmatch(tag)
        words = reason[1].replace("_", " ").lower() if reason else ""
        name = next((known for known in _REASONS if known.lower() == words.removeprefix("gpu ")), _TAGS.get(tag))
        if name in _ALONE:
            return f"{name}  : {value}"
        return f"    {name}    : {value}" if name else line
    if match := _OPENED.fullmatch(line):
        return f"GPU {match['gpu']}" if match["gpu"] else f"    {_TAGS.get(match['tag'], match['tag'])}"
    return line


_ALONE = ("Driver Version", "Attached GPUs")


def listed(facts: PastedFacts, match: re.Match[str], section: str) -> str:
    """A line of a list or a table of GPUs."""
    if match.re in (ANY_DRIVER, HEAD):
        facts.driver = match[1]
    elif match.re is PROCESS:
        _process(facts, match)
    elif match.re in (MEMORY, hosts.MIG_CELL, hosts.MIG_LISTED, NVLINK):
        if facts.gpus:  # else of a row above that was cut
            _below_a_row(facts, match)
    else:
        _row(facts, match)
    return section


def informed(facts: PastedFacts, match: re.Match[str], at: str) -> str:
    """A line of /proc/driver/nvidia/gpus/*/information, in order of their addresses, or of dcgmi."""
    fields: dict[str, Any] = {name: word for name, word in match.groupdict().items() if word}
    facts.driver = facts.driver or fields.pop("driver", "")
    if "name" in fields:
        facts.gpus.append({**fields, "index": int(fields.get("index", len(facts.gpus)))})
    else:
        facts.gpus[-1].update(fields)
    return at


def _row(facts: PastedFacts, match: re.Match[str]) -> None:
    fields: dict[str, Any] = {name: word.strip() for name, word in match.groupdict("").items() if word}
    indices = fields.pop("indices", str(len(facts.gpus))).split(",")
    if errors := fields.pop("uncorrected", ""):
        fields["ecc"] = {"uncorrected": int(errors)}
    if (persistence := _ON.get(fields.pop("persistence", "").lower())) is not None:
        fields["persistence"] = persistence
    if "total" in fields:
        fields["memory"] = {name: int(fields.pop(name)) << 20 for name in ("total", "used")}
    facts.gpus += [{"index": index, **fields} for index in sorted({int(gpu_index) for gpu_index in indices})]


def _below_a_row(facts: PastedFacts, match: re.Match[str]) -> None:
    gpu = facts.gpus[-1]
    if match.re is NVLINK:
        kind, word = ("nvlink_ends", match["remote"]) if match["remote"] else ("nvlink_states", match["state"])
        told: dict[str, dict[str, str]] = facts.also.setdefault(kind, {})
        told.setdefault(str(gpu["index"]), {})[match["link"]] = word.strip("<>")
    elif match.re is not MEMORY:
        hosts.divided_gpu(facts, match)
    elif "memory" not in gpu:
        gpu["memory"] = {name: int(match[name]) << 20 for name in ("total", "used")}
        gpu["busy"] = int(match["busy"] or 0)
        gpu["sensor_error"] = "ERR!" in match["sensors"]
        if match["mode"] in _MODES:
            gpu["compute_mode"] = _MODES[match["mode"]]


def _process(facts: PastedFacts, match: re.Match[str]) -> None:
    for gpu in facts.gpus:
        if gpu["index"] == int(match["index"]):
            held = {"pid": int(match["pid"]), "used_bytes": int(match["used"]) << 20}
            gpu.setdefault("processes", []).append(held)


def queried(facts: PastedFacts, match: re.Match[str], section: str) -> str:
    """A line of `nvidia-smi -q`; section: what the lines above it are about."""
    if match.re is DRIVER:
        facts.driver = match[1]
    elif match.re is ATTACHED:
        facts.also["attached"] = int(match[1])
    elif match.re is GPU:
        return listed(facts, match, "")
    elif match.re in (PART, SECTION):
        return _section(facts, match[match.lastindex or 0].strip(), section, alone=match.re is PART)
    elif (gpu := _about(facts)) is not None:
        _field(facts, gpu, section, match[1], match[2].strip())
    return section


def _section(facts: PastedFacts, name: str, section: str, *, alone: bool) -> str:
    """The name of what follows; of errors with the kind above it. alone: it may begin a piece of a GPU that the text
    does not name"""
    if alone and not facts.gpus:
        pieces: list[_Gpu] = facts.also.setdefault("nameless", [])
        if len(pieces) < _MOST_PARTS and (not pieces or name in pieces[-1]["sections"]):
            pieces.append({"sections": []})
        pieces[-1]["sections"].append(name)
    if name in ("Single Bit", "Double Bit"):
        return f"{section.partition(' ')[0]} {name}"
    return name


def _about(facts: PastedFacts) -> _Gpu | None:
    pieces: list[_Gpu] = facts.also.get("nameless", [])
    return next(iter((facts.gpus or pieces)[-1:]), None)


def _field(facts: PastedFacts, gpu: _Gpu, section: str, name: str, value: str) -> None:
    if (section, name, value) == ("MIG Mode", "Current", "Enabled") and "index" in gpu:
        facts.also.setdefault("mig", {}).setdefault(str(gpu["index"]), [])
    elif name == "Virtualization Mode":
        facts.also["guest"] = value in ("Pass-Through", "VGPU")
    elif name in _REASONS:
        bit = _REASONS[name] if value == "Active" else 0
        gpu["clocks_event_reasons"] = gpu.get("clocks_event_reasons", 0) | bit
    elif reads := _BY_SECTION.get(section.partition(" Bit")[0] if " Bit" in section else section):
        reads(gpu, name, value)
    if (simple := _BY_NAME.get(name)) and (section, name) != (_LICENSED, "Product Name"):
        simple(gpu, name, value)


_LICENSED = "vGPU Software Licensed Product"


def _text(key: str) -> Callable[[_Gpu, str, str], None]:
    def keep(gpu: _Gpu, _: str, value: str) -> None:
        gpu.setdefault(key, value)

    return keep


def _choice(key: str, values: dict[str, int]) -> Callable[[_Gpu, str, str], None]:
    def keep(gpu: _Gpu, _: str, value: str) -> None:
        if value in values:
            gpu.setdefault(key, values[value])

    return keep


def _number(key: str) -> Callable[[_Gpu, str, str], None]:
    def keep(gpu: _Gpu, _: str, value: str) -> None:
        if read := re.match(r"(\d{1,9})\b", value):
            gpu.setdefault(key, int(read[1]))

    return keep


def _power(gpu: _Gpu, name: str, value: str) -> None:
    if watts := re.match(r"(\d{1,5})(?:\.\d{1,2})? W", value):
        gpu.setdefault("power", {}).setdefault(_POWER[name], int(watts[1]))


def _memory(gpu: _Gpu, name: str, value: str) -> None:
    size = re.match(r"(\d{1,9}) MiB", value)
    if size and name in ("Total", "Used"):
        gpu.setdefault("memory", {}).setdefault(name.lower(), int(size[1]) << 20)


def _bar(gpu: _Gpu, name: str, value: str) -> None:
    if name == "Total" and (size := re.match(r"(\d{1,9}) MiB", value)):
        gpu.setdefault("bar1_total", int(size[1]) << 20)


def _width(gpu: _Gpu, name: str, value: str) -> None:
    if name in ("Max", "Current") and (width := re.match(r"(\d{1,2})x$", value)):
        gpu.setdefault("link", {})["max_width" if name == "Max" else "width"] = int(width[1])


def _generation(gpu: _Gpu, name: str, value: str) -> None:
    if name in ("Max", "Current") and re.fullmatch(r"[1-7]", value):
        gpu.setdefault("link", {})["max_gen" if name == "Max" else "gen"] = int(value)


def _row_of_remapped(gpu: _Gpu, name: str, value: str) -> None:
    if name in _ROWS and re.fullmatch(r"\d{1,6}|Yes|No", value):
        rows: list[int] = gpu.setdefault("remapped_rows", [0, 0, 0, 0])
        rows[_ROWS.index(name)] = int(value) if value.isdecimal() else int(value == "Yes")


def _retired(gpu: _Gpu, name: str, value: str) -> None:
    if name.startswith("Pending"):
        gpu["pages_pending"] = value == "Yes"


def _ecc_mode(gpu: _Gpu, name: str, value: str) -> None:
    if name == "Current" and value in ("Enabled", "Disabled"):
        gpu.setdefault("ecc", {})["enabled"] = _ON[value]


def _volatile_errors(gpu: _Gpu, name: str, value: str) -> None:
    """A name that comes again is one of all the GPU's life, whose heading was cut out."""
    names: list[str] = gpu.setdefault("of_volatile", [])
    if name in names or "again" in names:
        names.append("again")
        return
    names.append(name)
    if "Uncorrectable" in name and value.isdecimal():
        ecc = gpu.setdefault("ecc", {})
        ecc["uncorrected"] = ecc.get("uncorrected", 0) + int(value)


def _volatile_double(gpu: _Gpu, name: str, value: str) -> None:
    if name == "Total" and value.isdecimal():
        gpu.setdefault("ecc", {})["uncorrected"] = int(value)


def _fabric(gpu: _Gpu, name: str, value: str) -> None:
    if name in ("State", "Status"):
        gpu.setdefault("fabric", {})[name.lower()] = value


_BY_SECTION: dict[str, Callable[[_Gpu, str, str], None]] = {
    "FB Memory Usage": _memory,
    "BAR1 Memory Usage": _bar,
    "Link Width": _width,
    "PCIe Generation": _generation,
    "Remapped Rows": _row_of_remapped,
    "Retired Pages": _retired,
    "ECC Mode": _ecc_mode,
    "Ecc Mode": _ecc_mode,
    "Volatile": _volatile_errors,
    "Volatile Double": _volatile_double,
    "Fabric": _fabric,
}
_BY_NAME: dict[str, Callable[[_Gpu, str, str], None]] = {
    "Product Name": _text("name"),
    "GPU UUID": _text("uuid"),
    "Bus Id": _text("pci_bus_id"),
    "Performance State": _text("state"),
    "Persistence Mode": _choice("persistence", _ON),
    "Compute Mode": _choice("compute_mode", _MODES),
    "Reset Required": _choice("reset_required", {"Yes": 1}),
    "GPU Recovery Action": _choice("reset_required", {"Reset": 1, "Reboot": 1, "Drain and Reset": 1}),
    "Replays Since Reset": _number("replays"),
    "GPU Current Temp": _number("celsius"),
    "License Status": _text("license"),
    **dict.fromkeys(_POWER, _power),
}
