"""Roles through the real Ansible on this machine, with stand-ins for apt-get, docker and the list."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import slack

from orchestrator.hosts.steps import runner
from orchestrator.hosts.steps.runner import HostEvent, HostResult, run_playbook
from orchestrator.model.per_node import PerNode

PLAYBOOKS = Path(__file__).resolve().parents[3] / "playbooks"

PLAY = """
- hosts: all
  gather_facts: false
  environment: {PATH: "{{ folder }}/bin", FOLDER: "{{ folder }}"}
  roles: [ROLE]
"""

RECORD = """
import os
from ansible.module_utils.basic import AnsibleModule
makes = {name: {"type": "list", "elements": "str", "default": []} for name in ("makes", "wrote")}
module = AnsibleModule(makes, supports_check_mode=True)
with open(os.environ["FOLDER"] + "/recorded", "a") as file:
    file.writelines(line + "\\n" for line in module.params["makes"])
module.exit_json(changed=True, added=[])
"""

MADE = """
import json, os
from ansible.module_utils.basic import AnsibleModule

def read(name):
    try:
        with open(name) as file:
            return json.load(file)
    except FileNotFoundError:
        return {}

anything = {name: {"type": "raw"} for name in ("packages", "rdma_packages", "python", "python_exact", "sysctls")}
module = AnsibleModule(anything, supports_check_mode=True)
kinds = ("file", "folder", "tree", "user", "package", "module", "sysctl", "image")
made, facts = (read(os.environ["FOLDER"] + name) for name in ("/made.json", "/facts.json"))
module.exit_json(changed=False, made={**{kind: [] for kind in kinds}, **made}, **facts)
"""

PLAN = """NOTE: This is only a simulation!
Inst runc (1.1.5 Debian:12 [amd64])
Inst libc6 [2.35] (2.36 Debian:12 [amd64])
Inst docker.io (20.10.24 Debian:12 [amd64])
Conf docker.io (20.10.24 Debian:12 [amd64])
"""

DOCKER = "#!/bin/sh\n[ \"$1\" = info ] && { echo 'Cannot connect to the Docker daemon' >&2; exit 1; }\nexit 0\n"

APT = """#!/bin/sh
echo "$*" >>"$FOLDER/asked"
case "$*" in
    *--simulate*) cat "$FOLDER/plan" ;;
    *--download-only*) if [ -e "$FOLDER/offline" ]; then echo "E: Could not resolve host" >&2; exit 100; fi ;;
    *update*) ;;
    *install*) cp "$FOLDER/docker" "$FOLDER/bin/docker" ;;
esac
"""


class Host:
    """A folder with a host's programs, and its contents after a role."""

    def __init__(self, folder: Path, *, plan: str = PLAN, offline: bool = False, docker: bool = False) -> None:
        self.folder = folder
        (folder / "bin").mkdir(parents=True)
        for name in ("sh", "cat", "cp", "timeout", "rm", "rmdir"):
            (folder / "bin" / name).symlink_to(Path("/bin") / name)
        (folder / "plan").write_text(plan)
        program(folder / "docker", DOCKER)
        program(folder / "bin/apt-get", APT)
        if docker:
            program(folder / "bin/docker", DOCKER)
        if offline:
            (folder / "offline").touch()

    def read(self, name: str) -> list[str]:
        file = self.folder / name
        return file.read_text().splitlines() if file.exists() else []

    def installed(self) -> bool:
        return any("--simulate" not in line and "--download-only" not in line for line in self.read("asked"))


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(runner, "data_dir", lambda kind: tmp_path / "play")
    (tmp_path / "play/library").mkdir(parents=True)
    (tmp_path / "play/roles").symlink_to(PLAYBOOKS / "roles")
    (tmp_path / "play/library/l40s_record.py").write_text(RECORD)
    (tmp_path / "play/library/l40s_host.py").write_text(MADE)
    (tmp_path / "play/library/l40s_take_back.py").write_text((PLAYBOOKS / "library/l40s_take_back.py").read_text())
    return tmp_path / "play"


def run_role(
    play: Path, role: str, hosts: dict[str, Host], steps: list[HostEvent] | None = None, **variables: Any
) -> PerNode[HostResult]:
    (play / "play.yml").write_text(PLAY.replace("ROLE", role))
    here = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    inventory = {"all": {"hosts": {name: here | {"folder": str(host.folder)} for name, host in hosts.items()}}}
    heard = steps.append if steps is not None else lambda _: None
    return run_playbook("play.yml", inventory=inventory, variables=variables, deadline_s=60 * slack(), on_step=heard)


