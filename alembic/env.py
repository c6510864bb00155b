"""Alembic's entry, for `alembic …` at the root and for `pgqueue db …` alike; `pgqueue.migrate` does the work.

There is no __init__.py in this folder, ever: with one, `import alembic` at the root would find this folder
instead of the library.
"""

from __future__ import annotations

from alembic import context

from pgqueue.migrate import run_environment

run_environment(context)
