"""The face as users write it, seen by the type checker and at run time."""
