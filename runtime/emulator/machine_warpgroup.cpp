// wgmma, and other Hopper instructions that a warp or a warpgroup executes together.
#include "runtime/emulator/machine.h"
#include "runtime/emulator/matrix.h"

namespace lazyrope {
namespace {

constexpr std::int64_t kAddresses = 1 << 18;  // one more than a descriptor's largest address
constexpr int kWarps = kEmulatedWarpgroup / kEmulatedWarp;

// Returns true if two lanes give the same operands, as all lanes of a warpgroup must.
bool agree(const EmulatedWgmma& a, const EmulatedWgmma& b) {
  return a.element == b.element && a.columns == b.columns && a.accumulate == b.accumulate &&
         a.a_is_mn_major == b.a_is_mn_major && a.b_is_mn_major == b.b_is_mn_major &&
         (a.a == nullptr) == (b.a == nullptr) && a.a_descriptor == b.a_descriptor &&
         a.b_descriptor == b.b_descriptor;
}

template <class Visit>
void for_registers(const EmulatedWgmma& lane, const Visit& visit) {
  visit(lane.d_registers);
  if (lane.a_registers != nullptr) visit(lane.a_registers);
}

}  // namespace

void Machine::throw_late() {
  if (const auto late = std::exchange(running().late, std::nullopt)) throw Violation{*late};
}

void Machine::check_end() {
  Thread& self = running();
  throw_late();
  if (const AsyncCopy* copy = self.copies.uncommitted())
    throw Violation{rule::kUncommitted, copy->site,
                    "the thread has ended with a copy that no cp.async.commit_group followed"};
  if (const BulkStore* store = self.stores.uncommitted())
    throw Violation{rule::kUncommitted, store->site,
                    "the thread has ended with a copy that no cp.async.bulk.commit_group followed"};
  if (const BulkStore* store = self.stores.unread())
    throw Violation{rule::kUnwaited, store->site,
                    "the thread has ended with a copy that may not have read shared memory yet"};
  cp_async_bulk_wait_group(0, /*reads=*/false);
  if (self.cta->unfinished > 1) return;
  const auto load = std::ranges::find(loads_, self.cta, &BulkLoad::cta);
  if (load != loads_.end())
    throw Violation{rule::kUnwaited, load->site,
                    "the CTA has ended with a copy that may not have written shared memory yet"};
}

void Machine::check_descriptor(uint32 start, int32 leading_bytes, int32 stride_bytes, Site site) {
  const auto check = [&](std::int64_t value, const char* what) {
    if (value >= 0 && value < kAddresses && value % 16 == 0) return;
    throw Violation{rule::kDescriptor, site,
                    fmt::format("{} of {}; a multiple of 16 below 2^18 is needed", what, value)};
  };
  check(start, "a start");
  check(leading_bytes, "a leading offset");
  check(stride_bytes, "a stride offset");
}

void Machine::refuse_registers(const EmulatedRegisters& registers, int32 index, Site site) {
  if (registers.in_flight == 0)
    throw Violation{rule::kOperand, site, fmt::format("there is no register {}", index)};
  throw Violation{
      rule::kWgmmaRegisters, site,
      fmt::format("the product issued at {} has not been waited for", describe(registers.product))};
}

void Machine::abandon_registers(EmulatedRegisters& registers) {
  if (is_unwinding()) return;
  running().late = {rule::kUnwaited, registers.product,
                    "registers of a product went out of scope before a wait for it"};
}

void Machine::wgmma_fence(Site site) {
  throw_late();
  ++running().kernel_view.wgmma_fences;
  meet_warp({"wgmma.fence", site});
}

void Machine::check_agreement(std::span<EmulatedWgmma* const> lanes, const Site& site) {
  for (std::size_t i = 1; i < lanes.size(); ++i)
    if (!agree(*lanes[i], *lanes[0]))
      throw Violation{rule::kDivergence, site,
                      fmt::format("lane {} of the warpgroup gives wgmma other descriptors or "
                                  "another `accumulate` than lane 0",
                                  i)};
}

void Machine::check_fences(std::span<EmulatedWgmma* const> lanes, const Site& site) {
  const int first = running().kernel_view.thread / kEmulatedWarpgroup * kEmulatedWarpgroup;
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    Thread& owner = running().cta->threads[static_cast<std::size_t>(first) + i];
    blame(owner);
    for_registers(*lanes[i], [&](const EmulatedRegisters* registers) {
      if (registers->in_flight == 0 && registers->touched == owner.kernel_view.wgmma_fences)
        throw Violation{rule::kWgmmaFence, site,
                        "registers of this product were made or touched after the latest "
                        "wgmma.fence"};
    });
  }
  blame(running());
}

