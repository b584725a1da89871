"""The reference pages of the documentation, made from the code when the site is built: a hook of mkdocs.

Links in docs/ go from file to file of the repository. In the site, results of tests and the README are pages too, and
a link to any other file becomes its name. Lists are indented as mkdocs wants them: see `indented_by_four`.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import posixpath
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
os.environ["COLUMNS"] = "100"
sys.path.insert(0, str(ROOT))

from tests.support.every_verb import (  # noqa: E402
    ANSWERS,
    LINES,
    LISTS,
    REQUESTS,
    keys,
)
from tests.support.faults import FAULTS, ODD  # noqa: E402
from tests.support.healthy_cluster import cluster_with  # noqa: E402

from orchestrator.cli.main import (  # noqa: E402
    GROUPS,
    every_parser,
    verbs_of,
)
from orchestrator.doctor.rules.support.catalogue import catalogue  # noqa: E402
from orchestrator.doctor.rules.support.registry import run_rules  # noqa: E402
from orchestrator.loading.profiles import load_stack, stack_names  # noqa: E402
from orchestrator.model.finding import Finding  # noqa: E402
from orchestrator.monitoring.catalogue import CATALOGUE  # noqa: E402
from orchestrator.node.dispatch import VERBS  # noqa: E402
from orchestrator.protocol.link import LEADERS, MEMBERS  # noqa: E402
from orchestrator.protocol.report import Report  # noqa: E402
from orchestrator.protocol.staging import StagingRequest, Watch  # noqa: E402

TOLD = "Made from the code when this site is built."
KINDS = {
    "rule": "doctor",
    "plan": "plan and up",
    "transport": "what NCCL logged",
    "nettest": "nettest",
    "bench": "bench",
    "golden": "golden",
    "checkpoint": "checkpoint check",
    "gang": "status, why, guard",
    "cause": "causes of a failure",
}
BESIDE = {
    "README.md": "overview.md",
    "README.zh.md": "zh/overview.md",
    "CONTRIBUTING.md": "contributing.md",
    "tests/contract/contract.md": "results/contract.md",
    "tests/chaos/chaos.md": "results/chaos.md",
    "tests/simulation/simulation.md": "results/simulation.md",
    "tests/gpu/measured.md": "results/measured.md",
    "tests/tp32/tp32.md": "results/tp32.md",
    "tests/lab/faults.md": "reference/lab-faults.md",
}
"""Files of the repository that are pages of the site, with their places there."""


def commands() -> str:
    """Every verb with its --help."""
    lines = ["# Commands", "", TOLD, "`l40s-deploy help VERB` shows the same.", ""]
    groups = {
        name.rpartition(".")[2]: f"{summary} ({group})"
        for group, verbs in GROUPS.items()
        for name, summary in verbs.items()
    }
    parsers = verbs_of(every_parser())
    for verb, summary in {**groups, **{verb: "" for verb in parsers if verb not in groups}}.items():
        lines += [f"## {verb}", "", summary, ""]
        for parser in _below(parsers[verb]):
            lines += ["```text", parser.format_help().rstrip(), "```", ""]
    return "\n".join(lines)


def _below(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for inner in verbs_of(parser).values():
        yield from _below(inner)


def findings() -> str:
    """Every finding and cause; of a rule, what it says of each fault that a test breaks a node with."""
    lines = ["# Findings and causes", "", TOLD, "`l40s-deploy doctor --explain ID` explains one.", ""]
    lines += ["A rule's faults are tests: each breaks one of four nodes, and is found there and nowhere else."]
    shown = _examples()
    for kind, title in KINDS.items():
        lines += ["", f"## {title[0].upper()}{title[1:]}"]
        for entry in (one for one in catalogue().values() if one.kind == kind):
            lines += ["", f"### {entry.id}", "", f"{_sentence(entry.title)}"]
            if entry.explain != entry.title:
                lines += ["", entry.explain]
            lines += ["", f"Reads: {'; '.join(entry.reads)}. Source: {entry.source}"]
            if entry.id in shown:
                lines += ["", "| fault | severity | seen as | costs | fix |", "|---|---|---|---|---|", *shown[entry.id]]
    return "\n".join(lines) + "\n"


def _examples() -> dict[str, list[str]]:
    """Rows of a table for each rule's id."""
    rows: dict[str, list[str]] = {}
    for fault in FAULTS:
        found = run_rules(cluster_with(ODD, fault.breaks, fault.trials))
        meant = next(one for one in found if one.id == fault.says and one.severity is fault.severity)
        rows.setdefault(fault.says, []).append(_row(fault.name, *_told(meant)))
    return rows


