"""What a plan would change of what runs, and whether that takes a restart."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from orchestrator.model.per_node import collected
from orchestrator.model.secret_text import HIDDEN, is_secret, shown_env, shown_flags
from orchestrator.protocol.staging import APART, StagingRequest

_OF_ONE_RUN = ("run_id", "plan_id", "asked", *APART, "launch_sha256", "state_dir", "gang", "argv", "command", "flags",
               "env", "watch", "network", "layout", "graph_batch")  # fmt: skip
"""Keys that differ from run to run without any meaning, and those that are compared word by word."""


@dataclass(frozen=True, slots=True)
class SettingChange:
    """One setting that differs; None where it is missing. Secrets are shown as such."""

    node: str
    name: str
    was: str | None
    will: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GangDiff:
    """What `up` would change on one gang.

    running: plan id of what was staged last, '' where nothing was; state: the gang's, as status says it
    """

    name: str
    state: str
    running: str
    changes: tuple[SettingChange, ...]

    @property
    def restart(self) -> bool:
        """An engine reads all of this once, when it starts."""
        return bool(self.changes)


def words_of(command: Sequence[str], flags: Iterable[Sequence[str]]) -> dict[str, str]:
    """Flags with their values as one text, and the command before them."""
    return {"command": " ".join(command), **{flag: " ".join(values) for flag, *values in flags}}


def changes(
    was: Mapping[str, StagingRequest],
    will: Mapping[str, StagingRequest],
    public: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> tuple[SettingChange, ...]:
    """Between the requests that were staged and those that would be, by node name; so is public: variables that may
    be shown beside those that are documented."""
    return tuple(
        change
        for node in dict.fromkeys((*was, *will))
        for change in _of_node(node, was.get(node), will.get(node), public.get(node, ()))
        if not (change.name == "engine_user" and change.will is None)  # the node knows who called sudo
    )


def by_change(changes: Sequence[SettingChange]) -> dict[tuple[str, str | None, str | None], str]:
    """Each change once as (name, was, will), with the nodes concerned, as text."""
    groups = collected(((change.name, change.was, change.will), change.node) for change in changes)
    return {change: ", ".join(nodes) for change, nodes in groups.items()}


def side(value: str | None) -> str:
    """One side of a change as text."""
    return "not there" if value is None else value or "set"


def summary(changes: Sequence[SettingChange], most: int = 3) -> str:
    """The first changes in one sentence, and how many more there are."""
    parts = [f"{nodes}: {name}: {side(was)} -> {side(will)}" for (name, was, will), nodes in by_change(changes).items()]
    more = f"; and {len(parts) - most} more" if len(parts) > most else ""
    return "; ".join(parts[:most]) + more


def _of_node(
    node: str, was: StagingRequest | None, will: StagingRequest | None, public: Collection[str]
) -> Iterator[SettingChange]:
    then, now = _settings(was), _settings(will)
    before, after = _settings(was, public), _settings(will, public)
    for name in dict.fromkeys((*then, *now)):
        if then.get(name) != now.get(name):
            yield SettingChange(node, name, before.get(name), after.get(name))


def _settings(request: StagingRequest | None, public: Collection[str] | None = None) -> dict[str, str]:
    """All settings of a node, by the name that users know. public: None for the values as they are"""
    if request is None:
        return {}
    env, flags = request.env, request.flags
    if public is not None:
        env, flags = shown_env(env, public), shown_flags(flags)
    settings = {**env, **words_of(request.command, flags)}
    for key, value in request.as_json().items():
        if key not in _OF_ONE_RUN and value not in (None, "", [], {}):
            text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
            settings[key] = HIDDEN if public is not None and is_secret(key, text) else text
    return settings
