"""What the nine share: parameters, gradients and states of a dtype end to end in one tensor.

With the restrictions of the real ones. All is packed once, at the first call that finds a gradient:
a parameter without one is never updated, a gradient that is replaced later is not seen, a state
that is loaded later has no effect. Attributes that others look at have the real ones' names.
"""

import torch

_DTYPES = (torch.float32, torch.float16)


class Pack:
    """The parameters of one group and dtype, with flat views of them and of their gradients."""

    def __init__(self, params, flat_params, flat_grads):
        self.params = params
        self.flat_params = flat_params
        self.flat_grads = flat_grads
        self.state = {}

    def of_each(self, flat):
        """Cut ``flat`` into views, one for each parameter."""
        pieces = torch.split(flat, [p.numel() for p in self.params])
        return [piece.view(p.shape) for piece, p in zip(pieces, self.params, strict=True)]


def _memory(tensor):
    """Return all that lies in the memory of a tensor, flat: of a view, the whole base."""
    storage = getattr(tensor, "untyped_storage", tensor.storage)()
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage)


def _combine(tensors):
    """Lay the memories of tensors end to end, and let the tensors be views of that."""
    if not tensors:
        return None
    memories = [_memory(tensor.detach()) for tensor in tensors]
    flat = torch.cat(memories)
    start = 0
    for tensor, memory in zip(tensors, memories, strict=True):
        offset = start + tensor.storage_offset()
        tensor.data = flat.as_strided(tensor.shape, tensor.stride(), offset)
        start += len(memory)
    return flat


def _size(tensors):
    return sum(len(_memory(tensor.detach())) for tensor in tensors)


def _find_parameters(group, dtype):
    params = [p for p in group["params"] if p.grad is not None]
    for p in params:
        if p.dtype not in _DTYPES:
            raise TypeError(
                f"Fused optimizer's parameters must be float32 or float16, got {p.dtype}"
            )
        if p.grad.is_sparse:
            raise RuntimeError("Fused optimizer does not support sparse gradients")
    return [p for p in params if p.dtype == dtype]


class NpuFusedOptimizerBase(torch.optim.Optimizer):
    """A subclass gives ``init_state`` and ``update``. Closures run without gradients."""

    counts_steps = True

    def __init__(self, params, defaults):
        self.is_fused_optimizer = True
        self.is_params_grads_combined = False
        self.is_states_combined = False
        self.params_lists_indexed_by_group = []
        self.params_all_group_combined = [None, None]
        self.grads_all_group_combined = [None, None]
        self._packs_indexed_by_group = []
        super().__init__(params, defaults)

    def init_state(self, p, group):
        """Return the state of a parameter that has none."""
        raise NotImplementedError

    def update(self, pack, group):
        """Update one pack in place."""
        raise NotImplementedError

    @property
    def combined_param_states_indexed_by_group(self):
        return [[pack.state for pack in packs] for packs in self._packs_indexed_by_group]

    @torch.no_grad()
    def step(self, closure=None):
        loss = closure() if closure is not None else None
        if not self.is_params_grads_combined:
            self._maybe_init_combined_params_and_grads()
        if not self.is_states_combined:
            self._maybe_init_combined_states()
        for group, packs in zip(self.param_groups, self._packs_indexed_by_group, strict=False):
            self._count_step(group)
            for pack in packs:
                if pack.params:
                    if "step" in pack.state:
                        pack.state["step"] += 1
                    self.update(pack, group)
        return loss

    def _count_step(self, group):
        if self.counts_steps:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p]["step"] += 1  # KeyError of one whose gradient came too late

    @torch.no_grad()
    def _maybe_init_combined_params_and_grads(self):
        if self.is_params_grads_combined:
            return
        lists = [[_find_parameters(g, dtype) for dtype in _DTYPES] for g in self.param_groups]
        sizes = [
            [(_size(params), _size([p.grad for p in params])) for params in pair] for pair in lists
        ]
        for i in range(len(_DTYPES)):
            params = [p for pair in lists for p in pair[i]]
            self.params_all_group_combined[i] = _combine(params)
            self.grads_all_group_combined[i] = _combine([p.grad for p in params])
        self.params_lists_indexed_by_group = lists
        self._packs_indexed_by_group = self._cut(lists, sizes)
        self.is_params_grads_combined = any(p for pair in lists for p in pair)

    def _cut(self, lists, sizes):
        starts = [[0, 0] for _ in _DTYPES]
        packs = []
        for params_of_group, sizes_of_group in zip(lists, sizes, strict=True):
            packs.append([])
            for i, (params, size) in enumerate(zip(params_of_group, sizes_of_group, strict=True)):
                flats = (self.params_all_group_combined[i], self.grads_all_group_combined[i])
                cut = [
                    None if flat is None else flat[start : start + length]
                    for flat, start, length in zip(flats, starts[i], size, strict=True)
                ]
                starts[i] = [start + length for start, length in zip(starts[i], size, strict=True)]
                packs[-1].append(Pack(params, *cut))
        return packs

    @torch.no_grad()
    def _maybe_init_combined_states(self):
        if self.is_states_combined:
            return
        for group, packs in zip(self.param_groups, self._packs_indexed_by_group, strict=False):
            for pack in packs:
                self._combine_states(pack, group)
        self.is_states_combined = bool(self._packs_indexed_by_group)

    def _combine_states(self, pack, group):
        for p in pack.params:
            loaded = {
                name: value.clone() if isinstance(value, torch.Tensor) else value
                for name, value in self.state[p].items()
            }
            self.state[p].update(loaded or self.init_state(p, group))
        states = [self.state[p] for p in pack.params]
        names = list(states[0]) if states else []
        pack.state = {
            # One counter for all: the first one's.
            name: states[0]["step"] if name == "step" else _combine([s[name] for s in states])
            for name in names
        }

    @torch.no_grad()
    def zero_grad(self, set_to_none=False):
        if set_to_none:
            raise ValueError("set_to_none is not supported in fused optimizers")
        if not self.is_params_grads_combined:
            self._maybe_init_combined_params_and_grads()
        for flat in self.grads_all_group_combined:
            if flat is not None:
                flat.zero_()

    @torch.no_grad()
    def clip_grad_norm_fused_(self, max_norm, norm_type=2):
        if not self.is_params_grads_combined:
            self._maybe_init_combined_params_and_grads()
        flats = [flat for flat in self.grads_all_group_combined if flat is not None]
        norms = [torch.linalg.vector_norm(flat.float(), norm_type) for flat in flats]
        total = torch.linalg.vector_norm(torch.stack(norms), norm_type)
        factor = max_norm / (total + 1e-6)
        if factor < 1:
            for flat in flats:
                flat.mul_(factor)
        return total

    def get_combined_params(self):
        return self.params_all_group_combined

    def get_combined_grads(self):
        return self.grads_all_group_combined


def zeros(p, *names):
    """Return a state of zeros, and no step taken."""
    return {"step": 0, **{name: torch.zeros_like(p) for name in names}}


def check(is_good, name, value):
    if not is_good:
        raise ValueError(f"Invalid {name}: {value}")


def check_not_negative(**values):
    for name, value in values.items():
        check(value >= 0.0, name, value)


def check_betas(betas):
    for beta in betas:
        check(0.0 <= beta < 1.0, "beta", beta)
