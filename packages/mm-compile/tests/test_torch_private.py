"""Each private name of torch may go: importing and compiling still work, or say one clear line."""

import subprocess
import sys

import pytest
from toy import needs_compile

SCRIPT = """
import builtins, importlib, sys, tempfile, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import torch
import torch._dynamo, torch._inductor.config, torch._inductor.compile_fx
import torch.distributed as dist
from torch import nn

getattr_of = getattr


def find(path):
    parts = path.split(".")
    for number in range(len(parts) - 1, 0, -1):
        try:
            owner = importlib.import_module(".".join(parts[:number]))
        except ImportError:
            continue
        for part in parts[number:-1]:
            owner = getattr(owner, part, None)  # some torch versions lack it
        return owner, parts[-1]


def use(without):
    for name in [name for name in sys.modules if name.split(".")[0] == "mm_compile"]:
        del sys.modules[name]
    torch._dynamo.reset()
    # Torch uses the names, too: only our module must not see them.
    builtins.getattr = without
    try:
        import mm_compile
    finally:
        builtins.getattr = getattr_of
    mm_compile._torch_private.getattr = without

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    cfg = {"backend": lambda graph, _: graph.forward, "regions": ["*"], "on_error": "eager"}
    handle = mm_compile.compile_model(model, {**cfg, "verify": VERIFY})
    for size in (3, 4, 5, 6):
        model(torch.ones(size, 4)).sum().backward()
    report = str(handle.report())
    assert "2 of 2 regions compiled" in report, report
    handle.undo()
    mm_compile.can_compile(device_type="cpu")
    mm_compile.can_compile({"backend": "aot_eager", "mode": "default"})
    mm_compile._torch_private.inductor_backend("default", None, dynamic=None)
    mm_compile._torch_private.forget_loaded_code()
    with mm_compile._torch_private.caching_graphs():
        with mm_compile._torch_private.remembering_probes(PROBES):
            with mm_compile._torch_private.without_precompiled_headers():
                mm_compile._torch_private.probing_meanwhile(lambda *_: None)(None, [])


PROBES = Path(tempfile.mkdtemp(), "probes.txt")
VERIFY = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 4)
NAMES = (
    "torch._C._current_graph_task_id",
    "torch._TorchCompileInductorWrapper",
    "torch._dynamo.list_backends",
    "torch._dynamo.eval_frame.OptimizedModule",
    "torch._dynamo.exc.FailOnRecompileLimitHit",
    "torch._dynamo.utils.get_compilation_metrics",
    "torch._dynamo.utils.graph_break_reasons",
    "torch._inductor.list_mode_options",
    "torch._inductor.list_options",
    "torch._inductor.codecache._precompile_header",
    "torch._inductor.codecache.cpp_prefix_path",
    "torch._inductor.cpu_vec_isa.VecISA",
    "torch._inductor.cpu_vec_isa.supported_vec_isa_list",
    "torch._inductor.cpu_vec_isa.valid_vec_isa_list",
    "torch._inductor.cpu_vec_isa.x86_isa_checker",
    "torch._inductor.codegen.common.get_scheduling_for_device",
    "torch._inductor.codegen.common.init_backend_registration",
    "torch._inductor.utils.clear_caches",
    "torch.autograd._unsafe_preserve_version_counter",
    "torch.distributed._DEFAULT_FIRST_BUCKET_BYTES",
    "torch.distributed.distributed_c10d._get_default_store",
    "torch.nn.parallel.DistributedDataParallel._active_ddp_module",
)
if not hasattr(torch._inductor, "list_mode_options"):  # torch 2.0 has no other way to inductor
    NAMES = [name for name in NAMES if name != "torch._TorchCompileInductorWrapper"]
failed = []
for path in NAMES:
    owner, name = find(path)

    def without(each, asked, *default, owner=owner, name=name):
        if each is not owner or asked != name:
            return getattr_of(each, asked, *default)
        if default:
            return default[0]
        raise AttributeError(name)

    try:
        use(without)
    except Exception as error:
        failed.append(f"{path}: {type(error).__name__}: {error}")
print("\\n".join(failed))
sys.exit(bool(failed))
"""


@needs_compile
@pytest.mark.skipif(sys.platform == "win32", reason="needs a C++ compiler")
def test_each_private_name_may_be_missing():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
