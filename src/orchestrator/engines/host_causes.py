"""What the kernel, who runs a container or job, and parts beside the engine write, and what it means.

People paste these lines together with the engine's. Agents look for none of them: they ask the kernel itself.
Sources: Linux, systemd.exec(5), NVIDIA's container toolkit, kubelet, Ray, UCX, NVSHMEM and Mooncake, and the issues
named in tests/unit/gang/steps/status/logs. A pattern takes time in proportion to the text, as in engines/causes.py.
"""

from __future__ import annotations

from orchestrator.protocol.kernel_lines import (
    BROKEN_MEMORY_FIX,
    CONTAINED_ERROR,
    MACHINE_CHECK,
    MEMORY_BROKEN,
    NOT_STARTED,
    PCI_ADDRESS,
    PCIE_ERROR_FIX,
)
from orchestrator.protocol.staging import CausePattern
from orchestrator.protocol.xids import XIDS, Xid

_XID = r"NVRM: Xid \(PCI:(?P<own>[0-9A-Fa-f:.]{7,16})[^)]{0,16}\): "
_MORE_XIDS: dict[int | str, Xid] = {
    8: Xid("XID-8", "was found locked by its driver's watchdog", XIDS[119].fix, ""),
    61: Xid("XID-61", "stopped in its own firmware", XIDS[62].fix, ""),
    110: Xid("XID-110", "has a security fault", XIDS[48].fix, ""),
    94: Xid("GPU-ECC", f"{CONTAINED_ERROR}, which ended the process", XIDS[48].fix, ""),
    r"154\b.{0,128} to 0x[1-9]": Xid("XID-154", "needs a reset, or its node a reboot", XIDS[48].fix, ""),
    r"(?:14[4-9]|150), \w{1,32} Fatal": Xid("GPU-NVLINK", "has a fatal NVLink error", XIDS[74].fix, ""),
}
"""Of which an agent makes no finding: by number, and more of the line. 144 to 150: NVLink 5's."""

_MODULE = r"(?:nvidia|nv_peer|gdrdrv|ib_|rdma|mlx|bnxt|irdma|efa)\w{0,40}"
"""Kernel modules that an engine's GPUs and cards need; another module's misfit says nothing of them."""

