"""Bugs that are planted one by one, each of which the suite must find."""
