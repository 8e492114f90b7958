"""Every fault that a configuration can have, one a file: the specification of validation."""

import re
from pathlib import Path

import pytest

from reconciler.errors import ConfigError
from reconciler.operations.assembly import assemble

FILES = sorted(Path(__file__).parent.glob("broken/*.toml"))
ENVIRONMENT = {
    "SHOP_SECRET": "a-shop-secret",
    "API_TOKEN": "an-api-token",
    "BLANK": " \r\n",
    "NOT_ASCII": "schlüssel",
}


def test_there_are_enough_of_them():
    assert len(FILES) >= 60


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_mistake_is_named_with_its_place_and_its_remedy(file):
    """
    One mistake gives one message: with the file, the line (marked `# here`), the key, and
    what would be right. A secret that was written into the file is not in it. This is what
    `check` does, and `serve` before anything else.
    """
    text = file.read_text(encoding="utf-8")
    key, words = re.fullmatch(r"# expect: (\S+) \| (.+)", text.splitlines()[0]).groups()
    marked = [number for number, line in enumerate(text.splitlines(), 1) if "# here" in line]

    with pytest.raises(ConfigError) as refused:
        assemble(file, environ=ENVIRONMENT)

    (problem,) = refused.value.problems
    assert key == problem.key
    assert words in problem.message
    assert file == problem.file
    assert marked == [problem.line]
    assert f"{file}:{problem.line}: {key}: " in str(refused.value)
    assert "XYZZY" not in str(refused.value)
    assert 78 == refused.value.exit_code
