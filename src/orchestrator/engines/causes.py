"""The catalogue of failure signatures: what a line in an SGLang log means, and what to do.

Sources: the wordings in sglang 0.4.4.post1 and 0.5.23 themselves, NCCL's and Gloo's sources, the sglang issues
named beside an entry, and the articles (yangwenbo.com) on 32 L40S. Specific entries stand before general ones.
A pattern takes time in proportion to the text: what stands between two of its words has a bound, since whoever can
write into a log could else make its reader stand still.
"""

from __future__ import annotations

from orchestrator.engines.engine import LogCause, Proof

_CAPTURE_FAILED = r"Capture (?:prefill |frozen-KV MTP )?(?:cuda|CUDA) graph failed"

COMMON = (
    LogCause(
        id="FLAG-REFUSED",
        pattern=r"error: (unrecognized arguments|ambiguous option|argument --|the following arguments are required)",
        text="the engine rejected its command line",
        fix="compare its flags (`l40s-deploy plan --show argv`) with the engine version that is installed on the node"
        " (`l40s-deploy doctor`)",
    ),
    LogCause(
        id="ENGINE-MISSING",
        pattern=r"No module named '?(sglang|torch|sgl_kernel|flashinfer)\b",
        text="the engine, or one of its packages, is not installed in the stack's environment on this node",
        fix="reinstall the stack: run `l40s-deploy prepare`",
    ),
    LogCause(
        id="MODEL-MISSING",
        pattern=r"Repo id must be in the form|is not a local folder and is not a valid model identifier"
        r"|does not appear to have a file named|Unrecognized model in .{0,512}Should have a `model_type` key"
        r"|No such file or directory: '?[^']{0,512}config\.json",
        text="the model's directory is missing or incomplete on this node",
        fix="copy the checkpoint, with its config and tokenizer files, to this node's model root:"
        " `l40s-deploy checkpoint push SRC --node NODE`",
    ),
    LogCause(
        id="SHARDS-MISSING",
        pattern=r"references \d+ shard file\(s\) missing|Cannot find any model weights"
        r"|No such file or directory: '?[^']{0,512}\.safetensors",
        text="weight files that the index lists are missing on this node",
        fix="list them with `l40s-deploy checkpoint verify MODEL`, then send them with"
        " `l40s-deploy checkpoint push SRC --node NODE --repair`",
    ),
    LogCause(
        id="SHARD-CORRUPT",
        pattern=r"SafetensorError|Error while deserializing header",
        text="a weight file on this node is corrupt or truncated",
        fix="find it with `l40s-deploy checkpoint verify MODEL`, then replace it with"
        " `l40s-deploy checkpoint push SRC --node NODE --repair`",
    ),
    LogCause(
        id="BLOCK-NOT-DIVISIBLE",
        pattern=r"is not divisible by weight quantization block_[nk] = ",
        text="split by the tensor parallel degree, a weight no longer ends on a quantisation block",
        fix="use a checkpoint with 64x64 blocks for TP32, or pipeline stages with TP16 at most (sglang issues 3345,"
        " 3491, 4791, 10641)",
    ),
    LogCause(
        id="LAYOUT-NOT-DIVISIBLE",
        pattern=r"AssertionError: \d+ is not divisible by \d+|tp_size must be divisible by number of nodes",
        text="the tensor parallel degree does not divide the model's heads or widths, or is not a multiple of the"
        " number of nodes",
        fix="choose another --tp or --pp; `l40s-deploy plan` lists the layouts that the model allows",
    ),
    LogCause(
        id="SM89-TRITON-TILES",
        pattern=r"OutOfResources: out of resource: shared memory",
        text="a Triton kernel needs more shared memory than the GPU has (SM89: 101,376 bytes per block): its tile"
        " sizes are for another GPU",
        fix="use a stack with the SM89 branch in extend_attention (sglang PR 4418), and kernel configs tuned on this"
        " GPU",
    ),
    LogCause(
        id="SM89-INT8-GEMM",
        pattern=r"gemm executioin failed",
        text="sgl-kernel has no int8 GEMM for SM89 and used the one for SM80; the error looks like a lack of memory,"
        " but is not",
        fix="install a build of sgl-kernel with sglang PR 4418",
    ),
    LogCause(
        id="FP8-NOT-SUPPORTED",
        pattern=r"fp8e4nv not supported",
        text="one of the GPUs is older than SM89 and does not support FP8",
        fix="remove the node with the older GPU from the gang (sglang issue 18875)",
    ),
    LogCause(
        id="GPU-MEMORY-UNBALANCED",
        pattern=r"The memory capacity is unbalanced",
        text="some GPUs have much less free memory than others: another process uses them",
        fix="find the process with `nvidia-smi` on the node: if it is another gang's, give each gang its own GPUs",
    ),
    LogCause(
        id="WEIGHTS-EXCEED-MEMORY",
        pattern=r"Not enough memory\. Please try to increase --mem-fraction-static",
        text="the weights leave no memory for the KV cache within --mem-fraction-static",
        fix="use more GPUs, or increase --mem-fraction-static as far as `l40s-deploy plan` allows",
    ),
    LogCause(
        id="KERNEL-COMPILE",
        pattern=rf"PassManager::run failed|{_CAPTURE_FAILED}: "
        r"(?:\w{1,64}\.){0,8}(?:InductorError|SubprocException|LoweringException|BackendCompilerFailed)\b",
        text="a GPU kernel did not compile; with torch.compile, SGLang 0.5.17 fails in DeepSeek's FP8 attention",
        fix="remove --enable-torch-compile, or torch_compile_max_bs of the profile (`graphs` too), if"
        " `l40s-deploy plan --show argv` shows it; otherwise find the kernel with"
        " `l40s-deploy logs --around-failure`",
    ),
    LogCause(
        id="GRAPH-CAPTURE",
        pattern=_CAPTURE_FAILED,
        text="CUDA graph capture failed, usually for lack of memory",
        fix="reduce cuda_graph_max_bs, or max_bs and sizes of `graphs`, in the model profile, or --mem-fraction-static",
    ),
    LogCause(
        id="GPU-OUT-OF-MEMORY",
        pattern=r"CUDA out of memory|torch\.OutOfMemoryError|cudaErrorMemoryAllocation",
        text="a GPU ran out of memory",
        fix="reduce --mem-fraction-static or the CUDA graph batch size; check for other processes on the GPU with"
        " `nvidia-smi`",
    ),
    LogCause(
        id="GPU-KERNEL-FAULT",
        pattern=r"CUDA error: (an illegal memory access|an illegal instruction|misaligned address"
        r"|unspecified launch failure|device-side assert triggered)",
        text="a GPU kernel made an illegal memory access: a bug in the kernel, or a faulty GPU",
        fix="check this node's kernel log for Xid 13 or 31 (`dmesg -T | grep Xid`). If it is always the same GPU,"
        " replace that GPU; otherwise try the stack without CUDA graphs",
    ),
    LogCause(
        id="GPU-DRIVER",
        pattern=r"The NVIDIA driver on your system is too old|CUDA driver version is insufficient"
        r"|forward compatibility was attempted on non supported HW|Driver/library version mismatch",
        text="the node's NVIDIA driver is too old for the stack's CUDA libraries, or its versions do not match",
        fix="update the driver and reboot, or choose a stack that supports the installed driver",
    ),
    LogCause(
        id="GPU-LOST",
        pattern=r"GPU is lost|fallen off the bus|Unable to determine the device handle|uncorrectable ECC error"
        r"|no CUDA-capable device is detected|invalid device ordinal|CUDA-capable device\(s\) is/are busy",
        text="a GPU is missing, does not respond, or is in use",
        fix="check `nvidia-smi` and the kernel log (`dmesg -T | grep Xid`) on this node",
    ),
    LogCause(
        id="PORT-IN-USE",
        pattern=r"EADDRINUSE|[Aa]ddress already in use|Port is already in use|[Pp]ort \d+ is (already )?in use",
        text="a port that the engine needs is in use on this node",
        fix="find the listener with `ss -ltnp`: if it is another gang's, or you don't know whose, choose other ports in"
        " the inventory",
    ),
    LogCause(
        id="NO-INTERFACE",
        pattern=r"no socket interface found|Unable to find (interface|address) for",
        text="the network interface set for NCCL or Gloo does not exist, or has no address",
        fix="compare NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME with the node's interfaces (sglang issues 836, 958)",
    ),
    LogCause(
        id="IB-MEMLOCK",
        pattern=r"ibv_(reg_mr\w{0,16}|create_cq|create_qp|alloc_pd) failed.{0,256}(Cannot allocate memory|\b12\b)",
        text="the RDMA driver can't lock memory: the engine's memlock limit is too low",
        fix="set memlock to unlimited for the engine's service or user: run `l40s-deploy prepare --tags limits`",
    ),
    LogCause(
        id="IB-GID",
        pattern=r"ibv_modify_qp failed with (error )?(22\b|Invalid argument)",
        text="the GID index is not a usable RoCE v2 address on this port",
        fix="compare NCCL_IB_GID_INDEX with the port's GID table (`l40s-deploy discover`)",
    ),
    LogCause(
        id="IB-UNREACHABLE",
        pattern=r"ibv_modify_qp failed|ibv_poll_cq.{0,256}(failed|error)"
        r"|Got completion .{0,256}with (status|error)[ =]{0,4}12\b",
        text="an RDMA port can't reach its peer: wrong GID index, ports on different rails, or a fabric problem",
        fix="test the two ports with ib_write_bw; check NCCL_IB_HCA and the GID index (nccl issue 2013)",
    ),
    LogCause(
        id="IB-MISSING",
        pattern=r"Failed to initialize any NET plugin|Error: network IB not found",
        text="NCCL is set to use RDMA, but finds no usable RDMA device or no libibverbs on this node",
        fix="install libibverbs1 and ibverbs-providers; check with `ibv_devinfo` that the ports are ACTIVE",
    ),
    LogCause(
        id="SHM-TOO-SMALL",
        pattern=r"Error while (creating|attaching to) shared memory segment|/dev/shm.{0,256}No space left"
        r"|shmget.{0,256}failed",
        text="shared memory (/dev/shm) on this node is too small or full",
        fix="enlarge /dev/shm (`mount -o remount,size=16G /dev/shm`), or delete leftover files in it",
    ),
    LogCause(
        id="DISK-FULL",
        pattern=r"No space left on device",
        text="a disk on this node is full",
        fix="free space in the state directory and the caches; `l40s-deploy doctor` shows which file system is full",
    ),
    LogCause(
        id="HOST-OUT-OF-MEMORY",
        pattern=r"DefaultCPUAllocator: can't allocate memory|\bMemoryError\b|Cannot allocate memory",
        text="the node ran out of main memory",
        fix="find what else uses memory on the node (`ps aux --sort -rss`) and stop it",
    ),
    LogCause(
        id="RANK-DIED-STARTING",
        pattern=r"scheduler died during initialization \(exit code: -\d+\)",
        text="a rank's process was killed while the engine started; exit code -9 usually means the kernel's OOM killer",
        fix="check the kernel log on this node for the OOM killer (`dmesg -T | grep -i oom`), and what else uses its"
        " memory",
    ),
    LogCause(
        id="ENGINE-WATCHDOG",
        pattern=r"[Ww]atchdog timeout \(",
        text="a forward pass took longer than the engine's watchdog allows (300 s by default)",
        fix="increase --watchdog-timeout if the first pass compiles kernels; otherwise find the hanging rank with"
        " `l40s-deploy logs`",
    ),
    LogCause(
        id="NCCL-SYSTEM",
        pattern=r"ncclSystemError|ncclUnhandledCudaError|unhandled (system|cuda) error",
        text="NCCL failed in the operating system or in CUDA",
        fix="read the NCCL WARN lines before it (`l40s-deploy logs --around-failure`); check shared memory, memlock"
        " and the driver (nccl issue 697)",
    ),
    LogCause(
        id="LOADING-LATE",
        pattern=r"could finish the model loading, but there are other ranks",
        text="another rank did not finish loading within the engine's 480 s: its disk is slow, its memory is full, or"
        " it died",
        fix="compare the nodes' disks; read the weights into the page cache before the start:"
        " `cat MODEL/*.safetensors >/dev/null` (sglang issue 5457)",
        secondary=True,
    ),
    LogCause(
        id="PEER-MISSING",
        pattern=r"waiting for clients\. \d+/\d+ clients joined|The client socket has (timed out|failed to connect)",
        text="not all nodes joined the rendezvous in time",
        fix="check the node that failed first, and that every node can reach the rendezvous port"
        " (`l40s-deploy doctor`)",
        secondary=True,
    ),
    LogCause(
        id="COLLECTIVE-TIMEOUT",
        pattern=r"Watchdog caught collective operation timeout|Timed out waiting \d+ms for (recv|send) operation",
        text="a rank timed out waiting for another rank, which is late, hung or dead",
        fix="check the rank that failed or went silent first (sglang issues 3368, 3932)",
        secondary=True,
    ),
    LogCause(
        id="PEER-LOST",
        pattern=r"ncclRemoteError|Connection closed by (remote )?peer|Connection reset by (remote )?peer"
        r"|remote process exited or there was a network error|NCCL communicator was aborted"
        r"|Failed to recv, got 0 bytes",
        text="the connection to another rank or node was lost",
        fix="check the node that failed first",
        secondary=True,
    ),
    LogCause(
        id="CHILD-FAILED",
        pattern=r"Received sigquit from a child process|crashed with exit code|scheduler died during initialization",
        text="an engine process of this node exited",
        fix="read its last log lines: `l40s-deploy logs --around-failure`",
        secondary=True,
    ),
    LogCause(
        id="WARM-UP",
        pattern=r"Initialization failed\. warmup error",
        text="the engine's own warm-up request got no answer",
        fix="read the log lines before it: `l40s-deploy logs --around-failure`",
        secondary=True,
    ),
)
"""What both families of versions write."""

