// Every operator: run by the CPU's kernel, in the memory of the tensors of the NPU.
#include "device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cstring>
#include <unordered_map>
#include <vector>

namespace stand_in {
namespace {

const c10::DispatchKeySet kHostKeys(c10::DispatchKey::CPU);
const c10::DispatchKeySet kNpuKeys(c10::DispatchKey::PrivateUse1);

c10::Storage host_storage(const c10::Storage& storage) {
  // Does not own the memory; where a kernel resizes it, it gets memory of the CPU's own.
  return c10::Storage(
      c10::Storage::use_byte_size_t(),
      storage.nbytes(),
      c10::DataPtr(storage.mutable_data(), c10::Device(c10::DeviceType::CPU)),
      c10::GetAllocator(c10::DeviceType::CPU),
      /*resizable=*/true);
}

at::Tensor with_layout_of(const at::Tensor& tensor, c10::Storage storage, c10::DispatchKeySet keys) {
  auto made = at::detail::make_tensor<at::TensorImpl>(std::move(storage), keys, tensor.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(
      tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return made;
}

c10::Storage npu_storage(const c10::Storage& storage, c10::DeviceIndex index) {
  const c10::DeviceGuard guard(c10::Device(kNpu, index));
  c10::DataPtr data = allocator()->allocate(storage.nbytes());
  if (storage.nbytes() > 0) {
    std::memcpy(data.get(), storage.data(), storage.nbytes());
  }
  return c10::Storage(
      c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(data), allocator(), true);
}

// The arguments of one call on the host, and the way back for what it changed and returns.
class Call {
 public:
  explicit Call(const c10::FunctionSchema& schema, torch::jit::Stack* stack) : stack_(stack) {
    const auto& arguments = schema.arguments();
    first_ = stack->size() - arguments.size();
    device_ = find_device();
    for (size_t i = 0; i < arguments.size(); ++i) {
      auto& value = (*stack_)[first_ + i];
      const bool draws = value.isNone() && arguments[i].name() == "generator";
      value = draws ? c10::IValue(drawing_generator(default_generator(device_))) : sent(value);
    }
  }

  void finish() {
    for (auto& [host, original] : tensors_) {
      write_back(host, original);
    }
    for (size_t i = first_; i < stack_->size(); ++i) {
      (*stack_)[i] = received((*stack_)[i]);
    }
  }

 private:
  c10::DeviceIndex find_device() const {
    for (size_t i = first_; i < stack_->size(); ++i) {
      const auto& value = (*stack_)[i];
      if (value.isTensor() && value.toTensor().defined() && is_npu(value.toTensor())) {
        return value.toTensor().device().index();
      }
      if (value.isTensorList() && !value.toTensorList().empty() &&
          is_npu(value.toTensorList().get(0))) {
        return value.toTensorList().get(0).device().index();
      }
      if (value.isDevice() && value.toDevice().type() == kNpu && value.toDevice().has_index()) {
        return value.toDevice().index();
      }
    }
    return current_device();
  }

  static bool is_npu(const at::Tensor& tensor) {
    return tensor.defined() && tensor.device().type() == kNpu;
  }

  c10::IValue sent(const c10::IValue& value) {
    if (value.isTensor()) {
      return sent(value.toTensor());
    }
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor tensor : value.toTensorList()) {
        list.push_back(sent(tensor));
      }
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor> tensor : value.toOptionalTensorList()) {
        list.push_back(tensor ? std::optional<at::Tensor>(sent(*tensor)) : std::nullopt);
      }
      return list;
    }
    if (value.isDevice() && value.toDevice().type() == kNpu) {
      return c10::Device(c10::DeviceType::CPU);
    }
    if (value.isStorage() && value.toStorage().device().type() == kNpu) {
      return host_of(value.toStorage());
    }
    if (value.isGenerator() && value.toGenerator().device().type() == kNpu) {
      return drawing_generator(value.toGenerator());
    }
    return value;
  }

  at::Tensor sent(const at::Tensor& tensor) {
    if (!is_npu(tensor)) {
      return tensor;
    }
    for (auto& [host, original] : tensors_) {
      if (original.is_same(tensor)) {
        return host;
      }
    }
    const auto host = with_layout_of(tensor, host_of(tensor.storage()), kHostKeys);
    tensors_.emplace_back(host, tensor);
    return host;
  }

  c10::Storage host_of(const c10::Storage& storage) {
    for (auto& [host, original] : storages_) {
      if (original.is_alias_of(storage)) {
        return host;
      }
    }
    storages_.emplace_back(host_storage(storage), storage);
    return storages_.back().first;
  }

  // Where the kernel resized a tensor, or gave it another's storage, so is the NPU's.
  void write_back(const at::Tensor& host, const at::Tensor& original) {
    auto* impl = original.unsafeGetTensorImpl();
    const auto storage = npu_of(host.storage());
    if (!storage.is_alias_of(original.storage())) {
      impl->set_storage_keep_dtype(storage);
    }
    if (host.sizes() != original.sizes() || host.strides() != original.strides() ||
        host.storage_offset() != original.storage_offset()) {
      impl->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
    }
  }

