"""Data parallelism for models that train their parts one after the other, such as GANs."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from mm_dist._errors import ConfigError
from mm_dist._process_group._timeouts import enter_steady_state
from mm_dist._progress import advance_iteration
from mm_dist._torch_private import register_before_loading
from mm_dist._wrappers import _steps
from mm_dist._wrappers._ddp_checks import check_module, check_still_frozen
from mm_dist._wrappers._recognition import is_model_wrapper
from mm_dist._wrappers._steps import insert_module
from mm_dist._wrappers.ddp import MMDistributedDataParallel


class MMSeparateDistributedDataParallel(nn.Module):
    """Data-parallel wrapper of each child, for models that train parts in turn.

    Each child with trainable parameters becomes an ``MMDistributedDataParallel``, in its place in
    the module; what the module's own ``train_step`` calls is the wrapped child. Others stay as they
    are. Names in ``state_dict()`` and in what ``load_state_dict`` takes stay those of the module.

    Args:
        module: The model, on its device already. It provides ``train_step(data, optim_wrapper)``;
            for evaluation ``val_step(data)`` and ``test_step(data)``.
        broadcast_buffers: Whether buffers follow rank 0 in each forward.
        find_unused_parameters: Whether a backward may leave out parameters of a child.
        **ddp_kwargs: Further arguments of ``MMDistributedDataParallel``, for every child.

    Raises:
        ArgumentTypeError: If an argument is not known.
        ConfigError: If nothing is trainable, the module is wrapped already, or a trainable
            parameter belongs to no child or to several of them.
        LaunchError: If there is no process group.

    Example:
        >>> model = nn.ModuleDict({"generator": nn.Linear(2, 2), "critic": nn.Linear(2, 1)})
        >>> wrapper = MMSeparateDistributedDataParallel(model)
    """

    module: Any
    val_step, test_step = _steps.val_step, _steps.test_step

    def __init__(
        self,
        module: nn.Module,
        broadcast_buffers: bool = False,  # noqa: FBT001, FBT002 (MMEngine's signature)
        find_unused_parameters: bool = False,  # noqa: FBT001, FBT002
        **ddp_kwargs: Any,
    ) -> None:
        check_module(module)
        _check_owners(module)
        super().__init__()
        self.module = module
        self._frozen: list[tuple[str, nn.Parameter]] = []
        wrapped: dict[nn.Module, nn.Module] = {}
        for name, child in list(module.named_modules(remove_duplicate=False)):
            if not name or "." in name or is_model_wrapper(child):
                continue
            if any(parameter.requires_grad for parameter in child.parameters()):
                if child not in wrapped:
                    wrapped[child] = ChildDataParallel(
                        child,
                        name,
                        broadcast_buffers=broadcast_buffers,
                        find_unused_parameters=find_unused_parameters,
                        **ddp_kwargs,
                    )
                setattr(module, name, wrapped[child])
            else:
                named = child.named_parameters()
                self._frozen += [(f"{name}.{own}", parameter) for own, parameter in named]

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the module, whose children are wrapped."""
        return self.module(*inputs, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let the gradients of all children stay on this rank, to accumulate."""
        with ExitStack() as stack:
            for child in self.module.children():
                if hasattr(child, "no_sync"):
                    stack.enter_context(child.no_sync())
            yield

    def train_step(self, data: Any, optim_wrapper: Any) -> Any:
        """Return the module's own ``train_step(data, optim_wrapper)``.

        Raises:
            GradientSyncError: If the gradients of a child were not averaged over the ranks, or a
                parameter was unfrozen since the model was wrapped.
        """
        advance_iteration()
        check_still_frozen(self._frozen)
        children = [c for c in self.module.children() if isinstance(c, ChildDataParallel)]
        for child in children:
            child.begin_step()
        log_vars = self.module.train_step(data, optim_wrapper)
        for child in children:
            child.end_step()
        enter_steady_state()
        return log_vars


class ChildDataParallel(MMDistributedDataParallel):
    """Data-parallel wrapper of one child, absent from the names of parameters."""

    def __init__(self, module: nn.Module, name: str, **kwargs: Any) -> None:
        self._name_prefix = f"{name}."
        super().__init__(module, **kwargs)
        register_before_loading(self, insert_module)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the state by the names that the child has without a wrapper."""
        return self.module.state_dict(*args, **kwargs)


def _check_owners(module: nn.Module) -> None:
    """Check that each trainable parameter belongs to exactly one child."""
    own = [name for name, p in module.named_parameters(recurse=False) if p.requires_grad]
    if own:
        raise ConfigError(
            f"{', '.join(own)} of {type(module).__name__} belongs to no child, so nothing would "
            "average its gradient; move it into a child, freeze it, or use "
            "MMDistributedDataParallel for the whole model."
        )
    owners: dict[nn.Parameter, str] = {}
    for child_name, child in module.named_children():
        for name, parameter in child.named_parameters():
            former = owners.setdefault(parameter, child_name)
            if parameter.requires_grad and former != child_name:
                raise ConfigError(
                    f"{child_name}.{name} is a parameter of {former} as well, and both would "
                    "average its gradient; keep it in one child, or use "
                    "MMDistributedDataParallel for the whole model."
                )
