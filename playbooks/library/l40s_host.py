"""Ansible module: what this host has of all that prepare may have to make. Reads only."""

from __future__ import annotations

import os
import pwd
import re
import resource
import subprocess
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: l40s_host
short_description: What this host has of what prepare makes
description:
  - Answers in one round trip what several roles ask before they change anything. Fails where it is not root.
options:
  packages:
    description: Debian packages that must be installed.
    type: list
    elements: str
    default: []
  rdma_packages:
    description: Those of them that a vendor's RDMA stack (MLNX_OFED, DOCA) brings itself.
    type: list
    elements: str
    default: []
  python:
    description: The Python that the stack wants, as major.minor.
    type: str
    default: "3.10"
  python_exact:
    description: Whether a newer one won't do.
    type: bool
    default: false
  sysctls:
    description: Names of the kernel settings to read.
    type: list
    elements: str
    default: []
  manifest:
    description: The list that l40s_record keeps.
    type: path
    default: /etc/l40s-deploy/prepared
author:
  - l40s-deploy
"""

EXAMPLES = r"""
- name: Look at the host
  l40s_host:
    packages: [gcc, numactl]
  register: l40s_host
"""

RETURN = r"""
debian:
  description: Whether dpkg keeps this host's packages.
  returned: always
  type: bool
release:
  description: Distribution, release and architecture, as C(debian bookworm amd64); what is unknown is left out.
  returned: always
  type: str
limits:
  description:
    - What limits.conf(5) may ask for by item (memlock in KiB or C(unlimited), nofile). Less than wanted where not even
      root may raise a limit (a container), since pam_limits would then refuse every login.
  returned: always
  type: dict
packages_missing:
  description: Wanted packages that are not installed; those of RDMA are left out where a vendor's stack is there.
  returned: always
  type: list
  elements: str
vendor_rdma:
  description: A package of the vendor's RDMA stack, empty where there is none.
  returned: always
  type: str
login_user:
  description: Who logged in; before sudo, where sudo was used.
  returned: always
  type: str
python_path:
  description: The interpreter to use; one that does not exist where no fitting one is there.
  returned: always
  type: str
python_version:
  description: Its major.minor.
  returned: always
  type: str
sysctls:
  description: Current values by name; a setting that this kernel does not have is missing.
  returned: always
  type: dict
gpu_driver:
  description: Whether NVIDIA's kernel module is loaded.
  returned: always
  type: bool
peermem:
  description: loaded, available, or none, for the kernel module nvidia-peermem.
  returned: always
  type: str
made:
  description: The recorded lines by kind; of the packages those that are installed now.
  returned: always
  type: dict
