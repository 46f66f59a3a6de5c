"""What the program asked the device for: name and arguments, in order."""

RECORDED = []


def record(name, *arguments):
    RECORDED.append((name, *arguments))
