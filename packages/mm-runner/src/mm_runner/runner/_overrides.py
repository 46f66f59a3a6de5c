"""What a subclass's own methods of the Runner may have forgotten."""

from __future__ import annotations

from typing import Any

from mm_runner.errors import ConfigError, did_you_mean

__all__ = ["built_by", "check_environment", "check_seeded", "step_of_order"]

_TO_RETURN = {
    "build_dataloader": "the dataloader",
    "build_evaluator": "the evaluator",
    "build_log_processor": "the log processor",
    "build_model": "the model",
    "build_optim_wrapper": "the optimizer wrapper",
    "build_param_scheduler": "the schedules, [] for none",
    "build_test_loop": "the loop",
    "build_train_loop": "the loop",
    "build_val_loop": "the loop",
    "wrap_model": "the model",
}


def built_by(run: Any, method: str, *args: Any, **options: Any) -> Any:
    """Return what a method of the Runner builds.

    Raises:
        ConfigError: If it returned nothing.
    """
    built = getattr(run, method)(*args, **options)
    if built is None:
        raise ConfigError(
            f"{type(run).__name__}.{method}() returned None; return {_TO_RETURN[method]}."
        )
    return built


def check_environment(run: Any) -> None:
    """Check that ``setup_env`` has found the place of this process.

    Raises:
        ConfigError: If not.
    """
    if not hasattr(run, "dist_info"):
        raise _left_out(run, "setup_env(env_cfg)", "set dist_info")


def check_seeded(run: Any) -> None:
    """Check that ``set_randomness`` has chosen a seed.

    Raises:
        ConfigError: If not.
    """
    if not run._seed.is_chosen:  # noqa: SLF001 - the Runner's own
        raise _left_out(run, "set_randomness(seed, diff_rank_seed, deterministic)", "choose a seed")


def step_of_order(run: Any, name: str) -> Any:
    """Return the method that ``build_order`` names.

    Raises:
        ConfigError: If there is none.
    """
    where = f"{type(run).__name__}.build_order"
    step = getattr(run, name, None)
    if callable(step):
        return step
    if hasattr(type(run), name) or name in vars(run):
        raise ConfigError(f"{where}: {name!r} is {step!r}; a method without arguments is needed.")
    raise ConfigError(f"{where}: there is no method {name!r}.{did_you_mean(name, dir(run))}")


def _left_out(run: Any, call: str, what: str) -> ConfigError:
    method = call.partition("(")[0]
    return ConfigError(
        f"{type(run).__name__}.{method}() did not {what}; call super().{call} in it."
    )
