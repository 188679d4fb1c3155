// T-FDPA, ST-FDPA and Lowered: sections 4, 5 and 9 of the models.
#pragma once
#include "fused.hpp"

namespace bitmma::BITMMA_ISA {

// The conversions the kernel knows: to f32 in the rounding mode of the environment, some bits then
// masked off (toward zero only); or to the nearest f16, in the toward-zero environment.
enum class Rho { single, nearest_half };

template <Rho rho> class Truncated {
 public:
  static constexpr bool products_may_overflow = false;

  explicit Truncated(const Spec& s)
      : L_(s.L), F_(s.F), e_zero_(std::max(s.e_zero, -900)),
        c_lowest_(s.c.width == 16 ? -14 : -126), d_lowest_(s.d.width == 16 ? -14 : -126),
        mask_(i32(~0u << (23 - std::min(s.mantissa_bits, 23)))),
        sub_(std::min(s.L, s.F >= 29 ? 1 : 1 << std::min(29 - s.F, 12))) {
    if (rho == Rho::nearest_half || s.mode != Mode::rz) mask_ = -1;
    if (s.family == Family::lowered) restart_ = s.group / s.L;
    // Zeros' distance of 255 puts them below e_zero, and so below any c, if tops are low enough.
    careful_ = s.block || !narrow_range(s.a) || !narrow_range(s.b) ||
               s.a.max_exponent() + s.b.max_exponent() - 255 >= std::min(s.e_zero, -150);
    k_.mantissa = splat(0x7FFFFF), k_.hidden = splat(0x800000), k_.bias = splat(127);
    k_.e_zero = splat(e_zero_), k_.mask = splat(mask_);
    k_.up = splat(std::max(F_ - 23, 0)), k_.down = splat(127 + std::max(23 - F_, 0));
    k_.unit = splat(127 - F_), k_.highest = splat(95 + F_);
  }

  // `careful`: distances do not all fit under 2^-e_zero, or scales move them about.
  template <int nv> void narrow(const Strip& x, vf c[nv]) const {
    if (careful_) narrow_by_length<nv, true>(x, c);
    else narrow_by_length<nv, false>(x, c);
  }
  void wide(const Strip& x, vf c[NV]) const {
    chain<NV>(x, c, [&](i64 g, vf* t) { wide_group(x, g, g == 0 && x.c_is_new ? c_lowest_ : d_lowest_, t); });
  }
  // A first c of another format than d has other subnormals: the float64 kernel knows.
  bool wants_wide(bool c_is_new) const { return c_is_new && c_lowest_ != d_lowest_; }

 private:
  template <int nv, bool careful> void narrow_by_length(const Strip& x, vf c[nv]) const {
    const bool whole = sub_ >= L_;
    if (L_ == 4 && whole) return narrow_chain<nv, 4, 4, careful>(x, c);
    if (L_ == 8 && whole) return narrow_chain<nv, 8, 8, careful>(x, c);
    if (L_ == 16 && whole) return narrow_chain<nv, 16, 16, careful>(x, c);
    if (L_ == 32 && whole) return narrow_chain<nv, 32, 32, careful>(x, c);
    if (L_ == 32 && sub_ == 16) return narrow_chain<nv, 32, 16, careful>(x, c);
    narrow_chain<nv, 0, 0, careful>(x, c);
  }
  template <int nv, int L0, int sub, bool careful> void narrow_chain(const Strip& x, vf c[nv]) const {
    Reach<nv> r;
    if (!x.col_scale) r = reach<nv>(x, 0);
    chain<nv>(x, c, [&](i64 g, vf* t) {
      if (careful && x.col_scale) r = reach<nv>(x, g);
      group<nv, L0, sub, careful>(x, g, r, t);
    });
  }

  // The groups of a strip in a chain from c; or, Lowered, from +0 every restart_ groups, each chain's
  // result then added to c by an IEEE addition.
  template <int nv, class Group> BITMMA_INLINE void chain(const Strip& x, vf c[nv], Group group) const {
    if (!restart_) {
      vf t[nv];  // a copy of its own stays in registers
      for (int v = 0; v < nv; ++v) t[v] = c[v];
      for (i64 g = 0; g < x.groups; ++g) group(g, t);
      for (int v = 0; v < nv; ++v) c[v] = t[v];
      return;
    }
    for (i64 g = 0; g < x.groups; g += restart_) {
      vf t[nv] = {};
      for (i64 i = g; i < g + restart_; ++i) group(i, t);
      add_nearest<nv>(c, t);
    }
  }

  // c += t, rounded to nearest though the environment is toward zero. Doubly rounded for f16, which
  // is innocuous: a float has more than 2*11 + 2 bits.
  template <int nv> static void add_nearest(vf c[nv], const vf t[nv]) {
#if defined(__AVX512F__)
    for (int v = 0; v < nv; ++v) {
      c[v] = (vf)_mm512_add_round_ps((__m512)c[v], (__m512)t[v], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
      if (rho == Rho::nearest_half) c[v] = round_to_half(c[v]);
    }
#else
    // Through memory, which the compiler must not move across the changes of mode.
    alignas(64) vf sum[nv], term[nv];
    std::memcpy(sum, c, sizeof sum), std::memcpy(term, t, sizeof term);
    auto saved = Environment::read();
    asm volatile("" : : "r"(sum), "r"(term) : "memory");
    Environment::write(Environment::value(Rounding::nearest, false));
    for (int v = 0; v < nv; ++v) {
      vf s = sum[v] + term[v];
      sum[v] = rho == Rho::nearest_half ? round_to_half(s) : s;
    }
    asm volatile("" : : "r"(sum), "r"(term) : "memory");
    Environment::write(saved);
    std::memcpy(c, sum, sizeof sum);
#endif
  }

  // What follows from where the distances of a group start: `off`, the exponent of distance 0; the
  // lowest e_max that group() can do, such that 2^(off + F - e_max) is a float and 2^(e_max - F) a
  // normal one; and off + F as a float's exponent field.
  template <int nv> struct Reach { vi off[nv], lowest[nv], field[nv]; };
  template <int nv> BITMMA_INLINE Reach<nv> reach(const Strip& x, i64 g) const {
    Reach<nv> r;
    for (int v = 0; v < nv; ++v) {
      vi off = load<vi>(x.top + v * W);
      if (x.col_scale) off += load<vi>(x.col_scale + g * columns + v * W) + x.row_scale[g];
      r.off[v] = off;
      r.lowest[v] = max(off + (F_ - 127), splat(F_ - 126));
      r.field[v] = off + (F_ + 127);
    }
    return r;
  }

  // One fused group in units of 2^(e_max - F), in int32. A product is below 4 * 2^F, so 2^(29-F) of
  // them cannot overflow; further additions are watched. Lanes that overflowed, or whose e_max is so
  // low or so high that a float's exponent could not follow, are mended afterwards: also those whose c
  // is subnormal (taken for zero here; above the lowest e_max it is cut to zero anyway), Inf or NaN.
  // Constants come from memory (k_): compilers would rather compute them in the loop, where every
  // operation counts.
  template <int nv, int L0, int sub0, bool careful>
  BITMMA_INLINE void group(const Strip& x, i64 g, const Reach<nv>& reach, vf t[nv]) const {
    const i64 L = L0 ? L0 : L_, sub = sub0 ? sub0 : sub_;
    const float *a = x.a + g * L, *b = x.b + g * L * columns;
    alignas(64) u8 near[columns];
    store(near, nearest(x.a4 + g * L, x.b1 + g * L * columns, L));
    vi e_max[nv];
    vf scale[nv];
    for (int v = 0; v < nv; ++v) {
      vi d = widen(near + v * W), e = reach.off[v] - d;
      if (careful) e = d == 255 ? splat(-4096) : e;
      e_max[v] = max(max(e, c_exponent(t[v])), reach.lowest[v]);
      vi s = reach.field[v] - e_max[v];
      if (careful) s = max(s, splat(1));  // far below: everything is cut to zero
      scale[v] = bits<vf>(s << 23);
    }
    vi sum[nv] = {}, overflow[nv] = {};
    cut_sum<nv>(a, b, std::min(sub, L), scale, sum);
    for (i64 p = sub; p < L; p += sub) {
      vi part[nv] = {};
      cut_sum<nv>(a + p, b + p * columns, std::min(sub, L - p), scale, part);
      for (int v = 0; v < nv; ++v) add_watched(sum[v], part[v], overflow[v]);
    }
    for (int v = 0; v < nv; ++v) {
      // c cut toward zero: its 24 bits shifted up to F places, then down by what e_max is above it.
      vu w = bits<vu>(t[v]);
      vi field = c_field(t[v]);
      vu m = ((w & (vu)k_.mantissa) | (vu)k_.hidden) << (vu)k_.up;
      m = field == 0 ? vu{} : m;
      vi cut = (vi)shift_right(m, e_max[v] + k_.down - field);
      cut = (vi)w < 0 ? -cut : cut;
      add_watched(sum[v], cut, overflow[v]);
      vf r = convert(sum[v], bits<vf>((e_max[v] + k_.unit) << 23));
      vi odd = e_max[v] <= reach.lowest[v] ? splat(-1) : overflow[v];
      odd = e_max[v] > k_.highest ? splat(-1) : odd;
      t[v] = any(odd) ? mend(x, g, v, t[v], odd, r) : r;
    }
  }
  BITMMA_INLINE static vi c_field(vf c) { return (vi)((bits<vu>(c) << 1) >> 24); }
  BITMMA_INLINE vi c_exponent(vf c) const {
    vi field = c_field(c), e = field - k_.bias;
    if (rho == Rho::nearest_half) e = max(e, splat(-14));  // a subnormal half is a normal float
    return field == 0 ? k_.e_zero : e;
  }
  BITMMA_INLINE static void add_watched(vi& sum, vi term, vi& overflow) {
    vi s = (vi)((vu)sum + (vu)term);
    overflow |= (sum ^ s) & (term ^ s);
    sum = s;
  }
  // rho(n * unit). Converting n to float is the only rounding: the unit keeps it a normal number.
  BITMMA_INLINE vf convert(vi n, vf unit) const {
    vf f = to_float(n);
    if constexpr (rho == Rho::single) {
      return bits<vf>(bits<vi>(f * unit) & k_.mask);
    } else {
      vi odd = truncate(f) != n ? splat(1) : vi{};  // rounding to odd keeps what was lost alive
      return round_to_half(bits<vf>(bits<vi>(f) | odd) * unit) + vf{};
    }
  }
  // The lanes `odd` again: a special c is the result, all zeros give +0, the rest goes to float64.
  __attribute__((noinline)) vf mend(const Strip& x, i64 g, int v, vf c, vi odd, vf r) const {
    vi field = c_field(c);
    r = field == 255 ? c : r;
    alignas(64) u8 near[columns];
    store(near, nearest(x.a4 + g * L_, x.b1 + g * L_ * columns, L_));
    vi nothing = (vi)(widen(near + v * W) == 255) & (vi)((bits<vu>(c) << 1) == 0);
    r = nothing ? vf{} : r;
    odd = odd & ~nothing & (vi)(field != 255);
    if (!any(odd)) return r;
    vi d = widen(near + v * W), e = d == 255 ? splat(-4096) : reach<NV>(x, g).off[v] - d;
    return again(x, g, v, max(e, c_term(c, d_lowest_, e_zero_).exponent), c, odd, r);
  }

  // The lanes `which` of vector v in float64.
  __attribute__((noinline)) vf again(const Strip& x, i64 g, int v, vi e_max, vf c, vi which, vf r) const {
    i64 L = L_;
    const float *a = x.a + g * L, *b = x.b + g * L * columns + v * W;
    vi off = reach<NV>(x, g).off[v];
    for (int l = 0; l < W; ++l) {
      if (which[l] >= 0) continue;
      int e = std::max(e_max[l], -900);
      double sum = 0, up = std::ldexp(1.0, std::clamp(off[l] - e + F_, -1000, 1000));
      for (i64 p = 0; p < L; ++p) sum += std::trunc(double(a[p]) * double(b[p * columns + l]) * up);
      sum += std::trunc(std::ldexp(double(c[l]), F_ - e));
      r[l] = convert(std::ldexp(sum, e - F_));
    }
    return r;
  }
  float convert(double x) const {
    if constexpr (rho == Rho::single) {
      if (std::fabs(x) >= 0x1p128) return std::copysign(INFINITY, float(x));
      float f = bits<float>(bits<i32>(float(x)) & mask_);
      return f == 0 ? 0.0f : f;
    } else {
      float f = float(x);
      if (double(f) != x) f = bits<float>(bits<i32>(f) | 1);
      return round_to_half(splat(f))[0] + 0.0f;
    }
  }

  // One fused group in float64.
  void wide_group(const Strip& x, i64 g, i32 lowest, vf t[NV]) const {
    alignas(64) short e16[columns];
    wide_exponent(x.ae_wide + g * L_, x.be_wide + g * L_ * columns, L_, e16);
    alignas(64) i32 e_max[columns], shift[columns];
    alignas(64) float c[columns];
    for (int v = 0; v < NV; ++v) {
      vi e;
      for (int l = 0; l < W; ++l) e[l] = e16[v * W + l];
      vi scales{};
      if (x.col_scale) scales = load<vi>(x.col_scale + g * columns + v * W) + x.row_scale[g];
      vi none = (vi)(e < -4096);
      e = (none & -4096) | (~none & (e + scales));
      e = max(e, c_term(t[v], lowest, e_zero_).exponent);
      e = max(e, splat(-900));
      store(e_max + v * W, e);
      store(shift + v * W, min(max(scales - e + F_, splat(-1000)), splat(1000)));
      store(c + v * W, t[v]);
    }
    vd up[halves], sum[halves] = {};
    for (int h = 0; h < halves; ++h) up[h] = power(to_long(load<hi>(shift + h * D)));
    wide_sum(x.a_wide + g * L_, x.b_wide + g * L_ * columns, L_, up, sum);
    for (int h = 0; h < halves; ++h) {
      vl e = to_long(load<hi>(e_max + h * D));
      vd term = truncate(to_double(load<hf>(c + h * D)) * power(splat64(F_) - e));
      sum[h] = (sum[h] + term) * power(e - splat64(F_));
      vd size = bits<vd>(bits<vl>(sum[h]) & i64(0x7FFFFFFFFFFFFFFF));
      hf f = to_float(sum[h]);
      if constexpr (rho == Rho::single) {
        f = bits<hf>(bits<hi>(f) & mask_);
        store(c + h * D, f == 0.0f ? hf{} : f);
        vl huge = (vl)(size >= 0x1p128);
        if (any(huge))
          for (int l = 0; l < D; ++l)
            if (huge[l]) c[h * D + l] = float(std::copysign(INFINITY, sum[h][l]));
      } else {
        vl inexact = (vl)(to_double(f) != sum[h]) & (vl)(size < INFINITY);
        f = bits<hf>(bits<hi>(f) | (__builtin_convertvector(inexact, hi) & 1));
        store(c + h * D, f);
      }
    }
    for (int v = 0; v < NV; ++v) {
      t[v] = load<vf>(c + v * W);
      if constexpr (rho == Rho::nearest_half) t[v] = round_to_half(t[v]) + vf{};
    }
  }

  int L_, F_, e_zero_, c_lowest_, d_lowest_;
  i32 mask_;
  i64 sub_, restart_ = 0;
  bool careful_;
  struct { vi mantissa, hidden, bias, e_zero, mask, up, down, unit, highest; } k_;
};

inline bool truncated_holds(const Spec& s) {
  const bool whole = s.mantissa_bits == s.d.mantissa_bits;
  const bool ties_away_or_outward = s.mode == Mode::rna || s.mode == Mode::ra;
  bool single = s.d.width == 32 && (s.mode == Mode::rz || (whole && !ties_away_or_outward));
  bool half = s.d.width == 16 && s.mode == Mode::rne && whole;
  if (!(single || half) || !fits_float64(s)) return false;
  if (s.family != Family::lowered) return !s.block || s.scale.specials == Specials::ue8m0;
  for (int part = 0; part < s.parts; ++part) {  // each part a whole number of groups
    int n = 0;
    for (int i = 0; i < s.group; ++i) n += s.part_of[i % s.period] == part;
    if (n % s.L) return false;
  }
  return true;
}

inline void run_truncated(const Job& job, Again again) {
  // group() takes a subnormal f32 c for zero, which needs e_zero to lie below them.
  const Spec& s = *job.spec;
  bool wide = !fits_int32(s) || (s.d.width == 32 && s.e_zero > -127);
  if (s.d.width == 16) each<Walk<Truncated<Rho::nearest_half>>>(again, job, wide);
  else each<Walk<Truncated<Rho::single>>>(again, job, wide);
}

}  // namespace bitmma::BITMMA_ISA
