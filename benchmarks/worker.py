"""The measured worker, as a user would write it. `python -m benchmarks.worker URL SCHEMA CONCURRENCY BATCH`"""

from __future__ import annotations

import sys

from pgqueue import App

__all__ = ["HANDLERS", "app_over"]

HANDLERS = ("async", "def")


def app_over(url: str, schema: str) -> App:
    """A new app with one no-op action per kind of handler, named for it."""
    app = App(url, schema=schema)

    @app.task(name="async")
    async def _(i: int) -> None: ...

    @app.task(name="def")
    def _(i: int) -> None: ...

    return app


if __name__ == "__main__":
    _, url, schema, concurrency, batch = sys.argv
    sys.exit(app_over(url, schema).run_worker(burst=True, concurrency=int(concurrency), batch=int(batch)))
