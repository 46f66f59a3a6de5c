"""Properties of the Runner: parts of a run, and values read from its loops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mm_runner.errors import ConfigError

if TYPE_CHECKING:
    from ._runner import Runner


def training_part(name: str) -> Any:
    """Property of a part that ``train()`` builds unless it was assigned; ``None`` until then."""
    return property(lambda run: vars(run).get(name), lambda run, part: _assign(run, name, part))


def loop_part(phase: str) -> Any:
    """Property of a loop, built when first read; ``None`` if its phase is not configured."""
    name = f"{phase}_loop"

    def get(run: Runner) -> Any:
        if name not in vars(run):
            loop = run.recipe.build_loop(run, phase)
            if loop is None:
                return None
            vars(run)[name] = loop
        return vars(run)[name]

    return property(get, lambda run, loop: _assign(run, name, loop))


def _assign(run: Runner, name: str, part: Any) -> None:
    if run.is_training and name not in ("val_loop", "test_loop"):
        raise ConfigError(
            f"{name} was assigned while training, which uses the one that it began with. Assign "
            "it before train()."
        )
    vars(run)[name] = part
    run.assigned_parts.add(name)


def loop_number(name: str, default: int = 0) -> Any:
    """Property of a number of the training loop; reading it does not build the loop.

    Without a loop, ``epoch`` and ``iter`` are those of the checkpoint that the weights came from.
    """

    def get(run: Runner) -> Any:
        loop = vars(run).get("train_loop")
        return run.loaded_progress.get(name, default) if loop is None else getattr(loop, name)

    return property(get)


def of_loop(phase: str, name: str) -> Any:
    """Property of an attribute of a loop, such as its dataloader."""

    def get(run: Runner) -> Any:
        loop = getattr(run, f"{phase}_loop")
        if loop is None:
            run.recipe.check_phase(phase, f"{phase}_{name}", of=AttributeError)
        return getattr(loop, name)

    return property(get)
