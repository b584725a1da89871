"""The catalogue of failure signatures: what a line in an SGLang log means, and what to do.

Sources: the wordings in sglang 0.4.4.post1 and 0.5.23 themselves, NCCL's and Gloo's sources, the sglang issues
named beside an entry, and the articles (yangwenbo.com) on 32 L40S. Specific entries stand before general ones.
A pattern takes time in proportion to the text: what stands between two of its words has a bound, since whoever can
write into a log could else make its reader stand still.
"""

from __future__ import annotations

from orchestrator.protocol.staging import CausePattern
from orchestrator.protocol.xids import XIDS

_COMPLETION = (
    r"(?:(?:Got completion (?:from peer (?P<peer>\S{1,128}) )?with (?:error|status)[ =]{1,4}(?:\w{1,40}\()?)"
    r"|\bstatus=IBV_WC_\w{1,40}\()"
)
"""NCCL src/transport/net_ib: a number up to 2.27, from 2.28 on its name with the number in brackets (ibv_wc_status),
which tells enough where a line's beginning was cut off."""
_CARD = r"\b(?:.{0,400}\bhca (?P<own>\S{1,64}))?"
_NO_WAY = (
    r"(?:No route to host|Connection timed out|Network is unreachable|Host is down|Software caused connection abort)"
)
_LOCAL_ONLY = r"\[?(?:fe80:|169\.254\.|127\.0\.1\.1\b)"
"""Addresses that lead to no other node; the last is what Debian calls the machine's own name in /etc/hosts."""
_BRIDGE = r"172\.(?:17\.0\.\d|(?:1[89]|2\d|3[01])\.0\.1<)"
"""Addresses that Docker gives to its bridges and, by default, to what is behind docker0: of one machine alone."""
_TAKES_MEMORY = (
    r"\b(?:v?fork|_fork_exec|fork_exec|clone|mmap|mremap|malloc|calloc|posix_memalign|pin_memory|cudaHostAlloc"
    r"|shmat|ftruncate|io_setup|thread stack)\b"
)
"""Calls that ask the kernel for main memory."""
_THREAD = r"(?:\bpthread_create\b|failed to spawn thread\b|\bThreadPoolBuildError\b).{0,96}"
_THREAD_REFUSED = rf"{_THREAD}(?:Operation not permitted|\(EPERM\))"
_TOOL = r"(?:ninja|nvcc|cicc|ptxas|cuobjdump|gcc|g\+\+|cc|c\+\+|clang|clang\+\+)"
_GPU_FAULT = (
    r"(?:an illegal memory access|an illegal instruction|misaligned address|unspecified launch failure"
    r"|device-side assert triggered|the launch timed out and was terminated|hardware stack error"
    r"|invalid program counter)"
)
_CUDA_SAYS = (
    r"(?:CUDA|Cuda) (?:runtime |driver )?(?:[Ee]rror|failure|warning)"
    r"(?: \d{1,4}| \(?\S{1,256}:\d{1,6}\)?| in \S{1,256})?:? ?'?"
)
"""Before CUDA's own words, as torch, NCCL, DeepEP, TensorRT-LLM, turbomind and llama.cpp write them."""
_NEWER_DOCKER = (
    "upgrade Docker to 20.10.10 or newer with its libseccomp and runc; as a proof, `--security-opt seccomp=unconfined`"
)
_LARGER_SHM = (
    "enlarge /dev/shm (`mount -o remount,size=16G /dev/shm`; in a container --shm-size or --ipc=host), or"
    " delete leftover files in it"
)
_MORE_PROCESSES = (
    "raise nproc, TasksMax of its systemd unit, or --pids-limit of its container; look for left processes with"
    " `ps -eLf | wc -l`"
)
_ASSERTION = r"\bblock: \[\d{1,9},\d{1,9},\d{1,9}\], thread: \[\d{1,5},\d{1,5},\d{1,5}\] Assertion [`']"
_CAPTURE_FAILED = r"Capture (?:prefill |frozen-KV MTP )?(?:cuda|CUDA) graph failed"

