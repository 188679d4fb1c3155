// Any model on any operands, one dot product at a time, in integers wide enough to be exact.
// The vector kernels hand it what they cannot hold; hypothetical units run on it altogether.
#pragma once
#include <vector>

#include "layout.hpp"

namespace bitmma::BITMMA_ISA::exact {

enum Kind : u8 { zero, finite, inf, nan };

// (-1)^sign * significand * 2^(e - mantissa_bits of its format); q = e - mantissa_bits.
struct Number {
  u64 significand = 0;
  i32 e = 0, q = 0;
  Kind kind = zero;
  u8 sign = 0;
};

inline Number decode(const Format& f, u64 code) {
  Number x;
  x.sign = f.has_sign ? code >> (f.width - 1) & 1 : 0;
  u64 word = code >> f.dropped_bits;
  u64 mantissa = word & ((u64(1) << f.mantissa_bits) - 1);
  int ones = (1 << f.exponent_bits) - 1;
  int field = int(word >> f.mantissa_bits) & ones;
  x.e = f.min_exponent();
  switch (f.specials) {
    case Specials::ieee:
      if (field == ones) { x.kind = mantissa ? nan : inf; return x; }
      break;
    case Specials::fn:
      if (field == ones && mantissa == (u64(1) << f.mantissa_bits) - 1) { x.kind = nan; return x; }
      break;
    case Specials::fnuz:
      if (code == u64(1) << (f.width - 1)) { x.kind = nan; return x; }
      break;
    case Specials::ue8m0:
      if (field == ones) { x.kind = nan; return x; }
      x.kind = finite, x.significand = 1, x.e = x.q = field - f.bias;
      return x;
    case Specials::none: break;
  }
  x.significand = mantissa;
  if (field) x.significand |= u64(1) << f.mantissa_bits, x.e = field - f.bias;
  x.q = x.e - f.mantissa_bits;
  x.kind = x.significand ? finite : zero;
  return x;
}

inline int bit_length(u128 x) {
  u64 high = u64(x >> 64), low = u64(x);
  return high ? 128 - __builtin_clzll(high) : low ? 64 - __builtin_clzll(low) : 0;
}

// What a shift drops, in halves of the last bit that stays.
enum class Rest { zero, below, half, above };

// m >> shift in place, shift > 0; what was dropped.
inline Rest shift_out(u128& m, int shift) {
  if (shift > 127) {
    Rest rest = m ? Rest::below : Rest::zero;  // m has at most 126 bits
    m = 0;
    return rest;
  }
  u128 rest = m & ((u128(1) << shift) - 1), half = u128(1) << (shift - 1);
  m >>= shift;
  return !rest ? Rest::zero : rest < half ? Rest::below : rest == half ? Rest::half : Rest::above;
}

// Whether a magnitude that dropped `rest` becomes the next one.
inline bool rounds_up(Mode mode, bool odd, Rest rest, bool negative) {
  switch (mode) {
    case Mode::rne: return rest > Rest::half || (rest == Rest::half && odd);
    case Mode::rna: return rest >= Rest::half;
    case Mode::rz: return false;
    case Mode::rd: return rest != Rest::zero && negative;
    case Mode::ru: return rest != Rest::zero && !negative;
    case Mode::ra: return rest != Rest::zero;
  }
  return false;
}

// magnitude * 2^q rounded once to a code of an IEEE-like format; beyond it, by default, Inf.
inline u64 encode(u128 magnitude, int q, bool negative, const Format& f, Mode mode, int kept,
                  Overflow overflow = Overflow::inf) {
  u64 sign = negative ? u64(1) << (f.width - 1) : 0;
  if (!magnitude) return sign;
  int e = bit_length(magnitude) - 1 + q;
  if (e < f.min_exponent()) e = f.min_exponent();
  int shift = e - kept - q;
  u128 steps = magnitude;
  if (shift <= 0) {
    steps <<= -shift;
  } else {
    Rest rest = shift_out(steps, shift);
    steps += rounds_up(mode, steps & 1, rest, negative);
  }
  // The layout is monotonic: a carry into the next binade is the next code.
  u64 code = (u64(steps) << (f.mantissa_bits - kept)) + (u64(e - f.min_exponent()) << f.mantissa_bits);
  u64 infinity = ((u64(1) << f.exponent_bits) - 1) << f.mantissa_bits;
  if (code < infinity) return sign | code;
  const bool inward = mode == Mode::rz || mode == (negative ? Mode::ru : Mode::rd);
  const bool stops = overflow == Overflow::saturate || (overflow == Overflow::ieee && inward);
  const int unused = f.mantissa_bits - kept;
  return sign | (stops ? (infinity - 1) >> unused << unused : infinity);
}

inline u64 inf_code(const Format& f) {
  return ((u64(1) << f.exponent_bits) - 1) << f.mantissa_bits;
}

inline u64 nan_code(const Spec& s, const Format& f) {
  return s.nan_ones ? (~u64(0) >> (65 - f.width)) : inf_code(f) | u64(1) << (f.mantissa_bits - 1);
}

// |x| * 2^(q - unit) cut toward zero, or toward minus infinity, as a signed integer.
inline i128 align(u128 magnitude, bool negative, int q, int unit, bool down = false) {
  if (!magnitude) return 0;  // whose exponent may lie anywhere
  int shift = q - unit;
  if (shift >= 0) {
    i128 n = i128(magnitude << shift);
    return negative ? -n : n;
  }
  shift = -shift;
  u128 kept = shift > 127 ? 0 : magnitude >> shift;
  bool lost = shift > 127 ? magnitude != 0 : (kept << shift) != magnitude;
  i128 n = i128(kept);
  if (!negative) return n;
  return -n - (down && lost);
}

inline i128 floor_shift(i128 n, int shift) {  // n * 2^-shift toward minus infinity
  if (shift <= 0) return i128(u128(n) << -shift);
  return shift > 127 ? (n < 0 ? -1 : 0) : n >> shift;
}

// Collects the special values among the terms of one sum.
struct SpecialSum {
  bool nan = false, plus = false, minus = false;
  void add(Kind kind, bool sign) {
    if (kind == exact::nan) nan = true;
    if (kind == inf) (sign ? minus : plus) = true;
  }
  void product(const Number& a, const Number& b) {
    if (a.kind < inf && b.kind < inf) return;
    if (a.kind == exact::nan || b.kind == exact::nan || a.kind == zero || b.kind == zero) nan = true;
    else add(inf, a.sign ^ b.sign);
  }
  bool any() const { return nan || plus || minus; }
  u64 code(const Spec& s, const Format& f) const {
    if (nan || (plus && minus)) return nan_code(s, f);
    return inf_code(f) | (minus ? u64(1) << (f.width - 1) : 0);
  }
};

// An exact sum of any floating-point numbers: two's complement in 64-bit limbs above 2^base.
class Accumulator {
 public:
  Accumulator(int lowest_q, int highest_bit)
      : base_(lowest_q), limbs_(size_t(highest_bit - lowest_q) / 64 + 4) {}
  void clear() { for (u64& x : limbs_) x = 0; }
  void restart(int lowest_q, int highest_bit) {
    base_ = lowest_q;
    limbs_.assign(size_t(highest_bit - lowest_q) / 64 + 4, 0);
  }
  void add(u128 magnitude, int q, bool negative) {
    if (!magnitude) return;
    unsigned at = unsigned(q - base_), shift = at % 64;
    size_t i = at / 64;
    u64 part[3] = {u64(magnitude << shift), u64(magnitude << shift >> 64),
                   shift ? u64(magnitude >> (128 - shift)) : 0};
    u64 carry = 0;
    for (int j = 0; i < limbs_.size() && (j < 3 || carry); ++i, ++j) {
      u64 x = j < 3 ? part[j] : 0;
      u128 sum = negative ? u128(limbs_[i]) - x - carry : u128(limbs_[i]) + x + carry;
      limbs_[i] = u64(sum);
      carry = u64(sum >> 64) & 1;
    }
  }
  // The sum as sign, magnitude and q; bits below the top 128 or so are jammed into the lowest,
  // which no rounding to 53 bits or fewer can tell from the truth.
  u128 read(int& q, bool& negative) {
    size_t top = magnitude(negative);
    if (!top) { q = base_; return 0; }
    u64 high = limbs_[top - 1], low = top > 1 ? limbs_[top - 2] : 0;
    bool sticky = false;
    for (size_t i = 0; i + 2 < top; ++i) sticky |= limbs_[i] != 0;
    q = base_ + int(top > 1 ? (top - 2) * 64 : 0);
    u128 value = top > 1 ? u128(high) << 64 | low : high;
    return value | sticky;  // 65 bits or more are kept, so the jammed bit lies below any result
  }

