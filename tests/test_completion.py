"""What a shell completes, asked as a shell asks."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from reconciler.cli import main

CONFIGURATION = """
[senders.shop]
secrets = ["env:NOT_THERE"]

[senders.shop.resources.order]

[senders.bank.resources.payment]

[destinations.payments]

[effects.capture]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """One that nothing could be started with: whoever completes is still writing it."""
    file = tmp_path / "reconciler.toml"
    file.write_text(CONFIGURATION)
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "more.toml").write_text("[senders.shop.resources.invoice]\n")
    return file


def completed(line: str, config: Path | str) -> tuple[list[str], str]:
    """What bash would offer at the end of *line*, and what was said beside it."""
    words = line.split(" ")
    ran = subprocess.run(
        [sys.executable, "-m", "reconciler"],
        env={
            **os.environ,
            "RECONCILER_CONFIG": str(config),
            "_RECONCILER_COMPLETE": "bash_complete",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return [line.partition(",")[2] for line in ran.stdout.split()], ran.stderr


def test_names_of_the_configuration_are_completed(config: Path):
    """Senders, their kinds, destinations, effects; commands and options are click's."""
    assert (["bank", "shop"], "") == completed("reconciler reconcile ", config)
    assert (["invoice", "order"], "") == completed("reconciler reconcile shop ", config)
    assert (["payments"], "") == completed("reconciler outbox list --destination ", config)
    assert (["capture"], "") == completed("reconciler outbox list --effect c", config)
    assert (["shop"], "") == completed("reconciler purge --sender s", config)
    assert (["purge"], "") == completed("reconciler pu", config)


def test_the_configuration_that_the_line_names_is_asked(config: Path):
    line = f"reconciler reconcile --config {config} "
    assert (["bank", "shop"], "") == completed(line, "/nowhere/else.toml")


@pytest.mark.parametrize("broken", [None, "not TOML at all [", "senders = 5", ""])
def test_whatever_is_wrong_a_shell_hears_nothing_of_it(tmp_path: Path, broken: str | None):
    file = tmp_path / "reconciler.toml"
    if broken is not None:
        file.write_text(broken)
    assert ([], "") == completed("reconciler reconcile ", file)


def test_completing_does_not_load_what_serving_needs(config: Path):
    """A key press is answered before a database could be thought of."""
    program = (
        "import sys\nfrom reconciler.cli import main\ntry:\n    main()\nexcept SystemExit:\n"
        "    pass\nprint(sorted({'pydantic', 'sqlalchemy', 'psycopg'} & set(sys.modules)))"
    )
    environment = {
        **os.environ,
        "RECONCILER_CONFIG": str(config),
        "_RECONCILER_COMPLETE": "bash_complete",
        "COMP_WORDS": "reconciler reconcile ",
        "COMP_CWORD": "2",
    }
    began = time.monotonic()
    ran = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv = ['reconciler']\n" + program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "plain,shop" in ran.stdout
    assert "[]" == ran.stdout.splitlines()[-1]
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(shell: str):
    ran = CliRunner().invoke(main, ["completion", shell])
    assert 0 == ran.exit_code
    assert f"_RECONCILER_COMPLETE={shell}_complete" in ran.stdout


def test_bash_takes_its_script():
    script = CliRunner().invoke(main, ["completion", "bash"]).stdout
    ran = subprocess.run(
        ["bash", "--norc", "-c", f"{script}\ncomplete -p reconciler"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "_reconciler_completion" in ran.stdout
    assert "" == ran.stderr
