"""A plugin of SGLang's for tests: it makes an engine slow, its answers wrong, or its start fail, by a variable each."""

from __future__ import annotations

import importlib
import os
import time
from typing import Any


def register() -> None:
    """Called by SGLang in every process it starts.

    PLANTED_SLEEP_S: seconds before each token; PLANTED_WRONG: A,B, ids of tokens: B is said instead of A;
    PLANTED_NO_START: any text
    """
    sampler = importlib.import_module("sglang.srt.layers.sampler").Sampler
    sleep_s = float(os.environ.get("PLANTED_SLEEP_S", "0"))
    meant, said = map(int, os.environ.get("PLANTED_WRONG", "-1,-1").split(","))
    sampled = sampler.forward

    def forward(self: Any, *args: Any, **named: Any) -> Any:
        tokens = sampled(self, *args, **named)
        time.sleep(sleep_s)
        tokens[tokens == meant] = said
        return tokens

    def refused(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA out of memory. Planted.")

    sampler.forward = forward
    if "PLANTED_NO_START" in os.environ:
        sampler.__init__ = refused
