// How codes are read and in which order: shared by the exact evaluator and the vector kernels.
#pragma once
#include <vector>

#include "spec.hpp"

namespace bitmma::BITMMA_ISA {

inline u64 load_code(const u8* p, int bytes) {
  switch (bytes) {
    case 1: return *p;
    case 2: { u16 x; __builtin_memcpy(&x, p, 2); return x; }
    case 4: { u32 x; __builtin_memcpy(&x, p, 4); return x; }
    default: { u64 x; __builtin_memcpy(&x, p, 8); return x; }
  }
}

inline void store_code(u8* p, int bytes, u64 code) {
  switch (bytes) {
    case 1: *p = static_cast<u8>(code); break;
    case 2: { u16 x = static_cast<u16>(code); __builtin_memcpy(p, &x, 2); break; }
    case 4: { u32 x = static_cast<u32>(code); __builtin_memcpy(p, &x, 4); break; }
    default: __builtin_memcpy(p, &code, 8);
  }
}

// Where the products of a chain lie: instructions of `step` products, each filled up to whole
// groups, and inside a group in the order the kernels want them. position(p) is the k of padded
// position p, or -1 where it is filled with +0.
struct Layout {
  i64 K, step, padded_step, total, group;
  int order[4096];  // inside one group: place -> product

  explicit Layout(const Spec& s, i64 K_) : K(K_), group(s.group) {
    step = s.step;
    padded_step = (step + group - 1) / group * group;
    i64 steps = K > 0 ? (K + step - 1) / step : 1;
    total = steps * padded_step;
    int n = 0;
    if (s.family == Family::lowered) {  // part after part
      for (int part = 0; part < s.parts; ++part)
        for (int i = 0; i < s.group; ++i)
          if (s.part_of[i % s.period] == part) order[n++] = i;
    } else if (s.family == Family::gtr) {  // even products, then odd ones
      for (int parity = 0; parity < 2; ++parity)
        for (int i = parity; i < s.group; i += 2) order[n++] = i;
    } else {
      for (int i = 0; i < s.group; ++i) order[n++] = i;
    }
  }
  i64 position(i64 p) const {
    i64 in_step = p % padded_step;
    i64 r = in_step / group * group + order[in_step % group];
    i64 k = p / padded_step * step + r;
    return r < step && k < K ? k : -1;
  }
  // The k of positions [p0, p1); true if they are a plain range.
  bool positions(i64 p0, i64 p1, std::vector<i64>& out) const {
    out.resize(size_t(p1 - p0));
    bool contiguous = true;
    for (i64 p = p0; p < p1; ++p) {
      i64 k = out[size_t(p - p0)] = position(p);
      contiguous &= k >= 0 && k == out[0] + p - p0;
    }
    return contiguous;
  }
  // The unpermuted index of a padded position, which decides the block of its scale.
  i64 scale_block(i64 p, int block) const {
    i64 in_step = p % padded_step;
    i64 k = p / padded_step * step + in_step;
    return k / block;
  }
};

}  // namespace bitmma::BITMMA_ISA
