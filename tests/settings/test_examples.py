"""The examples in the docstrings of the settings are true."""

import doctest
import importlib
import pkgutil

import pytest

from reconciler import settings

MODULES = sorted(each.name for each in pkgutil.iter_modules(settings.__path__))


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_true(name: str):
    """What a docstring shows is what comes out."""
    module = importlib.import_module(f"reconciler.settings.{name}")

    assert 0 == doctest.testmod(module).failed
