"""Tests that need the machine to themselves; each module is marked heavy."""
