"""The kernels that a plan runs, one by one on one GPU, out of the engine's own environment, against float32.

    python3 kernels.py RESULTS ORDER

RESULTS is the number of an open file: one JSON object a line. ORDER is a file; its keys are those of `KernelsOrder`
(tuning/messages.py). tune.py lies beside it. Each kernel is looked up in the engine that is installed; one that is not
there, or is called in another way, is not run, and why. A kernel that fails may take the GPU's context with it: the
next ones run in another process. Where the GPU is not of the plan's compute capability, or there is none, Triton's
kernels are compiled for it too, and the shared memory that they need is compared with what it has. Without a GPU,
small shapes run in Triton's interpreter.

L40S_CHECK_PLANT is for tests of the check: `wrong` spoils every product, `sm80` takes the tiles of an A100.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import json
import mmap
import os
import signal
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tune

PLANT = os.environ.get("L40S_CHECK_PLANT", "")
_PLACES = ("sglang.kernels.ops.attention.", "sglang.srt.layers.attention.triton_ops.")
_GEMM = ("sgl_kernel", "sglang.kernels.ops.gemm")
"""Where the versions keep their kernels: 0.5.17 and 0.5.23, then 0.4.4."""
_INTERPRET = "TRITON_INTERPRET"
MOST_INTERPRETED = 1 << 25
"""Multiplications of a kernel that the interpreter runs: some seconds."""
A100 = 80
SPLITS = 8
"""Parts of a sequence in decoding: SGLang's default."""
PREFIX = 200
"""Cached tokens of the longest sequence."""
AGAIN = 3
"""How a process ends whose next kernel needs another one."""


def main() -> int:
    """0 when all kernels were tried."""
    results = int(sys.argv[1])
    order = json.loads(Path(sys.argv[2]).read_text())
    if importlib.util.find_spec("torch") is None and importlib.util.find_spec("standin"):
        for case in order["cases"]:
            _say(results, case, verdict="not-run", text="a stand-in of the engine is installed here, without torch")
        return 0
    if order["device"] != "cuda":
        os.environ[_INTERPRET] = "1"
    import torch  # noqa: F401 - once for all processes; CUDA begins in each

    _in_processes(order, results, _run)
    if order["sm"]:
        os.environ.pop(_INTERPRET, None)
        _in_processes(order, results, _compile)
    return 0


def _say(results: int, case: dict[str, Any], **words: Any) -> None:
    os.write(results, (json.dumps({"kernel": case["id"], **words}) + "\n").encode())


def _in_processes(order: dict[str, Any], results: int, work: Callable[..., None]) -> None:
    """All kernels, in as few processes as it takes. at: the place of the one that is tried"""
    at = mmap.mmap(-1, 8)
    first, cases = 0, order["cases"]
    while first < len(cases):
        at[:] = struct.pack("<q", first)
        pid = os.fork()
        if pid == 0:
            os._exit(_one_after_the_other(order, results, work, at))
        status, late = _waited(pid, order["case_s"], at)
        now = struct.unpack("<q", at[:])[0]
        if os.WIFSIGNALED(status) and work is _run:
            ended = f"was killed by signal {os.WTERMSIG(status)}"
            text = f"it did not end within {order['case_s']:.0f} s" if late else f"its process {ended}"
            _say(results, cases[now], verdict="fails", text=text)
        first = now + 1 if status else len(cases)


def _waited(pid: int, limit_s: float, at: mmap.mmap) -> tuple[int, bool]:
    """(status, whether it was killed because one kernel took too long)"""
    now, since, late = at[:], time.monotonic(), False
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status, late
        if at[:] != now:
            now, since = at[:], time.monotonic()
        if not late and time.monotonic() - since > limit_s:
            late = True
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _one_after_the_other(order: dict[str, Any], results: int, work: Callable[..., None], at: mmap.mmap) -> int:
    for place in range(struct.unpack("<q", at[:])[0], len(order["cases"])):
        at[:] = struct.pack("<q", place)
        case = order["cases"][place]
        try:
            work(order, case, results)
        except tune.Missing as why:
            if work is _run:
                _say(results, case, verdict="not-run", text=str(why)[:600])
        except BaseException as error:  # whatever it is, it is this kernel's
            text = tune.words_of(error)
            if work is _compile:
                _say(results, case, text=f"it could not be compiled for sm_{order['sm']}: {text}")
            elif order["device"] == "cuda":
                _say(results, case, verdict="fails", text=text)
            else:
                _say(results, case, verdict="not-run", text=f"it can't be tried without a GPU: {text}")
            return AGAIN
    return 0


