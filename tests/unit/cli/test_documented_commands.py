"""Each `l40s-deploy ...` line of a page, English or Chinese, and each in backticks, is a command that the real parser
accepts; quick start and runbooks are whole; what the program itself advises stops nothing beyond the
gang or node that it speaks of."""

from __future__ import annotations

import ast
import itertools
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt
from tests.support.advice import commands, refused
from tests.support.command_lines import commands_in, parsed, whole_lines

from orchestrator.cli.main import parser_of
from orchestrator.doctor.commands.examples import EXAMPLES
from orchestrator.loading.profiles import load_profile

ROOT = Path(__file__).parents[3]
PAGES = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))
README, RUNBOOKS = (ROOT / "README.md").read_text(), (ROOT / "docs" / "runbooks.md").read_text()
QUICK_START = README.partition("## Quick start")[2].partition("\n## ")[0]
_COMMAND = re.compile(r"^(?:.* (?:\||&&) )?l40s-deploy \S")
_MENTIONED = re.compile(r"`((?:[^`\n]* \| )?l40s-deploy\s[^`]+)`")


def lines_of(text: str) -> set[str]:
    """The commands of a page: lines of its blocks of code, and what stands in backticks."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    blocks = [token.content.splitlines() for token in tokens if token.type in ("code_block", "fence")]
    typed = {line.strip() for block in blocks for line in whole_lines(block) if _COMMAND.match(line)}
    inline = [token.content for token in tokens if token.type == "inline"]
    return typed | {" ".join(words.split()) for text in inline for words in _MENTIONED.findall(text)}


COMMANDS = sorted((str(page.relative_to(ROOT)), line) for page in PAGES for line in lines_of(page.read_text("utf-8")))
TASKS = (
    "A node died",
    "Replace a card",
    "Upgrade the stack",
    "Upgrade l40s-deploy",
    "Move to another model",
    "Power cut",
    "Router died",
    "Power cut without an outage",
)
"""Of the runbooks."""


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_the_parser_accepts_it(page: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert [parsed(words) for words in commands_in(line)]
    except SystemExit as ended:
        assert ended.code == 0, f"{page}: {line}: {capsys.readouterr().err}"


def test_the_pages_have_commands() -> None:
    pages = {page for page, _ in COMMANDS}
    assert {"README.md", "README.zh.md", "docs/runbooks.md", "docs/zh/runbooks.md", "docs/doctor.md"} <= pages


def test_the_quick_start_goes_from_hosts_to_a_service_in_this_order() -> None:
    typed = re.findall(r"(?:`|^ +)l40s-deploy ([a-z]+(?: [a-z]+)?)", QUICK_START, re.MULTILINE)
    steps = ["init", "doctor", "prepare", "checkpoint download", "checkpoint reblock", "checkpoint push", "plan", "up"]
    places = [next(number for number, words in enumerate(typed) if words.startswith(step)) for step in steps]
    assert places == sorted(places)


def test_the_checkpoint_that_it_serves_is_the_one_that_it_makes() -> None:
    served = re.findall(r"--model (\S+?)[`\s]", QUICK_START)
    served = [name for name in served if name != "NAME"]
    assert len(set(served)) == 1
    profile = load_profile(served[0])
    assert f"push l40s-0:/workspace/{profile.directory}\n" in QUICK_START
    assert f" /workspace/{profile.directory}\n" in QUICK_START


def test_each_task_starts_with_its_symptom() -> None:
    tasks = re.split(r"^## ", RUNBOOKS, flags=re.MULTILINE)[1:]
    assert tuple(task.splitlines()[0] for task in tasks) == TASKS
    assert all(task.splitlines()[2].startswith("Symptom: ") for task in tasks)
    assert "(docs/runbooks.md)" in README


def test_models_and_stacks_in_it_are_there() -> None:
    for option, folder in (("--stack", "stacks"), ("--model", "models")):
        typed = [shlex.split(line, comments=True) for page, line in COMMANDS if page == "docs/runbooks.md"]
        values = {words[words.index(option) + 1] for words in typed if option in words}
        assert all((ROOT / "inventory" / folder / f"{value}.yml").is_file() for value in values)


NAMED = "NAMED"
"""In the place of what a message fills in."""
BOUNDED = {
    "down": ("gang",),
    "restart": ("gang",),
    "rollback": ("gang",),
    "up": ("gang", "engine_args"),  # the latter: a gang or model by position
    "prepare --remove": ("node",),
    "lock --release": ("gang",),
}
"""What may end or change something that serves, or start what an operator has stopped; and what bounds it. `up`
without a model finishes only what was begun."""

PARSERS = {verb: parser_of(verb.split()[0])[0] for verb in BOUNDED}


def text_of(node: ast.expr) -> str:
    """What is known of a string before it is made; of a command's list of words, the words joined by blanks."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else NAMED
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    if isinstance(node, ast.List | ast.Tuple):
        return " ".join(text_of(part) for part in node.elts)
    return NAMED


