// What torch asks of a device: how many, the current one, memory, streams, random numbers.
#include "device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace stand_in {
namespace {

constexpr int kMostDevices = 16;
thread_local c10::DeviceIndex the_current = 0;
std::array<std::atomic<int64_t>, kMostDevices> the_allocated{};
std::array<std::atomic<int64_t>, kMostDevices> the_peak{};

struct Block {
  c10::DeviceIndex device;
  int64_t size;
};

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  the_allocated[block->device] -= block->size;
  std::free(block);
}

struct Allocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t size) override {
    const c10::Device device(kNpu, the_current);
    if (size == 0) {
      return {nullptr, device};
    }
    constexpr size_t header = 64; // keeps the memory behind it aligned
    auto* block = static_cast<Block*>(std::aligned_alloc(header, header + (size + 63) / 64 * 64));
    *block = {the_current, static_cast<int64_t>(size)};
    const auto now = the_allocated[the_current] += block->size;
    the_peak[the_current] = std::max(the_peak[the_current].load(), now);
    return {reinterpret_cast<char*>(block) + header, block, &free_block, device};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr;
  }
  void copy_data(void* to, const void* from, size_t size) const override {
    default_copy_data(to, from, size);
  }
  bool initialized() override {
    return true;
  }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes[0].current = the_allocated[index];
    stats.allocated_bytes[0].peak = the_peak[index];
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex index) override {
    the_peak[index] = the_allocated[index].load();
  }
};

Allocator the_allocator;
REGISTER_ALLOCATOR(kNpu, &the_allocator);

// One stream per device, on which everything is done when it is asked for.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return kNpu;
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override {
    return {kNpu, the_current};
  }
  void setDevice(c10::Device device) const override {
    set_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    the_current = device.index();
  }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return stream;
  }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag)
      const override {
    *event = const_cast<Guard*>(this);
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override {
    return true;
  }
  bool queryStream(const c10::Stream&) const override {
    return true;
  }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
  double elapsedTime(void*, void*, const c10::DeviceIndex) const override {
    return 0.0;
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return device_count();
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// Draws nothing itself: a kernel of the CPU takes a generator of the CPU.
struct Generator final : c10::GeneratorImpl {
  explicit Generator(c10::DeviceIndex index)
      : GeneratorImpl(c10::Device(kNpu, index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        drawing(at::make_generator<at::CPUGeneratorImpl>()) {}
  void set_current_seed(uint64_t seed) override {
    drawing.set_current_seed(seed);
  }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override {
    return 0;
  }
  uint64_t current_seed() const override {
    return drawing.current_seed();
  }
  uint64_t seed() override {
    return drawing.seed();
  }
  void set_state(const c10::TensorImpl& state) override {
    drawing.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return drawing.unsafeGetGeneratorImpl()->get_state();
  }
  Generator* clone_impl() const override {
    auto* copy = new Generator(device().index());
    copy->drawing = drawing.clone();
    return copy;
  }

  at::Generator drawing;
};

struct PinnedAllocator final : c10::Allocator {
  static inline std::mutex mutex;
  static inline std::set<const void*> pinned;

  static void free_pinned(void* memory) {
    const std::lock_guard<std::mutex> lock(mutex);
    pinned.erase(memory);
    std::free(memory);
  }
  c10::DataPtr allocate(size_t size) override {
    void* memory = std::aligned_alloc(64, (std::max<size_t>(size, 1) + 63) / 64 * 64);
    const std::lock_guard<std::mutex> lock(mutex);
    pinned.insert(memory);
    return {memory, memory, &free_pinned, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &free_pinned;
  }
  void copy_data(void* to, const void* from, size_t size) const override {
    default_copy_data(to, from, size);
  }
};

PinnedAllocator the_pinned_allocator;

struct Hooks final : at::PrivateUse1HooksInterface {
  void init() const override {}
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return device_count() > 0;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return true;
  }
  c10::DeviceIndex deviceCount() const override {
    return device_count();
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return current_device();
  }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    set_device(index);
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const auto before = the_current;
    set_device(index);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? the_current : exchangeDevice(index);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<Generator>(index < 0 ? the_current : index);
  }
  at::Device getDeviceFromPtr(void*) const override {
    return {kNpu, the_current};
  }
  bool isPinnedPtr(const void* data) const override {
    const std::lock_guard<std::mutex> lock(PinnedAllocator::mutex);
    return PinnedAllocator::pinned.count(data) > 0;
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return &the_pinned_allocator;
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    c10::DataPtr data = the_allocator.allocate(size);
    const size_t kept = std::min(size, storage.nbytes());
    if (kept > 0) {
      std::memcpy(data.get(), storage.data(), kept);
    }
    storage.set_data_ptr_noswap(std::move(data));
    storage.unsafeGetStorageImpl()->set_nbytes(size);
  }
};

const bool is_registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

} // namespace

c10::DeviceIndex device_count() {
  static const auto count = [] {
    const char* visible = std::getenv("ASCEND_RT_VISIBLE_DEVICES");
    if (visible == nullptr) {
      return 4;
    }
    const std::string names(visible);
    return names.empty() ? 0 : 1 + static_cast<int>(std::count(names.begin(), names.end(), ','));
  }();
  return static_cast<c10::DeviceIndex>(count);
}

c10::DeviceIndex current_device() {
  return the_current;
}

void set_device(c10::DeviceIndex index) {
  TORCH_CHECK(
      index >= 0 && index < device_count(), "no NPU ", int(index), " of ", int(device_count()));
  the_current = index;
}

c10::Allocator* allocator() {
  return &the_allocator;
}

size_t allocated_bytes(c10::DeviceIndex index) {
  return the_allocated.at(index);
}

size_t peak_bytes(c10::DeviceIndex index) {
  return the_peak.at(index);
}

void reset_peak(c10::DeviceIndex index) {
  the_allocator.resetPeakStats(index);
}

const at::Generator& default_generator(c10::DeviceIndex index) {
  static const auto generators = [] {
    std::vector<at::Generator> made;
    for (int i = 0; i < kMostDevices; ++i) {
      made.push_back(at::make_generator<Generator>(static_cast<c10::DeviceIndex>(i)));
    }
    return made;
  }();
  return generators.at(index < 0 ? the_current : index);
}

at::Generator drawing_generator(const at::Generator& generator) {
  return static_cast<Generator*>(generator.unsafeGetGeneratorImpl())->drawing;
}

} // namespace stand_in
