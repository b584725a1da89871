"""The tuners of one node: the engine's own Triton kernels, tile after tile, out of the engine's own environment.

    python3 tune.py RESULTS ORDER

RESULTS is the number of an open file: one JSON object a line. ORDER is a file; its keys are those of `TunersOrder`
(tuning/messages.py). One process a GPU takes jobs out of one pipe until it is empty. A job is one shape at one batch
size: every candidate tile is timed on the engine's kernel; then the fastest ones are proved, best first, against the
product in float32 until one is right. What the engine would take today is timed and proved by the same means. Without
a GPU the kernels run in Triton's interpreter: everything but the times is true then.
"""

from __future__ import annotations

import ctypes
import inspect
import json
import os
import signal
import statistics
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG, prctl(2)
_GEMM = (
    "sglang.kernels.ops.gemm.fp8_kernel",
    "sglang.kernels.ops.quantization.fp8_kernel",
    "sglang.srt.layers.quantization.fp8_kernel",
)
_GEMM_CALL = ("w8a8_block_fp8_matmul_triton", "w8a8_block_fp8_matmul")
_MOE = (
    "sglang.kernels.ops.moe.fused_moe_triton_kernels",
    "sglang.srt.layers.moe.fused_moe_triton.fused_moe_triton_kernels",
    "sglang.srt.layers.moe.fused_moe_triton.fused_moe",
)
_MOE_CONFIG = (
    "sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe_triton_config",
    "sglang.srt.layers.moe.fused_moe_triton.fused_moe_triton_config",
    "sglang.srt.layers.moe.fused_moe_triton.fused_moe",
)
"""Where the versions keep their kernels, the newest first: 0.5.23, 0.5.17, 0.5.10 and 0.4.4."""
TOLERANCE = 0.02
"""Of the norm. Right tiles are up to 5e-3 (bfloat16) off, a BLOCK_SIZE_K that crosses scales 40 % and more."""
GRAPH_OPS, REPLAYS = 10, 10
HOPELESS = 2.0
"""Times the best so far: such a tile is not measured any longer."""
MOST_PROVED = 8
TELL_EVERY_S = 1.0


class Missing(RuntimeError):
    """What this engine does not have, or calls in another way."""


def main() -> int:
    """Fork one tuner a GPU and wait for them; 0 when all jobs were tried."""
    results = int(sys.argv[1])
    order = json.loads(Path(sys.argv[2]).read_text())
    if order["device"] != "cuda":
        os.environ["TRITON_INTERPRET"] = "1"
    queue, give = os.pipe()
    parent, tuners = os.getpid(), dict[int, int]()
    os.write(give, b"".join(struct.pack("<i", place) for place in range(len(order["jobs"]))))  # 16,384 fit
    for gpu in range(order["gpus"]):
        pid = os.fork()
        if pid == 0:
            os.close(give)
            os._exit(_one(order, gpu, queue, results, parent))
        tuners[pid] = gpu
    os.close(give)
    _say(results, started={str(gpu): pid for pid, gpu in tuners.items()})
    worst = 0
    while tuners:
        pid, status = os.waitpid(-1, 0)
        gpu = tuners.pop(pid)
        if os.WIFSIGNALED(status):
            _say(results, died=gpu, signal=os.WTERMSIG(status))
        worst = worst or int(status != 0)
    return worst


def _say(results: int, **words: Any) -> None:
    """Lines of several tuners never mix: each is one write shorter than PIPE_BUF."""
    os.write(results, (json.dumps(words) + "\n").encode())


def _one(order: dict[str, Any], gpu: int, queue: int, results: int, parent: int) -> int:
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        return 1
    try:
        import torch

        if order["device"] == "cuda":
            torch.cuda.set_device(gpu)
        torch.set_num_threads(1)
        while taken := os.read(queue, 4):
            job = order["jobs"][struct.unpack("<i", taken)[0]]
            _say(results, begun=job["id"], gpu=gpu)
            try:
                _Tuner(order, job, gpu, results).work()
            except Exception as error:
                _say(results, failed=job["id"], gpu=gpu, what=words_of(error))
    except BaseException as error:  # whatever it is, the operator hears of it
        _say(results, failed="", gpu=gpu, what=words_of(error))
        return 1
    return 0


def words_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