def _told(one: Finding) -> tuple[str, ...]:
    return one.severity.value, one.title, one.effect, one.fix


def metrics() -> str:
    """The exporter's metrics and the alerts."""
    lines = ["# Metrics and alerts", "", TOLD, "", "## Metrics", "", "| metric | labels | meaning |", "|---|---|---|"]
    lines += [_row(f"`{one.name}`", ", ".join(one.labels), one.help) for one in CATALOGUE.values()]
    lines += [
        "",
        "## Alerts",
        "",
        "| alert | severity | after | explained by | meaning | what to do |",
        "|---|---|---|---|---|---|",
    ]
    for alert in yaml.safe_load((ROOT / "templates/monitoring/l40s.rules.yml").read_text("utf-8"))["groups"][1][
        "rules"
    ]:
        told = alert["annotations"]
        text = _row(
            alert["alert"], alert["labels"]["severity"], alert.get("for", "at once"), f"`{told['explain']}`",
            told["description"], told["runbook"],
        )  # fmt: skip
        lines.append(re.sub(r"\{\{ *\$labels\.(\w+) *\}\}", lambda found: found[1].upper(), text))
    return "\n".join(lines) + "\n"


def inventory() -> str:
    """Every variable, as the reference inventory explains it."""
    text = (ROOT / "inventory/reference.yml").read_text("utf-8")
    return f"# Inventory\n\n`inventory/reference.yml` explains every variable.\n\n```yaml\n{text}```\n"


def advisories() -> str:
    """Published vulnerabilities of the stacks, from their files."""
    rows: dict[str, list[str]] = {}
    for stack in map(load_stack, stack_names()):
        for one in stack.advisories:
            row = _row(f"[{one.id}]({one.source})", one.published, "{}", one.what, one.when)
            rows.setdefault(row, []).append(one.package)
    found = sorted(row.format(", ".join(dict.fromkeys(packages))) for row, packages in rows.items())
    head = ["| id | published | in | what an attacker can do | when it matters |", "|---|---|---|---|---|"]
    return (
        "\n".join(["# Published vulnerabilities of the stacks", "", "From the stacks' files.", "", *head, *found])
        + "\n"
    )


def messages() -> str:
    """What controller and nodes write to each other."""
    lines = [
        "# Messages of the node agent",
        "",
        TOLD,
        "[The node agent](../agent.md) explains them.",
        "",
        "## Verbs",
        "",
    ]
    for verb in sorted(VERBS):
        place, _, name = VERBS[verb].partition(":")
        module = importlib.import_module(place)
        meaning = module.__doc__ if name in ("answer", "stream") else getattr(module, name).__doc__
        lines += [f"### {verb}", "", _first(meaning), "", f"Request: `{keys(REQUESTS[verb]) or '-'}`", ""]
        answer = ANSWERS.get(verb) or LINES.get(verb) or LISTS.get(verb)
        how = " (one a line)" if verb in LINES else " (a list)" if verb in LISTS else ""
        lines += [f"Answer{how}: `{keys(answer)}`" if answer else "Answer: text of its own.", ""]
    lines += ["## Staging request", "", f"`{keys(StagingRequest)}`", "", "### watch", "", f"`{keys(Watch)}`", ""]
    lines += ["## Report", "", f"`{keys(Report)}`", "", "## Leader link", "", "| from | message | keys | meaning |"]
    lines += ["|---|---|---|---|"]
    for side, known in (("member", MEMBERS), ("leader", LEADERS)):
        lines += [_row(side, name, f"`{keys(kind)}`", _first(kind.__doc__)) for name, kind in known.items()]
    return "\n".join(lines) + "\n"


