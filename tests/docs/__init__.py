"""The pages are held to the code: examples run, commands exist, tables and diagrams are printed from it."""
