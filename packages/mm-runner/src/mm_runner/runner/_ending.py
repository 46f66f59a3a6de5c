"""What is done when a training ends, in whatever way."""

from __future__ import annotations

import traceback
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from mm_runner.loops import EndOfTrainingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mm_runner.runner import Runner

    from ._receipt import RunReceipt

__all__ = ["cleaning_up", "run_to_its_end"]


def run_to_its_end(runner: Runner, receipt: RunReceipt) -> None:
    """Run the training loop; ``run()`` of a subclass may let through what ends it between steps.

    Args:
        runner: The run.
        receipt: Knows whether ``after_train`` was called.
    """
    try:
        runner.train_loop.run()
    except EndOfTrainingError:
        if not receipt.has_ended:
            runner.call_hook("after_train")


@contextmanager
def cleaning_up(runner: Runner, *more: Callable[[], object]) -> Iterator[None]:
    """Let hooks and loops clean up after the block, all of them, whatever fails meanwhile.

    Args:
        runner: The run.
        more: Called last, in this order.

    Raises:
        Exception: The first that cleaning up raised, unless the block raised one. The log tells of
            all.
    """
    try:
        yield
    except BaseException:
        _clean_up(runner, more)
        raise
    failures = _clean_up(runner, more)
    if failures:
        raise failures[0]


def _clean_up(runner: Runner, more: tuple[Callable[[], object], ...]) -> list[Exception]:
    runner.is_training = False
    failures = []
    for what, act in _acts(runner, more):
        try:
            act()
        except Exception as error:  # noqa: BLE001 - a hook of the user's may raise anything
            failures.append(error)
            # Without the error of the training, which is on its way.
            lines = traceback.format_exception(type(error), error, error.__traceback__, chain=False)
            runner.logger.error(  # noqa: TRY400
                f"{what} failed as the training ended; the rest was cleaned up.\n{''.join(lines)}"
            )
    return failures


def _acts(
    runner: Any, more: tuple[Callable[[], object], ...]
) -> Iterator[tuple[str, Callable[[], object]]]:
    for hook in runner.hooks:
        yield f"{type(hook).__name__}.clean_up()", partial(hook.clean_up, runner)
    for phase in ("train", "val"):
        loop = runner.built_loop(phase)
        if hasattr(loop, "close"):  # a loop of the user's own need not have it
            yield f"{type(loop).__name__}.close()", loop.close
    for act in more:
        yield getattr(act, "__qualname__", repr(act)), act
