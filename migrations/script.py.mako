"""${message}."""

from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    """Unqualified names are in the configured schema. Ask for short locks only."""
    op.execute("""
    """)