"""

VENDOR = re.compile(r"(mlnx-ofed|mlnx-ofa|ofed-scripts|doca-).*")
PYTHON = re.compile(r"python(3\.\d+)")
NOFILE = 1048576
KINDS = ("file", "folder", "tree", "user", "package", "module", "sysctl", "image")


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "packages": {"type": "list", "elements": "str", "default": []},
            "rdma_packages": {"type": "list", "elements": "str", "default": []},
            "python": {"type": "str", "default": "3.10"},
            "python_exact": {"type": "bool", "default": False},
            "sysctls": {"type": "list", "elements": "str", "default": []},
            "manifest": {"type": "path", "default": "/etc/l40s-deploy/prepared"},
        },
        supports_check_mode=True,
    )
    if os.geteuid() != 0:
        module.fail_json(msg=f"this needs root, and the tasks run as {_login_user()}")
    wanted = module.params
    version, path = _python(wanted["python"], wanted["python_exact"])
    packages = [*wanted["packages"], *(f"python{version}{part}" for part in ("", "-dev", "-venv"))]
    installed = _installed()
    vendor = _vendor(installed)
    module.exit_json(
        changed=False,
        debian=installed is not None,
        release=_release(),
        limits=_limits(),
        packages_missing=_missing(packages, installed, wanted["rdma_packages"] if vendor else []),
        vendor_rdma=vendor,
        login_user=_login_user(),
        python_path=path,
        python_version=version,
        sysctls=_sysctls(wanted["sysctls"]),
        gpu_driver=Path("/sys/module/nvidia").is_dir(),
        peermem=_peermem(),
        made=_made(wanted["manifest"], installed),
    )


def _installed() -> dict[str, str] | None:
    """Version by name of every installed package; None where there is no dpkg."""
    try:
        done = subprocess.run(
            ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status} ${Version}\n"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except FileNotFoundError:
        return None
    rows = (line.split(" ", 2) for line in done.stdout.splitlines())
    return {row[0]: row[2] for row in rows if len(row) == 3 and row[1] == "installed"}


def _release() -> str:
    facts = dict(line.split("=", 1) for line in (_read("/etc/os-release") or "").splitlines() if "=" in line)
    words = [facts.get(key, "").strip("\"'") for key in ("ID", "VERSION_CODENAME")]
    try:
        done = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, timeout=30, check=False)
        words.append(done.stdout.strip())
    except FileNotFoundError:
        pass
    return " ".join(word for word in words if word)


def _limits() -> dict[str, str]:
    memlock = _attainable(resource.RLIMIT_MEMLOCK, resource.RLIM_INFINITY)
    return {
        "memlock": "unlimited" if memlock == resource.RLIM_INFINITY else str(memlock // 1024),
        "nofile": str(_attainable(resource.RLIMIT_NOFILE, NOFILE)),
    }


def _attainable(kind: int, wanted: int) -> int:
    soft, hard = resource.getrlimit(kind)
    if hard == resource.RLIM_INFINITY or 0 <= wanted <= hard:
        return wanted
    try:
        resource.setrlimit(kind, (soft, wanted))
    except (OSError, ValueError):
        return hard
    resource.setrlimit(kind, (soft, hard))
    return wanted


def _vendor(installed: dict[str, str] | None) -> str:
    for name, version in sorted((installed or {}).items()):
        if VENDOR.fullmatch(name) or (name == "libibverbs1" and "mlnx" in version.lower()):
            return name
    return ""


def _missing(packages: list[str], installed: dict[str, str] | None, left_out: list[str]) -> list[str]:
    return [name for name in packages if name not in (installed or {}) and name not in left_out]


def _login_user() -> str:
    return os.environ.get("SUDO_USER") or pwd.getpwuid(os.getuid()).pw_name


def _python(wanted: str, exact: bool) -> tuple[str, str]:
    """The wanted one; else the distribution's own where it is newer and may be."""
    own = PYTHON.fullmatch(Path("/usr/bin/python3").resolve().name)
    there = Path(f"/usr/bin/python{wanted}").exists()
    if own and not there and not exact and _number(own.group(1)) > _number(wanted):
        return own.group(1), f"/usr/bin/python{own.group(1)}"
    return wanted, f"/usr/bin/python{wanted}"


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _sysctls(names: list[str]) -> dict[str, str]:
    found = {}
    for name in names:
        text = _read("/proc/sys/" + name.replace(".", "/"))
        if text is not None:
            found[name] = text.strip()
    return found


def _peermem() -> str:
    if Path("/sys/module/nvidia_peermem").is_dir():
        return "loaded"
    try:
        done = subprocess.run(["modinfo", "nvidia-peermem"], capture_output=True, timeout=30, check=False)
    except FileNotFoundError:
        return "none"
    return "available" if done.returncode == 0 else "none"


def _made(manifest: str, installed: dict[str, str] | None) -> dict[str, list[str]]:
    made: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for line in (_read(manifest) or "").splitlines():
        kind, _, name = line.partition(" ")
        if kind != "package" or name in (installed or {}):
            made.setdefault(kind, []).append(name)
    return made


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


if __name__ == "__main__":
    main()
