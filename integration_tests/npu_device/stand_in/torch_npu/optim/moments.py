"""The rules of Adam's family: averages of gradients and of their squares."""

import math

import torch

from .packing import NpuFusedOptimizerBase, check, check_betas, check_not_negative, zeros


def advance(pack, gradient, beta1, beta2):
    """Advance both averages, and return them."""
    average, squares = pack.state["exp_avg"], pack.state["exp_avg_sq"]
    average.mul_(beta1).add_(gradient, alpha=1 - beta1)
    squares.mul_(beta2).add_(gradient.square(), alpha=1 - beta2)
    return average, squares


class NpuFusedAdam(NpuFusedOptimizerBase):
    def __init__(
        self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, amsgrad=False
    ):
        check_not_negative(lr=lr, eps=eps, weight_decay=weight_decay)
        check_betas(betas)
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "amsgrad": amsgrad,
            },
        )

    def init_state(self, p, group):
        return zeros(p, "exp_avg", "exp_avg_sq", *["max_exp_avg_sq"] * group["amsgrad"])

    def update(self, pack, group):
        self.move(pack, group, pack.flat_grads + group["weight_decay"] * pack.flat_params)

    def move(self, pack, group, gradient):
        beta1, beta2 = group["betas"]
        average, squares = advance(pack, gradient, beta1, beta2)
        if group["amsgrad"]:
            largest = pack.state["max_exp_avg_sq"]
            squares = torch.max(largest, squares, out=largest)
        root = squares.sqrt() / math.sqrt(1 - beta2 ** pack.state["step"]) + group["eps"]
        pack.flat_params.sub_(average / root * (group["lr"] / (1 - beta1 ** pack.state["step"])))


class NpuFusedAdamW(NpuFusedAdam):
    def __init__(
        self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, amsgrad=False
    ):
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad)

    def update(self, pack, group):
        pack.flat_params.mul_(1 - group["lr"] * group["weight_decay"])
        self.move(pack, group, pack.flat_grads)


class NpuFusedAdamP(NpuFusedOptimizerBase):
    def __init__(
        self,
        params,
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0,
        delta=0.1,
        wd_ratio=0.1,
        nesterov=False,
    ):
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "delta": delta,
                "wd_ratio": wd_ratio,
                "nesterov": nesterov,
            },
        )

    def init_state(self, p, group):
        del group
        return zeros(p, "exp_avg", "exp_avg_sq")

    def update(self, pack, group):
        beta1, beta2 = group["betas"]
        gradient = pack.flat_grads
        average, squares = advance(pack, gradient, beta1, beta2)
        if group["nesterov"]:
            average = beta1 * average + (1 - beta1) * gradient
        root = squares.sqrt() / math.sqrt(1 - beta2 ** pack.state["step"]) + group["eps"]
        flats = (pack.flat_params, gradient, average / root)
        for p, g, direction in zip(*map(pack.of_each, flats), strict=True):
            moved, ratio = project(p, g, direction, group) if p.dim() > 1 else (direction, 1)
            p.mul_(1 - group["lr"] * group["weight_decay"] * ratio)
            p.sub_(moved * (group["lr"] / (1 - beta1 ** pack.state["step"])))


def project(p, gradient, direction, group):
    """Take what is parallel to ``p`` out of the direction, by channel, else by layer."""
    for rows in (p.shape[0], 1):
        of_p, of_gradient = p.reshape(rows, -1), gradient.reshape(rows, -1)
        size = of_p.norm(dim=1) + group["eps"]
        cosine = (of_p * of_gradient).sum(1).abs()
        cosine = cosine / size / (of_gradient.norm(dim=1) + group["eps"])
        if cosine.max() < group["delta"] / math.sqrt(of_p.shape[1]):
            unit = of_p / size.unsqueeze(1)
            along = (unit * direction.reshape(rows, -1)).sum(1, keepdim=True)
            return direction - (unit * along).reshape(p.shape), group["wd_ratio"]
    return direction, 1


class NpuFusedLamb(NpuFusedOptimizerBase):
    def __init__(
        self,
        params,
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-6,
        weight_decay=0,
        adam=False,
        use_global_grad_norm=False,
    ):
        check_not_negative(lr=lr, eps=eps)
        check_betas(betas)
        self.adam = adam
        self.use_global_grad_norm = use_global_grad_norm
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    def init_state(self, p, group):
        del group
        return zeros(p, "exp_avg", "exp_avg_sq")

    def update(self, pack, group):
        if self.use_global_grad_norm:
            raise AttributeError("get_optimizer_combined_grads")  # in every release
        average, squares = advance(pack, pack.flat_grads, *group["betas"])
        directions = average / (squares.sqrt() + group["eps"])
        directions.add_(pack.flat_params, alpha=group["weight_decay"])
        for p, direction in zip(
            pack.of_each(pack.flat_params), pack.of_each(directions), strict=True
        ):
            weight, size = p.norm().clamp(0, 10), direction.norm()
            is_plain = self.adam or weight == 0 or size == 0
            p.sub_(direction * (group["lr"] * (1.0 if is_plain else float(weight / size))))


_SCHEDULES = ("warmup_constant", "warmup_cosine", "warmup_linear", "warmup_poly")


def schedule_factor(schedule, x, warmup):
    """Return what the rate is multiplied by after the part ``x`` of all steps."""
    if x < warmup:
        return x / warmup
    if schedule == "warmup_cosine":
        return 0.5 * (1.0 + torch.cos(math.pi * x))  # raises in every release: of a float
    if schedule == "warmup_linear":
        return max((x - 1.0) / (warmup - 1.0), 0)
    return (1.0 - x) ** 0.5 if schedule == "warmup_poly" else 1.0


class NpuFusedBertAdam(NpuFusedOptimizerBase):
    counts_steps = False  # the parameters' own stay at 0, and so does that in a checkpoint

    def __init__(
        self,
        params,
        lr,
        warmup=-1,
        t_total=-1,
        schedule="warmup_linear",
        b1=0.9,
        b2=0.999,
        e=1e-6,
        weight_decay=0.01,
        max_grad_norm=1.0,
    ):
        check_not_negative(lr=lr, e=e)
        check(schedule in _SCHEDULES, "schedule", schedule)
        check(warmup == -1 or 0.0 <= warmup < 1.0, "warmup", warmup)
        check_betas((b1, b2))
        self.max_grad_norm = max_grad_norm
        super().__init__(
            params,
            {
                "lr": lr,
                "schedule": schedule,
                "warmup": warmup,
                "t_total": t_total,
                "b1": b1,
                "b2": b2,
                "e": e,
                "weight_decay": weight_decay,
                "max_grad_norm": max_grad_norm,
            },
        )

    def init_state(self, p, group):
        del group
        return zeros(p, "exp_avg", "exp_avg_sq")

    def update(self, pack, group):
        gradient = pack.flat_grads
        if self.max_grad_norm > 0:
            factor = self.max_grad_norm / (gradient.float().norm() + 1e-6)
            if factor < 1:
                gradient.mul_(factor)
        average, squares = advance(pack, gradient, group["b1"], group["b2"])
        direction = average / (squares.sqrt() + group["e"])
        direction.add_(pack.flat_params, alpha=group["weight_decay"])
        factor = 1.0
        if group["t_total"] != -1:
            x = (pack.state["step"] - 1) / group["t_total"]
            factor = schedule_factor(group["schedule"], x, group["warmup"])
        pack.flat_params.sub_(direction * (group["lr"] * factor))
