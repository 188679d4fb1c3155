// TR-FDPA and GTR-FDPA: sections 7 and 8 of the models. The products' sum is an int32 (or a float64)
// in units of 2^(e - F); joining it with c is float64 arithmetic, exact because every intermediate
// has fewer than 53 bits.
#pragma once
#include "fused.hpp"

namespace bitmma::BITMMA_ISA {

template <bool by_parity> class RoundedDown {
 public:
  // Section 7, step 0: a finite product of 2^128 or more is an Inf. Walk sends such rows elsewhere.
  static constexpr bool products_may_overflow = !by_parity;

  explicit RoundedDown(const Spec& s)
      : L_(s.L), F_(s.F), F2_(s.F2), c_lowest_(s.c.width == 16 ? -14 : -126),
        sub_(std::min(s.L, s.F >= 29 ? 1 : 1 << std::min(29 - s.F, 12))), int32_(fits_int32(s)),
        joins_in_int32_(s.F == 24 && s.F2 == 31 && s.L < 32) {}

  template <int nv, class From> bool narrow(const Strip& x, const From& from, vf c[nv]) const {
    if (L_ > sub_ || F2_ < 24 || F2_ - F_ > 20) return narrow_in_steps<nv>(x, from, c), true;
    i64 g = 0;
    if (x.c_is_new && c_lowest_ != -126) narrow_group<nv>(x, from, g++, c_lowest_, c);
    if (!by_parity && L_ == 8) groups_from<nv, 8>(g, x, from, c);
    else if (by_parity && L_ == 16) groups_from<nv, 16>(g, x, from, c);
    else if (!by_parity && L_ == 4) groups_from<nv, 4>(g, x, from, c);
    else groups_from<nv, 0>(g, x, from, c);
    return true;
  }
  void wide(const Strip& x, vf c[NV]) const {
    for (i64 g = 0; g < x.groups; ++g) {
      Sums sums[parts];
      i64 done = 0;
      for (int part = 0; part < parts; ++part) {
        i64 n = part_length(part);
        wide_sums(x, g * L_ + done, n, sums[part]);
        done += n;
      }
      join_exactly(sums, g == 0 && x.c_is_new ? c_lowest_ : -126, c);
    }
  }

  bool always_wide() const { return !int32_; }

 private:
  static constexpr int parts = by_parity ? 2 : 1;
  static constexpr i32 none = -4096;  // the exponent of no products

  struct Sums {  // of one part: in units of 2^(e - F)
    alignas(64) double sum[columns];
    alignas(64) i32 e[columns];
  };

  i64 part_length(int part) const {
    return !by_parity ? L_ : part == 0 ? (L_ + 1) / 2 : L_ / 2;
  }

  template <int nv, class From> void narrow_in_steps(const Strip& x, const From& from, vf c[nv]) const {
    for (i64 g = 0; g < x.groups; ++g) narrow_group<nv>(x, from, g, g == 0 && x.c_is_new ? c_lowest_ : -126, c);
  }
  template <int nv, class From>
  __attribute__((noinline)) void narrow_group(const Strip& x, const From& from, i64 g, i32 lowest, vf some[nv]) const {
    vf c[NV] = {};
    for (int v = 0; v < nv; ++v) c[v] = some[v];
    Sums sums[parts];
    i64 done = 0;
    for (int part = 0; part < parts; ++part) {
      i64 n = part_length(part);
      narrow_sums(x, from, g * L_ + done, n, sums[part]);
      done += n;
    }
    join_exactly(sums, lowest, c);
    for (int v = 0; v < nv; ++v) some[v] = c[v];
  }

  template <int nv, int L0, class From> void groups_from(i64 g, const Strip& x, const From& from, vf c[nv]) const {
    vf t[nv];  // a copy of its own stays in registers
    for (int v = 0; v < nv; ++v) t[v] = c[v];
    for (; g < x.groups; ++g) group<nv, L0>(x, from, g, t);
    for (int v = 0; v < nv; ++v) c[v] = t[v];
  }
  // One group whose sums fit int32, as the catalogue's do.
  template <int nv, int L0, class From>
  BITMMA_INLINE void group(const Strip& x, const From& from, i64 g, vf c[nv]) const {
    const i64 L = L0 ? L0 : L_;
    vi sum[nv], e[nv];
    if constexpr (by_parity) {
      const i64 half_length = L0 ? L0 / 2 : part_length(0);
      vi odd[nv], e_odd[nv];
      part_sum<nv>(x, from, g * L, half_length, sum, e);
      part_sum<nv>(x, from, g * L + half_length, L - half_length, odd, e_odd);
      for (int v = 0; v < nv; ++v) {  // units of 2^(e - F) of the larger e; shifting rounds down
        vi most = max(e[v], e_odd[v]);
        sum[v] = (vi)((vu)shift_right(sum[v], most - e[v]) + (vu)shift_right(odd[v], most - e_odd[v]));
        e[v] = most;
      }
    } else {
      part_sum<nv>(x, from, g * L, L, sum, e);
    }
    vi low{};
    for (int v = 0; v < nv; ++v) low |= (vi)(joint_exponent(c[v], e[v]) < F2_ + 1 - 126);
    if (any(low)) {
      bool all_zero = true;  // as in columns beyond the matrix
      for (int v = 0; v < nv; ++v) {
        vi tiny = (vi)(joint_exponent(c[v], e[v]) < F2_ + 1 - 126);
        all_zero &= !any(tiny & (vi)((sum[v] | (bits<vi>(c[v]) << 1)) != 0));
      }
      if (!all_zero) {
        vf t[nv];
        for (int v = 0; v < nv; ++v) t[v] = c[v];
        narrow_group<nv>(x, from, g, -126, t);
        for (int v = 0; v < nv; ++v) c[v] = t[v];
        return;
      }
    }
    vi high{};
    for (int v = 0; v < nv; ++v) high |= (vi)(joint_exponent(c[v], e[v]) > highest);
    if (joins_in_int32_ && !any(high))
      unroll<nv>([&](auto v) __attribute__((always_inline)) { c[v] = join_in_int32(sum[v], e[v], c[v]); });
    else
      unroll<nv>([&](auto v) __attribute__((always_inline)) { c[v] = join(sum[v], e[v], c[v]); });
  }
  template <int nv, class From>
  BITMMA_INLINE void part_sum(const Strip& x, const From& from, i64 p, i64 n, vi sum[nv], vi e[nv]) const {
    alignas(64) u8 near[columns];
    store(near, from.nearest(p, n));
    vf scale[nv];
    for (int v = 0; v < nv; ++v) {
      vi d = widen(near + v * W);
      e[v] = d == 255 ? splat(none) : top_of(x, v) - d;
      scale[v] = bits<vf>(min(d + (F_ + 127), splat(254)) << 23);
      sum[v] = vi{};
    }
    cut_sum<nv>(from, p, n, scale, sum);
  }
  BITMMA_INLINE static vi c_exponent(vf c) {  // of zeros and subnormals: -126
    return max((vi)((bits<vu>(c) << 1) >> 24), splat(1)) - 127;
  }
  BITMMA_INLINE static vi joint_exponent(vf c, vi e) { return max(c_exponent(c), e); }

  // Steps 2 to 4 where the result is normal: in units of 2^(E - F2 - 1), as float64 integers.
  BITMMA_INLINE vf join(vi sum, vi e, vf c) const {
    vi e_c = c_exponent(c), E = max(e, e_c);
    vi by = min(E - e, splat(60));  // 60 places down nothing or -1 is left
    vi t_field = (1023 + F2_ + 1 - F_) - by, c_field = (1023 + F_) - E, unit_field = E + (1023 - F2_ - 1);
    if constexpr (by_parity) {
      vi drop = (vi)(e_c < E - (F_ + 1)) & (vi)(e_c != 128);  // never an Inf or NaN
      c = bits<vf>(~drop & bits<vi>(c));
    }
    const double up = double(i64(1) << (F2_ + 1 - F_));
    hf out[2];
    for (int h = 0; h < 2; ++h) {
      vd t = floor(to_double(half(sum, h)) * from_field(half(t_field, h)));
      vd c_kept = floor(to_double(half(c, h)) * from_field(half(c_field, h)));
      vd s = multiply_add(c_kept, splat(up), t);
      // Down to F2 + 1 significant bits: of a negative number, the magnitude goes up.
      const i64 cut = (i64(1) << (52 - F2_)) - 1;
      vl w = bits<vl>(s);
      w = (w + ((w >> 63) & cut)) & ~cut;
      out[h] = to_float(bits<vd>(w) * from_field(half(unit_field, h)));
    }
    return bitmma::BITMMA_ISA::join(out[0], out[1]);
  }

  // The same for F = 24 and F2 = 31, as the catalogue's are, in int32 and float: fewer than 32 products,
  // each below 2^26, and c, below 2^25, fit. In units of 2^(E - 24),
  // step 3 gives a whole number n and a fraction of eight bits, both floors: n * 256 + fraction is v.
  // Step 4 leaves 32 bits of it: of the fraction it clears as many as |v| has above 32 (above 24, |n|;
  // of a negative n, |n| - 1, as v is n and something). The rest is the sum of two floats, n's upper 24
  // bits and what is below, added with one rounding.
  BITMMA_INLINE vf join_in_int32(vi sum, vi e, vf c) const {
    vi e_c = c_exponent(c), E = max(max(e, e_c), splat(F2_ + 1 - 126));  // it is lower only where all is 0
    if constexpr (by_parity) {
      vi drop = (vi)(e_c < E - (F_ + 1)) & (vi)(e_c != 128);  // never an Inf or NaN
      c = bits<vf>(~drop & bits<vi>(c));
    }
    // Down by E - e: by what is above 31 first, which is floor's floor.
    vi by = E - e, most = min(by, splat(31));
    sum = shift_right(sum, by - most);
    vu fraction = shift_left((vu)sum, 32 - most) >> 24;
    // c is scaled up, E being 24 or less: exactly, subnormal or not.
    vi n = (vi)((vu)shift_right(sum, most) + (vu)round_down(c * bits<vf>((127 + 24 - E) << 23)));
    vu above = (vu)(n ^ (n >> 31)) >> 24;
    above |= above >> 1, above |= above >> 2, above |= above >> 4;
    fraction &= ~above;
    vf upper = to_float(n & ~255), lower = to_float((vi)(((vu)n & 255) << 8 | fraction));
    return multiply_add(lower, splat(0x1p-8f), upper) * bits<vf>((E + (127 - 24)) << 23);
  }
  static constexpr i32 highest = 24;

  template <class From> void narrow_sums(const Strip& x, const From& from, i64 p, i64 n, Sums& out) const {
    alignas(64) u8 near[columns];
    store(near, from.nearest(p, n));
    vf scale[NV];
    for (int v = 0; v < NV; ++v) {
      vi d = widen(near + v * W), empty = (vi)(d == 255);
      store(out.e + v * W, (empty & none) | (~empty & (top_of(x, v) - d)));
      scale[v] = power(min(d + F_, splat(127)));
    }
    if (n <= sub_) {
      vi sum[NV] = {};
      cut_sum<NV>(from, p, n, scale, sum);
      for (int v = 0; v < NV; ++v) {
        alignas(64) i32 s[W];
        store(s, sum[v]);
        store(out.sum + v * W, to_double(load<hi>(s)));
        store(out.sum + v * W + D, to_double(load<hi>(s + D)));
      }
      return;
    }
    std::memset(out.sum, 0, sizeof out.sum);
    for (i64 q = 0; q < n; q += sub_) {
      vi sum[NV] = {};
      cut_sum<NV>(from, p + q, std::min(sub_, n - q), scale, sum);
      for (int v = 0; v < NV; ++v)
        for (int l = 0; l < W; ++l) out.sum[v * W + l] += sum[v][l];
    }
  }

  void wide_sums(const Strip& x, i64 p, i64 n, Sums& out) const {
    alignas(64) short e16[columns];
    wide_exponent(x.ae_wide + p, x.be_wide + p * columns, n, e16);
    vd up[halves], sum[halves] = {};
    for (int j = 0; j < columns; ++j) out.e[j] = e16[j] < -4096 ? none : e16[j];
    for (int h = 0; h < halves; ++h) {
      vl e = to_long(load<hi>(out.e + h * D));
      vl empty = (vl)(e == none);
      up[h] = power(~empty & (splat64(F_) - e));
    }
    wide_sum(x.a_wide + p, x.b_wide + p * columns, n, up, sum);
    for (int h = 0; h < halves; ++h) store(out.sum + h * D, sum[h]);
  }

  // Steps 2 to 4 (and GTR's joining of the two parts before) for any exponents.
  void join_exactly(const Sums* sums, i32 lowest, vf c[NV]) const {
    for (int v = 0; v < NV; ++v) {
      vf cv = c[v];
      alignas(64) i32 e_c32[W];
      CTerm term = c_term(cv, lowest, -126);
      store(e_c32, term.exponent);
      alignas(64) float cf[W], df[W];
      store(cf, cv);
      for (int half = 0; half < 2; ++half) {
        int at = v * W + half * D;
        vl e = to_long(load<hi>(sums[0].e + at));
        vd t = load<vd>(sums[0].sum + at);
        if constexpr (by_parity) {
          vl odd = to_long(load<hi>(sums[1].e + at));
          vl most = e > odd ? e : odd;
          t = floor(t * down(most - e)) + floor(load<vd>(sums[1].sum + at) * down(most - odd));
          e = most;
        }
        vl e_c = to_long(load<hi>(e_c32 + half * D));
        vl E = e > e_c ? e : e_c;
        // In units of 2^(E - F2 - 1) from here. No products: t is 0.
        vl shift = E - e + (F_ - F2_ - 1);  // t * 2^-shift
        t = floor(t * power_clamped(-shift));
        vd cd = to_double(load<hf>(cf + half * D));
        vd c_kept = floor(cd * power(splat64(F_) - E)) * std::ldexp(1.0, F2_ + 1 - F_);
        if constexpr (by_parity) {
          vl small = (vl)(e_c < E - F_ - 1) & (vl)(e_c != 128);  // never an Inf or NaN
          c_kept = bits<vd>(~small & bits<vl>(c_kept));
        }
        vd s = t + c_kept;
        vl unit = E - F2_ - 1;
        vl ev = ((bits<vl>(s) >> 52) & 0x7FF) - 1023 + unit;  // its exponent; of 0, very low
        vl low = splat64(-126);
        vl last = (ev > low ? ev : low) - F2_;
        vl cut = last - unit;
        vl zero = splat64(0);
        cut = cut > zero ? cut : zero;
        s = floor(s * power_clamped(-cut));
        s = s * power_clamped(unit + cut);  // clamped for Inf and NaN, which stay
        store(df + half * D, to_float(s));  // to nearest, overflow to Inf
      }
      c[v] = load<vf>(df);
    }
  }
  static vd power_clamped(vl e) {
    vl low = splat64(-1000), high = splat64(1000);
    e = e < low ? low : e;
    return power(e > high ? high : e);
  }
  static vd down(vl by) { return power_clamped(-by); }

  i64 L_;
  int F_, F2_, c_lowest_;
  i64 sub_;  // products of which the sum fits int32
  bool int32_, joins_in_int32_;
};

// d is f32 by RNE; F2 and F so near that units fit together; sums below 2^53 after step 2.
inline bool rounded_down_holds(const Spec& s) {
  return s.mode == Mode::rne && s.d.width == 32 && s.mantissa_bits == 23 && fits_float64(s) &&
         s.F <= s.F2 + 1 && s.F2 + 4 + log2_ceil(s.L + 1) <= 52;
}

inline void run_rounded_down(const Job& job, Again again) {
  if (job.spec->family == Family::gtr) each<Walk<RoundedDown<true>>>(again, job);
  else each<Walk<RoundedDown<false>>>(again, job);
}

}  // namespace bitmma::BITMMA_ISA