  // The same with 126 bits, for sums that are cut to more before they are rounded.
  u128 read_top(int& q, bool& negative) {
    size_t top = magnitude(negative);
    q = base_;
    if (!top) return 0;
    auto limb = [&](size_t i) { return top > i ? limbs_[top - 1 - i] : 0; };
    const int spare = __builtin_clzll(limb(0));
    u128 value = u128(limb(0)) << 64 | limb(1);
    if (spare) value = value << spare | limb(2) >> (64 - spare);
    bool sticky = (value & 3) | (limb(2) << spare);
    for (size_t i = 0; i + 3 < top; ++i) sticky |= limbs_[i] != 0;
    q += (int(top) - 2) * 64 - spare + 2;
    return value >> 2 | sticky;
  }

 private:
  // Takes the sign off; how many limbs are in use.
  size_t magnitude(bool& negative) {
    negative = limbs_.back() >> 63;
    if (negative) {
      u64 carry = 1;
      for (u64& x : limbs_) { x = ~x + carry; carry = carry && x == 0; }
    }
    size_t top = limbs_.size();
    while (top && !limbs_[top - 1]) --top;
    return top;
  }

  int base_;
  std::vector<u64> limbs_;
};

class Evaluator {
 public:
  explicit Evaluator(const Spec& s)
      : s_(s),
        acc_(lowest(s), highest(s)) {}

