"""QEMU machines with Debian's kernel, whose rdma_rxe makes RDMA ports of virtio network cards: RDMA's verbs for real.

They are emulated instruction by instruction (TCG), which no bandwidth survives. Each has one network for management and
one for each rail, as bridges in this process's network namespace, which must be its own.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from tests.support.waiting import until

from l40s_lab.engine.environment import cache_root
from l40s_lab.node import rootfs
from l40s_lab.nvml import library

PACKAGES = (
    *("linux-image-amd64", "initramfs-tools", "iproute2", "kmod", "openssh-server", "python3", "procps", "pciutils"),
    *("rdma-core", "ibverbs-utils", "ibverbs-providers", "perftest", "ethtool", "netbase", "iputils-ping"),
)
NEEDS = {"qemu-system-x86_64": "qemu-system-x86", "mmdebstrap": "mmdebstrap", "mkfs.ext4": "e2fsprogs"}
"""Program, and the package that has it."""
RAILS = 2
MTU = 9000
"""Of the rails: with frames of 1500 bytes perftest takes half a minute a run under emulation."""
BOOT_S = 300.0
IMAGE_BYTES = 3 << 30
MEMORY_MIB = 512
ACCELERATOR = "tcg,thread=multi,tb-size=128"
"""KVM is no use inside most virtual machines."""

INIT = """\
#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mountpoint -q /proc || mount -t proc proc /proc
mountpoint -q /sys || mount -t sysfs sys /sys
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
for place in /dev/shm /run /tmp; do mount -t tmpfs -o size=4g tmp $place; done
mkdir -p /run/sshd /run/l40s-lab
ln -sfn /proc/self/fd /dev/fd
cp /etc/nvml.conf /run/l40s-lab/
for word in $(cat /proc/cmdline); do case $word in machine=*) me=${word#machine=};; esac; done
hostname rxe$me
ip link set lo up
for driver in virtio_net crc32_generic rdma_rxe ib_uverbs rdma_ucm ib_umad; do modprobe $driver; done
for net in 0 1 2; do ip link set eth$net up; ip addr add 10.77.$net.1$me/24 dev eth$net; done
for net in 1 2; do rdma link add rxe$((net - 1)) type rxe netdev eth$net; done
/usr/sbin/sshd
while :; do sleep 3600 & wait $!; done
"""
SSHD = """\
PermitRootLogin prohibit-password
PasswordAuthentication no
UseDNS no
UsePAM no
HostKey /etc/ssh/ssh_host_ed25519_key
Subsystem sftp internal-sftp
"""
KERNEL_LINE = "console=ttyS0 quiet panic=-1 net.ifnames=0 mitigations=off root=/dev/vda rw init=/sbin/machine-init"
SMALL_INITRD = 'd="$1/etc/initramfs-tools/conf.d"; mkdir -p "$d"; printf "MODULES=list\\nCOMPRESS=gzip\\n" >"$d/small"'
"""Before the kernel is installed, which makes one: with every module it takes minutes."""
BOOT_MODULES = "virtio_pci\nvirtio_blk\next4\n"
GPU = {
    "name": "NVIDIA L40S",
    "busid": "00000000:00:08.0",
    "uuid": "GPU-4a4c0001-0000-4000-8000-000000000001",
    "serial": 1,
    "device": "0x26b910de",
    "subsystem": "0x185110de",
    "numa": 0,
    "mem_total": 46068,
    "mem_reserved": 600,
    "bar1_total": 65536,
    "maxgen": 4,
    "width": 16,
    "maxwidth": 16,
    "power_limit": 350000,
}
"""Of the lab's NVML, so that a gang can be planned; QEMU's device for tests stands behind it."""


@dataclass
class Machines:
    """So many running machines, named rxe1, rxe2, ..."""

    count: int
    folder: Path
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return [f"rxe{number}" for number in range(1, self.count + 1)]

    @property
    def inventory(self) -> Path:
        return self.folder / "hosts.yml"

    def up(self) -> None:
        """Returns when each one's sshd lets us in."""
        ip("link", "set", "lo", "up")
        for net in range(RAILS + 1):
            ip("link", "add", f"br{net}", "type", "bridge")
            ip("link", "set", f"br{net}", "mtu", str(MTU), "up")
        ip("addr", "add", "10.77.0.1/24", "dev", "br0")
        for number in range(1, self.count + 1):
            self.running.append(self._boot(number))
        host_key = " ".join((image().parent / "host_key.pub").read_text().split()[:2])
        known = [f"10.77.0.1{number} {host_key}\n" for number in range(1, self.count + 1)]
        (self.folder / "known_hosts").write_text("".join(known))
        shutil.copy(image().parent / "key", self.folder / "key")
        self.write_inventory()
        for name in self.names:
            until(lambda name=name: self._lets_in(name), BOOT_S, f"{name} boots")  # type: ignore[misc]

    def _boot(self, number: int) -> subprocess.Popen[bytes]:
        cards: list[str] = []
        for net in range(RAILS + 1):
            tap = f"t{number}{net}"
            ip("tuntap", "add", tap, "mode", "tap")
            ip("link", "set", tap, "mtu", str(MTU), "master", f"br{net}", "up")
            facts = f"mac=52:54:00:77:0{net}:1{number},host_mtu={MTU if net else 1500},speed={100000 if net else 10000}"
            cards += ["-netdev", f"tap,id=n{net},ifname={tap},script=no,downscript=no"]
            cards += ["-device", f"virtio-net-pci,netdev=n{net},romfile=,duplex=full,{facts}"]
        boot = image().parent / "root/boot"
        words = (
            *("qemu-system-x86_64", "-accel", ACCELERATOR, "-cpu", "max", "-M", "q35", "-m", str(MEMORY_MIB)),
            *("-display", "none", "-no-reboot", "-nodefaults", "-serial", f"file:{self.folder}/rxe{number}.log"),
            *("-kernel", str(next(boot.glob("vmlinuz-*"))), "-initrd", str(next(boot.glob("initrd.img-*")))),
            *("-append", f"{KERNEL_LINE} machine={number}", "-device", "virtio-rng-pci", *cards),
            *("-device", "pci-testdev,addr=8"),
            *("-drive", f"file={image()},format=raw,if=virtio,snapshot=on"),
        )
        return subprocess.Popen(words, stdin=subprocess.DEVNULL)

    def _lets_in(self, name: str) -> bool:
        machine = self.running[self.names.index(name)]
        assert machine.poll() is None, (self.folder / f"{name}.log").read_text(errors="replace")[-2000:]
        return self._ssh(name, "true", 5.0).returncode == 0

    def down(self) -> None:
        for machine in self.running:
            machine.kill()
            machine.wait()

    def on(self, name: str, script: str, *, timeout: float = 60.0) -> str:
        """Run a script on a machine, as root."""
        done = self._ssh(name, script, timeout)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _ssh(self, name: str, script: str, timeout: float) -> subprocess.CompletedProcess[str]:
        options = ["-F", "none", "-i", str(self.folder / "key"), "-o", f"UserKnownHostsFile={self.folder}/known_hosts"]
        options += ["-o", "BatchMode=yes", "-o", "ConnectTimeout=4", "-o", "LogLevel=ERROR"]
        words = ["ssh", *options, f"root@10.77.0.1{name[-1]}", script]
        try:
            return subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired as late:
            return subprocess.CompletedProcess(words, 255, "", str(late))

    def write_inventory(self) -> None:
        """Of one gang of them all."""
        hosts = {f"rxe{n}": {"ansible_host": f"10.77.0.1{n}"} for n in range(1, self.count + 1)}
        common = {
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(self.folder / "key"),
            "ansible_ssh_common_args": f"-o UserKnownHostsFile={self.folder}/known_hosts",
            "ansible_python_interpreter": "/usr/bin/python3",
            "l40s_gpus": 1,
        }
        document = {"all": {"vars": common, "children": {"gangs": {"children": {"gang0": {"hosts": hosts}}}}}}
        self.inventory.write_text(yaml.safe_dump(document))

    def deploy(self, *words: str, timeout: float = 600.0) -> subprocess.CompletedProcess[str]:
        """Run `l40s-deploy WORDS`."""
        command = [str(Path(sys.executable).with_name("l40s-deploy")), *words, "--inventory", str(self.inventory)]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)

    def json(self, *words: str) -> Any:
        done = self.deploy(*words, "--json")
        assert done.stdout, done.stderr
        return json.loads(done.stdout)


