"""reconciler(1): made of what the command line says of itself, and nothing is left out."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from reconciler.cli import main
from reconciler.cli.manual import EXIT_CODES, page, plain
from tests.mutants import place_of

ROOT = Path(__file__).parent.parent


def every_command(group: click.Group, above: click.Context):
    for name in group.list_commands(above):
        command = group.get_command(above, name)
        here = click.Context(command, info_name=name, parent=above)
        if isinstance(command, click.Group):
            yield from every_command(command, here)
        else:
            yield here.command_path, command


def test_every_command_and_option_is_on_the_page():
    text = page()
    for path, command in every_command(main, click.Context(main, info_name="reconciler")):
        _, found, after = text.partition(f'.SS "{plain(path)} ')
        assert found, path
        section = re.split(r"^\.S[SH]", after, flags=re.MULTILINE)[0]
        for parameter in command.params:
            for option in parameter.opts if isinstance(parameter, click.Option) else ():
                assert plain(option) in section, (path, option)


def test_the_exit_codes_are_those_of_the_documentation():
    text = (ROOT / "docs" / "commands.md").read_text().partition("## Exit codes")[2]
    said = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    assert said == set(EXIT_CODES)


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_the_page_is_shown_without_a_warning(tmp_path: Path, columns: str):
    """By groff, which is what `man` asks; a line that begins with a dot is text all the same."""
    if shutil.which("groff") is None:
        pytest.skip("LOUD: groff is not installed, the manual page was not looked at")
    file = tmp_path / "reconciler.1"
    file.write_text(page())
    ran = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", f"-rLL={columns}n", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (0, "") == (ran.returncode, ran.stderr)
    shown = re.sub(".\x08", "", ran.stdout)  # bold is written twice
    assert "       ./config/reconciler.toml\n" in shown


def test_the_page_needs_nothing_but_click():
    """It is made when the wheel is built, where nothing else is installed."""
    program = """
import sys, click
from reconciler.cli.manual import page
page()
loaded = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
print(sorted(loaded & {"pydantic", "sqlalchemy", "psycopg", "httpx", "starlette", "structlog"}))
"""
    ran = subprocess.run(
        [sys.executable, "-P", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(place_of("reconciler").parent)},
    )
    assert "[]" == ran.stdout.strip()
