"""What the configuration may say, and reading it."""

from reconciler.settings.lint import lint
from reconciler.settings.load import Examined, Loaded, examine, load
from reconciler.settings.models import Settings
from reconciler.settings.secrets import Secrets

__all__ = ["Examined", "Loaded", "Secrets", "Settings", "examine", "lint", "load"]