class _Tuner:
    """One job on one GPU."""

    def __init__(self, order: dict[str, Any], job: dict[str, Any], gpu: int, results: int) -> None:
        import torch

        self.order, self.job, self.gpu, self.results = order, job, gpu, results
        self.cuda = order["device"] == "cuda"
        self.device = torch.device("cuda", gpu) if self.cuda else torch.device("cpu")
        torch.manual_seed(job["batch"])
        self.work_of = (Moe if job["kernel"] == "moe" else Gemm)(job, self.device)

    def work(self) -> None:
        """Time all, prove the best."""
        candidates = self.order["spaces"][self.job["space"]]
        timed: list[tuple[float, int]] = []
        unfit: dict[str, int] = {}
        told = time.monotonic()
        now = self.work_of.present()
        before = self._seconds(now, None) if self._right(now) else 0.0
        for place, config in enumerate(candidates):
            try:
                timed.append((self._seconds(config, min(timed)[0] if timed else None), place))
            except Exception as error:
                kind = type(error).__name__[:60]
                unfit[kind] = unfit.get(kind, 0) + 1
            if time.monotonic() - told > TELL_EVERY_S:
                told = time.monotonic()
                _say(self.results, trying=self.job["id"], gpu=self.gpu, tried=place + 1, of=len(candidates))
        wrong = 0
        for seconds, place in sorted(timed)[:MOST_PROVED]:
            error = self._error(candidates[place])
            if error <= TOLERANCE:
                self._tell(candidates[place], seconds, before, now, error, len(timed), wrong, unfit)
                return
            wrong += 1
        raise RuntimeError(
            f"no tile of {len(candidates)} gives the right product: {len(timed)} ran, {wrong} of the fastest are wrong,"
            f" could not run: {unfit}"
        )

    def _tell(
        self,
        config: dict[str, int],
        seconds: float,
        before: float,
        now: dict[str, int],
        error: float,
        ran: int,
        wrong: int,
        unfit: dict[str, int],
    ) -> None:
        """Never slower than what the engine takes today, where that is right."""
        kept = bool(before) and before <= seconds
        _say(
            self.results,
            job=self.job["id"],
            gpu=self.gpu,
            config=now if kept else config,
            us=round((before if kept else seconds) * 1e6, 3),
            before_us=round(before * 1e6, 3),
            error=0.0 if kept else error,
            ran=ran,
            wrong=wrong,
            unfit=unfit,
            kept=kept,
        )

    def _right(self, config: dict[str, int]) -> bool:
        with suppress(Exception):
            return self._error(config) <= TOLERANCE
        return False

    def _error(self, config: dict[str, int]) -> float:
        return distance(self.work_of.product(config), self.work_of.reference())

    def _seconds(self, config: dict[str, int], best: float | None) -> float:
        """Median of one run, with launches taken out by a CUDA graph where there is a GPU."""
        import torch

        def run() -> None:
            self.work_of.run(config)

        run()
        if not self.cuda:
            return _clock(run, lambda: None)
        torch.cuda.synchronize()
        once = min(_clock(run, torch.cuda.synchronize) for _ in range(3))
        if best is not None and once > max(HOPELESS * best, best + 100e-6):
            return once
        return graph_seconds(run)


def graph_seconds(run: Callable[[], Any]) -> float:
    """Median of one run in a CUDA graph: without its launch."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(GRAPH_OPS):
            run()
    graph.replay()
    torch.cuda.synchronize()
    return statistics.median(_clock(graph.replay, torch.cuda.synchronize) for _ in range(REPLAYS)) / GRAPH_OPS


def distance(got: Any, want: Any) -> float:
    """Of a product from the one in float32, of its norm; infinite for what is no number."""
    import torch

    found = float((torch.linalg.vector_norm(got.float() - want) / torch.linalg.vector_norm(want)).item())
    return found if found == found else float("inf")  # noqa: PLR0124 - a NaN


def _clock(work: Callable[[], Any], wait: Callable[[], Any]) -> float:
    wait()
    begin = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - begin


def module_of(names: tuple[str, ...], *wanted: str) -> Any:
    """The first of these modules that has one of these names."""
    import importlib

    for name in names:
        with suppress(ImportError):
            module = importlib.import_module(name)
            if any(hasattr(module, one) for one in wanted):
                return module
    raise Missing(f"this engine has no {' or '.join(wanted)} in {', '.join(names)}")


def fitting(call: Callable[..., Any], words: dict[str, Any]) -> dict[str, Any]:
    """Those of the words that this version's function takes."""
    return {name: value for name, value in words.items() if name in inspect.signature(call).parameters}


def numbers(shape: tuple[int, ...], dtype: str, device: Any) -> Any:
    """Random weights of a checkpoint's kind."""
    import torch

    if dtype == "int8_w8a8":
        return torch.randint(-127, 128, shape, dtype=torch.int8, device=device)
    if dtype == "fp8_w8a8":
        return torch.randn(shape, device=device).to(torch.float8_e4m3fn)
    return torch.randn(shape, device=device).to(torch.bfloat16)


def spread(scales: Any, block: list[int], rows: int, columns: int) -> Any:
    """Scales of blocks as large as the matrix."""
    return scales.repeat_interleave(block[0], -2)[..., :rows, :].repeat_interleave(block[1], -1)[..., :columns]


