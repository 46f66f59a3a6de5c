"""(b) How long the imports of a training script take, after ``import torch``.

Each in a fresh interpreter, of files that were read before.
"""

import subprocess
import sys

TITLE = "Imports"
BASE = "mm_runner"
AIM = "mm_runner takes at most 150 milliseconds more than torch"
SYSTEMS = {
    BASE: "mm-runner",
    "mm_amp": "mm-amp",
    "mm_dist": "mm-dist",
    "mm_compile": "mm-compile",
    "lightning_fabric": "lightning-fabric",
    "lightning_trainer": "pytorch-lightning",
    "accelerate": "accelerate",
    "mmengine": "mmengine",
    "transformers": "transformers",
}
ROUNDS, QUICK_ROUNDS, TOGETHER = 5, 2, False
QUICK_SYSTEMS = (BASE, "mm_amp", "mm_dist")
_STATEMENTS = {
    BASE: "from mm_runner import Runner",
    "mm_amp": "from mm_amp import AmpOptimWrapper",
    "mm_dist": "import mm_dist",
    "mm_compile": "import mm_compile",
    "lightning_fabric": "from lightning_fabric import Fabric",
    "lightning_trainer": "from pytorch_lightning import LightningModule, Trainer",
    "accelerate": "from accelerate import Accelerator",
    "mmengine": "from mmengine.runner import Runner",
    "transformers": "from transformers import Trainer, TrainingArguments",
}
_SCRIPT = """
from time import perf_counter
import torch
begin = perf_counter()
{}
print(perf_counter() - begin)
"""


def measure(systems, quick, folder):  # noqa: ARG001 (a part's signature)
    (system,) = systems
    command = [sys.executable, "-c", _SCRIPT.format(_STATEMENTS[system])]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return {system: {"milliseconds after torch": float(done.stdout.split()[-1]) * 1e3}}
