import torch
from toy import needs_compile

from mm_compile import CompileReport, compile_model


class Breaking(torch.nn.Module):
    def forward(self, inputs):
        doubled = inputs * 2
        torch._dynamo.graph_break()
        return doubled + 1


@needs_compile
def test_the_report_counts_from_the_handle_on(model, backend):
    handle = compile_model(model, {"backend": backend, "dynamic": False})
    assert handle.report().graphs == 0
    model(torch.randn(5, 4))
    report = handle.report()
    assert (report.target, report.backend, report.mode) == ("forward", "counting", None)
    assert (report.graphs, report.graph_breaks, report.recompiles) == (1, 0, 0)
    assert report.compile_seconds > 0
    model(torch.randn(6, 4))
    assert handle.report().recompiles == 1
    assert handle.report().graphs == backend.graphs == 2


@needs_compile
def test_the_report_counts_graph_breaks(backend):
    model = Breaking()
    handle = compile_model(model, {"backend": backend})
    model(torch.randn(5, 4))
    assert (handle.report().graphs, handle.report().graph_breaks) == (2, 1)


@needs_compile
def test_a_later_handle_starts_at_zero(model, backend):
    compile_model(model, {"backend": backend})
    model(torch.randn(5, 4))
    later = compile_model(Breaking(), {"backend": backend})
    assert later.report().graphs == 0


def test_a_report_reads_as_a_line():
    report = CompileReport("forward", "inductor", "default", 2, 0, 1, 12.34)
    assert str(report) == (
        "forward by inductor (mode default): 2 graphs, 0 graph breaks, 1 recompile, "
        "12.3 s in the compiler"
    )


class Backend:
    def __call__(self, graph_module, _example_inputs):
        return graph_module.forward


@needs_compile
def test_a_backend_that_is_an_object_is_named_by_its_class(model):
    handle = compile_model(model, {"backend": Backend()})
    model(torch.randn(5, 4))
    first, second, *_ = str(handle.report()).splitlines()
    assert first.startswith("forward by Backend: 1 graph, 0 graph breaks, 0 recompiles")
    assert second == "  1 of 1 region compiled"