COMMON = (
    CausePattern(
        id="FLAG-REFUSED",
        pattern=r"error: (unrecognized arguments|ambiguous option|argument --|the following arguments are required"
        r"|unexpected argument '-|invalid value '[^']{0,64}' for '-)|Error: (?:No such option|Missing (?:option"
        r"|argument))\b"
        r"|received no value for the required argument|Could not consume arg: ",
        text="the engine rejected its command line",
        fix="compare its flags (`l40s-deploy plan --show argv`) with the engine version that is installed on the node"
        " (`l40s-deploy doctor`)",
    ),
    CausePattern(
        id="ENGINE-MISSING",
        pattern=r"No module named '?(sglang|torch|sgl_kernel|flashinfer)\b"
        r"|^ModuleNotFoundError: No module named '(?:triton|transformers|vllm|xgrammar|deep_gemm)\b"
        r"|ImportError: \S{1,256}\.so: undefined symbol(?!: cu[A-Z])|Could not load any common_ops library"
        r"|Error: lib(?:cudart|cu(?:blas|dnn|fft|solver|sparse|pti)|nv(?!i)|nccl|torch|c10)\S{0,64}: cannot open shared"
        r"|version .?(?:GLIBC(?:XX)?|CXXABI)_[\d.]{1,16}.? not found|ImportError: .{0,128}(?:is not installed"
        r"|[Pp]lease install )"
        r"|Could not load library lib\S{1,64}\. Error: lib(?!cuda\.)|Unable to load any of \{lib"
        r"|is installed with version \S{1,64},? which is less than the minimum required version",
        text="the engine, or one of its packages, is not installed in the stack's environment on this node, is too old,"
        " or is built for another torch or a newer glibc",
        fix="reinstall the stack: run `l40s-deploy prepare`; for an old glibc choose another stack",
    ),
    CausePattern(
        id="MODEL-MISSING",
        pattern=r"Repo id must be in the form|is not a local folder and is not a valid model identifier"
        r"|does not appear to have a file named|Unrecognized model in .{0,512}Should have a `model_type` key"
        r"|Error no file named .{0,128} found in directory|config file at .{0,512} is not a valid JSON"
        r"|No such file or directory: '?[^']{0,512}config\.json|Can't load tokenizer for '/"
        r"|ValueError: No tokenizer file found in directory"
        r"|We couldn't connect to 'https://huggingface|LocalEntryNotFoundError|OfflineModeIsEnabled",
        text="the model's directory is missing or incomplete on this node",
        fix="copy the checkpoint, with its config and tokenizer files, to this node's model root"
        " with `checkpoint push`",
    ),
    CausePattern(
        id="MODEL-DENIED",
        pattern=r"Permission denied: ['\"]?[^'\"]{0,512}(?:/(?:config|tokenizer)[\w.]{0,32}\.json|\.safetensors)",
        text="the engine's user may not read the model's files on this node",
        fix="let that user read them and pass through the folders above (`namei -l` shows who may)",
    ),
    CausePattern(
        id="MODEL-DENIED",
        pattern=r"You are trying to access a gated repo|Cannot access gated repo|GatedRepoError: ",
        text="Hugging Face gives the model only to accounts that have accepted its terms",
        fix="copy the checkpoint to this node's model root, or set HF_TOKEN in l40s_env to such an account's token",
    ),
    CausePattern(
        id="MODEL-CODE-REFUSED",
        pattern=r"[Pp]lease pass the argument `trust_remote_code=True`|set the option `trust_remote_code=True`"
        r"|consider setting `trust_remote_code=True`",
        text="the checkpoint contains code of its own, which the engine runs only if it is told to",
        fix="read that code; then set `trust_remote_code: true` in the model's profile",
    ),
    CausePattern(
        id="MODEL-UNSUPPORTED",
        pattern=r"Model architectures \[.{0,256}\] are not supported"
        r"|but Transformers does not recognize this architecture|Unrecognized configuration class <class"
        r"|Tokenizer class \w{1,64} does not exist or is not"
        r"|`rope_scaling` must be a dictionary with (?:two fields|a minimum of two fields|with two fields)",
        text="the stack's engine, or its Transformers, is older than the model and does not know it",
        fix="choose a newer stack (l40s_stack), or one that is patched for the model",
    ),
    CausePattern(
        id="SHARDS-MISSING",
        pattern=r"unable to open file <[^>]{1,512}\.(?:bin|safetensors|pth?)> in read-only mode: No such file"
        r"|references \d+ shard file\(s\) missing|Cannot find any model weights|No local weights found in /"
        r"|No \.safetensors weights found for model"
        r"|No such file or directory: '?[^']{0,512}\.safetensors",
        text="weight files that the index lists are missing on this node",
        fix="list them with `l40s-deploy checkpoint verify MODEL`, then send them with `checkpoint push --repair`",
    ),
    CausePattern(  # torch/serialization.py
        id="MODEL-CODE-REFUSED",
        pattern=r"UnpicklingError: Weights only load failed",
        text="a file of the checkpoint is pickled and holds more than tensors, which torch refuses to load since 2.6",
        fix="take a checkpoint of safetensors files, or convert it on a machine that may run its code",
    ),
    CausePattern(
        id="SHARD-CORRUPT",
        pattern=r"UnpicklingError: invalid load key|Error while deserializing header"
        r"|SafetensorError: (?:File does not contain tensor|Error while )"
        r"|SafetensorError: header too|PytorchStreamReader failed reading zip archive"
        r"|Unable to load weights from pytorch checkpoint file",
        text="a weight file on this node is corrupt or truncated",
        fix="find it with `l40s-deploy checkpoint verify MODEL`, then replace it with `checkpoint push --repair`",
    ),
    CausePattern(  # huggingface_hub issue 2779
        id="SHARD-CORRUPT",
        pattern=r"OSError: Consistency check failed: file should be of size \d{1,18} but has size \d{1,18}",
        text="a file that was loaded from the hub is not complete: the connection ended early, or several processes"
        " wrote it at once",
        fix="download it again with one process alone, and start the engine with the path of the download",
    ),
    CausePattern(
        id="WEIGHTS-DIFFER",
        pattern=r"size mismatch for \S{1,256}: copying a param|There is no module or parameter named '"
        r"|KeyError: '(?:[\w-]{1,64}\.){2,16}(?:w(?:1|2|3|13)_)?"
        r"(?:weight\w{0,32}|bias|(?:input|k|v)_scale|q(?:weight|zeros)|scales|g_idx)'"
        r"|Attempted to load weight|Tried to load weights of size|weights were not initialized from"
        r"|assert \w{1,32}\.[\w()]{4,8} == loaded_weight\.",
        text="a weight of the checkpoint has another name or shape than the engine expects: another quantisation or"
        " config.json, an engine that does not know it, or a parallel degree that does not divide it",
        fix="compare its config.json with `l40s-deploy plan --show argv`; verify the files with"
        " `l40s-deploy checkpoint verify MODEL`",
        weak=True,
    ),
    CausePattern(
        id="WEIGHTS-DIFFER",
        pattern=r"RuntimeError: start \(\d{1,12}\) \+ length \(\d{1,12}\) exceeds dimension size",
        after=r"weight_loader|load_\w{0,32}weight|loaded_weight|weight_utils",
        text="a weight, or its scales, can't be cut into as many parts as there are ranks: a quantisation whose groups"
        " are wider than a rank's part, or another config.json",
        fix="choose a smaller --tp (`l40s-deploy plan` lists the layouts that the model allows), or another"
        " quantisation of the model",
    ),
    CausePattern(
        id="WEIGHTS-DIFFER",
        pattern=r"RuntimeError: (?:The size of tensor a \(\d{1,12}\) must match the size of tensor b"
        r"|The expanded size of the tensor \(\d{1,12}\) must match the existing size)",
        after=r"weight_loader|load_\w{0,32}weight|loaded_weight|weight_utils",
        unless=r"/quantization/",
        text="a weight of the checkpoint has another shape than the engine expects: another quantisation or"
        " config.json, or a parallel degree that does not divide it",
        fix="compare its config.json with `l40s-deploy plan --show argv`; verify the files with"
        " `l40s-deploy checkpoint verify MODEL`",
        weak=True,
    ),
    CausePattern(
        id="BLOCK-NOT-DIVISIBLE",
        pattern=r"is not divisible by weight quantization block_[nk] = ",
        text="split by the tensor parallel degree, a weight no longer ends on a quantisation block",
        fix="use a checkpoint with 64x64 blocks for TP32, or pipeline stages with TP16 at most (sglang issues 3345,"
        " 3491, 4791, 10641)",
    ),
    CausePattern(
        id="LAYOUT-NOT-DIVISIBLE",
        pattern=r"AssertionError: \d+ is not divisible|must be divisible by (?:number of nodes|tensor parallel size)"
        r"|must be divisible by (?:[a-z]{2,8}_)?[tped]p_size\b"
        r"|number of GPUs per node is not divisible by|is not divisible by min_thread_[nk]\b"
        r"|caused by too large tensor parallel size"
        r"|\b(?:size|prob)_[mnk] = \d{1,9} is not divisible by (?:tile|thread)_[mnk]\b"
        r"|\bsize_[mnk] = \d{1,9},? is not divisible by (?:tile_[mnk]_size\b|b_(?:scales|zeros)\.size\()"
        r"|\bsize_[mnk] must (?:be )?divisible by BLOCK_SIZE_[MNK]\b"
        r"|^\s{1,16}assert [\w.]{1,64} % (?:self\.)?(?:[tped]p_size|tensor_parallel\w{0,16}|world_size)\b.{0,16}== 0",
        text="the tensor parallel degree does not divide the model's heads or widths, or is not a multiple of the"
        " number of nodes",
        fix="choose another --tp or --pp; `l40s-deploy plan` lists the layouts that the model allows",
    ),
    CausePattern(
        id="SM89-TRITON-TILES",
        pattern=r"OutOfResources: out of resource: shared memory",
        text="a Triton kernel needs more shared memory than the GPU has (SM89: 101,376 bytes per block): its tile"
        " sizes are for another GPU",
        fix="use a stack with the SM89 branch in extend_attention (sglang PR 4418), and kernel configs tuned on this"
        " GPU",
    ),
    CausePattern(
        id="SM89-INT8-GEMM",
        pattern=r"gemm executioin failed",
        text="sgl-kernel has no int8 GEMM for SM89 and used the one for SM80; the error looks like a lack of memory,"
        " but is not",
        fix="install a build of sgl-kernel with sglang PR 4418",
    ),
    CausePattern(
        id="FP8-NOT-SUPPORTED",
        pattern=r"fp8e4nv not supported|quantization method fp8 is not supported for the current GPU",
        text="one of the GPUs is older than SM89 and does not support FP8",
        fix="remove the node with the older GPU from the gang (sglang issue 18875)",
    ),
    CausePattern(
        id="GPU-MEMORY-UNBALANCED",
        pattern=r"The memory capacity is unbalanced|Free memory on device .{0,64}is less than desired GPU memory",
        text="a GPU has much less free memory than others, or than the engine wants: another process uses it",
        fix="find the process with `nvidia-smi` on the node: if it is another gang's, give each gang its own GPUs",
    ),
    CausePattern(
        id="WEIGHTS-EXCEED-MEMORY",
        pattern=r"Not enough memory(?:\. Please try to increase --mem-fraction-static| to allocate KV cache)"
        r"|No available memory for the cache blocks|Not enough GPU memory for hybrid \(|leaves no room for the full KV"
        r"|state cache is too small to serve",
        text="the weights leave no memory for the KV cache within --mem-fraction-static (vLLM:"
        " --gpu-memory-utilization)",
        fix="use more GPUs, or increase --mem-fraction-static as far as `l40s-deploy plan` allows",
    ),
    CausePattern(
        id="KV-CACHE-FULL",
        pattern=r"(?:Prefill out|Decode out|^(?:RuntimeError: )?Out) of memory\. Try to lower your batch size"
        r"|larger than the (?:available KV cache memory|maximum number of tokens that can be stored in KV cache)",
        text="the KV cache has too few tokens for the requests, or for the model's context length",
        fix="set --context-length and --max-running-requests by the KV tokens that `l40s-deploy plan` shows, or choose"
        " a layout with more of them",
    ),
    CausePattern(  # flashinfer/allocator.h, before 0.2.4 and since
        id="WORKSPACE-TOO-SMALL",
        pattern=r"(?:Failed to allocate memory|Buffer overflow when allocating memory) for \w{1,64} with size \d{1,16}"
        r" and alignment \d{1,6}\b.{0,64} in AlignedAllocator",
        text="FlashInfer's workspace is too small for this batch; the GPU itself may have memory left",
        fix="set SGLANG_FLASHINFER_WORKSPACE_SIZE (vLLM: VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE) in l40s_env to a few"
        " times the bytes in the line, less --mem-fraction-static for it; or a smaller chunked prefill",
    ),
    CausePattern(
        id="KERNEL-COMPILE",
        pattern=rf"PassManager::run failed|LLVM ERROR: (?:Cannot select|unsupported)|{_CAPTURE_FAILED}: "
        r"(?:\w{1,64}\.){0,8}(?:InductorError|SubprocException|LoweringException|BackendCompilerFailed)\b",
        text="a GPU kernel did not compile; with torch.compile, SGLang 0.5.17 fails in DeepSeek's FP8 attention",
        fix="remove --enable-torch-compile, or torch_compile_max_bs of the profile (`graphs` too), if `l40s-deploy"
        " plan --show argv` shows it; otherwise find the kernel with `l40s-deploy logs --around-failure`",
    ),
    CausePattern(  # sglang/srt/managers/scheduler_components/invariant_checker.py, scheduler.py before
        id="ENGINE-DEFECT",
        pattern=r"(?:pool\w{0,32}|[Kk][Vv] ?[Cc]ache|token) memory leak detected!",
        text="SGLang's own count of its KV slots does not agree: a defect of this version, with what the requests or"
        " settings were",
        fix="search its issues for these words; try its newest release, or as a proof --disable-overlap-schedule, then"
        " --disable-radix-cache",
        weak=True,
    ),
    CausePattern(
        id="GRAPH-CAPTURE",
        pattern=rf"{_CAPTURE_FAILED}.{{0,256}}(?:[Oo]ut of memory|OutOfMemory)",
        text="CUDA graph capture failed for lack of memory",
        fix="reduce cuda_graph_max_bs, or max_bs and sizes of `graphs`, in the model profile, or --mem-fraction-static",
    ),
    CausePattern(  # vllm issues 19186, 17462
        id="GRAPH-CAPTURE",
        pattern=rf"RuntimeError: {_CUDA_SAYS}out of memory",
        after=r"\bcapture_end\(\)",
        text="a GPU's memory ran out while CUDA graphs were captured",
        fix="reduce cuda_graph_max_bs, or max_bs and sizes of `graphs`, in the model profile, or --mem-fraction-static"
        " (vLLM: --gpu-memory-utilization, --max-num-seqs)",
    ),
    CausePattern(
        id="GPU-OUT-OF-MEMORY",
        pattern=r"CUDA out of memory|torch\.(?:cuda\.)?OutOfMemoryError|cudaErrorMemoryAllocation"
        rf"|CUDA_ERROR_OUT_OF_MEMORY|{_CUDA_SAYS}out of memory|cudaMalloc failed: out of memory"
        r"|CUBLAS_STATUS_ALLOC_FAILED|Failed to CUDA [mc]alloc |Triton Error \[CUDA\]: out of memory",
        text="a GPU ran out of memory",
        fix="reduce --mem-fraction-static or the CUDA graph batch size; check for other processes on the GPU with"
        " `nvidia-smi`",
    ),
    CausePattern(  # torch, c10/cuda/CUDACachingAllocator.cpp
        id="GPU-OUT-OF-MEMORY",
        pattern=r"NVML_SUCCESS == r INTERNAL ASSERT FAILED",
        text="a GPU ran out of memory, and torch could not ask the driver (NVML) how much there is",
        fix="reduce --mem-fraction-static or the CUDA graph batch size; whether `nvidia-smi` answers in this container"
        " shows what is wrong with NVML",
        weak=True,
    ),
    CausePattern(  # deepep, csrc/kernels: a wait in vain ends in trap()
        id="EP-TIMEOUT",
        pattern=r"\bdeep_ep\.cpp:\d{1,6} 'unspecified launch failure'",
        text="DeepEP's kernels waited in vain for another rank's tokens: that rank is late or dead, or the way to it"
        " (NVLink, RDMA with IBGDA) delivers nothing",
        fix="read first whether another rank's log ends earlier; else test the RDMA ports, and compare NVSHMEM with"
        " what this DeepEP was made for (deepep issues 137, 274, 707)",
        weak=True,
    ),
    CausePattern(
        id="GPU-KERNEL-FAULT",
        pattern=rf"(?:{_CUDA_SAYS}|Triton Error \[CUDA\]: ){_GPU_FAULT}",
        text="a GPU kernel failed while it ran (illegal access, assertion): a bug in it, or a faulty GPU",
        fix="check this node's kernel log for Xid 13 or 31 (`dmesg -T | grep Xid`). If it is always the same GPU,"
        " replace that GPU; otherwise try the stack without CUDA graphs",
        weak=True,
    ),
    CausePattern(  # sglang issue 283, ktransformers issue 876; sglang, layers/sampler.py
        id="LOGITS-NAN",
        pattern=r"probability tensor contains either [`']inf['`]|ValueError: Detected errors during sampling! NaN in",
        text="the model computed NaN or infinity, from which no token can be drawn: a kernel or a quantisation that"
        " computes wrongly on this GPU, a type that is too narrow (float16), or damaged weights",
        fix="verify the weights (`l40s-deploy checkpoint verify MODEL`); as a proof choose another attention and MoE"
        " backend, bfloat16 in place of float16, and no quantised KV cache",
        weak=True,
    ),
    CausePattern(
        id="GPU-KERNEL-FAULT",
        pattern=rf"{_ASSERTION}[^`\n]{{0,200}}(?:[Ii]nd(?:ex|ices)|\bind\b|\bidx)",
        text="a check within a GPU kernel failed: an index is out of its range, as a token or position that the model's"
        " tables do not have",
        fix="compare the tokenizer and --context-length with the model's config.json (vocab_size,"
        " max_position_embeddings); added tokens need a larger vocabulary",
        weak=True,
    ),
    CausePattern(
        id="GPU-KERNEL-FAULT",
        pattern=rf"{_ASSERTION}(?P<own>[^`\n]{{1,120}})",
        text="a check within a GPU kernel failed",
        fix="search the engine's issues for these words; as a proof choose another backend for that kernel, or start"
        " without CUDA graphs",
        weak=True,
    ),
    CausePattern(
        id="GPU-DUPLICATE",
        pattern=r"Duplicate GPU detected|Multiple Ranks are using the same GPU",
        text="two ranks were given the same GPU",
        fix="give each rank a GPU of its own: compare l40s_gpus, CUDA_VISIBLE_DEVICES and the number of ranks on the"
        " node (`l40s-deploy plan --show env`)",
    ),
    CausePattern(
        id="GPU-PEERS-EXCEEDED",
        pattern=r"peer mapping resources exhausted|cudaErrorTooManyPeers|GPU peer-mapping \(BAR1 P2P\) resources",
        text="more GPUs of one node map each other's memory than CUDA allows: 8 at once over PCIe",
        fix="give the gang at most 8 GPUs of a node (l40s_gpus), or try NCCL_CUMEM_ENABLE=0 and NCCL_P2P_DISABLE=1"
        " (nccl issue 1874)",
    ),
    CausePattern(
        id="GPU-P2P-REFUSED",
        pattern=r"(?:Error: CUDA(?:RT)? error: |Cuda failure (?:\d{1,4} )?'|Cuda error \S{1,128} '"
        r"|CUDA IPC handle : (?:217 )?)"
        r"peer access is not supported|NCCL WARN P2P is disabled between NVLINK connected GPUs",
        text="two GPUs of this node can't map each other's memory",
        fix="see which pairs can: `nvidia-smi topo -p2p r`; without P2P between them set NCCL_P2P_DISABLE=1 and"
        " --disable-custom-all-reduce, and where NCCL names transport/shm.cc NCCL_CUMEM_HOST_ENABLE=0 (nccl issue"
        " 1838)",
    ),
    CausePattern(  # sglang issue 9706
        id="CUSTOM-ALL-REDUCE",
        pattern=r"RuntimeError: (?:CUDA error: )?invalid (?:argument|resource handle)\s{0,8}$",
        after=r"\bregister_(?:graph_)?buffers?\b|\binit_custom_ar\b",
        text="the engine's custom all-reduce could not register its buffers with the other GPUs (CUDA IPC, P2P)",
        fix="add --disable-custom-all-reduce to l40s_args",
        weak=True,
    ),
    CausePattern(
        id="CUSTOM-ALL-REDUCE",
        pattern=r"Cuda error \S{0,256}custom_all_reduce\w{0,32}\.cuh:\d{1,6} '(?:invalid (?:argument|resource handle)"
        r"|mapping of buffer object failed|resource already mapped|unknown error)'",
        text="the engine's custom all-reduce can't map the memory of another GPU (CUDA IPC, P2P)",
        fix="add --disable-custom-all-reduce to l40s_args",
    ),
    CausePattern(
        id="GPU-ARCH",
        pattern=r"no kernel image is available for execution|FP8 reduction support begins with sm90"
        rf"|{_CUDA_SAYS}invalid device function"
        r"|(?:ptxas|nvcc) fatal {1,8}: (?:Value 'sm_|Unsupported gpu)"
        r"|(?:ptxas .{0,128}\b|^\s{0,16})error {0,4}: Feature '[^']{1,128}' (?:requires|not supported on) \.target"
        r"|error: \S{1,64} is not supported for this GPU architecture"
        r"|namespace \"cooperative_groups\" has no member",
        text="a library of the stack has no kernels for this GPU's architecture",
        fix="install builds of torch, sgl-kernel and flashinfer for it (compute capability: `nvidia-smi"
        " --query-gpu=compute_cap --format=csv`), or choose another stack",
    ),
    CausePattern(  # sglang issue 8654
        id="GPU-DRIVER",
        pattern=r"\.so(?:\.\d{1,4}){0,3}: undefined symbol: "
        r"(?P<own>cu(?:GreenCtx|CtxFromGreen|DeviceGetDevResource|DevResource|TensorMap|Multicast|LaunchKernelEx"
        r"|Kernel(?:Get|Set)|Library(?:Load|Get)|MemBatch|MemcpyBatch)\w{0,48})",
        text="a library of the stack asks the NVIDIA driver for a call that its libcuda.so.1 does not have: the driver"
        " is too old for it, or a stub or an older libcuda is found before it",
        fix="upgrade the driver, or choose a stack for an older CUDA; `ldconfig -p | grep libcuda` shows which one is"
        " taken",
    ),
    CausePattern(
        id="GPU-DRIVER",
        pattern=r"[Dd]river ?/ ?library version mismatch|NVRM: API mismatch|NVML/RM version mismatch",
        text="the NVIDIA driver's kernel module and its libraries have different versions: the libraries were upgraded,"
        " and the older module is still loaded",
        fix="reboot the node, or reload the module that belongs to the installed driver",
    ),
    CausePattern(
        id="GPU-ARCH",
        pattern=r"No supported CUDA architectures found for major versions"
        r"|\bSM ?_?\d{1,3}(?:\.x)? requires CUDA (?:Toolkit )?>= ?\d",
        text="the CUDA toolkit with which kernels are compiled at the start is older than this GPU's architecture",
        fix="install the newer toolkit that the line names, set CUDA_HOME to it, and delete ~/.cache/flashinfer",
        weak=True,
    ),
    CausePattern(  # deepgemm, csrc/jit/compiler.hpp
        id="COMPILER-MISSING",
        pattern=r"Assertion error \(\S{0,256}/jit/compiler\.hpp:\d{1,5}\): .{0,128}"
        r"(?P<own>NV(?:CC|RTC) version should be >= [\d.]{1,8})",
        text="the CUDA compiler on this node is older than DeepGEMM, which compiles its kernels at the start, asks for",
        fix="install the newer CUDA toolkit that the line names and set CUDA_HOME to it; as a proof start it without"
        " DeepGEMM (SGLANG_ENABLE_JIT_DEEPGEMM=0, vLLM: VLLM_USE_DEEP_GEMM=0 in l40s_env)",
    ),
    CausePattern(  # llm-d pull request 1386; deepgemm, csrc/jit/kernel_runtime.hpp
        id="COMPILER-MISSING",
        pattern=r"Assertion error \(\S{0,256}/jit/kernel_runtime\.hpp:\d{1,5}\): exit_code == 0",
        text="DeepGEMM, which compiles its kernels at the start, could not run cuobjdump of the CUDA toolkit",
        fix="install the CUDA toolkit's cuobjdump on every node, and set CUDA_HOME to the toolkit",
        weak=True,
    ),
    CausePattern(
        id="KERNEL-COMPILE",
        pattern=r"Assertion error \(\S{0,256}/jit/compiler\.hpp:\d{1,5}\): .{0,64}NV(?:CC|RTC) compilation failed",
        text="a kernel of DeepGEMM, which it compiles at the start, did not compile",
        fix="read the compiler's lines above it; as a proof start it without DeepGEMM (SGLANG_ENABLE_JIT_DEEPGEMM=0,"
        " vLLM: VLLM_USE_DEEP_GEMM=0 in l40s_env)",
        weak=True,
    ),
    CausePattern(
        id="GPU-ARCH",
        pattern=r"Bfloat16 is only supported on GPUs with compute capability",
        text="this GPU is older than bfloat16, which the model's weights are in",
        fix="set `--dtype half` in l40s_args, or use a newer GPU",
    ),
    CausePattern(
        id="GPU-CONTAINER-DENIED",
        pattern=r"nvidia-container-cli(?:\.real)?: (?:initialization|mount|detection|container) error: .{0,256}"
        r"(?:insufficient permissions|[Oo]peration not permitted|[Pp]ermission denied|bpf_prog_query)",
        text="the container runtime may not give the GPUs to the container: it lacks the rights, as without root",
        fix="set `no-cgroups = true` in /etc/nvidia-container-runtime/config.toml for containers without root, or start"
        " the container as root",
    ),
    CausePattern(
        id="CONTAINER-TOOLKIT",
        pattern=r"could not select device driver .{0,32}\[\[(?:gpu|compute|utility|nvidia)\b"
        r"|unknown or invalid runtime name: nvidia"
        r"|[Uu]nknown runtime specified nvidia|no runtime for .?nvidia.? is configured"
        r"|unresolvable CDI devices? \S{0,32}nvidia\.com"
        r"|nvidia-container-(?:runtime|cli)\S{0,16}: (?:executable file not found|no such file|permission denied)",
        text="the container runtime does not know NVIDIA's: the NVIDIA container toolkit is not installed on this node,"
        " or not set up there",
        fix="install nvidia-container-toolkit, run `nvidia-ctk runtime configure --runtime=docker` (or containerd), and"
        " restart that service",
    ),
    CausePattern(  # nvidia-container-toolkit issue 126
        id="CONTAINER-TOOLKIT",
        pattern=r"(?:exec: .nvidia-smi.|executable file .nvidia-smi.): ?(?:executable file )?not found in \$PATH"
        r"|executable file .nvidia-smi. not found in \$PATH",
        text="the container has no nvidia-smi: it was started without GPUs, or NVIDIA's toolkit did not bring its"
        " programs in",
        fix="start it with --gpus all (of CDI: --device nvidia.com/gpu=all) and NVIDIA_DRIVER_CAPABILITIES with utility"
        " and compute; `docker info | grep -i runtimes` shows whether the toolkit is set up",
        weak=True,
    ),
    CausePattern(
        id="CONTAINER-TOOLKIT",
        pattern=r"invoking the NVIDIA Container Runtime Hook directly \(e\.g\. specifying the docker --gpus flag",
        text="the container was started with --gpus, and NVIDIA's toolkit chose a mode on this node that needs its own"
        " runtime",
        fix='start it with --runtime=nvidia in place of --gpus, or set mode = "legacy" below'
        " [nvidia-container-runtime] in /etc/nvidia-container-runtime/config.toml",
    ),
    CausePattern(
        id="GPU-BY-UUID",
        pattern=r"invalid literal for int\(\) with base 10: '(?P<own>(?:MIG|GPU)-[0-9a-f]{8}-[0-9a-f-]{8,64})'",
        text="CUDA_VISIBLE_DEVICES names a GPU by its UUID, and this release of the engine takes numbers alone",
        fix="set CUDA_VISIBLE_DEVICES to the GPU's number (`nvidia-smi -L`); of one MIG slice, give the container that"
        " slice alone and leave the variable unset (vllm issues 13815, 41848)",
    ),
    CausePattern(
        id="GPU-NOT-THERE",
        pattern=r"nvidia-container-cli(?:\.real)?: device error: .{0,128}unknown device",
        text="the container was to get a GPU that the node's driver does not list: a wrong index or UUID, a lost GPU,"
        " or a device plugin that had none to give",
        fix="compare --gpus or NVIDIA_VISIBLE_DEVICES with `nvidia-smi -L` on the node",
    ),
    CausePattern(
        id="GPU-DRIVER-FAILED",
        pattern=r"nvidia-container-cli(?:\.real)?: initialization error: (?:driver (?:rpc )?error|cuda error: unknown"
        r"|nvml error: (?:unknown error|timeout))",
        text="the NVIDIA driver of this node is installed, but did not answer the container runtime",
        fix="see whether `nvidia-smi` answers on the node, and what `dmesg -T | grep NVRM` says; otherwise reboot it",
    ),
    CausePattern(
        id="GPU-CONTAINER-LOST",
        pattern=r"[Ff]ailed to initialize NVML: Unknown Error|\bNVMLError_Unknown\b",
        text="the driver is there, and this container may no longer use its devices: systemd reloaded its units"
        " (`systemctl daemon-reload`) and took the rights to them, or the container never had them",
        fix="start the container again; lastingly: `nvidia-ctk system create-dev-char-symlinks --create-all` on the"
        " node, each device with --device, or the cgroupfs driver (nvidia-container-toolkit issue 48)",
        weak=True,
    ),
    CausePattern(
        id="GPU-CONTAINER-DENIED",
        pattern=r"to initialize NVML: Insufficient Permissions|\bNVMLError_NoPermission\b",
        text="this user, or this container, may not open the GPUs' device files",
        fix="compare `ls -l /dev/nvidia*` with the user's groups (NVreg_DeviceFileMode of the driver); in a container"
        " or"
        " job, ask for the GPUs that it is to use",
        weak=True,
    ),
    CausePattern(
        id="MODULE-MISFIT",
        pattern=r"Module (?P<own>(?:nvidia[-_]|gdrdrv|mlx5|ib_)[\w-]{1,24}) not found in directory",
        text="a kernel module does not exist for the running kernel: it was built for another, or its"
        " package is missing",
        fix="install the driver, or OFED, for the running kernel (`uname -r`), or build its modules anew (`dkms"
        " autoinstall`)",
        weak=True,
    ),
    CausePattern(
        id="GPU-DRIVER-MISSING",
        pattern=r"Found no NVIDIA driver on your system|Error: lib(?:cuda|nvidia-ml)\.so(?:\.1)?: cannot open shared"
        r"|nvidia-container-cli(?:\.real)?: initialization error: "
        r"(?:load library failed|driver not loaded|nvml error: driver not loaded|cuda error: no CUDA-capable|WSL env)"
        r"|AssertionError: libcuda\.so cannot found|NVML Shared Library Not Found|could not load NVML library"
        r"|Error_DriverNotLoaded"
        r"|(?:Error|CUDA initialization): CUDA unknown error"
        r"|has failed because it couldn't communicate with the NVIDIA driver|Module nvidia not found in directory"
        r"|RuntimeError: Failed to infer device type|No accelerator \(CUDA|only supported with GPUs, no GPUs found",
        text="the engine finds no NVIDIA driver: it is not installed, not loaded, or not given to the container",
        fix="check `nvidia-smi` on the node; in a container --gpus all, the NVIDIA container toolkit, or a new start",
        weak=True,
    ),
    CausePattern(
        id="GPU-DRIVER",
        pattern=r"The NVIDIA driver on your system is too old|CUDA driver version is insufficient"
        r"|NCCL WARN CUDA Driver version found is \d"
        r"|forward compatibility was attempted on non supported HW"
        r"|cudaErrorInsufficientDriver"
        r"|nvidia-container-cli(?:\.real)?: requirement error: unsatisfied condition: (?:cuda|driver)"
        r"|provided PTX was compiled with an unsupported toolchain|not supported in the installed CUDA driver",
        text="the node's NVIDIA driver is too old for the stack's CUDA libraries",
        fix="update the driver and reboot, or choose a stack that supports the installed driver",
    ),
    CausePattern(
        id="GPU-DRIVER-MISSING",
        pattern=r"CUDA driver is a stub library",
        text="the engine loads the CUDA toolkit's stub of libcuda in place of the driver's library",
        fix="take .../lib64/stubs out of LD_LIBRARY_PATH and /etc/ld.so.conf.d (`ldconfig -p | grep libcuda.so` shows"
        " which is found); in a container, start it with the GPUs",
    ),
    CausePattern(
        id="GPU-DRIVER-MISSING",
        pattern=r"NCCL WARN Failed to (?:find CUDA library|open libnvidia-ml\.so)",
        text="NCCL does not find the driver's libcuda: it is not installed or not given to the container, or"
        " NCCL_CUDA_PATH names another directory",
        fix="unset NCCL_CUDA_PATH if it is set; check `nvidia-smi` on the node; in a container --gpus all, and the"
        " NVIDIA"
        " container toolkit",
        weak=True,
    ),
    CausePattern(  # torch, c10/cuda/CUDAFunctions.cpp
        id="GPU-DRIVER-FAILED",
        pattern=r"RuntimeError: Unexpected error from cudaGetDeviceCount\(\).{0,200}"
        r"Error (?P<own>(?:3|46|304|999): .{1,80})",
        text="CUDA can't be set up on this node, though its driver is installed",
        fix="see whether `nvidia-smi` answers and /dev/nvidia-uvm exists (`nvidia-modprobe -u -c 0`; in a container"
        " both"
        " are given to it), read `dmesg -T | grep NVRM`, and reboot the node if they do",
        weak=True,
    ),
    CausePattern(  # gpustack issue 4678, llm-d issue 706
        id="GPU-DRIVER",
        pattern=r"unsupported display driver / cuda driver combination|cudaErrorSystemDriverMismatch",
        text="the engine loads a libcuda of another version than the node's driver (CUDA error 803): most often the"
        " cuda-compat of a container's image, which is found first",
        fix="take /usr/local/cuda/compat out of LD_LIBRARY_PATH and /etc/ld.so.conf.d in the container (`ldconfig -p |"
        " grep libcuda.so` shows which is found); after an upgrade of the driver, reboot",
    ),
    CausePattern(  # nccl/src/init.cc: cudaMemPoolCreate; nccl issue 2101, vllm issue 20226
        id="VGPU-NO-UVM",
        pattern=r"\binit\.cc:\d{1,6} NCCL WARN Cuda failure (?:801 )?'operation not supported'",
        text="a virtual GPU (vGPU) of this machine is without unified memory, which NCCL's memory pools need",
        fix="enable unified memory for the virtual machine's vGPU (VMware: pciPassthru0.cfg.enable_uvm = 1; KVM:"
        " enable_uvm=1 in vgpu_params) on a profile that has it, or pass the whole GPU through",
        weak=True,
    ),
    CausePattern(  # nccl/src/mnnvl.cc
        id="FABRIC-IMEX",
        pattern=r"MNNVL \(cliqueSize \d{1,6}\) is available but not working"
        r"|error indicates that the IMEX \(NVLink fabric",
        text="GPUs of several nodes are on one NVLink fabric (MNNVL), and IMEX, which lets them share memory, is not"
        " set up: its service or its channel is missing on a node or in the container",
        fix="run `systemctl status nvidia-imex` on every node, and give the containers"
        " /dev/nvidia-caps-imex-channels/channel0; NCCL_MNNVL_ENABLE=0 in l40s_env goes without it",
    ),
    CausePattern(  # cuda_runtime_api.h: errors 805 to 809
        id="GPU-MPS",
        pattern=r"CUDA error: the (?:remote procedural call between the MPS|MPS server )|CUDA error: MPS client "
        r"|Cuda failure \d{1,4} '(?:the )?MPS (?:client|server) |cudaErrorMps(?:Connection|Rpc|Server|Max)"
        r"|the hardware resources required to (?:create MPS client|support device connections)",
        text="CUDA's Multi-Process Service (MPS), through which this GPU is shared, does not answer or has no place"
        " left",
        fix="look at nvidia-cuda-mps-control's log on the node, and start it anew; without MPS unset"
        " CUDA_MPS_PIPE_DIRECTORY; in a container, give it that directory and --ipc=host",
    ),
    CausePattern(
        id="FABRIC-MANAGER",
        pattern=r"Error 802: |\bsystem not yet initialized|cudaErrorSystemNotReady|CUDA_ERROR_SYSTEM_NOT_READY"
        r"|fabric ?manager\b.{0,64}driver interface version \S{1,32} don.t match",
        text="the NVSwitch fabric of this machine is not set up (CUDA error 802): nvidia-fabricmanager is not running,"
        " or has another version than the driver",
        fix="run `systemctl status nvidia-fabricmanager`, and install the version of it that the driver has"
        " (`nvidia-smi --query-gpu=driver_version --format=csv`)",
    ),
    CausePattern(
        id="GPU-NVLINK",
        pattern=r"(?:CUDA error: |Cuda failure (?:\d{1,4} )?')uncorrectable NVLink error|cudaErrorNvlinkUncorrectable"
        r"|Invalid access of peer GPU memory over nvlink|CUDA_ERROR_CONTAINED|cudaErrorContained",
        text="a GPU has an NVLink error that can't be corrected, or an access to another GPU's memory failed",
        fix=XIDS[74].fix,
    ),
    CausePattern(
        id="GPU-ECC",
        pattern=r"uncorrectable ECC error",
        text="a GPU's memory has an uncorrectable ECC error",
        fix=XIDS[48].fix,
    ),
    CausePattern(
        id="GPU-LOST",
        pattern=r"^\|\s{1,6}(?P<gpu>\d{1,3})  .{0,120}\bERR!",
        text="a GPU does not answer: `nvidia-smi` shows ERR! in its row",
        fix=XIDS[79].fix,
    ),
    CausePattern(
        id="GPU-LOST",
        pattern=r"GPU is lost|GPU lost from the bus|NV_ERR_GPU_IS_LOST"
        r"|fallen off the bus|^No devices were found$|Unable to determine the device handle"
        r"|no CUDA-capable device is detected|No (?:CUDA|HIP) GPUs are available"
        r"|[Ee]rror(?: 101)?: invalid device ordinal",
        text="a GPU is missing, does not respond, or is in use",
        fix="check `nvidia-smi` and the kernel log (`dmesg -T | grep Xid`) on this node, and l40s_gpus or"
        " CUDA_VISIBLE_DEVICES against the number of ranks",
    ),
    CausePattern(  # sglang issue 6017
        id="GPU-LOST",
        pattern=r"CUDA-capable device(?:\(s\) is/|s )are busy",
        text="a GPU refuses this process: another one holds it alone (compute mode), or a kernel that failed before has"
        " broken what this process had there",
        fix="read whether a kernel failed before it (`dmesg -T | grep Xid`, and the lines around); otherwise look who"
        " holds the GPU, and its compute mode (`nvidia-smi -q -d COMPUTE`)",
        weak=True,
    ),
    CausePattern(
        id="PORT-IN-USE",
        pattern=r"ZMQ(?:Error|BindError): Address already in use",
        text="two of the engine's own processes, or two engines of this node, took the same port for a queue",
        fix="start it again with `l40s-deploy restart GANG`: these ports are chosen anew. If it comes back,"
        " look for a second engine with `ss -ltnp`",
    ),
    CausePattern(
        id="PORT-IN-USE",
        pattern=r"EADDRINUSE|[Aa]ddress already in use|Port is already in use|port is already allocated"
        r"|[Pp]ort \d+ is (already )?in use",
        text="a port that the engine needs is in use on this node",
        fix="find the listener with `ss -ltnp`: if it is another gang's, or you don't know whose, choose other ports in"
        " the inventory",
    ),
    CausePattern(
        id="ADDRESS-NOT-HERE",
        pattern=r"ZMQ(?:Error|BindError): (?:Cannot assign requested address|No such device)"
        r"|failed to bind to .{0,128}errno: 99\b"
        r"|while attempting to bind on address .{0,128}: cannot assign requested address"
        r"|server socket has failed to listen on any local network address.{0,128}EADDRNOTAVAIL",
        text="the engine is to listen on an address that this node does not have",
        fix="correct l40s_address in the inventory: compare it with `ip -brief address` on the node",
    ),
    CausePattern(
        id="TLS-FILES",
        pattern=r"\bSSLError: \[(?:X509: KEY_VALUES_MISMATCH|SSL\] PEM lib|PEM: (?:NO_START_LINE|BAD_)"
        r"|SSL: (?:NO_CERTIFICATE_OR_CRL_FOUND|CA_MD_TOO_WEAK|EE_KEY_TOO_SMALL))",
        text="the engine can't use the certificate and key that it is to serve HTTPS with: they do not belong together,"
        " or a file is not what its name says",
        fix="compare `openssl x509 -noout -pubkey -in CERT` with `openssl pkey -pubout -in KEY`; the certificate's own"
        " stands first in its file",
    ),
    CausePattern(
        id="PORT-DENIED",
        pattern=r"while attempting to bind on address (?P<own>\S.{0,128}): permission denied",
        text="the engine's user may not listen on that port: those below 1024 are root's",
        fix="choose a port from 1024 on in the inventory, or `sysctl net.ipv4.ip_unprivileged_port_start`",
    ),
    CausePattern(
        id="SOCKET-PATH-LONG",
        pattern=r"\bipc path \".{1,512}\" is longer than \d{2,3} characters|\bAF_UNIX path (?:too long|length cannot)",
        text="the path of a local socket is longer than Linux allows (107 characters): the directory of temporary files"
        " has too long a name",
        fix="set TMPDIR (vLLM also VLLM_RPC_BASE_PATH, Ray --temp-dir) to a short path of a local disk, as /tmp",
    ),
    CausePattern(
        id="NAME-UNRESOLVED",
        pattern=r"(?<!IPv6 )network addresses of \((?P<peer>[^,)]{1,128}), \d{1,5}\) cannot be"
        r"|gaierror: \[Errno -[23]\]"
        r"|ValueError: host not found: |ssh: Could not resolve hostname (?P<peer_of_ssh>[^:\s]{1,128}):",
        text="this node can't resolve the name of another one",
        fix="give addresses in the inventory (l40s_address), or add the name to DNS or /etc/hosts on every node",
        weak=True,
    ),
    CausePattern(
        id="NO-INTERFACE",
        pattern=r"no socket interface found|Unable to find (interface|address) for|No usable listening interface found"
        r"|NET/Socket : no interface found|NET/IB : No IP interface found|verify NCCL_OOB_NET_IFNAME"
        r"|connecting to address {1,2}with family \d|Socket creation failed ?: Address family not supported",
        text="the network interface set for NCCL or Gloo does not exist, or has no address",
        fix="compare NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME with the node's interfaces (sglang issues 836, 958)",
    ),
    CausePattern(
        id="WRONG-INTERFACE",
        pattern=rf"[Cc]onnect(?: to)? (?P<peer>{_LOCAL_ONLY}\S{{0,128}}) ?(?:failed|returned|[A-Z])"
        rf"|remote=(?P<peer_of_gloo>{_LOCAL_ONLY}\S{{0,128}})"
        rf"|[Cc]onnect to (?P<peer_of_docker>{_BRIDGE}\S{{0,16}}) (?:failed ?: |returned (?:\d{{1,4}}\()?){_NO_WAY}"
        r"|[Cc]onnect to (?P<peer_of_bridge>172\.(?:1[7-9]|2\d|3[01])\.0\.1<\S{0,8}) (?:failed ?: |returned"
        r" (?:\d{1,4}\()?)Connection refused"
        r"|Gloo connectFullMesh failed\b.{0,256}(?:\] no error|remote=\[127\.)",
        text="NCCL or Gloo took an interface whose address leads to no other node",
        fix="set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME to the interface that the nodes reach each other by"
        " (`l40s-deploy plan --show env`; nccl issue 975)",
        weak=True,
    ),
    CausePattern(  # openrlhf issue 265
        id="WRONG-INTERFACE",
        pattern=r"The client socket has (?:timed out (?:after \d{1,9}m?s )?while trying to connect to"
        r"|failed to connect to any network address of) \((?P<peer>(?:172\.17\.0\.\d{1,3}|127\.0\.1\.1"
        r"|169\.254\.[\d.]{3,7}|fe80:[^,)]{1,64}), \d{1,5})\)",
        text="the leader gave an address of its own machine alone (Docker's bridge, a link-local one, or what"
        " /etc/hosts gives to the machine's own name), which leads to no other node",
        fix="name the address that the nodes reach each other by: VLLM_HOST_IP, --dist-init-addr or MASTER_ADDR, and"
        " NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME; a container takes --network host",
        weak=True,
    ),
    CausePattern(
        id="WRONG-INTERFACE",
        pattern=rf"[Cc]onnect to (?P<peer>\S{{1,128}}) (?:failed ?: |returned (?:\d{{1,4}}\()?)"
        rf"(?:{_NO_WAY}|Connection refused)",
        after=r"\bBootstrap ?: Using (?:\[0\])?(?:docker|virbr|lxcbr|lxdbr|podman|cni|veth|usb|br-[0-9a-f])"
        r"[\w.-]{0,16}:",
        text="NCCL took the interface of a bridge within this machine (its line `Bootstrap: Using`), which leads to no"
        " other node",
        fix="set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME to the interface that the nodes reach each other by"
        " (`l40s-deploy plan --show env`)",
        weak=True,
    ),
    CausePattern(
        id="PORT-BLOCKED",
        pattern=rf"[Cc]onnect to (?P<peer>\S{{1,128}}) (?:failed ?: |returned (?:\d{{1,4}}\()?){_NO_WAY}"
        rf"|connect (?:returned|failed ?:) {_NO_WAY}|socket(?:Start|Poll)Connect: exceeded timeouts"
        rf"|connect \[(?P<peer_of_gloo>[^\]]{{1,64}})\]:\d{{1,5}}: {_NO_WAY}|SO_ERROR: {_NO_WAY}"
        r"|failed to connect to .{0,128}errno: (?:101|110|113)\b",
        text="a rank can't reach another one over TCP: a firewall, or no route, since ranks use any free port",
        fix="allow all TCP ports between the nodes on this interface (`iptables -L`, `nft list ruleset`, security"
        " groups); `l40s-deploy doctor` tries them (nccl issue 1105, sglang issue 3820)",
        weak=True,
    ),
    CausePattern(
        id="IB-MEMLOCK",
        pattern=r"ibv_(reg_\w{1,16}|create_(?:s?rq|cq|qp)|alloc_pd)(?:\([^)]{0,64}\))? failed"
        r"(?:\s{0,8}$|.{0,256}(?:Cannot allocate memory|\b12\b))"
        r"|(?:Couldn't|Failed to) (?:create (?:CQ|QP|completion queue)|register memory|allocate MR)\b"
        r".{0,128}Cannot allocate memory",
        text="the RDMA driver can't lock memory: the engine's memlock limit is too low",
        fix="set memlock to unlimited for the engine's service or user: run `l40s-deploy prepare --tags limits`",
    ),
    CausePattern(
        id="IB-MEMLOCK",
        pattern=r"libibverbs: Warning: RLIMIT_MEMLOCK is \d{1,12} bytes",
        text="the RDMA driver may lock little memory: the engine's memlock limit is too low",
        fix="set memlock to unlimited for the engine's service or user: run `l40s-deploy prepare --tags limits`",
        weak=True,
    ),
    CausePattern(
        id="IB-RESOURCES",
        pattern=r"(?:ibv_\w{1,24}\W|Failed to register memory).{0,128}(?:No space left|Cannot allocate memory)",
        text="a network card of this node, or its driver, has no room for more queue pairs or memory regions",
        fix="end other RDMA processes (`rdma resource show`), and read `dmesg -T | grep -i mlx5`; no disk is full",
    ),
    CausePattern(
        id="GDR-REFUSED",
        pattern=rf"{_COMPLETION}4{_CARD}"
        r"|ibv_reg_\w{1,16}(?:\([^)]{0,128}\))? failed.{0,64}"
        r"(?:Bad address|Operation not (?:supported|permitted)|\b(?:14|95)\b)",
        text="a network card could not use GPU memory that NCCL had registered for GPUDirect RDMA: an IOMMU that"
        " translates, ACS that redirects, or nvidia-peermem",
        fix="read `l40s-deploy doctor` on IOMMU, ACS and peermem; NCCL_NET_GDR_LEVEL=LOC as a proof: it works then,"
        " slowly (nccl issues 214, 928, 1999)",
    ),
    CausePattern(
        id="GDR-REFUSED",
        pattern=rf"{_COMPLETION}1[01]{_CARD}|ACS is enabled, which breaks the GPU Direct RDMA",
        text="the other end's card could not use GPU memory that was registered for GPUDirect RDMA: an IOMMU that"
        " translates, ACS that redirects, or nvidia-peermem",
        fix="read `l40s-deploy doctor` on IOMMU, ACS and peermem; NCCL_NET_GDR_LEVEL=LOC as a proof: it works then,"
        " slowly (nccl issues 214, 928, 1999)",
        weak=True,
    ),
    CausePattern(
        id="RDMA-PORT-DOWN",
        pattern=r"NET/IB\w{0,16} ?: (?:(?P<own>\S{1,64}) )?[Gg]ot (?:non-fatal )?async (?:error )?event ?: port error",
        text="this node lost the link of an RDMA port",
        fix="check cable, transceiver and the switch's port; `l40s-deploy doctor` shows which port is down",
    ),
    CausePattern(
        id="RDMA-CARD-FAILED",
        pattern=r"async (?:fatal )?event ?: local catastrophic error",
        text="a network card of this node has failed, or was reset",
        fix="check the kernel log (`dmesg -T | grep -i mlx5`) and the card's firmware; power-cycle the machine",
    ),
    CausePattern(
        id="IB-GID",
        pattern=r"ibv_modify_qp failed with (error )?"
        r"(?:(?:19|22|61)\b|No such device|Invalid argument|No data available)"
        r"|ibv_modify_qp failed.{0,256}local GID ::(?:[,\s]|$)|Call to ibv_query_gid failed",
        text="the GID index is not a usable RoCE v2 address on this port",
        fix="compare NCCL_IB_GID_INDEX with the port's GID table (`l40s-deploy discover`); after a link went down and"
        " up, look whether its interface still has its address",
    ),
    CausePattern(  # mooncake, transport/rdma_transport/rdma_endpoint.cpp; issue 1766
        id="IB-GID",
        pattern=r"Failed to modify QP to RTR, check mtu, gid\b.{0,64}: (?:Invalid argument|No data available)",
        text="Mooncake could not connect a queue pair: its GID index, or its MTU, does not fit the other port",
        fix="set MC_GID_INDEX, and MC_MTU where the ports' active MTUs differ, alike on both sides"
        " (`l40s-deploy discover` lists the indexes)",
        weak=True,
    ),
    CausePattern(
        id="IB-GID",
        pattern=r"NET/IB ?: (?:open|read) failed in ncclIbRoceGetVersionNum",
        text="NCCL could not read the RoCE version of a port's GID: the GID table has holes, as in a pod that sees a"
        " part of a card's",
        fix="set NCCL_IB_GID_INDEX to an entry that all nodes have (`l40s-deploy discover`), or use NCCL 2.24 or newer"
        " (nccl issue 1573)",
        weak=True,
    ),
    CausePattern(
        id="IB-UNREACHABLE",
        pattern=rf"{_COMPLETION}12{_CARD}"
        rf"|ibv_modify_qp failed with (?:error )?(?:(?:101|110|113)\b|{_NO_WAY})"
        rf"|[Ff]ailed to modify QP (?:\S{{1,16}} )?to RT[RS](?:, check [\w, ]{{0,64}})?: {_NO_WAY}"
        r"|NICs (?:are not cross-rail connected"
        r"|on the same node cannot talk to each other)|NCCL_IB_TIMEOUT is set too short",
        text="an RDMA port can't reach its peer: ports on different rails, a wrong GID index, or a fabric problem",
        fix="test the two ports with ib_write_bw; check NCCL_IB_HCA and the GID index (nccl issues 2013, 2397)",
        weak=True,
    ),
    CausePattern(
        id="IB-DENIED",
        pattern=r"/dev/infiniband/\S{0,32}.{0,16}Permission denied|NET/IB : Unable to open device \S"
        r"|Call to ibv_open_device failed",
        text="the engine may not open this node's RDMA devices",
        fix="check the owner and mode of /dev/infiniband/uverbs* against the engine's user (rdma-core's udev rules give"
        " 0666); in a container --device /dev/infiniband",
    ),
    CausePattern(
        id="IB-MISSING",
        pattern=r"Failed to initialize any NET plugin|Error: network [\w /-]{1,40} not found"
        r"|libibverbs\.so\S{0,8}: cannot open shared object",
        text="NCCL does not find the network that it is set to use: no RDMA device, libibverbs or plugin on this node",
        fix="install libibverbs1 and ibverbs-providers, and check with `ibv_devinfo` that the ports are ACTIVE; unset"
        " NCCL_NET and NCCL_NET_PLUGIN if they name another network",
    ),
    CausePattern(
        id="RAIL-LINK-LAYER",
        pattern=r"different link_layer|(?:merge|connect) incompatible devices|device is incompatible with the local",
        text="NCCL was given InfiniBand and RoCE ports together, and can't connect one to the other",
        fix="name ports of one link type in NCCL_IB_HCA, the same on all nodes (`l40s-deploy plan --show env`)",
    ),
    CausePattern(
        id="NCCL-PLUGIN",
        pattern=r"NCCL WARN NET/OFI .{0,256}(?:[Cc]ould(?:n't| not)|[Uu]nable to|[Ff]ailed"
        r"|[Nn]o eligible providers|[Ee]rror|ERROR)"
        r"|NCCL WARN NET/OFI Only EFA|(?<!INFO )NET/OFI Request \S{1,32} completed with error",
        text="NCCL's network plugin for libfabric (EFA, Slingshot) failed: its words are in the line",
        fix="on EFA let the security group's rules allow all traffic from and to itself; compare the plugin, libfabric"
        " and the driver with each other (`fi_info -p efa`); NCCL_NET_PLUGIN=none as a proof: without it NCCL takes"
        " verbs or sockets",
        weak=True,
    ),
    CausePattern(
        id="NCCL-PLUGIN",
        pattern=r"NET/Plugin ?: dlerror=(?P<own>\S{0,200}: (?:version `\S{1,32} not found|undefined symbol: \w{1,64}))",
        text="NCCL's network plugin is there and can't be loaded, so NCCL takes verbs or sockets in its place",
        fix="install a plugin, libfabric and NCCL that belong together; NCCL_NET_PLUGIN=none says that none is wanted",
        weak=True,
    ),
    CausePattern(
        id="NCCL-GRAPH-FILE",
        pattern=r"NCCL WARN (?:XML (?:Import Channel : dev \S{1,32} not found|Graph has wrong version)"
        r"|Could not open XML graph file (?P<own>\S{1,200}))",
        text="NCCL_GRAPH_FILE names a graph of another machine, whose GPUs or cards this one does not have, or a file"
        " that is not there",
        fix="unset NCCL_GRAPH_FILE: in the environment, l40s_env, /etc/nccl.conf and ~/.nccl.conf (nccl issue 1240)",
    ),
    CausePattern(
        id="NCCL-TOPO-FILE",
        pattern=r"NCCL WARN (?:Attribute \S{1,32} of node \S{1,32} not found|XML Parse"
        r"|XML Topology has wrong version|Could not open XML topology file (?P<own>\S{1,200}))",
        text="the topology that NCCL_TOPO_FILE names, or that a network plugin brings, is incomplete or not there",
        fix="unset NCCL_TOPO_FILE: in the environment, l40s_env, /etc/nccl.conf and ~/.nccl.conf; of a plugin take the"
        " newest release (nccl issue 1726)",
    ),
    CausePattern(
        id="NCCL-TOPOLOGY",
        pattern=r"graph/\w{1,16}\.(?:cc|cpp):\d{1,6} NCCL WARN (?:Could not find real path of (?P<own>\S{1,128})"
        r"|Set CPU affinity : unable to find|Could not find (?:NET|GPU|CPU|any local path|NVLink)"
        r"|No NUMA|Failed to parse|[Cc]ould not (?:read|open|get) )",
        text="NCCL could not read how this machine's GPUs and cards are connected: /sys is not the host's, as in some"
        " containers and virtual machines, or other ranks see other devices",
        fix="give the containers the host's /sys read-only and all GPUs of the machine; otherwise a newer NCCL, or"
        " NCCL_TOPO_FILE of a machine of this kind (nccl issues 326, 573)",
        weak=True,
    ),
    CausePattern(  # nccl/src/transport.cc
        id="NCCL-NO-TRANSPORT",
        pattern=r"NCCL WARN No transport found for rank \d",
        text="NCCL has no way between two ranks: each that there is was turned off (P2P, shared memory, network)",
        fix="unset NCCL_P2P_DISABLE, NCCL_SHM_DISABLE, NCCL_NET_DISABLE_INTRA and NCCL_IB_DISABLE in turn: in the"
        " environment, l40s_env, /etc/nccl.conf and ~/.nccl.conf",
    ),
    CausePattern(  # nccl/src/bootstrap.cc, misc/socket.cc
        id="SETTING-REFUSED",
        pattern=r"NCCL WARN (?:Invalid NCCL_COMM_ID|Net : No valid (?:\[IPv6\]|<IPv4))",
        text="NCCL can't read an address that it was given: NCCL_COMM_ID",
        fix="write it as ADDRESS:PORT, [IPV6]:PORT or NAME:PORT, or unset it: an engine that starts with torch needs"
        " none",
        weak=True,
    ),
    CausePattern(  # nccl/src/init.cc
        id="RANKS-DIFFER",
        pattern=r"NCCL WARN Detected mixed local (?:Net|CollNet) device counts across ranks",
        text="the ranks of the gang see different numbers of network ports: NCCL_IB_HCA differs, or a port is down or"
        " not in one container",
        fix="compare NCCL_IB_HCA and `ibv_devinfo` on all nodes (`l40s-deploy doctor`)",
        weak=True,
    ),
    CausePattern(  # nccl/src/dev_runtime.cc
        id="NCCL-DIFFERS",
        pattern=r"NCCL WARN (?:NCCL library is (?:too old|not backwards compatible)"
        r"|The application was compiled with too old version of NCCL)",
        text="the engine, or a library of it, was built for another version of NCCL than it loads",
        fix="install the stack anew as its lock says (`l40s-deploy prepare`); look whether LD_PRELOAD,"
        " LD_LIBRARY_PATH or VLLM_NCCL_SO_PATH name another libnccl",
    ),
    CausePattern(
        id="NCCL-NVLS",
        pattern=r"transport/nvls\.cc:\d{1,6} NCCL WARN Cuda failure|Failed to bind NVLink SHARP",
        text="NCCL could not set up NVLink SHARP (NVLS): the fabric manager was restarted or does not fit the driver,"
        " or the driver is older than NCCL asks for",
        fix="set NCCL_NVLS_ENABLE=0 in l40s_env as a proof; then reset the GPUs with the fabric manager stopped, or"
        " reboot (nccl issue 1488)",
        weak=True,
    ),
    CausePattern(
        id="NCCL-GPU-HIDDEN",
        pattern=r"NCCL WARN nvmlDeviceGetHandleByPciBusId\(?\)? failed: Not Found",
        text="another rank of this machine uses a GPU that this rank's container does not see",
        fix="give the containers of one machine all of its GPUs and choose with CUDA_VISIBLE_DEVICES, or let them"
        " differ for NCCL with NCCL_HOSTID (nccl issues 1066, 1529)",
        weak=True,
    ),
    CausePattern(
        id="NCCL-DIFFERS",
        pattern=r"Mismatched NCCL (?:git )?versions? detected|NCCL version mismatch with remote peer",
        text="the nodes of the gang have different versions of NCCL",
        fix="install one stack on all nodes: `l40s-deploy prepare`; `l40s-deploy doctor` compares them",
    ),
    CausePattern(
        id="RANKS-DIFFER",
        pattern=r"Bootstrap Root : (?:mismatch in (?:info|rank count) from procs"
        r"|rank \d{1,6} of \d{1,6} ranks has already)"
        r"|[Mm]essage truncated : rece?iv(?:ed|ing) \d|collective mismatch error, local size \d"
        r"|op\.preamble\.length <= op\.nbytes|Detected mismatch between collectives on ranks",
        text="the ranks do not agree: one has other NCCL settings, another version or number of ranks, or is left from"
        " an earlier start",
        fix="compare the nodes with `l40s-deploy plan --show env` and `l40s-deploy doctor`, and look for processes"
        " of an earlier start in `nvidia-smi`",
        weak=True,
    ),
    CausePattern(
        id="SHM-TOO-SMALL",
        pattern=r"posix_fallocate failed ?: No space left|/dev/shm.{0,256}No space left"
        r"|Error while creating shared memory segment \S{1,256} \(size -?\d{1,20}\)(?:\s{0,8}$|, error: No space left)"
        r"|failed to extend \S{1,256} to -?\d{1,20} bytes(?:\s{0,8}$|, error: No space left)"
        r"|</?torch_\w{1,64}>.{0,64}No space left|No space left on device:? '?/?(?:psm_|dev/shm/)"
        r"|insufficient shared memory \(shm\)|shmget.{0,256}failed|workers are out of shared memory",
        text="shared memory (/dev/shm) on this node is too small or full",
        fix=_LARGER_SHM,
    ),
    CausePattern(  # CPython, multiprocessing/shared_memory.py
        id="SHM-TOO-SMALL",
        pattern=r"OSError: \[Errno 28\] No space left on device\s{0,8}$",
        after=r"/multiprocessing/(?:shared_memory|heap)\.py\"|_posixshmem\.|shared_memory\.SharedMemory\(",
        text="shared memory (/dev/shm) on this node is too small or full: a queue between the engine's processes did"
        " not fit",
        fix=_LARGER_SHM,
    ),
    CausePattern(  # vllm issue 2719
        id="FILE-DENIED",
        pattern=r"unable to open shared memory object </\S{1,128}> in read-write mode: Permission denied",
        text="the engine's user may not write to shared memory (/dev/shm), or a segment of another user has that name",
        fix="mount /dev/shm with mode 1777 (in a pod: an emptyDir of medium Memory that the container's user may write"
        " to), and delete what another user left in it",
    ),
    CausePattern(
        id="SHM-GONE",
        pattern=r"Error while attaching to shared memory segment"
        r"|shm(?:utils)?\.(?:cc|h):\d{1,6} NCCL WARN Call to open failed ?: No such file",
        text="another rank's shared memory segment is gone: that rank had ended, or it runs in a container with a"
        " /dev/shm of its own (NCCL 2.22 to 2.25 also lose segments; it is not a lack of space)",
        fix="look for the rank that ended first; give the containers of a node one /dev/shm (--ipc=host); otherwise use"
        " another version of NCCL (nccl issues 1589, 2190)",
        weak=True,
    ),
    CausePattern(
        id="COMPILER-MISSING",
        pattern=rf"Failed to find C compiler|No working C\+\+ compiler|Ninja is required to load"
        r"|fatal error: (?:cuda/std|cub|thrust|nv|crt)/[\w./]{1,64}: No such file"
        r"|fatal error: (?:Python|cuda\w{0,32}|cu\w{0,32}|std\w{0,16}|nv\w{0,32})\.h(?:pp)?: No such file"
        rf"|No such file or directory: '?(?:[^'\s]{{1,256}}/)?{_TOOL}'|\b{_TOOL}: (?:command )?not found"
        rf"|command '?\S{{0,128}}{_TOOL}'? failed: No such file|Could not find (?:nvcc|ninja)\b"
        r"|Cannot find any available NVCC|CUDA_HOME (?:environment variable )?is not set|Cannot find ptxas"
        r"|cannot execute '(?:cc1plus|cicc)'|^\s{1,16}assert cuda_home is not None"
        r"|\bld: cannot find -l(?:cuda|cudart|stdc\+\+)\b",
        text="kernels are compiled at the start, and a part for it is missing on this node: a C++ compiler,"
        " Python.h, nvcc, ptxas, ninja or a library",
        fix="install build-essential, ninja-build, the headers of the stack's Python (python3-dev) and the CUDA"
        " toolkit's nvcc on every node (sglang issue 30122)",
    ),
    CausePattern(
        id="DISK-FULL",
        pattern=r"[Nn]o space left on device|Disk quota exceeded"
        r"|was low on resource: (?:ephemeral-storage|nodefs|imagefs)",
        text="a disk on this node is full, or what its user may use of it",
        fix="free space in the state directory and the caches; `l40s-deploy doctor` shows which file system is full,"
        " and `quota -s` the quota",
    ),
    CausePattern(
        id="NOT-WRITABLE",
        pattern=r"Read-only file system: ['\"]?/"
        r"|Permission denied: ['\"]?/[^'\"]{0,256}(?:cache|triton|flashinfer|inductor|deep_gemm)\b",
        text="the engine may not write where it keeps compiled kernels or downloads: a read-only file system, or"
        " another user's directory",
        fix="let the engine's user write there, or set XDG_CACHE_HOME, TRITON_CACHE_DIR and HF_HOME in l40s_env to a"
        " directory where it may",
        weak=True,
    ),
    CausePattern(
        id="STORAGE-FAILED",
        pattern=r"(?:Stale (?:NFS )?file handle|Input/output error|Transport endpoint is not connected"
        r"|Remote I/O error)"
        r": ['\"]?/",
        text="a file system that the engine reads from failed",
        fix="read the kernel log of the node (`dmesg -T | grep -iE 'nfs|nvme|I/O error'`), and mount it again",
    ),
    CausePattern(  # torch, caffe2/serialize and csrc/serialization.cpp; pytorch issue 45826
        id="STORAGE-FAILED",
        pattern=r"(?:\bread\(\): fd \d{1,9} failed with "
        r"|\bunable to (?:open|mmap \d{1,18} bytes from) file <[^>]{1,512}>"
        r"(?: in read-\S{1,8} mode)?: )(?:Stale file handle|Input/output error|Transport endpoint is not connected"
        r"|Remote I/O error)",
        text="a file system failed while torch read a file of it",
        fix="read the kernel log of the node (`dmesg -T | grep -iE 'nfs|nvme|I/O error'`), and mount it again",
    ),
    CausePattern(
        id="STORAGE-FAILED",
        pattern=r"OSError: \[Errno (?:5|107|116|121)\] |I/O error: (?:Stale file handle|Input/output error) \(os error",
        after=r"weight_utils|safetensors|safe_open|\bload_file\b|torch\.load\b|mmap",
        text="a file system that the engine reads weights from failed",
        fix="read the kernel log of the node (`dmesg -T | grep -iE 'nfs|nvme|I/O error'`), and mount it again",
    ),
    CausePattern(
        id="STORAGE-NO-LOCKS",
        pattern=r"OSError: \[Errno 37\] No locks available|does not appear to support flock",
        text="the file system of a cache can't lock files, which processes of one model do for each other: an NFS"
        " without its lock service, or a FUSE mount",
        fix="mount it with its lock service (NFS 4, or `nolock` where one node alone uses it), or set HF_HOME and"
        " XDG_CACHE_HOME in l40s_env to a local disk",
    ),
    CausePattern(
        id="STORAGE-NO-MMAP",
        pattern=r"OSError: No such device \(os error 19\)|OSError: \[Errno 19\] No such device",
        after=r"safetensors|safe_open|\bload_file\b|\bmmap\b",
        text="the file system of the weights can't map files into memory, as safetensors reads them",
        fix="copy the weights to a local disk; of a network or FUSE mount, choose one that supports mmap (of CIFS,"
        " without cache=none)",
    ),
    CausePattern(
        id="SIGNAL-STACK",
        pattern=r"\[Errno 12\] Cannot allocate memory|sigaltstack.{0,64}Cannot allocate memory",
        after=r"\bfaulthandler\.(?:enable|register)\(|sigaltstack",
        text="Python's faulthandler could not set its signal stack: it is smaller than this processor (AMX) asks for."
        " It is not a lack of memory",
        fix="use an image or a stack with a newer patch release of Python (sglang issues 5762, 6418)",
    ),
    CausePattern(
        id="HOST-OUT-OF-MEMORY",
        pattern=r"DefaultCPUAllocator: can't allocate memory|\bMemoryError\b|Failed to malloc \d"
        rf"|{_TAKES_MEMORY}.{{0,128}}Cannot allocate memory",
        text="the node ran out of main memory",
        fix="find what else uses memory on the node (`ps aux --sort -rss`) and stop it",
    ),
    CausePattern(
        id="HOST-OUT-OF-MEMORY",
        pattern=r"OSError: \[Errno 12\] Cannot allocate memory|RuntimeError: .{0,64}Cannot allocate memory",
        after=_TAKES_MEMORY,
        text="the node ran out of main memory: a call above it asked for some",
        fix="find what else uses memory on the node (`ps aux --sort -rss`) and stop it",
    ),
    CausePattern(
        id="OPEN-FILES-LIMIT",
        pattern=r"Too many open files(?! in system)",
        text="the engine's limit of open files (ulimit -n) is too low",
        fix="raise nofile for the engine's service or user: run `l40s-deploy prepare --tags limits`",
    ),
    CausePattern(
        id="THREADS-DENIED",
        pattern=rf"{_THREAD_REFUSED}|can't start new thread|what\(\): {{1,2}}Operation not permitted",
        after=_THREAD_REFUSED,
        text="the container may not start threads: an old Docker's seccomp profile refuses clone3, which the image's"
        " glibc calls",
        fix=_NEWER_DOCKER,
    ),
    CausePattern(
        id="THREADS-DENIED",
        pattern=r"can't start new thread",
        after=r"\bRLIMIT_NPROC -1 current, -1 max",
        unless=r"Resource temporarily unavailable",
        text="the container may not start threads, though its limit of processes is none: most often an old Docker's"
        " seccomp profile refuses clone3, which the image's glibc calls",
        fix=f"{_NEWER_DOCKER}; otherwise look at pids.max of its cgroup",
        weak=True,
    ),
    CausePattern(  # vllm issue 14416
        id="THREADS-DENIED",
        pattern=r"^ {0,8}what\(\): {1,2}Operation not permitted",
        after=r"instance of 'std::system_error'",
        text="a native library was refused a call, most often to start a thread: an old Docker's seccomp profile"
        " refuses clone3, which the image's glibc calls",
        fix=_NEWER_DOCKER,
        weak=True,
    ),
    CausePattern(
        id="PROCESS-LIMIT",
        pattern=r"can't start new thread"
        r"|\b(?:pthread_create|std::thread|fork: retry|[Tt]hread\b).{0,64}: Resource temporarily unavailable"
        rf"|{_THREAD}(?:Resource temporarily unavailable|\(EAGAIN\))",
        text="the engine may not start more threads: its limit of processes (ulimit -u, pids.max of its cgroup) is"
        " reached",
        fix=_MORE_PROCESSES,
    ),
    CausePattern(
        id="PROCESS-LIMIT",
        pattern=r"BlockingIOError: \[Errno 11\] Resource temporarily unavailable",
        after=r"\b_?fork_exec\(|\bos\.fork\(",
        text="the engine may not start another process: its limit of processes (ulimit -u, pids.max of its cgroup) is"
        " reached",
        fix=_MORE_PROCESSES,
    ),
    CausePattern(
        id="RAY-GPUS-MISSING",
        pattern=r"Cannot provide a placement group of|No available node types can fulfill resource request"
        r"|Ray does not allocate any \w{1,8} on the driver node"
        r"|Waiting for creating a placement group of specs for (?:[3-9]\d|\d{3,6}) seconds"
        r"|exceeds the total number of available GPUs\b",
        text="the Ray cluster has fewer free GPUs than the engine asks for: a node did not join, joined under another"
        " address, or holds its GPUs for something else",
        fix="compare `ray status` on the head with the nodes; start Ray on each with the address of the engine's"
        " network (VLLM_HOST_IP)",
        weak=True,
    ),
    CausePattern(
        id="RANK-DIED-STARTING",
        pattern=r"scheduler died during initialization \(exit code: -9\)|^(?:\[[^\]]{1,40}\] )?Exit code: -9$",
        text="a rank's process was killed while the engine started, which usually means the kernel's OOM killer",
        fix="check the kernel log on this node for the OOM killer (`dmesg -T | grep -i oom`), and what else uses its"
        " memory",
        weak=True,
    ),
    CausePattern(
        id="RANK-DIED-STARTING",
        pattern=r"scheduler died during initialization \(exit code: -\d{1,2}\)"
        r"|^(?:\[[^\]]{1,40}\] )?Exit code: -(?:4|6|7|8|11)$",
        text="a rank's process crashed while the engine started (-11: SIGSEGV, -7: SIGBUS, -6: SIGABRT)",
        fix="read that rank's last lines with `l40s-deploy logs --around-failure`, and the kernel log (`dmesg -T`)",
        weak=True,
    ),
    CausePattern(
        id="ENGINE-WATCHDOG",
        pattern=r"[Ww]atchdog timeout \(",
        text="a forward pass took longer than the engine's watchdog allows (300 s by default)",
        fix="increase --watchdog-timeout if the first pass compiles kernels; otherwise find the hanging rank with"
        " `l40s-deploy logs`",
        weak=True,
    ),
    CausePattern(
        id="LOADING-LATE",
        pattern=r"could finish the model loading, but there are other ranks",
        text="another rank did not finish loading within the engine's 480 s: its disk is slow, its memory is full, or"
        " it died",
        fix="compare the nodes' disks; read the weight files into the page cache before the start (sglang issue 5457)",
        secondary=True,
    ),
    CausePattern(
        id="LOADING-LATE",
        pattern=r"Timed out waiting for engines? (?:to send|core|process)"
        r"|DP Coordinator process failed to report ZMQ addresses|Weights are not ready after waiting \d",
        text="the engine's processes did not become ready in the time that its front end waits: they still read weights"
        " or compile, or one of them ended",
        fix="give it longer (VLLM_ENGINE_READY_TIMEOUT_S in l40s_env), and read the weights from a faster disk; look"
        " above it for a process that ended",
        secondary=True,
    ),
    CausePattern(
        id="LEADER-UNREACHABLE",
        pattern=r"The client socket has timed out (?:after \d{1,9}m?s )?while trying to connect to"
        r" \((?P<peer>[^)]{1,128})\)"
        r"|The client socket has failed to connect to any network address of \((?P<peer_of_any>[^)]{1,128})\)"
        r"|TCP client failed to connect/validate to host (?P<peer_store>\S{1,128})"
        r"|RendezvousConnectionError: The connection to the C10d store has failed"
        r"|DistNetworkError: The client socket has failed to connect to (?P<peer_at_end>\S{1,128}) \(errno: 111",
        text="the leader's port can't be reached: nothing listens there, since the leader has not started or has ended,"
        " or a firewall closes it",
        fix="look first whether the leader runs (its log, `ss -ltn` there), then for a firewall between the nodes:"
        " `l40s-deploy doctor` tries their ports",
        secondary=True,
    ),
    CausePattern(
        id="PEER-MISSING",
        pattern=r"waiting for clients\. \d+/\d+ clients joined"
        r"|The client socket has failed to connect(?!.{0,160}errno: 9[79]\b)|wait timeout after \d{1,9}ms, keys: "
        r"|Failed to receive worker ports from node 0|DistStoreError: Socket Timeout|\bRendezvousTimeoutError\b"
        r"|Timeout waiting for key: \S"
        r"|\bncclUniqueId from \[\d{1,6}\] via c10d"
        r"|\bwaitForInput: .{0,200}\bremote=\[?(?P<peer>[^\]\s]{1,64})\]?:\d{1,5}\)"
        r" timed out",
        text="not all nodes joined the rendezvous in time",
        fix="check the node that failed first, and that every node can reach the rendezvous port"
        " (`l40s-deploy doctor`)",
        secondary=True,
    ),
    CausePattern(
        id="PEER-MISSING",
        pattern=r"received errors while waiting for send/recv from (?P<peer>rank \d{1,6})\."
        r"|(?P<peer_of_barrier>Rank \d{1,6}) failed to pass monitoredBarrier in \d",
        text="a rank did not come to a barrier that the others reached: it is late, hung or dead",
        fix="read that rank's own log first; the others only waited for it",
        secondary=True,
    ),
    CausePattern(
        id="PEER-MISSING",
        pattern=r"Timed out initializing process group in store based barrier on rank",
        text="the ranks did not come together at the start: some did not come (worker_count below world_size), or some"
        " are left from an earlier start (above it)",
        fix="look for processes of an earlier start on every node, then at the node that came last",
        secondary=True,
    ),
    CausePattern(
        id="LOADING-LATE",
        pattern=r"Watchdog caught collective operation timeout|due to ProcessGroupNCCL watchdog hang"
        r"|Timed out waiting \d{1,9}ms for (?:recv|send) operation",
        text="these ranks had loaded their weights and waited for others that had not: slow storage on another node,"
        " or a rank that died there while it loaded",
        fix="compare how far the other nodes' logs came; read the weights from a faster disk or the page cache, or give"
        " them longer: --dist-timeout (sglang issues 3360, 3784)",
        secondary=True,
        after=r"Load weight end\b|Loading weights took |\bcheckpoint shards: ",
        unless=r"KV Cache is allocated|Memory pool end|max_total_num_tokens|KV cache (?:memory|size)|Captur(?:e|ing) ",
    ),
    CausePattern(
        id="COLLECTIVE-TIMEOUT",
        pattern=r"Watchdog caught collective operation timeout|due to ProcessGroupNCCL watchdog hang"
        r"|Timeout at NCCL work: \d|\bs? ?watchdog got stuck for \d{1,9} seconds|Heartbeat monitor timed out!"
        r"|dump signal due to a collective timeout from this local rank"
        r"|Timed out waiting \d+ms for (recv|send) operation",
        text="a rank timed out waiting for another rank, which is late, hung or dead",
        fix="look for the rank whose log ends first, or that wrote no timeout of its own: it is the one to read"
        " (its kernel log too); where all wrote one, the way between them failed (sglang issues 3368, 3932)",
        secondary=True,
    ),
    CausePattern(
        id="PEER-LOST",
        pattern=r"ncclRemoteError|Connection closed by (remote )?peer|Connection reset by (remote )?peer"
        r"|remote process exited or there was a network error|NCCL communicator was aborted"
        r"|pair\.cc:\d{1,5}\] (?:Read|Write) error \[[^\]]{1,64}\]\S{1,8} Connection timed out"
        r"|Failed to recv, got 0 bytes|Call to connect (?:timeout|returned|failed) ?: Connection refused"
        r"|[Cc]onnect to \S{1,128} returned (?:\d{1,4}\()?Connection refused"
        r"|socket(?:Start|Poll)Connect: exceeded retries|maybe TCPStore server has shut down too early"
        r"|Call to (?:recv|send)\w{0,8} .{0,128} failed ?: |\bRendezvousClosedError\b",
        text="the connection to another rank or node was lost",
        fix="check the node that failed first",
        secondary=True,
    ),
    CausePattern(
        id="CHILD-FAILED",
        pattern=r"Received sigquit from a child proces|crashed with exit code|scheduler died during initialization"
        r"|[Ee]ngine core initialization failed|WorkerProc initialization failed|EngineDeadError"
        r"|\bfailed \(exitcode: -?\d{1,3}\) local_rank: \d|\berrors\.ChildFailedError:"
        r"|^Root Cause \(first observed failure\):|\bEngine process \(pid \d{1,9}\) died\b",
        text="an engine process of this node exited",
        fix="read its last log lines: `l40s-deploy logs --around-failure`",
        secondary=True,
    ),
    CausePattern(
        id="WARM-UP",
        pattern=r"Initialization failed\. warmup error",
        text="the engine's own warm-up request got no answer",
        fix="read the log lines before it: `l40s-deploy logs --around-failure`",
        secondary=True,
    ),
)
"""What both families of versions write."""

