"""The reference page says what the models say, and nothing else."""

import re
from pathlib import Path

from reconciler.settings.explain import keys_of
from reconciler.settings.models import Settings
from reconciler.settings.reference import is_table, tables, with_reference
from reconciler.settings.values import Section

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def every_model(model=Section):
    for inner in model.__subclasses__():
        if inner.__module__.startswith("reconciler.settings.") and inner.__name__ != "Overrides":
            kinds = [*every_model(inner)]
            yield from kinds or [inner]  # a model of several kinds stands in none of its own


def test_the_page_is_what_the_models_make():
    """Keys, types, limits, defaults and meanings on the page are those of the models."""
    page = PAGE.read_text(encoding="utf-8")

    assert with_reference(page) == page, "run `python -m reconciler.settings.reference`"


def test_no_key_is_left_out():
    """
    Counted the other way round: each key of each model is a row below its table's header. The
    three small tables that may stand where an expression stands are described in words.
    """
    page = PAGE.read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (.+?)\n\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    shown = set()

    for header, model in tables(Settings, ""):
        shown.add(model)
        rows = sections.get(f"`{header}`" if header else "Top level", "")
        for key, field in keys_of(model).items():
            assert is_table(field) or f"| `{key}` |" in rows, f"{header} {key}"

    words = {"TimeSpec", "VersionSpec", "FieldSpec"}
    assert words == {model.__name__ for model in set(every_model()) - shown}
    for model in set(every_model()) - shown:
        assert all(f"`{key}`" in page or f"{key}, " in page for key in keys_of(model))


def test_every_key_has_a_meaning():
    """A key without a sentence about it would be a row that says nothing."""
    for model in every_model():
        for key, field in keys_of(model).items():
            assert field.description, f"{model.__name__}.{key}"
            assert field.description.endswith("."), f"{model.__name__}.{key}"
