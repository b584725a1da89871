"""Where things lie on a node: the stack's environment, the state directory, the checkpoint."""

from __future__ import annotations

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
    """Where runs and caches lie: l40s_state_dir, else root's or the user's place for state."""
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
    """The folder of per-rank weight files for this checkpoint, stack and layout; '' where none is wanted.

    The checkpoint is known by its config.json, which a re-blocked or re-quantised one changes; weights that somebody
    exchanged below the same config.json are not noticed.
    """
    if not node.presharded:
        return ""
    known = short_digest(host.config) if host.config is not None else "unread"
    return f"{node.presharded.rstrip('/')}/{profile.directory}-{stack.name}-{degrees.replace(' x ', '-')}-{known}"


def presharded_key(stack: Stack, folder: str) -> str:
    """What per-rank files are for: the engine's version, and all that the folder's name says of checkpoint, stack and
    layout. The engine's own key has neither its version nor the checkpoint in it."""
    return f"{stack.dialect} {stack.engine_version} {folder.rpartition('/')[2]}"


def model_path(node: NodeSpec, profile: ModelProfile) -> str:
    """The checkpoint's directory on this node."""
    return f"{node.model_root.rstrip('/')}/{profile.directory}"
