"""Minutes of load and of faults; `make stress`."""
