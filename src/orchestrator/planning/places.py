"""Where things are on a node: the stack's environment, the state directory, the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.model.inventory import NodeSpec
from orchestrator.model.profile import ModelProfile, Stack
from orchestrator.planning.digest import short_digest
from orchestrator.planning.options import HostFacts

_ROOT_STATE = "/var/lib/l40s-deploy"


def venv(node: NodeSpec, stack: str) -> str:
    """The virtual environment that holds the engine."""
    return node.venv or f"/opt/l40s/venvs/{stack}"


def vocabularies(venv: str) -> str:
    """What tokenizers would download, where a bundle brought it."""
    return f"{venv}/vocabularies"


def state_dir(node: NodeSpec, host: HostFacts) -> str:
    """Where runs and caches are: l40s_state_dir, else root's or the user's place for state."""
    if node.state_dir:
        return node.state_dir.rstrip("/") or "/"
    root = host.user == "root" if host.user else (node.reach.become and node.reach.become_user == "root")
    if root or not host.home:
        return _ROOT_STATE
    return f"{host.home}/.local/state/l40s-deploy"


def gang_dir(state: str, gang: str) -> str:
    """Where a node keeps one gang's runs and secrets (node/files.py)."""
    return f"{state}/gangs/{gang}"


def presharded(node: NodeSpec, profile: ModelProfile, stack: Stack, degrees: str, host: HostFacts) -> str:
    """The folder of per-rank weight files for this checkpoint, stack and layout; '' where none is wanted."""
    if not node.presharded:
        return ""
    known = checkpoint_digest(host.config, host.weights) or UNREAD
    return f"{node.presharded.rstrip('/')}/{profile.directory}-{stack.name}-{degrees.replace(' x ', '-')}-{known}"


UNREAD = "unread"
"""In place of a digest in the name of a folder of per-rank files: no checkpoint was seen."""


def checkpoint_digest(config: Mapping[str, Any] | None, weights: str) -> str:
    """What tells checkpoints apart: config.json and a digest of the weight files; '' where one was not read."""
    return short_digest([config, weights]) if config is not None and weights else ""


def may_be_of(folder: str, config: Mapping[str, Any] | None, weights: str) -> bool:
    """Whether a folder of per-rank files is of this checkpoint, as far as its name tells."""
    known = checkpoint_digest(config, weights)
    return not known or folder.endswith(f"-{known}") or named_by_config_alone(folder, config)


def named_by_config_alone(folder: str, config: Mapping[str, Any] | None) -> bool:
    """Whether a folder of per-rank files has the name that earlier versions gave it for this config.json, with
    whatever weights beside it."""
    return config is not None and folder.endswith(f"-{short_digest(config)}")


def presharded_key(stack: Stack, folder: str) -> str:
    """What per-rank files are for: the engine's version, and all that the folder's name says of checkpoint, stack and
    layout. The engine's own key has neither its version nor the checkpoint in it."""
    return f"{stack.dialect} {stack.engine_version} {folder.rpartition('/')[2]}"


def model_path(node: NodeSpec, profile: ModelProfile) -> str:
    """The checkpoint's directory on this node."""
    return f"{node.model_root.rstrip('/')}/{profile.directory}"
