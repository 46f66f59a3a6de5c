"""Put off the exchange of gradients between ranks while micro-batches accumulate."""

from contextlib import ExitStack
from typing import Any


def defer_gradient_sync(model: Any) -> ExitStack:
    """Stop the gradient exchange of ``model`` until the returned stack is closed.

    The stack is meant to be closed when backward has returned: DDP decides in forward, but sharded
    models decide in backward.

    Args:
        model: A module that is, or contains, DDP (anything with ``no_sync()``) or modules of
            ``fully_shard`` (anything with ``set_requires_gradient_sync()``). Others are left alone.
    """
    stack = ExitStack()
    try:
        for module in _synchronizing_modules(model):
            _stop_sync(module, stack)
    except BaseException:
        stack.close()
        raise
    return stack


def _stop_sync(module: Any, stack: ExitStack) -> None:
    if hasattr(module, "no_sync"):
        stack.enter_context(module.no_sync())
        return
    set_sync = module.set_requires_gradient_sync
    stack.callback(set_sync, True)  # noqa: FBT003 - torch names this argument in two ways
    set_sync(False)


def _synchronizing_modules(module: Any) -> list[Any]:
    """Return the outermost modules that exchange gradients; each answers for what is inside it."""
    if hasattr(module, "no_sync") or hasattr(module, "set_requires_gradient_sync"):
        return [module]
    children = module.children() if hasattr(module, "children") else ()
    return [found for child in children for found in _synchronizing_modules(child)]
