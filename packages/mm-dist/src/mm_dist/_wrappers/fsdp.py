"""Sharded data parallelism: every rank holds a part of each parameter."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from mm_dist._errors import ConfigError
from mm_dist._torch_private import register_before_loading
from mm_dist._wrappers._steps import (
    OptimWrapperProtocol,
    call_with_batch,
    insert_module,
    run_train_step,
)

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class MMFullyShardedDataParallel(nn.Module):
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
        cpu_offload: Keep parameters, gradients and optimizer state on the CPU between uses.
        auto_wrap_policy: Which modules are gathered separately; without it all parameters are
            gathered at once. Classes, class names, patterns on module names (``"layers.*"``, in
            which ``*`` also matches dots) or several of them;
            ``dict(min_num_params=1_000_000)``; ``dict(type="transformer",
            transformer_layer_cls=...)``; or a function of a module.
        backward_prefetch: Unused: the next group is always fetched ahead.
        mixed_precision: ``dict(param_dtype=..., reduce_dtype=..., output_dtype=...,
            cast_forward_inputs=True)``; dtypes may be names. ``reduce_dtype`` defaults to
            ``param_dtype``; ``output_dtype`` is that of the outermost call; batch normalizations
            stay in float32. A policy object of ``fully_shard`` is used everywhere as it is.
        param_init_fn: Called with each module that itself holds something on the meta device, once
            that has memory; fills what the module holds itself. Defaults to the module's
            ``reset_parameters()``.
        use_orig_params: Unused: parameters are never flattened.
        device_mesh: A ``DeviceMesh`` of one dimension (shards) or two (copies, shards), or its
            sizes as ``(2, 4)``. Two dimensions mean ``"hybrid"`` where no strategy is given.
        ignored_modules: Frozen modules, or patterns on their names, whose parameters stay whole on
            each rank.
        sync_module_states: Begin with the values of the first rank, as data parallelism does.
        mesh: ``dict(data=2, tensor=2)``: parameters are sharded over the data ranks, and the layers
            that ``plan`` names are split over the tensor ranks, which take the same batches. Ranks
            that follow one another are tensor ranks. ``data`` defaults to what is left.
        plan: What the tensor ranks split. Patterns on module names, of which the last that matches
            counts, with styles: ``{"layers.*.q": "colwise", "layers.*.out": "rowwise"}``. An error
            lists the styles; torch's ``ParallelStyle`` objects are accepted too. ``"auto"`` takes
            the plan that a model brings as ``_tp_plan``, or the one shipped for it.

    Attributes:
        module: The sharded model.
        device_mesh: The ranks.
        data_rank: Data-parallel rank: that among ranks that take different batches.
        num_data_ranks: Data-parallel world size.
        sharding_strategy: Name of the strategy in effect.

    Raises:
        ArgumentTypeError: If ``module`` is no module.
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
        ignored_modules: Iterable[nn.Module | str] | None = None,
        sync_module_states: bool = True,
        mesh: Mapping[str, int] | None = None,
        plan: Mapping[str, Any] | str | None = None,
    ) -> None:
        del backward_prefetch, use_orig_params
        super().__init__()
        # What shards takes long to import, and few processes need it.
        from mm_dist._wrappers._sharding import shard_module  # noqa: PLC0415

        self.device_mesh, self.sharding_strategy, self._heads = shard_module(
            module,
            {
                "process_group": process_group,
                "sharding_strategy": sharding_strategy,
                "cpu_offload": cpu_offload,
                "auto_wrap_policy": auto_wrap_policy,
                "mixed_precision": mixed_precision,
                "param_init_fn": param_init_fn,
                "device_mesh": device_mesh,
                "ignored_modules": ignored_modules,
                "sync_module_states": sync_module_states,
                "mesh": mesh,
                "plan": plan,
            },
        )
        data_mesh = self.device_mesh if mesh is None else self.device_mesh["data"]
        ranks = data_mesh.mesh.flatten().tolist()
        self.data_rank, self.num_data_ranks = ranks.index(data_mesh.get_rank()), len(ranks)
        self.module = module
        self._is_synchronizing = True
        # In a tuple: were it a module itself, it would become a part of this one.
        self._checked_optimizers: tuple[Any] = (None,)
        register_before_loading(self, insert_module)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module, whose parameters are gathered for it."""
        outputs = self.module(*args, **kwargs)
        if not torch.is_grad_enabled():
            # No backward will come to do it, and outside of steps parameters are to be shards.
            self.reshard()
        return outputs

    def train_step(self, data: Any, optim_wrapper: OptimWrapperProtocol) -> dict[str, Any]:
        """Run forward, backward and the optimizer on one batch.

        Arguments and result are those of ``MMDistributedDataParallel.train_step``.

        Raises:
            ArgumentTypeError: If the batch is no mapping, list or tuple.
            ConfigError: If the optimizer holds the parameters from before the sharding.
        """
        if optim_wrapper is not self._checked_optimizers[0]:
            self._check_optimizer(optim_wrapper)
            self._checked_optimizers = (optim_wrapper,)
        return run_train_step(self, data, optim_wrapper)

    def _check_optimizer(self, optim_wrapper: Any) -> None:
        """Raise if an optimizer was built before the sharding, which made new parameters."""
        if not any(_is_sharded(one) and one.requires_grad for one in self.parameters()):
            return  # whole ones are as they were
        groups = getattr(optim_wrapper, "param_groups", [])
        if isinstance(groups, Mapping):  # of several optimizers, by name
            groups = [group for named in groups.values() for group in named]
        parameters = [parameter for group in groups for parameter in group["params"]]
        if parameters and not any(map(_is_sharded, parameters)):
            raise ConfigError(
                "The optimizer holds parameters from before the model was sharded, so that its "
                "steps would change nothing; build it from the parameters of "
                f"{type(self).__name__}."
            )

    def val_step(self, data: Any) -> Any:
        """Return the module's ``val_step(data)``, with its own parameters gathered.

        Without one, that is ``forward(..., mode='predict')`` of what the ``data_preprocessor``
        returns. A collective operation: every rank evaluates equally many batches.
        """
        return self._evaluate("val_step", data)

    def test_step(self, data: Any) -> Any:
        """Return the module's ``test_step(data)``, as ``val_step`` does."""
        return self._evaluate("test_step", data)

    def _evaluate(self, name: str, data: Any) -> Any:
        model: Any = self.module
        try:
            if hasattr(model, name):
                # It may use layers directly, past the call that would gather their parameters.
                self._heads[-1].unshard()
                return getattr(model, name)(data)
            batch = model.data_preprocessor(data, False)  # noqa: FBT003 (MMEngine's order)
            return call_with_batch(self, batch, mode="predict")
        finally:
            self.reshard()

    def reshard(self) -> None:
        """Free all gathered parameters, even between a forward and its backward."""
        for head in self._heads:
            head.reshard()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients on each rank, without exchanging them.

        The context has to include backward, which is when sharded gradients are exchanged. Until
        the next exchange each rank holds whole gradients.
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

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return this rank's shards as ``DTensor`` objects, by the names of the bare model."""
        return self.module.state_dict(*args, **kwargs)

    def full_state_dict(self) -> dict[str, Any]:
        """Return the model's whole state on the CPU of the first rank, an empty dict elsewhere.

        Names are those of the bare model. Every rank must call this, or it hangs.
        """
        from mm_dist._wrappers import _sharded_state  # noqa: PLC0415 (slow)

        return _sharded_state.read_model(self.module, self.device_mesh)

    def load_full_state_dict(self, state_dict: Mapping[str, Any], *, strict: bool = True) -> None:
        """Load a whole state of this wrapper or of the bare model; that of the first rank counts.

        Every rank must call this, or it hangs.

        Raises:
            ConfigError: On all ranks, if names (unless ``strict`` is false) or shapes do not fit.
        """
        from mm_dist._wrappers import _sharded_state  # noqa: PLC0415 (slow)

        _sharded_state.load_model(self.module, self.device_mesh, state_dict, strict=strict)

    def sharded_state_dict(self) -> dict[str, Any]:
        """Return this rank's part of the model's state, with the names that the bare model has.

        ``torch.distributed.checkpoint.save`` writes it from all ranks, and ``load`` fills it on
        any number of ranks.
        """
        from torch.distributed.checkpoint import (  # noqa: PLC0415 (slow to import)
            state_dict,
        )

        return state_dict.get_model_state_dict(self.module)

    def load_sharded_state_dict(
        self, state_dict: Mapping[str, Any], *, strict: bool = True
    ) -> None:
        """Load what ``sharded_state_dict`` returned and ``torch.distributed.checkpoint`` filled."""
        from torch.distributed.checkpoint.state_dict import (  # noqa: PLC0415 (slow to import)
            StateDictOptions,
            set_model_state_dict,
        )

        options = StateDictOptions(strict=strict)
        set_model_state_dict(self.module, dict(state_dict), options=options)

    def optimizer_state_dict(
        self, optimizer: torch.optim.Optimizer, *, kind: Literal["full", "sharded"] = "full"
    ) -> dict[str, Any]:
        """Return the state of an optimizer of this wrapper, by names of parameters.

        Every rank must call this. Parameters that no gradient has reached have no state. The result
        has ``state`` and ``param_groups`` as torch's ``get_optimizer_state_dict``.

        Args:
            optimizer: Built from parameters of this wrapper.
            kind: ``"full"`` for all of it on the CPU of the first rank, and an empty dict
                elsewhere; ``"sharded"`` for this rank's part.

        Raises:
            ConfigError: If the optimizer holds other parameters, or ``kind`` is not known.
        """
        from mm_dist._wrappers import _sharded_state  # noqa: PLC0415 (slow)

        return _sharded_state.read_optimizer(self.module, self.device_mesh, optimizer, kind)

    def load_optimizer_state_dict(
        self,
        optimizer: torch.optim.Optimizer,
        state_dict: Mapping[str, Any],
        *,
        kind: Literal["full", "sharded"] = "full",
    ) -> None:
        """Load what ``optimizer_state_dict`` returned, on any number of ranks.

        Every rank must call this. Of kind ``"full"``, the first rank's ``state_dict`` counts.

        Raises:
            ConfigError: On all ranks, if the state does not fit.
        """
        from mm_dist._wrappers import _sharded_state  # noqa: PLC0415 (slow)

        _sharded_state.load_optimizer(self.module, self.device_mesh, optimizer, state_dict, kind)


def _is_sharded(parameter: Any) -> bool:
    return hasattr(parameter, "placements")
