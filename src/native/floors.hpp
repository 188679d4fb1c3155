// Truncated sums of few bits (F = 13, say) from sums rounded down, which one fused multiply-add a
// product gives: added, toward zero, to a float so large that its last place is the unit 2^(e_max - F),
// a product grows it by floor(product). That is truncation, but for a negative product that is no
// multiple of the unit, which comes out one too low. Bytes find these, a tile row at a time:
//
//   dist  top - l in a byte, where 2^l is the lowest bit set in the number
//
// The lowest bit of a product is the product of the lowest bits, so it is no multiple of the unit where
// both distances exceed that of the unit together. Signs go along in the byte's highest bit, where the
// sum of two is the sign of the product, so that one comparison says both. With distances up to 31:
//
//   row     dist + 128 if negative                       zero: 191
//   column  193 + dist + 128 if negative (modulo 256)    zero: 128
//   sum     a negative product: 65 + distance, 65 to 127; all others 63 or less, as signed bytes
#pragma once
#include "pack.hpp"

namespace bitmma::BITMMA_ISA {

class LowBits {
 public:
  static constexpr int furthest = 31, none = 64;  // `none`: the least byte that no other sum exceeds
  // Rows that share what they read of the columns, as registers allow; and with how many the bytes of
  // a panel are worth while.
  static constexpr int rows = W == 16 ? 4 : 2, worth_while = 16;

  static bool hold(const Format& f) {
    return f.max_exponent() - f.min_exponent() + f.mantissa_bits <= furthest;
  }
  void take_rows(const Array<float>& value) {
    row_.resize(value.size());
    for (size_t p = 0; p < value.size(); p += W)
      store(&row_[p], (vu)byte(load<vf>(&value[p]), 0, 191) * 0x01010101u);
  }
  void take_panel(const Array<float>& value) {
    panel_.resize(value.size());
    for (size_t p = 0; p < value.size(); p += W) store_bytes(&panel_[p], byte(load<vf>(&value[p]), 193, 128));
  }
  const u32* row(i64 at) const { return &row_[size_t(at)]; }  // the byte four times, to be broadcast
  const u8* panel() const { return panel_.data(); }
  // What a sum must exceed, of a unit's distance: by e_max, as a float's exponent field.
  BITMMA_INLINE static vb limit(int F, vb e_max) {
    const vb far = subtract_saturating(vb{} + u8(127 + F + 65), e_max);
    return minu(maxu(far, vb{} + u8(none)), vb{} + u8(127));
  }

 private:
  // Of values as packed: below 2 in magnitude.
  BITMMA_INLINE static vi byte(vf x, i32 origin, i32 of_zero) {
    vi w = bits<vi>(x), significand = (w & 0x7FFFFF) | 0x800000;
    vi last = bits<vi>(to_float(significand & -significand)) >> 23;  // 127 and its place
    vi dist = 127 + 150 - ((w >> 23) & 255) - last;
    return (x == 0.0f ? splat(of_zero) : dist + origin + ((w >> 31) & 128)) & 255;
  }
  Array<u32> row_;
  Array<u8> panel_;
};

}  // namespace bitmma::BITMMA_ISA
