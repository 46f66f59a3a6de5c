"""Sharded data parallelism: every rank holds a part of each parameter."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from mm_dist._wrappers._sharded_methods import ShardedStateMethods
from mm_dist._wrappers._sharded_names import hide_from_names
from mm_dist._wrappers._sharding_checks import check_optimizer
from mm_dist._wrappers._steps import (
    OptimWrapperProtocol,
    call_with_batch,
    check_methods,
    run_train_step,
)

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class MMFullyShardedDataParallel(ShardedStateMethods, nn.Module):
    """torch's ``fully_shard`` with the steps that a training loop calls, in MMEngine's words.

    The module is sharded in place: its parameters become ``DTensor`` objects that hold one part
    each, are gathered group by group for forward and backward, and are parts again between steps.
    So the optimizer is built after this wrapper, from its parameters. The module provides the
    methods that ``MMDistributedDataParallel`` describes; ``val_step`` and ``test_step`` may be
    missing, then ``forward(..., mode='predict')`` takes their place. A model that is to be
    compiled is compiled in place (``module.compile()``), before or after.

    Args:
        module: The model, on any device. On the meta device, it gets its values group by group
            while it is sharded, so that it never has to fit anywhere as a whole. From the CPU it
            moves to the device of this process.
        process_group: The ranks. Defaults to all.
        sharding_strategy: ``"full"`` (the default), ``"grad-op"`` (parameters stay gathered
            between forward and backward), ``"hybrid"`` and ``"hybrid-grad-op"`` (shards within
            each machine, copies across machines), ``"no-shard"`` (copies only); or the names and
            members of torch's first ``ShardingStrategy``.
        cpu_offload: Keep parameters, gradients and optimizer state on the CPU between uses. A
            boolean, or ``dict(pin_memory=False)``.
        auto_wrap_policy: Which modules are gathered separately; without it all parameters are
            gathered at once. Classes, class names, patterns on module names (``"layers.*"``, in
            which ``*`` also matches dots) or several of them;
            ``dict(min_num_params=1_000_000)``; ``dict(type="transformer",
            transformer_layer_cls=...)``; or a function of a module.
        backward_prefetch: Without effect: the next group is always fetched ahead.
        mixed_precision: ``dict(param_dtype=..., reduce_dtype=..., output_dtype=...,
            cast_forward_inputs=True, full_precision_modules=["_BatchNorm"])``; dtypes may be
            names. ``reduce_dtype`` defaults to ``param_dtype``. ``output_dtype`` and
            ``cast_root_forward_inputs`` are for the outermost call. A policy object of
            ``fully_shard`` is used everywhere as it is.
        param_init_fn: Called with each module that itself holds something on the meta device, once
            that has memory; fills what the module holds itself. Defaults to the module's
            ``reset_parameters()``.
        use_orig_params: Always the case.
        device_mesh: A ``DeviceMesh`` of one dimension (shards) or two (copies, shards), or its
            sizes as ``(2, 4)``. Two dimensions mean ``"hybrid"`` where no strategy is given.
        reshard_after_forward: Overrides when parameters are freed, the outermost group's too; a
            number keeps them as shards over so many ranks.
        ignored_modules: Modules, or patterns on their names, whose parameters stay whole on each
            rank. Nothing averages their gradients.
        ignored_parameters: The same for parameters.
        ignored_states: The same for either.
        sync_module_states: Begin with the values of the first rank, as data parallelism does.
        device_id: Checked against the current device of the process.
        forward_prefetch: Without effect.
        limit_all_gathers: Always the case.

    Attributes:
        module: The sharded model.
        device_mesh: The ranks.
        sharding_strategy: Name of the strategy in effect.

    Raises:
        ConfigError: If an argument cannot be used, or does not fit the model or the ranks.
        LaunchError: If there is no process group.
        TorchVersionError: Before torch 2.6, on the CPU before 2.8.

    Example:
        >>> wrapper = MMFullyShardedDataParallel(
        ...     nn.Transformer(), auto_wrap_policy=["TransformerEncoderLayer"]
        ... )  # doctest: +SKIP
    """

    def __init__(
        self,
        module: nn.Module,
        process_group: Any = None,
        sharding_strategy: Any = None,
        cpu_offload: Any = None,
        auto_wrap_policy: Any = None,
        backward_prefetch: Any = None,
        mixed_precision: Any = None,
        param_init_fn: Callable[[nn.Module], Any] | None = None,
        use_orig_params: bool = True,  # noqa: FBT001, FBT002 (MMEngine's signature)
        *,
        device_mesh: "DeviceMesh | tuple[int, ...] | None" = None,
        reshard_after_forward: bool | int | None = None,
        ignored_modules: Iterable[nn.Module | str] | None = None,
        ignored_parameters: Iterable[nn.Parameter | str] | None = None,
        ignored_states: Iterable[Any] | None = None,
        sync_module_states: bool = True,
        device_id: int | torch.device | None = None,
        forward_prefetch: bool = False,
        limit_all_gathers: bool = True,
    ) -> None:
        super().__init__()
        # What shards takes long to import, and few processes need it.
        from mm_dist._wrappers._sharding import shard_module  # noqa: PLC0415

        sharding = shard_module(
            module,
            {
                "process_group": process_group,
                "sharding_strategy": sharding_strategy,
                "cpu_offload": cpu_offload,
                "auto_wrap_policy": auto_wrap_policy,
                "backward_prefetch": backward_prefetch,
                "mixed_precision": mixed_precision,
                "param_init_fn": param_init_fn,
                "use_orig_params": use_orig_params,
                "device_mesh": device_mesh,
                "reshard_after_forward": reshard_after_forward,
                "ignored_modules": ignored_modules,
                "ignored_parameters": ignored_parameters,
                "ignored_states": ignored_states,
                "sync_module_states": sync_module_states,
                "device_id": device_id,
                "forward_prefetch": forward_prefetch,
                "limit_all_gathers": limit_all_gathers,
            },
        )
        self.module = module
        self.device_mesh = sharding.mesh
        self.sharding_strategy = sharding.strategy.name
        self._heads = sharding.heads
        self._is_synchronizing = True
        # In a tuple: were it a module itself, it would become a part of this one.
        self._checked_optimizers: tuple[Any] = (None,)
        hide_from_names(self)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module, whose parameters are gathered for it."""
        outputs = self.module(*args, **kwargs)
        if not torch.is_grad_enabled():
            # No backward will come to do it, and outside of steps parameters are to be shards.
            self.reshard()
        return outputs

    def train_step(self, data: Any, optim_wrapper: OptimWrapperProtocol) -> dict[str, Any]:
        """Run forward, backward and the optimizer on one batch.

        Args:
            data: One batch, as the model's ``data_preprocessor`` takes it. What that returns is
                passed to ``forward``: a mapping by name, a list or tuple by position.
            optim_wrapper: Provides the context of the forward pass, and runs backward.

        Returns:
            The ``log_vars`` of the model's ``parse_losses``, on the device.

        Raises:
            ArgumentTypeError: If the module lacks a method that a step needs, or the batch is no
                mapping, list or tuple.
            ConfigError: If the optimizer holds the parameters from before the sharding.
        """
        if optim_wrapper is not self._checked_optimizers[0]:
            check_optimizer(self, optim_wrapper)
            self._checked_optimizers = (optim_wrapper,)
        return run_train_step(self, data, optim_wrapper)

    def val_step(self, data: Any) -> Any:
        """Return the module's ``val_step(data)``, with its own parameters gathered.

        Without one, that is ``forward(..., mode='predict')`` of what the ``data_preprocessor``
        returns. A collective operation: every rank evaluates equally many batches.

        Raises:
            ArgumentTypeError: If the module has neither.
        """
        return self._evaluate("val_step", data)

    def test_step(self, data: Any) -> Any:
        """Return the module's ``test_step(data)``, as ``val_step`` does.

        Raises:
            ArgumentTypeError: If the module has neither.
        """
        return self._evaluate("test_step", data)

    def _evaluate(self, name: str, data: Any) -> Any:
        model: Any = self.module
        try:
            if hasattr(model, name):
                # It may use layers directly, past the call that would gather their parameters.
                self._heads[-1].unshard()
                return getattr(model, name)(data)
            check_methods(self, name, "data_preprocessor")
            batch = model.data_preprocessor(data, False)  # noqa: FBT003 (MMEngine's order)
            return call_with_batch(self, batch, mode="predict")
        finally:
            self.reshard()

    def reshard(self) -> None:
        """Free gathered parameters; those of a forward whose backward is still to come too."""
        for head in self._heads:
            head.reshard()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients on each rank, without exchanging them.

        The context has to include backward, which is when sharded gradients are exchanged. Until
        the next exchange each rank holds whole gradients.

        Example:
            >>> with wrapper.no_sync():  # doctest: +SKIP
            ...     wrapper(batch).sum().backward()
        """
        before = self._is_synchronizing
        self.set_requires_gradient_sync(requires_gradient_sync=False)
        try:
            yield
        finally:
            self.set_requires_gradient_sync(requires_gradient_sync=before)

    def set_requires_gradient_sync(self, requires_gradient_sync: bool) -> None:  # noqa: FBT001
        """Set whether the next backward exchanges gradients, as torch's method of this name."""
        self._is_synchronizing = requires_gradient_sync
        self._heads[-1].set_requires_gradient_sync(requires_gradient_sync)
