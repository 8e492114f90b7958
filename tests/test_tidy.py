"""Habits that no linter checks."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted([*ROOT.glob("reconciler/**/*.py"), *ROOT.glob("outbox/**/*.py")])
BANNED = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_fits_in_the_head(path):
    """
    A module says what it is for in its first line, stays under 300 lines but for the
    settings' own reference, keeps each function on one screen, and leaves nothing undone.
    """
    source = path.read_text()
    tree = ast.parse(source)

    assert ast.get_docstring(tree), "say what the module is for"
    if path.name != "models.py":
        assert len(source.splitlines()) <= 300
    assert not BANNED.search(source)
    assert "utils" not in path.name
    assert "helpers" not in path.name
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno - node.lineno < 70, f"{node.name} is longer than a screen"


def test_only_commands_print():
    """Results go through the command line's own functions; a library never prints."""
    for path in MODULES:
        if "cli" in path.parts:
            continue
        calls = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "print"
        ]
        assert not calls, f"{path} prints"