def _run(order: dict[str, Any], case: dict[str, Any], results: int) -> None:
    """Compare and time it."""
    import torch

    cuda = order["device"] == "cuda"
    if cuda and not torch.cuda.is_available():
        raise tune.Missing("torch sees no GPU here")
    if not cuda and _multiplications(case) > MOST_INTERPRETED:
        raise tune.Missing("there is no GPU here, and this shape is too large for Triton's interpreter")
    if not cuda and case["kernel"] == "moe" and not case["dtype"]:
        raise tune.Missing("there is no GPU here, and Triton's interpreter computes wrongly in bfloat16")
    torch.manual_seed(case["id"])
    kernel = _made(case, torch.device("cuda", 0) if cuda else torch.device("cpu"), A100 if PLANT == "sm80" else 0)
    got, want = kernel.product(), kernel.reference()
    if PLANT == "wrong" and not isinstance(kernel, _Own):
        got = got * 1.1
    error = tune.distance(got, want)
    us = 0.0
    if cuda:
        with suppress(RuntimeError):  # not everything fits into a CUDA graph
            us = tune.graph_seconds(kernel.run) * 1e6
    _say(
        results,
        case,
        verdict="right" if error <= tune.TOLERANCE else "wrong",
        error=round(error, 6) if error < float("inf") else -1.0,
        us=round(us, 2),
        text=kernel.text if cuda else "in Triton's interpreter: there is no GPU here",
    )


def _compile(order: dict[str, Any], case: dict[str, Any], results: int) -> None:
    """What its tiles need on the plan's GPU, where that is not the one here."""
    import torch

    if torch.cuda.is_available() and torch.cuda.get_device_capability() == divmod(order["sm"], 10):
        return
    used = _compiling_for(order["sm"])
    used.clear()
    tune.numbers = lambda shape, dtype, device: torch.zeros(shape, dtype=_dtype(dtype), device=device)
    kernel = _made(case, torch.device("cpu"), A100 if PLANT == "sm80" else order["sm"])
    if isinstance(kernel, _Channel):
        return  # no Triton
    kernel.run()
    needs, most = max(used, default=0), order["shared"]
    wrong = {}
    if needs > most:
        what = f"OutOfResources: out of resource: shared memory, Required: {needs}, Hardware limit: {most}"
        wrong = {"verdict": "fails", "text": f"{what} (compiled for sm_{order['sm']})"}
    if needs:
        _say(results, case, shared=needs, **wrong)


@functools.cache
def _compiling_for(sm: int) -> list[int]:
    """From now on a launch is a compilation for this GPU; the list grows by the shared memory of each."""
    import triton
    from triton.backends.compiler import GPUTarget

    used: list[int] = []
    driver = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", sm, 32),
        get_current_device=lambda: 0,
        get_current_stream=lambda *_: 0,
    )
    triton.runtime.driver.set_active(driver)
    launch = triton.runtime.jit.JITFunction.run

    def run(self: Any, *args: Any, **words: Any) -> Any:
        made = launch(self, *args, **{**words, "warmup": True})
        used.append(int(made.metadata.shared))
        return made

    triton.runtime.jit.JITFunction.run = run
    return used


def _halves(shape: tuple[int, ...], device: Any) -> Any:
    """Random numbers as the engine's attention has them; the interpreter computes wrongly in bfloat16."""
    found = tune.numbers(shape, "", device)
    return found.half() if _INTERPRET in os.environ else found


def _dtype(name: str) -> Any:
    import torch

    return {"int8_w8a8": torch.int8, "fp8_w8a8": torch.float8_e4m3fn}.get(name, torch.bfloat16)


def _multiplications(case: dict[str, Any]) -> int:
    attention = case["heads"] * (case["qk"] + case["v"]) * case["batch"] * (PREFIX + case["batch"])
    return int(attention + case["batch"] * case["n"] * case["k"] * max(1, 3 * case["top_k"]))


def _made(case: dict[str, Any], device: Any, tiles_for: int) -> Any:
    """The kernel with its input. tiles_for: the compute capability that it shall choose its tiles for, 0: its choice"""
    kind = {"linear": _Tiled, "moe": _Tiled, "channel": _Channel, "absorb": _Channel, "extend": _Attention,
            "decode": _Attention, "triton": _Own}.get(case["kernel"])  # fmt: skip
    if kind is None:
        raise tune.Missing("this check does not know how to call it")
    return kind(case, device, tiles_for)


def _found(names: tuple[str, ...], wanted: str, tiles_for: int = 0) -> Callable[..., Any]:
    """The function, whose module is told for which GPU it chooses tiles."""
    module = tune.module_of(names, wanted)
    if tiles_for:
        module.CUDA_CAPABILITY = divmod(tiles_for, 10)
        for name in {"_is_cuda", "is_cuda_available"} & vars(module).keys():
            setattr(module, name, True)
    found: Callable[..., Any] = getattr(module, wanted)
    return found


