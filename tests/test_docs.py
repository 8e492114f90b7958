"""What the documentation says is true: commands run, tables are complete, links lead on."""

import ast
import asyncio
import os
import re
import shlex
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import click
import pytest

from outbox.entry import State, Verdict
from reconciler.cli import COMMANDS, main
from reconciler.ledger.event import Outcome
from reconciler.ledger.guard import DriftKind
from reconciler.polling.slots import Mode
from reconciler.web.metrics import Metrics
from tests.mutants import MUTANTS
from tests.world import World, a_world, order_event

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md")])
FENCED = re.compile(r"^```([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`(reconciler [^`]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
SHELL = ("sh", "sh serve", "")


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def blocks(text: str, *kinds: str) -> list[tuple[str, str]]:
    return [(kind, body) for kind, body in FENCED.findall(text) if kind in kinds]


def table(text: str, heading: str) -> list[list[str]]:
    """The cells of the first table under *heading*."""
    _, _, below = ("\n" + text).partition(f"\n{heading}\n")
    rows = re.search(r"(?:^\|.*\n)+", below, re.MULTILINE)
    assert rows, heading
    split = [re.split(r"(?<!\\)\|", line.strip().strip("|")) for line in rows[0].splitlines()]
    return [[cell.strip() for cell in cells] for cells in split[2:]]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


# the command line


def commands() -> dict[str, click.Command]:
    """Every command by its words."""
    found = {}
    for name in main.list_commands(click.Context(main)):
        command = main.get_command(click.Context(main), name)
        assert command is not None
        if isinstance(command, click.Group):
            found |= {f"{name} {one}": each for one, each in command.commands.items()}
        else:
            found[name] = command
    return found


def own_options(command: click.Command) -> set[str]:
    given = {
        option
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for option in parameter.opts
    }
    return given - {"--config", "--json", "--help"}


def test_every_command_and_option_is_documented_and_no_other():
    """`docs/commands.md` and the command line name the same commands, options and arguments."""
    text = page("commands.md")
    said = {}
    for row in table(text, "## Options"):
        (name,) = code(row[0])
        said[name] = set(re.findall(r"`(--[a-z-]+)", row[1]))
    (others,) = re.findall(r"^((?:`[a-z ]+`(?:, | and )?)+) have no others", text, re.MULTILINE)
    said |= {name: set() for name in code(others)}
    assert {name: own_options(command) for name, command in commands().items()} == said

    listed = {
        words
        for row in table(text, "# Commands")
        for span in code(row[0])
        for words in [" ".join(re.findall(r"(?<!-)\b[a-z]+\b", span.removeprefix("reconciler ")))]
    }
    assert set(commands()) == listed


def test_every_command_explains_itself_with_an_example():
    for name, command in commands().items():
        assert "Example:" in (command.help or ""), name
        assert f"reconciler {name}" in (command.help or ""), name


def test_examples_stand_on_lines_of_their_own():
    """What a person copies from `--help` is one command a line, not a wrapped paragraph."""
    for name, command in {**commands(), "": main}.items():
        told = command.get_help(click.Context(command, info_name=name)).splitlines()
        at = told.index("  Example:")
        assert told[at + 1].startswith("    reconciler "), name


def test_every_command_has_json_and_config():
    for name, command in commands().items():
        options = {option for parameter in command.params for option in parameter.opts}
        assert options >= {"--config", "--json"}, name


# commands that pages show


def shown() -> Iterator[tuple[str, str]]:
    """Every `reconciler ...` in README and docs, as (page, command line)."""
    for path in PAGES:
        text = path.read_text()
        for _, body in blocks(text, *SHELL):
            for line in re.split(r"\n|&&|\|", body):
                words = line.split()
                for at, (word, following) in enumerate(pairwise(words)):
                    if is_ours(word) and following in COMMANDS:
                        yield path.name, " ".join(["reconciler", *words[at + 1 :]])
        for span in SPAN.findall(FENCED.sub("", text)):
            yield path.name, span


def is_ours(word: str) -> bool:
    return word == "reconciler" or word.endswith("/bin/reconciler")


ELSEWHERE = {
    "reconciler serve": "runs while the others do",
    "reconciler sandbox": "tests/test_sandbox.py",
    "reconciler demo": "tests/test_demo.py",
    "reconciler demo --seed 1": "tests/test_demo.py",
    # what they act on is not there in a world where all is well
    "reconciler events discard SENDER EVENT_ID": "tests/operations/",
    "reconciler events discard shop evt_9 --reason 'a test of theirs'": "tests/operations/",
    "reconciler outbox discard ID": "tests/operations/",
    "reconciler outbox discard 019adf5e-7c1b-7d5e-9c55-0d2a8c1f2a10 --reason 'paid in cash'": (
        "tests/operations/"
    ),
    "reconciler outbox redrive ID": "tests/operations/",
    "reconciler outbox resolve ID": "tests/operations/",
    "reconciler outbox resolve ID --as delivered --reason 'ch_4711 in their dashboard'": (
        "tests/operations/"
    ),
    "reconciler outbox resolve ID --as not-delivered --reason 'support says that nothing came'": (
        "tests/operations/"
    ),
    "reconciler reapply SENDER KIND [KEY]": "tests/operations/",
}
STAND_INS = {
    "SENDER": "shop",
    "KIND": "order",
    "KEY": "ord_42",
    "NAME": "payments",
    "EVENT_ID": "evt_1",
    "DIR": "history",
    "SHELL": "bash",
}


def runnable() -> list[str]:
    """What the pages show, each once, with something real where they have a word in capitals."""
    found = []
    for name, line in shown():
        if name in {"quickstart.md", "sandbox.md"} or line in ELSEWHERE:
            continue  # run as they stand, below and by tests/test_sandbox.py
        words = line.replace("[", "").replace("]", "")
        words = re.sub(r" --config \S+", "", words)
        found.append(" ".join(STAND_INS.get(word, word) for word in words.split()))
    return sorted(set(found))


def test_the_pages_show_commands():
    """The search finds something; every command is shown somewhere."""
    lines = [line for _, line in shown()]
    assert len(lines) > 20
    for name in commands():
        family = name.split()[0]
        assert any(line.split()[1] == family for line in lines), name


@pytest.mark.anyio
@pytest.mark.timeout(400)
async def test_every_command_that_the_pages_show_runs(tmp_path: Path, database_url: str):
    """Beside a running daemon, on a world that has what they ask about; each exits with 0."""
    # the daemon's own scans, every second, would hold what `reconcile` needs: it exits with 75 then
    async with a_world(tmp_path, database_url, interval="1h") as world, world.serving():
        await world.baseline_over()
        paid = order_event("evt_1", world.sender.sets("ord_42", status="paid", paid=True))
        await world.outcome(paid)
        await world.effects("capture ord_42")
        files = await files_for(world)
        for line in runnable():
            words = [files.get(word, word) for word in shlex.split(line)[1:]]
            assert "serve" != words[0], f"{line} does not end: it belongs to ELSEWHERE"
            if words[0] == "sql":
                words[1] = files["SCRIPT"]
            exit_code, out, err = await world.command(*words)
            assert (0, line) == (exit_code, line), out + err


async def files_for(world: World) -> dict[str, str]:
    """Files and ids in the place of the words that stand for them."""
    script, body = world.directory / "script.sql", world.directory / "body.json"
    script.write_text("select count(*) from orders")
    body.write_text('{"id": "evt_9", "type": "refund.succeeded", "data": {}}')
    (entry,) = await world.outbox()
    return {"FILE": str(body), "ID": str(entry["id"]), "SCRIPT": str(script)}


@pytest.mark.timeout(240)
def test_the_quick_start_works_as_it_stands(tmp_path: Path):
    """
    Its blocks, one after the other in a fresh directory; what it promises is what comes out.

    Only its ports are others, so that a daemon on this machine is not in the way.
    """
    output = asyncio.run(quick_start(tmp_path))
    answers = re.findall(r'"outcome": ?"([a-z]+)"', output)
    assert ["applied", "duplicate", "duplicate"] == answers[:3], output
    counted = re.search(r"^count\s*\n\s*(\d+)\s*$", output, re.MULTILINE)
    assert counted, output
    assert "1" == counted[1]
    assert 'charged shop:order:ord_42:3:capture {"amount":4200,"reference":"ord_42"}' in output
    assert "evt_9tX2mLq7Rk3vBn5cWd8pYs1a" in output
    assert output.rstrip().endswith("ok")


async def quick_start(directory: Path) -> str:
    tools, work = directory / "bin", directory / "w"
    tools.mkdir()
    work.mkdir()
    command = tools / "reconciler"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m reconciler "$@"\n')
    command.chmod(0o755)
    webhooks, admin, payments = free_ports(3)
    text = page("quickstart.md").replace(":3000", f":{webhooks}").replace(":3001", f":{admin}")
    text = text.replace("9001", str(payments))
    script = "\n".join(as_script(kind, body, admin=admin) for kind, body in blocks(text, *SHELL))
    clean = {name: value for name, value in os.environ.items() if "RECONCILER" not in name}
    python_path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    bash = await asyncio.create_subprocess_exec(
        *("bash", "-euo", "pipefail", "-c", script),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=work,
        env={
            **clean,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHONPATH": python_path,
            "no_proxy": "*",
        },
    )
    out, _ = await bash.communicate()
    assert 0 == bash.returncode, out.decode()
    return out.decode()


def as_script(kind: str, body: str, *, admin: int) -> str:
    """A block as a line of bash; a terminal of its own is a process in the background."""
    if kind != "sh serve":
        return body
    return f"""
{body.strip()} 2> serve.log &
SERVE=$!
trap 'kill $SERVE; wait $SERVE' EXIT
for _ in $(seq 300); do
  curl -fsS http://127.0.0.1:{admin}/readyz > /dev/null 2>&1 && break
  kill -0 $SERVE || {{ cat serve.log; exit 1; }}
  sleep 0.2
done
"""


def free_ports(number: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


# tables


def test_every_metric_is_documented_with_its_labels_and_no_other():
    metrics = Metrics(senders=("shop",))
    exposed = {}
    for family, labels in metrics.registry._collector_to_names.items():  # noqa: SLF001
        del labels
        (described,) = family.describe()
        counter = described.type == "counter"
        name = described.name + ("_total" if counter else "")
        exposed[name] = list(family._labelnames)  # noqa: SLF001
    said = {code(row[0])[0]: code(row[1]) for row in table(page("http.md"), "## Metrics")}
    assert exposed == said


def test_the_glossary_has_every_word_of_the_closed_lists():
    """What the code can say, the glossary explains, and it explains no other."""
    rows = {row[0]: code(row[1]) for row in table(page("glossary.md"), "# Glossary")}
    assert [outcome.value for outcome in Outcome] == rows["outcome"]
    assert [verdict.value for verdict in Verdict] == rows["verdict"]
    assert {drift.value for drift in DriftKind} | {"ahead"} == set(rows["drift"])
    assert {mode.value for mode in Mode} == set(rows["scan"])
    assert {state.value for state in State} >= {"pending", "delivered", "dead", "uncertain"}


def test_every_word_of_the_glossary_is_used_elsewhere():
    """A word that no page and no help text uses explains nothing."""
    helps = [command.help or "" for command in commands().values()]
    text = "\n".join(
        [path.read_text() for path in PAGES if path.name != "glossary.md"] + helps
    ).lower()
    for word, *_ in table(page("glossary.md"), "# Glossary"):
        for one in word.split(", "):
            assert re.search(rf"\b{one.lower()}", text), one


# links


def test_links_inside_the_documentation_lead_somewhere():
    for path in PAGES:
        for target in LINK.findall(FENCED.sub("", path.read_text())):
            if "://" in target:
                continue
            name, _, anchor = target.partition("#")
            there = (path.parent / name).resolve() if name else path
            assert there.exists(), f"{path.name}: {target}"
            if anchor:
                assert anchor in anchors(there.read_text()), f"{path.name}: {target}"


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# promises


def test_every_promise_names_a_test_that_exists_or_says_not_yet():
    """P1 to P20, one line each, in order."""
    rows = table(page("promises.md"), "## What is promised")
    assert [f"P{number}" for number in range(1, 21)] == [row[0].strip("*") for row in rows]
    for promise, text, proof in rows:
        named = [name for name in code(proof) if name.startswith("tests/")]
        assert named or "not yet" in proof, promise
        assert len(text) > 40, promise
        for name in named:
            assert exists(name), f"{promise}: {name}"


def test_every_mutation_is_listed_with_its_promise():
    """The page's table is the one that `python -m tests.mutants` runs, and that can be made."""
    rows = table(page("promises.md"), "## What each story catches")
    said = [(row[0], *code(row[1]), *code(row[3])) for row in rows]
    assert [(one.promise, one.file, one.story) for one in MUTANTS] == said
    for one in MUTANTS:
        assert exists(one.story), one.story
        assert 1 == one.places(), f"{one.file} has changed: see tests/mutants.py"


def exists(name: str) -> bool:
    """Whether a test file has a function of that name."""
    path, _, function = name.partition("::")
    if not (ROOT / path).is_file():
        return False
    tree = ast.parse((ROOT / path).read_text())
    tests = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    return not function or function in tests
