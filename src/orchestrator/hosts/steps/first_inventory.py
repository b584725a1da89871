"""The text of a cluster's first inventory: the annotated reference, with one's own hosts and values in it. Pure."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_HEADER = """\
# Written by `l40s-deploy init`. An ordinary Ansible inventory: `ansible -i {path} all -m ping` reads the same file.
#
# The child groups of `gangs` are the gangs (one gang runs one engine), the order of the hosts in a gang is the node
# rank, the first host is the leader and serves HTTP. Variables can be set for any host or group, in group_vars/ and in
# host_vars/. Lines that are commented out show a default or a choice.
"""
_PLAIN = re.compile(r"[A-Za-z_/~][A-Za-z0-9_./~@-]*")
_LIKE_OTHER_TYPES = re.compile(r"(?i)y|yes|n|no|on|off|true|false|null|~")


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstNode:
    """ansible_host is left out where it is the name; address: in the network that all nodes share, '' for none."""

    name: str
    host: str
    address: str = ""
    gpus: int = 0


def first_inventory(
    reference: str, *, path: str, gang: str, nodes: Sequence[FirstNode], variables: Mapping[str, object]
) -> str:
    """reference: the text of inventory/reference.yml. variables: values for all nodes, by name; what is not named keeps
    the reference's line, but ansible_user, which is commented out."""
    gpus = Counter(node.gpus for node in nodes if node.gpus)
    most = gpus.most_common(1)[0][0] if gpus else 0
    body = reference[reference.index("\ngangs:\n") :]
    hosts = "".join(_host(node, most) for node in nodes)
    body = re.sub(
        r"    gang0:\n      hosts:\n(?:        .*\n)+",
        lambda _: f"    {_yaml(gang)}:\n      hosts:\n{hosts}",
        body,
        count=1,
    )
    body = re.sub(r"^    (ansible_user:)", r"    # \1", body, count=1, flags=re.MULTILINE)
    for name, value in {**variables, **({"l40s_gpus": most} if most else {})}.items():
        body = _with(body, name, value)
    return _HEADER.format(path=path) + body


def _host(node: FirstNode, most: int) -> str:
    facts: dict[str, object] = {}
    if node.host != node.name:
        facts["ansible_host"] = node.host
    if node.address:
        facts["l40s_address"] = node.address
    if node.gpus and node.gpus != most:
        facts["l40s_gpus"] = node.gpus
    shown = ", ".join(f"{name}: {_yaml(value)}" for name, value in facts.items())
    return f"        {_yaml(node.name)}:{f' {{{shown}}}' if shown else ''}\n"


def _with(body: str, name: str, value: object) -> str:
    """The line of a variable, commented out or not, with this value; what is said behind it stays."""
    line = re.compile(rf"^    (?:# )?{name}: *(?P<old>[^#\n]*?)(?P<rest> +# .*)?$", re.MULTILINE)
    match = line.search(body)
    if match is None:
        raise AssertionError(f"the reference inventory has no line for {name}")
    return f"{body[: match.start()]}    {name}: {_yaml(value)}{match['rest'] or ''}{body[match.end() :]}"


def _yaml(value: object) -> str:
    """A value as YAML reads it back: JSON is YAML, and plain words need no quotes."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and not _LIKE_OTHER_TYPES.fullmatch(value):
        return value
    if isinstance(value, str) and re.fullmatch(r"\d+\.\d+\.\d+\.\d+", value):
        return value
    return json.dumps(value)