def _called(call: Callable[..., Any], words: dict[str, Any]) -> Callable[[], Any]:
    """The call with those of the words that this version takes. Raises Missing where it wants others too."""
    wanted = inspect.signature(call).parameters.values()
    lacks = [one.name for one in wanted if one.default is one.empty and one.name not in words]
    if lacks:
        raise tune.Missing(f"{call.__name__} of this version wants {', '.join(lacks)} too, which this check lacks")
    return functools.partial(call, **tune.fitting(call, words))


class _Kernel:
    """A kernel with its input. run: launch it; product: what it made; reference: the same in float32."""

    text = ""
    run: Callable[[], Any]

    def product(self) -> Any:
        """What one run returns, or writes."""
        made = self.run()
        return getattr(self, "out", made)


class _Tiled(_Kernel):
    """The engine's own Triton GEMMs by the tiles that it would take: a file's, else its built-in ones."""

    def __init__(self, case: dict[str, Any], device: Any, _: int) -> None:
        self.of = (tune.Moe if case["kernel"] == "moe" else tune.Gemm)(case, device)
        self.config = self.of.default() if case["built_in"] else self.of.present()
        self.run = functools.partial(self.of.run, self.config)
        self.product = functools.partial(self.of.product, self.config)  # type: ignore[method-assign]
        self.reference = self.of.reference
        self.text = "tile " + " ".join(str(size) for size in self.config.values())


class _Channel(_Kernel):
    """CUTLASS' GEMM with a scale for each row of both matrices, and MLA's small GEMM of each head (absorb), which is
    bfloat16 or has one scale."""

    def __init__(self, case: dict[str, Any], device: Any, _: int) -> None:
        import torch

        heads = (case["heads"],) if case["kernel"] == "absorb" else ()
        self.a = tune.numbers((*heads, case["batch"], case["k"]), case["dtype"], device)
        self.b = tune.numbers((*heads, case["n"], case["k"]), case["dtype"], device).transpose(-1, -2)
        sizes = [(1,), (1,)] if heads else [(case["batch"], 1), (case["n"], 1)]
        self.scales = [torch.rand(size, device=device) * 0.1 + 0.01 for size in sizes]
        if case["dtype"]:
            kind = case["dtype"].partition("_")[0]
            call = _found(_GEMM[::-1], "bmm_fp8") if heads else _found(_GEMM, f"{kind}_scaled_mm")
            self.run = functools.partial(call, self.a, self.b, *self.scales, torch.bfloat16)
        else:
            self.scales = [torch.ones((1, 1), device=device)] * 2
            self.run = functools.partial(torch.bmm, self.a, self.b)

    def reference(self) -> Any:
        """In float32."""
        return (self.a.float() @ self.b.float()) * self.scales[0] * self.scales[1].T