class Gemm:
    """The block-FP8 GEMM of a linear layer."""

    def __init__(self, job: dict[str, Any], device: Any) -> None:
        import torch

        self.batch, self.block = job["batch"], job["block"]
        rows, columns, (high, deep) = job["n"], job["k"], job["block"]
        self.module = module_of(_GEMM, *_GEMM_CALL)
        self.call = next(getattr(self.module, name) for name in _GEMM_CALL if hasattr(self.module, name))
        self.look_up = self.module.get_w8a8_block_fp8_configs
        self.a = numbers((self.batch, columns), "fp8_w8a8", device)
        self.b = numbers((rows, columns), "fp8_w8a8", device)
        self.a_scale = torch.rand((self.batch, -(-columns // deep)), device=device) * 0.1 + 0.01
        self.b_scale = torch.rand((-(-rows // high), -(-columns // deep)), device=device) * 0.1 + 0.01
        self.shape = (rows, columns)
        self._want: Any = None

    def present(self) -> dict[str, int]:
        """What the engine takes today: its file's, else its built-in default (w8a8_block_fp8_matmul)."""
        found = None
        with suppress(Exception):
            found = self.look_up(*self.shape, *self.block)
        if found:
            return dict(found[min(found, key=lambda size: abs(size - self.batch))])
        return {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": self.block[0], "BLOCK_SIZE_K": self.block[1], "GROUP_SIZE_M": 32,
                "num_warps": 4, "num_stages": 3}  # fmt: skip

    def run(self, config: dict[str, int]) -> Any:
        """The engine's own function, which finds this config in the place of its files."""
        import torch

        self.module.get_w8a8_block_fp8_configs = lambda *_: {self.batch: config}
        try:
            return self.call(self.a, self.b, self.a_scale, self.b_scale, self.block, torch.bfloat16)
        finally:
            self.module.get_w8a8_block_fp8_configs = self.look_up

    product = run

    def reference(self) -> Any:
        """In float32, of the same numbers and scales."""
        if self._want is None:
            rows, columns = self.shape
            a = self.a.float() * self.a_scale.repeat_interleave(self.block[1], 1)[:, :columns]
            self._want = a @ (self.b.float() * spread(self.b_scale, self.block, rows, columns)).T
        return self._want


class Moe:
    """The two grouped GEMMs of the experts, up (with gate) and down, by one config as the engine runs them."""

    def __init__(self, job: dict[str, Any], device: Any) -> None:
        import torch

        self.job, self.device, self.dtype = job, device, job["dtype"]
        self.block = list(job["block"]) if all(job["block"]) else None
        self.module = module_of(_MOE, "invoke_fused_moe_kernel")
        batch, self.top_k, self.experts = job["batch"], min(job["top_k"], job["e"]), job["e"]
        hidden, inner = job["k"], job["n"]
        chance = torch.rand((batch, self.experts), device=device)
        if job.get("fused"):
            chance[:, -1] = 1.0  # above all others: every token goes to the shared expert
        self.ids = torch.topk(chance, self.top_k, dim=1).indices.to(torch.int32)
        self.weights = torch.rand((batch, self.top_k), device=device)
        self.inputs = [self._activations((batch, hidden)), self._activations((batch * self.top_k, inner))]
        shapes = [(self.experts, 2 * inner, hidden), (self.experts, hidden, inner)]
        self.matrices = [numbers(shape, self.dtype, device) for shape in shapes]
        self.scales = [self._scale(shape) for shape in shapes]
        self.outs = [
            torch.zeros((batch, self.top_k, 2 * inner), dtype=torch.bfloat16, device=device),
            torch.zeros((batch, self.top_k, hidden), dtype=torch.bfloat16, device=device),
        ]
        self.sorted: dict[int, tuple[Any, Any, Any]] = {}
        self._want: Any = None

    def _activations(self, shape: tuple[int, int]) -> Any:
        """Activations that the engine's quantisation leaves as they are: small numbers of its kind, the largest one in
        each group, times a power of two."""
        import torch

        if not self.dtype:
            return torch.randn(shape, device=self.device).to(torch.bfloat16)
        top = 127.0 if self.dtype == "int8_w8a8" else 448.0
        exact = numbers(shape, self.dtype, self.device).float()
        exact[:, :: self.block[1] if self.block else shape[1]] = top
        return (exact / 128).to(torch.bfloat16)

    def _scale(self, shape: tuple[int, int, int]) -> Any:
        import torch

        experts, rows, columns = shape
        if self.block:
            size: tuple[int, ...] = (experts, -(-rows // self.block[0]), -(-columns // self.block[1]))
        elif self.job["channel"]:
            size = (experts, rows, 1)
        elif self.dtype:
            size = (experts,)
        else:
            return None
        return torch.rand(size, device=self.device) * 0.1 + 0.01

    def present(self) -> dict[str, int]:
        """What the engine takes today: its file's, else its built-in default."""
        return self._config(by_file=True)

    def default(self) -> dict[str, int]:
        """Its built-in default."""
        return self._config(by_file=False)

    def _config(self, *, by_file: bool) -> dict[str, int]:
        rules = module_of(_MOE_CONFIG, "get_default_config")
        words = {"E": self.experts, "N": self.job["n"], "K": self.job["k"], "M": self.job["batch"], "topk": self.top_k,
                 "dtype": self.dtype or None, "is_marlin": False, "block_shape": self.block,
                 "block_n": self.block[0] if self.block else 0, "block_k": self.block[1] if self.block else 0,
                 "per_channel_quant": self.job["channel"]}  # fmt: skip
        if hasattr(rules, "get_exec"):  # 0.5 asks the running engine's settings, and there is none
            rules.get_exec = lambda: SimpleNamespace(
                deterministic=SimpleNamespace(enable_deterministic_inference=False)
            )
        with suppress(Exception):
            look_up = rules.get_moe_configs
            found = by_file and look_up(**fitting(inspect.unwrap(look_up), words))
            if found:
                return dict(found[min(found, key=lambda size: abs(size - self.job["batch"]))])
        return dict(rules.get_default_config(**fitting(rules.get_default_config, words)))

    def run(self, config: dict[str, int]) -> None:
        """Both products."""
        for place in (0, 1):
            self._launch(place, config)

    def _launch(self, place: int, config: dict[str, int]) -> None:
        import triton.language as tl

        tokens, owners, padded = self._sorted(config["BLOCK_SIZE_M"])
        call = self.module.invoke_fused_moe_kernel
        words = {
            "A": self.inputs[place], "B": self.matrices[place], "bias": None, "C": self.outs[place], "A_scale": None,
            "B_scale": self.scales[place], "B_zp": None, "topk_weights": self.weights, "topk_ids": self.ids,
            "sorted_token_ids": tokens, "expert_ids": owners, "num_tokens_post_padded": padded,
            "mul_routed_weight": place == 1, "top_k": self.top_k if place == 0 else 1, "config": config,
            "compute_type": tl.bfloat16, "use_fp8_w8a8": self.dtype == "fp8_w8a8",
            "use_int8_w8a8": self.dtype == "int8_w8a8", "use_int8_w8a16": False, "use_int4_w4a16": False,
            "per_channel_quant": self.job["channel"], "block_shape": self.block, "no_combine": False,
        }  # fmt: skip
        call(**fitting(call, words))

    def product(self, config: dict[str, int]) -> Any:
        """Both products, one after the other."""
        import torch

        self.run(config)
        return torch.cat([out.flatten() for out in self.outs])

    def reference(self) -> Any:
        """In float32."""
        import torch

        if self._want is None:
            wanted = []
            for place, out in enumerate(self.outs):
                given = self.inputs[place].float()
                if place == 0:
                    given = given.repeat_interleave(self.top_k, 0)
                made = torch.empty((out.shape[0] * out.shape[1], out.shape[2]), device=self.device)
                owners = self.ids.flatten()
                for expert in owners.unique().tolist():
                    mine = owners == expert
                    made[mine] = given[mine] @ self._weights(place, expert).T
                wanted.append(made * self.weights.flatten()[:, None] if place == 1 else made)
            self._want = torch.cat([made.flatten() for made in wanted])
        return self._want

    def _weights(self, place: int, expert: int) -> Any:
        matrix, scale = self.matrices[place][expert].float(), self.scales[place]
        if scale is None:
            return matrix
        if self.block:
            return matrix * spread(scale[expert], self.block, *matrix.shape)
        return matrix * scale[expert]

    def _sorted(self, block: int) -> tuple[Any, Any, Any]:
        """What moe_align_block_size gives: the tokens by expert, each expert's part filled up to whole tiles."""
        import torch

        if block not in self.sorted:
            owners = self.ids.flatten().long()
            counts = torch.bincount(owners, minlength=self.experts)
            padded = (counts + block - 1) // block * block
            starts = torch.cumsum(padded, 0) - padded
            total = int(padded.sum())
            tokens = torch.full((total,), owners.numel(), dtype=torch.int32, device=self.device)
            order = torch.argsort(owners, stable=True)
            within = (
                torch.arange(owners.numel(), device=self.device) - (torch.cumsum(counts, 0) - counts)[owners[order]]
            )
            tokens[starts[owners[order]] + within] = order.to(torch.int32)
            experts = torch.arange(self.experts, device=self.device).repeat_interleave(padded // block).to(torch.int32)
            self.sorted[block] = tokens, experts, torch.tensor([total], dtype=torch.int32, device=self.device)
        return self.sorted[block]


if __name__ == "__main__":
    sys.exit(main())
