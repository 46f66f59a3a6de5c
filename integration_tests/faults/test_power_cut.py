"""A power cut at any moment leaves a whole checkpoint, of the last save that had returned."""

import pytest
import torch
from disk_record import DiskRecord, states_after_cuts
from small_run import BATCHES, EPOCHS, build
from typing_extensions import override

from mm_runner.checkpoint import latest_readable
from mm_runner.errors import CheckpointError
from mm_runner.hooks import Hook

pytestmark = pytest.mark.cut

EVERY_SAVE = range(BATCHES, BATCHES * EPOCHS + 1, BATCHES)


class NoteSaves(Hook):
    """Notes when a save has returned, and the weights that are in it; the last of all hooks."""

    priority = "LOWEST"

    def __init__(self, record):
        self.record, self.weights = record, {}

    @override
    def after_train_epoch(self, runner):
        state = runner.model.state_dict()
        self.weights[runner.iter] = {name: value.clone() for name, value in state.items()}
        self.record.note("saved", runner.iter)


@pytest.fixture(scope="module", params=[False, True], ids=["in-the-step", "by-a-thread"])
def recorded(request, tmp_path_factory):
    """A run that keeps one checkpoint only, recorded; and whether a thread has written it."""
    record = DiskRecord(tmp_path_factory.mktemp("recorded"))
    hook = NoteSaves(record)
    checkpoint = {"max_keep_ckpts": 1, "async_save": request.param}
    runner = build(record.directory, checkpoint=checkpoint, custom_hooks=[hook], log_level="ERROR")
    with record.recording():
        runner.train()
    return record.steps, hook.weights, request.param


def find_failures(steps, saved_weights, folder, *, may_be_under_way):
    """Return ``(steps done, what was there)`` of each state that is not as promised."""
    failures, count = [], 0
    for count, (done, state) in enumerate(states_after_cuts(steps)):
        work_dir = folder / str(count)
        work_dir.mkdir()
        for name, content in state.items():
            (work_dir / name).write_bytes(content)
        returned = [step[1] for step in steps[:done] if step[0] == "saved"]
        # What a thread writes is whole when the next save begins.
        promised = returned[:-1] if may_be_under_way else returned
        try:
            _, content = latest_readable(work_dir, lambda _: None)
        except CheckpointError:
            content = None
        number = 0 if content is None else content["meta"]["iter"]
        is_equal = content is None or all(
            torch.equal(value, saved_weights[number][name])
            for name, value in content["state_dict"].items()
        )
        if number < max(promised, default=0) or not is_equal:
            failures.append((done, sorted(state)))
    num_changes = sum(step[0] in ("create", "rename", "remove") for step in steps)
    # Two files of each save, and each change of the directory is a state of its own at least.
    assert count >= num_changes >= 4 * EPOCHS, "the record is too short to be of a run"
    return failures


def test_every_legal_state_has_a_whole_checkpoint(recorded, tmp_path):
    steps, saved_weights, by_thread = recorded
    kinds = [step[0] for step in steps]
    # Each save: the checkpoint and the file that names it, both synchronized and renamed.
    assert kinds.count("rename") >= 2 * EPOCHS
    assert kinds.count("sync") == kinds.count("sync_directory") == kinds.count("rename")
    assert kinds.count("remove") == EPOCHS - 1
    assert list(saved_weights) == list(EVERY_SAVE)
    failures = find_failures(steps, saved_weights, tmp_path, may_be_under_way=by_thread)
    assert not failures


@pytest.mark.parametrize("forgotten", ["sync", "sync_directory"])
def test_the_model_notices_what_is_not_synchronized(recorded, tmp_path, forgotten):
    steps, saved_weights, by_thread = recorded
    careless = [step for step in steps if step[0] != forgotten]
    assert find_failures(careless, saved_weights, tmp_path, may_be_under_way=by_thread)