class _Attention(_Kernel):
    """Of two sequences: a prompt's new tokens behind what is cached, or one new token of each, which is cached already.

    Where keys and values share one head of another size (MLA), values are a part of the keys, as in the engine's cache,
    whose places are in no order.
    """

    def __init__(self, case: dict[str, Any], device: Any, tiles_for: int) -> None:
        import torch

        decode = case["kernel"] == "decode"
        call = _found(tuple(f"{place}{case['kernel']}_attention" for place in _PLACES),
                      f"{case['kernel']}_attention_fwd", tiles_for)  # fmt: skip
        self.new = [1, 1] if decode else [case["batch"] - case["batch"] // 3, case["batch"] // 3]
        self.cached = [PREFIX, PREFIX // 2] if case["cached"] else [0, 0]
        self.shared, self.scale = case["heads"] // case["kv_heads"], case["qk"] ** -0.5
        total, new = sum(self.cached), sum(self.new)
        self.q = _halves((new, case["heads"], case["qk"]), device)
        self.out = torch.zeros((new, case["heads"], case["v"]), dtype=self.q.dtype, device=device)
        self.places = torch.randperm(total + 7, device=device)[:total]
        self.cache, self.more = (self._keys_and_values(tokens, case) for tokens in (total + 7, 0 if decode else new))
        words = {"k_buffer": self.cache[0], "v_buffer": self.cache[1], "kv_indptr": self._starts(self.cached),
                 "kv_indices": self.places, "sm_scale": self.scale, "k_scale": 1.0, "v_scale": 1.0}  # fmt: skip
        words |= self._decode(call, case) if decode else {
            "q_extend": self.q, "k_extend": self.more[0], "v_extend": self.more[1], "o_extend": self.out,
            "qo_indptr": self._starts(self.new), "custom_mask": None, "mask_indptr": None, "is_causal": True,
            "max_len_extend": max(self.new)}  # fmt: skip
        self.run = _called(call, words)

    def _decode(self, call: Callable[..., Any], case: dict[str, Any]) -> dict[str, Any]:
        """0.4.4 keeps logits and their sums in one."""
        import torch

        apart = "attn_lse" in inspect.signature(call).parameters
        sums = torch.zeros((2, case["heads"], SPLITS), device=self.q.device)
        logits = torch.zeros((*sums.shape, case["v"] + (not apart)), device=self.q.device)
        splits = torch.full((2,), SPLITS, dtype=torch.int32, device=self.q.device) if apart else SPLITS
        return {"q": self.q, "o": self.out, "attn_logits": logits, "attn_lse": sums, "num_kv_splits": splits,
                "max_kv_splits": SPLITS}  # fmt: skip

    def _keys_and_values(self, tokens: int, case: dict[str, Any]) -> tuple[Any, Any]:
        keys = _halves((tokens, case["kv_heads"], case["qk"]), self.q.device)
        if case["qk"] > case["v"] and case["kv_heads"] == 1:
            return keys, keys[..., : case["v"]]
        return keys, _halves((tokens, case["kv_heads"], case["v"]), self.q.device)

    def _starts(self, lengths: list[int]) -> Any:
        import torch

        return torch.tensor([0, lengths[0], sum(lengths)], dtype=torch.int32, device=self.q.device)

    def reference(self) -> Any:
        """In float32, a sequence at a time."""
        import torch

        made, token, place = [], 0, 0
        for new, cached in zip(self.new, self.cached, strict=True):
            here = self.places[place : place + cached]
            both = (torch.cat([cache[here], more[token : token + new]])
                    for cache, more in zip(self.cache, self.more, strict=True))  # fmt: skip
            keys, values = (one.float().repeat_interleave(self.shared, 1).transpose(0, 1) for one in both)
            score = self.q[token : token + new].float().transpose(0, 1) @ keys.transpose(1, 2) * self.scale
            ahead = torch.ones(score.shape[1:], device=score.device).triu(keys.shape[1] - new + 1).bool()
            made.append((score.masked_fill(ahead, float("-inf")).softmax(-1) @ values).transpose(0, 1))
            token, place = token + new, place + cached
        return torch.cat(made)


class _Own(_Kernel):
    """A block-scaled FP8 GEMM of this check itself: what Triton and the GPU are able to, whatever the engine is."""

    def __init__(self, case: dict[str, Any], device: Any, tiles_for: int) -> None:
        import torch

        rows, self.n, self.k, (block, _) = case["batch"], case["n"], case["k"], case["block"]
        self.block = [block, block]
        self.a, self.b = (tune.numbers((size, self.k), "fp8_w8a8", device) for size in (rows, self.n))
        self.scales = [torch.rand((size, self.k // block), device=device) + 0.01 for size in (rows, self.n // block)]
        self.out = torch.zeros((rows, self.n), dtype=torch.bfloat16, device=device)
        deep = 2 * block if PLANT == "wrong" else block  # a tile that crosses the scales' blocks
        high, wide, deep, stages = (64, block, deep, 3) if tiles_for != A100 else (128, 256, 128, 5)
        self.run = functools.partial(_own_kernel()[rows // high, self.n // wide], self.a, self.b, *self.scales,
                                     self.out, self.n, self.k, block=block, high=high, wide=wide, deep=deep,
                                     num_stages=stages)  # fmt: skip

    def reference(self) -> Any:
        """In float32."""
        a = self.a.float() * self.scales[0].repeat_interleave(self.block[1], 1)
        return a @ (self.b.float() * tune.spread(self.scales[1], self.block, self.n, self.k)).T


def _own_kernel() -> Any:
    """Made when it is needed: whether Triton interprets is decided then."""
    global tl  # noqa: PLW0603 - where Triton looks for it
    try:
        import triton
        import triton.language as tl
    except ImportError:
        raise tune.Missing("there is no Triton here") from None

    @triton.jit
    def scaled_product(a, b, a_scale, b_scale, out, n, k,  # type: ignore[no-untyped-def]
                       block: tl.constexpr, high: tl.constexpr, wide: tl.constexpr, deep: tl.constexpr):  # fmt: skip
        rows = tl.program_id(0) * high + tl.arange(0, high)
        columns = tl.program_id(1) * wide + tl.arange(0, wide)
        depth = tl.arange(0, deep)
        total = tl.zeros((high, wide), dtype=tl.float32)
        for begin in range(0, k, deep):
            left = tl.load(a + rows[:, None] * k + (begin + depth)[None, :])
            right = tl.load(b + columns[None, :] * k + (begin + depth)[:, None])
            place = begin // block
            scale = tl.load(a_scale + rows * (k // block) + place)
            other = tl.load(b_scale + (columns // block) * (k // block) + place)
            total += tl.dot(left, right) * scale[:, None] * other[None, :]
        tl.store(out + rows[:, None] * n + columns[None, :], total.to(tl.bfloat16))

    return scaled_product


if __name__ == "__main__":
    sys.exit(main())