def documents() -> str:
    """The JSON documents of the commands, read from what they write."""
    lines = [
        "# JSON documents",
        "",
        TOLD,
        "Every verb with `--json` prints one document; `status --watch` one a line.",
        "",
    ]
    lines += [
        "An error is the last line of stderr: `{error{what where fix}}`. `NAME[]` is a list; `...` stands for",
        "",
    ]
    lines[-2:] = [
        "An error is the last line of stderr: `error{what where fix}`. `NAME[]` is a list; `...` more keys.",
        "",
    ]
    for path in sorted((ROOT / "src").rglob("*.py")):
        source = _Source(path)
        shapes = list(source.written())
        if shapes := [shape for shape in dict.fromkeys(shapes) if shape not in ("", "...")]:
            lines += [f"## {path.stem.replace('_', ' ')}", "", *(f"- `{shape}`" for shape in shapes), ""]
    return "\n".join(lines)


class _Source:
    """A module's text, and where the functions that it calls are."""

    def __init__(self, path: Path) -> None:
        self.tree = ast.parse(path.read_text("utf-8"))
        self._functions = {one.name: one for one in ast.walk(self.tree) if isinstance(one, ast.FunctionDef)}
        self._imports = {
            alias.asname or alias.name: (str(one.module), alias.name)
            for one in ast.walk(self.tree)
            if isinstance(one, ast.ImportFrom)
            for alias in one.names
        }

    def written(self) -> Iterator[str]:
        """The documents that this module prints."""
        for function in self._functions.values():
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "screen.json" and node.args:
                    yield self.shape(node.args[0], frozenset({function.name}), function)

    def shape(self, node: ast.expr, seen: frozenset[str], scope: ast.FunctionDef) -> str:
        """The keys of a JSON value; '' for a plain one, '...' where they are not written down in one place."""
        if isinstance(node, ast.Dict):
            return " ".join(
                self._pair(key, value, seen, scope) for key, value in zip(node.keys, node.values, strict=True)
            )
        if isinstance(node, ast.IfExp):
            return self.shape(node.body, seen, scope) or self.shape(node.orelse, seen, scope)
        if isinstance(node, ast.ListComp | ast.GeneratorExp):
            return self.shape(node.elt, seen, scope)
        if isinstance(node, ast.Call):
            return self._called(node, seen)
        return self._named(node, seen, scope) if isinstance(node, ast.Name) else ""

    def _named(self, node: ast.Name, seen: frozenset[str], scope: ast.FunctionDef) -> str:
        """A variable is what the function first gives it."""
        if f"{scope.name}.{node.id}" in seen:
            return "..."
        assigned = [
            one.value
            for one in ast.walk(scope)
            if isinstance(one, ast.Assign) and any(ast.unparse(target) == node.id for target in one.targets)
        ]
        return self.shape(assigned[0], seen | {f"{scope.name}.{node.id}"}, scope) if assigned else "..."

    def _pair(self, key: ast.expr | None, value: ast.expr, seen: frozenset[str], scope: ast.FunctionDef) -> str:
        if key is None:
            return self.shape(value, seen, scope) or "..."
        inner = self.shape(value, seen, scope)
        many = (
            "[]"
            if isinstance(value, ast.ListComp | ast.List) or ast.unparse(value).startswith(("list(", "sorted("))
            else ""
        )
        name = key.value if isinstance(key, ast.Constant) else "NAME"
        return f"{name}{many}{{{inner}}}" if inner not in ("", "...") else f"{name}{many}"

    def _called(self, node: ast.Call, seen: frozenset[str]) -> str:
        name = ast.unparse(node.func)
        module, _, function = name.rpartition(".")
        source: _Source = self
        if target := self._imports.get(module or name):
            inner = ".".join(target) if module else target[0]
            found = importlib.util.find_spec(inner) if inner.startswith("orchestrator") else None
            if found is None or not found.origin:
                return ""
            source, function = _Source(Path(found.origin)), function if module else target[1]
        elif module:
            return ""
        return source.of(function, seen) if function not in seen else ""

    def of(self, name: str, seen: frozenset[str]) -> str:
        """The keys of what a function returns, and of what it adds to it by name."""
        if name not in self._functions:
            return ""
        scope = self._functions[name]
        inside = list(ast.walk(scope))
        parts = [
            self.shape(one.value, seen | {name}, scope) for one in inside if isinstance(one, ast.Return) and one.value
        ]
        added = [
            f"{ast.unparse(target.value)}.{self._pair(target.slice, one.value, seen | {name}, scope)}"
            for one in inside
            if isinstance(one, ast.Assign)
            for target in one.targets
            if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant)
        ]
        return " ".join(dict.fromkeys(part for part in (*parts[:1], *added) if part))


