"""Create the process group of this process, describe it, and end it."""