  // The groups [0, groups) of products a, b (in Layout's order) joined to c; scales one a group
  // (GST: one for each G products). Returns the last group's number, its code in `code`. Instructions
  // begin every `groups_per_step` groups, of which `first` have gone before: then c has d's format.
  Number chain(const Number* a, const Number* b, i64 groups, Number c, u64& code,
               const Number* scale_a, const Number* scale_b, i64 first, i64 groups_per_step) {
    int per_group = s_.group / s_.scale_every();
    for (i64 g = 0; g < groups; ++g) {
      const Number *pa = a + g * s_.group, *pb = b + g * s_.group;
      const Number* sa = scale_a ? scale_a + g * per_group : nullptr;
      const Number* sb = scale_b ? scale_b + g * per_group : nullptr;
      switch (s_.family) {
        case Family::fma: code = fma(pa[0], pb[0], c); break;
        case Family::ftz: code = ftz(pa, pb, c, (first + g) % groups_per_step == 0, first + g == 0); break;
        case Family::e: code = fused_exactly(pa, pb, c); break;
        case Family::t:
        case Family::st: code = truncated(pa, pb, s_.L, c, sa, sb); break;
        case Family::gst: code = grouped(pa, pb, c, sa, sb); break;
        case Family::tr: code = joined(pa, pb, c); break;
        case Family::gtr: code = joined_by_parity(pa, pb, c); break;
        case Family::lowered: code = lowered(pa, pb, c); break;
        case Family::fdpa:
        case Family::sum_tree: break;  // General's
      }
      c = decode(s_.d, code);
    }
    return c;
  }

