"""Root executes only files that root alone can write, and exactly what was staged: with a real other user."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.gang import Cluster
from tests.support.messages import message
from tests.support.waiting import until

from orchestrator.node.agent import staged_run
from orchestrator.node.agent.staged_run import keep_secrets, kept_secrets, staged_in
from orchestrator.node.verbs import orders, stage
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.staging import SecretFile, Secrets, launch_digest

USER = "nobody"
"""The engine's user here: one that every Debian has."""
root_alone = pytest.mark.skipif(os.geteuid() != 0, reason="two users are tried as root")
Make = Callable[..., Cluster]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may traverse, like /var/lib."""
    folder = Path(tempfile.mkdtemp(prefix="l40s-staged-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def cluster(open_folder: Path) -> Iterator[Cluster]:
    """One node of a container stack, as root, whose engine runs as another user. The container program is a
    stand-in that has every image; the launch script's command is executed as for a real one."""
    program = open_folder / "podman"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    made = Cluster(open_folder / "gang", nodes=1)
    ran = open_folder / "ran-as"
    made.changes[0] = {
        "engine_user": USER,
        "container": {"program": str(program), "image": "image"},
        "venv_python": "",
        "launch_script": f"#!/bin/sh\nid -un >{ran}\nexec sleep 60\n",
    }
    yield made
    made.close()


def script_of(cluster: Cluster) -> Path:
    return Path(cluster.state_dir(0), "gangs/gang0/runs", cluster.run_id, "launch.sh")


def as_user(command: str) -> int:
    """The exit status of a command run as the engine's user."""
    done = subprocess.run(["/bin/sh", "-c", command], user=USER, group="nogroup", extra_groups=(), check=False)
    return done.returncode


@root_alone
def test_the_engines_user_can_neither_read_change_nor_replace_what_root_executes(cluster: Cluster) -> None:
    cluster.stage()
    script = script_of(cluster)
    assert (script.stat().st_uid, stat.S_IMODE(script.stat().st_mode) & 0o077) == (0, 0)
    for attempt in ("cat {0}", "echo evil >>{0}", "rm -f {0}", "mv {0} {0}.old", "chmod 777 {0}", "ln -sf /bin/id {0}"):
        assert as_user(attempt.format(script) + " 2>/dev/null") != 0, attempt
    assert as_user(f"touch {script.parent}/agent.pyz 2>/dev/null") != 0
    cluster.armed()
    cluster.go()
    ran = Path(cluster.folder.parent, "ran-as")
    assert until(lambda: ran.exists() and ran.read_text().strip(), what="the script has run") == "root"


@root_alone
@pytest.mark.parametrize("tampered", ["text", "owner", "mode", "link", "gone"])
@pytest.mark.parametrize("at", ["arm", "go", "restart"])
def test_a_script_that_is_not_what_was_staged_is_refused_in_words_and_never_executed(
    cluster: Cluster, tampered: str, at: str
) -> None:
    if at == "go":
        cluster.armed()
    else:
        cluster.stage()
    script, ran = script_of(cluster), Path(cluster.folder.parent, "ran-as")
    _tamper(script, tampered, ran)
    if at == "arm":
        error = cluster.arm(0)["error"]
        what, where, fix = error["what"], error["where"], error["fix"]
    elif at == "restart" and tampered == "gone":
        assert stage.staged(cluster.base(0))["launch_script"] == ""
        return
    else:
        with pytest.raises(DeployError) as told:
            (orders.go if at == "go" else stage.staged)(cluster.base(0))
        what, where, fix = told.value.what, told.value.where, told.value.fix
    assert where == str(script)
    assert "stage it again by `up`" in fix
    words = {
        "text": "was changed since",
        "owner": USER,
        "mode": "other than its owner",
        "link": "can't be read",
        "gone": "can't be",
    }
    assert words[tampered] in what
    assert not ran.exists()


def _tamper(script: Path, how: str, ran: Path) -> None:
    user = pwd.getpwnam(USER)
    if how == "text":
        script.write_text(f"#!/bin/sh\ntouch {ran}\n")
    elif how == "owner":
        os.chown(script, user.pw_uid, user.pw_gid)
    elif how == "mode":
        script.chmod(0o770)
    elif how == "gone":
        script.unlink()
    else:
        script.unlink()
        script.symlink_to("/bin/true")


@root_alone
def test_a_script_that_changes_between_go_and_the_start_is_not_executed(cluster: Cluster) -> None:
    """The guardian checks for itself: a text that passed before is read again."""
    cluster.stage()
    run = staged_in(str(script_of(cluster).parent))
    staged_run.script_of(run)
    script_of(cluster).write_text("evil")
    with pytest.raises(DeployError, match="was changed since"):
        staged_run.script_of(run)


@root_alone
def test_the_engine_of_a_virtual_environment_runs_as_its_user_from_a_script_that_it_may_not_read(
    open_folder: Path, cluster: Cluster
) -> None:
    ran = open_folder / "ran" / "as"
    ran.parent.mkdir(mode=0o777)
    ran.parent.chmod(0o777)
    cluster.changes[0] = {
        "engine_user": USER, "launch_script": f"#!/bin/sh\nid -un >{ran}\nexec sleep 60\n", "venv_python": ""
    }  # fmt: skip
    cluster.folder.chmod(0o755)
    cluster.armed()
    cluster.go()
    assert until(lambda: ran.exists() and ran.read_text().strip(), what="the script has run") == USER
    assert script_of(cluster).stat().st_uid == 0


