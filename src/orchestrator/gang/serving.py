"""Which models are served behind the router, and which nobody would serve once a gang is out. Pure.

A request names a model and is answered by the gangs that serve it alone: another model's gangs take nothing over.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

Serving = Mapping[str, str]
"""The model of everybody that the router sends requests to: by a gang's name, or by the address of one that the
inventory does not have; '' where the model is unknown, which counts as the same."""


def lost_models(leaving: Collection[str], serving: Serving) -> tuple[str, ...]:
    """Models that nobody serves once all of these are out; '' for one that is unknown."""
    left = {model for name, model in serving.items() if name not in leaving}
    gone = {serving[name] for name in leaving if name in serving}
    return tuple(sorted(model for model in gone if not _is_among(model, left)))


def _is_among(model: str, others: Collection[str]) -> bool:
    return bool(others) and (model == "" or model in others or "" in others)


def alone(names: Iterable[str], serving: Serving) -> tuple[str, ...]:
    """Those of these gangs that nobody takes the requests from while they are out, one at a time."""
    return tuple(name for name in names if lost_models([name], serving))


def model_words(models: Iterable[str]) -> str:
    """'gpt-oss-120b', 'a, b', or 'this model' where it is unknown."""
    return ", ".join(model or "this model" for model in models)
