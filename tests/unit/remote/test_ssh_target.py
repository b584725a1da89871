"""Inventory over ~/.ssh/config, as ansible calls ssh, and known_hosts; compared with OpenSSH's own programs."""

from __future__ import annotations

import getpass
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.loading.node_spec import ssh_pairs
from orchestrator.model.inventory import NodeSpec, Reach
from orchestrator.protocol.errors import InputError
from orchestrator.remote import ssh_target
from orchestrator.remote.port_forward import ssh_command
from orchestrator.remote.ssh_keys import keys_for
from orchestrator.remote.ssh_target import SshTarget, host_key_name, target_of


@pytest.fixture(autouse=True)
def _no_system_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_target, "SYSTEM_FILE", "/nonexistent")


def config(text: str, name: str = "config") -> Path:
    path = Path("~/.ssh").expanduser() / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def target(arguments: str = "", **reach: Any) -> SshTarget:
    options = ssh_pairs(arguments)
    known = next((value for name, value in options if name == "userknownhostsfile"), None)
    made = Reach(**{"host": "n0", "ssh_options": options, "known_hosts_file": known, **reach})
    return target_of(NodeSpec(name="n0", gang="g", node_rank=0, reach=made))


def test_defaults_are_those_of_ssh() -> None:
    found = target()
    assert (found.host, found.port, found.user) == ("n0", 22, getpass.getuser())
    assert found.host_key_name == "n0"
    assert found.known_hosts[0] == Path("~/.ssh/known_hosts").expanduser()
    assert (found.direct, found.own_keys, found.accept_new) == (True, True, False)


def test_the_config_speaks_where_the_inventory_does_not() -> None:
    config("Host n*\n HostName %h.example\n Port 2222\n User cfg\n IdentityFile ~/.ssh/%r_key\n IdentitiesOnly yes\n")
    found = target()
    assert (found.host, found.port, found.user) == ("n0.example", 2222, "cfg")
    assert found.host_key_name == "[n0.example]:2222"
    assert found.key_files == (Path("~/.ssh/cfg_key").expanduser(),)
    assert not found.own_keys and not found.key_required


def test_a_match_by_command_is_followed() -> None:
    """In a separate process: the command reads our standard input, which belongs to pytest here."""
    file = config('Match exec "test %h = n0"\n Port 2222\n')
    code = f"from orchestrator.remote import ssh_target; print(ssh_target.look_up('n0', {str(file)!r})['port'])"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL
    )
    assert done.stdout.strip() == "2222"


def test_the_inventory_wins() -> None:
    config("Host *\n Port 2222\n User cfg\n IdentityFile /cfg\n UserKnownHostsFile /cfg_kh\n")
    found = target("-o Port=9 -o User=args -i /args -o UserKnownHostsFile=/kh", port=7, user="inv", key_file="/inv")
    assert (found.port, found.user) == (7, "inv")
    assert found.key_files == (Path("/inv"), Path("/args"), Path("/cfg"))
    assert found.key_required
    assert found.known_hosts[0] == Path("/kh")


def test_arguments_beat_the_config() -> None:
    config("Host *\n Port 2222\n User cfg\n ProxyJump other\n")
    found = target("-o Port=9 -o User=args -o Port=10 -o ProxyJump=none")
    assert (found.port, found.user, found.jumps) == (9, "args", ())


def test_a_chain_of_jumps_nearest_first() -> None:
    config("Host b\n HostName b.example\n Port 2200\nHost a\n ProxyJump gate\nHost gate\n User keeper\n")
    found = target("-J me@a:22,b")
    assert [(hop.host, hop.port, hop.user) for hop in found.jumps] == [
        ("gate", 22, "keeper"),
        ("a", 22, "me"),
        ("b.example", 2200, getpass.getuser()),
    ]
    assert not found.direct


def test_a_proxy_command_gets_its_tokens() -> None:
    config("Host *\n ProxyCommand nc -X %% %h %p %n\n User u\n HostName h\n")
    assert target(port=5).proxy_command == "nc -X % h 5 n0"
    assert target("-o ProxyCommand=none").proxy_command is None


def test_a_jump_and_a_command_at_once_are_refused() -> None:
    with pytest.raises(InputError, match="has both"):
        target("-J a -o 'ProxyCommand nc %h %p'")


def test_an_own_config_file_takes_the_place_of_the_users() -> None:
    config("Host *\n User wrong\n")
    other = config("Host *\n User other\n", "other")
    found = target(f"-F {other}")
    assert found.user == "other"
    with pytest.raises(InputError, match="-F"):
        target("-F /nonexistent")


def test_includes_are_followed_and_the_section_goes_on() -> None:
    config("Include conf.d/*.conf\nHost n*\n Include keys\n User later\n")
    config("IdentityFile /included\n", "keys")
    (Path("~/.ssh").expanduser() / "conf.d").mkdir()
    config("Host other\n Port 1\nHost n0\n Port 4444\n", "conf.d/a.conf")
    found = target()
    assert (found.port, found.user, found.key_files) == (4444, "later", (Path("/included"),))


