// T-FDPA, ST-FDPA and Lowered: sections 4, 5 and 9 of the models.
#pragma once
#include "floors.hpp"
#include "fused.hpp"

namespace bitmma::BITMMA_ISA {

// The conversions the kernel knows: to f32 in the rounding mode of the environment, some bits then
// masked off (toward zero only); or to the nearest f16, in the toward-zero environment.
enum class Rho { single, nearest_half };

template <Rho rho> class Truncated {
 public:
  static constexpr bool products_may_overflow = false;

  explicit Truncated(const Spec& s)
      : L_(s.L), F_(s.F), e_zero_(std::max(s.e_zero, -600)),
        c_lowest_(s.c.width == 16 ? -14 : -126), d_lowest_(s.d.width == 16 ? -14 : -126),
        mask_(i32(~0u << (23 - std::min(s.mantissa_bits, 23)))) {
    if (rho == Rho::nearest_half || s.mode != Mode::rz) mask_ = -1;
    if (s.family == Family::lowered) restart_ = s.group / s.L;
    by_sign_ = rho == Rho::nearest_half || s.mode == Mode::rz;  // the environment: see rounding() in kernels.cpp
    // How many products of the largest significands fit int32 beside c.
    const double largest = largest_product(s);
    sub_ = std::min<i64>(s.L, i64((std::ldexp(1.0, 31 - s.F) - 2) / largest));
    holds_narrow_ = fits_int32(s) && sub_ >= 1 && s.e_zero <= d_lowest_;
    k_.origin = vb{} + u8(127), k_.lowest = vb{} + u8(F_ + 1);
    k_.infinity = splat(0x7F800000), k_.hidden = vu{} + 0x800000u, k_.mask = splat(mask_);
    // Sums of all products and c, and one unit more for each product, within 2^22 of 1.5 * 2^23. A
    // group costs more than one of narrow_group, its products less.
    by_floor_ = s.family == Family::t && holds_narrow_ && (rho == Rho::nearest_half || s.mode == Mode::rz) &&
                LowBits::hold(s.a) && LowBits::hold(s.b) && s.L >= 8 && s.L <= 255 &&
                std::ldexp(s.L * largest + 2, s.F) + s.L < 0x1p22;
#if defined(BITMMA_SHORT_SUMS)
    short_sums_ = holds_narrow_ && sub_ == s.L && s.F <= 13 && s.a.mantissa_bits <= 6 && narrow_range(s.a) && s.b.width <= 8;
#endif
    k_.origin_of_floors = vi{} + (((23 - F_) << 23) | 0x400000);
    // See `whole`: all products are multiples of 2^-depth, in units of 2^top, and sums of L of them floats.
    depth_ = s.a.max_exponent() - s.a.min_exponent() + s.a.mantissa_bits + s.b.max_exponent() - s.b.min_exponent() + s.b.mantissa_bits;
    whole_ = (s.family == Family::t || s.family == Family::st) && rho == Rho::single && s.mode == Mode::rz && holds_narrow_ &&
             narrow_range(s.a) && narrow_range(s.b) && F_ >= std::max(depth_, 23) && std::ldexp(s.L * largest, depth_) <= 0x1p24;
    k_.scale = vu{} + (u32(254 + F_) << 23), k_.unit = splat(F_ << 23);
  }

  bool always_wide() const { return !holds_narrow_; }
  bool by_sign() const { return by_sign_; }  // whether wide wants B so

  // Whether products straight from codes of a byte are summed by FromCodes::add_short_sums.
  bool short_sums() const { return short_sums_; }

  // One strip, if it fits float32 and int32 arithmetic; else c stays as it is and the answer is false.
  // Exponents count from `top` here: with values so scaled, products lie below 4 and c, scaled alike,
  // keeps its bits (`products_fit`, `fits`), so nothing overflows or is subnormal.
  template <int nv, class From> bool narrow(const Strip& x, From& from, vf c[nv]) const {
    return narrow_tile<nv>(x, from, 0, reinterpret_cast<float*>(c), 1) == 1;
  }
  // The same with rows that have their top in common and no scales, `stride` elements from each other,
  // and c's of which are rows of a tile: from the first on as long as they fit; how many.
  template <int nv, class From> i64 narrow_tile(const Strip& x, From& from, i64 stride, float* c, i64 rows) const {
    if (!holds_narrow_ || !products_fit(x)) return 0;
    const i64 done = whole(x) ? whole_chain<nv>(x, from, stride, c, rows) : 0;
    return done < rows ? done + by_length<nv>(x, from, stride, c + done * columns, rows - done) : rows;
  }
  // Some rows together, by floors.hpp or because sums are whole; all or none. Tops are the formats'.
  bool by_floor() const { return by_floor_; }
  bool may_be_whole() const { return whole_; }
  bool narrow_rows(const Strip x[LowBits::rows], const Panel from[LowBits::rows], const u32* const low_a[LowBits::rows],
                   const u8* low_b, vf c[LowBits::rows][NV]) const {
    constexpr int R = LowBits::rows;
    for (int i = 0; i < R; ++i)
      if (!products_fit(x[i]) || !fits<NV>(x[i], c[i])) return false;
    if (whole_) return whole_rows(x, from, c);
    const Frame<NV> f = frame<NV>(x[0], 0);
    vf t[R][NV];
    vi overflow{};
    for (int i = 0; i < R; ++i)
      for (int v = 0; v < NV; ++v) t[i][v] = c[i][v] * f.down[v];
    for (i64 g = 0; g < x[0].groups; ++g) floor_group(from, low_a, low_b, g, f, t, overflow);
    if (any(overflow)) return false;
    for (int i = 0; i < R; ++i)
      for (int v = 0; v < NV; ++v) c[i][v] = t[i][v] * f.up[v];
    return true;
  }
  void wide(const Strip& x, vf c[NV]) const {
    chain<NV>(x, c, [&](i64 g, vf* t) {
      vf before[NV];
      copy<NV>(t, before);
      wide_group(x, g, g == 0 && x.c_is_new ? c_lowest_ : d_lowest_, t);
      for (int v = 0; x.special && v < NV; ++v) t[v] = decide(load<vf>(x.special + g * columns + v * W), before[v], t[v]);
    });
  }

 private:
  // What a group's exponents count from: 2^top and its inverse; for f16, the lowest exponent of a c and
  // that of a zero c (no lower than units are floats: no product is, either), as float's exponent fields
  // (in place), and what makes of a field that of a unit.
  template <int nv> struct Frame { vf up[nv], down[nv]; vi least[nv], e_zero[nv], unit[nv]; };
  // The exponent of `top`, scales included.
  BITMMA_INLINE vi scale_of(const Strip& x, i64 g, int v) const {
    const vi top = top_of(x, v);
    return x.col_scale ? top + load<vi>(x.col_scale + g * columns + v * W) + x.row_scale[g] : top;
  }
  template <int nv> BITMMA_INLINE Frame<nv> frame(const Strip& x, i64 g) const {
    Frame<nv> f;
    for (int v = 0; v < nv; ++v) {
      const vi top = scale_of(x, g, v);
      f.up[v] = power(top), f.down[v] = power(-top);
      f.least[v] = (127 + d_lowest_ - top) << 23, f.e_zero[v] = max(std::max(127 + e_zero_, F_ + 1) - top, vi{}) << 23;
      f.unit[v] = (top - F_) << 23;
    }
    return f;
  }

  // Whether a strip fits, such that
  // - no product's exponent is below e_zero (then a zero c decides nothing) nor so low that units,
  //   2^(e_max - F), or results were subnormal;
  // - 2^top and its inverse are floats, and products' sums (below 4 n 2^top) and c do not overflow;
  // - c is 0 or a normal float, before and after scaling, that e_max may stand for: with nothing but
  //   zeros to add it is to come back. So is what groups return, being a multiple of their units.
  bool products_fit(const Strip& x) const {
    const i32 lowest = rho == Rho::single ? std::max(e_zero_, F_ - 126) : F_ - 126;
    return x.low >= lowest && x.low - x.most >= F_ - 126 && x.least >= -100 && x.most <= 100;
  }
  // And of that what is c's.
  template <int nv> BITMMA_INLINE bool fits(const Strip& x, const vf c[nv]) const {
    if (restart_) return true;
    const i32 first = x.c_is_new && c_lowest_ != d_lowest_ ? -14 : -126;
    const i32 ceiling = rho == Rho::nearest_half ? 16 : std::min(x.least, 0) + 100;
    return zero_or_within<nv>(c, std::max(x.most + F_ + 2 - 127, first), ceiling);
  }

  // Sums that lose nothing. With numbers of few bits (FP4, FP6) no product has a bit below 2^(top - depth). While
  // that is no less than the unit 2^(e_max - F), products are added as they are; all partial sums of a group are
  // multiples of 2^(top - depth) up to 2^24 of them, so that fused multiply-adds in float32 are exact. What they
  // join is c, exact too if it is a multiple of the unit, and the one addition, toward zero, is the only rounding.
  // e_max, which then need not be known, is at most the larger of top and c's exponent. With scales by group,
  // `top` is from x.least to x.most. So it is enough that
  // - x.most - F <= x.least - depth: no product has a bit below the unit that products set;
  // - c's exponent is at most F + x.least - depth, before each group: nor below c's;
  // - c is a multiple of 2^(x.most - F), and, as F >= 23, of its own unit. Then so are all sums that follow:
  //   rounded, they are multiples of a larger power of two, else of this one.
  bool whole(const Strip& x) const { return whole_ && x.most - x.least <= F_ - depth_; }
  template <int nv> BITMMA_INLINE bool begins_whole(const Strip& x, const vf c[nv]) const {
    vi part{};
    for (int v = 0; v < nv; ++v) {
      const vf n = c[v] * bits<float>(u32(127 + F_ - x.most) << 23);  // normal: see `fits`
      part |= (vi)((bits<vi>(n) & 0x7FFFFFFF) < (150 << 23)) & (vi)(to_float(truncate(n)) != n);
    }
    return !any(part);
  }
  // The first size of c that does not stay.
  i32 whole_limit(const Strip& x) const { return std::min(254, 127 + F_ + x.least - depth_ + 1) << 23; }
  BITMMA_INLINE void join_whole(vf sum, vi scale, vf& c, vi& most) const {
    most = max(most, bits<vi>(c) & 0x7FFFFFFF);
    c = bits<vf>(bits<vi>(multiply_add(sum, power(scale), c)) & k_.mask);
  }
  template <int nv, class From> i64 whole_chain(const Strip& x, From& from, i64 stride, float* c, i64 rows) const {
    for (i64 r = 0; r < rows; ++r, c += columns) {
      vf t[nv];
      vi most{};
      unroll<nv>([&](auto v) __attribute__((always_inline)) { t[v] = load<vf>(c + v * W); });
      if (!fits<nv>(x, t) || !begins_whole<nv>(x, t)) return r;
      for (i64 g = 0; g < x.groups; ++g) {
        vf sum[nv] = {};
        from.pass(g * L_, L_);
#pragma GCC unroll 4
        for (i64 p = g * L_; p < (g + 1) * L_; ++p) {
          const vf a = splat(from.a[p]);
          const auto y = from.numbers(p);
          unroll<nv>([&](auto v) __attribute__((always_inline)) { sum[v] = multiply_add(a, y(v), sum[v]); });
        }
        unroll<nv>([&](auto v) __attribute__((always_inline)) { join_whole(sum[v], scale_of(x, g, v), t[v], most); });
      }
      if (any((vi)(most >= whole_limit(x)))) return r;
      unroll<nv>([&](auto v) __attribute__((always_inline)) { store(c + v * W, t[v]); });
      if constexpr (requires { from.move(stride); }) from.move(stride);
    }
    return rows;
  }
  bool whole_rows(const Strip x[LowBits::rows], const Panel from[LowBits::rows], vf c[LowBits::rows][NV]) const {
    constexpr int R = LowBits::rows;
    for (int i = 0; i < R; ++i)
      if (!whole(x[i]) || !begins_whole<NV>(x[i], c[i])) return false;
    vf t[R][NV];
    vi most[R] = {};
    for (int i = 0; i < R; ++i) copy<NV>(c[i], t[i]);
    const float* const b = from[0].b;
    for (i64 g = 0; g < x[0].groups; ++g) {
      vf sum[R][NV] = {};
      for (i64 p = g * L_; p < (g + 1) * L_; ++p) {
        vf y[NV];
        unroll<NV>([&](auto v) __attribute__((always_inline)) { y[v] = load<vf>(b + p * columns + v * W), keep(y[v]); });
        unroll<R>([&](auto i) __attribute__((always_inline)) {
          const vf a = splat(from[i].a[p]);
          unroll<NV>([&](auto v) __attribute__((always_inline)) { sum[i][v] = multiply_add(a, y[v], sum[i][v]); });
        });
      }
      unroll<R>([&](auto i) __attribute__((always_inline)) {
        unroll<NV>([&](auto v) __attribute__((always_inline)) { join_whole(sum[i][v], scale_of(x[i], g, v), t[i][v], most[i]); });
      });
    }
    for (int i = 0; i < R; ++i)
      if (any((vi)(most[i] >= whole_limit(x[i])))) return false;
    for (int i = 0; i < R; ++i) copy<NV>(t[i], c[i]);
    return true;
  }

  template <int nv, class From> i64 by_length(const Strip& x, From& from, i64 stride, float* c, i64 rows) const {
    const bool whole = sub_ >= L_;
    if (L_ == 4 && whole) return narrow_chain<nv, 4, 4>(x, from, stride, c, rows);
    if (L_ == 8 && whole) return narrow_chain<nv, 8, 8>(x, from, stride, c, rows);
    if (L_ == 16 && whole) return narrow_chain<nv, 16, 16>(x, from, stride, c, rows);
    if (L_ == 32 && whole) return narrow_chain<nv, 32, 32>(x, from, stride, c, rows);
    if (L_ == 16 && sub_ >= 8) return narrow_chain<nv, 16, 8>(x, from, stride, c, rows);
    if (L_ == 32 && sub_ >= 16) return narrow_chain<nv, 32, 16>(x, from, stride, c, rows);
    return narrow_chain<nv, 0, 0>(x, from, stride, c, rows);
  }
  template <int nv, int L0, int sub, class From>
  i64 narrow_chain(const Strip& x, From& from, i64 stride, float* c, i64 rows) const {
    vi overflow{};
    Frame<nv> f = frame<nv>(x, 0);
    auto group = [&](i64 g, vf* t) __attribute__((always_inline)) {
      narrow_group<nv, L0, sub>(from, g, f, t, overflow);
    };
    for (i64 r = 0; r < rows; ++r, c += columns) {
      vf result[nv];
      unroll<nv>([&](auto v) __attribute__((always_inline)) { result[v] = load<vf>(c + v * W); });
      if (!fits<nv>(x, result)) return r;
      if (x.col_scale) {
        chain<nv>(x, result, [&](i64 g, vf* t) __attribute__((always_inline)) {
          f = frame<nv>(x, g);
          for (int v = 0; v < nv; ++v) t[v] *= f.down[v];
          group(g, t);
          for (int v = 0; v < nv; ++v) t[v] *= f.up[v];
        });
      } else {
        for (int v = 0; !restart_ && v < nv; ++v) result[v] *= f.down[v];
        chain<nv>(x, result, group, f.up);
        for (int v = 0; !restart_ && v < nv; ++v) result[v] *= f.up[v];
      }
      if (any(overflow)) return r;
      unroll<nv>([&](auto v) __attribute__((always_inline)) { store(c + v * W, result[v]); });
      if constexpr (requires { from.move(stride); }) from.move(stride);
    }
    return rows;
  }

  // The groups of a strip in a chain from c; or, Lowered, from +0 every restart_ groups, each chain's
  // result, times `up` if given, then added to c by an IEEE addition.
  template <int nv, class Group>
  BITMMA_INLINE void chain(const Strip& x, vf c[nv], Group group, const vf* up = nullptr) const {
    if (!restart_) {
      vf t[nv];  // a copy of its own stays in registers
      copy<nv>(c, t);
      for (i64 g = 0; g < x.groups; ++g) group(g, t);
      copy<nv>(t, c);
      return;
    }
    for (i64 g = 0; g < x.groups; g += restart_) {
      vf t[nv] = {};
      for (i64 i = g; i < g + restart_; ++i) group(i, t);
      for (int v = 0; up && v < nv; ++v) t[v] *= up[v];
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

  // e_max of a group, in place of a float's exponent field: the float 2^e_max. All products zero give
  // the lowest one. Constants come from memory (k_): compilers would rather compute them in the loop,
  // where every operation counts.
  template <int nv>
  BITMMA_INLINE void exponents(vb nearest, const Frame<nv>& f, const vf t[nv], vi e[nv], vi& overflow) const {
    alignas(64) u8 field[columns];
    store(field, maxu(subtract_saturating(k_.origin, nearest), k_.lowest));
    for (int v = 0; v < nv; ++v) {
      e[v] = max(widen(field + v * W) << 23, bits<vi>(t[v]) & k_.infinity);
      if constexpr (rho == Rho::nearest_half) {
        e[v] = max(e[v], t[v] == 0.0f ? f.e_zero[v] : f.least[v]);
        overflow |= (vi)((vu)e[v] + k_.hidden);  // the sign, if t is an Inf by now
      }
    }
  }

  // Products of a group added to `sum`, `sub` at a time.
  template <int nv, class From>
  BITMMA_INLINE void cut_sums(const From& from, i64 first, i64 L, i64 sub, const vi e[nv], const vf scale[nv], vi sum[nv],
                              vi& overflow) const {
    if constexpr (requires { from.add_short_sums(first, L, e, F_, sum); }) return from.add_short_sums(first, L, e, F_, sum);
    cut_sum<nv>(from, first, std::min(sub, L), scale, sum);
    for (i64 p = sub; p < L; p += sub) {
      vi part[nv] = {};
      cut_sum<nv>(from, first + p, std::min(sub, L - p), scale, part);
      for (int v = 0; v < nv; ++v) {
        vi s = (vi)((vu)sum[v] + (vu)part[v]);
        overflow |= (sum[v] ^ s) & (part[v] ^ s);
        sum[v] = s;
      }
    }
  }

  // One fused group in units of 2^(e_max - F), in int32: c and `sub` products cannot overflow, further
  // additions are watched.
  template <int nv, int L0, int sub0, class From>
  BITMMA_INLINE void narrow_group(const From& from, i64 g, const Frame<nv>& f, vf t[nv], vi& overflow) const {
    const i64 L = L0 ? L0 : L_, sub = sub0 ? sub0 : sub_, first = g * L;
    vi e[nv], sum[nv];
    vf scale[nv];
    exponents<nv>(from.nearest(first, L), f, t, e, overflow);
    // Beside an Inf scales are subnormal, which takes CPUs a hundred times as long; all is done again.
    if constexpr (rho == Rho::nearest_half)
      if (any(overflow)) return;
    for (int v = 0; v < nv; ++v) {
      scale[v] = bits<vf>(k_.scale - (vu)e[v]);  // above 2^31 for a large F
      sum[v] = truncate(t[v] * scale[v]);
    }
    cut_sums<nv>(from, first, L, sub, e, scale, sum, overflow);
    for (int v = 0; v < nv; ++v) {
      vf r = to_float(sum[v]);  // for f32, the only rounding
      if constexpr (rho == Rho::single) {
        t[v] = bits<vf>(bits<vi>(r * bits<vf>(e[v] - k_.unit)) & k_.mask);
      } else {
        vi odd = truncate(r) != sum[v] ? splat(1) : vi{};  // rounding to odd keeps what was lost alive
        t[v] = (round_to_half(bits<vf>(bits<vi>(r) | odd) * bits<vf>((vu)e[v] + (vu)f.unit[v])) + vf{}) * f.down[v];
      }
    }
  }

  // One fused group of some rows, by floors.hpp. c is cut as a positive number, by the same addition.
  BITMMA_INLINE void floor_group(const Panel from[LowBits::rows], const u32* const low_a[LowBits::rows], const u8* low_b,
                                 i64 g, const Frame<NV>& f, vf t[LowBits::rows][NV], vi& overflow) const {
    constexpr int R = LowBits::rows;
    vf origin[R][NV], sum[R][NV];
    vb limit[R], count[R] = {}, near[R];
    alignas(64) u8 fields[R][columns];
    const i64 p0 = g * L_;
    for (vb& n : near) n = ~vb{};
    for (i64 p = p0; p < p0 + L_; ++p) {
      const vb y = load<vb>(from[0].b1 + p * columns);
      unroll<R>([&](auto i) __attribute__((always_inline)) {
        near[i] = minu(near[i], add_saturating(bits<vb>(vu{} + from[i].a4[p]), y));
      });
    }
    for (int i = 0; i < R; ++i) {
      vi e[NV];
      exponents<NV>(near[i], f, t[i], e, overflow);
      for (int v = 0; v < NV; ++v) {
        // (vu): where the field is full, which overflow has noted, the sum means nothing.
        origin[i][v] = bits<vf>((vu)e[v] + (vu)k_.origin_of_floors);
        const vi w = bits<vi>(t[i][v]), sign = w & i32(0x80000000);
        const vf cut = (bits<vf>(w ^ sign) + origin[i][v]) - origin[i][v];  // c, toward zero
        sum[i][v] = origin[i][v] + bits<vf>(bits<vi>(cut) | sign);
        store_bytes(fields[i] + v * W, e[v] >> 23);
      }
    }
    for (int i = 0; i < R; ++i) limit[i] = LowBits::limit(F_, load<vb>(fields[i]));
    const float* b = from[0].b;
    for (i64 p = p0; p < p0 + L_; ++p) {
      const vb low = load<vb>(low_b + p * columns);
      vf y[NV];
      unroll<NV>([&](auto v) { y[v] = load<vf>(b + p * columns + v * W), keep(y[v]); });
      unroll<R>([&](auto i) __attribute__((always_inline)) {
        const vf a = splat(from[i].a[p]);
        unroll<NV>([&](auto v) __attribute__((always_inline)) { sum[i][v] = multiply_add(a, y[v], sum[i][v]); });
        count[i] = count_greater(count[i], bits<vb>(vu{} + low_a[i][p]) + low, limit[i]);
      });
    }
    for (int i = 0; i < R; ++i) {
      alignas(64) u8 counts[columns];
      store(counts, count[i]);
      for (int v = 0; v < NV; ++v) {
        // A unit more is the next float. What is left is exact.
        const vf s = bits<vf>((vu)bits<vi>(sum[i][v]) + (vu)widen(counts + v * W)) - origin[i][v];
        if constexpr (rho == Rho::single) t[i][v] = bits<vf>(bits<vi>(s) & k_.mask);
        else t[i][v] = (round_to_half(s * f.up[v]) + vf{}) * f.down[v];
      }
    }
  }

  // One fused group in float64.
  void wide_group(const Strip& x, i64 g, i32 lowest, vf t[NV]) const {
    alignas(64) short e16[columns];
    wide_exponent(x.ae_wide + g * L_, x.be_wide + g * L_ * columns, L_, e16);
    vi e_max[NV], by[NV] = {};
    unroll<NV>([&](auto v) __attribute__((always_inline)) {
      const vi e = widen(e16 + v * W);
      if (x.col_scale) by[v] = load<vi>(x.col_scale + g * columns + v * W) + x.row_scale[g];
      e_max[v] = max(e < -4096 ? splat(-4096) : e + by[v], c_term(t[v], lowest, e_zero_).exponent);
    });
    // Before scales are applied, units are 2^unit.
    vl unit[halves];
    vd from[halves], sum[halves];
    unroll<halves>([&](auto h) __attribute__((always_inline)) {
      unit[h] = to_long(half(e_max[h / 2] - by[h / 2] - F_, h % 2));
      sum[h] = to_double(half(t[h / 2], h % 2));
      if (x.col_scale) sum[h] *= power(-to_long(half(by[h / 2], h % 2)));
    });
    if (by_sign_) {
      for (int h = 0; h < halves; ++h) from[h] = power(unit[h] + 52);
      // Begins with c, which is cut alike.
      const auto begin = [&](int h, vd& above, vd& below) __attribute__((always_inline)) {
        above = from[h] + max(sum[h], vd{}), below = min(sum[h], vd{}) - from[h];
      };
      // Both are whole units and below 2^53 of them, from the same origin: their sum is exact.
      const auto end = [&](int h, vd above, vd below) __attribute__((always_inline)) { sum[h] = above + below; };
      wide_sum_by_sign(x.a_wide + g * L_, x.b_by_sign + 2 * g * L_ * columns, L_, begin, end);
    } else {
      for (int h = 0; h < halves; ++h) from[h] = power(-unit[h]), sum[h] = truncate(sum[h] * from[h]);
      wide_sum(x.a_wide + g * L_, x.b_wide + g * L_ * columns, L_, from, sum);
      for (int h = 0; h < halves; ++h) sum[h] *= power(unit[h]);
    }
    hf out[halves];  // and not memory, from which a vector of two would wait for both
    unroll<halves>([&](auto h) __attribute__((always_inline)) {
      if (x.col_scale) sum[h] *= power(to_long(half(by[h / 2], h % 2)));
      // Rounding to odd keeps what was lost alive: bits below a float's last carry into it, and are cleared. (Of
      // what is below the normal floats more is lost; it rounds to zero, being far below the halves.)
      if constexpr (rho == Rho::nearest_half) {
        constexpr i64 below = (i64(1) << 29) - 1;
        const vl w = bits<vl>(sum[h]);
        sum[h] = bits<vd>((w | ((w & below) + below)) & ~below);
      }
      out[h] = to_float(sum[h]);
    });
    vi most{};
    unroll<NV>([&](auto v) __attribute__((always_inline)) {
      t[v] = join(out[2 * v], out[2 * v + 1]);
      most = max(most, bits<vi>(t[v]) & 0x7FFFFFFF);
    });
    if (rho == Rho::single && any((vi)(most >= 0x7F7FFFFF)))  // or more, before the conversion
      for (int v = 0; v < NV; ++v)
        t[v] = join(or_infinity(sum[2 * v], half(t[v], 0)), or_infinity(sum[2 * v + 1], half(t[v], 1)));
    unroll<NV>([&](auto v) __attribute__((always_inline)) {
      const vf kept = rho == Rho::single ? bits<vf>(bits<vi>(t[v]) & mask_) : round_to_half(t[v]);
      t[v] = kept == 0.0f ? vf{} : kept;
    });
  }
  // What x was converted to; but an infinity from 2^128 on.
  BITMMA_INLINE static hf or_infinity(vd x, hf converted) {
    const vl size = bits<vl>(x) & i64(0x7FFFFFFFFFFFFFFF), huge = (vl)(size >= bits<i64>(0x1p128));
    const hi w = bits<hi>(converted), mask = __builtin_convertvector(huge, hi);
    return bits<hf>((w & ~(mask & 0x7FFFFF)) | (mask & 0x7F800000));  // its sign stays
  }

  int L_, F_, e_zero_, c_lowest_, d_lowest_, depth_;
  i32 mask_;
  i64 sub_, restart_ = 0;
  bool holds_narrow_, by_floor_, by_sign_, whole_, short_sums_ = false;
  struct { vb origin, lowest; vu hidden, scale; vi infinity, mask, unit, origin_of_floors; } k_;
};

inline bool truncated_holds(const Spec& s) {
  const bool whole = s.mantissa_bits == s.d.mantissa_bits;
  const bool ties_away_or_outward = s.mode == Mode::rna || s.mode == Mode::ra;
  bool single = s.d.width == 32 && (s.mode == Mode::rz || (whole && !ties_away_or_outward));
  bool half = s.d.width == 16 && s.mode == Mode::rne && whole;
  if (!(single || half) || !fits_float64(s)) return false;
  if (s.family != Family::lowered) return !s.block || (s.scale.specials == Specials::ue8m0 && s.scale.exponent_bits == 8);
  for (int part = 0; part < s.parts; ++part) {  // each part a whole number of groups
    int n = 0;
    for (int i = 0; i < s.group; ++i) n += s.part_of[i % s.period] == part;
    if (n % s.L) return false;
  }
  return true;
}

inline void run_truncated(const Job& job, Again again) {
  if (job.spec->d.width == 16) each<Walk<Truncated<Rho::nearest_half>>>(again, job);
  else each<Walk<Truncated<Rho::single>>>(again, job);
}

}  // namespace bitmma::BITMMA_ISA