def texts(node: ast.AST) -> Iterator[str]:
    """All strings below, without docstrings and what the help shows as examples."""
    if isinstance(node, ast.Call) and re.search("example|add_usual|in_groups", ast.unparse(node.func)):
        return
    if isinstance(node, ast.Assign | ast.AnnAssign) and "EXAMPLE" in ast.unparse(node).partition("=")[0]:
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp | ast.List):
        yield text_of(node)
    if not isinstance(node, ast.JoinedStr | ast.BinOp):
        for child in ast.iter_child_nodes(node):
            yield from texts(child)


@cache
def messages() -> tuple[tuple[str, str], ...]:
    """(file, text) of every string of the program and of its lab."""
    return tuple(
        (path.name, text)
        for source in ("src", "lab/src")
        for path in sorted((ROOT / source).rglob("*.py"))
        for text in texts(ast.parse(path.read_text()))
    )


def advised() -> set[tuple[str, str]]:
    """(file, command) for every command that a message can name."""
    return {
        (file, command) for file, text in messages() if not text.startswith(NO_ADVICE) for command in commands(text)
    }


SAMPLES = (NAMED, "1", "")
"""What a placeholder may stand for: a name, a number, nothing."""
NO_ADVICE = ("l40s-deploy completion", "# Written by `l40s-deploy export", "l40s-deploy lab break NODE FAULT [ARG]")
"""Texts that nobody is to type."""


def filled(command: str) -> Iterator[str]:
    """The command with every choice of samples in the places of what is filled in."""
    pieces = command.split(NAMED)
    for chosen in itertools.product(SAMPLES, repeat=len(pieces) - 1):
        yield "".join(itertools.chain.from_iterable(itertools.zip_longest(pieces, chosen, fillvalue="")))


def test_our_own_parser_takes_every_command_that_a_message_advises() -> None:
    """A verb that is itself filled in is not known here: FILLED_VERBS."""
    wrong = [
        f"{file}: {command}: {refused(command)}"
        for file, command in sorted(advised())
        if all(map(refused, filled(command)))
    ]
    assert wrong == []


FILLED_VERBS = {"advice.py", "arguments.py", "examples.py", "units.py"}
"""Files with messages whose verb is filled in: what advice.py completes is another file's, arguments.py adds --help to
any verb, units.py writes down the command that was typed, and what examples.py lists is in the test below. A message
that names one of two verbs has each of them as a whole command."""
_FILLED_VERB = re.compile(rf"`l40s-deploy {NAMED}|^l40s-deploy {NAMED} --|: l40s-deploy {NAMED}$")


def test_a_message_names_its_verb() -> None:
    assert {file for file, text in messages() if _FILLED_VERB.search(text)} == FILLED_VERBS


def test_every_example_that_a_verb_lists_is_a_command() -> None:
    """As `show_examples` prints them, by the verbs that call it."""
    called = [
        node.args[0]
        for path in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "show_examples"
    ]
    verbs = {text_of(verb) for verb in called}
    assert {verb.split()[0] for verb in verbs} == {"doctor", "plan"}
    assert [verb for verb in verbs for name in EXAMPLES if refused(f"{verb} --example {name}")] == []


def test_our_own_parser_takes_every_command_that_an_alert_names() -> None:
    rules = re.sub(r"\{\{.*?\}\}", NAMED, (ROOT / "templates/monitoring/l40s.rules.yml").read_text())
    alerts = [rule for group in yaml.safe_load(rules)["groups"] for rule in group["rules"] if "alert" in rule]
    named = {command for alert in alerts for text in alert["annotations"].values() for command in commands(text)}
    assert len(named) > 5 and {command: refused(command) for command in named if refused(command)} == {}


PLACEHOLDER = re.compile(r"\b(?!NAMED|LF)[A-Z]{2,}\b(?![=/])")
FILLED_LATER = {"GANG", "MODEL"}
"""By `orchestrator.protocol.advice.exact`, in what is known of an engine before it is known whose it is."""
OF_ENGINES = {"causes.py", "exceptions.py", "hang_kinds.py", "vllm_0_3x.py", "agent.py"}


def test_every_command_that_a_message_advises_can_be_pasted() -> None:
    """A word such as FILE in a command is for a sentence, or for the help: who pastes it is refused, or worse."""
    left = [
        f"{file}: {command}"
        for file, command in sorted(advised())
        for name in PLACEHOLDER.findall(command)
        if not (name in FILLED_LATER and file in OF_ENGINES)
    ]
    assert left == []


def test_no_advice_touches_more_than_the_gang_or_node_it_is_about() -> None:
    found = advised()
    assert len(found) > 100 and {"restart NAMED", "router up"} <= {command for _, command in found}
    beyond = [
        f"{file}: {command}"
        for file, command in sorted(found)
        for verb, bound in BOUNDED.items()
        if set(verb.split()) <= set(command.split()) and command.startswith(verb.split()[0])
        if not any(getattr(PARSERS[verb].parse_known_args(command.split())[0], name) for name in bound)
        if command != "up"
    ]
    assert beyond == []