HOST = (
    CausePattern(
        id="CGROUP-OUT-OF-MEMORY",
        pattern=r"oom-kill:constraint=CONSTRAINT_MEMCG|[Mm]emory cgroup out of memory: Kill",
        text="the kernel ended a process: the memory limit of its cgroup (container, systemd unit, Slurm job) was"
        " reached, not the node's",
        fix="raise that limit: `--memory` of the container, MemoryMax of the unit, `--mem` of the job",
    ),
    CausePattern(
        id="HOST-OUT-OF-MEMORY",
        pattern=r"oom-kill:constraint=CONSTRAINT_(?:CPUSET|MEMORY_POLICY)",
        text="the kernel ended a process: the NUMA nodes that it is bound to were out of main memory",
        fix="bind it to more NUMA nodes, or find what else uses their memory: `numastat -m`",
    ),
    CausePattern(
        id="HOST-OUT-OF-MEMORY",
        pattern=r"oom-kill:constraint=CONSTRAINT_NONE|(?<!cgroup )[Oo]ut of memory: Kill(?:ed)? process",
        text="the kernel ended a process: the node was out of main memory",
        fix="find what else uses memory on the node: `ps aux --sort -rss`",
    ),
    CausePattern(
        id="HOST-OUT-OF-MEMORY",
        weak=True,
        pattern=r"oom-kill:constraint=|\bOOM ?Killed\b|\boom[_-]kill event"
        r"|Exceeded (?:step|job) memory limit"
        r"|unit has been killed by the OOM killer|invoked oom-killer:|Failed with result 'oom-kill'"
        r"|which exceeds the memory usage threshold of \d|Worker exit type: NODE_OUT_OF_MEMORY"
        r"|Killed \S{1,256} due to memory (?:pressure|used)|ray\.exceptions\.OutOfMemoryError|'(?:cicc|ptxas)' died due"
        r"|\bsending SIG(?:TERM|KILL) to process \d{1,9} uid \d"
        r"|srun: error: \S{1,128}: tasks? [\d,-]{1,64}: Out Of Memory"
        r"|\b[1-9]\d{0,6} Workers \(tasks / actors\) killed due to memory pressure|The node was low on resource: memory"
        r"|Killed signal terminated program (?:cc1plus|cicc|ptxas)",
        text="the kernel ended a process: the node, or its cgroup (container, systemd unit, Slurm job), was out of main"
        " memory",
        fix="find what else uses memory on the node (`ps aux --sort -rss`), or raise the limit of the container or job",
    ),
    CausePattern(
        id="MODULE-MISFIT",
        pattern=rf"\b(?P<own>{_MODULE}): (?:disagrees about version of symbol|Unknown symbol) \w{{1,80}}"
        rf"|could not insert '(?P<own_module>{_MODULE})': (?:Invalid argument|Unknown symbol|Exec format error)",
        text="a kernel module can't be loaded: it was built for another kernel, or against another OFED or driver than"
        " is installed (nvidia-peermem: GPUDirect RDMA is off without it)",
        fix="build it anew for the running kernel (`dkms autoinstall`); of nvidia-peermem, install the driver again"
        " after OFED, or use DMA-BUF (open kernel module, kernel 5.12)",
        weak=True,
    ),
    CausePattern(
        id="MODULE-UNSIGNED",
        pattern=rf"could not insert '?(?P<own>{_MODULE})'?: (?:Key was rejected by service|Required key not available)"
        r"|Kernel module load error: (?:Key was rejected by service|Required key not available)"
        rf"|(?:[Ff]ailed to (?:insert|load) (?:kernel )?module|insmod: ERROR: could not insert module) "
        rf"\S{{0,128}}?(?P<own_module>{_MODULE})\S{{0,16}}: (?:Key was rejected|Required key)",
        text="Secure Boot refuses the kernel module: it is not signed with a key that this machine knows",
        fix="enrol the key that signs it (`mokutil --import`, then at the next boot), or turn Secure Boot off in the"
        " firmware or the virtual machine's settings",
    ),
    CausePattern(
        id="MODULE-DENIED",
        pattern=rf"could not insert '?(?P<own>{_MODULE})'?: Operation not permitted",
        text="a kernel module may not be loaded from here: a container without CAP_SYS_MODULE, or a locked-down kernel",
        fix="load it on the node itself (`modprobe`), before the container starts; `dmesg -T | grep -i lockdown`"
        " shows a"
        " lock-down",
        weak=True,
    ),
    CausePattern(
        id="MODULE-UNSIGNED",
        pattern=r"Loading of (?:module with unavailable key|unsigned module) is rejected",
        text="Secure Boot refuses a kernel module: it is not signed with a key that this machine knows",
        fix="enrol the key that signs it (`mokutil --import`, then at the next boot), or turn Secure Boot off in the"
        " firmware or the virtual machine's settings",
        weak=True,
    ),
    CausePattern(
        id="MODULE-MISFIT",
        pattern=r"ERROR: Unable to load the kernel module 'nvidia\S{0,16}'"
        r"|Error! Bad return status for module build on kernel: (?P<own_kernel>\S{1,64})",
        text="the NVIDIA kernel module does not exist for the running kernel, or could not be built or loaded for it",
        fix="install the running kernel's headers and build it anew (`dkms autoinstall`); `dmesg -T | grep -i nvidia`"
        " says why it was refused",
        weak=True,
    ),
    CausePattern(
        id="GPU-DRIVER-BUSY",
        pattern=r"Could not unload NVIDIA driver kernel modules, driver is in use"
        r"|Module nvidia\w{0,16} is in use(?: by| *$)|NVIDIA kernel module '[\w-]{1,32}' appears to already be loaded",
        text="the NVIDIA driver can't be replaced: processes of this node still use the loaded one",
        fix="end what uses the GPUs (`fuser -v /dev/nvidia*`: engines, nvidia-persistenced, DCGM), or reboot the node",
        weak=True,
    ),
    CausePattern(
        id="GPU-DRIVER",
        pattern=r"NVRM: (?:The NVIDIA .{1,128} )?installed in this system (?:is not supported by|requires use of)",
        text="the installed driver does not know a GPU of this node: it is older than the GPU, no longer supports it,"
        " or"
        " is the proprietary kernel module where only the open one will do",
        fix="install a driver for this GPU (Blackwell and newer ask for the open kernel module, nvidia-open), and"
        " reboot",
        weak=True,
    ),
    CausePattern(
        id="GPU-LOST",
        pattern=r"NVRM: No NVIDIA (?:GPU|graphics adapter|devices?) (?:found|probed)",
        text="the driver finds no GPU that it may use on this node",
        fix="see whether `lspci | grep -i nvidia` lists it, and which driver holds it (`lspci -k`: vfio-pci,"
        " nouveau); of"
        " a virtual machine, whether the GPU is passed through",
        weak=True,
    ),
    CausePattern(
        id="GPU-BAR1-SMALL",
        pattern=r"NVRM: .{0,64}PCI I/O region assigned to your NVIDIA device is invalid",
        text="the firmware gave a GPU no memory window (BAR), so the driver can't use it",
        fix="enable Above 4G Decoding (and SR-IOV's MMIO size) in the BIOS, or boot with pci=realloc",
    ),
    CausePattern(
        id="GPU-LOST",
        pattern=r"NVRM: .{0,64}(?:RmInitAdapter|rm_init_adapter) failed|NVRM: kfsp\w{1,48}: FSP command timed out",
        text=f"a GPU {NOT_STARTED}",
        fix=XIDS[79].fix,
    ),
    CausePattern(
        id="IOMMU-TRANSLATING",
        pattern=r"\b(?:nvidia|mlx5_core) [0-9a-f]{4}:(?P<own>[0-9a-f:.]{7}): AMD-Vi: Event logged \[IO_PAGE_FAULT"
        r"|DMAR: \[DMA (?:Write|Read)[^\]]{0,32}\] Request device \[(?P<own_by_intel>[0-9a-f:.]{7,12})\] "
        r".{0,16}fault addr",
        text="the IOMMU refused a device's access to memory that it does not map, as P2P between GPUs and cards needs",
        fix="boot with iommu=pt (Intel: intel_iommu=off) or turn the IOMMU off in the BIOS, and ACS with it"
        " (`l40s-deploy doctor`); NCCL_P2P_DISABLE=1 as a proof (nccl issue 2079)",
        weak=True,
    ),
    CausePattern(
        id="XID-119",
        pattern=r"NVRM: (?P<own_gpu>GPU\d{1,3}) _kgsp\w{1,40}: (?:\*{8,64} GSP Timeout|Heartbeat timed out)",
        text=f"a GPU {XIDS[119].what}",
        fix=XIDS[119].fix,
        weak=True,
    ),
    CausePattern(
        id="GPU-NVLINK",
        pattern=r"\bnvidia-nvswitch(?P<own>\d{1,3}): SXid \(PCI:[^)]{1,16}\): \d{1,6}, Fatal",
        text="an NVSwitch of this machine has a fatal error of a link",
        fix="restart nvidia-fabricmanager after resetting all GPUs, or reboot; if it is always the same link, replace"
        " the baseboard or tray",
        weak=True,
    ),
    CausePattern(
        id="PCIE-ERROR",
        pattern=rf"(?P<own>{PCI_ADDRESS}): (?:AER: )?PCIe Bus Error: severity=Uncorrect(?:ed|able) \(Fatal\)"
        rf"|(?P<own_contained>{PCI_ADDRESS}): DPC: containment event"
        rf"|\b(?:nvidia|mlx5_core) (?P<own_card>{PCI_ADDRESS}): AER: can't recover"
        rf"|(?P<own_port>{PCI_ADDRESS}): AER: device recovery failed",
        text="a card, or the way to it, had a fatal PCIe error",
        fix=PCIE_ERROR_FIX,
        weak=True,
    ),
    CausePattern(
        id="MEMORY-BROKEN",
        pattern=MEMORY_BROKEN,
        text="main memory of this node has an uncorrectable error, which ended a process",
        fix=BROKEN_MEMORY_FIX,
    ),
    CausePattern(
        id="MACHINE-CHECK",
        pattern=MACHINE_CHECK,
        text="the processor or its memory reported a hardware error",
        fix=BROKEN_MEMORY_FIX,
        weak=True,
    ),
    CausePattern(
        id="NIC-DOWN",
        pattern=r"mlx5_core \S{1,16}: Port module event\[error\]: module \d{1,3}, "
        r"(?:Cable error|Bad or unsupported cable|High Temperature|Bus stuck)",
        text="a network card's cable or module failed",
        fix="check the cable, the module and the switch port, then `l40s-deploy doctor`",
    ),
    CausePattern(  # ucx issue 7738; Linux, mellanox/mlx5/core: main.c, cmd.c, health.c
        id="RDMA-CARD-FAILED",
        pattern=r"\bmlx5_core (?P<own>[0-9a-f:.]{7,12}): (?:mlx5_load_one failed with error|.{0,128}(?:\) timeout\."
        r" Will cause a leak of a command|\) No done completion)|.{0,64}(?:health compromised"
        r"|health recovery flow aborted|firmware internal error)|.{0,64}TX timeout detected)"
        r"|\bmlx5_core: probe of (?P<own_probed>[0-9a-f:.]{7,12}) failed",
        text="a network card did not start, or its firmware does not answer the driver",
        fix="compare the card's firmware with the driver (`mlxfwmanager`), read the lines around it, and power-cycle"
        " the machine; if it is always the same card, replace it",
        weak=True,
    ),
    CausePattern(
        id="STORAGE-FAILED",
        pattern=r"\bI/O error, dev \S{1,32}, sector |nvme\S{1,16}: (?:I/O|Device not ready)\b.{0,64}(?:timeout|abort)"
        r"|EXT4-fs error|XFS \(\S{1,32}\): .{0,64}(?:I/O error|orruption)|nfs: server \S{1,128} not responding",
        text="a disk, or a file server, of this node does not answer or fails",
        fix="read the kernel log around it; replace the disk, or mend the file server and mount it again",
        weak=True,
    ),
    CausePattern(
        id="UNIT-START-TIMEOUT",
        pattern=r"\.service: [Ss]tart operation timed out",
        text="systemd ended the engine while it started: its unit's TimeoutStartSec is shorter than a load takes",
        fix="set TimeoutStartSec= in the unit above the longest load, or Type=exec, which waits for no readiness",
        weak=True,
    ),
    CausePattern(
        id="ENGINE-MISSING",
        pattern=r"\.service: .{0,64}\bstatus=203/EXEC|Failed at step EXEC spawning \S",
        text="the program of the systemd unit does not exist on this node, or its user may not execute it",
        fix="compare ExecStart= of the unit (`systemctl cat UNIT`) with the path of the stack's environment",
    ),
    CausePattern(
        id="UNIT-SETUP",
        pattern=r"\.service: .{0,64}\bstatus=2(?P<own>(?:0[0-24-9]|[1-4]\d)/[A-Z_]{3,32})",
        text="systemd could not set the unit up before it started the program: the step is named after the status, as"
        " CHDIR (its directory), USER, GROUP, LIMITS or NAMESPACE (a path that it binds)",
        fix="correct that setting of the unit (`systemctl cat UNIT`); systemd.exec(5) lists the steps",
    ),
    CausePattern(
        id="NUMA-BIND-REFUSED",
        pattern=r"(?:^|: ?)setting (?:membind|cpunodebind|preferred|interleave)\b.{0,16}: "
        r"|^libnuma: Warning: (?:node|cpu)"
        r" argument .{0,64} out of range",
        text="numactl could not bind the process to its NUMA nodes, and did not start it: the container may not set a"
        " memory policy, or its cpuset does not have that node",
        fix="start the container with --cap-add SYS_NICE, or without binding its memory (`numactl --show` in it lists"
        " what is allowed)",
    ),
    CausePattern(  # vllm issue 10556; numa_migrate_pages(3)
        id="NUMA-BIND-REFUSED",
        pattern=r"numa_migrate_pages failed\. errno: 1\b",
        text="the engine may not move its memory to the NUMA nodes that it binds itself to: the container lacks"
        " SYS_NICE",
        fix="start the container with --cap-add SYS_NICE, or without binding (VLLM_CPU_OMP_THREADS_BIND=nobind)",
    ),
    CausePattern(  # vllm issue 58033; sched_setaffinity(2)
        id="NUMA-BIND-REFUSED",
        pattern=r"OSError: \[Errno 22\] Invalid argument",
        after=r"\bsched_setaffinity\(",
        text="a process binds itself to processors that its container's cpuset does not have",
        fix="compare `taskset -pc 1` in the container with the processors that it is to take, or start it without"
        " binding",
        weak=True,
    ),
    CausePattern(
        id="GPU-UNSCHEDULED",
        pattern=r"Allocate failed due to (?:requested number of devices unavailable|no healthy devices present)",
        text="the node had no healthy, free GPU left when Kubernetes was to give it to the pod",
        fix="compare `kubectl describe node | grep nvidia.com/gpu` with the GPUs that `nvidia-smi -L` lists there, and"
        " read the device plugin's log",
        weak=True,
    ),
    CausePattern(
        id="DEVICE-PLUGIN",
        pattern=r"device plugin \w{1,32} rpc failed with err: rpc error: code = Unavailable"
        r"|endpoint not found in cache for a registered resource: (?P<own>\S{1,128})"
        r"|Allocate failed due to rpc error: code = Unavailable",
        text="the device plugin that gives GPUs to pods is not registered at this node's kubelet, or does not answer"
        " it",
        fix="read the device plugin's log on the node (`kubectl -n kube-system logs -l"
        " name=nvidia-device-plugin-ds`), and"
        " start its pod again: a kubelet that was restarted forgets it",
        weak=True,
    ),
    CausePattern(
        id="MOUNT-FAILED",
        pattern=r"bind source path does not exist: (?P<own>\S{1,256})",
        text="the container was to be given a directory that this node does not have",
        fix="make it on this node, or correct --mount or the volume: it is the node's path, not the container's",
    ),
    CausePattern(
        id="CONTAINER-SERVICE",
        pattern=r"Cannot connect to the Docker daemon|while trying to connect to the Docker (?:daemon|API)"
        r"|Cannot connect to Podman",
        text="the container service can't be used: it does not run, or this user may not reach its socket",
        fix="run `systemctl status docker`; let the user into the group docker (`usermod -aG docker USER`, then a new"
        " login), or use sudo",
    ),
    CausePattern(
        id="CONTAINER-START",
        pattern=r"The container name \"(?P<own>[^\"]{1,128})\" is already in use",
        text="a container of that name exists already: one that runs, or one that ended and was not removed",
        fix="look at it with `docker ps -a`, then `docker rm NAME`; start containers with --rm",
    ),
    CausePattern(
        id="CONTAINER-START",
        pattern=r"\bunknown (?:shorthand )?flag: (?P<own>'?-\S{1,32})",
        text="the container tool does not know a flag that it was given: it is older, or the flag stands at another"
        " place",
        fix="upgrade it (--gpus needs Docker 19.03), and write its flags before the image's name",
        weak=True,
    ),
    CausePattern(
        id="IMAGE-ARCH",
        pattern=r"\bexec \S{1,256}: exec format error|cannot execute binary file: Exec format error"
        r"|\bexec user process caused:? .{0,4}exec format error",
        text="the program, or the container's image, is for another kind of processor (x86-64, ARM) than this node's",
        fix="take the image for this one (`docker image inspect IMAGE | grep Architecture`, `uname -m`)",
    ),
    CausePattern(
        id="MOUNT-FAILED",
        pattern=r"(?:MountVolume|AttachVolume)\.\w{1,32} failed for volume \"(?P<own>[^\"]{1,128})\""
        r"|Multi-Attach error for volume \"(?P<own_attached>[^\"]{1,128})\"",
        text="a volume of the pod could not be mounted on the node",
        fix="read what follows in the line; `kubectl describe pvc` and the storage driver's log on the node say more",
        weak=True,
    ),
    CausePattern(
        id="KERNEL-COMPILE",
        pattern=r"\d{1,4} errors? detected in the compilation of \"|\bnvlink error {1,4}:"
        r"|error: #error -- unsupported \S{1,16} version!",
        text="a GPU kernel did not compile or link: the lines above it name the source",
        fix="compare the CUDA toolkit with torch's version, and the libraries that it was built with",
        weak=True,
    ),
    CausePattern(
        id="XID-119",
        pattern=r"NVRM: (?P<own>GPU\d{1,3}) _issueRpcAndWait: rpcSendMessage failed",
        text=f"a GPU {XIDS[119].what}",
        fix=XIDS[119].fix,
        weak=True,
    ),
    CausePattern(
        id="GDR-REFUSED",
        pattern=r"[Ff]ailed to register memory \S{1,64}: (?:Bad address|Operation not (?:permitted|supported))"
        r"|(?:local_nic: (?P<own>[\w.-]{1,64})\b.{0,256}|\bRDMA\b.{0,128})(?:local protection|remote access) error",
        text="a network card could not use memory that was registered for RDMA: GPU memory without nvidia-peermem or"
        " DMA-BUF, an IOMMU that translates, or memory that was freed",
        fix="read `l40s-deploy doctor` on IOMMU, ACS and peermem; as a proof, transfer over TCP",
        weak=True,
    ),
    CausePattern(  # sglang issue 6894; mooncake-transfer-engine, rdma_context.cpp
        id="GDR-REFUSED",
        pattern=r"[Ff]ailed to register memory \S{1,64}: (?:Invalid argument|Input/output error)",
        text="a network card could not register memory for RDMA: most often GPU memory without nvidia-peermem or"
        " DMA-BUF, or of expandable segments",
        fix="read `l40s-deploy doctor` on peermem; unset PYTORCH_CUDA_ALLOC_CONF=expandable_segments; as a proof,"
        " transfer over TCP",
        weak=True,
    ),
    CausePattern(  # torchforge issue 493; EFA has queue pairs of its own kind alone (efadv_create_qp_ex)
        id="IB-UNSUPPORTED",
        pattern=r"\bibv_create_qp(?:_ex)?(?:\(\))? failed.{0,64}(?:Operation not supported|Function not implemented)"
        r"|[Ff]ailed to create (?:extended )?(?:queue pair|QP)\b.{0,16}: (?:Operation not supported|Function not)",
        text="a network card does not have the kind of queue pair that is asked of it, as EFA, which"
        " needs libfabric, or"
        " a virtual function",
        fix="use the card's own plugin (EFA: aws-ofi-nccl, libfabric), or name other cards (NCCL_IB_HCA)",
        weak=True,
    ),
    CausePattern(
        id="IB-UNREACHABLE",
        pattern=r"ibrc\.cpp:\d{1,6}: non-zero status: (?:101|110|113) ibv_modify_qp failed"
        r"|local_nic: (?P<own>[\w.-]{1,64}), peer_nic: (?P<peer>\S{1,128}),.{0,200}transport retry counter exceeded"
        r"|(?:[Ss]tatus|wc|WC|completion)\b.{0,64}transport retry counter exceeded",
        text="an RDMA port can't reach its peer: ports on different rails, a wrong GID index, or a fabric problem",
        fix="test the two ports with ib_write_bw; name the ports and the GID index (NVSHMEM_HCA_LIST,"
        " NVSHMEM_IB_GID_INDEX, --disaggregation-ib-device)",
        weak=True,
    ),
    CausePattern(  # perftest issue 126
        id="GDR-REFUSED",
        pattern=r"^\s{0,8}ERRNO: Bad address",
        after=r"Couldn't allocate MR|[Ff]ailed to create (?:MR|mr)\b",
        text="a network card could not register GPU memory for RDMA: nvidia-peermem is not loaded, or the GPU (a"
        " virtual one, a GeForce) does not have GPUDirect RDMA",
        fix="load nvidia-peermem (`modprobe nvidia-peermem`), or give perftest --use_cuda_dmabuf; `l40s-deploy doctor`"
        " shows what this machine can",
    ),
    CausePattern(  # perftest: ib_write_bw and its kin
        id="IB-UNREACHABLE",
        pattern=r"^\s{0,8}Failed status 12: wr_id \d|^\s{0,8}Failed to modify QP \d{1,8} to RTR\s{0,8}$"
        r"|Unable to Connect the HCA's through the link",
        text="an RDMA port can't reach its peer: ports on different rails, a wrong GID index, or a fabric problem",
        fix="give ib_write_bw ports of one rail (-d) and the GID index of RoCE v2 (-x) on both nodes;"
        " `l40s-deploy discover` lists them",
        weak=True,
    ),
    CausePattern(  # perftest, perftest_parameters.c
        id="IB-MISSING",
        pattern=r"\bIB device (?P<own>\S{1,64}) not found|Unable to find the Infiniband/RoCE device"
        r"|\bNo IB devices found",
        text="there is no RDMA device of that name on this node, or in this container",
        fix="name one that `ibv_devices` lists, not a network interface; in a container --device /dev/infiniband",
    ),
    CausePattern(
        id="IB-GID",
        pattern=r"ibrc\.cpp:\d{1,6}: non-zero status: (?:19|22|61) ibv_modify_qp failed",
        text="NVSHMEM could not connect a queue pair: the GID index is not a usable RoCE v2 address on this port",
        fix="set NVSHMEM_IB_GID_INDEX to the index of the port's RoCE v2 address (`l40s-deploy discover` lists them),"
        " and name the ports in NVSHMEM_HCA_LIST",
        weak=True,
    ),
    CausePattern(
        id="PORT-BLOCKED",
        pattern=r"nvshmem\S{0,200}:\d{1,6}: non-zero status: \d{1,4}: (?:Connection timed out|No route to host)",
        text="NVSHMEM, which DeepEP sends with, can't reach another rank over TCP at its start: a firewall, or an"
        " interface that does not lead there",
        fix="set NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME to the interface that the nodes reach each other by, and allow all"
        " TCP ports between them on it",
        weak=True,
    ),
    CausePattern(
        id="STACK-DIFFERS",
        pattern=r"Version mismatch: The cluster was started with",
        text="this node has another version of Ray or Python than its Ray cluster's head; the lines below it say which",
        fix="start the same image, or the same environment, on every node",
    ),
    CausePattern(
        id="RAY-HEAD-UNREACHABLE",
        pattern=r"(?:Failed to connect to GCS at address|Unable to connect to GCS at) (?P<peer>\S{1,128})"
        r"|Failed to get cluster ID from GCS|waiting for GCS to become available"
        r"|RaySystemError: .{0,64}failed to connect to all addresses"
        r"|Could not find any running Ray instance|Failed to connect to GCS within \d{1,6} seconds"
        r"|Failed to connect to Ray cluster|GCS cannot be reached",
        text="Ray's head node can't be reached: it has ended or never started, listens on another address, or a"
        " firewall is between",
        fix="look whether the head runs (`ray status` there) and listens on the address that this node was given, not"
        " on 127.0.0.1",
        secondary=True,
    ),
    CausePattern(
        id="RAY-NODE-LOST",
        pattern=r"\baddress: (?P<peer>[\w.:-]{1,128}) and node name: .{0,256}marked dead because the detector"
        r" has missed"
        r"|this node manager has mistakenly been marked as dead by the GCS",
        text="Ray's head has heard no heartbeat of a node: its raylet ended, or can't be reached on all of its ports",
        fix="read raylet.out and the kernel log of that node; open all of Ray's ports between the nodes, or fix them"
        " (--node-manager-port, --object-manager-port)",
        secondary=True,
    ),
    CausePattern(
        id="RAY-NODE-LOST",
        pattern=r"Some Ray subprocesses exited unexpectedly"
        r"|^\(raylet\b[^)]{0,64}\) .{0,128}:\d{1,5}: {1,2}(?:An unexpected system state has occurred\..{0,256})?"
        r"Check failed: |\bRaylet is terminated\."
        r"|\bLocalRayletDiedError\b",
        text="a process of Ray on this node (raylet, or GCS on the head) ended by itself",
        fix="read raylet.err, raylet.out and gcs_server.out of the newest session below /tmp/ray; compare Ray's version"
        " on the nodes",
        secondary=True,
    ),
    CausePattern(
        id="RAY-NODE-LOST",
        pattern=r"Failed to register worker \w{1,80} to Raylet|Unable to register worker with raylet",
        text="Ray's process of this node (raylet) has ended, or is another cluster's than the worker's",
        fix="read raylet.out of the newest session below /tmp/ray; end what is left with `ray stop --force`, and start"
        " Ray again",
        secondary=True,
    ),
    CausePattern(  # ray issue 62883; ray/_private/node.py
        id="RAY-NODE-LOST",
        pattern=r"The current node timed out during startup|The current node has not been updated within \d",
        text="Ray did not come up on this node: one of its processes ended at its start, or the head is overloaded",
        fix="read raylet.err, raylet.out and gcs_server.out of the newest session below /tmp/ray; end what is left with"
        " `ray stop --force`, and start Ray again",
        secondary=True,
    ),
    CausePattern(  # vllm issue 38529
        id="RAY-WORKER-LOST",
        pattern=r"A worker died or was killed while executing a task by an unexpected system"
        r"|its worker process has died\. Worker exit type: (?:SYSTEM|WORKER)_ERROR",
        text="a worker of Ray ended without a word of its own: it crashed in native code, or was killed, as for lack of"
        " main memory",
        fix="read that worker's .err and .out of the newest session below /tmp/ray on its node, and its kernel log"
        " (`dmesg -T | grep -iE 'oom|segfault'`)",
        secondary=True,
    ),
    CausePattern(  # ray/exceptions.py
        id="RAY-NODE-LOST",
        pattern=r"The actor (?:died|is dead) because its node has died\.",
        text="a node left the Ray cluster: its raylet ended, or can't be reached",
        fix="read raylet.out and the kernel log of that node",
        secondary=True,
    ),
    CausePattern(  # sglang/srt/disaggregation/mooncake/conn.py, common/conn.py
        id="SERVER-UNREACHABLE",
        pattern=r"(?:Could not|Failed to|Error) fetch(?:ing)? (?:the )?prefill (?:parallel|server) info from "
        r"(?:server |bootstrap(?:_addr|_server)?:? ?)(?P<peer>[\w\[]\S{1,128})",
        text="the decode instance can't reach the prefill instance's bootstrap server: that has ended or not started,"
        " or a firewall is between",
        fix="look whether the prefill instance runs and listens there (--disaggregation-bootstrap-port), and from the"
        " decode node `curl http://ADDRESS/route`",
        weak=True,
    ),
    CausePattern(  # mooncake-transfer-engine: rdma_context.cpp, rdma_transport.cpp
        id="IB-MISSING",
        pattern=r"\brdma_context\.cpp:\d{1,6}\] No matched device found: (?P<own>\S{1,64})"
        r"|\brdma_transport\.cpp:\d{1,6}\] RdmaTransport: (?:Failed to initialize RDMA|No available RNIC)",
        text="Mooncake's transfer engine does not find the RDMA device that it was told to use",
        fix="name devices as `ibv_devices` lists them (--disaggregation-ib-device), not network interfaces; in a"
        " container --device /dev/infiniband",
        weak=True,
    ),
    CausePattern(
        id="IB-MISSING",
        pattern=r"unhandled system error|\bncclSystemError\b",
        after=r"libibverbs: Warning: (?:couldn't load driver|no userspace device-specific driver)",
        text="libibverbs has no driver for this node's RDMA cards, so NCCL can't use them",
        fix="install ibverbs-providers (rdma-core) of the cards in the image or environment, and check with"
        " `ibv_devinfo` that the ports are ACTIVE",
        weak=True,
    ),
    CausePattern(  # sglang PR 11310; sglang_router_rs/src/core/worker.rs
        id="ROUTER-NO-WORKERS",
        pattern=r"\bERROR\b.{0,128}\bFailed to connect gRPC client for worker (?P<peer>\S{1,128}): ",
        text="the router can't reach an engine at the address that it was given: it still loads, has ended, or listens"
        " elsewhere",
        fix="read that engine's own log; `ss -ltnp` on its node shows who listens there",
        secondary=True,
    ),
    CausePattern(  # sglang issues 10856, 22511
        id="SERVER-SILENT",
        pattern=r"Health check failed\. Server couldn't get a response from detokenizer",
        text="SGLang's scheduler did not answer its own health check: it stands still, waits for another rank, or"
        " computes one long step; the line does not say which",
        fix="look whether `Prefill batch` or `Decode batch` lines follow; if none do, compare where each rank stands"
        " (`py-spy dump --pid PID` on every node)",
        secondary=True,
    ),
    CausePattern(
        id="ROUTER-NO-WORKERS",
        pattern=r"No available workers \(all|error_code=.?no_available_workers|waiting for"
        r" (?:workers|hosts) .{0,512}?to become healthy",
        text="the router has no engine that is healthy: none started in time, or each failed its requests",
        fix="read the engines' own logs; `curl ENGINE/health` from the router's host shows whether it reaches them",
        secondary=True,
    ),
    CausePattern(
        id="PEER-LOST",
        pattern=r"NIXL_ERR_REMOTE_DISCONNECT|remote mooncake session (?P<peer>\S{1,128}) is not alive"
        r"|KVTransferError\(.{0,128}could be dead",
        text="the instance at the other end of a KV transfer is gone",
        fix="read that instance's log first",
        secondary=True,
    ),
    CausePattern(  # mooncake-transfer-engine/src/transfer_metadata.cpp
        id="PEER-MISSING",
        pattern=r"\btransfer_metadata\.cpp:\d{1,6}\] Failed to retrieve segment descriptor, name (?P<peer>\S{1,128})",
        text="Mooncake's metadata does not know the other end: that instance has not started, has ended, or registered"
        " under another address",
        fix="read that instance's log first; all instances name the same metadata server, and addresses that the others"
        " reach",
        secondary=True,
    ),
    CausePattern(  # mooncake issue 851
        id="PEER-LOST",
        pattern=r"KVTransferError\(.{0,128}Failed due to an unknown reason from another",
        text="another rank's part of a KV transfer failed",
        fix="read the logs of the other ranks and of the prefill instance first: one of them says why",
        secondary=True,
    ),
    CausePattern(
        id="CPU-TOO-OLD",
        pattern=r"\bIllegal instruction\b.{0,8}\(core dumped\)|\*{3} SIGILL received|Fatal Python error: Illegal instr",
        text="a process ended on an instruction that this processor does not have: a package was built for a newer one"
        " (AVX2, AVX-512, AMX), or a virtual machine hides them",
        fix="compare `lscpu | grep Flags` with the package's requirement; of a virtual machine, pass the host's"
        " processor through",
        secondary=True,
    ),
    CausePattern(  # vllm issue 4392
        id="PROCESS-CRASHED",
        pattern=r"\bFloating point exception {0,1}\(core dumped\)|\*{3} SIGFPE received"
        r"|Fatal Python error: Floating point",
        text="a process crashed on a division in native code (SIGFPE), as cuBLAS before 12.4.5.8 does on H20 GPUs",
        fix="install a newer nvidia-cublas and look whether an older one is found first (LD_LIBRARY_PATH); a stack"
        " below"
        " the line, where there is one, names the library",
        secondary=True,
    ),
    CausePattern(
        id="PROCESS-CRASHED",
        pattern=r"\bBus error\b.{0,8}\(core dumped\)|\*{3} SIGBUS received|Fatal Python error: Bus error",
        text="a process crashed (SIGBUS): memory that it had mapped was not there, as where /dev/shm is full or a file"
        " that it reads became shorter",
        fix="look at `df -h /dev/shm` while it starts (in a container --shm-size or --ipc=host), and at `dmesg -T`",
        secondary=True,
    ),
    CausePattern(
        id="PROCESS-CRASHED",
        pattern=r"\bSegmentation fault\b.{0,8}\(core dumped\)|\*{3} SIG(?:SEGV|ABRT) received"
        r"|Fatal Python error: (?:Segmentation fault|Aborted)|Failed core proc\(s\): \{[^}]{0,256}: -(?:4|6|7|11)\b"
        r"|(?:died, exit code:|died unexpectedly \(exit code:|crashed with exit code"
        r"|Controller \d{1,9} terminated with)"
        r" -(?:4|6|7|8|11)\b|\b(?:exited with code|Exit Code: {1,8}) ?13[2459]\b|\bSignal (?:4|6|7|8|11) \(SIG[A-Z]"
        r"|code=(?:dumped|killed), status=(?:4/ILL|6/ABRT|7/BUS|8/FPE|11/SEGV)"
        r"|\b(?:python|sglang|VLLM|vllm|ray|pt_main)[\w.:]{0,16}\[\d{1,9}\]: segfault at [0-9a-f]"
        r"|: segfault at [0-9a-f]{1,16} ip .{0,96} in lib(?:nccl|cuda|torch|c10|ibverbs|mlx5|nvidia)"
        r"|^(?:double free or corruption|corrupted size vs|munmap_chunk\(\)|(?:free|malloc|realloc)\(\): (?:in|un"
        r"|mis|cor))|!{7} Segfault encountered !{7}|^={4} backtrace \(tid: {0,8}\d|Caught signal (?:4|7|8|11) \("
        r"|\] Signal: (?:Segmentation fault|Bus error|Illegal instruction) \(\d",
        text="a process crashed in native code, as by SIGSEGV; a stack below the line names the library, where there"
        " is one",
        fix="read that stack: of a compiler delete its cache, of a library install the version that the stack names",
        secondary=True,
    ),
    CausePattern(
        id="MAIN-UNGUARDED",
        pattern=r"An attempt has been made to start a new process before the$",
        text="a script starts the engine while it is imported, and each process of the engine imports it again",
        fix="start the engine below `if __name__ == '__main__':`, or by its own command",
    ),
    CausePattern(  # Open MPI, help-*-runtime.txt
        id="JOB-NOT-STARTED",
        pattern=r"It looks like (?P<own>(?:opal|orte|prte|pmix|MPI)_(?:init|INIT)\w{0,8}) failed for some reason",
        text="Open MPI could not set itself up: an incomplete or moved installation (OPAL_PREFIX), or another PMIx than"
        " its launcher's; the lines below it may say which",
        fix="start one process with it on that node alone (`mpirun -n 1 hostname`), and compare OPAL_PREFIX, PATH and"
        " LD_LIBRARY_PATH with its installation",
        weak=True,
    ),
    CausePattern(
        id="JOB-NOT-STARTED",
        pattern=r"srun: error: Task launch for \S{1,64} failed on node (?P<own>\S{1,128}):"
        r" (?:Job credential expired|Invalid job credential)",
        text="a node refuses the credential of a Slurm job: its clock differs from the controller's, or it was reached"
        " too late",
        fix="compare the clocks (`chronyc tracking` on every node), and the munge keys (`munge -n | ssh NODE unmunge`)",
    ),
    CausePattern(
        id="JOB-NOT-STARTED",
        pattern=r"srun: error: (?:Task launch for \S{1,64} failed on node|Application launch failed:)"
        r" (?P<own>\S.{1,200})",
        text="Slurm could not start the job's step on a node, for the reason in the line",
        fix="compare --cpus-per-task, --gpus-per-task and the binding with what the job has (`scontrol show job -d`),"
        " and read slurmd's log on that node",
        weak=True,
    ),
    CausePattern(  # open-mpi, orte/mca/plm/rsh
        id="JOB-NOT-STARTED",
        pattern=r"^Host key verification failed\.|\bssh: connect to host (?P<peer>\S{1,128}) port \d"
        r"|^(?:\S{1,128}: )?Permission denied \(publickey"
        r"|\b(?:ORTE|PRTE) (?:was unable to reliably start|has lost communication with a remote daemon)"
        r"|An (?:ORTE|PRTE) daemon has unexpectedly failed after launch",
        text="mpirun or pdsh could not start its processes on another node: ssh refuses (an unknown"
        " host's key, no key of"
        " this user's), or the program is not there",
        fix="try `ssh NODE true` as the same user, in the same container; compare the paths of mpirun on all nodes",
        weak=True,
    ),
    CausePattern(
        id="JOB-CANCELLED",
        pattern=r"slurmstepd: error: \*{3} (?:STEP|JOB) \S{1,64} ON \S{1,128} CANCELLED AT \S{1,32} DUE TO ",
        text="Slurm ended the job: its time limit, a preemption or a failed node, as the line says",
        fix="give it a longer --time, or a partition that does not preempt",
    ),
    CausePattern(
        id="IMAGE-MISSING",
        pattern=r"\bErrImagePull\b|\bImagePullBackOff\b|Failed to pull image \"|pull access denied for \S"
        r"|manifest (?:unknown|for \S{1,256} not found)|\btoomanyrequests: |no matching manifest for \S"
        r"|\b(?:unauthorized: authentication required|denied: requested access to the resource)"
        r"|/v2/\S{0,256}: (?:unauthorized|tls: |x509: |net/http: |dial tcp |context deadline)",
        text="the container's image could not be fetched: a wrong name or tag, no right to it, or no way to"
        " its registry",
        fix="pull it on the node by hand (`docker pull IMAGE`, `crictl pull IMAGE`), which says why",
        weak=True,
    ),
    CausePattern(
        id="PROBE-FAILED",
        pattern=r"failed (?:liveness|startup) probe, will be restarted",
        text="Kubernetes ended the container, since its probe got no answer in time: it loads longer than the probe"
        " waits, or the engine stood still",
        fix="give the startup probe failureThreshold x periodSeconds of the longest load; look before it in the"
        " engine's log",
        weak=True,
    ),
    CausePattern(
        id="GPU-UNSCHEDULED",
        pattern=r"nodes are available: .{0,400}Insufficient (?P<own>nvidia\.com/[\w.-]{1,48}"
        r"|[\w.-]{1,64}/[\w-]{0,32}(?:gpu|rdma|hca|roce|sriov)[\w-]{0,32}|rdma/[\w-]{1,32})",
        text="no node of the Kubernetes cluster has as many free GPUs, or network devices, as the pod asks for",
        fix="compare `kubectl describe nodes | grep -A9 Allocatable` with the request; without its device plugin a node"
        " offers none",
        weak=True,
    ),
    CausePattern(
        id="POD-UNSCHEDULED",
        pattern=r"nodes are available: .{0,400}?(?P<own>untolerated taint \{[^}]{0,96}"
        r"|didn't match Pod's node [a-z/]{1,24}"
        r"|Insufficient (?:memory|cpu|ephemeral-storage|hugepages-\w{1,8})|had volume node affinity conflict"
        r"|unbound immediate PersistentVolumeClaims)",
        text="Kubernetes has no node that the pod may be placed on: a taint, a selector, a volume or another resource"
        " excludes each",
        fix="read each reason and its number of nodes in the line; compare tolerations, nodeSelector and requests of"
        " the"
        " pod with `kubectl describe nodes`",
        weak=True,
    ),
    CausePattern(
        id="CONTAINER-START",
        pattern=r"\bError: (?P<own>(?:secret|configmap) \"[^\"]{1,128}\" not found)"
        r"|Error: (?P<own_key>couldn't find key \S{1,64} in (?:Secret|ConfigMap) \S{1,128})",
        text="Kubernetes can't start the container: a Secret or ConfigMap that it names, or a key of it, is not in its"
        " namespace",
        fix="create it in the pod's namespace (`kubectl get secret,configmap -n NAMESPACE`), or correct its name",
        weak=True,
    ),
    CausePattern(
        id="ENGINE-MISSING",
        pattern=r"exec: .?(?:sglang|vllm|python3?|/\S{1,128}).?: (?:executable file not found"
        r"|stat /\S{1,128}: no such file)",
        text="the container's image does not have the program that it is to start",
        fix="compare the image and its command with the stack's",
    ),
    CausePattern(
        id="PROCESS-KILLED",
        pattern=r"\bwas sent SIGKILL!|(?:^|it/s\])(?:Killed|\u5df2\u6740\u6b7b)$"
        r"|: line \d{1,6}: {1,2}\d{1,9} Killed {2}|\[\d{1,3}\] {2,8}\d{1,9} killed {2}",
        text="the shell tells that the program was killed (SIGKILL), most often by the kernel for lack of main memory",
        fix="read the kernel log of the node (`dmesg -T | grep -i oom`), and what was written before",
        secondary=True,
        after=r"\S",
        unless=r"kill_process_tree called|SIGQUIT received|Received sigquit from a child",
    ),
    CausePattern(
        id="KILLED",
        pattern=r"(?<!\()\bexit code:? -9\b|(?:Controller \d{1,9} terminated with|died unexpectedly \(exit code:) -9\b"
        r"|code=killed, status=9/KILL|srun: error: \S{1,128}: tasks? [\d,-]{1,64}: Killed|\bExit Code: {1,8}137\b"
        r"|\bexitcode ?[=:] ?-9\b|exited with code 137\b"
        r"|Failed core proc\(s\): \{[^}]{0,256}: -9\b|Signal 9 \(SIGKILL\)",
        text="a process was killed (SIGKILL): by the OOM killer (`dmesg -T | grep -i oom`), by who runs it (a probe, a"
        " deadline, a stop), or after another failure",
        fix="read that node's kernel log, and what the other ranks and nodes wrote before",
        secondary=True,
    ),
    CausePattern(
        id="GPU-KERNEL-FAULT",
        pattern=rf"{_XID}(?:13|31|43|69|109)\b",
        text="a GPU kernel made an illegal memory access, failed (43, 69), or did not end in time (109): a bug in it,"
        " or"
        " a faulty GPU",
        fix="if it is always the same GPU, replace it; otherwise try the stack without CUDA graphs",
        weak=True,
    ),
    *(
        CausePattern(
            id="GPU-LOST" if number == 79 else xid.id,
            pattern=rf"{_XID}{number}\b",
            text=f"a GPU {xid.what}",
            fix=xid.fix,
            weak=xid.id == "XID-154",
        )
        for number, xid in (*XIDS.items(), *_MORE_XIDS.items())
    ),
)

