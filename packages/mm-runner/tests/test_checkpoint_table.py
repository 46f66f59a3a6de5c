"""What lies in the directory after every combination of interval, number kept, best and resume."""

from itertools import product

import pytest
from toy import Killed, Scripted, StopBeforeEpoch, loader_cfg

from mm_runner.checkpoint import load_checkpoint_file

EPOCHS = 5
SCORES = [0.5, 0.9, 0.7, 0.95, 0.8]
TINY = {"train_dataloader": loader_cfg(size=4), "train_cfg": {"max_epochs": EPOCHS}}


def expected_files(interval, keep, best):
    saved = [epoch for epoch in range(1, EPOCHS + 1) if epoch % interval == 0 or epoch == EPOCHS]
    kept = saved[-keep:] if keep > 0 else saved
    return {f"epoch_{epoch}.pth" for epoch in kept} | ({"best_accuracy.pth"} if best else set())


@pytest.mark.parametrize(
    ("stop", "in_background"),
    [(None, False), (4, False), (2, True)],
    ids=["not-stopped", "stopped", "stopped-and-asynchronously"],
)
def test_what_is_there_at_the_end(make_runner, tmp_path, stop, in_background):
    for interval, keep, best in product([1, 3], [-1, 1, 2], [None, "accuracy"]):
        case = {"interval": interval, "max_keep_ckpts": keep, "save_best": best}
        work_dir = tmp_path / f"{interval} {keep} {best}"

        def run(scores, work_dir=work_dir, case=case, **options):
            make_runner(
                **TINY,
                work_dir=work_dir,
                default_hooks={"checkpoint": {**case, "async_save": in_background}},
                val_evaluator=Scripted(values=scores),
                **options,
            ).train()

        if stop is None:
            run(SCORES)
        else:
            with pytest.raises(Killed):
                run(SCORES, custom_hooks=[StopBeforeEpoch(stop)])
            # From the newest checkpoint on, with the validation after it once more.
            start = stop - stop % interval
            run(SCORES[max(start - 1, 0) :], resume=True)
        there = {path.name for path in work_dir.glob("*.pth")}
        assert there == expected_files(interval, keep, best), case
        assert (work_dir / "last_checkpoint").read_text() == f"epoch_{EPOCHS}.pth\n"
        if best:
            record = load_checkpoint_file(work_dir / "best_accuracy.pth")
            assert record["meta"]["epoch"] == 4, case
            own = record["checkpoint_hook"]["best"]["accuracy"]
            assert (own["score"], own["epoch"]) == (0.95, 4), case
