"""Alembic's environment: runs migrations on the connection that `reconciler.migrate` opened."""

from alembic import context
from sqlalchemy import Connection

connection: Connection = context.config.attributes["connection"]
schema: str = context.config.attributes["schema"]

context.configure(connection=connection, version_table_schema=schema)
with context.begin_transaction():
    context.run_migrations()
