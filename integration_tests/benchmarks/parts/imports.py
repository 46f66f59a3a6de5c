"""(b) How long the imports of a training script take, after ``import torch`` and together with it.

Each in a fresh interpreter, of files that were read before.
"""

import subprocess
import sys

from trainers import PEERS

TITLE = "Imports"
BASE = "torch"
AIM = "mm_runner takes at most 150 milliseconds more than torch"
SYSTEMS = {
    BASE: "torch",
    "mm_runner": "mm-runner",
    "mm_amp": "mm-amp",
    "mm_dist": "mm-dist",
    "mm_compile": "mm-compile",
    **PEERS,
}
ROUNDS, QUICK_ROUNDS, TOGETHER = 5, 0, False  # a start includes them
_STATEMENTS = {
    BASE: "",
    "mm_runner": "from mm_runner import Runner",
    "mm_amp": "from mm_amp import AmpOptimWrapper",
    "mm_dist": "import mm_dist",
    "mm_compile": "import mm_compile",
    "lightning_fabric": "from lightning_fabric import Fabric",
    "lightning_trainer": "from pytorch_lightning import LightningModule, Trainer",
    "accelerate": "from accelerate import Accelerator",
    "mmengine": "from mmengine.runner import Runner",
    "onedl_mmengine": "from mmengine.runner import Runner",
    "transformers": "from transformers import Trainer, TrainingArguments",
}
_SCRIPT = """
from time import perf_counter
begin = perf_counter()
import torch
middle = perf_counter()
{}
print(middle - begin, perf_counter() - middle)
"""


def measure(systems, quick, folder):  # noqa: ARG001 (a part's signature)
    (system,) = systems
    command = [sys.executable, "-c", _SCRIPT.format(_STATEMENTS[system])]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    torch, own = (float(text) * 1e3 for text in done.stdout.split()[-2:])
    values = {"milliseconds with torch": torch + own}
    if system != BASE:
        values["milliseconds after torch"] = own
    return {system: values}
