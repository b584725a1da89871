"""`--draft`: speculative decoding by the checkpoint's own prediction layer, and where it can't be. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping

from orchestrator.engines.engine import Engine
from orchestrator.engines.settings import ASK_FOR_DRAFTS, DRAFTS, setting_flags
from orchestrator.model.finding import Finding
from orchestrator.model.profile import ModelProfile
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.planned import Layout
from orchestrator.protocol.severity import Severity

OFF = "off"
CHOICES = (OFF, *DRAFTS)
UNPROVEN = "DRAFT-UNPROVEN"
_TOKENS_A_STEP = re.compile(r'"num_speculative_tokens"\s*:\s*([1-9]\d{0,3})\b')
_OWN_MODEL = ("--speculative-draft-model-path", "--spec-model")
"""Another checkpoint drafts then."""
_FROM_ELSEWHERE = ("NGRAM", "STANDALONE", "LOOKAHEAD")
"""Algorithms that need no prediction layer."""
_CANT_DRAFT = ("torch_native", "flex_attention")
"""Kinds of attention that any GPU, or a CPU, has, without a part for drafts."""


def draft_words(engine: Engine, profile: ModelProfile, value: str) -> tuple[str, ...]:
    """The engine's flags for `--draft VALUE`; () for off.

    Raises InputError for a version that can't, a checkpoint without the layer, and one whose layer nobody has run.
    """
    if value == OFF:
        return ()
    where, other = f"--draft {value}", "leave --draft out, or choose another checkpoint of the model"
    if why := lacking(profile) or unproven(profile):
        raise InputError(why, where=where, fix=other)
    try:
        return setting_flags(engine, "draft", value)
    except InputError as wrong:
        raise InputError(wrong.what, where=where, fix=wrong.fix) from None


def lacking(profile: ModelProfile) -> str:
    """Why the checkpoint itself can't draft, in words; '' where it can."""
    if profile.dimensions.num_nextn_predict_layers:
        return ""
    return "the checkpoint has no prediction layer to draft with (num_nextn_predict_layers)"


def unproven(profile: ModelProfile) -> str:
    """Why nobody knows that the checkpoint's layer is right, in words; '' where it is known. The engine's own flags
    after -- may try it."""
    if profile.quantisation == "int8-channel":
        return f"{profile.name}: nobody is known to have run the prediction layer of a checkpoint in INT8"
    return ""


def refuse(
    engine: Engine, profile: ModelProfile, layout: Layout, flags: Mapping[str, tuple[str, ...]], where: str
) -> None:
    """Raises InputError where a command line, whoever wrote it, asks for drafts that this engine refuses at its start.

    flags: as `planning.engine_command.asked` gives them
    """
    if not any(flag in flags for flag in ASK_FOR_DRAFTS):
        return
    algorithm = "".join(flags.get("--speculative-algorithm", ())).upper()
    own = not any(flag in flags for flag in _OWN_MODEL) and algorithm not in _FROM_ELSEWHERE
    mtp = "mtp" in "".join(flags.get("--speculative-config", ())) or bool(algorithm)
    against = [lacking(profile)] if own and mtp else []
    against += [*against_layout(engine, layout, flags), against_attention(engine, flags)]
    if reasons := list(filter(None, against)):
        raise InputError(
            f"{profile.name} can't draft at {layout}: {'; '.join(reasons)}",
            where=where,
            fix="leave --draft out (or the flags that ask for it), or choose what the engine can draft with: a layout"
            " without pipeline stages, --attention-backend triton",
        )


def findings(
    engine: Engine, flags: Mapping[str, tuple[str, ...]], profile: ModelProfile, gang: str
) -> Iterator[Finding]:
    """What is known against drafts that this engine starts with: several tokens a step on vLLM, as they were seen on a
    CPU (docs/proven.md). flags: as for `refuse`"""
    steps = _TOKENS_A_STEP.search("".join(flags.get("--speculative-config", ())))
    if engine.product != "vLLM" or steps is None or int(steps[1]) == 1:
        return
    chosen = f"--model {shlex.quote(profile.name)} --gang {gang}"
    yield Finding(
        id=UNPROVEN,
        severity=Severity.NOTE,
        node="",
        title=f"vLLM's drafts of {steps[1]} tokens a step are not proven: with three, one of three runs had a"
        " wrong token and one no answer, while 520 answers asked of it directly were right (vLLM 0.32.0 on a CPU, a"
        " tiny model)",
        effect="text may differ from what it is without drafts; on a GPU nobody has compared it here",
        fix=f"one token a step was right: `l40s-deploy up {chosen} --draft mtp`; or compare: while it serves without"
        f" drafts `l40s-deploy golden accept {gang}`, then `l40s-deploy up {chosen} --draft mtp3 --gate --replace`",
    )


def against_layout(engine: Engine, layout: Layout, flags: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """SGLang 0.5: arg_groups/validation_hook.py (check_pipeline_parallel_compat)."""
    prefill_only = flags.get("--disaggregation-mode") == ("prefill",)
    if layout.pipeline_parallel > 1 and not prefill_only and engine.product == "SGLang":
        yield "this engine drafts with pipeline stages on prefill-only servers alone"


def against_attention(engine: Engine, flags: Mapping[str, tuple[str, ...]]) -> str:
    """Why the kind of attention that is asked for can't draft; '' where it can, or where the engine chooses.

    SGLang 0.5: speculative/draft_utils.py ("EAGLE is not supported in attention backend torch_native"), seen on CPU.
    """
    kind = "".join(flags.get("--attention-backend", ()))
    if engine.product != "SGLang" or kind not in _CANT_DRAFT:
        return ""
    return f"this engine has no drafts in attention backend {kind}"
