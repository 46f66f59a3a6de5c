"""What a process does by itself at the signals that a run listens to."""

import signal

# Of a program in the foreground: one started in the background ignores Ctrl-C.
USUAL = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGUSR1: signal.SIG_DFL,
}


def take_usual():
    """Let this process do that; return what it did."""
    return {number: signal.signal(number, handler) for number, handler in USUAL.items()}
