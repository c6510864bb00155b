"""`pgqueue.testing`: what users test their programs with."""
