// torch_npu._C: the device for Python, and a process-group backend that is gloo's in its memory.
#include "device.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/csrc/utils/pybind.h>

#include <utility>

namespace stand_in {
namespace {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// Gloo's work on the host's views; its result is that of the NPU's tensors.
class HcclWork final : public c10d::Work {
 public:
  HcclWork(c10::intrusive_ptr<c10d::Work> inner, Tensors results)
      : inner_(std::move(inner)), results_(std::move(results)) {}

  bool isCompleted() override {
    return inner_->isCompleted();
  }
  bool isSuccess() const override {
    return inner_->isSuccess();
  }
  std::exception_ptr exception() const override {
    return inner_->exception();
  }
  int sourceRank() const override {
    return inner_->sourceRank();
  }
  Tensors result() override {
    return results_;
  }
  bool wait(std::chrono::milliseconds timeout) override {
    return inner_->wait(timeout);
  }
  void synchronize() override {
    inner_->synchronize();
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return inner_->getFuture()->then(
        [results = results_](c10::ivalue::Future& done) -> c10::IValue {
          if (done.hasError()) {
            std::rethrow_exception(done.exception_ptr());
          }
          return results;
        },
        c10::ListType::create(c10::TensorType::get()));
  }

 private:
  c10::intrusive_ptr<c10d::Work> inner_;
  Tensors results_;
};

class Hccl final : public c10d::Backend {
 public:
  explicit Hccl(c10::intrusive_ptr<c10d::Backend> gloo)
      : Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)) {}

  const std::string getBackendName() const override {
    return "hccl";
  }
  void setTimeout(std::chrono::milliseconds timeout) override {
    gloo_->setTimeout(timeout);
  }
  void setSequenceNumberForGroup() override {
    gloo_->setSequenceNumberForGroup();
  }
  uint64_t getSequenceNumberForGroup() override {
    return gloo_->getSequenceNumberForGroup();
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    auto host = sent(tensors);
    return done(gloo_->broadcast(host, options), tensors);
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    auto host = reducible(tensors);
    return done(gloo_->allreduce(host, options), tensors);
  }
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options)
      override {
    auto host = reducible(tensors);
    return done(gloo_->allreduce_coalesced(host, options), tensors);
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    auto host = reducible(tensors);
    return done(gloo_->reduce(host, options), tensors);
  }
  WorkPtr allgather(
      std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    auto host_outputs = sent(outputs);
    auto host_inputs = sent(inputs);
    return done(gloo_->allgather(host_outputs, host_inputs, options), outputs.at(0));
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options)
      override {
    auto host_output = sent(output);
    auto host_input = sent(input);
    return done(gloo_->_allgather_base(host_output, host_input, options), {output});
  }
  WorkPtr gather(
      std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    auto host_outputs = sent(outputs);
    auto host_inputs = sent(inputs);
    return done(
        gloo_->gather(host_outputs, host_inputs, options), outputs.empty() ? Tensors() : outputs[0]);
  }
  WorkPtr scatter(
      Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override {
    auto host_outputs = sent(outputs);
    auto host_inputs = sent(inputs);
    return done(gloo_->scatter(host_outputs, host_inputs, options), outputs);
  }
  WorkPtr _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    Tensors checked{input};
    auto host_output = sent(output);
    auto host_input = reducible(checked)[0];
    return done(gloo_->_reduce_scatter_base(host_output, host_input, options), {output});
  }
  WorkPtr allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    auto host_outputs = sent(outputs);
    auto host_inputs = sent(inputs);
    return done(
        gloo_->allgather_into_tensor_coalesced(host_outputs, host_inputs, options), outputs);
  }
  WorkPtr reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) override {
    auto host_outputs = sent(outputs);
    auto host_inputs = reducible(inputs);
    return done(
        gloo_->reduce_scatter_tensor_coalesced(host_outputs, host_inputs, options), outputs);
  }
  WorkPtr alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& output_sizes,
      std::vector<int64_t>& input_sizes,
      const c10d::AllToAllOptions& options) override {
    auto host_output = sent(output);
    auto host_input = sent(input);
    return done(
        gloo_->alltoall_base(host_output, host_input, output_sizes, input_sizes, options), {output});
  }
  WorkPtr send(Tensors& tensors, int rank, int tag) override {
    auto host = sent(tensors);
    return done(gloo_->send(host, rank, tag), tensors);
  }
  WorkPtr recv(Tensors& tensors, int rank, int tag) override {
    auto host = sent(tensors);
    return done(gloo_->recv(host, rank, tag), tensors);
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return done(gloo_->barrier(options), {});
  }

 private:
  static at::Tensor sent(const at::Tensor& tensor) {
    TORCH_CHECK(tensor.device().type() == kNpu, "hccl takes tensors of an NPU, not of ",
                tensor.device());
    return on_host(tensor);
  }
  static Tensors sent(const Tensors& tensors) {
    Tensors host;
    for (const auto& tensor : tensors) {
      host.push_back(sent(tensor));
    }
    return host;
  }
  static std::vector<Tensors> sent(const std::vector<Tensors>& lists) {
    std::vector<Tensors> host;
    for (const auto& list : lists) {
      host.push_back(sent(list));
    }
    return host;
  }
  // The library behind the real one reduces no float64 and no bool.
  static Tensors reducible(const Tensors& tensors) {
    for (const auto& tensor : tensors) {
      TORCH_CHECK(
          tensor.scalar_type() != at::kDouble && tensor.scalar_type() != at::kBool,
          "hccl does not reduce ", tensor.scalar_type());
    }
    return sent(tensors);
  }
  static WorkPtr done(WorkPtr inner, Tensors results) {
    return c10::make_intrusive<HcclWork>(std::move(inner), std::move(results));
  }

  c10::intrusive_ptr<c10d::Backend> gloo_;
};

// DDP measures its phases; all is done when it is asked for, so the host's clock is right.
class Timer final : public c10d::Timer {
 public:
  explicit Timer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const int64_t from = getTimeRef(start);
    const int64_t to = getTimeRef(end);
    const bool is_known = from != c10d::kUnsetTime && to != c10d::kUnsetTime && to > from;
    return is_known ? std::optional(to - from) : std::nullopt;
  }
};

} // namespace
} // namespace stand_in

namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, stand_in::kNpu, stand_in::Timer)
} // namespace c10d

PYBIND11_MODULE(_C, m) {
  namespace py = pybind11;
  using namespace stand_in;
  py::module_::import("torch.distributed"); // for the base class, where it is compiled in
  m.def("device_count", [] { return int(device_count()); });
  m.def("current_device", [] { return int(current_device()); });
  m.def("set_device", [](int index) { set_device(static_cast<c10::DeviceIndex>(index)); });
  m.def("memory_allocated", [](int index) { return allocated_bytes(index); });
  m.def("max_memory_allocated", [](int index) { return peak_bytes(index); });
  m.def("reset_peak_memory_stats", [](int index) { reset_peak(index); });
  m.def("default_generator", [](int index) { return default_generator(index); });
  py::class_<Hccl, c10::intrusive_ptr<Hccl>, c10d::Backend>(m, "Hccl")
      .def(py::init<c10::intrusive_ptr<c10d::Backend>>());
}
