"""``python -m mm_dist`` is the ``mm-dist`` command."""

import sys

from mm_dist._command import main

if __name__ == "__main__":
    sys.exit(main())
