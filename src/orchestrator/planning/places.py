"""Where things are on a node: the stack's environment, the state directory, the checkpoint."""

from __future__ import annotations

from orchestrator.model.inventory import NodeSpec
from orchestrator.model.profile import ModelProfile
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


def model_path(node: NodeSpec, profile: ModelProfile) -> str:
    """The checkpoint's directory on this node."""
    return f"{node.model_root.rstrip('/')}/{profile.directory}"
