"""Whatever happens to a file under an editor's hands, the answer is a list of problems."""

import random
from pathlib import Path

import pytest

from reconciler.errors import ConfigError
from reconciler.operations.assembly import assemble
from reconciler.settings import examine

FILES = sorted(Path(__file__).parent.glob("*/*.toml"))
ENVIRONMENT = {"SHOP_SECRET": "XYZZY-a-shop-secret", "API_TOKEN": "XYZZY-an-api-token"}
VALUES = (
    *("5", "true", "1.5", "nan", "-1", "1979-05-27", "999999999999999999999"),
    *('"x"', '""', '"""', "'", '"5m"', '"env:"', '"file:/etc"', '"\\u0000"', '"a\\nb"', "\\"),
    *("[]", "{}", "[[", "{ a = 1 }", '["env:SHOP_SECRET"]', "=", "#"),
)
HEADERS = (
    "[senders]",
    "[senders.shop]",
    "[[senders]]",
    "[[effects]]",
    "[relay.lease]",
    "relay = 5",
)


def mangle(text: str, random: random.Random) -> str:
    lines = text.splitlines()
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(lines) + 1)
        line = lines[at] if at < len(lines) else ""
        key = line.partition("=")[0]
        place = random.randrange(len(line) + 1)
        lines[at : at + 1] = random.choice(
            (
                [],
                [line, random.choice(HEADERS)],
                [f"{key}= {random.choice(VALUES)}"],
                [line + random.choice(VALUES)],
                [line[:place] + random.choice("[]{}\"'=.,#x5 \\") + line[place + 1 :]],
                [line, line],
            )
        )
    return "\n".join(lines)


@pytest.mark.parametrize("seed", range(8))
def test_no_file_is_beyond_words(seed: int, tmp_path: Path):
    """
    Fifty files a seed, each damaged in one to three places: every problem has its file and line,
    no secret is told, and nothing but ConfigError comes out, however far the rest is compiled.
    """
    chance = random.Random(seed)
    for _ in range(50):
        file = tmp_path / "mangled.toml"
        file.write_text(mangle(chance.choice(FILES).read_text(encoding="utf-8"), chance))

        for problem in examine(file, environ=ENVIRONMENT).problems:
            assert file == problem.file
            assert problem.line
            assert "XYZZY-a" not in str(problem)
        try:
            assemble(file, environ=ENVIRONMENT)
        except ConfigError as error:
            assert error.problems  # noqa: PT017