 private:
  static int lowest(const Spec& s) {
    int products = s.a.min_exponent() - s.a.mantissa_bits + s.b.min_exponent() - s.b.mantissa_bits;
    int c = s.c.min_exponent() - s.c.mantissa_bits, d = s.d.min_exponent() - s.d.mantissa_bits;
    int low = products < c ? products : c;
    return (low < d ? low : d) - 1;
  }
  static int highest(const Spec& s) {
    int products = s.a.max_exponent() + s.b.max_exponent() + 2 + 13;
    int c = s.c.max_exponent() + 2, d = s.d.max_exponent() + 2;
    int high = products > c ? products : c;
    return (high > d ? high : d) + 2;
  }
  static u128 magnitude(const Number& a, const Number& b) {
    return u128(a.significand) * b.significand;
  }
  u64 round(u128 m, int q, bool negative) const {
    return encode(m, q, negative, s_.d, s_.mode, s_.mantissa_bits, s_.overflow);
  }
  u64 round(i128 n, int q) const {
    return round(n < 0 ? u128(-n) : u128(n), q, n < 0);
  }
  u64 never_negative_zero(u64 code) const { return code == u64(1) << (s_.d.width - 1) ? 0 : code; }

  // Section 1: one rounding; a zero sum is -0 only if both terms are -0.
  u64 fma(const Number& a, const Number& b, const Number& c) {
    SpecialSum special;
    special.product(a, b);
    special.add(c.kind, c.sign);
    if (special.any()) return special.code(s_, s_.d);
    bool sign = a.sign ^ b.sign;
    return ieee_sum(magnitude(a, b), a.q + b.q, sign, c.significand, c.q, c.sign);
  }
  u64 ieee_sum(u128 x, int xq, bool xs, u128 y, int yq, bool ys) {
    if (!x && !y) return xs && ys ? u64(1) << (s_.d.width - 1) : 0;
    acc_.clear();
    acc_.add(x, xq, xs);
    acc_.add(y, yq, ys);
    int q; bool negative;
    u128 m = acc_.read(q, negative);
    return round(m, q, negative);
  }

  // Section 2: FP32 operations with everything subnormal flushed.
  static float as_float(u64 code) {
    u32 bits = u32(code);
    float x;
    __builtin_memcpy(&x, &bits, 4);
    return x;
  }
  static u32 bits_of(float x) { u32 b; __builtin_memcpy(&b, &x, 4); return b; }
  static float flush(float x) {  // keeps the sign; the comparison sees Inf and NaN as they are
    return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0.0f, x) : x;
  }
  static bool flushed_operand(const Format& f, const Number& x) {
    return x.kind == zero || (x.kind == finite && !(x.significand >> f.mantissa_bits));
  }
  float ftz_product(const Number& a, const Number& b) const {
    SpecialSum special;
    Number x = flushed_operand(s_.a, a) ? Number{} : a, y = flushed_operand(s_.b, b) ? Number{} : b;
    special.product(x, y);
    if (special.any()) return as_float(special.code(s_, s_.d));
    return flush(as_float(encode(magnitude(x, y), x.q + y.q, x.sign ^ y.sign, s_.d, Mode::rne, 23)));
  }
  // `flush_c`: c enters an instruction here; `first`: and has c's own format.
  u64 ftz(const Number* a, const Number* b, const Number& c, bool flush_c, bool first) {
    float p[4] = {};
    for (int i = 0; i < s_.P; ++i) p[i] = ftz_product(a[i], b[i]);
    float sum = flush(p[0] + p[1]);
    if (s_.P == 4) sum = flush(sum + flush(p[2] + p[3]));
    const Format& cf = first ? s_.c : s_.d;
    float start;
    if (c.kind >= inf) {
      SpecialSum special;
      special.add(c.kind, c.sign);
      start = as_float(special.code(s_, s_.d));
    } else if (flush_c && flushed_operand(cf, c)) {
      start = 0.0f;
    } else if (sum - sum == 0.0f) {  // exactly, whatever c's format
      exact::Number y = decode(s_.d, bits_of(sum));
      return bits_of(
          flush(as_float(ieee_sum(c.significand, c.q, c.sign, y.significand, y.q, y.sign))));
    } else {
      start = 0.0f;
    }
    float d = flush(start + sum);
    return d != d ? nan_code(s_, s_.d) : bits_of(d);
  }

  // Section 3: the exact sum, one rounding; exactly zero gives +0.
  u64 fused_exactly(const Number* a, const Number* b, const Number& c) {
    SpecialSum special;
    for (int i = 0; i < s_.L; ++i) special.product(a[i], b[i]);
    special.add(c.kind, c.sign);
    if (special.any()) return special.code(s_, s_.d);
    acc_.clear();
    for (int i = 0; i < s_.L; ++i)
      acc_.add(magnitude(a[i], b[i]), a[i].q + b[i].q, a[i].sign ^ b[i].sign);
    acc_.add(c.significand, c.q, c.sign);
    int q; bool negative;
    u128 m = acc_.read(q, negative);
    return m ? round(m, q, negative) : 0;
  }

