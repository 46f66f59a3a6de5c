"""(d) How long a compiled model takes to start, cold and warm, and how fast its steps are then.

Transformers of equal blocks, on the CPU. A start is everything from compiling to the end of the
first forward and backward, in a process of its own; importing torch's compiler is part of it,
importing torch is not. A cold start has an empty cache, but finds the C++ headers that torch
compiles once per machine. A warm one has the cache of a cold one, packed and unpacked at another
path, with an empty temporary folder, as on another machine: of mm-compile by ``pack_cache``, of
torch by ``save_cache_artifacts``. ``mm_regions`` is ``regions="auto"``; ``torch_regions`` compiles
each block by ``Module.compile()``.

Steady steps are those of one further process with all ways in it, which take turns of three in a
drawn order, in seconds of the processor: the first of a turn does not count, as it finds another
model's data in the processor's cache. All have the same loss.
"""

import os
import random
import shutil
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from unittest import mock

import torch
from torch import nn

from mm_compile import compile_model, pack_cache, unpack_cache

TITLE = "Compile"
BASE = "torch_cold"
AIM = "warm at most 0.125 of torch's cold start; regions cold 0.5 at 12 blocks, 0.33 at 24"
SYSTEMS = {
    BASE: "torch",
    "torch_warm": "torch",
    "torch_regions_cold": "torch",
    "torch_regions_warm": "torch",
    "mm_compile_cold": "mm-compile",
    "mm_compile_warm": "mm-compile",
    "mm_regions_cold": "mm-compile",
    "mm_regions_warm": "mm-compile",
}
ROUNDS, QUICK_ROUNDS, TOGETHER = 3, 0, True  # a compiler alone takes longer than 15 seconds
_HEADS, _WORDS = 4, 100
_TURNS, _STEPS = 5, 3  # a step of 24 blocks takes seconds


class Block(nn.Module):
    """A transformer's block that normalizes first."""

    def __init__(self, width):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project_in, self.project_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.first, self.last = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        heads = self.project_in(self.norm_1(x)).view(batch, length, 3, _HEADS, width // _HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        x = x + self.project_out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.last(nn.functional.gelu(self.first(self.norm_2(x))))


class Transformer(nn.Module):
    def __init__(self, num_blocks, width=128):
        super().__init__()
        self.embedding = nn.Embedding(_WORDS, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(num_blocks))
        self.head = nn.Linear(width, _WORDS)

    def forward(self, words, targets):
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


def measure(systems, quick, folder):
    values = {system: {} for system in systems}
    kinds = list(dict.fromkeys(system.rpartition("_")[0] for system in systems))
    for num_blocks in (1,) if quick else (12, 24):
        place = folder / str(num_blocks)
        shared = place / "shared"
        shared.mkdir(parents=True)
        # A small model makes the headers that torch compiles once.
        in_new_process(shared, place / "headers", time_start, "torch_regions", 1, place / "0")
        starts = {}
        for kind in kinds:
            starts |= start_twice(kind, num_blocks, place)
        losses = [loss for _, loss in starts.values()]
        if max(losses) - min(losses) > 1e-4:
            raise RuntimeError(f"The losses differ: {losses}.")
        for system in systems:
            values[system][f"seconds of a start, blocks: {num_blocks}"] = starts[system][0]
        if not quick:
            steps = in_new_process(shared, place / "torch", time_steps, kinds, num_blocks, place)
            for system in set(systems) & {f"{kind}_cold" for kind in kinds}:
                label = f"processor's ms of a step, blocks: {num_blocks}"
                values[system][label] = steps[system.removesuffix("_cold")]
    return values


def start_twice(kind, num_blocks, place):
    """Return seconds and loss of a cold start and of a warm one elsewhere, by system."""
    cache, archive, elsewhere = place / kind, place / f"{kind}.zip", place / f"{kind}_elsewhere"
    elsewhere.mkdir()  # without a blank in its name, beside which torch cannot compile its headers
    order = (time_start, kind, num_blocks)
    starts = {f"{kind}_cold": in_new_process(place / "shared", cache, *order, archive)}
    if kind.startswith("mm"):
        pack_cache(cache, archive)
        shutil.rmtree(cache)
        unpack_cache(archive, elsewhere / "cache")
    starts[f"{kind}_warm"] = in_new_process(elsewhere, elsewhere / "cache", *order, archive)
    return starts


def in_new_process(temporary, cache, function, *arguments):
    environment = {"TMPDIR": str(temporary), "TORCHINDUCTOR_CACHE_DIR": str(cache)}
    with (
        mock.patch.dict(os.environ, environment),
        ProcessPoolExecutor(1, get_context("spawn")) as processes,
    ):
        return processes.submit(function, *arguments).result()


def time_start(kind, num_blocks, archive):
    cache = os.environ["TORCHINDUCTOR_CACHE_DIR"]
    begin = time.perf_counter()
    if archive.exists() and kind.startswith("torch"):
        torch.compiler.load_cache_artifacts(archive.read_bytes())
    loss = make_step(kind, num_blocks, cache)()
    seconds = time.perf_counter() - begin
    if kind.startswith("torch"):
        archive.write_bytes(torch.compiler.save_cache_artifacts()[0])
    return seconds, loss


def make_step(kind, num_blocks, cache):
    torch.manual_seed(0)
    model = Transformer(num_blocks)
    words, targets = torch.randint(_WORDS, (2, 16, 128))
    call = model
    if kind == "torch":
        call = torch.compile(model)
    elif kind == "torch_regions":
        for block in model.blocks:
            block.compile()
    else:
        regions = {"regions": "auto"} if kind == "mm_regions" else {}
        compile_model(model, {"cache": str(cache), **regions})

    def step():
        loss = call(words, targets)
        loss.backward()
        model.zero_grad()
        return loss.item()

    return step


def time_steps(kinds, num_blocks, place):
    """Return the median milliseconds of the processor for a step of each kind."""
    steps = {kind: make_step(kind, num_blocks, place / f"{kind}_elsewhere/cache") for kind in kinds}
    times = {kind: [] for kind in kinds}
    shuffle = random.Random(0).shuffle  # noqa: S311 (an order, no secret)
    for turn in range(1 + _TURNS):  # the first compiles
        shuffle(kinds)
        for kind in kinds:
            for number in range(_STEPS):
                begin = time.process_time()
                steps[kind]()
                if turn and number:
                    times[kind].append((time.process_time() - begin) * 1e3)
    return {kind: statistics.median(found) for kind, found in times.items()}
