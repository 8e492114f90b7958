"""What the configuration may say, and reading it."""

from reconciler.settings.load import Loaded, load
from reconciler.settings.models import Settings
from reconciler.settings.secrets import Secrets

__all__ = ["Loaded", "Secrets", "Settings", "load"]
