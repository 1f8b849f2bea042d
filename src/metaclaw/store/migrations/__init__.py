"""How the schema came to be: one file a revision, applied by Alembic, never edited once released."""
