"""The recipe as a plain script, with what the original does in a step, and no more."""

# ruff: noqa: T201 (it logs as the original does)

import itertools
import math
import sys
import time

import recipe
import torch


def learning_rate(step):
    if step < recipe.WARM_UP:
        return recipe.LEARNING_RATE * (step + 1) / (recipe.WARM_UP + 1)
    progress = (step - recipe.WARM_UP) / (recipe.DECAY_END - recipe.WARM_UP)
    share = 0.5 * (1 + math.cos(math.pi * min(progress, 1)))
    return recipe.MIN_LEARNING_RATE + share * (recipe.LEARNING_RATE - recipe.MIN_LEARNING_RATE)


@torch.no_grad()
def evaluate(model, draws):
    model.eval()
    found = {}
    for split, batches in draws.items():
        losses = torch.zeros(recipe.EVAL_BATCHES)
        for index, batch in enumerate(itertools.islice(batches, recipe.EVAL_BATCHES)):
            losses[index] = model(**batch).item()
        found[split] = losses.mean().item()
    model.train()
    return found


def main(num_steps):
    torch.manual_seed(recipe.SEED)
    model = recipe.GPT()
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": recipe.WEIGHT_DECAY},
            {"params": others, "weight_decay": 0.0},
        ],
        lr=recipe.LEARNING_RATE,
        betas=recipe.BETAS,
    )
    draws = {x: recipe.draw_batches(x, recipe.SEED + 1) for x in ("train", "val")}
    batches = itertools.islice(recipe.draw_batches("train", recipe.SEED), num_steps)
    begin, best = time.time(), math.inf
    for step, batch in enumerate(batches, start=1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step - 1)
        loss = model(**batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        begin, before = time.time(), begin
        print(f"step {step}: loss {loss.item():.4f}, time {1e3 * (begin - before):.2f} ms")
        if step % recipe.EVAL_INTERVAL == 0 or step == num_steps:
            found = evaluate(model, draws)
            print(f"step {step}: train loss {found['train']:.6f}, val loss {found['val']:.6f}")
            if found["val"] < best:
                best = found["val"]
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**state, "step": step, "best": best}, "checkpoint.pt")


if __name__ == "__main__":
    main(int(sys.argv[1]))
