"""
The manual page reconciler(1), made of what `--help` says.

    python -m reconciler.cli.manual > reconciler.1
"""

import inspect
import sys
from collections.abc import Iterator

import click

from reconciler.cli import main

EXIT_CODES = {
    0: "done",
    1: "failed",
    2: "the command line is wrong",
    3: "attention: --dry-run --exit-code found drift, or a drill failed",
    4: "it needs a decision, and nobody is there to take it",
    69: "the database is out of reach",
    75: "busy: another run, process or transaction holds it",
    78: "the configuration is invalid, or the database is not migrated",
}
FILES = {
    "./config/reconciler.toml": "the configuration, and conf.d/*.toml beside it",
    "/etc/reconciler/reconciler.toml": "the same, where the first is not there",
    "/var/lib/reconciler": "the state directory: the private PostgreSQL, where there is one",
}
ENVIRONMENT = {
    "RECONCILER_CONFIG": "the configuration file, where --config is not given",
    "RECONCILER_SECTION__KEY": "overrides one value of the configuration",
    "STATE_DIRECTORY": "the state directory, as systemd gives it",
    "PGPASSFILE": "where libpq finds passwords",
}
SPECIAL = {
    "\\": "\\e",
    "-": "\\-",
    "`": "\\(ga",
    "'": "\\(aq",
    "~": "\\(ti",
    "^": "\\(ha",
    '"': "\\(dq",
}
ESCAPES = str.maketrans(SPECIAL)


def page() -> str:
    """The whole page, in roff with the `man` macros."""
    top = click.Context(main, info_name="reconciler")
    return "\n".join(
        [
            '.TH RECONCILER 1 "" "Reconciler" "User Commands"',
            ".ad l",  # options and paths are too long to be spread over a line
            ".SH NAME",
            "reconciler \\- the webhook receiver that is right anyway",
            ".SH SYNOPSIS",
            ".B reconciler",
            "[\\fIOPTIONS\\fR] \\fICOMMAND\\fR [\\fIARGS\\fR]...",
            ".SH DESCRIPTION",
            *paragraphs(main.help or ""),
            ".SH OPTIONS",
            *options(main, top),
            ".SH COMMANDS",
            *commands(main, top),
            ".SH EXIT STATUS",
            *tagged({str(code): meaning for code, meaning in EXIT_CODES.items()}),
            ".SH ENVIRONMENT",
            *tagged(ENVIRONMENT),
            ".SH FILES",
            *tagged(FILES),
            ".SH SEE ALSO",
            ".BR systemd.service (5),",
            ".BR psql (1)",
            "",
        ]
    )


def commands(group: click.Group, above: click.Context) -> Iterator[str]:
    """Every command of *group* and of the groups in it."""
    for name in group.list_commands(above):
        command = group.get_command(above, name)
        assert command is not None
        here = click.Context(command, info_name=name, parent=above)
        if isinstance(command, click.Group):
            yield from commands(command, here)
            continue
        usage = " ".join([here.command_path, *command.collect_usage_pieces(here)])
        yield f'.SS "{plain(usage)}"'
        yield from paragraphs(command.help or "")
        yield from options(command, here)


def options(command: click.Command, here: click.Context) -> Iterator[str]:
    given = [each for each in command.get_params(here) if isinstance(each, click.Option)]
    records = [option.get_help_record(here) for option in given]
    yield from tagged(dict(record for record in records if record is not None))


def tagged(meanings: dict[str, str]) -> Iterator[str]:
    """Words and what they mean, one below the other."""
    for word, meaning in meanings.items():
        yield ".TP"
        yield f"\\fB{plain(word)}\\fR"
        yield plain(meaning) or "\\&"


def paragraphs(text: str) -> Iterator[str]:
    """A help text; what click leaves as it stands (after \\b) stands so here too."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        lines = paragraph.strip("\n").split("\n")
        if lines[0] != "\b":
            yield ".PP"
            yield plain(" ".join(line.strip() for line in lines))
            continue
        head, *shown = lines[1:]
        yield ".PP"
        yield plain(head)
        yield ".RS 4"
        yield ".EX"
        yield from map(plain, (line.strip() for line in shown))
        yield ".EE"
        yield ".RE"


def plain(text: str) -> str:
    """
    *text* for roff: nothing in it is a request or an escape.

    >>> plain("--dry-run"), plain(".toml")
    ('\\\\-\\\\-dry\\\\-run', '\\\\&.toml')
    """
    escaped = text.translate(ESCAPES)
    return "\\&" + escaped if escaped.startswith((".", "'")) else escaped


if __name__ == "__main__":
    sys.stdout.write(page())
