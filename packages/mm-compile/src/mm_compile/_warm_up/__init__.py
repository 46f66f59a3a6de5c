"""The first steps of a training: timed, and with ``"auto"`` compiled one kind after the other."""