_ITEM = re.compile(r"(?:\d+\.|[-*]) +(?=\S)")
"""How an item of a list begins."""


def indented_by_four(text: str) -> str:
    """A page whose lists have one level, with items that continue in column 4. Python-Markdown wants that, and takes
    code indented less for a paragraph. CommonMark, as GitHub shows it, lets them continue below their first word.
    """
    lines = text.split("\n")
    rewritten: list[str] = []
    fenced = False
    while lines:
        line = lines.pop(0)
        fenced ^= line.startswith("```")
        rewritten.append(line)
        item = None if fenced else _ITEM.match(line)
        if item is not None:
            body = _continued(lines, " " * item.end())
            del lines[: len(body)]
            rewritten += [f"    {part[item.end() :]}".rstrip() for part in body]
    return "\n".join(rewritten)


def _continued(lines: list[str], indent: str) -> list[str]:
    """The lines of an item after its first: indented as its text is, with the blank ones between them."""
    size = 0
    for number, line in enumerate(lines, 1):
        if line.startswith(indent):
            size = number
        elif line.strip():
            break
    return lines[:size]


PAGES: Mapping[str, Callable[[], str]] = {
    "commands": commands,
    "findings": findings,
    "metrics": metrics,
    "inventory": inventory,
    "json": documents,
    "messages": messages,
    "advisories": advisories,
}
"""Name of a page below docs/reference/ -> what makes it."""


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _first(doc: str | None) -> str:
    """A docstring's first sentences."""
    return " ".join((doc or "").split("\n\n")[0].split())


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def on_files(files: Any, config: Any) -> Any:
    """mkdocs: adds the pages that are no file of docs/."""
    from mkdocs.structure.files import File

    made = {f"reference/{name}.md": make for name, make in PAGES.items()}
    for place, make in made.items():
        files.append(File.generated(config, place, content=make()))
    for source, place in BESIDE.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """mkdocs: links from file to file of the repository become links from page to page, and lists mkdocs's own."""
    place = page.file.src_uri
    source = next((path for path, to in BESIDE.items() if to == place), f"docs/{place}")

    def link(found: re.Match[str]) -> str:
        text, target, anchor = found["text"], found["target"], found["anchor"] or ""
        if "://" in target or not target:
            return found.group()
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        to = BESIDE.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else "")
        return f"[{text}]({posixpath.relpath(to, posixpath.dirname(place) or '.')}{anchor})" if to else text

    linked = re.sub(r"\[(?P<text>[^\]\n]*)\]\((?P<target>[^)#\s]*)(?P<anchor>#[^)\s]*)?\)", link, markdown)
    return indented_by_four(linked)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """mkdocs: a page that loads something from another host is refused."""
    from mkdocs.exceptions import PluginError

    if far := re.search(r"<(?:script|link|img|iframe)\b[^>]*(?:src|href)=\"?(?:https?:)?//[^>]*>", output):
        raise PluginError(f"{page.file.src_uri} loads {far.group()}")
    return output.replace('<html lang="en"', '<html lang="zh"') if page.file.src_uri.startswith("zh/") else output