def test_a_section_inside_a_section_is_refused() -> None:
    config("Host n*\n Include more\n")
    config("Host x\n Port 1\n", "more")
    with pytest.raises(InputError, match="Include"):
        target()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("Host *\n ProxyJump gate\n", "loop", id="a loop of jumps"),
        pytest.param("Include config\n", "includes itself", id="a file that includes itself"),
        pytest.param("Host n0\n Port x\n", "port", id="a port that is no number"),
        pytest.param("Host n0\n Port 0\n", "port", id="a port that is none"),
        pytest.param("???\n", "not a valid ssh_config", id="nonsense"),
    ],
)
def test_what_is_wrong_in_the_config_is_told(text: str, words: str) -> None:
    config(text)
    with pytest.raises(InputError, match=words):
        target()


@pytest.mark.parametrize(("word", "accept"), [("no", True), ("accept-new", True), ("yes", False), ("ask", False)])
def test_strict_host_key_checking(word: str, accept: bool) -> None:
    assert target(f"-o StrictHostKeyChecking={word}").accept_new is accept


def test_a_host_key_alias_is_the_name_to_look_up() -> None:
    assert target("-o HostKeyAlias=Alias", port=2222).host_key_name == "alias"


CONFIG = """
Host n0 special
  HostName 10.1.2.3
  Port 2201
Host !n1 n*
  User first
  IdentityFile /one
Host *.x
  User x
Host *
  Port 2299
  User last
  IdentityFile /two
"""


@pytest.mark.parametrize("host", ["n0", "n1", "n2", "a.x", "special"])
def test_the_config_is_read_as_ssh_reads_it(host: str) -> None:
    ssh = shutil.which("ssh")
    if ssh is None:
        pytest.skip("no ssh on this machine")
    file = config(CONFIG)
    done = subprocess.run([ssh, "-G", "-F", str(file), host], capture_output=True, check=True, timeout=20, text=True)
    wanted = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    keys = [Path(line.split(" ", 1)[1]) for line in done.stdout.splitlines() if line.startswith("identityfile ")]
    found = target(host=host)
    assert (found.host, str(found.port), found.user) == (wanted["hostname"], wanted["port"], wanted["user"])
    assert list(found.key_files) == keys


def test_the_level_that_tells_the_port_stands_before_the_inventorys_options() -> None:
    reach = Reach(host="a", connection="ssh", ssh_options=(("LogLevel", "ERROR"), ("configfile", "/c")))
    words = ssh_command(NodeSpec(name="a", gang="g", node_rank=0, reach=reach))
    assert words[:3] == ["ssh", "-F", "/c"]
    assert words.index("LogLevel=INFO") < words.index("LogLevel=ERROR")


KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIJ0R1zvmC5Qwv0rYQm4j9m0n8S0Ea1Q3V3tXr3i1xY7h"


@pytest.mark.parametrize(
    ("patterns", "name", "found"),
    [
        ("a.example", "a.example", True),
        ("A.Example", "a.example", True),
        ("a,b", "b", True),
        ("*.example", "n.example", True),
        ("*.example,!n.example", "n.example", False),
        ("n?", "n1", True),
        ("n?", "n12", False),
        ("[10.0.0.1]:2222", "[10.0.0.1]:2222", True),
        ("10.0.0.1", "[10.0.0.1]:2222", False),
        ("[10.0.0.*]:2222", "[10.0.0.1]:2222", True),
        ("[ab]", "a", False),
        ("|1|nonsense|x", "a", False),
        ("|2|YQ==|YQ==", "a", False),
    ],
)
def test_names_and_patterns(patterns: str, name: str, found: bool) -> None:
    assert bool(list(keys_for(name, f"{patterns} ssh-ed25519 {KEY}\n", "file"))) is found


def test_markers_comments_and_lines() -> None:
    text = f"# c\n\n@revoked h ssh-rsa AAAA\n@cert-authority *.x ssh-rsa BBBB\nh ssh-ed25519 {KEY} remark\nbroken\n"
    found = list(keys_for("h", text, "kh"))
    assert [(key.marker, key.kind, key.line) for key in found] == [("@revoked", "ssh-rsa", 3), ("", "ssh-ed25519", 5)]


@pytest.mark.parametrize(("host", "port"), [("Node.Example", 22), ("10.0.0.1", 2222), ("fe80::1", 2200)])
def test_hashed_names_are_those_of_ssh_keygen(host: str, port: int, tmp_path: Path) -> None:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("no ssh-keygen on this machine")
    file = tmp_path / "kh"
    name = host_key_name(host, port)
    file.write_text(f"{name} ssh-ed25519 {KEY}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, timeout=20, capture_output=True)
    text = file.read_text()
    assert text.startswith("|1|")
    assert [key.key for key in keys_for(name, text, "kh")] == [KEY]
    assert not list(keys_for(name + "x", text, "kh"))
