// T-FDPA, ST-FDPA and Lowered: sections 4, 5 and 9 of the models.
#pragma once
#include "fused.hpp"

namespace bitmma::BITMMA_ISA {

// The conversions the kernel knows: toward zero to f32 with some bits masked off, or nearest f16.
enum class Rho { toward_zero, nearest_half };

template <Rho rho> class Truncated {
 public:
  static constexpr bool products_may_overflow = false;
  static constexpr Rounding environment = Rounding::toward_zero;

  explicit Truncated(const Spec& s)
      : L_(s.L), F_(s.F), e_zero_(std::max(s.e_zero, -900)),
        c_lowest_(s.c.width == 16 ? -14 : -126), d_lowest_(s.d.width == 16 ? -14 : -126),
        mask_(i32(~0u << (23 - std::min(s.mantissa_bits, 23)))),
        sub_(std::min(s.L, s.F >= 29 ? 1 : 1 << std::min(29 - s.F, 12))) {
    if (rho == Rho::nearest_half) mask_ = -1;
    if (s.family == Family::lowered) restart_ = s.group / s.L;
  }

  void narrow(const Strip& x, float* c) const { chain(x, c, [&](i64 g, i32 lowest, vf* t) {
    switch (L_) {
      case 4: return group<4>(x, g, lowest, t);
      case 8: return group<8>(x, g, lowest, t);
      case 16: return group<16>(x, g, lowest, t);
      case 32: return group<32>(x, g, lowest, t);
      default: return group<0>(x, g, lowest, t);
    }
  }); }
  void wide(const Strip& x, float* c) const {
    chain(x, c, [&](i64 g, i32 lowest, vf* t) { return wide_group(x, g, lowest, t); });
  }

 private:
  // The groups of a strip in a chain from c; or, Lowered, from +0 every restart_ groups, each chain's
  // result then added to c by an IEEE addition.
  template <class Group> BITMMA_INLINE void chain(const Strip& x, float* c, Group group) const {
    vf t[NV];
    for (int v = 0; v < NV; ++v) t[v] = load<vf>(c + v * W);
    if (!restart_) {
      for (i64 g = 0; g < x.groups; ++g) group(g, g == 0 && x.c_is_new ? c_lowest_ : d_lowest_, t);
      for (int v = 0; v < NV; ++v) store(c + v * W, t[v]);
      return;
    }
    for (i64 g = 0; g < x.groups; g += restart_) {
      for (int v = 0; v < NV; ++v) t[v] = vf{};
      for (i64 i = g; i < g + restart_; ++i) group(i, d_lowest_, t);
      alignas(64) float sum[columns];
      std::memcpy(sum, t, sizeof sum);
      add_nearest(c, sum);
    }
  }

  // c += t, rounded to nearest though the environment is toward zero. Doubly rounded for f16, which
  // is innocuous: a float has more than 2*11 + 2 bits.
  static void add_nearest(float* c, const float* t) {
#if defined(__AVX512F__)
    for (int v = 0; v < NV; ++v) {
      vf s = (vf)_mm512_add_round_ps((__m512)load<vf>(c + v * W), (__m512)load<vf>(t + v * W),
                                     _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
      store(c + v * W, rho == Rho::nearest_half ? round_to_half(s) : s);
    }
#else
    auto saved = Environment::read();
    Environment::write(Environment::value(Rounding::nearest, false));
    asm volatile("" : : "r"(c), "r"(t) : "memory");
    for (int v = 0; v < NV; ++v) {
      vf s = load<vf>(c + v * W) + load<vf>(t + v * W);
      store(c + v * W, rho == Rho::nearest_half ? round_to_half(s) : s);
    }
    asm volatile("" : : "r"(c), "r"(t) : "memory");
    Environment::write(saved);
#endif
  }

  BITMMA_INLINE vi reach(const Strip& x, i64 g, int v) const {  // what distances of group g start from
    vi off = load<vi>(x.top + v * W);
    if (x.col_scale) off += load<vi>(x.col_scale + g * columns + v * W) + x.row_scale[g];
    return off;
  }

  // One fused group: int32 sums. Everything is in units of 2^(e_max - F); |a product| < 4 * 2^F, so
  // 2^(29-F) of them cannot overflow; further additions are watched, and lanes that did overflow, or
  // whose result could leave the range where float arithmetic is exact, are done again in float64.
  template <int L0>
  BITMMA_INLINE void group(const Strip& x, i64 g, i32 lowest, vf t[NV]) const {
    const i64 L = L0 ? L0 : L_;
    const float *a = x.a + g * L, *b = x.b + g * L * columns;
    alignas(64) u8 near[columns];
    store(near, nearest(x.a4 + g * L, x.b1 + g * L * columns, L));
    vi e_max[NV];
    vf scale[NV];
    for (int v = 0; v < NV; ++v) {
      vi d = widen(near + v * W), off = reach(x, g, v), none = (vi)(d == 255);
      vi e = (none & -4096) | (~none & (off - d));
      e_max[v] = max(e, c_term(t[v], lowest, e_zero_).exponent);
      scale[v] = power(min(max(off - e_max[v] + F_, splat(-100)), splat(127)));
    }
    vi sum[NV] = {}, overflow[NV] = {};
    const i64 sub = L0 && L0 <= 4 ? L0 : std::min<i64>(L, sub_);
    cut_sum(a, b, sub, scale, sum);
    for (i64 p = sub; p < L; p += sub) {
      vi part[NV] = {};
      cut_sum(a + p, b + p * columns, std::min(sub, L - p), scale, part);
      for (int v = 0; v < NV; ++v) add_watched(sum[v], part[v], overflow[v]);
    }
    for (int v = 0; v < NV; ++v) {
      CTerm c = c_term(t[v], lowest, e_zero_);
      // c cut toward zero: its 24 bits shifted up to F places, then down by what e_max is above it.
      vu m = F_ >= 23 ? (vu)c.significand << (F_ - 23) : (vu)c.significand >> (23 - F_);
      vi cut = (vi)shift_right(m, e_max[v] - c.binade), sign = bits<vi>(t[v]) >> 31;
      add_watched(sum[v], (cut ^ sign) - sign, overflow[v]);
      vi k = e_max[v] - F_, clamped = min(max(k, splat(-126)), splat(95));
      vi special = (vi)(c.binade == 128);
      vi slow = (overflow[v] | ((vi)(k != clamped) & (vi)((sum[v] | c.significand) != 0))) & ~special;
      vf r = convert(sum[v], clamped);
      if (any(slow)) r = again(x, g, v, e_max[v], t[v], slow, r);
      t[v] = bits<vf>((special & bits<vi>(t[v])) | (~special & bits<vi>(r)));
    }
  }
  BITMMA_INLINE static void add_watched(vi& sum, vi term, vi& overflow) {
    vi s = (vi)((vu)sum + (vu)term);
    overflow |= (sum ^ s) & (term ^ s);
    sum = s;
  }
  // rho(n * 2^k), -126 <= k <= 95. The conversion itself rounds toward zero, being done in that mode.
  BITMMA_INLINE vf convert(vi n, vi k) const {
    vf f = to_float(n);
    if constexpr (rho == Rho::toward_zero) {
      return bits<vf>(bits<vi>(f * power(k)) & mask_);
    } else {
      vi odd = (vi)(truncate(f) != n) & 1;  // rounding to odd keeps what was lost alive for the next
      return round_to_half(bits<vf>(bits<vi>(f) | odd) * power(k)) + vf{};
    }
  }

  // The lanes `which` of vector v in float64.
  __attribute__((noinline)) vf again(const Strip& x, i64 g, int v, vi e_max, vf c, vi which, vf r) const {
    i64 L = L_;
    const float *a = x.a + g * L, *b = x.b + g * L * columns + v * W;
    vi off = reach(x, g, v);
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
  float convert(double x) const {  // in the toward-zero environment
    if constexpr (rho == Rho::toward_zero) {
      if (std::fabs(x) >= 0x1p128) return std::copysign(INFINITY, float(x));
      float f = bits<float>(bits<i32>(float(x)) & mask_);
      return f + 0.0f;
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
      if constexpr (rho == Rho::toward_zero) {
        f = bits<hf>(bits<hi>(f) & mask_);
        store(c + h * D, f + hf{});
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
};

inline bool truncated_holds(const Spec& s) {
  bool to_zero = s.mode == Mode::rz && s.d.width == 32, half = s.mode == Mode::rne && s.d.width == 16 && s.mantissa_bits == 10;
  if (!(to_zero || half) || !fits_float64(s)) return false;
  if (s.family != Family::lowered) return !s.block || s.scale.specials == Specials::ue8m0;
  for (int part = 0; part < s.parts; ++part) {  // each part a whole number of groups
    int n = 0;
    for (int i = 0; i < s.group; ++i) n += s.part_of[i % s.period] == part;
    if (n % s.L) return false;
  }
  return true;
}

inline void run_truncated(const Job& job) {
  bool wide = !fits_int32(*job.spec);
  if (job.spec->d.width == 16) Walk<Truncated<Rho::nearest_half>>(job, wide).run();
  else Walk<Truncated<Rho::toward_zero>>(job, wide).run();
}

}  // namespace bitmma::BITMMA_ISA