HOST_GENERAL = (
    CausePattern(
        id="ENGINE-DEFECT",
        pattern=r"\[(?:TM|FT)\]\[(?:ERROR|FATAL)\] {1,4}Assertion fail: (?P<own>\S{1,200})",
        text="the engine's own code failed on what it was not written for: this model, setting, or version of a"
        " package",
        fix="search the engine's issues for these words; try its newest release, the model's usual settings, or the"
        " stack that its maker names",
        weak=True,
    ),
    CausePattern(
        id="EP-TIMEOUT",
        pattern=r"\bDeepEP\b.{0,40}\btimeout\b",
        text="DeepEP's kernels waited in vain for another rank's tokens: that rank is late or dead, or the way to it"
        " (NVLink, RDMA with IBGDA) delivers nothing",
        fix="read first whether another rank's log ends earlier; else test the RDMA ports, and compare NVSHMEM with"
        " what this DeepEP was made for (deepep issues 137, 707)",
        secondary=True,
    ),
    CausePattern(
        id="ENGINE-MISSING",
        pattern=r"error while loading shared libraries: (?!lib(?:cuda|nvidia))(?P<own>\S{1,128}):"
        r" cannot open shared object",
        text="a program's shared library is not there, or its user may not read it",
        fix="reinstall the stack (`l40s-deploy prepare`); in a container without root, look whether that user may read"
        " the directory that holds it (`ldd PROGRAM`)",
        weak=True,
    ),
    CausePattern(
        id="GRAPH-CAPTURE",
        pattern=r"\b(?:Cuda failure (?:\d{1,4} )?'|watchdog thread terminated with exception: CUDA error: )"
        r"operation (?:failed due to a previous error during capture"
        r"|not permitted (?:when|while) stream is capturing|would (?:make the legacy stream|result in a merge))",
        text="a CUDA graph could not be captured: a call in the forward pass can't be recorded in one, or failed while"
        " it was",
        fix="read the exception above it, if there is one; as a proof start it without CUDA graphs"
        " (--disable-cuda-graph, vLLM: --enforce-eager)",
        weak=True,
    ),
    CausePattern(  # sglang issue 25620; flash-mla, csrc/utils.h
        id="CUDA-CALL-FAILED",
        pattern=r"\bCUDA error \((?P<own>\S{1,256}\.(?:cuh?|cpp|hpp|h):\d{1,6})\): ",
        text="CUDA refused a kernel of the file that the line names",
        fix="search the issues of the engine and of that library for it; as a proof choose another attention or MoE"
        " backend",
        weak=True,
    ),
    CausePattern(
        id="CUDA-CALL-FAILED",
        pattern=r"^Error: Failed to initialize the (?P<own>TMA descriptor(?: for \w{1,16})? \d{1,4})",
        text="a CUTLASS kernel for Hopper or newer could not describe its matrices: most often this GPU is another"
        " architecture",
        fix="choose another attention, MoE or GEMM backend, or a stack that knows this GPU",
        weak=True,
    ),
    CausePattern(
        id="SETTING-REFUSED",
        pattern=r"^\s{0,8}Value error, (?P<own>\S.{0,300}?) \[type=value_error, input_value=ArgsKwargs\(",
        text="the engine refuses a setting, or its combination with the model or this hardware",
        fix="correct it by these words: `l40s-deploy plan --show argv` shows what was set, and whence",
        weak=True,
    ),
    CausePattern(
        id="FILE-DENIED",
        pattern=r"\bline \d{1,6}: (?:exec: )?(?P<own>/\S{1,256}): (?:cannot execute: )?Permission denied"
        r"|\b(?:chmod|chown|mkdir|touch|cp|mv|ln|tee): [^:]{1,64}['\u2018](?P<own_of_tool>/[^'\u2019]{1,256})"
        r"['\u2019]: (?:Permission denied|Read-only file system)"
        r"|[Ff]ailed to (?:create|open|write|read) [^:]{0,32}[`'\"](?P<own_of_rust>/[^`'\"]{1,256})[`'\"]:"
        r" (?:Permission denied|Read-only file system) \(os error",
        text="the container or user may not use a file or directory: its owner and mode, or a mount that is read-only",
        fix="give it to that user, or let the user pass through the folders above (`namei -l` shows who may); look how"
        " it is mounted (`findmnt -T PATH`)",
        weak=True,
    ),
    CausePattern(
        id="CUDA-CALL-FAILED",
        pattern=r"\bCuda failure (?:\d{1,4} )?'(?P<own>[^']{1,80})'",
        text="a call of CUDA failed in NCCL",
        fix="read `dmesg -T | grep NVRM` on this node; a small CUDA program on each GPU shows whether the driver works",
        weak=True,
    ),
    CausePattern(  # vllm issue 14321; triton/runtime/build.py
        id="KERNEL-COMPILE",
        pattern=r"\bCalledProcessError: Command '\['(?P<own>(?:\S{0,128}/)?(?:gcc|g\+\+|cc|c\+\+|clang|clang\+\+))',"
        r".{0,400}\.so'",
        text="the C compiler failed, with which Triton builds its launcher at the start",
        fix="read its own words above the exception: most often Python.h (python3-dev) or libcuda.so for -lcuda is"
        " missing, or that gcc is another than the environment's",
        weak=True,
    ),
    CausePattern(
        id="KERNEL-COMPILE",
        pattern=r"\b(?P<own>(?:nvcc|ptxas|cicc) fatal {1,8}: .{1,160})"
        r"|\bCalledProcessError: Command '\['(?P<own_tool>(?:\S{0,128}/)?(?:ninja|nvcc|ptxas))'"
        r"|\b(?P<own_extension>Error building extension '\S{1,64}')"
        r"|\bptxas \S{1,128}, line \d{1,7}; (?P<own_line>(?:error|fatal) {1,4}: .{1,160})"
        r"|(?P<own_header>fatal error: \S{1,128}\.(?:cuh|hpp|h): No such file or directory)",
        text="a GPU kernel did not compile at the start: its compiler refuses an option, or a header is missing, as"
        " where the CUDA toolkit is older than the package asks for or the package is incomplete",
        fix="compare the toolkit (`nvcc --version`) with torch's CUDA, and install the stack anew as its lock says"
        " (`l40s-deploy prepare`)",
        weak=True,
    ),
    CausePattern(  # deepep issue 17; nvshmem, transport/ibgda/ibgda.cpp
        id="NVSHMEM-FAILED",
        pattern=r"ibgda\.cpp:\d{1,6}: non-zero status: \d{1,4} (?P<own>Error in mlx5dv_devx_obj_modify for \w{1,32})",
        text="NVSHMEM's IBGDA could not connect a queue pair to another rank's port",
        fix="name the ports in NVSHMEM_HCA_LIST and, of RoCE, their GID index in NVSHMEM_IB_GID_INDEX"
        " (`l40s-deploy discover` lists them); test the two ports with ib_write_bw",
        weak=True,
    ),
    CausePattern(  # deepep, csrc/kernels/runtime.cu
        id="NVSHMEM-FAILED",
        pattern=r"Assertion error \S{0,256}runtime\.cu:\d{1,5} '(?P<own>nvshmem_team_split_strided)\(",
        text="NVSHMEM could not split the ranks into DeepEP's teams: it numbers them otherwise than DeepEP, or knows"
        " fewer",
        fix="unset NVSHMEM_HCA_PE_MAPPING and start all ranks with the NVSHMEM that this DeepEP was built with, as many"
        " a node on each",
        weak=True,
    ),
    CausePattern(
        id="NVSHMEM-FAILED",
        pattern=r"nvshmem\S{0,200}:\d{1,6}: (?P<own>(?:NULL value|non-zero status: \d{1,4}) ?.{1,128})"
        r"|(?P<own_transport>init failed for transport: \w{1,32})|nvshmem initialization failed",
        text="NVSHMEM, which DeepEP sends with, could not be set up: it needs nvidia-peermem, the RDMA devices in the"
        " container and, for IBGDA, the right to create device queues",
        fix="load nvidia-peermem with PeerMappingOverride=1 of the driver set; give the container /dev/infiniband and"
        " IPC_LOCK (as a proof, --privileged); without IBGDA use DeepEP's normal mode",
        weak=True,
    ),
    CausePattern(  # sglang/srt/mem_cache/storage/mooncake_store
        id="SERVER-UNREACHABLE",
        pattern=r"RuntimeError: (?:Failed to connect to metadata server: |Failed to setup Mooncake (?:store"
        r"|Embedding Store)\b)",
        text="Mooncake's store could not be set up: its master or metadata server does not answer, or its settings do"
        " not"
        " fit this node (protocol, device, size of the segment)",
        fix="read Mooncake's own lines above it (E... .cpp:LINE]); look whether mooncake_master runs and"
        " MOONCAKE_MASTER, MOONCAKE_TE_META_DATA_SERVER and MOONCAKE_DEVICE name what this node reaches and has",
        weak=True,
    ),
    CausePattern(  # vllm PR 12957; mooncake-store/src/master_client.cpp
        id="SERVER-UNREACHABLE",
        pattern=r"\bmaster_client\.\w{1,3}:\d{1,6}\] (?P<own>[Ff]ailed to .{0,120}(?:rpc|RPC|connect).{0,64})",
        text="Mooncake's master did not answer, or closed the connection",
        fix="look whether mooncake_master runs and what it logs, with the same release of Mooncake as the engines have,"
        " and whether master_server_address leads there",
        weak=True,
    ),
    CausePattern(  # sglang issues 7118, 7338; mooncake-transfer-engine/src/transport/tcp_transport
        id="MOONCAKE-TCP",
        pattern=r"\btcp_transport\.cpp:\d{1,6}\] Session::(?:read|write)Body failed\. Error: Bad address",
        text="Mooncake transfers over TCP, and its build can't read GPU memory for that: it found no RDMA"
        " device, or was told to use TCP",
        fix="name the RDMA ports in --disaggregation-ib-device (in a container --device /dev/infiniband), or install a"
        " Mooncake that was built with CUDA",
        weak=True,
    ),
    CausePattern(  # mooncake issues 180, 709; mooncake-transfer-engine/src/transport; grpc, status codes
        id="SERVER-UNREACHABLE",
        pattern=r"\bE\d{4} \d\d:\d\d:[\d.]{2,12} {1,8}\d{1,9} \w{1,64}\.(?:cpp|cc"
        r"|hpp):\d{1,6}\] (?:Failed to connect to"
        r" (?:target|segment|peer|server)\b.{0,16}?(?P<peer>\S{1,128})|.{0,64}\brpc error, code: 14\b)"
        r"|\bEtcdStoragePlugin: unable to (?:connect|.{0,320}(?:deadline exceeded|[Cc]onnection refused|no such host))",
        text="a server or instance that this one asks (a metadata or store server, the other end of a"
        " transfer, an engine"
        " over gRPC) can't be reached",
        fix="look whether it runs and listens at that address, and try its port from this node; in containers and pods,"
        " whether both use the host's network",
        secondary=True,
    ),
    CausePattern(  # k8s-device-plugin, internal/plugin/manager: no NVML and no Tegra
        id="CONTAINER-TOOLKIT",
        pattern=r"Incompatible (?:device discovery )?strategy detected|Incompatible platform detected",
        text="the device plugin finds no NVIDIA driver in its own pod, so the node offers no GPU: the driver was not"
        " loaded when it started, or the runtime that starts it is not NVIDIA's",
        fix="see whether `nvidia-smi` answers on the node; make nvidia the runtime of the plugin's pod"
        " (runtimeClassName),"
        " then start that pod again",
        weak=True,
    ),
    CausePattern(
        id="UCX-FAILED",
        pattern=r"\bUCX  ?(?:ERROR|FATAL) {1,8}(?P<own>.{1,200})",
        text="UCX could not use the network",
        fix="compare UCX_NET_DEVICES and UCX_TLS with `ucx_info -d` on this node; UCX_LOG_LEVEL=info says more",
        secondary=True,
    ),
    CausePattern(
        id="CONTAINER-TOOLKIT",
        pattern=r"CDI devices: (?P<own_cdi>failed to .{1,200})|nvidia-container-(?:cli|runtime-hook"
        r"|runtime)(?:\.\w{1,16})?: (?P<own>[a-z]{2,16} error: .{1,200})",
        text="NVIDIA's hook, or its CDI specification, could not bring the GPUs into the container",
        fix="run `nvidia-container-cli -k -d /dev/tty info` on the node, and upgrade nvidia-container-toolkit; of"
        " CDI, write"
        " its specification anew (`nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`), as after each new"
        " driver; of"
        " ldcache, compare `ldconfig` in /etc/nvidia-container-runtime/config.toml with the host's",
        weak=True,
    ),
    CausePattern(
        id="CONTAINER-START",
        pattern=r"unable to retrieve OCI runtime error .{0,300}\): (?P<own_retrieved>\S.{1,200})"
        r"|(?:OCI runtime create failed|failed to create (?:shim task|containerd task)|runc create failed)"
        r"(?!.{0,400}Auto-detected mode as '\w{1,16}'\s{0,8}(?:\n|$)).{0,256}?"
        r"(?:container process|container init|rootfs|hook #\d)\W{1,8}(?P<own>.{1,200})",
        text="the container runtime could not start the container",
        fix="read what follows in the line; `docker inspect CONTAINER` shows its command, mounts and devices",
        weak=True,
    ),
    CausePattern(
        id="CONTAINER-START",
        pattern=r"\b[Ff]ailed (?:to )?create pod sandbox\b(?P<own>.{0,200})",
        text="the container runtime could not set the pod up: its network or the runtime itself, as the line says",
        fix="read what follows in the line, and containerd's log on the node (`journalctl -u containerd`)",
        weak=True,
    ),
)
"""General ones, which stand behind all others: the words of the line say more."""

TOLD_ALONE = frozenset(
    {"COLLECTIVE-TIMEOUT", "CPU-TOO-OLD", "EP-TIMEOUT", "KILLED", "LEADER-UNREACHABLE", "LOADING-LATE", "PEER-MISSING",
     "PROCESS-CRASHED", "PROCESS-KILLED", "RAY-HEAD-UNREACHABLE", "RAY-NODE-LOST", "RAY-WORKER-LOST",
     "ROUTER-NO-WORKERS", "SERVER-SILENT", "SERVER-UNREACHABLE", "UCX-FAILED"}
)  # fmt: skip
"""Of causes that follow from another: where a log shows nothing else they tell its reader what to look at."""
