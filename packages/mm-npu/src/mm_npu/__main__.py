"""``python -m mm_npu``: the ``mm-npu`` command."""

import sys

from mm_npu._command import main

sys.exit(main())
