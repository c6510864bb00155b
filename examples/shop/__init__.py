"""A tiny shop on pgqueue: orders in the application's own tables, and the work that follows from them."""
