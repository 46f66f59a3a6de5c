// A device of torch whose memory is that of the host, and whose kernels are those of the CPU.
#pragma once

#include <ATen/ATen.h>

namespace stand_in {

constexpr c10::DeviceType kNpu = c10::DeviceType::PrivateUse1;

// As many as ASCEND_RT_VISIBLE_DEVICES names, read once; 4 without it.
c10::DeviceIndex device_count();
c10::DeviceIndex current_device();
void set_device(c10::DeviceIndex index);

c10::Allocator* allocator();
size_t allocated_bytes(c10::DeviceIndex index);
size_t peak_bytes(c10::DeviceIndex index);
void reset_peak(c10::DeviceIndex index);

// A device's own generator, and the one of the CPU that draws for it.
const at::Generator& default_generator(c10::DeviceIndex index);
at::Generator drawing_generator(const at::Generator& generator);

// A tensor of the CPU in the same memory; `tensor` itself where it is on no NPU.
at::Tensor on_host(const at::Tensor& tensor);
// The contents of a tensor of the CPU on an NPU.
at::Tensor on_device(const at::Tensor& tensor, c10::DeviceIndex index);

} // namespace stand_in