  // Sections 4 and 5: cut F bits below e_max, sum, convert; never -0.
  u64 truncated(const Number* a, const Number* b, int length, const Number& c, const Number* sa,
                const Number* sb) const {
    SpecialSum special;
    for (int i = 0; i < length; ++i) special.product(a[i], b[i]);
    special.add(c.kind, c.sign);
    int scale = 0;
    if (sa) {
      special.add(sa->kind, 0), special.add(sb->kind, 0);
      scale = sa->e + sb->e;
    }
    if (special.any()) return special.code(s_, s_.d);
    int e_max = c.kind == zero ? s_.e_zero : c.e;
    for (int i = 0; i < length; ++i)
      if (a[i].significand && b[i].significand) {
        int e = a[i].e + b[i].e + scale;
        if (e > e_max) e_max = e;
      }
    int unit = e_max - s_.F;
    i128 sum = align(c.significand, c.sign, c.q, unit);
    for (int i = 0; i < length; ++i)
      if (u128 m = magnitude(a[i], b[i]))
        sum += align(m, a[i].sign ^ b[i].sign, a[i].q + b[i].q + scale, unit);
    return never_negative_zero(round(sum, unit));
  }

  // Section 6: exact group sums, scaled with significands, fused with c.
  u64 grouped(const Number* a, const Number* b, const Number& c, const Number* sa,
              const Number* sb) const {
    int groups = s_.L / s_.G;
    SpecialSum special;
    for (int i = 0; i < s_.L; ++i) special.product(a[i], b[i]);
    special.add(c.kind, c.sign);
    for (int g = 0; sa && g < groups; ++g)
      special.add(sa[g].kind, 0), special.add(sb[g].kind, 0);
    if (special.any()) return special.code(s_, s_.d);
    auto exponent = [&](int g) { return sa ? sa[g].e + sb[g].e : 0; };
    int e_max = c.kind == zero ? s_.e_zero : c.e;
    for (int g = 0; g < groups; ++g) {
      bool empty = sa && (!sa[g].significand || !sb[g].significand);
      bool any = false;
      for (int i = g * s_.G; i < (g + 1) * s_.G; ++i) any |= a[i].significand && b[i].significand;
      int e = empty || !any ? s_.e_zero : exponent(g);
      if (e > e_max) e_max = e;
    }
    int unit = e_max - s_.F;
    i128 sum = align(c.significand, c.sign, c.q, unit);
    int q0 = s_.a.min_exponent() - s_.a.mantissa_bits + s_.b.min_exponent() - s_.b.mantissa_bits;
    for (int g = 0; g < groups; ++g) {
      i128 p = 0;
      for (int i = g * s_.G; i < (g + 1) * s_.G; ++i) {
        i128 m = i128(magnitude(a[i], b[i]) << (a[i].q + b[i].q - q0));
        p += a[i].sign ^ b[i].sign ? -m : m;
      }
      int q = q0;
      if (sa) {
        p *= i128(sa[g].significand) * i128(sb[g].significand);
        q += sa[g].q + sb[g].q;
      }
      sum += align(p < 0 ? u128(-p) : u128(p), p < 0, q, unit);
    }
    return never_negative_zero(round(sum, unit));
  }

