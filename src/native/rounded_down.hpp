// TR-FDPA and GTR-FDPA: sections 7 and 8 of the models. The products' sum is an integer in units of
// 2^(e - F), by float32 and int32 or, for any exponents, by float64 arithmetic; joining it with c is
// float64 arithmetic, exact because every intermediate has fewer than 53 bits, or int32 arithmetic for
// the catalogue's F and F2.
#pragma once
#include <limits>

#include "fused.hpp"

namespace bitmma::BITMMA_ISA {

template <bool by_parity> class RoundedDown {
 public:
  // Section 7, step 0: a finite product of 2^128 or more is an Inf. Walk sends such rows elsewhere.
  static constexpr bool products_may_overflow = !by_parity;

  explicit RoundedDown(const Spec& s)
      : L_(s.L), F_(s.F), F2_(s.F2), c_lowest_(s.c.width == 16 ? -14 : -126),
        sub_(std::min(s.L, s.F >= 29 ? 1 : 1 << std::min(29 - s.F, 12))), int32_(fits_int32(s)),
        joins_(s.F2 >= 24 && s.F2 - s.F <= 20), joins_in_int32_(s.F == 24 && s.F2 == 31 && s.L * largest_product(s) <= 60) {
    k_.origin = vb{} + u8(origin), k_.lowest = vb{} + u8(lowest + origin);
    k_.infinity = splat(0x7F800000), k_.scale = vu{} + (u32(127 + 24 + origin) << 23), k_.unit = splat((origin + 24 - 127) << 23);
  }

  template <int nv, class From> bool narrow(const Strip& x, const From& from, vf c[nv]) const {
    if (joins_in_int32_ && fits<nv>(x, c)) {
      if (L_ == 4) in_int32<nv, 4>(x, from, c);
      else if (L_ == 8) in_int32<nv, 8>(x, from, c);
      else if (L_ == 16) in_int32<nv, 16>(x, from, c);
      else in_int32<nv, 0>(x, from, c);
      return true;
    }
    for (int v = 0; v < nv; ++v)
      if (any((vi)(c[v] - c[v] != 0.0f))) return false;  // again without an Inf or NaN: then it may fit
    const bool in_steps = L_ > sub_ || !joins_;
    i64 g = 0;
    if (!in_steps && x.c_is_new && c_lowest_ != -126) narrow_group<nv>(x, from, g++, c_lowest_, c);
    for (; g < x.groups; ++g)
      in_steps ? narrow_group<nv>(x, from, g, g == 0 && x.c_is_new ? c_lowest_ : -126, c) : group<nv>(x, from, g, c);
    return true;
  }
  // Any exponents, and any c. The products' sums do not depend on c: those of some groups come first, as
  // they want another environment than joining does.
  void wide(const Strip& x, vf c[NV]) const {
    Sums sums[together][parts];
    for (i64 first = 0; first < x.groups; first += together) {
      const i64 n = std::min(together, x.groups - first);
      toward_zero(x, first, n, sums);
      for (i64 g = 0; g < n; ++g) {
        const i32 lowest = first + g == 0 && x.c_is_new ? c_lowest_ : -126;
        vf before[NV], special[NV] = {};
        copy<NV>(c, before);
        const bool near = joins_in_int32_ && lowest == -126 && join_near(sums[g], c), large = !near && join_far(sums[g], lowest, c);
        for (int v = 0; x.special && v < NV; ++v) special[v] = load<vf>(x.special + (first + g) * columns + v * W);
        if (large) add_overflows(x, (first + g) * L_, special);
        for (int v = 0; (large || x.special) && v < NV; ++v) c[v] = decide(special[v], before[v], c[v]);
      }
    }
  }

  bool always_wide() const { return !int32_; }
  bool by_sign() const { return true; }

 private:
  static constexpr int parts = by_parity ? 2 : 1;
  static constexpr i32 none = -4096;  // the exponent of no products
  static constexpr i64 together = 8;  // groups

  struct Sums {  // of one part: in units of 2^(e - F)
    alignas(64) i64 sum[columns];
    alignas(64) i32 e[columns];
    BITMMA_INLINE vd sums(int at) const { return to_double(load<vl>(sum + at)); }
  };

  i64 part_length(int part) const {
    return !by_parity ? L_ : part == 0 ? (L_ + 1) / 2 : L_ / 2;
  }

  template <int nv, class From>
  __attribute__((noinline)) void narrow_group(const Strip& x, const From& from, i64 g, i32 lowest, vf some[nv]) const {
    vf c[NV] = {};
    copy<nv>(some, c);
    Sums sums[parts];
    i64 done = 0;
    for (int part = 0; part < parts; ++part) {
      i64 n = part_length(part);
      narrow_sums(x, from, g * L_ + done, n, sums[part]);
      done += n;
    }
    join_exactly(sums, lowest, c);
    copy<nv>(c, some);
  }

  // ---- F = 24, F2 = 31, numbers not too far from each other ----------------------------------------

  // Exponents count from `top` here, as in truncated.hpp, and lie in float's exponent field, `origin`
  // more than they are; those of no products are `lowest`, whose unit is the least normal float.
  static constexpr i32 origin = 132, lowest = -102;

  // Whether a strip fits, such that
  // - results are normal, however far terms cancel: units of step 4 are 2^(E - F2 - 1) or more;
  // - so are they when scaled; and with nothing but zeros to add, c comes back: it is a multiple of
  //   2^(lowest - 24), at first and later;
  // - 2^top and its inverse are floats, and nothing overflows.
  template <int nv> bool fits(const Strip& x, const vf c[nv]) const {
    if (x.low < F2_ + 1 - 126 || x.low - x.most - (F2_ + 1) < lowest - 1 || x.least < -100 || x.most > 100) return false;
    const i32 first = x.c_is_new ? c_lowest_ : -126;
    return zero_or_within<nv>(c, std::max(x.most + lowest - 1, first), std::min(x.least, 0) + 100);
  }
  template <int nv, int L0, class From> void in_int32(const Strip& x, const From& from, vf c[nv]) const {
    const i64 L = L0 ? L0 : L_, first_part = by_parity ? (L + 1) / 2 : L;
    vf t[nv];
    for (int v = 0; v < nv; ++v) t[v] = c[v] * power(-top_of(x, v));
    for (i64 g = 0; g < x.groups; ++g) {
      vi sum[nv], e[nv];
      scaled_sum<nv>(from, g * L, first_part, sum, e);
      if constexpr (by_parity) {
        vi odd[nv], e_odd[nv];
        scaled_sum<nv>(from, g * L + first_part, L - first_part, odd, e_odd);
        for (int v = 0; v < nv; ++v) {
          const vi most = max(e[v], e_odd[v]);
          sum[v] = (vi)((vu)shift_right(sum[v], (most - e[v]) >> 23) + (vu)shift_right(odd[v], (most - e_odd[v]) >> 23));
          e[v] = most;
        }
      }
      unroll<nv>([&](auto v) __attribute__((always_inline)) { t[v] = join_in_int32(sum[v], e[v], t[v]); });
    }
    for (int v = 0; v < nv; ++v) c[v] = t[v] * power(top_of(x, v));
  }
  template <int nv, class From>
  BITMMA_INLINE void scaled_sum(const From& from, i64 p, i64 n, vi sum[nv], vi e[nv]) const {
    alignas(64) u8 field[columns];
    store(field, maxu(subtract_saturating(k_.origin, from.nearest(p, n)), k_.lowest));
    vf scale[nv];
    for (int v = 0; v < nv; ++v) {
      e[v] = widen(field + v * W) << 23;
      scale[v] = bits<vf>(k_.scale - (vu)e[v]);
      sum[v] = vi{};
    }
    cut_sum<nv>(from, p, n, scale, sum);
  }
  // Steps 2 to 4, in int32. With E' = max(e, e_c - 5), units here are u = 2^(E' - 24): of them c has 2^30 at
  // most, products' sum 60 * 2^24.
  // - E' = e, c below 2^(e + 6): the sum is whole; c, rounded down to a unit, is what step 3 makes of it (or
  //   is a multiple of 2^(e_c - 23) anyway); and step 4 clears nothing, v being below 2^(e + 7).
  // - E' = e_c - 5, 2^by units of the sum: c is whole, and the sum loses `by` places. Step 3 leaves three of
  //   them, the rest is rounded down; step 4, of a v with 2^29 units (whose exponent is e_c), two, and one
  //   less for each place that v has more. (For by = 1, that is the one there is. For more, the sum is
  //   below half of c.) Whether what they leave is 0 is all that rounding to nearest needs, v having 26
  //   bits or more: a 1 in n's last place tells it.
  // What they leave is not 0 where the first of the places lost, with the sum's point before 31 bits, is not
  // below the highest bit of n: where rest > (n & ~rest), which the highest bit of both decides. Of a
  // negative n it is |n| - 1: v is n and something.
  BITMMA_INLINE vf join_in_int32(vi sum, vi e, vf c) const {
    const vi e_c = bits<vi>(c) & k_.infinity, E = max(e, e_c);  // E' + 5 + 127, as both are
    if constexpr (by_parity) c = bits<vf>(bits<vi>(c) & ~(vi)(e_c < e - ((origin - 127 + 24 + 1) << 23)));
    const vi by = (E - e) >> 23;
    const vi n = (vi)((vu)shift_right(sum, by) + (vu)round_down(c * bits<vf>(k_.scale - (vu)E)));
    const vi rest = (vi)(shift_left((vu)sum, 32 - by) >> 1), size = n ^ (n >> 31);
    return to_float(odd_where_greater(n, rest, size & ~rest)) * bits<vf>(E - k_.unit);
  }

  // ---- anything else whose sums fit int32 -----------------------------------------------------------

  template <int nv, class From> BITMMA_INLINE void group(const Strip& x, const From& from, i64 g, vf c[nv]) const {
    vi sum[nv], e[nv];
    if constexpr (by_parity) {
      const i64 half_length = part_length(0);
      vi odd[nv], e_odd[nv];
      part_sum<nv>(x, from, g * L_, half_length, sum, e);
      part_sum<nv>(x, from, g * L_ + half_length, L_ - half_length, odd, e_odd);
      for (int v = 0; v < nv; ++v) {  // units of 2^(e - F) of the larger e; shifting rounds down
        vi most = max(e[v], e_odd[v]);
        sum[v] = (vi)((vu)shift_right(sum[v], most - e[v]) + (vu)shift_right(odd[v], most - e_odd[v]));
        e[v] = most;
      }
    } else {
      part_sum<nv>(x, from, g * L_, L_, sum, e);
    }
    vi low{};
    for (int v = 0; v < nv; ++v) {
      const vi tiny = (vi)(joint_exponent(c[v], e[v]) < F2_ + 1 - 126);
      low |= tiny & (vi)((sum[v] | (bits<vi>(c[v]) << 1)) != 0);  // not in columns beyond the matrix
    }
    if (any(low)) return narrow_group<nv>(x, from, g, -126, c);
    unroll<nv>([&](auto v) __attribute__((always_inline)) {
      const vd t[2] = {to_double(half(sum[v], 0)), to_double(half(sum[v], 1))};
      c[v] = join(t, e[v], c[v]);
    });
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
  BITMMA_INLINE vf join(const vd sum[2], vi e, vf c) const {
    vi e_c = c_exponent(c), E = max(e, e_c);
    vi by = min(E - e, splat(200));  // so many places down nothing or -1 is left
    vi t_field = (1023 + F2_ + 1 - F_) - by, c_field = (1023 + F_) - E, unit_field = E + (1023 - F2_ - 1);
    if constexpr (by_parity) {
      vi drop = (vi)(e_c < E - (F_ + 1)) & (vi)(e_c != 128);  // never an Inf or NaN
      c = bits<vf>(~drop & bits<vi>(c));
    }
    const double up = double(i64(1) << (F2_ + 1 - F_));
    hf out[2];
    for (int h = 0; h < 2; ++h) {
      vd t = floor(sum[h] * from_field(half(t_field, h)));
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
        store(out.sum + v * W, to_long(load<hi>(s)));
        store(out.sum + v * W + D, to_long(load<hi>(s + D)));
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

  // ---- any exponents --------------------------------------------------------------------------------

  // Apart, and never inlined: see run_kernel.
  __attribute__((noinline)) void toward_zero(const Strip& x, i64 first, i64 n, Sums sums[][parts]) const {
    Environment environment(Rounding::toward_zero);
    for (i64 g = 0; g < n; ++g) {
      i64 p = (first + g) * L_;
      for (int part = 0; part < parts; p += part_length(part++)) wide_sums(x, p, part_length(part), sums[g][part]);
    }
  }
  // Step 1, exact: with u = 2^(e - F), e of the products and not of their significands, each of n <= L
  // products is below 2^(F + 2) u, so that their sums, cut or not, stay below 2^(F + 2 + log2(L + 1)) u,
  // which fits_float64 keeps at 2^51 u or less. That is what wide_sum_by_sign asks for; e is between
  // -252 and 254, which leaves u and 2^52 u normal doubles. Units count in the last places of what comes
  // out, 2^52 u and -2^52 u and so many: as integers, without their sign, these are apart by the sum.
  __attribute__((noinline)) void wide_sums(const Strip& x, i64 p, i64 n, Sums& out) const {
    alignas(64) short e16[columns];
    wide_exponent(x.ae_wide + p, x.be_wide + p * columns, n, e16);
    vd origin[halves];
    unroll<NV>([&](auto v) __attribute__((always_inline)) {
      const vi e = max(widen(e16 + v * W), splat(none)), unit = max(e, splat(-400)) - F_;  // of no products, any
      store(out.e + v * W, e);
      for (int h = 0; h < 2; ++h) origin[2 * v + h] = power(to_long(half(unit, h)) + 52);
    });
    const auto begin = [&](int h, vd& above, vd& below) __attribute__((always_inline)) { above = origin[h], below = -origin[h]; };
    const auto end = [&](int h, vd above, vd below) __attribute__((always_inline)) {
      store(out.sum + h * D, bits<vl>(above) - (bits<vl>(below) ^ std::numeric_limits<i64>::min()));
    };
    wide_sum_by_sign(x.a_wide + p, x.b_by_sign + 2 * p * columns, n, begin, end);
  }

  // Step 0 for the group at p: products that reach 2^128 are Infs among its specials. (A product of
  // exponent e is below 2^(e + 2), and exact in float64.)
  __attribute__((noinline)) void add_overflows(const Strip& x, i64 p, vf special[NV]) const {
    vd least[halves] = {}, most[halves] = {};
    for (i64 i = p; i < p + L_; ++i)
      for (int h = 0; h < halves; ++h) {
        const vd product = splat(x.a_wide[i]) * load<vd>(x.b_wide + i * columns + h * D);
        least[h] = min(least[h], product), most[h] = max(most[h], product);
      }
    for (int v = 0; v < NV; ++v) {
      hf infinities[2];  // or 0; of both signs, a NaN
      for (int h = 0; h < 2; ++h) {
        const vd low = least[2 * v + h], high = most[2 * v + h];
        infinities[h] = to_float(bits<vd>((vl)(low <= -0x1p128) & bits<vl>(low))) +
                        to_float(bits<vd>((vl)(high >= 0x1p128) & bits<vl>(high)));
      }
      special[v] += bitmma::BITMMA_ISA::join(infinities[0], infinities[1]);
    }
  }

  // By join_in_int32, where it holds with exponents as they are (its `top` is 0):
  // - there is no Inf nor NaN, and a product's exponent is 122 or less, which leaves its field one;
  // - c is 0, or not so small that c * 2^(24 - E') vanishes, which if negative is to lose a unit;
  // - results are normal (see `fits`): E is F2 + 1 - 126 or more, but where all is 0. Where e is below
  //   e_c - 60, all that is left of a sum of 31 bits is whether it is negative: so it is with e_c - 60.
  // Results beyond floats become Inf in the last multiplication, rounded as they are by then.
  BITMMA_INLINE bool join_near(const Sums sums[parts], vf c[NV]) const {
    if constexpr (by_parity) return false;
    vi sum[NV], e[NV], far{};  // whose sign tells
    for (int v = 0; v < NV; ++v) {
      sum[v] = low_words(load<vl>(sums[0].sum + v * W), load<vl>(sums[0].sum + v * W + D));
      const vi size = bits<vi>(c[v]) & 0x7FFFFFFF, e_c = (size >> 23) - 127, some = sum[v] | size;
      const vi near = max(load<vi>(sums[0].e + v * W), e_c - 60);
      far |= (122 - max(near, e_c - 5)) | ((near - (F2_ + 1 - 126)) & (some | -some)) | ((e_c + 100 - near) & -size);
      e[v] = (max(near, splat(lowest)) + origin) << 23;
    }
    if (any(far)) return false;
    unroll<NV>([&](auto v) __attribute__((always_inline)) { c[v] = join_in_int32(sum[v], e[v], c[v]); });
    return true;
  }

  // By `join`, or where that does not hold either, exactly. Whether products may have reached 2^128.
  __attribute__((noinline)) bool join_far(const Sums sums[parts], i32 lowest, vf c[NV]) const {
    vi e[NV], low{}, large{};
    for (int v = 0; v < NV; ++v) {
      e[v] = load<vi>(sums[0].e + v * W);
      if constexpr (by_parity) e[v] = max(e[v], load<vi>(sums[1].e + v * W));
      large |= (vi)(e[v] >= 127);
      // Where a result may be subnormal, its unit is not E's.
      low |= (vi)(joint_exponent(c[v], e[v]) < F2_ + 1 - 126) & ((vi)(e[v] != none) | (vi)((bits<vi>(c[v]) << 1) != 0));
    }
    if (lowest != -126 || !joins_ || any(low)) {
      join_exactly(sums, lowest, c);
    } else {
      for (int v = 0; v < NV; ++v) {
        vd t[2];
        for (int h = 0; h < 2; ++h) {
          const int at = v * W + h * D;
          t[h] = sums[0].sums(at);
          if constexpr (by_parity) {
            const hi most = half(e[v], h);
            t[h] = floor(t[h] * down(to_long(most - load<hi>(sums[0].e + at)))) +
                   floor(sums[1].sums(at) * down(to_long(most - load<hi>(sums[1].e + at))));
          }
        }
        c[v] = join(t, e[v], c[v]);
      }
    }
    return products_may_overflow && any(large);
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
        vd t = sums[0].sums(at);
        if constexpr (by_parity) {
          vl odd = to_long(load<hi>(sums[1].e + at));
          vl most = e > odd ? e : odd;
          t = floor(t * down(most - e)) + floor(sums[1].sums(at) * down(most - odd));
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
  bool int32_, joins_, joins_in_int32_;
  struct { vb origin, lowest; vu scale; vi infinity, unit; } k_;  // constants, from memory: see truncated.hpp
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