@pytest.mark.turns(of="roles: played whole", play=2)
def test_containers_are_installed_only_where_no_program_for_them_is_and_nothing_goes(
    play: Path, tmp_path: Path
) -> None:
    hosts = {
        "bare": Host(tmp_path / "bare"),
        "stopped": Host(tmp_path / "stopped", docker=True),
        "replacing": Host(tmp_path / "replacing", plan="Remv containerd.io [1.6]\n" + PLAN),
        "offline": Host(tmp_path / "offline", offline=True),
    }
    outcome = run_role(
        play,
        "engine_image",
        hosts,
        engine_image_install=True,
        engine_image_gpus=False,
        engine_image_name="here@sha256:00",
    )
    assert set(outcome.values) == {"bare"}, outcome.failures
    assert "Cannot connect to the Docker daemon" in outcome.failures["stopped"].what
    assert "containerd.io" in outcome.failures["replacing"].what
    assert hosts["bare"].installed()
    assert hosts["bare"].read("recorded") == ["package runc", "package docker.io"]
    for name in ("stopped", "replacing", "offline"):
        assert not hosts[name].installed()
        assert hosts[name].read("recorded") == []


@pytest.mark.turns(of="roles: played whole", play=2)
def test_packages_are_ours_only_when_all_of_them_were_fetched(play: Path, tmp_path: Path) -> None:
    hosts = {"good": Host(tmp_path / "good"), "offline": Host(tmp_path / "offline", offline=True)}
    described = {"debian": True, "packages_missing": ["docker.io"], "vendor_rdma": ""}
    outcome = run_role(play, "system_packages", hosts, l40s_host=described)
    assert set(outcome.values) == {"good"}
    assert hosts["good"].read("recorded") == ["package runc", "package docker.io"]
    assert hosts["offline"].read("recorded") == []


@pytest.mark.turns(of="roles: played whole", play=2)
def test_the_sudo_rule_goes_last_and_an_image_that_stays_is_named(play: Path, tmp_path: Path) -> None:
    hosts = {name: Host(tmp_path / name) for name in ("good", "broken")}
    for host in hosts.values():
        (host.folder / "list").mkdir()
        for name in ("rule", "other", "no-folder"):
            (host.folder / name).touch()
        program(host.folder / "bin/docker", "#!/bin/sh\necho 'image is in use' >&2; exit 1\n")
    files = '{"file": ["%(at)s/rule", "%(at)s/other"], "image": ["docker here@sha256:00"], "folder": [%(folder)s]}'
    (hosts["good"].folder / "made.json").write_text(files % {"at": hosts["good"].folder, "folder": ""})
    broken = hosts["broken"].folder
    (broken / "made.json").write_text(files % {"at": broken, "folder": f'"{broken}/no-folder"'})
    steps: list[HostEvent] = []
    places = {"take_back_list": "{{ folder }}/list", "take_back_rule": "{{ folder }}/rule"}

    outcome = run_role(play, "take_back", hosts, steps, **places)

    assert set(outcome.values) == {"good"}
    left = {name: sorted(path.name for path in host.folder.iterdir()) for name, host in hosts.items()}
    assert not {"rule", "list", "other"} & set(left["good"])
    assert {"rule", "list"} < set(left["broken"]), "who came by the rule can come again"
    assert "other" not in left["broken"]
    remarks = [step.message for step in steps if step.outcome == "remark" and step.host == "good"]
    assert any("here@sha256:00" in remark for remark in remarks)


@pytest.mark.turns(of="roles: played whole", play=2)
def test_a_check_before_the_interpreter_is_there_leaves_out_what_needs_it(
    play: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(tmp_path / "fresh")
    missing = ["rsync", "python3.99", "python3.99-venv"]
    facts = {"debian": True, "packages_missing": missing, "vendor_rdma": "", "python_path": "/usr/bin/python3.99"}
    (host.folder / "facts.json").write_text(json.dumps(facts))
    monkeypatch.setenv("FOLDER", str(host.folder))
    (play / "prepare.yml").symlink_to(PLAYBOOKS / "prepare.yml")
    here = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    prepared = dict.fromkeys(("packages", "vocabularies", "find_links", "bundle", "debian", "debian_release"), "")
    prepared |= {"install": "venv", "stack": "s", "venv": str(tmp_path / "none/venvs/s"), "python": "3.99", "lock": "/"}
    groups = {group: {"hosts": {"fresh": None}} for group in ("gangs", "router")}
    inventory = {"all": {"hosts": {"fresh": here}, "children": groups}}
    variables = {
        "prepare_hosts": {"fresh": prepared},
        "prepare_router": {"venv": str(tmp_path / "none/venvs/r"), "find_links": ""},
    }
    steps: list[HostEvent] = []

    def check(*tags: str) -> PerNode[HostResult]:
        return run_playbook(
            "prepare.yml", inventory=inventory, variables=variables, tags=tags, check=True, deadline_s=60 * slack(),
            on_step=steps.append,
        )  # fmt: skip

    assert not check("system_packages", "engine_env", "router_env").failures
    remarks = [step.message for step in steps if step.outcome == "remark"]
    assert sum("python3.99 python3.99-venv would be installed first" in remark for remark in remarks) == 2
    assert "interpreter's version" in check("engine_env").failures["fresh"].what, "nobody would install it"
