// The instructions of Hopper that emulated device text calls on its host. EmulatorHost
// (abi/emulator.h) adds the others.
#pragma once

#include "abi/emulator_types.h"
#include "abi/tensor_map.h"

namespace lazyrope {

// The state of one thread's registers that wgmma uses. The accessors of the registers update it.
struct EmulatedRegisters {
  int32 in_flight = 0;  // products that use them and have not been waited for
  uint32 touched = 0;   // the thread's number of wgmma.fence when it last accessed them
  Site product = {};    // the latest product that uses them
};

// The operands that a thread gives to wgmma.mma_async.m64nNk16, or to m64nNk32 for elements of 8
// bits.
struct EmulatedWgmma {
  EmulatedElement element;
  int32 columns;
  bool accumulate;
  bool a_is_mn_major;
  bool b_is_mn_major;
  uint64 a_descriptor;  // used if `a` is null
  uint64 b_descriptor;
  float* d;         // [columns / 2]
  const uint32* a;  // [4]
  EmulatedRegisters* d_registers;
  EmulatedRegisters* a_registers;
};

class HopperInstructions {
 public:
  virtual void mbarrier_init(uint32 barrier, uint32 count, Site site) = 0;
  virtual void mbarrier_inval(uint32 barrier, Site site) = 0;
  virtual void mbarrier_arrive(uint32 barrier, Site site) = 0;
  virtual void mbarrier_expect_tx(uint32 barrier, uint32 bytes, Site site) = 0;
  virtual bool mbarrier_try_wait_parity(uint32 barrier, uint32 parity, Site site) = 0;
  virtual bool mbarrier_test_wait_parity(uint32 barrier, uint32 parity, Site site) = 0;
  virtual void fence_mbarrier_init() = 0;

  virtual void cp_async_bulk_load(uint32 to, const void* from, uint32 bytes, uint32 barrier,
                                  Site site) = 0;
  virtual void cp_async_bulk_store(void* to, uint32 from, uint32 bytes, Site site) = 0;
  virtual void cp_async_bulk_tensor_load(uint32 to, const TensorMap& map,
                                         const int32 (&at)[kTensorMapDims], uint32 barrier,
                                         Site site) = 0;
  virtual void cp_async_bulk_commit_group() = 0;
  // With `reads` the call waits only until the copies have read their sources.
  virtual void cp_async_bulk_wait_group(int32 pending, bool reads) = 0;
  virtual void fence_proxy_async() = 0;
  virtual void fence_proxy_async_global() = 0;

  virtual void wgmma_fence(Site site) = 0;
  virtual void wgmma(const EmulatedWgmma& product, Site site) = 0;
  virtual void wgmma_commit_group(Site site) = 0;
  virtual void wgmma_wait_group(int32 pending, Site site) = 0;
  virtual void check_descriptor(uint32 start, int32 leading_bytes, int32 stride_bytes,
                                Site site) = 0;
  // Reports an access to registers of a product in flight, or an index that is out of range.
  [[noreturn]] virtual void refuse_registers(const EmulatedRegisters& registers, int32 index,
                                             Site site) = 0;
  // Reports registers that go out of scope while a product in flight uses them.
  virtual void abandon_registers(EmulatedRegisters& registers) = 0;

  virtual void bar_sync(int32 id, int32 threads, Site site) = 0;
  virtual void bar_arrive(int32 id, int32 threads, Site site) = 0;
  virtual bool elect_sync(Site site) = 0;
  virtual void setmaxnreg(int32 registers, Site site) = 0;

 protected:
  ~HopperInstructions() = default;
};

}  // namespace lazyrope
