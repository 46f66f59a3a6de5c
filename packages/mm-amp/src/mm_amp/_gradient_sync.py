"""Put off the exchange of gradients between ranks while micro-batches accumulate."""

from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any

from typing_extensions import override


class SyncDeferral:
    """Hold the gradient exchange back from one forward until its backward has returned.

    Attributes:
        is_held: Whether it is held back now.
    """

    def __init__(self) -> None:
        self.is_held = False
        self._held = ExitStack()
        self._model: Any = None
        self._modules: list[Any] = []

    def hold(self, model: Any) -> None:
        """Stop the gradient exchange of ``model`` until ``release``."""
        self.release()
        if model is not self._model:  # the walk through a large model takes a while
            self._model, self._modules = model, synchronizing_modules(model)
        self._held = _stop_sync_of(self._modules)
        self.is_held = True

    def release(self) -> None:
        """Let gradients be exchanged again; does nothing if they are."""
        if self.is_held:
            self.is_held = False
            self._held.close()


class DeferredSyncContext(AbstractContextManager[None]):
    """Run a forward whose gradients wait; they do until ``release``, unless the forward fails.

    Args:
        inner: What else the forward runs in.
        deferral: Holds from entering on.
        model: Whose gradients wait.
    """

    def __init__(
        self, inner: AbstractContextManager[object], deferral: SyncDeferral, model: Any
    ) -> None:
        self._inner = inner
        self._deferral = deferral
        self._model = model

    @override
    def __enter__(self) -> None:
        self._deferral.hold(self._model)
        try:
            self._inner.__enter__()
        except BaseException:
            self._deferral.release()
            raise

    @override
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._deferral.release()
        self._inner.__exit__(kind, error, traceback)


def defer_gradient_sync(model: Any) -> ExitStack:
    """Stop the gradient exchange of ``model`` until the returned stack is closed.

    The stack is meant to be closed when backward has returned: DDP decides in forward, but sharded
    models decide in backward.

    Args:
        model: A module that is, or contains, DDP (anything with ``no_sync()``) or modules of
            ``fully_shard`` (anything with ``set_requires_gradient_sync()``). Others are left alone.
    """
    return _stop_sync_of(synchronizing_modules(model))


def synchronizing_modules(module: Any) -> list[Any]:
    """Return the outermost modules that exchange gradients; each answers for what is inside it."""
    if hasattr(module, "no_sync") or hasattr(module, "set_requires_gradient_sync"):
        return [module]
    children = module.children() if hasattr(module, "children") else ()
    return [found for child in children for found in synchronizing_modules(child)]


def _stop_sync_of(modules: list[Any]) -> ExitStack:
    stack = ExitStack()
    try:
        for module in modules:
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
