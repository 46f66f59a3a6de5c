"""``python -m mm_runner`` is the ``mm-runner`` command."""

import sys

from mm_runner.cli import main

if __name__ == "__main__":
    sys.exit(main())
