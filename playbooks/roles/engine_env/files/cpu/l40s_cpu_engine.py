"""A plugin of SGLang's (entry point group sglang.srt.plugins): DeepSeek's attention on the torch_native backend.

SGLang 0.5.23 asks a table in srt/models/deepseek_common/attention_backend_handler.py which form of attention an
MLA model takes on a backend. torch_native, the one that runs on any CPU, is not in it and falls to triton's entry,
which prefills in the unabsorbed form: torch_native's KV cache doesn't hold what that form reads. The absorbed
form, which the table's own helper chooses, works for prefill and decode alike.
"""

from __future__ import annotations


def register() -> None:
    """Called by SGLang in every process it starts."""
    from sglang.srt.models.deepseek_common import attention_backend_handler as handler

    handler.AttentionBackendRegistry.register("torch_native", handler._dispatch_mla_subtype)