  // Section 7, step 1: products cut at their own e_max - F. False where none is non-zero.
  bool products_alone(const Number* a, const Number* b, int length, i128& sum, int& e) const {
    bool any = false;
    for (int i = 0; i < length; ++i)
      if (a[i].significand && b[i].significand) {
        int x = a[i].e + b[i].e;
        e = any && e > x ? e : x;
        any = true;
      }
    sum = 0;
    if (!any) return false;
    for (int i = 0; i < length; ++i)
      if (u128 m = magnitude(a[i], b[i]))
        sum += align(m, a[i].sign ^ b[i].sign, a[i].q + b[i].q, e - s_.F);
    return true;
  }
  // Steps 2 to 4. `sum` is in units of 2^(e - F).
  u64 join(i128 sum, bool any, int e, const Number& c, bool drop_small) const {
    int e_c = c.kind == zero ? -126 : c.e;
    int E = any && e > e_c ? e : e_c;
    int unit_t = E - (s_.F2 + 1), unit_c = E - s_.F;
    i128 t = any ? floor_shift(sum, unit_t - (e - s_.F)) : 0;
    i128 c_kept = drop_small && e_c < E - s_.F - 1
                      ? 0 : align(c.significand, c.sign, c.q, unit_c, true);
    int unit = unit_t < unit_c ? unit_t : unit_c;
    i128 v = i128(u128(t) << (unit_t - unit)) + i128(u128(c_kept) << (unit_c - unit));
    if (!v) return 0;
    int ev = bit_length(v < 0 ? u128(-v) : u128(v)) - 1 + unit;
    int last = (ev > -126 ? ev : -126) - s_.F2;
    if (last > unit) v = floor_shift(v, last - unit), unit = last;
    return v ? round(v, unit) : 0;
  }
  u64 joined(const Number* a, const Number* b, const Number& c) const {
    SpecialSum special;
    for (int i = 0; i < s_.L; ++i) {
      special.product(a[i], b[i]);
      u128 m = magnitude(a[i], b[i]);  // step 0: 2^128 or more counts as Inf
      if (m && bit_length(m) - 1 + a[i].q + b[i].q >= 128) special.add(inf, a[i].sign ^ b[i].sign);
    }
    special.add(c.kind, c.sign);
    if (special.any()) return special.code(s_, s_.d);
    i128 sum; int e = 0;
    bool any = products_alone(a, b, s_.L, sum, e);
    return join(sum, any, e, c, false);
  }
  // Section 8. Layout puts the even products first.
  u64 joined_by_parity(const Number* a, const Number* b, const Number& c) const {
    SpecialSum special;
    for (int i = 0; i < s_.L; ++i) special.product(a[i], b[i]);
    special.add(c.kind, c.sign);
    if (special.any()) return special.code(s_, s_.d);
    int half = (s_.L + 1) / 2;
    i128 even, odd; int e0 = 0, e1 = 0;
    bool any0 = products_alone(a, b, half, even, e0);
    bool any1 = products_alone(a + half, b + half, s_.L - half, odd, e1);
    int e = any0 && any1 ? (e0 > e1 ? e0 : e1) : any0 ? e0 : e1;
    i128 sum = 0;
    if (any0) sum += floor_shift(even, e - e0);
    if (any1) sum += floor_shift(odd, e - e1);
    return join(sum, any0 || any1, e, c, true);
  }

  // Section 9. Layout puts the parts one after another.
  u64 lowered(const Number* a, const Number* b, const Number& c) {
    Number t = decode(s_.d, 0);
    int start = 0;
    for (int part = 0; part < s_.parts; ++part) {
      int length = 0;
      for (int i = 0; i < s_.group; ++i) length += s_.part_of[i % s_.period] == part;
      for (int j = 0; j < length; j += s_.L) {
        int n = length - j < s_.L ? length - j : s_.L;
        t = decode(s_.d, truncated(a + start + j, b + start + j, n, t, nullptr, nullptr));
      }
      start += length;
    }
    SpecialSum special;
    special.add(t.kind, t.sign), special.add(c.kind, c.sign);
    if (special.any()) return special.code(s_, s_.d);
    if (t.kind == zero && c.kind == zero) return t.sign && c.sign ? u64(1) << (s_.d.width - 1) : 0;
    acc_.clear();
    acc_.add(t.significand, t.q, t.sign);
    acc_.add(c.significand, c.q, c.sign);
    int q; bool negative;
    u128 m = acc_.read(q, negative);
    return encode(m, q, m && negative, s_.d, Mode::rne, s_.d.mantissa_bits);
  }

  const Spec& s_;
  Accumulator acc_;
};

}  // namespace bitmma::BITMMA_ISA::exact
