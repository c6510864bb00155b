"""Services that keep the tables in order: each a loop, and one pass that returns what it did."""

from __future__ import annotations

from .prune import Pruner
from .reap import Reaper
from .sweep import Sweeper

__all__ = ["Pruner", "Reaper", "Sweeper"]
