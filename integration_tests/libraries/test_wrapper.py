"""MMEngine's own Runner trains two processes on the CPU with mm-dist's wrapper, as documented."""

import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "en" / "distributed_training.md"
SCRIPT = """
import use_mm_dist
import mm_dist
import torch
from mmengine.model import BaseModel
from mmengine.runner import Runner


class Line(BaseModel):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, inputs, labels, mode="tensor"):
        return {"loss": torch.nn.functional.mse_loss(self.layer(inputs), labels)}


runner = Runner(
    model=Line(),
    work_dir="work",
    launcher="pytorch",
    train_dataloader=dict(
        dataset=torch.utils.data.TensorDataset(torch.randn(16, 4), torch.randn(16, 1)),
        batch_size=4,
        sampler=dict(type="DefaultSampler", shuffle=True),
        collate_fn=dict(type="default_collate"),
    ),
    train_cfg=dict(by_epoch=True, max_epochs=2),
    optim_wrapper=dict(optimizer=dict(type="SGD", lr=0.1)),
    cfg=dict(model_wrapper_cfg=dict(type="MMDistributedDataParallel")),
)
before = runner.model.module.layer.weight.detach().clone()
runner.train()
weight = runner.model.module.layer.weight.detach()
assert isinstance(runner.model, mm_dist.MMDistributedDataParallel)
first, second = mm_dist.all_gather(weight)
assert torch.equal(first, second)
assert not torch.equal(weight, before)
"""


def test_runner_of_mmengine_trains_with_the_wrapper(tmp_path):
    example = PAGE.read_text(encoding="utf-8").split("# use_mm_dist.py\n")[1].split("```")[0]
    (tmp_path / "use_mm_dist.py").write_text(example, encoding="utf-8")
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, *launcher, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
