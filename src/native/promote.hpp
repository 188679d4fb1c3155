// Promotion: K in parts, each a chain of its own from +0, their results added outside the unit. Every
// kernel computes a part as it would a whole product, into memory of our own, and tells `advance` of
// each block of outputs that is done: the sum is formed while the block is in the cache.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <vector>

#include "environment.hpp"
#include "kernels.hpp"
#include "simd.hpp"

namespace bitmma::BITMMA_ISA {

// Outputs [i0, i0 + rows) x [j0, j0 + cols).
struct Block { i64 i0, rows, j0, cols; };

inline bool stopped(const Job& job) {
  return job.watch && __atomic_load_n(&job.watch->stop, __ATOMIC_RELAXED);
}

// ---- the sum --------------------------------------------------------------------------------------

// One row of a matrix of T, or of a unit's narrower results, as T: in place where whole vectors lie
// there, else in `buffer`.
template <class T> const u8* row_of(const Mat& m, const Format& f, i64 i, i64 j0, i64 cols, i64 whole, T* buffer) {
  const u8* p = m.at(i, j0);
  if (f.width == 8 * sizeof(T)) {
    if (m.col == sizeof(T) && cols == whole) return p;
    for (i64 j = 0; j < cols; ++j) std::memcpy(buffer + j, p + j * m.col, sizeof(T));
  } else {
    for (i64 j = 0; j < cols; ++j) {
      const u32 code = u32(load_code(p + j * m.col, 2));
      buffer[j] = f.mantissa_bits == 10 ? half_to_float(code) : bits<float>(code << 16);
    }
  }
  return reinterpret_cast<const u8*>(buffer);
}

// T is float or double, V its vector. In the environment that add_results sets.
template <class T, class V> __attribute__((noinline)) void add_in(const Job& job, const Block& at) {
  using Bits = std::conditional_t<sizeof(T) == 8, u64, u32>;
  constexpr i64 lanes = sizeof(V) / sizeof(T), most = 64;
  const Promotion& p = job.promotion;
  const Spec& s = *job.spec;
  const Format same{8 * sizeof(T), 0, 0, 0, Specials::ieee, 1, 0};
  const Bits quiet = sizeof(T) == 8 ? Bits(0x7FF8000000000000) : Bits(0x7FC00000);
  const T nan = bits<T>(s.nan_ones ? Bits(~Bits(0) >> 1) : quiet);
  const bool scaled = p.scale_a.data || p.scale_b.data;
  for (i64 j0 = at.j0; j0 < at.j0 + at.cols; j0 += most) {
    const i64 cols = std::min(most, at.j0 + at.cols - j0), whole = (cols + lanes - 1) / lanes * lanes;
    alignas(64) T results[most] = {}, start[most] = {}, sums[most], scale_b[most];
    for (i64 j = 0; j < most; ++j) scale_b[j] = T(1);  // which changes nothing, not even a zero's sign
    for (i64 j = 0; p.scale_b.data && j < cols; ++j) std::memcpy(scale_b + j, p.scale_b.at(0, j0 + j), sizeof(T));
    for (i64 i = at.i0; i < at.i0 + at.rows; ++i) {
      const u8* r = row_of(job.d, s.d, i, j0, cols, whole, results);
      const u8* from = reinterpret_cast<const u8*>(start);
      if (p.start.data) from = row_of(p.start, same, i, j0, cols, whole, start);
      T scale_a = T(1);
      if (p.scale_a.data) std::memcpy(&scale_a, p.scale_a.at(i, 0), sizeof(T));
      u8* out = p.total.at(i, j0);
      const bool direct = p.total.col == sizeof(T) && cols == whole;
      u8* to = direct ? out : reinterpret_cast<u8*>(sums);
      for (i64 j = 0; j < whole; j += lanes) {
        const i64 byte = j * i64(sizeof(T));
        V x = load<V>(r + byte), y = load<V>(from + byte);
        if (!scaled) {
          y = y + x;
        } else {
          V scale = splat(scale_a) * load<V>(scale_b + j);
          y = p.fused ? fused_multiply_add(scale, x, y) : y + scale * x;
        }
        store(to + byte, y != y ? splat(nan) : y);
      }
      for (i64 j = 0; !direct && j < cols; ++j) std::memcpy(out + j * p.total.col, sums + j, sizeof(T));
    }
  }
}

// What the chains of a block have come to joins the sums. IEEE, to nearest, subnormals kept.
__attribute__((noinline)) inline void add_results(const Job& job, const Block& at) {
  const Mat& total = job.promotion.total;
  if (std::abs(total.row) < std::abs(total.col))  // along rows, as memory lies
    return add_results(job.transposed(job.spec), {at.j0, at.cols, at.i0, at.rows});
  Environment environment(Rounding::nearest);
  if (job.spec->d.width == 64) add_in<double, vd>(job, at);
  else add_in<float, vf>(job, at);
}

// What this thread's call has done and not told yet: an atomic addition waits for all stores before it,
// which is long where blocks are small.
inline thread_local i64 untold = 0;
inline void tell(const Job& job) {
  if (job.watch) __atomic_fetch_add(&job.watch->done, untold, __ATOMIC_RELAXED);
  untold = 0;
}
// A kernel has brought a block `positions` further, to the end of the chain if `last`. False: stop.
inline bool advance(const Job& job, const Block& at, i64 positions, bool last) {
  if (last && job.promotion.every) add_results(job, at);
  if (!job.watch) return true;
  untold += at.rows * at.cols * positions;
  if (untold >= 1 << 18) tell(job);
  return !stopped(job);
}

// ---- the parts ------------------------------------------------------------------------------------

// The chains that a batch of promoted products consists of: for each product, for each block of its
// rows, for each part of K. Those of one shape that follow each other make a batch for a kernel.
class Parts {
 public:
  explicit Parts(Batch& whole)
      : job(whole.job), whole_(whole), every_(whole.job.promotion.every),
        parts_(std::max<i64>(1, (whole.job.K + every_ - 1) / every_)),
        rows_(std::min(whole.job.M, std::max<i64>(256, (1 << 16) / whole.job.N))) {
    const i64 bytes = job.spec->d.bytes();
    results_.resize(size_t(rows_ * job.N * bytes + 7) / 8);
    job.c = {};
    job.d = {reinterpret_cast<u8*>(results_.data()), job.N * bytes, bytes};
    describe();
  }

