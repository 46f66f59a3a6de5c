"""SGD, and the rules that divide by the root of an average of squares."""

import torch

from .packing import NpuFusedOptimizerBase, check, check_not_negative, zeros


class NpuFusedSGD(NpuFusedOptimizerBase):
    counts_steps = False

    def __init__(self, params, lr, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False):
        check_not_negative(lr=lr, momentum=momentum, weight_decay=weight_decay)
        check(not nesterov or (momentum > 0 and dampening == 0), "nesterov", nesterov)
        self._has_buffers = True  # of the parameter looked at last: one flag for all
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "dampening": dampening,
                "weight_decay": weight_decay,
                "nesterov": nesterov,
            },
        )

    def init_state(self, p, group):
        return {} if group["momentum"] == 0 else {"momentum_buffer": torch.zeros_like(p)}

    def _combine_states(self, pack, group):
        if pack.params:
            self._has_buffers = bool(self.state[pack.params[-1]])
        super()._combine_states(pack, group)

    def step(self, closure=None):
        loss = super().step(closure)
        self._has_buffers = True
        return loss

    def update(self, pack, group):
        gradient = pack.flat_grads.add(pack.flat_params, alpha=group["weight_decay"])
        if group["momentum"] != 0:
            buffer = pack.state["momentum_buffer"]
            if self._has_buffers:
                buffer.mul_(group["momentum"]).add_(gradient, alpha=1 - group["dampening"])
            else:
                buffer.copy_(gradient)
            ahead = gradient.add(buffer, alpha=group["momentum"])
            gradient = ahead if group["nesterov"] else buffer
        pack.flat_params.sub_(gradient * group["lr"])


class NpuFusedAdadelta(NpuFusedOptimizerBase):
    def __init__(self, params, lr=1.0, rho=0.9, eps=1e-6, weight_decay=0):
        check_not_negative(lr=lr, eps=eps, weight_decay=weight_decay)
        check(0.0 <= rho <= 1.0, "rho", rho)
        super().__init__(params, {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay})

    def init_state(self, p, group):
        del group
        return zeros(p, "square_avg", "acc_delta")

    def update(self, pack, group):
        rho, eps = group["rho"], group["eps"]
        squares, deltas = pack.state["square_avg"], pack.state["acc_delta"]
        gradient = pack.flat_grads + group["weight_decay"] * pack.flat_params
        squares.mul_(rho).add_(gradient.square(), alpha=1 - rho)
        delta = gradient * torch.sqrt(deltas + eps) / torch.sqrt(squares + eps)
        deltas.mul_(rho).add_(delta.square(), alpha=1 - rho)
        pack.flat_params.sub_(group["lr"] * delta)


class NpuFusedRMSprop(NpuFusedOptimizerBase):
    def __init__(
        self, params, lr=1e-2, alpha=0.99, eps=1e-8, weight_decay=0, momentum=0, centered=False
    ):
        check_not_negative(
            lr=lr, eps=eps, momentum=momentum, weight_decay=weight_decay, alpha=alpha
        )
        super().__init__(
            params,
            {
                "lr": lr,
                "alpha": alpha,
                "eps": eps,
                "weight_decay": weight_decay,
                "momentum": momentum,
                "centered": centered,
            },
        )

    def init_state(self, p, group):
        names = ["square_avg"]
        names += ["momentum_buffer"] * (group["momentum"] > 0) + ["grad_avg"] * group["centered"]
        return zeros(p, *names)

    def update(self, pack, group):
        alpha, states = group["alpha"], pack.state
        gradient = pack.flat_grads + group["weight_decay"] * pack.flat_params
        states["square_avg"].mul_(alpha).add_(gradient.square(), alpha=1 - alpha)
        variance = states["square_avg"]
        if group["centered"]:
            states["grad_avg"].mul_(alpha).add_(gradient, alpha=1 - alpha)
            variance = variance - states["grad_avg"].square()
        direction = gradient / (variance.sqrt() + group["eps"])
        if group["momentum"] > 0:
            direction = states["momentum_buffer"].mul_(group["momentum"]).add_(direction)
        pack.flat_params.sub_(group["lr"] * direction)


class NpuFusedRMSpropTF(NpuFusedOptimizerBase):
    def __init__(
        self,
        params,
        lr=1e-2,
        alpha=0.9,
        eps=1e-10,
        weight_decay=0,
        momentum=0.0,
        centered=False,
        decoupled_decay=False,
        lr_in_momentum=True,
    ):
        check_not_negative(
            lr=lr, eps=eps, momentum=momentum, weight_decay=weight_decay, alpha=alpha
        )
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "alpha": alpha,
                "eps": eps,
                "centered": centered,
                "weight_decay": weight_decay,
                "decoupled_decay": decoupled_decay,
                "lr_in_momentum": lr_in_momentum,
            },
        )

    def init_state(self, p, group):
        state = zeros(p)
        state["square_avg"] = torch.ones_like(p)
        if group["momentum"] > 0:
            state["momentum_buffer"] = torch.zeros_like(p)
        if group["centered"]:
            state["grad_avg"] = torch.zeros_like(p)
        return state

    def update(self, pack, group):
        share, lr, states = 1 - group["alpha"], group["lr"], pack.state
        gradient = pack.flat_grads
        if group["decoupled_decay"]:
            pack.flat_params.mul_(1 - group["weight_decay"])
        else:
            gradient = gradient + group["weight_decay"] * pack.flat_params
        states["square_avg"].add_(gradient.square() - states["square_avg"], alpha=share)
        variance = states["square_avg"]
        if group["centered"]:
            states["grad_avg"].add_(gradient - states["grad_avg"], alpha=share)
            variance = variance - states["grad_avg"].square()
        direction = gradient / torch.sqrt(variance + group["eps"])
        if group["momentum"] == 0:
            pack.flat_params.sub_(lr * direction)
            return
        inside, outside = (lr, 1.0) if group["lr_in_momentum"] else (1.0, lr)
        buffer = states["momentum_buffer"].mul_(group["momentum"]).add_(inside * direction)
        pack.flat_params.sub_(outside * buffer)
