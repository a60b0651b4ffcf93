// What emulated text for Hopper asks of its host: the rest of abi/emulator.h.
#pragma once

#include "abi/emulator_types.h"
#include "abi/tensor_map.h"

namespace lazyrope {

// Of one thread's registers that are given to wgmma. Their accessors keep it.
struct EmulatedRegisters {
  int32 in_flight = 0;  // products that were given them and have not been waited for
  uint32 touched = 0;   // how many wgmma.fence the thread had made when it last touched them
  Site product = {};    // the latest that was given them
};

// What a thread gives to wgmma.mma_async.m64nNk16.
struct EmulatedWgmma {
  EmulatedElement element;
  int32 columns;
  bool accumulate;
  bool a_is_mn_major;
  bool b_is_mn_major;
  uint64 a_descriptor;  // where a is null
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
  // `reads`: it is enough that they have read their sources.
  virtual void cp_async_bulk_wait_group(int32 pending, bool reads) = 0;
  virtual void fence_proxy_async() = 0;
  virtual void fence_proxy_async_global() = 0;

  virtual void wgmma_fence(Site site) = 0;
  virtual void wgmma_m64k16(const EmulatedWgmma& product, Site site) = 0;
  virtual void wgmma_commit_group(Site site) = 0;
  virtual void wgmma_wait_group(int32 pending, Site site) = 0;
  virtual void check_descriptor(uint32 start, int32 leading_bytes, int32 stride_bytes,
                                Site site) = 0;
  // Registers of a product in flight, or with an index that they do not have.
  [[noreturn]] virtual void refuse_registers(const EmulatedRegisters& registers, int32 index,
                                             Site site) = 0;
  // They end, and are in flight.
  virtual void abandon_registers(EmulatedRegisters& registers) = 0;

  virtual void bar_sync(int32 id, int32 threads, Site site) = 0;
  virtual void bar_arrive(int32 id, int32 threads, Site site) = 0;
  virtual bool elect_sync(Site site) = 0;
  virtual void setmaxnreg(int32 registers, Site site) = 0;

 protected:
  ~HopperInstructions() = default;
};

}  // namespace lazyrope
