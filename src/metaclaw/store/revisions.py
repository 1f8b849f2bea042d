"""The schema revisions this program knows, oldest first: known here so that a usual start need not import Alembic."""

REVISIONS = ("0001", "0002", "0003")
HEAD = REVISIONS[-1]
