"""What the playbooks' roles take for granted, where the program has to know it too."""

from __future__ import annotations

from typing import Any

import yaml

from orchestrator.loading.resources import data_dir


def role_defaults(role: str) -> dict[str, Any]:
    """The variables of `playbooks/roles/ROLE/defaults/main.yml`, with Ansible's expressions as they stand there."""
    text = (data_dir("playbooks") / "roles" / role / "defaults" / "main.yml").read_text("utf-8")
    defaults: dict[str, Any] = yaml.safe_load(text)
    return defaults
