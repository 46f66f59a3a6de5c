"""What one rank of a large job goes through, on torch's fake process group."""

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from mm_dist._collectives import all_gather, all_gather_object, all_reduce, all_reduce_dict
from mm_dist._errors import ConfigError, TorchVersionError
from mm_dist._info import barrier, get_dist_info, get_local_rank, get_local_size
from mm_dist._launchers import select_launcher
from mm_dist._process_group import current_info
from mm_dist._wrappers import MMDistributedDataParallel, MMFullyShardedDataParallel
from mm_dist._wrappers._comm_hooks import no_communication

_WIDTH = 256
_FAKE_GROUP = "torch.testing._internal.distributed.fake_pg"
Step = tuple[str, Callable[[], object]]


class SimulatedRank:
    """One rank among many that do not exist.

    Args:
        rank: Its number.
        world_size: How many ranks it shall believe in.
        local_world_size: How many of them on each machine.
        make_model: Returns the module to wrap, or the module and the inputs of a step.

    Raises:
        TorchVersionError: If torch has no fake process group.
    """

    def __init__(
        self, rank: int, world_size: int, local_world_size: int, make_model: Callable[[], Any]
    ) -> None:
        try:
            self._fake = importlib.import_module(_FAKE_GROUP)
        except ImportError as error:
            raise TorchVersionError(
                f"simulate needs torch's fake process group, which torch {torch.__version__} "
                "does not have; upgrade torch to 2.4 or newer."
            ) from error
        self._rank, self._world_size = rank, world_size
        self._local_world_size = local_world_size
        self._make_model = make_model
        self._model: Any = None
        self._inputs: tuple[Any, ...] | None = None
        self._wrapped: Any = None

    def steps(self, *, is_sharding: bool) -> list[Step]:
        """Return the steps of a start, in their order; call them within ``environment``."""
        steps: list[Step] = [
            ("read torchrun's variables", self.read_torchrun),
            ("read Slurm's variables", self.read_slurm),
            ("join the fake group", self.join),
            ("describe this rank", self.describe),
            ("collectives", self.communicate),
            ("build the model", self.build),
            ("wrap it (DDP)", self.wrap),
            ("one step", self.step),
        ]
        if is_sharding:
            steps += [("shard it (fully_shard)", self.shard), ("one sharded step", self.step)]
        return [*steps, ("leave", self.leave)]

    @contextmanager
    def environment(self) -> Iterator[None]:
        """Let this process look like one that torchrun started; leave the group in the end."""
        wanted = self._torchrun_variables()
        former = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        try:
            yield
        finally:
            if dist.is_initialized():
                self.leave()
            for name, value in former.items():
                os.environ.pop(name, None)
                os.environ.update({} if value is None else {name: value})

    def read_torchrun(self) -> object:
        """Read what torchrun would tell."""
        return select_launcher("pytorch", {}).read(self._torchrun_variables())

    def read_slurm(self) -> object:
        """Read what Slurm would tell, node list included."""
        return select_launcher("slurm", {}).read(self._slurm_variables())

    def join(self) -> None:
        """Join torch's fake group: nothing is connected."""
        store = self._fake.FakeStore()
        dist.init_process_group("fake", store=store, rank=self._rank, world_size=self._world_size)

    def describe(self) -> object:
        """Ask for ranks and sizes, as a script does at its start."""
        return current_info(), get_dist_info(), get_local_rank(), get_local_size()

    def communicate(self) -> None:
        """Call collectives; the results are what this rank put in."""
        tensor = torch.ones(4)
        barrier()
        all_reduce(tensor)
        all_reduce_dict({"loss": tensor, "accuracy": tensor})
        all_gather(tensor)
        all_gather_object(self._rank)

    def build(self) -> None:
        """Make the model."""
        made = self._make_model()
        self._model, self._inputs = made if isinstance(made, tuple) else (made, None)

    def wrap(self) -> None:
        """Wrap it for data parallelism."""
        self._wrapped = MMDistributedDataParallel(self._model)
        # The fake group's all-reduce returns no future for DDP to wait for.
        self._wrapped.register_comm_hook(None, no_communication)

    def shard(self) -> None:
        """Shard it over all ranks, in place."""
        self._wrapped = MMFullyShardedDataParallel(self._model)

    def step(self) -> None:
        """Forward and backward; nothing where the model came without inputs."""
        if self._inputs is None:
            return
        output = self._wrapped(*self._inputs)
        output.sum().backward()

    def leave(self) -> None:
        """Leave the group."""
        self._wrapped = self._model = None
        dist.destroy_process_group()

    def _torchrun_variables(self) -> dict[str, str]:
        node, local_rank = divmod(self._rank, self._local_world_size)
        return {
            "RANK": str(self._rank),
            "WORLD_SIZE": str(self._world_size),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(self._local_world_size),
            "GROUP_RANK": str(node),
            "GROUP_WORLD_SIZE": str(self._num_nodes),
            "MASTER_ADDR": "node0",
            "MASTER_PORT": "29500",
        }

    def _slurm_variables(self) -> Mapping[str, str]:
        node, local_rank = divmod(self._rank, self._local_world_size)
        full, rest = divmod(self._world_size, self._local_world_size)
        tasks = [f"{self._local_world_size}(x{full})", *([str(rest)] if rest else [])]
        return {
            "SLURM_JOB_ID": "1",
            "SLURM_STEP_ID": "0",
            "SLURM_PROCID": str(self._rank),
            "SLURM_NTASKS": str(self._world_size),
            "SLURM_LOCALID": str(local_rank),
            "SLURM_NODEID": str(node),
            "SLURM_STEP_NODELIST": f"node[0-{self._num_nodes - 1}]",
            "SLURM_STEP_TASKS_PER_NODE": ",".join(tasks),
        }

    @property
    def _num_nodes(self) -> int:
        return -(-self._world_size // self._local_world_size)


def small_model() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Return a small module and inputs of shape ``(2, 256)``."""
    layers = [nn.Linear(_WIDTH, _WIDTH) for _ in range(4)]
    return nn.Sequential(*layers), (torch.ones(2, _WIDTH),)


def import_factory(path: str | None) -> Callable[[], Any]:
    """Return the function that ``module:name`` means; the small model's for ``None``.

    Raises:
        ConfigError: If there is no such function.
    """
    if path is None:
        return small_model
    module_name, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"--model={path} cannot be found: {error}; write MODULE:FACTORY, where MODULE can be "
            "imported from here."
        ) from error
    if not callable(found):
        raise ConfigError(f"--model={path} is {found!r}; it must be callable without arguments.")
    factory: Callable[[], Any] = found
    return factory
