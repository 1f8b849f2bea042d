"""Run by Alembic: migrate over the connection the program hands in, in the transaction it has begun."""

from alembic import context

from metaclaw.store.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
