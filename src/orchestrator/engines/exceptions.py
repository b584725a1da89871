"""Kinds of exceptions: what the one that ended a process means, where no line of the log is a known cause.

The object that an exception names (a package, a setting, a file, a kernel) is in its own words, which are shown with
its kind. Searched in `Class: words` of the exception and, on a line of its own, `path:line` where it was raised;
specific kinds stand before general ones. What is of no kind stays unknown.
"""

from __future__ import annotations

from orchestrator.protocol.staging import CausePattern

_GPU = (
    r"(?:capability|\b(?:sm|SM)(?:_| ?[<>]=? ?)?\d{2,3}[af]?\b|\bAmpere\b|\bHopper\b|\bBlackwell\b|\bTuring\b|\bVolta\b"
    r"|(?:[Cc]urrent|[Tt]his|[Yy]our) (?:GPU|device|hardware)\b)"
)
_NOT = (
    r"(?:[Nn]o compiled|[Nn]ot (?:supported|available|implemented|compatible)|[Uu]nsupported|[Oo]nly (?:be )?"
    r"(?:\S{1,32} (?:is|are) )?(?:supports?|supported|available|works?)|do(?:es)? not support|[Rr]equire[sd]?"
    r"|[Mm]inimum|[Ii]ncompatible)"
)
_HUB = r"(?:[\w.-]{0,64}huggingface\.co|[\w.-]{0,64}modelscope\.\w{2,3}|hf-mirror\.com|[\w.-]{0,64}\.hf\.co)"
_REFUSED = r"^(?:[\w.]{0,128}\.)?(?:ValueError|AssertionError|NotImplementedError|ValidationError)"
_OF_SHAPES = (
    r"RuntimeError: (?:shape '\[[\d, -]{1,64}\]' is invalid for input|The (?:expanded )?size of (?:the )?tensor"
    r"|mat1 and mat2 |Sizes of tensors must match|Expected (?:all tensors|size) |expected (?:scalar type|mat1)"
    r"|split_with_sizes expects|Tensors must have same|stack expects|output with shape|[Ii]ndex put requires"
    r"|[Ii]ndex_copy_|selected index k out of range)"
)
"""Torch's words for tensors that do not fit each other: where an engine's own code raised it, its defect."""
_OF_A_REQUEST = (
    r"/(?:entrypoints|openai|serving\w{0,32}|protocol\w{0,16}|multimodal|renderers)[/.]|sampling_params"
    r"|tokenizer_manager|input_processor|async_llm|io_struct|http_server"
)
"""Of files: they refuse what a client asks, which ends nothing."""

_OPTION = (
    r"\b(?:max_num_(?:batched_tokens|seqs)|gpu_memory_utilization|(?:tensor|pipeline|data)_parallel_size"
    r"|mem_fraction_static|chunked_prefill_size|max_running_requests)"
)
"""An engine's setting as its configuration writes it; max_model_len is left out, since requests are refused by it."""

POINTERS = (
    r"See (?:root cause|inner exception|stack trace)|\bEngineDeadError\b|\bEngineGenerateError\b|\bChildFailedError\b"
    r"|Worker failed with error '|[Ee]ngine (?:core initialization|process) failed|check the stack trace above"
    r"|\bCalledProcessError\b|\bRayTaskError\b|\b(?:Ray)?ActorDiedError\b|\bRayActorError\b|\bWorkerCrashedError\b"
    r"|\bNodeDiedError\b|\bLocalRayletDiedError\b|\bRendezvousClosedError\b"
    r"|^(?:SystemExit|KeyboardInterrupt|asyncio\.\w{0,32}\.?CancelledError)\b|^EOFError(?::?\s{0,8}$| \()"
)
"""Of exceptions that only tell that another one, which was told before, ended a process."""

