// What torch's autograd asks of a GPU, for a torch that was built without CUDA: tensors that have a device, shapes and
// no memory (torch's FakeTensorMode) then take the same way through it as on a GPU. Loaded before torch.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/FakeGuardImpl.h>

C10_REGISTER_GUARD_IMPL(CUDA, c10::impl::FakeGuardImpl<c10::DeviceType::CUDA>)

namespace at {
struct CUDAHooks : CUDAHooksInterface {  // torch looks for this name
  CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
};
REGISTER_CUDA_HOOKS(CUDAHooks)
namespace accelerator {
// In place of torch's own, which knows that there is no GPU.
__attribute__((visibility("default"))) std::optional<c10::DeviceType> getAccelerator(bool) {
  return c10::DeviceType::CUDA;
}
}  // namespace accelerator
}  // namespace at
