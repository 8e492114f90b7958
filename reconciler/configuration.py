"""Where the configuration is looked for; apart from reading it, which takes so much longer."""

from collections.abc import Mapping
from pathlib import Path

from reconciler.errors import ConfigError

SEARCHED = (Path("config/reconciler.toml"), Path("/etc/reconciler/reconciler.toml"))


def find_main(path: Path | None, environ: Mapping[str, str]) -> Path:
    """Where the main file is: *path*, `RECONCILER_CONFIG`, or the usual places, in this order."""
    if path is None and environ.get("RECONCILER_CONFIG"):
        path = Path(environ["RECONCILER_CONFIG"])
    if path is not None:
        return path
    for candidate in SEARCHED:
        if candidate.is_file():
            return candidate
    raise ConfigError(
        f"there is no configuration: looked for {' and '.join(map(str, SEARCHED))};"
        " name a file with --config or RECONCILER_CONFIG"
    )