@contextmanager
def machines(count: int) -> Iterator[Machines]:
    """They end with the context."""
    with tempfile.TemporaryDirectory(prefix="rxe-") as folder:
        made = Machines(count, Path(folder))
        try:
            made.up()
            yield made
        finally:
            made.down()


def obstacle() -> str:
    """Why none can be built here; '' where nothing is known."""
    missing = [package for program, package in NEEDS.items() if shutil.which(program) is None]
    if missing:
        return f"run `apt-get install --no-install-recommends {' '.join(missing)}`"
    release = rootfs.this_release()
    return "" if release and release.distribution == "debian" else "linux-image-amd64 is a package of Debian"


def image() -> Path:
    """Of all machines' disk."""
    return cache_root() / "test" / "rxe" / "root.img"


def build() -> None:
    """Kernel, packages and disk, once: some minutes."""
    if image().exists():
        return
    folder = image().parent
    root = folder / "root"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    install(root)
    set_up(root)
    fresh = image().with_suffix(".new")
    with fresh.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    run("mkfs.ext4", "-q", "-O", "^has_journal", "-d", str(root), str(fresh))
    fresh.replace(image())


def install(root: Path) -> None:
    """The release's packages, from where this machine has its own."""
    release = rootfs.this_release()
    assert release is not None
    leave_out = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")]
    run(
        *("mmdebstrap", "--variant=minbase", "--mode=root", f"--include={','.join(PACKAGES)}"),
        *(f"--aptopt={line}" for line in ('APT::Install-Recommends "false"', *rootfs.proxies())),
        *(*leave_out, f"--essential-hook={SMALL_INITRD}", release.codename, str(root)),
        *rootfs.sources(release, rootfs.source_files()),
    )


