"""Ansible module: remove files and users that prepare recorded, and nothing that somebody else has put there since."""

from __future__ import annotations

import hashlib
import pwd
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: l40s_take_back
short_description: Remove recorded files and users
description:
  - A file is removed where it is as prepare wrote it (l40s_record keeps a copy). Lines that somebody has added stay, in
    the file, without ours. A file that prepare's lines have been changed in stays as it is.
  - A user is removed with its home where nothing is in the home but the skeleton, caches and the
    agent's runs. Else both stay.
options:
  files:
    description: Recorded files.
    type: list
    elements: str
    default: []
  users:
    description: Recorded users.
    type: list
    elements: str
    default: []
  copies:
    description: Where l40s_record keeps what was written.
    type: path
    default: /etc/l40s-deploy/wrote
  skeleton:
    description: What a new home begins with.
    type: path
    default: /etc/skel
author:
  - l40s-deploy
"""

EXAMPLES = r"""
- name: Remove what was made
  l40s_take_back:
    files: [/etc/security/limits.d/l40s.conf]
    users: [l40s]
"""

RETURN = r"""
left:
  description: What stays, each a sentence.
  returned: always
  type: list
  elements: str
"""

OURS = (".cache", ".triton", ".nv", ".local/state/l40s-deploy")
"""Caches, which an engine makes again, and the agent's runs and logs."""
SHOWN = 5
IN_USE = 8
"""Exit status of userdel for a user who has processes (userdel(8))."""
LEAVES_S = 15.0


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "files": {"type": "list", "elements": "str", "default": []},
            "users": {"type": "list", "elements": "str", "default": []},
            "copies": {"type": "path", "default": "/etc/l40s-deploy/wrote"},
            "skeleton": {"type": "path", "default": "/etc/skel"},
        },
        supports_check_mode=True,
    )
    left: list[str] = []
    changed = False
    for name in module.params["files"]:
        changed |= _file(Path(name), Path(module.params["copies"]), left, dry=module.check_mode)
    for name in module.params["users"]:
        changed |= _user(module, name, left)
    module.exit_json(changed=changed, left=left)


def _file(path: Path, copies: Path, left: list[str], *, dry: bool) -> bool:
    """Whether it was, or would be, removed or changed. A link of ours led into a stack, which is removed by then."""
    if path.is_symlink():
        if path.exists() and not dry:
            left.append(f"the link {path} stays, since it leads to {path.resolve()}")
            return False
        if not dry:
            path.unlink()
        return True
    try:
        now = path.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return False
    except OSError as error:
        left.append(f"{path} stays, since it can't be read: {error.strerror}")
        return False
    rest = _without_ours(now, copies / hashlib.sha256(str(path).encode()).hexdigest()[:32])
    if rest is None:
        left.append(f"{path} stays as it is, since lines of ours were changed in it: remove it by hand")
        return False
    if not dry and not rest:
        path.unlink()
    elif not dry:
        draft = path.with_name(f".{path.name}.l40s")
        draft.write_text("".join(rest), encoding="utf-8", errors="surrogateescape")
        shutil.copystat(path, draft)
        draft.replace(path)
    if rest:
        left.append(f"{path} stays with the {len(rest)} lines that somebody has added")
    return True


def _without_ours(now: str, copy: Path) -> list[str] | None:
    """The lines that are not ours; None where one of ours is not there. All are ours where no copy was kept (by an
    older release)."""
    try:
        ours = Counter(copy.read_text(encoding="utf-8", errors="surrogateescape").splitlines(keepends=True))
    except OSError:
        return []
    rest = []
    for line in now.splitlines(keepends=True):
        if ours[line]:
            ours[line] -= 1
        else:
            rest.append(line)
    return None if +ours else rest


def _user(module: AnsibleModule, name: str, left: list[str]) -> bool:
    try:
        home = Path(pwd.getpwnam(name).pw_dir)
    except KeyError:
        return False
    others = _foreign(home, Path(module.params["skeleton"]))
    if others:
        shown = ", ".join(others[:SHOWN]) + (" and more" if len(others) > SHOWN else "")
        left.append(f"the user {name} stays, and its home {home} with what prepare did not put there: {shown}")
        return False
    if module.check_mode:
        return True
    done = _userdel(name)
    if done.returncode:
        left.append(f"the user {name} stays: {done.stderr.strip()}")
        return False
    if home.is_dir() and not home.is_symlink():
        shutil.rmtree(home)
    return True


def _userdel(name: str) -> subprocess.CompletedProcess[str]:
    """Who has just logged out is there yet: systemd stops a user's manager 10 s later (UserStopDelaySec)."""
    until = time.monotonic() + LEAVES_S
    while True:
        done = subprocess.run(["userdel", "--", name], capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != IN_USE or time.monotonic() > until:
            return done
        time.sleep(1.0)


def _foreign(home: Path, skeleton: Path) -> list[str]:
    """What is in a home and neither an unchanged part of the skeleton nor ours, by its path below the home, sorted."""
    if home.is_symlink() or home == Path("/"):
        return [str(home)]
    return sorted(_strangers(home, "", skeleton)) if home.is_dir() else []


def _strangers(home: Path, folder: str, skeleton: Path) -> Iterator[str]:
    for path in (home / folder).iterdir():
        name = path.relative_to(home).as_posix()
        if name in OURS or _same(path, skeleton / name):
            continue
        if any(one.startswith(f"{name}/") for one in OURS) and path.is_dir() and not path.is_symlink():
            yield from _strangers(home, name, skeleton)
        else:
            yield name


def _same(one: Path, other: Path) -> bool:
    if one.is_symlink() or not one.is_file() or not other.is_file():
        return False
    return one.read_bytes() == other.read_bytes()


if __name__ == "__main__":
    main()