  Job job;           // the current one
  bool some = true;  // false at the end

  bool step() {
    if (++part_ == parts_) {
      part_ = 0, i0_ += rows_;
      if (i0_ >= whole_.job.M) i0_ = 0, some = whole_.next(whole_);
    }
    if (some) describe();
    return some;
  }

 private:
  void describe() {
    const Job& w = whole_.job;
    const Promotion& p = w.promotion;
    const i64 k0 = part_ * every_;
    job.M = std::min(rows_, w.M - i0_), job.K = std::min(every_, w.K - k0);
    job.a.data = w.a.at(i0_, k0), job.b.data = w.b.at(k0, 0);
    if (const i64 block = w.spec->block) {
      job.scale_a.data = w.scale_a.at(i0_, k0 / block);
      job.scale_b.data = w.scale_b.at(k0 / block, 0);
    }
    Promotion& mine = job.promotion;
    const Mat none;  // also the scales of no products
    mine.scale_a = p.scale_a.data && w.K ? Mat{p.scale_a.at(i0_, part_), p.scale_a.row, p.scale_a.col} : none;
    mine.scale_b = p.scale_b.data && w.K ? Mat{p.scale_b.at(part_, 0), p.scale_b.row, p.scale_b.col} : none;
    mine.total = {w.d.at(i0_, 0), w.d.row, w.d.col};
    if (part_) mine.start = mine.total;
    else mine.start = w.c.data ? Mat{w.c.at(i0_, 0), w.c.row, w.c.col} : none;
  }

  Batch& whole_;
  i64 every_, parts_, rows_, part_ = 0, i0_ = 0;
  std::vector<u64> results_;
};

// `chains` runs a batch of products of one shape.
inline void by_parts(Batch& whole, Run& chains) {
  if (!whole.job.promotion.every) return chains(whole);
  Parts parts(whole);
  while (parts.some && !stopped(whole.job)) {
    Batch alike{parts.job, [](Batch& b) {
      Parts& all = *static_cast<Parts*>(b.state);
      if (!all.step() || all.job.M != b.job.M || all.job.K != b.job.K) return false;
      b.job = all.job;
      return true;
    }, &parts};
    chains(alike);
  }
}

}  // namespace bitmma::BITMMA_ISA
