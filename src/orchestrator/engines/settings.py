"""Settings that a person may compare, by names that are the same for every version, in a version's own flags. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from orchestrator.engines.engine import Engine
from orchestrator.protocol.errors import InputError

Words = tuple[str, ...]
DEFAULTS: Mapping[str, str] = {"graphs": "on", "draft": "off", "kv": "auto", "prefill-graphs": "on"}
"""What the plan's own choice is called; a setting without one has no name for it."""
KV_FP8 = "fp8_e4m3"
"""What `kv=fp8` is: the format that the checkpoints have too, with 3 bits of mantissa."""
DRAFTS = {"mtp": (1, 2), "mtp3": (3, 4)}
"""Steps and tokens of a draft by the checkpoint's own prediction layer."""
ASK_FOR_DRAFTS = ("--speculative-algorithm", "--speculative-config")
"""Flags of SGLang and vLLM, whoever wrote them."""
NCCL_TRIALS: Mapping[str, Mapping[str, str]] = {
    "as planned": {},
    "ring": {"NCCL_ALGO": "Ring"},
    "tree": {"NCCL_ALGO": "Tree"},
    "LL": {"NCCL_PROTO": "LL"},
    "LL128": {"NCCL_PROTO": "LL128"},
    "simple": {"NCCL_PROTO": "Simple"},
    "4 channels": {"NCCL_MIN_NCHANNELS": "4", "NCCL_MAX_NCHANNELS": "4"},
    "16 channels": {"NCCL_MIN_NCHANNELS": "16", "NCCL_MAX_NCHANNELS": "16"},
    "no P2P": {"NCCL_P2P_DISABLE": "1"},
}
"""What of NCCL's own choices is tried, by a name; of its documented variables those that decide about an all-reduce.
The last one goes through the host's memory where GPUs of a node would reach each other's by CUDA IPC over PCIe."""
SAME_TEXT = frozenset(("graphs", "prefill-graphs", "chunk", "draft"))
"""Settings that leave the arithmetic as it is: with any other one, accepted answers may rightly differ."""


def setting_flags(engine: Engine, name: str, value: str) -> Words:
    """The words of the command line; () where the value is the plan's own choice.

    Raises InputError for a name that is not known, and for what this version has no flag for. That the version takes
    the value is checked with the rest of the command line.
    """
    made = _SETTINGS.get(name)
    if made is None:
        raise _wrong(name, value, f"no setting is called {name!r}", f"one of: {', '.join(SETTINGS)}")
    return () if value == DEFAULTS.get(name) else made(engine, value)


def _graphs(engine: Engine, value: str) -> Words:
    if value == "off":
        return (_known(engine, "graphs", value, "--disable-decode-cuda-graph", "--disable-cuda-graph"),)
    return (
        engine.names.cuda_graph_max_bs,
        _number("graphs", value, "on, off, or the largest batch, a number from 1 on"),
    )


def _prefill_graphs(engine: Engine, value: str) -> Words:
    if value != "off":
        raise _no_value("prefill-graphs", value, "on or off")
    spellings = ("--disable-prefill-cuda-graph", "--disable-piecewise-cuda-graph")
    return (_known(engine, "prefill-graphs", value, *spellings),)


def _kv(engine: Engine, value: str) -> Words:
    kind = KV_FP8 if value == "fp8" else value
    return (_known(engine, "kv", value, "--kv-cache-dtype"), kind)


def _attention(engine: Engine, value: str) -> Words:
    return (_known(engine, "attention", value, "--attention-backend"), value)


def _chunk(engine: Engine, value: str) -> Words:
    flag = _known(engine, "chunk", value, "--chunked-prefill-size")
    return (flag, _number("chunk", value, "a number from 1 on, of tokens that are prefilled at once"))


def _draft(engine: Engine, value: str) -> Words:
    """From SGLang 0.5 on the layer is read from the checkpoint itself; 0.4.4 wants it exported into another one
    (--speculative-draft-model-path). vLLM calls the method mtp, whatever the model (vllm/config/speculative.py)."""
    if value not in DRAFTS:
        raise _no_value("draft", value, f"off, {' or '.join(DRAFTS)}")
    if engine.version.startswith("0.4"):
        what = f"{engine.product} {engine.version} can't draft with the checkpoint's own layer"
        raise _wrong("draft", value, what, "use a stack with SGLang 0.5: --stack sglang-0.5.23")
    steps, tokens = DRAFTS[value]
    if "--speculative-config" in engine.flags():
        config = {"method": "mtp", "num_speculative_tokens": steps}
        return ("--speculative-config", json.dumps(config, separators=(",", ":")))
    flag = _known(engine, "draft", value, "--speculative-algorithm")
    numbers = {
        "--speculative-num-steps": steps,
        "--speculative-eagle-topk": 1,
        "--speculative-num-draft-tokens": tokens,
    }
    return (flag, "EAGLE", *(word for name, number in numbers.items() for word in (name, str(number))))


_SETTINGS: Mapping[str, Callable[[Engine, str], Words]] = {
    "graphs": _graphs,
    "draft": _draft,
    "chunk": _chunk,
    "kv": _kv,
    "attention": _attention,
    "prefill-graphs": _prefill_graphs,
}
SETTINGS = tuple(_SETTINGS)


def _known(engine: Engine, name: str, value: str, *spellings: str) -> str:
    flags = engine.flags()
    spelling = next((each for each in spellings if each in flags), None)
    if spelling is None:
        what = f"{engine.product} {engine.version} has no flag for it"
        raise _wrong(name, value, what, f"leave {name} out, or use another stack with --stack")
    return spelling


def _number(name: str, value: str, wanted: str) -> str:
    if not value.isdecimal() or int(value) < 1:
        raise _no_value(name, value, wanted)
    return value


def _no_value(name: str, value: str, wanted: str) -> InputError:
    return _wrong(name, value, f"found {value!r}, wanted {wanted}", f"correct it, or leave {name} out")


def _wrong(name: str, value: str, what: str, fix: str) -> InputError:
    return InputError(what, where=f"--vary {name}={value}", fix=fix)
