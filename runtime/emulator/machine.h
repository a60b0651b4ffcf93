#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/emulator/bulk_copies.h"
#include "runtime/emulator/global_memory.h"
#include "runtime/emulator/launch.h"
#include "runtime/emulator/profile.h"
#include "runtime/emulator/races.h"
#include "runtime/emulator/scheduler.h"

namespace lazyrope {

// Executes the instructions of templates/abi/emulator.h and checks their rules. Instructions of
// sm_80 are in machine.cpp, Hopper's in machine_copies.cpp and machine_warpgroup.cpp.
class Machine final : public Scheduler, public EmulatorHost {
 public:
  Machine(const EmulatedLaunch& launch, const void* params, std::vector<MemoryRange> memory,
          const EmulatorOptions& options)
      : Scheduler(launch, params, options), global_(std::move(memory)), profile_(options.profile) {
    if (options.races)
      races_.emplace(launch.threads, static_cast<std::size_t>(launch.shared_bytes));
    if (profile_ != nullptr) profile_->begin(launch.name);
    launch.bind(this);
  }

  void ld_shared(void* to, uint32 from, int32 bytes, Site site) override;
  void st_shared(uint32 to, const void* from, int32 bytes, Site site) override;
  void ld_global(EmulatedLoad kind, void* to, const void* from, int32 bytes, Site site) override;
  void st_global(void* to, const void* from, int32 bytes, Site site) override;
  uint32 atom(EmulatedAtomic operation, EmulatedOrder order, uint32* p, uint32 operand,
              Site site) override;
  void st_relaxed(void* to, const void* from, int32 bytes, Site site) override;
  uint32 ld_acquire(const uint32* p, Site site) override;
  void ldmatrix_x4(uint32 (&r)[4], uint32 row, bool transposed, Site site) override;
  void mma_m16n8k16(EmulatedElement element, float (&d)[4], const uint32 (&a)[4],
                    const uint32 (&b)[2], Site site) override;
  uint64 shfl_sync(EmulatedShuffle kind, uint64 value, int32 operand, Site site) override;
  uint32 vote_sync_ballot(bool predicate, Site site) override;
  void bar_sync(Site site) override;
  void bar_warp_sync(Site site) override;
  void cp_async(uint32 to, const void* from, int32 size, int32 bytes, Site site) override;
  void cp_async_commit_group() override { running().copies.commit(); }
  void cp_async_wait_group(int32 pending) override;

  void mbarrier_init(uint32 barrier, uint32 count, Site site) override;
  void mbarrier_inval(uint32 barrier, Site site) override;
  void mbarrier_arrive(uint32 barrier, Site site) override;
  void mbarrier_expect_tx(uint32 barrier, uint32 bytes, Site site) override;
  bool mbarrier_try_wait_parity(uint32 barrier, uint32 parity, Site site) override;
  bool mbarrier_test_wait_parity(uint32 barrier, uint32 parity, Site site) override;
  void fence_mbarrier_init() override { ++running().init_fences; }
  void cp_async_bulk_load(uint32 to, const void* from, uint32 bytes, uint32 barrier,
                          Site site) override;
  void cp_async_bulk_store(void* to, uint32 from, uint32 bytes, Site site) override;
  void cp_async_bulk_tensor_load(uint32 to, const TensorMap& map, const int32 (&at)[kTensorMapDims],
                                 uint32 barrier, Site site) override;
  void cp_async_bulk_commit_group() override { running().stores.commit(); }
  void cp_async_bulk_wait_group(int32 pending, bool reads) override;
  void fence_proxy_async() override;
  void fence_proxy_async_global() override { global_.make_visible(id_of(running())); }

  void wgmma_fence(Site site) override;
  void wgmma(const EmulatedWgmma& product, Site site) override;
  void wgmma_commit_group(Site site) override;
  void wgmma_wait_group(int32 pending, Site site) override;
  void check_descriptor(uint32 start, int32 leading_bytes, int32 stride_bytes, Site site) override;
  [[noreturn]] void refuse_registers(const EmulatedRegisters& registers, int32 index,
                                     Site site) override;
  void abandon_registers(EmulatedRegisters& registers) override;

  void bar_sync(int32 id, int32 threads, Site site) override;
  void bar_arrive(int32 id, int32 threads, Site site) override;
  bool elect_sync(Site site) override;
  void setmaxnreg(int32 registers, Site site) override;

 private:
  void resumed(const Thread& resumed_thread) override { thread = &resumed_thread.kernel_view; }
  void begun(EmulatedCta& cta) override {
    if (races_) races_->begin(cta.index);
  }
  void ended(EmulatedCta& cta) override {
    if (races_) races_->end(cta.index);
    if (profile_ != nullptr) profile_->end(cta.index);
  }
  void check_end() override;
  bool land_latest() override;
  void land_early() override;
  std::string describe_wait(const EmulatedCta& cta, const Wait& wait) const override;

  SharedMemory& shared() { return running().cta->shared; }
  static ThreadId id_of(const Thread& t) { return {t.kernel_view.block, t.kernel_view.thread}; }
  void note_shared(AccessKind kind, const Thread& by, uint32 address, std::uint32_t bytes,
                   const Site& site) {
    if (races_) races_->shared(kind, id_of(by), address, bytes, site);
  }
  void note_global(AccessKind kind, const void* p, std::size_t bytes, const Site& site) {
    note_global(kind, id_of(running()), p, bytes, site);
  }
  void note_global(AccessKind kind, ThreadId by, const void* p, std::size_t bytes,
                   const Site& site) {
    if (races_ && global_.is_written(p)) races_->global(kind, by, p, bytes, site);
  }
  void profile(const Thread& by, const LaneAccess& access) {
    if (profile_ != nullptr) profile_->access(id_of(by), access);
  }
  void profile(MemoryInstruction by, const CopyBox& box, const Site& site) {
    if (profile_ == nullptr) return;
    std::vector<LaneRange> ranges;
    ranges.reserve(box.runs.size());
    for (const CopyBox::Run& run : box.runs)
      ranges.push_back(range(run.global, static_cast<int32>(run.bytes)));
    profile_->copy(by, site, std::move(ranges));
  }
  static LaneRange range(std::uint32_t address, int32 bytes) {
    return {address, static_cast<std::uint32_t>(bytes)};
  }
  static LaneRange range(const void* p, int32 bytes) {
    return {reinterpret_cast<std::uintptr_t>(p), static_cast<std::uint32_t>(bytes)};
  }

