"""Services that keep the tables in order: each a loop, and one pass that returns what it did."""

from __future__ import annotations

from .reap import Reaper

__all__ = ["Reaper"]