void Machine::begin_product(std::span<EmulatedWgmma* const> lanes, int quarter, const Site& site) {
  EmulatedCta& cta = *running().cta;
  const EmulatedWgmma& given = *lanes[0];
  WarpProduct product = {.lanes = {*lanes[0]},
                         .a = std::nullopt,
                         .b = MatrixOperand(given.b_descriptor, given.b_is_mn_major, given.columns,
                                            bytes_of(given.element), site),
                         .first_row = quarter * WarpProduct::kRows,
                         .site = site};
  if (given.a == nullptr)
    product.a.emplace(given.a_descriptor, given.a_is_mn_major, WarpProduct::kGroupRows,
                      bytes_of(given.element), site);
  const int group = running().kernel_view.thread / kEmulatedWarpgroup;
  const std::size_t warp =
      (std::size_t{kWarps} * static_cast<std::size_t>(group)) + static_cast<std::size_t>(quarter);
  const Thread& reader = cta.threads[warp * kEmulatedWarp];
  for_chunks(product, [&](std::uint32_t chunk) {
    cta.shared.begin_bulk_read(chunk, MatrixOperand::kChunkBytes, site);
    note_shared(AccessKind::kRead, reader, chunk, MatrixOperand::kChunkBytes, site);
  });
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    product.lanes[i] = *lanes[i];
    for_registers(*lanes[i], [&](EmulatedRegisters* registers) {
      ++registers->in_flight;
      registers->product = site;
    });
  }
  cta.products[warp].add(product);
}

void Machine::wgmma(const EmulatedWgmma& given, Site site) {
  throw_late();
  EmulatedWgmma lane = given;
  meet_warpgroup({"wgmma.mma_async", site}, lane, [&](std::span<EmulatedWgmma* const> lanes) {
    check_agreement(lanes, site);
    check_fences(lanes, site);
    for (int quarter = 0; quarter < kWarps; ++quarter)
      begin_product(lanes.subspan(static_cast<std::size_t>(quarter) * kEmulatedWarp, kEmulatedWarp),
                    quarter, site);
  });
}

void Machine::wgmma_commit_group(Site site) {
  throw_late();
  char nothing = 0;
  meet_warp({"wgmma.commit_group", site}, nothing, [&](std::span<char* const>) {
    running().cta->products[static_cast<std::size_t>(running().warp())].commit();
  });
}

void Machine::end_product(EmulatedCta& cta, const WarpProduct& product) {
  multiply(product, cta.shared.data(0));
  for_chunks(product, [&](std::uint32_t chunk) {
    cta.shared.end_bulk_read(chunk, MatrixOperand::kChunkBytes);
  });
  for (const EmulatedWgmma& lane : product.lanes)
    for_registers(lane, [](EmulatedRegisters* registers) { --registers->in_flight; });
}

void Machine::wgmma_wait_group(int32 pending, Site site) {
  throw_late();
  char nothing = 0;
  meet_warp({"wgmma.wait_group", site}, nothing, [&](std::span<char* const>) {
    EmulatedCta& cta = *running().cta;
    cta.products[static_cast<std::size_t>(running().warp())].wait(
        static_cast<std::size_t>(pending),
        [&](const WarpProduct& product) { end_product(cta, product); });
  });
}

bool Machine::elect_sync(Site site) {
  meet_warp({"elect.sync", site});
  // Any lane may be elected, but the same lane each time. It differs by warp and block, so that
  // kernels cannot rely on lane 0.
  const EmulatorThread& kernel_view = running().kernel_view;
  return running().lane() == (7 * running().warp() + 13 * kernel_view.block + 5) % kEmulatedWarp;
}

void Machine::setmaxnreg(int32 registers, Site site) {
  meet_warpgroup({"setmaxnreg", site}, registers, [&](std::span<int32* const> lanes) {
    if (std::ranges::any_of(lanes, [&](const int32* other) { return *other != *lanes[0]; }))
      throw Violation{rule::kDivergence, site,
                      "the warpgroup's lanes ask for different numbers of registers"};
  });
}

}  // namespace lazyrope
