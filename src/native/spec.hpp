// What the engine is told: number formats, one arithmetic model, and where operands lie.
// Nothing here knows of instructions or GPUs.
#pragma once
#include <cstdint>
#include <vector>

#define BITMMA_INLINE __attribute__((always_inline)) inline

namespace bitmma {

using i32 = std::int32_t;
using i64 = std::int64_t;
using u8 = std::uint8_t;
using i8 = std::int8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i128 = __int128;
using u128 = unsigned __int128;

enum class Specials : int { ieee, fn, fnuz, none, ue8m0 };

struct Format {
  int width, exponent_bits, mantissa_bits, bias;
  Specials specials;
  int has_sign, dropped_bits;

  // Kernels are compiled once per vector width: what they call must be inlined or live in their own
  // namespace, or the linker could hand an AVX-512 copy to an older CPU.
  BITMMA_INLINE int bytes() const { return width > 32 ? 8 : width > 16 ? 4 : width > 8 ? 2 : 1; }
  BITMMA_INLINE int min_exponent() const { return specials == Specials::ue8m0 ? -bias : 1 - bias; }
  // The largest exponent a finite number of the format can have (an upper bound is enough).
  BITMMA_INLINE int max_exponent() const {
    return (1 << exponent_bits) - 1 - bias - (specials == Specials::ieee);
  }
};

enum class Family : int { fma, ftz, e, t, st, gst, tr, gtr, lowered, fdpa, sum_tree };
enum class Mode : int { rne, rna, rz, rd, ru, ra };
enum class Overflow : int { inf, saturate, ieee };
enum class Flush : int { no, zero, sign };
enum class ZeroRule : int { plus, signed_, ieee, start };
enum class Tiny : int { stored, after, before };

struct Rho {
  bool present;
  Mode mode;
  int kept;  // mantissa bits
  Overflow overflow;
  Format format;
};

// What FDPA and SumTree have besides: see bitmma.models. F's are -1 where nothing is cut.
struct Open {
  int F, F_c, F_groups, F2, F_sum;
  Mode cut, cut_c, cut_groups, cut2, cut_sum;
  int late, renormalise, groups, pairwise;
  int has_e_zero, has_e_sum, e_sum, drop_c, has_product_overflow, product_overflow;
  Flush flush_in, flush_c, flush_out, flush_last;  // flush_last: of out's results
  ZeroRule zero;
  Tiny tiny;  // what the last two flush
  Rho rho, products, out;  // out: SumTree's last; products: rho_products or rho_product
  Rho rho2;                // SumTree: of the nodes in `second`
  std::vector<int> tree;   // the nodes in order: how many children, then their indices
  std::vector<u8> second;  // one a node
};

// One model, flattened. Fields a family does not have are 0.
struct Spec {
  Family family;
  int L;                // products of one fused step
  int F, F2, G, P;      // see bitmma.models
  int e_zero;           // exponent a zero c takes part with
  Mode mode;            // rho
  int mantissa_bits;    // kept by rho
  Overflow overflow;    // of rho
  int group;            // products of one step of the chain (L, P, 1, or Lowered's K)
  int period;           // Lowered: number of index classes; else 0
  int parts;            // Lowered: number of parts
  int part_of[64];      // Lowered: class -> part
  int nan_ones;         // NaN results are all ones (1) or canonical quiet (0)
  int step;             // products of one instruction; K is filled up with +0 to a multiple
  int block;            // k that share one scale, 0: no scales
  Format a, b, c, d, scale;
  Open open;

  // Neighbouring products that have one scale by the model, whatever the block.
  BITMMA_INLINE int scale_every() const {
    return family == Family::gst ? G : family == Family::fdpa ? 1 : group;
  }
};

// A matrix of codes anywhere in memory; strides in bytes.
struct Mat {
  u8* data = nullptr;
  i64 row = 0, col = 0;
  BITMMA_INLINE u8* at(i64 i, i64 j) const { return data + i * row + j * col; }
  BITMMA_INLINE Mat transposed() const { return {data, col, row}; }
};

// What a running call shares with those who wait for it.
struct Watch {
  i64 stop;  // set by them: the result is not wanted any more
  i64 done;  // set here: outputs times positions of K that lie behind
};

// Chains of `every` products of K, each from +0; their results r leave the unit and are added in order:
// total = fma(scale_a * scale_b, r, total), or with the product rounded too. All in f32, but in f64 and
// without scales where the unit's results are f64. See promote.hpp.
struct Promotion {
  i64 every = 0;  // 0: one chain is the result
  bool fused = true;
  Mat scale_a, scale_b;  // (M, parts), (parts, N); null: 1. In the job of one part: its column, its row
  Mat start, total;      // in the job of one part: what it is added to (null: +0), and where that goes
  BITMMA_INLINE Promotion transposed() const {
    return {every, fused, scale_b.transposed(), scale_a.transposed(), start.transposed(), total.transposed()};
  }
};

struct Job {
  const Spec* spec;
  i64 M, N, K;
  Mat a, b, c, d, scale_a, scale_b;  // c, scales: data null where absent
  Promotion promotion = {};          // then c and d are f32 or f64, whatever the spec's
  Watch* watch = nullptr;
  bool* beyond = nullptr;  // set where a code of A or B has bits above its format's; null: nobody asks
  // The same by columns: the models treat A and B alike. `turned` has their formats exchanged.
  BITMMA_INLINE Job transposed(const Spec* turned) const {
    return {turned, N, M, K, b.transposed(), a.transposed(), c.transposed(), d.transposed(),
            scale_b.transposed(), scale_a.transposed(), promotion.transposed(), watch, beyond};
  }
};

// Products of the same shapes, formats and strides, one after another.
struct Batch {
  Job job;                // the current one
  bool (*next)(Batch&);   // moves to the next; false at the end
  void* state;
};

}  // namespace bitmma
