// The instructions that emulated device text calls on its host (runtime/emulator). No GPU kernel
// includes this file.
#pragma once

#include "abi/emulator_hopper.h"

namespace lazyrope {

// Each function emulates the instruction of its name for the thread that runs now, and checks what
// the PTX manual requires. Addresses of shared memory are bytes from its start.
class EmulatorHost : public HopperInstructions {
 public:
  const EmulatorThread* thread = nullptr;  // the thread that runs now

  virtual void ld_shared(void* to, uint32 from, int32 bytes, Site site) = 0;
  virtual void st_shared(uint32 to, const void* from, int32 bytes, Site site) = 0;
  virtual void ld_global(EmulatedLoad kind, void* to, const void* from, int32 bytes, Site site) = 0;
  virtual void st_global(void* to, const void* from, int32 bytes, Site site) = 0;
  virtual void st_relaxed(void* to, const void* from, int32 bytes, Site site) = 0;
  // Returns the value before the operation.
  virtual uint32 atom(EmulatedAtomic operation, EmulatedOrder order, uint32* p, uint32 operand,
                      Site site) = 0;
  virtual uint32 ld_acquire(const uint32* p, Site site) = 0;

  virtual void ldmatrix_x4(uint32 (&r)[4], uint32 row, bool transposed, Site site) = 0;
  virtual void mma_m16n8k16(EmulatedElement element, float (&d)[4], const uint32 (&a)[4],
                            const uint32 (&b)[2], Site site) = 0;
  virtual uint64 shfl_sync(EmulatedShuffle kind, uint64 value, int32 operand, Site site) = 0;
  virtual uint32 vote_sync_ballot(bool predicate, Site site) = 0;

  using HopperInstructions::bar_sync;
  virtual void bar_sync(Site site) = 0;
  virtual void bar_warp_sync(Site site) = 0;

  virtual void cp_async(uint32 to, const void* from, int32 size, int32 bytes, Site site) = 0;
  virtual void cp_async_commit_group() = 0;
  virtual void cp_async_wait_group(int32 pending) = 0;

 protected:
  ~EmulatorHost() = default;
};

}  // namespace lazyrope
