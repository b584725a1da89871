"""The catalogue of failure signatures: what a line in an SGLang log means, and what to do.

Sources: the wordings in sglang 0.4.4.post1 and 0.5.23 themselves, NCCL's and Gloo's sources, the sglang issues
named beside an entry, and the articles (yangwenbo.com) on 32 L40S. Specific entries stand before general ones.
A pattern takes time in proportion to the text: what stands between two of its words has a bound, since whoever can
write into a log could else make its reader stand still.
"""

from __future__ import annotations

from orchestrator.engines.engine import Cause

COMMON = (
    Cause(
        id="FLAG-REFUSED",
        pattern=r"error: (unrecognized arguments|ambiguous option|argument --|the following arguments are required)",
        text="the engine does not take this command line",
        fix="compare the stack's engine version with what is installed on the node (`l40s-deploy plan --show argv`)",
    ),
    Cause(
        id="ENGINE-MISSING",
        pattern=r"No module named '?(sglang|torch|sgl_kernel|flashinfer)\b",
        text="the stack's virtual environment on this node lacks the engine or a part of it",
        fix="install the stack there again, at the versions that its file in inventory/stacks names",
    ),
    Cause(
        id="MODEL-MISSING",
        pattern=r"Repo id must be in the form|is not a local folder and is not a valid model identifier"
        r"|does not appear to have a file named|Unrecognized model in .{0,512}Should have a `model_type` key"
        r"|No such file or directory: '?[^']{0,512}config\.json",
        text="the model's directory is missing or incomplete on this node",
        fix="copy the checkpoint to the node's model root (l40s_model_root), config and tokenizer files included",
    ),
    Cause(
        id="SHARDS-MISSING",
        pattern=r"references \d+ shard file\(s\) missing|Cannot find any model weights"
        r"|No such file or directory: '?[^']{0,512}\.safetensors",
        text="weight files that the index names are not on this node's disk",
        fix="finish copying the checkpoint, then compare the directories of all nodes",
    ),
    Cause(
        id="SHARD-CORRUPT",
        pattern=r"SafetensorError|Error while deserializing header",
        text="a weight file on this node is damaged or cut short",
        fix="compare sizes and checksums of the weight files with another node's and copy the odd one again",
    ),
    Cause(
        id="BLOCK-NOT-DIVISIBLE",
        pattern=r"is not divisible by weight quantization block_[nk] = ",
        text="a weight that is cut by the tensor parallel degree no longer ends on a quantisation block",
        fix="a checkpoint with 64x64 blocks for TP32, or PP x TP with TP16 at most"
        " (sglang issues 3345, 3491, 4791, 10641)",
    ),
    Cause(
        id="LAYOUT-NOT-DIVISIBLE",
        pattern=r"AssertionError: \d+ is not divisible by \d+|tp_size must be divisible by number of nodes",
        text="the tensor parallel degree does not divide the model's heads or widths, or not by the number of nodes",
        fix="another --tp or --pp (`l40s-deploy plan` names the layouts that the model allows)",
    ),
    Cause(
        id="SM89-TRITON-TILES",
        pattern=r"OutOfResources: out of resource: shared memory",
        text="a Triton kernel wants more shared memory than the GPU has (SM89: 101,376 bytes a block): its tile"
        " sizes are another GPU's",
        fix="a stack with the SM89 branch in extend_attention (sglang PR 4418), tuning files made on this GPU",
    ),
    Cause(
        id="SM89-INT8-GEMM",
        pattern=r"gemm executioin failed",
        text="sgl-kernel has no int8 GEMM dispatch for SM89 and runs SM80's; it looks like lack of memory and is not",
        fix="a build of sgl-kernel with sglang PR 4418",
    ),
    Cause(
        id="FP8-NOT-SUPPORTED",
        pattern=r"fp8e4nv not supported",
        text="a GPU older than SM89 is among the ranks: it has no FP8",
        fix="take the node with the older GPU out of the gang (sglang issue 18875)",
    ),
    Cause(
        id="GPU-MEMORY-UNBALANCED",
        pattern=r"The memory capacity is unbalanced",
        text="some GPUs have much less free memory than others: something else runs on them",
        fix="see `l40s-deploy status` for what holds GPU memory, and end it",
    ),
    Cause(
        id="WEIGHTS-EXCEED-MEMORY",
        pattern=r"Not enough memory\. Please try to increase --mem-fraction-static",
        text="after the weights no memory is left for the KV cache within the static fraction",
        fix="more GPUs for the model, or a larger --mem-fraction-static where the plan's arithmetic allows it",
    ),
    Cause(
        id="GRAPH-CAPTURE",
        pattern=r"Capture (?:prefill |frozen-KV MTP )?(?:cuda|CUDA) graph failed",
        text="capturing the CUDA graphs failed, mostly for lack of memory",
        fix="smaller batches in graphs (the profile's cuda_graph_max_bs) or a smaller --mem-fraction-static",
    ),
    Cause(
        id="GPU-OUT-OF-MEMORY",
        pattern=r"CUDA out of memory|torch\.OutOfMemoryError|cudaErrorMemoryAllocation",
        text="a GPU ran out of memory",
        fix="a smaller --mem-fraction-static or smaller CUDA graph batches; look for other processes on the GPU",
    ),
    Cause(
        id="GPU-KERNEL-FAULT",
        pattern=r"CUDA error: (an illegal memory access|an illegal instruction|misaligned address"
        r"|unspecified launch failure|device-side assert triggered)",
        text="a GPU kernel read or wrote where it may not: a defect of the kernel, or a faulty GPU",
        fix="look for Xid in this node's kernel log; always the same GPU: the GPU, else the stack (try it without CUDA"
        " graphs, NVIDIA Xid 13 and 31)",
    ),
    Cause(
        id="GPU-DRIVER",
        pattern=r"The NVIDIA driver on your system is too old|CUDA driver version is insufficient"
        r"|forward compatibility was attempted on non supported HW|Driver/library version mismatch",
        text="the node's NVIDIA driver does not suit the CUDA libraries of the stack",
        fix="update the driver, or choose a stack for the installed one",
    ),
    Cause(
        id="GPU-LOST",
        pattern=r"GPU is lost|fallen off the bus|Unable to determine the device handle|uncorrectable ECC error"
        r"|no CUDA-capable device is detected|invalid device ordinal|CUDA-capable device\(s\) is/are busy",
        text="a GPU does not answer, is taken, or is not there",
        fix="look at `nvidia-smi` and the kernel's log (Xid) on this node",
    ),
    Cause(
        id="PORT-IN-USE",
        pattern=r"EADDRINUSE|[Aa]ddress already in use|Port is already in use|[Pp]ort \d+ is (already )?in use",
        text="a port that the engine needs is taken on this node",
        fix="end what listens there (`ss -ltnp`), mostly an engine that was left behind, or choose other ports",
    ),
    Cause(
        id="NO-INTERFACE",
        pattern=r"no socket interface found|Unable to find (interface|address) for",
        text="the network interface that NCCL or Gloo was told to use is not there, or has no address",
        fix="compare NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME with the node's interfaces (sglang issues 836, 958)",
    ),
    Cause(
        id="IB-MEMLOCK",
        pattern=r"ibv_(reg_mr\w{0,16}|create_cq|create_qp|alloc_pd) failed.{0,256}(Cannot allocate memory|\b12\b)",
        text="the RDMA driver may not lock memory: the memlock limit is too low where the engine runs",
        fix="memlock unlimited for the engine's service or user (LimitMEMLOCK=infinity)",
    ),
    Cause(
        id="IB-GID",
        pattern=r"ibv_modify_qp failed with (error )?(22\b|Invalid argument)",
        text="the GID index does not name a usable RoCE v2 address on this port",
        fix="compare NCCL_IB_GID_INDEX with the port's GID table (`l40s-deploy discover`)",
    ),
    Cause(
        id="IB-UNREACHABLE",
        pattern=r"ibv_modify_qp failed|ibv_poll_cq.{0,256}(failed|error)"
        r"|Got completion .{0,256}with (status|error)[ =]{0,4}12\b",
        text="an RDMA port can't reach its peer: wrong GID index, ports of different rails, or the fabric",
        fix="test the pair with ib_write_bw; check NCCL_IB_HCA and the GID index (nccl issue 2013)",
    ),
    Cause(
        id="IB-MISSING",
        pattern=r"Failed to initialize any NET plugin|Error: network IB not found|NET/IB : No device found",
        text="NCCL was told to use RDMA and finds no usable RDMA device or no libibverbs on this node",
        fix="install libibverbs1 and the vendor's provider; check that the ports are ACTIVE",
    ),
    Cause(
        id="SHM-TOO-SMALL",
        pattern=r"Error while (creating|attaching to) shared memory segment|/dev/shm.{0,256}No space left"
        r"|shmget.{0,256}failed",
        text="shared memory (/dev/shm) on this node is too small or full",
        fix="enlarge /dev/shm, or remove what was left in it",
    ),
    Cause(
        id="DISK-FULL",
        pattern=r"No space left on device",
        text="a disk on this node is full",
        fix="free space below the state directory and the caches that the plan names",
    ),
    Cause(
        id="HOST-OUT-OF-MEMORY",
        pattern=r"DefaultCPUAllocator: can't allocate memory|\bMemoryError\b|Cannot allocate memory",
        text="the node ran out of main memory",
        fix="look for what else runs there; loading maps the weight files through the page cache",
    ),
    Cause(
        id="RANK-DIED-STARTING",
        pattern=r"scheduler died during initialization \(exit code: -\d+\)",
        text="a rank's process was killed while the engine started; with exit code -9 mostly by the kernel, for lack of"
        " main memory",
        fix="check this node's kernel log for the OOM killer (`dmesg -T | grep -i oom`), and what else runs there",
    ),
    Cause(
        id="ENGINE-WATCHDOG",
        pattern=r"[Ww]atchdog timeout \(",
        text="one forward pass took longer than the engine's watchdog allows (300 s unless set)",
        fix="raise --watchdog-timeout where the first pass compiles; else look for the rank that hangs",
    ),
    Cause(
        id="NCCL-SYSTEM",
        pattern=r"ncclSystemError|ncclUnhandledCudaError|unhandled (system|cuda) error",
        text="NCCL failed in the operating system or in CUDA",
        fix="read the NCCL WARN lines just before it: shared memory, memlock, driver (nccl issue 697)",
    ),
    Cause(
        id="LOADING-LATE",
        pattern=r"could finish the model loading, but there are other ranks",
        text="another rank did not finish loading within the engine's 480 s: slow disk, lack of memory, or dead",
        fix="compare the nodes' disks; read the weights once beforehand so that they lie in the page cache"
        " (sglang issue 5457)",
        secondary=True,
    ),
    Cause(
        id="PEER-MISSING",
        pattern=r"waiting for clients\. \d+/\d+ clients joined|The client socket has (timed out|failed to connect)",
        text="not all nodes came to the rendezvous in time",
        fix="look at the node that failed first; is the rendezvous port reachable from every node?",
        secondary=True,
    ),
    Cause(
        id="COLLECTIVE-TIMEOUT",
        pattern=r"Watchdog caught collective operation timeout|Timed out waiting \d+ms for (recv|send) operation",
        text="a rank waited in vain for another one: that one is late, hung or dead",
        fix="look at the rank that failed or stopped talking first (sglang issues 3368, 3932)",
        secondary=True,
    ),
    Cause(
        id="PEER-LOST",
        pattern=r"ncclRemoteError|Connection closed by (remote )?peer|Connection reset by (remote )?peer"
        r"|remote process exited or there was a network error|NCCL communicator was aborted"
        r"|Failed to recv, got 0 bytes",
        text="another rank or node went away",
        fix="look at the node that failed first",
        secondary=True,
    ),
    Cause(
        id="CHILD-FAILED",
        pattern=r"Received sigquit from a child process|crashed with exit code|scheduler died during initialization",
        text="an engine process of this node exited",
        fix="read what that process logged before: l40s-deploy logs --around-failure",
        secondary=True,
    ),
    Cause(
        id="WARM-UP",
        pattern=r"Initialization failed\. warmup error",
        text="the engine's own warm-up request got no answer",
        fix="read what the ranks logged before it",
        secondary=True,
    ),
)
"""What both families of versions write."""

REMARKS = (
    Cause(
        id="MOE-UNTUNED",
        pattern=r"Using default MoE (kernel )?config|Config file not found at \S+\.? Fallback to triton",
        text="no tuned MoE kernel configuration for this GPU, shape and Triton version",
        fix="tune on this GPU (benchmark/kernels/fused_moe_triton of the engine's tag) and copy the file",
    ),
    Cause(
        id="FP8-GEMM-UNTUNED",
        pattern=r"Using default W8A8 Block (FP8|INT8) kernel config",
        text="no tuned block GEMM configuration for this GPU and shape",
        fix="tune on this GPU (benchmark/kernels/quantization/tuning_block_wise_kernel.py) and copy the file",
    ),
)
"""Lines that cost speed and end nothing; never shown as the cause of a failure."""