REMARKS = (
    LogCause(
        id="MOE-UNTUNED",
        pattern=r"Using default MoE (kernel )?config|Config file not found at \S+\.? Fallback to triton",
        text="there is no tuned MoE kernel config for this GPU, shape and Triton version",
        fix="find one with `l40s-deploy tuning run --model NAME FILE`, or copy an existing one with `tuning push`",
    ),
    LogCause(
        id="FP8-GEMM-UNTUNED",
        pattern=r"Using default W8A8 Block (FP8|INT8) kernel config",
        text="there is no tuned block GEMM kernel config for this GPU and shape",
        fix="find one with `l40s-deploy tuning run --model NAME FILE`, or copy an existing one with `tuning push`",
    ),
)
"""Lines that cost speed and end nothing; never shown as the cause of a failure."""

PCIE_IPC = (
    LogCause(
        id="PCIE-IPC-OFF",
        pattern=r"PCIE_IPC_ALLREDUCE is set but this FlashInfer"
        r"|FlashInfer PCIe-IPC (?:workspace \(max_numel=\d{1,12}\) failed|all-reduce serves bf16 only)"
        r"|Setup FlashInfer PCIe-IPC allreduce failed|leaving PCIe-IPC all-reduce off",
        text="the PCIe-IPC all-reduce that the plan asks for is not in use, so all-reduces use NCCL",
        fix="read why with `l40s-deploy logs`, or choose a layout without it (`l40s-deploy plan` lists them)",
    ),
)
"""sglang/srt/distributed/device_communicators/pcie_ipc_ar.py and parallel_state.py of 0.5.23."""

PCIE_IPC_IN_USE = (
    Proof(
        id="PCIE-IPC-OFF",
        pattern=r"FlashInfer PCIe-IPC workspace built \(world=\d{1,6}",
        text="the PCIe-IPC all-reduce",
        variable="SGLANG_ENABLE_PCIE_IPC_ALLREDUCE",
    ),
)
"""pcie_ipc_ar.py of 0.5.23: "enabled" is said before, and the workspace can still fail at the first reduction."""
