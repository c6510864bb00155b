"""A worker in threads of the caller's process: what `with app.worker(…)` runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..config import WorkerConfig
from .service import Worker

if TYPE_CHECKING:
    from ..app import App

__all__ = ["background"]


@contextmanager
def background(app: App, config: WorkerConfig) -> Iterator[Worker]:
    """A worker that claims while the block runs. What kept it from starting, or ended it, is raised here.

    Where the block itself raises, its error passes, with a note if the worker had failed as well. One that is no
    Exception (Ctrl-C) counts as the second signal: what runs is released.
    """
    worker = Worker(app, config)
    failures: list[BaseException] = []

    def main() -> None:
        try:
            worker.run()
        except BaseException as error:  # noqa: BLE001 - raised in the block's thread
            failures.append(error)
        finally:
            worker.started.set()

    thread = threading.Thread(target=main, name="pgqueue-worker", daemon=True)
    thread.start()
    try:
        worker.started.wait()
        if not failures:
            yield worker
    except BaseException as error:
        worker.stop()
        if not isinstance(error, Exception):
            worker.stop()
        thread.join()
        for failure in failures:
            error.add_note(f"the worker had failed: {type(failure).__name__}: {failure}")
        raise
    worker.stop()
    thread.join()
    for failure in failures:
        raise failure