REMARKS = (
    CausePattern(
        id="MOE-UNTUNED",
        pattern=r"Using default MoE (kernel )?config|Config file not found at \S+\.? Fallback to triton",
        text="there is no tuned MoE kernel config for this GPU, shape and Triton version",
        fix="find one with `tuning run`, or copy an existing one with `tuning push`",
    ),
    CausePattern(
        id="FP8-GEMM-UNTUNED",
        pattern=r"Using default W8A8 Block (FP8|INT8) kernel config",
        text="there is no tuned block GEMM kernel config for this GPU and shape",
        fix="find one with `tuning run`, or copy an existing one with `tuning push`",
    ),
)
"""Lines that cost speed and end nothing; never shown as the cause of a failure."""

PCIE_IPC = (
    CausePattern(
        id="PCIE-IPC-OFF",
        pattern=r"PCIE_IPC_ALLREDUCE is set but this FlashInfer"
        r"|FlashInfer PCIe-IPC (?:workspace \(max_numel=\d{1,12}\) failed|all-reduce serves bf16 only)"
        r"|Setup FlashInfer PCIe-IPC allreduce failed|leaving PCIe-IPC all-reduce off",
        text="the PCIe-IPC all-reduce that the plan asks for is not in use, so all-reduces use NCCL",
        fix="read why with `l40s-deploy logs`, or choose a layout without it (`l40s-deploy plan` lists them)",
    ),
)
"""sglang/srt/distributed/device_communicators/pcie_ipc_ar.py and parallel_state.py of 0.5.23."""

PCIE_IPC_IN_USE = CausePattern(
    id="PCIE-IPC-OFF",
    pattern=r"FlashInfer PCIe-IPC workspace built \(world=\d{1,6}",
    text="the PCIe-IPC all-reduce",
)
"""pcie_ipc_ar.py of 0.5.23: "enabled" is said before, and the workspace can still fail at the first reduction."""
