"""Ansible module: write down what is about to be made on this host, so that it can be taken back."""

from __future__ import annotations

import hashlib
import os
import pwd
import tempfile
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: l40s_record
short_description: Record what prepare is about to make
description:
  - Adds lines to a list on the host, each a kind and a name. What is there already was made by somebody else, or is
    recorded already, and is not added.
  - Kinds are C(file) (always ours), C(folder) (removed when empty), C(tree) (removed with all that is in it),
    C(user), C(package) and C(module) (the caller has seen that it is missing), C(sysctl) as NAME=OLD VALUE, and
    C(image) as PROGRAM NAME.
options:
  path:
    description: The list.
    type: path
    default: /etc/l40s-deploy/prepared
  makes:
    description: What is about to be made, as C(kind name).
    type: list
    elements: str
    default: []
  wrote:
    description: Files that were just written. A copy is kept beside the list, so that lines of somebody else are known.
    type: list
    elements: str
    default: []
author:
  - l40s-deploy
"""

EXAMPLES = r"""
- name: Record the user
  l40s_record:
    makes: ["user l40s", "folder /opt/l40s"]
"""

RETURN = r"""
added:
  description: The lines that were added.
  returned: always
  type: list
  elements: str
"""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "default": "/etc/l40s-deploy/prepared"},
            "makes": {"type": "list", "elements": "str", "default": []},
            "wrote": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    path = module.params["path"]
    before = _lines(path)
    added = [line for line in module.params["makes"] if _is_new(line, before)]
    after = before + added
    if added and not module.check_mode:
        _write(module, path, after)
    kept = [name for name in module.params["wrote"] if not module.check_mode and _keep(module, path, name)]
    diff = {"before": _text(before), "after": _text(after), "before_header": path, "after_header": path}
    module.exit_json(changed=bool(added or kept), added=added, diff=diff)


def _keep(module: AnsibleModule, path: str, name: str) -> bool:
    """Keep a copy of a file of ours that is not kept already; whether that was needed."""
    text = Path(name).read_text(encoding="utf-8", errors="surrogateescape")
    copy = Path(path).parent / "wrote" / hashlib.sha256(name.encode()).hexdigest()[:32]
    if copy.exists() and copy.read_text(encoding="utf-8", errors="surrogateescape") == text:
        return False
    _replace(module, str(copy), text, mode=0o600)
    return True


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []


def _is_new(line: str, known: list[str]) -> bool:
    if line in known:
        return False
    kind, _, name = line.partition(" ")
    if kind in ("folder", "tree"):
        return not os.path.lexists(name)
    if kind == "user":
        return not _user_exists(name)
    if kind == "sysctl":
        return not any(other.startswith(line.partition("=")[0] + "=") for other in known)
    return True


def _user_exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _write(module: AnsibleModule, path: str, lines: list[str]) -> None:
    _replace(module, path, _text(lines), mode=0o644)


def _replace(module: AnsibleModule, path: str, text: str, *, mode: int) -> None:
    Path(path).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=module.tmpdir)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    Path(temporary).chmod(mode)
    module.atomic_move(temporary, path)


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    main()
