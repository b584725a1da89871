"""Ansible module: which packages of a lock a virtual environment lacks. Reads directory names only."""

from __future__ import annotations

import re
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: l40s_locked
short_description: Which packages of a lock a virtual environment lacks
description:
  - Compares the lines C(name==version) with the names of the C(*.dist-info) directories. Runs no pip: takes no time.
options:
  path:
    description: The virtual environment.
    type: path
    required: true
  lock:
    description: The lock's text. Lines with a marker are passed over.
    type: str
    required: true
author:
  - l40s-deploy
"""

EXAMPLES = r"""
- name: See what is missing
  l40s_locked:
    path: /opt/l40s/venvs/sglang-0.5.23
    lock: "{{ lookup('ansible.builtin.file', 'sglang-0.5.23.lock') }}"
"""

RETURN = r"""
missing:
  description: The lock's lines whose package is missing or has another version.
  returned: always
  type: list
  elements: str
"""

PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;#\\]+)(?P<rest>.*)")


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "lock": {"type": "str", "required": True, "no_log": False},
        },
        supports_check_mode=True,
    )
    there = _installed(module.params["path"])
    missing = []
    for line in module.params["lock"].splitlines():
        pin = PIN.match(line.strip())
        if pin and ";" not in pin["rest"] and there.get(_plain(pin[1])) != pin[2]:
            missing.append(f"{pin[1]}=={pin[2]}")
    module.exit_json(changed=False, missing=missing)


def _installed(path: str) -> dict[str, str]:
    folders = Path(path).glob("lib/python3*/site-packages/*.dist-info")
    names = (folder.stem.rpartition("-") for folder in folders)
    return {_plain(name): version for name, _, version in names}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main()
