"""`l40s-deploy init`: an inventory for machines that have none yet; asks for what the options do not say."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli.options import add_examples
from orchestrator.cli.progress import patience
from orchestrator.cli.questions import Questions
from orchestrator.cli.screen import Screen
from orchestrator.model.words import counted
from orchestrator.protocol.errors import DeployError, Exit, HostKeyError

if TYPE_CHECKING:
    from orchestrator.doctor.steps.doctor import Examination
    from orchestrator.hosts.steps.init import InitRequest, Login, ShownKey
    from orchestrator.model.inventory import NodeSpec


DEFAULT = Path("inventory/hosts.yml")
_TRUST = "--accept-host-keys"


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_examples(
        parser,
        "l40s-deploy init                                       # ask for the hosts, then check them",
        "l40s-deploy init 'l40s-[0:3]' --user deploy            # four hosts that the name service knows",
        "l40s-deploy init 'l40s-[0:3]=192.168.10.[10:13]' --user deploy --accept-host-keys --out hosts.yml",
    )
    parser.add_argument(
        "hosts", nargs="*", metavar="HOST", help="NAME, NAME=ADDRESS, or ranges of these; the first is the leader"
    )
    parser.add_argument("--out", type=Path, default=DEFAULT, metavar="FILE", help=f"the inventory to write ({DEFAULT})")
    parser.add_argument("--gang", default="gang0", metavar="GANG", help="name of the gang (gang0)")
    parser.add_argument("--user", default="", metavar="USER", help="SSH user (default: ~/.ssh/config's, else yours)")
    parser.add_argument("--port", type=int, metavar="PORT", help="SSH port (default: ~/.ssh/config's, else 22)")
    parser.add_argument(
        "--key", default="", metavar="FILE", help="SSH private key (default: ~/.ssh/config's, the agent's)"
    )
    parser.add_argument("--stack", default="", metavar="STACK", help="the stack to write into it (sglang-0.5.23)")
    parser.add_argument(
        _TRUST, action="store_true", help="record unknown host keys without asking; compare the fingerprints first"
    )


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 written and nothing wrong; 2 input, or the file exists; 3 findings; 4 a node can't be reached."""
    from orchestrator.hosts.steps import init

    init.refuse_existing(args.out)
    questions = Questions(screen, "init")
    request = _request(args, questions)
    nodes = init.nodes_of(request)
    with patience(screen, f"reading the host keys of {counted(len(nodes), 'node')}"):
        scanned = init.scan(nodes)
    _trusted(nodes, scanned.values, args.accept_host_keys, questions, screen)
    _refuse(scanned.failures, screen)
    with patience(screen, f"logging in to {counted(len(nodes), 'node')}"):
        logins = init.log_in(nodes)
    _show_logins(logins.values, screen)
    _refuse(logins.failures, screen)
    with patience(screen, f"inspecting {counted(len(nodes), 'node')}"):
        seen, network = init.see(nodes, logins.values)
    screen.say(f"network: {network or 'the nodes share no IPv4 network'}")
    init.write(args.out, request, seen, logins.values)
    screen.show(f"{args.out} written")
    return _doctor(args.out, any(login.sudo for login in logins.values.values()), screen)


def _request(args: argparse.Namespace, questions: Questions) -> InitRequest:
    from orchestrator.hosts.steps.init import InitRequest, nodes_of, usual_user

    request = InitRequest(
        hosts=tuple(args.hosts),
        gang=args.gang,
        user=args.user,
        port=args.port,
        key_file=args.key,
        stack=args.stack,
    )
    if request.hosts:
        return request
    hosts = questions.text("hosts, the leader first (NAME, NAME=ADDRESS, or a range such as l40s-[0:3])", "HOST ...")
    request = replace(request, hosts=tuple(hosts.replace(",", " ").split()))
    if not request.user:
        usual = usual_user(nodes_of(request)[0])
        user = questions.text("SSH user", "--user USER", usual)
        request = replace(request, user="" if user == usual else user)
    if not request.key_file:
        key = questions.text("SSH private key (empty: the one of ~/.ssh/config or the agent)", "--key FILE", "")
        request = replace(request, key_file=key)
    return request


def _trusted(
    nodes: Sequence[NodeSpec], keys: Mapping[str, ShownKey], accept: bool, questions: Questions, screen: Screen
) -> None:
    """Show every key; record the unknown ones if the operator confirms them. Raises HostKeyError."""
    from orchestrator.hosts.steps.init import remember_host_keys

    for name, key in keys.items():
        screen.say(f"{name}: host key {key.kind} {key.fingerprint} ({'known' if key.known else 'not known yet'})")
    if not (unknown := [name for name, key in keys.items() if not key.known]):
        return
    screen.say("compare with each node's console: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub")
    asked = f"are these the fingerprints of {', '.join(unknown)}?"
    if not accept and not (questions.asks and questions.agreed(asked, _TRUST)):
        raise HostKeyError(
            f"the host keys of {', '.join(unknown)} are not known yet",
            where="init",
            fix=f"compare the fingerprints, then run it again with {_TRUST}",
        )
    if file := remember_host_keys(nodes, keys):
        screen.say(f"{counted(len(unknown), 'host key')} added to {file}")


def _refuse(failures: Mapping[str, DeployError], screen: Screen) -> None:
    """Nothing is written of a cluster of which a node is missing."""
    for failure in list(failures.values())[:-1]:
        screen.error(failure)
    if failures:
        raise list(failures.values())[-1]


def _show_logins(logins: Mapping[str, Login], screen: Screen) -> None:
    for name, login in logins.items():
        screen.say(f"{name}: logged in as {login.user}; {_rights(login)}")


def _rights(login: Login) -> str:
    if login.root:
        return "root"
    return f"sudo: {login.sudo}" if login.sudo else "sudo works"


def _doctor(path: Path, asks_for_password: bool, screen: Screen) -> int:
    from orchestrator.doctor.commands.findings import show
    from orchestrator.doctor.steps.doctor import expected
    from orchestrator.gang.steps.examination import examine_inventory
    from orchestrator.loading.inventory import load_inventory

    inventory = load_inventory(path)
    with patience(screen, "doctor: checking hardware and network"):
        examination = examine_inventory(inventory)
    show(examination, expected(examination.cluster), screen)
    screen.show(_next(path, examination, asks_for_password))
    if examination.failures:
        return Exit.UNREACHABLE
    return Exit.FINDINGS if examination.worst else Exit.DONE


def _next(path: Path, examination: Examination, asks_for_password: bool) -> str:
    option = "" if path == DEFAULT else f" -i {shlex.quote(str(path))}"
    if examination.failures:
        return f"next: fix the connection to every node, then run l40s-deploy doctor{option}"
    before = "fix what must be fixed above, then" if examination.worst else "prepare the hosts"
    return f"next: {before}: l40s-deploy prepare{option}{' --become -K' if asks_for_password else ''}"
