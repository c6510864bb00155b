"""The queue on a real server: each test has a database of its own."""
