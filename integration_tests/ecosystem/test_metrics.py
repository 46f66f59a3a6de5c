"""Metrics of torchmetrics report on any number of ranks what they do in one process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torchmetrics")

from ecosystem import metric_cases
from torchmetrics import Metric

from mm_runner.evaluator import Evaluator

SCRIPT = Path(metric_cases.__file__)
# Detection's metrics need a torchvision that fits torch.
CASES = metric_cases.cases()


@pytest.fixture(scope="module", params=[1, 2, 3])
def reported(request, tmp_path_factory):
    """Return the Runner's report by case, after checking that all ranks agree."""
    folder, ranks = tmp_path_factory.mktemp("run"), request.param
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command = [sys.executable, *(launcher if ranks > 1 else []), str(SCRIPT), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = [json.loads(path.read_text()) for path in folder.glob("rank_*.json")]
    assert len(results) == ranks
    assert all(str(one) == str(results[0]) for one in results)  # nan is not equal to itself
    return results[0]


@pytest.mark.filterwarnings("ignore")  # of scores that are not defined for so few samples
@pytest.mark.parametrize(
    ("case", "size"),
    # With 3 ranks a dataset of 2 leaves one without a sample; torchmetrics itself has no
    # correlation of ranks with one sample each.
    [(case, size) for case in CASES for size in (7, 2) if (case, size) != ("pearson", 2)],
)
def test_ranks_report_what_one_process_does(reported, case, size):
    metric, data = metric_cases.cases()[case]
    if not isinstance(metric, Metric) and "type" in metric:
        (metric,) = (one.metric for one in Evaluator(metric).metrics)
    given = metric_cases.rows_of(data, range(size))
    if isinstance(given, dict):
        metric.update(**{name: one for name, one in given.items() if name != "loss"})
    else:
        metric.update(*given)
    expected = metric.compute()
    found = reported[f"{case} of {size}"]
    if not isinstance(expected, dict):
        assert len(found) == 1, found
        (found,) = found.values()
    assert plain(found) == pytest.approx(plain(expected), rel=1e-5, abs=1e-6, nan_ok=True)


def plain(value):
    """Return the numbers of nested results in one list."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return [one for key in sorted(value) for one in plain(value[key])]
    if isinstance(value, (list, tuple)):
        return [number for one in value for number in plain(one)]
    return [value]