  c10::Storage npu_of(const c10::Storage& storage) {
    for (auto& [host, original] : storages_) {
      if (host.is_alias_of(storage)) {
        if (host.data() != original.data()) {
          const auto resized = npu_storage(host, device_);
          auto& mutable_resized = const_cast<c10::Storage&>(resized);
          original.set_data_ptr_noswap(std::move(mutable_resized.mutable_data_ptr()));
          original.unsafeGetStorageImpl()->set_nbytes(host.nbytes());
          host.set_data_ptr_noswap(
              c10::DataPtr(original.mutable_data(), c10::Device(c10::DeviceType::CPU)));
        }
        return original;
      }
    }
    storages_.emplace_back(storage, npu_storage(storage, device_));
    return storages_.back().second;
  }

  c10::IValue received(const c10::IValue& value) {
    if (value.isTensor() && value.toTensor().defined()) {
      return received(value.toTensor());
    }
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor tensor : value.toTensorList()) {
        list.push_back(tensor.defined() ? received(tensor) : tensor);
      }
      return list;
    }
    return value;
  }

  at::Tensor received(const at::Tensor& tensor) {
    for (auto& [host, original] : tensors_) {
      if (host.is_same(tensor)) {
        return original;
      }
    }
    for (auto& [host, original] : storages_) {
      if (host.is_alias_of(tensor.storage())) {
        return with_layout_of(tensor, original, kNpuKeys);
      }
    }
    return on_device(tensor, device_);
  }

  torch::jit::Stack* stack_;
  size_t first_;
  c10::DeviceIndex device_ = 0;
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_; // of the host, of the NPU
  std::vector<std::pair<c10::Storage, c10::Storage>> storages_;
};

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto num_arguments = op.schema().arguments().size();
  torch::jit::Stack own(stack->end() - num_arguments, stack->end());
  Call call(op.schema(), &own);
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    op.redispatchBoxed(kHostKeys, &own);
  }
  call.finish();
  stack->erase(stack->end() - num_arguments, stack->end());
  stack->insert(stack->end(), own.begin(), own.end());
}

c10::Device device_of(std::optional<c10::Device> device) {
  const bool is_given = device && device->has_index();
  return {kNpu, is_given ? device->index() : current_device()};
}

at::Tensor empty(
    c10::SymIntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device> device,
    std::optional<bool>,
    std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device_of(device));
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  return at::detail::empty_generic(
      sizes, allocator(), kNpuKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    c10::SymIntArrayRef size,
    c10::SymIntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device> device,
    std::optional<bool>) {
  const c10::DeviceGuard guard(device_of(device));
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size),
      C10_AS_INTARRAYREF_SLOW(stride),
      allocator(),
      kNpuKeys,
      c10::dtype_or_default(dtype));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  on_host(to).copy_(on_host(from), non_blocking);
  return to;
}

std::optional<at::Tensor> on_host_if_any(const std::optional<at::Tensor>& tensor) {
  return tensor && tensor->defined() ? std::optional(on_host(*tensor)) : std::nullopt;
}

// torch asks a device that it does not know for convolutions by these names.
at::Tensor convolve(
    const at::Tensor& input,
    const at::Tensor& weight,
    const std::optional<at::Tensor>& bias,
    c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding,
    c10::SymIntArrayRef dilation,
    bool transposed,
    c10::SymIntArrayRef output_padding,
    c10::SymInt groups) {
  const auto output = at::convolution_symint(
      on_host(input),
      on_host(weight),
      on_host_if_any(bias),
      stride,
      padding,
      dilation,
      transposed,
      output_padding,
      groups);
  return on_device(output, input.device().index());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolve_backward(
    const at::Tensor& gradient,
    const at::Tensor& input,
    const at::Tensor& weight,
    c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding,
    c10::SymIntArrayRef dilation,
    bool transposed,
    c10::SymIntArrayRef output_padding,
    c10::SymInt groups,
    std::array<bool, 3> mask) {
  const int64_t channels = weight.size(transposed ? 1 : 0) * (transposed ? groups.expect_int() : 1);
  const std::vector<c10::SymInt> bias_sizes{channels};
  const auto [a, b, c] = at::convolution_backward_symint(
      on_host(gradient),
      on_host(input),
      on_host(weight),
      c10::SymIntArrayRef(bias_sizes),
      stride,
      padding,
      dilation,
      transposed,
      output_padding,
      groups,
      mask);
  const auto index = input.device().index();
  return {on_device(a, index), on_device(b, index), on_device(c, index)};
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("convolution_overrideable", convolve);
  m.impl("convolution_backward_overrideable", convolve_backward);
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

// What torch itself casts, and to what, on the accelerators that it knows.
#define TO_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define TO_FLOAT32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define TO_FLOAT32_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define TO_WIDEST(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  using namespace at::autocast;
  AT_FORALL_LOWER_PRECISION_FP(TO_LOWER)
  AT_FORALL_FP32(TO_FLOAT32)
  AT_FORALL_FP32_SET_OPT_DTYPE(TO_FLOAT32_DTYPE)
  AT_FORALL_PROMOTE(TO_WIDEST)
}

} // namespace

at::Tensor on_host(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().type() != kNpu) {
    return tensor;
  }
  return with_layout_of(tensor, host_storage(tensor.storage()), kHostKeys);
}

at::Tensor on_device(const at::Tensor& tensor, c10::DeviceIndex index) {
  return tensor.defined() ? with_layout_of(tensor, npu_storage(tensor.storage(), index), kNpuKeys)
                          : tensor;
}

} // namespace stand_in
