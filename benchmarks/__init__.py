"""What the queue can do beside the floor: the same work by hand-written SQL, in the same run, on the same server."""
