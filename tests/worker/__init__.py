"""The worker and what runs inside it, over a real server with real threads."""
