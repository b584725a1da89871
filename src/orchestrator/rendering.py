"""Plans into files, through templates/. Every value that reaches a shell is quoted here, by shlex."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import lru_cache

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup, escape

from orchestrator.model.plan import GangPlan
from orchestrator.model.profile import ModelProfile, Stack
from orchestrator.model.secret_text import HIDDEN
from orchestrator.protocol.planned import OF_THE_PLAN
from orchestrator.protocol.staging import ENDS_WITH_STDIN, NodePlan


def launch_template(node: NodePlan) -> str:
    """Name of the template that `launch_script` wants for a node."""
    return "launch_container.sh.j2" if node.container else "launch.sh.j2"


def launch_script(node: NodePlan, gang: GangPlan, plan_id: str, template: str) -> str:
    """The POSIX shell script that starts one node's engine and nothing else; it ends in exec.

    template: the text of the template that `launch_template` names
    """
    return _compiled(template).render(
        node=node,
        gang=gang,
        plan_id=plan_id,
        settings=[(name, value, node.sources.get(name, "")) for name, value in node.env.items()],
        command=node.command,
        flags=[(words, node.sources.get(words[0], "")) for words in node.flags],
        of_the_plan=OF_THE_PLAN,
        watched=ENDS_WITH_STDIN,
        cuda=bool(node.gpus) and node.device == "cuda",
    )


def exported_anew(script: str, was: Mapping[str, str], now: Mapping[str, str | None]) -> str | None:
    """A launch script with these variables set to other values, or not set (None); one that it did not set comes
    before the first that it did, and a container is told of it.

    was: its whole environment. None where the script does not set them as `launch_script` writes it.
    """
    lines = script.split("\n")
    for name, value in now.items():
        new = [] if value is None else [f"export {name}={_quote(value)}"]
        if name in was:
            old = f"export {name}={_quote(was[name])}"
            if lines.count(old) != 1:
                return None
            place = lines.index(old)
            lines[place : place + 1] = new
            lines = [line for line in lines if value is not None or line != _passed(name)]
        elif not _add(lines, "export ", new):
            return None
        elif value is not None:
            _add(lines, _passed(""), [_passed(name)])
    return "\n".join(lines)


def _passed(name: str) -> str:
    """How `templates/launch_container.sh.j2` has a container take a variable; '' for how each such line begins."""
    return f"    --env {name} \\" if name else "    --env "


def _add(lines: list[str], beginning: str, new: Sequence[str]) -> bool:
    """Before the first line that begins so; False where there is none."""
    place = next((place for place, line in enumerate(lines) if line.startswith(beginning)), -1)
    if place >= 0:
        lines[place:place] = new
    return place >= 0


def unit_file(node: NodePlan, properties: Sequence[str], template: str) -> str:
    """The transient unit that `up` starts on a node with systemd, as a unit file.

    properties: Name=value each; template: the text of templates/agent.service.j2
    """
    return _compiled(template).render(node=node, properties=properties)


_OF_THE_HOST = ("PATH", "HOME", "CUDA_VISIBLE_DEVICES")
"""Variables that name the host's places and GPU numbers; a container has its own."""


def compose_file(node: NodePlan, gang: GangPlan, stack: Stack, template: str) -> str:
    """A compose file for one node, for those who start containers by hand: the plan's flags and environment, with
    the image's own python3 in place of the virtual environment's. Secrets are left to compose's .env file.

    node: as model.secret_text shows it; template: the text of templates/compose.yml.j2
    """
    words = ["python3", *node.command[1:], *(word for flag in node.flags for word in flag)]
    env = [
        (name, f"${{{name}:?put it into .env}}" if value == HIDDEN else _compose(value))
        for name, value in node.env.items()
        if name not in _OF_THE_HOST
    ]
    caches = node.env.get("XDG_CACHE_HOME", node.working_dir)
    return _compiled(template).render(
        node=node, gang=gang, stack=stack, env=env, command=words, caches=caches, rdma=node.network.rdma
    )


def profile_file(
    profile: ModelProfile, dimensions: Mapping[str, int], unknown: Mapping[str, str], template: str
) -> str:
    """A model profile as the YAML file that `loading.profiles` reads, with unknown values marked in comments.

    template: the text of templates/model.yml.j2
    """

    def mark(key: str) -> str:
        return f" # UNKNOWN: {_comment(unknown[key])}" if key in unknown else ""

    return _compiled(template).render(profile=profile, dimensions=dimensions, unknown=unknown, mark=mark)


def report_page(page: Mapping[str, object], template: str, style: str) -> str:
    """One self-contained HTML page. Whatever text the nodes gave is escaped, and made visible where it is no print.

    template: the text of templates/report, bench, sweep, gate or live .html.j2, after the macros that
              it uses
    style:    the text of the .css files beside it
    page:     what it draws (doctor.steps.doctor_report, bench.steps.bench_report, sweep.steps.page,
              golden.steps.gate_page and monitoring.steps.pages have the names)
    """
    return _compiled_page(template).render({**page, "style": Markup(style)})  # noqa: S704 - our own file


@lru_cache
def _compiled_page(text: str) -> Template:
    environment = Environment(
        undefined=StrictUndefined, autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=_visible
    )
    environment.filters["coded"] = _coded
    return environment.from_string(text)


def _coded(text: str) -> Markup:
    """Escaped, and what stands in backticks as code; a backtick without a second one is text."""
    *pairs, last = re.split(r"`([^`]*)`", text)
    code = Markup("<code>{}</code>")
    shown = [code.format(_comment(part)) if place % 2 else escape(_comment(part)) for place, part in enumerate(pairs)]
    return Markup("").join([*shown, escape(_comment(last))])


def _visible(value: object) -> object:
    """Control characters and lone surrogates as escapes: they have no place in a page."""
    return _comment(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@lru_cache
def _compiled(text: str) -> Template:
    environment = Environment(
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701 - shell, not HTML: the `quote` and `comment` filters guard it
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["quote"] = _quote
    environment.filters["comment"] = _comment
    environment.filters["yaml"] = json.dumps  # a JSON string is one in YAML, whatever it holds
    environment.filters["compose"] = _compose
    return environment.from_string(text)


def _quote(value: object) -> str:
    """One word for a POSIX shell, or several with blanks between them; a leading `=` means something to zsh."""
    if isinstance(value, (tuple, list)):
        return " ".join(_quote(word) for word in value)
    word = shlex.quote(str(value))
    return f"'{word}'" if word.startswith("=") else word


def _compose(value: object) -> str:
    """A YAML string that compose takes as it is: it would put variables in place of $NAME."""
    return json.dumps(str(value).replace("$", "$$"))


def _comment(value: object) -> str:
    """Text that stays inside one comment line, whatever it holds."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in str(value))