  // Waits for the other lanes of the group. The last lane to arrive calls run(lanes) for all. Lanes
  // that are at different instructions or source lines throw a Violation.
  template <std::size_t kThreads, class Lane, class Run>
  void meet(Rendezvous& group, std::size_t index, const Wait& at, Lane& lane, const Run& run);
  template <class Lane, class Run>
  void meet_warp(const Wait& at, Lane& lane, const Run& run) {
    const Thread& self = running();
    meet<kEmulatedWarp>(self.cta->warps[static_cast<std::size_t>(self.warp())],
                        static_cast<std::size_t>(self.lane()), at, lane, run);
  }
  template <class Lane, class Run>
  void meet_warpgroup(const Wait& at, Lane& lane, const Run& run);
  // Waits for the other lanes of the warp, at an instruction without operands.
  void meet_warp(const Wait& at) {
    char nothing = 0;
    meet_warp(at, nothing, [](std::span<char* const>) {});
  }
  // Adds the running thread to the group. Returns true if all `expected` threads have arrived.
  bool arrive(Rendezvous& group, const Wait& at, std::size_t expected);
  // Wakes the other threads of the group, and empties it.
  void leave(Rendezvous& group);
  // Orders the accesses that the threads of a group made before this point ahead of those that they
  // make after it.
  void order(const Rendezvous& group);

  // Returns the mbarrier object at the address, and records the access.
  Mbarrier& mbarrier(uint32 barrier, const Site& site);
  Mbarrier& checked_mbarrier(uint32 barrier, uint32 parity, const Site& site);
  void publish(Mbarrier& barrier);
  void wake_all(const Mbarrier& barrier);
  void begin_load(MemoryInstruction by, CopyBox box, uint32 barrier, const Site& site);
  void land(const BulkLoad& load);
  void land_load(std::size_t i);
  void read_source(BulkStore& store);
  void write_destination(BulkStore& store);
  NamedBarrier& arrive_named(int32 id, int32 threads, const Wait& at);
  void complete(NamedBarrier& barrier);
  // Begins one warp's quarter of a wgmma of the running thread's warpgroup. `lanes` are the lanes
  // of that warp.
  void begin_product(std::span<EmulatedWgmma* const> lanes, int quarter, const Site& site);
  void check_agreement(std::span<EmulatedWgmma* const> lanes, const Site& site);
  void check_fences(std::span<EmulatedWgmma* const> lanes, const Site& site);
  void end_product(EmulatedCta& cta, const WarpProduct& product);
  void throw_late();
  // Calls visit(address) for each chunk of shared memory that the warp's product reads.
  template <class Visit>
  static void for_chunks(const WarpProduct& product, const Visit& visit) {
    for (const std::uint32_t chunk : product.b.chunks(0, product.lanes[0].columns)) visit(chunk);
    if (!product.a) return;
    // PTX does not say which warp of a warpgroup reads which rows of A, so each warp may read all.
    for (const std::uint32_t chunk : product.a->chunks(0, WarpProduct::kGroupRows)) visit(chunk);
  }

  std::vector<BulkLoad> loads_;  // bulk loads that have not landed
  std::size_t early_loads_ = 0;  // how many of `loads_` are early
  GlobalMemory global_;
  std::optional<RaceDetector> races_;
  Profile* profile_;  // null: none
};

template <std::size_t kThreads, class Lane, class Run>
void Machine::meet(Rendezvous& group, std::size_t index, const Wait& at, Lane& lane,
                   const Run& run) {
  if (!group.threads.empty() &&
      (std::strcmp(group.at.what, at.what) != 0 || group.at.site != at.site))
    throw Violation{rule::kDivergence, at.site,
                    fmt::format("this lane is at {}, others of its {} are at {} ({})", at.what,
                                kThreads == kEmulatedWarp ? "warp" : "warpgroup", group.at.what,
                                describe(group.at.site))};
  group.operands[index] = &lane;
  if (!arrive(group, at, kThreads)) return block(at);
  std::array<Lane*, kThreads> lanes;
  for (std::size_t i = 0; i < kThreads; ++i) lanes[i] = static_cast<Lane*>(group.operands[i]);
  run(std::span<Lane* const, kThreads>(lanes));
  leave(group);
}

template <class Lane, class Run>
void Machine::meet_warpgroup(const Wait& at, Lane& lane, const Run& run) {
  const Thread& self = running();
  const auto group = static_cast<std::size_t>(self.kernel_view.thread / kEmulatedWarpgroup);
  if (group >= self.cta->warpgroups.size())
    throw Violation{rule::kOperand, at.site,
                    fmt::format("{} takes a whole warpgroup; the CTA has {} threads", at.what,
                                self.cta->threads.size())};
  meet<kEmulatedWarpgroup>(self.cta->warpgroups[group],
                           static_cast<std::size_t>(self.kernel_view.thread % kEmulatedWarpgroup),
                           at, lane, run);
}

}  // namespace lazyrope