RAISED = (
    CausePattern(  # vllm issues 1581, 24004; sglang issue 3436
        id="LAYOUT-NOT-DIVISIBLE",
        pattern=r"^AssertionError: assert (?:numerator % denominator"
        r"|[\w.]{0,64}(?:heads|experts|hidden_size|intermediate_size|vocab_size) %"
        r" (?:self\.)?(?:attn_|moe_)?(?:[tped]p_(?:world_)?size|world_size)"
        r"|(?:self\.)?(?:attn_)?tp_size % (?:self\.)?\w{0,16}num_(?:kv|key_value)_heads) == 0",
        text="a parallel degree does not divide the model's heads, experts or widths",
        fix="choose another --tp or --pp; `l40s-deploy plan` lists the layouts that the model allows",
    ),
    CausePattern(  # vllm, sglang: vocab_parallel_embedding.py
        id="WEIGHTS-DIFFER",
        pattern=r"^AssertionError: assert loaded_weight\.(?:shape|size\()",
        text="a weight of the checkpoint has another shape than config.json tells: another model's file, a vocabulary"
        " that was extended, or another quantisation",
        fix="compare its config.json with `l40s-deploy plan --show argv`; `l40s-deploy checkpoint verify MODEL`",
        weak=True,
    ),
    CausePattern(  # vllm issues 55169, 56830
        id="GPU-MEMORY-CHANGED",
        pattern=r"^AssertionError: Error in memory profiling\. Initial free memory|^AssertionError: assert"
        r" (?:self\.)?init_(?:snapshot\.free_memory|free_memory|gpu_memory) >=? ",
        text="another process gave back memory of this GPU while the engine measured how much it may use",
        fix="look for other processes of that GPU in `nvidia-smi`, most often an engine that is still ending, and start"
        " it again once they have ended",
    ),
    CausePattern(  # vllm issues 19338, 23086, 42895
        id="KV-BLOCKS-DIFFER",
        pattern=r"^AssertionError: (?:assert self\.(?:dst_num_blocks\[\w{1,32}\] ==|num_blocks >=)"
        r" nixl_agent_meta\.num_blocks|Local block size \d{1,9} is not divisible by remote block size)",
        text="instances for prefill and decode, or ranks of one, have another number or size of KV blocks than the"
        " NIXL connector of this vLLM takes",
        fix="start all of them with the same vLLM, --block-size and --num-gpu-blocks-override; a newer release takes"
        " more combinations",
    ),
    CausePattern(  # sglang/srt/disaggregation: common/conn.py, mooncake/conn.py, nixl/conn.py, utils.py
        id="KV-BLOCKS-DIFFER",
        pattern=r"^(?:RuntimeError|ValueError|AssertionError): [^\n]{0,400}(?:[Mm]ismatch|\bdiffers?\b|[Dd]ifferent"
        r"|[Mm]atching"
        r"|\bmust (?:match|use the same)|same )[^\n]{0,400}\n\S{0,512}/disaggregation/(?!encode)\S{1,200}\.py:\d",
        text="the instances for prefill and decode do not fit each other: another parallel degree, KV cache type or"
        " layout, or attention backend",
        fix="start both with the same stack and the settings that the words name, most often the same"
        " --tensor-parallel-size, --kv-cache-dtype, --page-size and --attention-backend",
        weak=True,
    ),
    CausePattern(  # deepep issue 165; NVIDIA/srt-slurm issue 44
        id="DEEPEP-TOKENS",
        pattern=r"Assertion error \S{0,256}deep_ep\.cpp:\d{1,5} '[^'\n]{0,256}num_max_dispatch_tokens_per_rank",
        text="a rank had more tokens to send than the buffer of DeepEP's low-latency mode takes",
        fix="raise SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK in l40s_env, or lower --max-running-requests and"
        " --cuda-graph-max-bs (vLLM: VLLM_MOE_DP_CHUNK_SIZE)",
    ),
    CausePattern(  # deepep issues 114, 300, 518
        id="DEEPEP-BUFFER",
        pattern=r"Assertion error [^\n]{0,256}num_max_nvl_chunked_recv_tokens / num_rdma_ranks > ",
        text="DeepEP's buffer within a node is too small for so many nodes, or its chunks are too large",
        fix="give --deepep-config a larger num_max_nvl_chunked_recv_tokens, or smaller chunks, for so many nodes",
    ),
    CausePattern(  # deepgemm issues 140, 153; vllm issue 40987
        id="DEEPGEMM-REFUSED",
        pattern=r"Assertion error \(?(?!\S{0,256}/jit/)\S{0,256}"
        r"(?:/deep_?gemm[\w-]{0,16}/|jit_kernels/|csrc/(?:utils|apis)/)\S{0,256}\.hpp:\d{1,5}",
        text="DeepGEMM refuses what the engine hands it: this shape or layout, most often since it has another version"
        " than the engine was made for",
        fix="install the stack anew as its lock says (`l40s-deploy prepare`); as a proof start it without DeepGEMM"
        " (SGLANG_ENABLE_JIT_DEEPGEMM=0, vLLM: VLLM_USE_DEEP_GEMM=0 in l40s_env)",
        weak=True,
    ),
    CausePattern(  # sglang issue 33943
        id="KERNEL-REFUSED",
        pattern=r"^tvm\.error\.\w{1,64}: Check failed: "
        r"|^RuntimeError: Expected [^\n]{1,300} to be true, but got false\.|^RuntimeError: Invalid thread config: ",
        text="a kernel library (FlashInfer, or SGLang's own kernels) refuses what the engine hands it: the shape, type"
        " or setting in its words",
        fix="choose another backend for that part (--attention-backend, --moe-runner-backend), or another draft; search"
        " the library's issues for these words",
        weak=True,
    ),
    CausePattern(  # sglang issues 23141, 25865
        id="LORA-EXCEEDED",
        pattern=r"^AssertionError: assert len\(\w{1,16}\) <= self\.max_loras_per_batch",
        text="SGLang put more LoRA adapters into a batch than --max-loras-per-batch, where the base model counts as"
        " one: its scheduler leaves a chunked request out of its count",
        fix="raise --max-loras-per-batch by one at least",
    ),
    CausePattern(  # torch/cuda/__init__.py
        id="TORCH-WITHOUT-CUDA",
        pattern=r"^AssertionError: Torch not compiled with CUDA enabled",
        text="the torch of this environment was built without CUDA",
        fix="install the stack anew as its lock says (`l40s-deploy prepare`)",
    ),
    CausePattern(  # torch/cuda/__init__.py; vllm issue 5527; vllm, multiproc executor
        id="GPU-NOT-THERE",
        pattern=r"^AssertionError: Invalid device id|^AssertionError: please (?:set tensor_parallel_size|ensure that"
        r" world_size) \(\d{1,6}\) (?:to|is) less than",
        text="a rank was to use a GPU that its process does not see: there are more ranks than GPUs here, or"
        " CUDA_VISIBLE_DEVICES or the container shows fewer",
        fix="compare `nvidia-smi -L` with CUDA_VISIBLE_DEVICES and the parallel degrees; ranks of several nodes need an"
        " executor that knows all of them",
    ),
    CausePattern(  # CPython, multiprocessing/process.py; vllm issue 18308
        id="PROCESS-DAEMONIC",
        pattern=r"^AssertionError: daemonic processes are not allowed to have children",
        text="the engine was started in a daemonic process (a Pool, a Celery worker, daemon=True), which may start none"
        " of its ranks",
        fix="start it by its own command, or in a process with daemon=False",
    ),
    CausePattern(
        id="CUDA-FORKED",
        pattern=r"Cannot re-initialize CUDA in forked subprocess",
        text="a process that had already used CUDA was forked, which CUDA does not survive",
        fix="set VLLM_WORKER_MULTIPROC_METHOD=spawn in l40s_env, and start the engine by its own command; an import"
        " that touches the GPU before the fork does the same",
    ),
    CausePattern(
        id="MODEL-DENIED",
        pattern=rf"40[13] Client Error: .{{0,64}}{_HUB}|\bGatedRepoError\b",
        text="the model's hub does not give the model to this account",
        fix="copy the checkpoint to this node's model root, or set HF_TOKEN in l40s_env to an account's token that may",
    ),
    CausePattern(
        id="MODEL-MISSING",
        pattern=r"\b(?:RepositoryNotFoundError|RevisionNotFoundError|EntryNotFoundError)\b|\b404 Client Error\b",
        text="the model's hub has no such model, revision or file",
        fix="correct the model's name, or name a directory below the node's model root",
    ),
    CausePattern(  # transformers/utils/hub.py, configuration_utils.py, modeling_utils.py
        id="MODEL-MISSING",
        pattern=r"^OSError: Can't load (?:the )?[\w ]{4,32} (?:of"
        r"|for) '(?P<own>[^']{1,256})'\. If you were trying to load",
        text="the model's directory does not exist on this node, or lacks a file that Transformers asks for",
        fix="look whether the path exists there (in a container: whether it is mounted); copy the checkpoint, with its"
        " config and tokenizer files, with `checkpoint push`",
    ),
    CausePattern(  # sglang PR 8102; vllm, config/cache.py
        id="HOST-OUT-OF-MEMORY",
        pattern=r"Not enough host memory available\. Requesting|Too large swap space\. ",
        text="the node has less free main memory than the engine is to set aside for the KV cache",
        fix="lower --hicache-size or --hicache-ratio (vLLM: --swap-space): each rank of the node takes as much",
    ),
    CausePattern(
        id="HUB-UNREACHABLE",
        pattern=rf"(?:host='|https://){_HUB}|\bHfHubHTTPError\b|huggingface_hub\.\w{{1,16}}\.\w{{0,32}}(?:Timeout"
        rf"|Connect)"
        r"|CAS service error|There was a specific connection error when trying to load",
        text="the model's hub can't be reached from this node, or refuses: no route, a proxy whose certificate is not"
        " trusted, or its rate limit, as its words say",
        fix="copy the checkpoint to this node's model root (`checkpoint push`), and set HF_HUB_OFFLINE=1 in l40s_env",
    ),
    CausePattern(
        id="WARM-UP",
        pattern=r"^AssertionError: res=<Response \[(?P<own>\d{3})\]>",
        text="the engine's own warm-up request got an error for an answer: from the engine, or (502, 503, 504) from the"
        " proxy of http_proxy, which it went through",
        fix="read the lines before it; set no_proxy=localhost,127.0.0.1,0.0.0.0 in l40s_env, or unset http_proxy",
        weak=True,
    ),
    CausePattern(
        id="SERVER-UNREACHABLE",
        pattern=r"HTTPConnectionPool\(host='(?P<peer>0\.0\.0\.0|127\.0\.0\.1|localhost)', port=\d{1,5}\): Max retries"
        r".{0,320}Connection refused",
        text="a server of this same machine, as the engine itself, does not listen: it has ended or has not started",
        fix="read what its own process wrote before; `ss -ltnp` shows who listens",
        weak=True,
    ),
    CausePattern(
        id="SERVER-UNREACHABLE",
        pattern=r"HTTPS?ConnectionPool\(host='(?P<peer>[^']{1,128})', port=\d{1,5}\): (?:Max retries|Read timed out)"
        r"|\bClientConnectorError: Cannot connect to host (?P<peer_host>\S{1,128})"
        r"|^(?:\w{1,32}\.)?(?:httpx|httpcore|requests\.exceptions)\.(?:Connect\w{1,16}|ReadTimeout)\b",
        text="a server that the engine asks over HTTP can't be reached",
        fix="look whether it runs and listens on that address, and whether http_proxy stands between (no_proxy)",
        weak=True,
    ),
    CausePattern(
        id="NIXL-FAILED",
        pattern=r"\bnixl\w{0,32}Error: (?P<own>NIXL_ERR_(?!REMOTE_DISCONNECT)\w{1,40})"
        r"|^(?:Exception|RuntimeError): (?:NIXL memory registration failed|KVSender failed to create"
        r"|NIXL (?:transfer encountered ERR|staging transfer failed)|Failed to create NIXL backend)",
        text="NIXL, which moves the KV cache between instances, could not use its backend (UCX)",
        fix="read the UCX lines above it; name the ports in UCX_NET_DEVICES, look whether UCX was built with CUDA"
        " (`ucx_info -d`), and whether the other instance still runs",
        weak=True,
    ),
    CausePattern(
        id="LEADER-UNREACHABLE",
        pattern=r"^RuntimeError: (?:connect\(\) timed out|Connection (?:timed out|refused))[^\n]{0,64}"
        r"\n\S{0,512}/torch/distributed/(?:elastic/rendezvous/\w{1,64}|rendezvous)\.py:\d",
        text="the leader's port can't be reached: nothing listens there, since the leader has not started or has ended,"
        " or a firewall closes it",
        fix="look first whether the leader runs (its log, `ss -ltn` there), then for a firewall between the nodes:"
        " `l40s-deploy doctor` tries their ports",
        weak=True,
    ),
    CausePattern(
        id="TOKENIZER-UNREADABLE",
        pattern=r"untagged enum \w{1,64}|Converting from (?:SentencePiece|Tiktoken)|could not parse ModelProto"
        r"|Couldn't instantiate the backend"
        r" tokenizer|\n\S{0,512}/(?:tokenization_\w{1,64}|convert_slow_tokenizer|tokenizers?)\.py:\d",
        text="the model's tokenizer can't be read: Transformers or tokenizers of another version than its files were"
        " written with, a package for it that is missing, or an incomplete file",
        fix="verify the files with `l40s-deploy checkpoint verify MODEL`; otherwise choose a stack whose Transformers"
        " the model's config.json asks for",
    ),
    CausePattern(
        id="USER-UNKNOWN",
        pattern=r"^KeyError: 'getpwuid\(\): uid not found: (?P<own>\d{1,10})'"
        r"|^OSError: No username set in the environment",
        text="the container runs as a user that its /etc/passwd does not have, and a package (torch's cache of kernels)"
        " asks for that user's name",
        fix="set LOGNAME, and HOME to a directory where that user may write, in the container's environment",
    ),
    CausePattern(  # vllm issues 37974, 41287; vllm-ascend issue 8440: names of layers with a KV cache, not of weights
        id="ENGINE-DEFECT",
        pattern=r"^KeyError: '(?:\w{1,64}\.){2,16}(?:attn|mla_attn|linear_attn|k_cache|swa_cache|mamba|mixer"
        r"|short_conv)'",
        text="the engine's ranks do not agree on which layers each of them has: a defect of its pipeline parallelism,"
        " or"
        " of this model in it",
        fix="try the engine's newest release, or tensor parallelism alone; of vLLM over Ray, its multiprocessing"
        " executor (--distributed-executor-backend mp)",
        weak=True,
    ),
    CausePattern(  # numba/core/caching.py
        id="NOT-WRITABLE",
        pattern=r"^RuntimeError: cannot cache function '\S{1,128}': no locator available",
        text="Numba may not write where it keeps compiled functions: another user's directory, or a read-only one",
        fix="set NUMBA_CACHE_DIR to a directory where the engine's user may write",
    ),
    CausePattern(  # vllm, sglang: device_communicators/cuda_wrapper.py
        id="CUSTOM-ALL-REDUCE",
        pattern=r"^RuntimeError: CUDART error: (?!out of memory)[^\n]{1,128}\n\S{0,512}/(?:cuda_wrapper"
        r"|custom_all_reduce)\.py:\d",
        text="the engine's custom all-reduce can't map the memory of another GPU (CUDA IPC, P2P)",
        fix="add --disable-custom-all-reduce to l40s_args",
        weak=True,
    ),
    CausePattern(
        id="CUDA-CALL-FAILED",
        pattern=r"\bencode tensor map: (?P<own>\d{1,4})\b",
        text="CUDA could not describe a matrix for a kernel; a kernel before it may have failed (700: illegal access)",
        fix="read `dmesg -T | grep Xid` on this node, and search the engine's issues for these words; as a proof choose"
        " another MoE or GEMM backend",
        weak=True,
    ),
    CausePattern(  # triton/backends/nvidia/driver.c
        id="CUDA-CALL-FAILED",
        pattern=r"\bTriton Error \[CUDA\]: (?!device kernel image)",
        text="a call of CUDA failed in Triton",
        fix="read `dmesg -T | grep NVRM` on this node; delete ~/.triton/cache if another GPU or driver wrote it",
        weak=True,
    ),
    CausePattern(  # cutlass/cutlass.h, cutlassGetStatusString
        id="KERNEL-REFUSED",
        pattern=r"^(?:RuntimeError: (?:\w{1,64}[,:] )?|[^\n]{0,200}[Cc]utlass[^\n]{0,200}[:.,] )Error"
        r" (?:Internal|Invalid (?:Problem|Layout|Data Type)|Not Supported"
        r"|Misaligned Operand|Workspace Null|Arch Mismatch)(?:\s|$)",
        text="a CUTLASS kernel refuses this shape or type, or could not start on this GPU",
        fix="choose another backend or quantisation for that part, or a stack that knows this GPU",
        weak=True,
    ),
    CausePattern(  # sglang issue 4964; torch/_dynamo/exc.py
        id="KERNEL-COMPILE",
        pattern=r"^(?:torch\._dynamo\.exc\.)?(?:Unsupported: (?:Graph break|call_|Unsupported"
        r"|\W)|TorchRuntimeError: |UserError: "
        r"|InternalTorchDynamoError|FailOnRecompileLimitHit|ConstraintViolationError)|^torch\._dynamo\.exc\.\w",
        text="torch.compile can't take the code of this model or of a kernel that it calls",
        fix="start it without torch.compile (SGLang: remove --enable-torch-compile; vLLM:"
        " --enforce-eager), or with another"
        " attention backend; search the engine's issues for these words",
        weak=True,
    ),
    CausePattern(
        id="KERNEL-COMPILE",
        pattern=r"Failed to compile|\[CUDA\]: device kernel image is invalid|Internal Triton PTX codegen error"
        r"|Ninja build failed|Error building extension|NVCC compilation failed|PTXASError"
        r"|\b(?:CompilationError|InductorError|BackendCompilerFailed|LoweringException)\b"
        r"|nvrtc\w{0,32}\W.{0,64}(?:error|fail)"
        r"|Runtime check failed .{0,64}compiler|\n\S{0,512}/(?:jit/(?:core|cpp_ext|compiler)|cpp_extension|triton/"
        r"(?:compiler|backends)/[\w/]{1,64})\.py:\d",
        text="a GPU kernel did not compile at the start",
        fix="read the compiler's lines above it: another version of the CUDA toolkit than torch's, or a stale cache"
        " (delete ~/.cache/flashinfer, ~/.triton/cache, ~/.cache/deep_gemm and ~/.cache/vllm)",
        weak=True,
    ),
    CausePattern(
        id="GPU-ARCH",
        pattern=rf"{_NOT}[^\n]{{0,96}}{_GPU}|{_GPU}[^\n]{{0,96}}(?:{_NOT}|or newer|or above|or higher)",
        text="this GPU's architecture has no kernel for what the engine was asked to use",
        fix="choose another backend or quantisation (--attention-backend, --moe-runner-backend), or a stack that knows"
        " this GPU",
        weak=True,
    ),
    CausePattern(
        id="CUDA-LIBRARY",
        pattern=r"\bCU(?:BLAS|BLASLT|DNN|SOLVER|SPARSE|FFT|RAND)_STATUS_(?P<own>\w{1,64})|\bcuDNN error\b"
        r"|(?:GET|FIND) was unable to find an engine to execute",
        text="a CUDA library (cuBLAS, cuDNN) failed: most often the GPU has no memory left for it, or another version"
        " of it was loaded than torch was built for",
        fix="leave more GPU memory free (--mem-fraction-static), look for other processes in `nvidia-smi`, and unset"
        " LD_LIBRARY_PATH",
        weak=True,
    ),
    CausePattern(
        id="GRAPH-CAPTURE",
        pattern=r"(?:when|while) (?:the )?stream is capturing|during (?:CUDA graph |stream )?capture\b"
        r"|cudaErrorStreamCapture",
        text="a CUDA graph could not be captured: a call in the forward pass can't be recorded in one, or failed while"
        " it was",
        fix="read the exception above it, if there is one; as a proof start it without torch.compile, then without CUDA"
        " graphs (--disable-cuda-graph, vLLM: --enforce-eager)",
        weak=True,
    ),
    CausePattern(
        id="CUDA-CALL-FAILED",
        pattern=r"CUDA (?:driver |runtime )?error\b|Cuda(?: error|failure)|CUDA_ERROR_[A-Z]{2}|\bcudaError[A-Z]"
        r"|\b(?P<own>cu(?:da)?[A-Z]\w{3,48}) failed\b"
        r"|\b(?P<own_kernel>\w{2,64}) failed with error(?: code)? (?:invalid (?:argument|configuration argument)"
        r"|too many resources requested|operation not supported|unspecified launch failure)",
        text="a call of CUDA failed",
        fix="read `dmesg -T | grep NVRM` on this node; CUDA_LAUNCH_BLOCKING=1 in l40s_env shows the call",
        weak=True,
    ),
    CausePattern(
        id="ENGINE-MISSING",
        pattern=r"^(?:ImportError|OSError): (?P<own>lib(?!cuda\.so|nvidia-ml)\S{1,64}): cannot open shared object file",
        text="a shared library that one of the engine's packages needs is not on this node",
        fix="install the system package that has it (`apt-file search NAME`), or use the stack's image; of CUDA and"
        " torch install the stack anew (`l40s-deploy prepare`)",
        weak=True,
    ),
    CausePattern(  # transformers/models/auto/configuration_auto.py
        id="MODEL-UNSUPPORTED",
        pattern=r"^KeyError: '[\w-]{1,64}'\n\S{0,512}/(?:configuration_auto|auto_factory|hf_transformers_utils)\.py:\d",
        text="the stack's Transformers is older than the model and does not know its type",
        fix="choose a newer stack (l40s_stack), or one that is patched for the model",
        weak=True,
    ),
    CausePattern(  # vllm issues 8416, 11986
        id="ENGINE-DEFECT",
        pattern=r"^TypeError: \w{0,48}(?:Worker|Executor|Runner|Scheduler"
        r"|Proposer)\w{0,16}\.\w{1,48}\(\) (?:got an unexpected keyword"
        r"|missing \d)",
        text="parts of the engine itself do not fit each other: it does not take this setting together with the others,"
        " or a plug-in replaces one of its parts",
        fix="leave out the setting that the word names as a proof, and plug-ins; otherwise try the engine's newest"
        " release",
        weak=True,
    ),
    CausePattern(
        id="PACKAGES-DIFFER",
        pattern=r"^ImportError: |^ModuleNotFoundError: |\bPackageNotFoundError: |\bDistributionNotFound: "
        r"|\bVersionConflict: \("
        r"|Failed to import \w{1,64}\.\S{1,200} because of the following|partially initialized module"
        r"|AttributeError: module '|AttributeError: '?\w{1,64}Tokenizer\w{0,16}'? (?:object )?has no attribute"
        r"|\bis already used by a Transformers (?:config|model)"
        r"|got an unexpected keyword argument|missing \d{1,2} required (?:positional|keyword-only) argument"
        r"|\bversion \(\S{1,64}\) does not match \S{1,64} version\b"
        r"|takes (?:from \d{1,2} to )?\d{1,2} positional arguments? but|operator \w{1,64}::\w{1,64} does not exist"
        r"|Could not run '\w{1,64}::\w{1,64}' with arguments from the '\w{1,32}' backend"
        r"|'_OpNamespace' '|[Nn]umpy is not available|numpy\.(?:dtype|ufunc) size changed|\bis required for a normal"
        r"|Either a revision or a version must be|NumPy 1\.x|undefined symbol: "
        r"|\b(?:NIXL|nixl|DeepEP|deep_ep|FlashMLA|Mooncake|mooncake|LMCache) is not (?:available|installed)",
        text="Python packages of the stack's environment don't fit each other, or one is missing: it was changed after"
        " its installation, or mixes versions",
        fix="install the stack anew as its lock says (`l40s-deploy prepare`); `pip check` in its environment names what"
        " does not fit",
        weak=True,
    ),
    CausePattern(
        id="QUANTISATION-UNSUPPORTED",
        pattern=r"^AttributeError: '\w{1,64}' object has no attribute '(?:w13_|w2_)?"
        r"(?:weight_(?:scale|zero_point|packed)|input_scale|q(?:weight|zeros)|scales\b)|\bquant method must be one of"
        r"|(?:[Qq]uanti[sz]|\b(?:awq|gptq|fp8|nvfp4|mxfp4|marlin|bitsandbytes|gguf|AWQ|GPTQ|FP8|NVFP4|MXFP4"
        r"|GGUF)\b)"
        rf"[^\n]{{0,128}}(?:{_NOT}|does not match|[Uu]nknown|[Ii]nvalid|not found)"
        r"|(?:[Nn]ot supported|[Uu]nsupported|[Uu]nknown|[Ii]nvalid)[^\n]{0,64}[Qq]uanti[sz]"
        r"|Cannot find the config file for \w{1,32}(?:\n|$)"
        r"|^(?:KeyError|ValueError|AttributeError|NotImplementedError|AssertionError"
        r"|RuntimeError: The size of tensor)\b"
        r"[^\n]{0,512}\n\S{0,512}/quantization/|^KeyError: '(?:F[48]\w{0,12}|BF16|[UI]\d{1,2})'",
        text="the engine does not take the checkpoint's quantisation for this model",
        fix="compare --quantization and quantization_config of config.json with what the stack's engine supports for"
        " this model; take another quantisation of it, or a newer stack",
        weak=True,
    ),
    CausePattern(
        id="WEIGHTS-DIFFER",
        pattern=r"^KeyError: '(?:model|language_model|visual|transformer|layers|lm_head|mtp)\.[\w.]{1,200}'"
        r"|^(?:KeyError|AssertionError|ValueError|RuntimeError)\b[^\n]{0,512}\n\S{0,512}"
        r"/(?:weight_utils|model_loader/\w{1,64}|load_\w{1,64}|parameter)\.py:\d",
        text="a weight of the checkpoint is not what the engine expects: another quantisation or config.json, an engine"
        " that does not know the model, or a parallel degree that does not divide it",
        fix="compare its config.json with `l40s-deploy plan --show argv`; `l40s-deploy checkpoint verify MODEL`",
        weak=True,
    ),
    CausePattern(
        id="MODEL-UNSUPPORTED",
        pattern=r"AttributeError: '\w{1,128}Config' object has no attribute '",
        text="the model's configuration has not what the engine asks of it: the engine does not know the model, or its"
        " Transformers has another version",
        fix="choose a newer stack (l40s_stack), or one that is patched for the model",
        weak=True,
    ),
    CausePattern(
        id="FILE-BROKEN",
        pattern=r"\bJSONDecodeError: |\byaml\.\w{1,32}\.\w{0,32}Error\b",
        text="a file of settings can't be parsed: it is empty, cut off or not what its name says",
        fix="find it by the frame below; of a checkpoint, `l40s-deploy checkpoint verify MODEL`",
        weak=True,
    ),
    CausePattern(
        id="FILE-DENIED",
        pattern=r"^PermissionError: \[Errno 1?\d\] [^:\n]{1,64}: b?['\"](?P<own>[^'\"\n]{1,512})",
        text="the engine's user may not use a file or directory",
        fix="give it to that user, or let the user pass through the folders above (`namei -l` shows who may)",
        weak=True,
    ),
    CausePattern(
        id="FILE-MISSING",
        pattern=r"^FileNotFoundError: \[Errno 2\] No such file or directory: b?['\"](?P<own>[^'\"\n]{1,512})",
        text="the engine does not find a file, directory or program",
        fix="look on this node whether it exists there (in a container: whether it is mounted), and who was to make it",
        weak=True,
    ),
    CausePattern(
        id="SETTING-REFUSED",
        pattern=r"environment variable (?P<own>(?:LOCAL_)?RANK|WORLD_SIZE|MASTER_(?:ADDR|PORT)) expected, but not set",
        text="torch was to find this process's rank in its environment: it was started without torchrun, and without"
        " the engine's own launcher",
        fix="start it with torchrun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
        weak=True,
    ),
    CausePattern(  # torch/nn/modules/module.py
        id="ENGINE-DEFECT",
        pattern=r"^NotImplementedError: Cannot copy out of meta tensor",
        text="a weight of the model was never loaded: the engine's code for this model, or its way of loading it,"
        " leaves"
        " it empty",
        fix="try the engine's newest release or another --load-format, and no offloading to the CPU; search its issues"
        " for this model",
        weak=True,
    ),
    CausePattern(
        id="SETTING-REFUSED",
        pattern=r"^(?:KeyError|TypeError|ValueError): ['\"]?[Ii]nvalid (?:tool call|reasoning|tool) parser: ",
        text="the engine has no parser of that name for tool calls or reasoning",
        fix="take one of the names in the line for --tool-call-parser or --reasoning-parser, or a newer stack",
        weak=True,
    ),
    CausePattern(  # flash-attention, csrc/flash_attn/flash_api.cpp
        id="SETTING-REFUSED",
        pattern=r"FlashAttention only supports? fp16 and bf16 data type",
        text="FlashAttention's kernels for this GPU take fp16 and bf16 alone, and the KV cache or model has another"
        " type",
        fix="set --kv-cache-dtype auto, or choose another --attention-backend that takes this type",
        weak=True,
    ),
    CausePattern(  # sglang issue 3658
        id="ENGINE-DEFECT",
        pattern=rf"^(?:{_OF_SHAPES}|ValueError: (?:output tensor size|[Ii]nput tensor"
        rf"|[Tt]ensors? )|TypeError: linear\()"
        r"[^\n]{0,512}\n\S{0,512}/torch/\S{1,200}\.py:\d",
        text="the engine's own code handed torch tensors that do not fit each other: a defect for this"
        " model, setting or"
        " parallel degree, or a weight of another shape",
        fix="search the engine's issues for these words; try its newest release, the model's usual settings and"
        " quantisation, or another parallel degree",
        weak=True,
    ),
    CausePattern(
        id="SETTING-REFUSED",
        pattern=r"\bvalidation errors? for \w{1,64}(?:Config|Args)\b|^NotImplementedError: \S"
        rf"|{_REFUSED}: (?!assert )[^\n]{{0,512}}(?:\b(?:must|should|cannot|can't|can only|only supports?|at least"
        rf"|at most|exceeds?"
        r"|(?:greater|less|larger|smaller) than|not supported|unsupported|incompatible|requires?|divisible|mutually"
        rf"|Unknown|Invalid|invalid)\b)[^\n]{{0,512}}\n(?!\S{{0,512}}(?:{_OF_A_REQUEST}))\S{{1,512}}\.py:\d",
        text="the engine refuses a setting, or its combination with the model or this hardware",
        fix="correct it by these words: `l40s-deploy plan --show argv` shows what was set, and whence",
        weak=True,
    ),
    CausePattern(
        id="SETTING-REFUSED",
        pattern=rf"(?:{_REFUSED}|^RuntimeError): (?!assert )(?![^\n]{{0,64}}tool choice)[^\n]{{0,400}}(?:[Pp]lease"
        r"|[Tt]ry|[Uu]se|[Ss]et|[Cc]onsider|[Rr]equires?|[Ii]ncrease|[Rr]educe|must|not supported|without)\b[^\n]{0,96}"
        rf"(?:[\s`'\"]--[a-z][a-z-]{{3,48}}|{_OPTION})\b[^\n]{{0,300}}(?:\n$|\n(?!\S{{0,512}}(?:{_OF_A_REQUEST})))"
        rf"|{_REFUSED}: (?!assert )[^\n]{{0,200}}{_OPTION}\b[^\n]{{0,96}}\b(?:must|should|greater|exceeds?"
        rf"|not supported)\b"
        rf"[^\n]{{0,300}}(?:\n$|\n(?!\S{{0,512}}(?:{_OF_A_REQUEST})))"
        r"|^ValueError: LoRA rank \d{1,6} is greater than max_lora_rank",
        text="the engine refuses a setting, or its combination with the model or this hardware",
        fix="correct it by these words: `l40s-deploy plan --show argv` shows what was set, and whence",
        weak=True,
    ),
    CausePattern(
        id="SETTING-REFUSED",
        pattern=rf"{_REFUSED}: (?!assert )[^\n]{{8,512}}"
        r"\n\S{0,512}/(?:server_args|arg_utils|model_config|arg_groups/\w{1,64}|vllm/config/\w{1,64}"
        r"|vllm/config|vllm/platforms/\w{1,32}|attention/selector|launch_server|srt/configs/\w{1,64})\.py:\d",
        text="the engine refuses a setting, or its combination with the model or this hardware",
        fix="correct it by these words: `l40s-deploy plan --show argv` shows what was set, and whence",
        weak=True,
    ),
    CausePattern(  # sglang issues 10046, 36528; torch/nn/modules/module.py, __getattr__
        id="ENGINE-DEFECT",
        pattern=r"^AttributeError: '\w{1,64}' object has no attribute '\w{1,64}'[^\n]{0,64}\n\S{0,512}"
        r"/torch/nn/modules/module\.py:\d",
        text="the engine's code for this model has not what a setting asks of it, as speculative decoding, LoRA or a"
        " quantisation",
        fix="leave that setting out as a proof (of speculative decoding, name a draft that was made for it); otherwise"
        " try the engine's newest release",
        weak=True,
    ),
    CausePattern(  # sglang, model_executor/cuda_graph_runner.py
        id="GRAPH-CAPTURE",
        pattern=r"^Exception: Capture (?:[a-zA-Z-]{1,16} ){0,3}(?:cuda|CUDA) graph failed: "
        r"(?!.{0,256}(?:\bConnection\b|NCCL error|[Tt]imed out|gloo|ncclRemoteError))(?P<own>\S.{0,160})",
        text="a CUDA graph could not be captured: the forward pass failed while it was",
        fix="read the exception above it, if there is one; as a proof start it without CUDA graphs"
        " (--disable-cuda-graph), or with another --attention-backend",
        weak=True,
    ),
    CausePattern(
        id="ENGINE-DEFECT",
        pattern=r"^(?:AttributeError|TypeError|IndexError|NameError|UnboundLocalError|AssertionError|KeyError"
        rf"|ZeroDivisionError|{_OF_SHAPES})\b[^\n]{{0,512}}"
        rf"\n(?!\S{{0,512}}(?:{_OF_A_REQUEST}))\S{{0,512}}/(?:sglang|vllm|flashinfer|transformers"
        rf"|sgl_kernel|srt|managers|mem_cache|model_executor|speculative|disaggregation)/\S{{1,512}}\.py:\d",
        text="the engine's own code failed on what it was not written for: this model, setting, or version of a"
        " package",
        fix="search the engine's issues for these words; try its newest release, the model's usual settings, or the"
        " stack"
        " that its maker names",
        weak=True,
    ),
)
