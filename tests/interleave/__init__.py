"""Two verbs on two connections, statement by statement, in every order."""