@root_alone
@pytest.mark.parametrize("how", ["owner", "mode", "linked"])
def test_a_state_directory_that_another_user_can_write_is_refused_before_anything_is_made(
    open_folder: Path, cluster: Cluster, how: str
) -> None:
    parent = open_folder / "theirs"
    parent.mkdir()
    user = pwd.getpwnam(USER)
    state = parent / "state"
    if how == "linked":
        (open_folder / "link").symlink_to(parent)
        state = open_folder / "link" / "state"
    if how == "mode":
        parent.chmod(0o777)
    else:
        os.chown(parent, user.pw_uid, user.pw_gid)
    with pytest.raises(DeployError) as told:
        stage.stage({**cluster.staging(0), "state_dir": str(state)})
    assert told.value.kind == "not-root-alone"
    assert told.value.where == str(parent) or how == "linked"
    assert "l40s_state_dir" in told.value.fix
    assert not list(parent.iterdir())


def test_a_request_whose_script_is_not_the_plans_is_refused(tmp_path: Path) -> None:
    request = {**Cluster(tmp_path / "gang").staging(0), "launch_sha256": "0" * 64}
    with pytest.raises(DeployError, match="not the plan's"):
        stage.stage(request)


def test_an_older_controllers_request_gets_its_digest_here(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "gang")
    stage.stage(cluster.staging(0))
    told = stage.staged(cluster.base(0))
    assert told["request"]["launch_sha256"] == launch_digest(told["launch_script"])


ASKED = message(
    Secrets,
    {
        "files": [{"name": "engine-secrets.yml", "text": 'api-key: "k"\n'}, {"name": "b.args", "text": "x"}],
        "redact": ["key-key-key"],
        "authorization": "Bearer key-key-key",
    },
)


def test_what_is_kept_can_be_read_by_its_owner_alone_and_the_engines_files_are_its_users(tmp_path: Path) -> None:
    root = os.geteuid() == 0
    keep_secrets(str(tmp_path), ASKED, (65534, 65534) if root else None)
    owners = [(tmp_path / name).stat().st_uid for name in ("engine-secrets.yml", "secrets.json")]
    assert owners == ([65534, 0] if root else [os.geteuid()] * 2)
    assert kept_secrets(str(tmp_path)) == ASKED
    assert (tmp_path / "engine-secrets.yml").read_text() == 'api-key: "k"\n'
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {
        "engine-secrets.yml": 0o600, "b.args": 0o600, "secrets.json": 0o600,
    }  # fmt: skip


def test_what_an_older_release_kept_is_read_with_its_files(tmp_path: Path) -> None:
    keep_secrets(str(tmp_path), ASKED, None)
    (tmp_path / "secrets.json").write_text(json.dumps({**ASKED.as_json(), "files": [one.name for one in ASKED.files]}))
    assert kept_secrets(str(tmp_path)) == ASKED


def test_an_empty_request_removes_them(tmp_path: Path) -> None:
    keep_secrets(str(tmp_path), ASKED, None)
    assert kept_secrets(str(tmp_path)).authorization
    keep_secrets(str(tmp_path), Secrets(redact=("other-secret",), files=ASKED.files[:1]), None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["engine-secrets.yml", "secrets.json"]
    assert kept_secrets(str(tmp_path)) == Secrets(redact=("other-secret",), files=ASKED.files[:1])
    keep_secrets(str(tmp_path), Secrets(), None)
    assert list(tmp_path.iterdir()) == []
    assert kept_secrets(str(tmp_path)) == Secrets()


def test_going_back_takes_back_what_a_later_plan_replaced(tmp_path: Path) -> None:
    folder = str(tmp_path)
    keep_secrets(folder, ASKED, None, before="")
    keep_secrets(folder, Secrets(authorization="Bearer new"), None, before="run1")
    assert (tmp_path / "secrets.before.json").stat().st_mode & 0o777 == 0o600
    keep_secrets(folder, Secrets(of_run="run0"), None, before="run2")
    assert kept_secrets(folder).authorization == "Bearer new"  # the replaced one belongs to another run
    keep_secrets(folder, Secrets(of_run="run1"), None, before="run2")
    assert kept_secrets(folder) == ASKED
    assert (tmp_path / "engine-secrets.yml").read_text() == 'api-key: "k"\n'
    assert not (tmp_path / "secrets.before.json").exists()


def test_going_back_to_a_plan_without_secrets(tmp_path: Path) -> None:
    folder = str(tmp_path)
    keep_secrets(folder, Secrets(), None, before="run0")
    assert list(tmp_path.iterdir()) == []  # nothing was replaced
    keep_secrets(folder, ASKED, None, before="run1")
    keep_secrets(folder, Secrets(of_run="run1"), None, before="run2")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../out", "a/b", "", ".hidden"])
def test_names_that_leave_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(DeployError):
        keep_secrets(str(tmp_path / "gang"), Secrets(files=(SecretFile(name=name, text="x"),)), None)
    assert list(tmp_path.iterdir()) == []
