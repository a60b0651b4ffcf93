// mbarriers, bulk copies and named barriers.
#include <algorithm>
#include <cstring>

#include "runtime/emulator/machine.h"

namespace lazyrope {
namespace {

constexpr std::uint32_t kChunk = CopyBox::kChunkBytes;
// One mbarrier.try_wait in kRejectOneIn returns false before its phase is complete, as hardware
// may. One mbarrier.test_wait in kRejectOneIn returns false although its phase is complete.
constexpr std::size_t kRejectOneIn = 4;
// One bulk load in kEarlyOneIn is early: it lands after about kEarlySteps steps
// of the scheduler.
constexpr std::size_t kEarlyOneIn = 4;
constexpr std::size_t kEarlySteps = 8;

std::vector<std::byte> image_of(const CopyBox& box) {
  std::vector<std::byte> image(box.bytes, std::byte{0});
  for (const CopyBox::Run& run : box.runs)
    std::memcpy(image.data() + run.offset, run.global, run.bytes);
  return image;
}

}  // namespace

Mbarrier& Machine::mbarrier(uint32 barrier, const Site& site) {
  Mbarrier& found = running().cta->mbarriers.at(barrier, site);
  note_shared(AccessKind::kAtomic, running(), barrier, Mbarriers::kBytes, site);
  return found;
}

void Machine::mbarrier_init(uint32 barrier, uint32 count, Site site) {
  shared().begin_barrier(barrier, Mbarriers::kBytes, site);
  note_shared(AccessKind::kWrite, running(), barrier, Mbarriers::kBytes, site);
  Mbarrier& begun = running().cta->mbarriers.begin(barrier, count, site);
  begun.owner = running().kernel_view.thread;
  begun.fences = running().init_fences;
}

void Machine::mbarrier_inval(uint32 barrier, Site site) {
  running().cta->mbarriers.end(barrier, site);
  note_shared(AccessKind::kWrite, running(), barrier, Mbarriers::kBytes, site);
  shared().end_barrier(barrier, Mbarriers::kBytes);
}

void Machine::publish(Mbarrier& barrier) {
  if (races_) barrier.arriving.merge(races_->publish(id_of(running())));
}

void Machine::wake_all(const Mbarrier& barrier) {
  for (Thread* woken : barrier.woken) wake(*woken);
}

void Machine::mbarrier_arrive(uint32 barrier, Site site) {
  Mbarrier& at = mbarrier(barrier, site);
  publish(at);
  if (at.arrive(site)) wake_all(at);
}

void Machine::mbarrier_expect_tx(uint32 barrier, uint32 bytes, Site site) {
  Mbarrier& at = mbarrier(barrier, site);
  if (at.expect(bytes, site)) wake_all(at);
}

Mbarrier& Machine::checked_mbarrier(uint32 barrier, uint32 parity, const Site& site) {
  if (parity > 1)
    throw Violation{rule::kOperand, site, fmt::format("parity {}; 0 or 1 is allowed", parity)};
  return mbarrier(barrier, site);
}

bool Machine::mbarrier_test_wait_parity(uint32 barrier, uint32 parity, Site site) {
  Mbarrier& at = checked_mbarrier(barrier, parity, site);
  if (!at.is_complete(parity) || draw(kRejectOneIn) == 0) {  // "complete" may not be visible yet
    yield({});
    return false;
  }
  if (races_) races_->merge(id_of(running()), at.complete);
  return true;
}

bool Machine::mbarrier_try_wait_parity(uint32 barrier, uint32 parity, Site site) {
  Thread& self = running();
  Mbarrier& at = checked_mbarrier(barrier, parity, site);
  if (!at.is_complete(parity)) {
    if (!self.was_rejected && draw(kRejectOneIn) == 0) {
      self.was_rejected = true;
      yield({});
      return false;
    }
    at.waiting.push_back(&self);
    block({"mbarrier.try_wait", site, &at});
    std::erase(at.woken, &self);
  }
  self.was_rejected = false;
  if (races_) races_->merge(id_of(self), at.complete);
  return true;
}

void Machine::fence_proxy_async() {
  ++running().init_fences;
  shared().fence_proxy(running().kernel_view.thread);
}

void Machine::begin_load(MemoryInstruction by, CopyBox box, uint32 barrier, const Site& site) {
  EmulatedCta& cta = *running().cta;
  const Mbarrier& at = mbarrier(barrier, site);
  if (cta.threads[static_cast<std::size_t>(at.owner)].init_fences == at.fences)
    throw Violation{rule::kProxyFence, site,
                    fmt::format("thread {} has made no fence.mbarrier_init since it initialized {}",
                                at.owner, at.describe())};
  ThreadId copies = id_of(running());
  if (races_) {
    copies = races_->copies(cta.index, at.number);
    races_->merge(copies, races_->publish(id_of(running())));
  }
  for (const CopyBox::Run& run : box.runs) {
    global_.check_bulk(run.global, run.bytes, site);
    global_.check_visible(run.global, run.bytes, site);
    note_global(AccessKind::kRead, copies, run.global, run.bytes, site);
  }
  profile(by, box, site);
  box.for_chunks([&](std::uint32_t offset) {
    cta.shared.begin_bulk_write(box.chunk(offset), kChunk, site);
    if (races_) races_->shared(AccessKind::kWrite, copies, box.chunk(offset), kChunk, site);
  });
  const bool is_early = draw(kEarlyOneIn) == 0;
  loads_.push_back({&cta, running().kernel_view.thread, std::move(box), barrier, site, is_early});
  early_loads_ += is_early ? 1 : 0;
}

void Machine::cp_async_bulk_load(uint32 to, const void* from, uint32 bytes, uint32 barrier,
                                 Site site) {
  begin_load(MemoryInstruction::kCpAsyncBulk, linear_box(from, to, bytes, site), barrier, site);
}

void Machine::cp_async_bulk_tensor_load(uint32 to, const TensorMap& map,
                                        const int32 (&at)[kTensorMapDims], uint32 barrier,
                                        Site site) {
  begin_load(MemoryInstruction::kCpAsyncBulkTensor, tensor_box(map, at, to, site), barrier, site);
}

void Machine::land(const BulkLoad& load) {
  blame(load.cta->threads[static_cast<std::size_t>(load.thread)]);
  const std::vector<std::byte> image = image_of(load.box);
  load.box.for_chunks([&](std::uint32_t offset) {
    load.cta->shared.land_bulk_write(load.box.chunk(offset), image.data() + offset, kChunk);
  });
  Mbarrier& barrier = load.cta->mbarriers.at(load.barrier, load.site);
  if (races_)
    barrier.arriving.merge(races_->publish(races_->copies(load.cta->index, barrier.number)));
  if (barrier.receive(load.box.bytes, load.site)) wake_all(barrier);
}

void Machine::land_load(std::size_t i) {
  std::swap(loads_[i], loads_.back());
  const BulkLoad load = std::move(loads_.back());
  loads_.pop_back();
  early_loads_ -= load.is_early ? 1 : 0;
  land(load);
}

bool Machine::land_latest() {
  if (loads_.empty()) return false;
  land_load(draw(loads_.size()));
  return true;
}

void Machine::land_early() {
  if (early_loads_ == 0 || draw(kEarlySteps) != 0) return;
  const auto load = std::ranges::find(loads_, true, &BulkLoad::is_early);
  land_load(static_cast<std::size_t>(load - loads_.begin()));
}

void Machine::cp_async_bulk_store(void* to, uint32 from, uint32 bytes, Site site) {
  CopyBox box = linear_box(to, from, bytes, site);
  box.for_chunks([&](std::uint32_t offset) {
    shared().begin_bulk_read(box.chunk(offset), kChunk, site);
    note_shared(AccessKind::kRead, running(), box.chunk(offset), kChunk, site);
  });
  for (const CopyBox::Run& run : box.runs) {
    global_.begin_bulk_write(run.global, run.bytes, site);
    note_global(AccessKind::kWrite, run.global, run.bytes, site);
  }
  profile(MemoryInstruction::kCpAsyncBulk, box, site);
  running().stores.add({std::move(box), site});
}

void Machine::read_source(BulkStore& store) {
  if (std::exchange(store.is_read, true)) return;
  store.image.resize(store.box.bytes);
  store.box.for_chunks([&](std::uint32_t offset) {
    const std::uint32_t chunk = store.box.chunk(offset);
    std::memcpy(store.image.data() + offset, shared().data(chunk), kChunk);
    shared().end_bulk_read(chunk, kChunk);
  });
}

void Machine::write_destination(BulkStore& store) {
  read_source(store);
  for (const CopyBox::Run& run : store.box.runs)
    global_.land_bulk_write(run.global, store.image.data() + run.offset, run.bytes);
}

void Machine::cp_async_bulk_wait_group(int32 pending, bool reads) {
  BulkStores& stores = running().stores;
  const auto left = static_cast<std::size_t>(pending);
  if (reads) return stores.for_all_but(left, [&](BulkStore& store) { read_source(store); });
  stores.for_all_but(left, [&](BulkStore& store) { write_destination(store); });
  stores.drop_all_but(left);
}

NamedBarrier& Machine::arrive_named(int32 id, int32 threads, const Wait& at) {
  Thread& self = running();
  if (id < 1 || id >= kNamedBarriers)
    throw Violation{rule::kOperand, at.site,
                    fmt::format("barrier {}; 1 to {} are allowed", id, kNamedBarriers - 1)};
  if (threads < kEmulatedWarp || threads % kEmulatedWarp != 0 ||
      static_cast<std::size_t>(threads) > self.cta->threads.size())
    throw Violation{rule::kOperand, at.site,
                    fmt::format("a barrier of {} threads; a multiple of {} up to the CTA's {} is "
                                "allowed",
                                threads, kEmulatedWarp, self.cta->threads.size())};
  NamedBarrier& barrier = self.cta->named_barriers[static_cast<std::size_t>(id)];
  if (barrier.arrived.empty()) {
    barrier.at = at;
    barrier.expected = threads;
  }
  if (barrier.expected != threads)
    throw Violation{rule::kDivergence, at.site,
                    fmt::format("barrier {} counts {} threads here and {} at {}", id, threads,
                                barrier.expected, describe(barrier.at.site))};
  if (std::ranges::find(barrier.arrived, &self) != barrier.arrived.end())
    throw Violation{
        rule::kDivergence, at.site,
        fmt::format("this thread arrives at barrier {} again before all others have", id)};
  barrier.arrived.push_back(&self);
  if (races_) barrier.clock.merge(races_->publish(id_of(self)));
  return barrier;
}

// Wakes the threads that wait. The running thread is not among them.
void Machine::complete(NamedBarrier& barrier) {
  for (Thread* woken : barrier.waiting) {
    if (races_) races_->merge(id_of(*woken), barrier.clock);
    wake(*woken);
  }
  barrier = {};
}

void Machine::bar_arrive(int32 id, int32 threads, Site site) {
  NamedBarrier& barrier = arrive_named(id, threads, {"bar.arrive", site});
  if (barrier.arrived.size() == static_cast<std::size_t>(threads)) complete(barrier);
}

void Machine::bar_sync(int32 id, int32 threads, Site site) {
  const Wait at = {"bar.sync", site};
  NamedBarrier& barrier = arrive_named(id, threads, at);
  if (barrier.arrived.size() < static_cast<std::size_t>(threads)) {
    barrier.waiting.push_back(&running());
    return block({"bar.sync", site, nullptr, id});
  }
  if (races_) races_->merge(id_of(running()), barrier.clock);
  complete(barrier);
}

std::string Machine::describe_wait(const EmulatedCta& cta, const Wait& wait) const {
  if (wait.barrier != nullptr) return fmt::format("{} for {}", wait.what, wait.barrier->describe());
  if (wait.id >= 0) {
    const NamedBarrier& barrier = cta.named_barriers[static_cast<std::size_t>(wait.id)];
    return fmt::format("{} {}, where {} of {} threads have arrived", wait.what, wait.id,
                       barrier.arrived.size(), barrier.expected);
  }
  return wait.what;
}

}  // namespace lazyrope