def set_up(root: Path) -> None:
    """What makes a machine of it: keys, init, the lab's NVML, and an initrd that finds the disk."""
    folder = root.parent
    for name in ("key", "host_key"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
    facts = ["driver=580.95.05", "nvml=13.580.95.05", "cuda=13000", "count=1"]
    texts = {
        "etc/ssh/sshd_config": SSHD,
        "sbin/machine-init": INIT,
        "etc/initramfs-tools/modules": BOOT_MODULES,
        "etc/nvml.conf": "\n".join([*facts, *(f"0.{key}={value}" for key, value in GPU.items())]) + "\n",
        "root/.ssh/authorized_keys": (folder / "key.pub").read_text(),
        "etc/ssh/ssh_host_ed25519_key": (folder / "host_key").read_text(),
        "etc/ssh/ssh_host_ed25519_key.pub": (folder / "host_key.pub").read_text(),
    }
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
        (root / name).chmod(0o755 if name == "sbin/machine-init" else 0o600 if "ssh" in name else 0o644)
    shutil.copy(library.build(), root / "usr/lib/x86_64-linux-gnu" / library.NAME)
    run("chroot", str(root), "ldconfig")
    run("chroot", str(root), "update-initramfs", "-u", "-k", "all")


def run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 0, f"{shlex.join(words)}: {done.stderr[-2000:]}"


def ip(*words: str) -> None:
    run("ip", *words)
