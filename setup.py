"""Puts `config/` and `migrations/` inside the package; pyproject.toml says everything else."""

from pathlib import Path

from setuptools import find_packages, setup

DATA = ("config", "migrations")

places = {f"reconciler.{name}": name for name in DATA}
for name in DATA:
    for directory in sorted(path for path in Path(name).rglob("*") if path.is_dir()):
        if directory.name != "__pycache__":
            places[f"reconciler.{directory.as_posix().replace('/', '.')}"] = directory.as_posix()

setup(
    packages=[*find_packages(include=["reconciler*", "outbox*"]), *places],
    package_dir=places,
    package_data={"": ["*", "*/*"]},
    exclude_package_data={"": ["*.pyc", "__pycache__/*"]},
)
