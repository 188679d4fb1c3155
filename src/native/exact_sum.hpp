// E-FDPA: section 3 of the models. Sums of L products and c rounded once, in float64 arithmetic that
// carries along what an addition may lose.
#pragma once
#include "fused.hpp"

namespace bitmma::BITMMA_ISA {

// The sum of two doubles and, exactly, what rounding it lost (Knuth).
BITMMA_INLINE void two_sum(vd a, vd b, vd& sum, vd& lost) {
  sum = a + b;
  vd b1 = sum - a;
  lost = (a - (sum - b1)) + (b - b1);
}
// a + b rounded to odd: where inexact, of the two neighbours the one with an odd significand. A later
// rounding to fewer bits then gives what rounding the exact sum would (Boldo and Melquiond, 2008).
BITMMA_INLINE vd add_odd(vd a, vd b) {
#if defined(__AVX512F__)
  constexpr int quiet = _MM_FROUND_NO_EXC;
  const __m512d x = (__m512d)a, y = (__m512d)b;
  __m512i cut = _mm512_castpd_si512(_mm512_add_round_pd(x, y, _MM_FROUND_TO_ZERO | quiet));
  __m512d down = _mm512_add_round_pd(x, y, _MM_FROUND_TO_NEG_INF | quiet);
  __m512d up = _mm512_add_round_pd(x, y, _MM_FROUND_TO_POS_INF | quiet);
  __mmask8 inexact = _mm512_cmp_pd_mask(down, up, _CMP_NEQ_OQ);
  return (vd)_mm512_mask_or_epi64(cut, inexact, cut, _mm512_set1_epi64(1));
#else
  vd sum, lost;
  two_sum(a, b, sum, lost);
  vl w = bits<vl>(sum);
  vl inexact = (vl)(lost != 0), even = (vl)((w & 1) == 0);
  // Toward the lost part: one step up in magnitude if it has the sum's sign, else one down.
  vl apart = (bits<vl>(lost) ^ w) >> 63;           // 0 or -1
  vl step = (apart | 1) & inexact & even;          // +1 or -1
  return bits<vd>(w + step);
#endif
}

// A row of doubles against columns: of a panel, or of codes where they lie. `number` gives half a vector
// of floats' columns, as doubles.
struct DoublePanel {
  const double *a, *b;
  BITMMA_INLINE vd number(i64 p, int h) const { return load<vd>(b + p * columns + h * D); }
};
template <class Fields> struct DoublesFromCodes {
  const double* a;
  Found line;
  Fields f;
  BITMMA_INLINE vd number(i64 p, int h) const {
    if (h == 0) line.template fetch<columns * i64(sizeof(typename Fields::Code))>(p);
    return to_double(half(f.numbers(line[p])(h / 2), h % 2));
  }
};

// The sums of L products, as two doubles: high + low exactly, where low is at most half a unit in the
// last place of high. Three ways. `L0` is L, or 0 where only the running program knows it.

// Where exponents are near enough (see ExactSumWalk), every sum is a double.
template <int L0> struct OneDouble {
  static constexpr bool subnormal_results = true;
  i64 L;
  template <class From> BITMMA_INLINE void operator()(const From& from, i64 p0, int h, vd& high, vd& low) const {
    high = splat(from.a[p0]) * from.number(p0, h), low = vd{};
    for (i64 p = p0 + 1; p < p0 + (L0 ? L0 : L); ++p) high = multiply_add(splat(from.a[p]), from.number(p, h), high);
  }
};
// f16's products, of any exponents, are multiples of 2^-48 below 2^32. Added to 1.5*2^42, a product is
// rounded to a multiple of 2^-10, which is exactly what the sum grows by; the rest is below 2^-10. Up
// to 4 of these, and 4 of the rests, sum exactly. The last three lines make low small: Fast2Sum, exact
// because high is a multiple of low's last place.
template <int L0> struct OnGrid {
  static constexpr bool subnormal_results = false;  // c + a multiple of 2^-48 is not, unless it is c
  i64 L;
  template <class From> BITMMA_INLINE void operator()(const From& from, i64 p0, int h, vd& high, vd& low) const {
    constexpr double origin = 0x1.8p42;
    vd sum = splat(origin), rest{};
    for (i64 p = p0; p < p0 + (L0 ? L0 : L); ++p) {
      vd x = splat(from.a[p]), y = from.number(p, h);
      vd next = multiply_add(x, y, sum);
      rest += multiply_add(x, y, sum - next);
      sum = next;
    }
    sum -= splat(origin);
    high = sum + rest;
    low = rest - (high - sum);
  }
};
// Two products of any exponents.
struct TwoSum {
  static constexpr bool subnormal_results = true;
  i64 L;
  template <class From> BITMMA_INLINE void operator()(const From& from, i64 p0, int h, vd& high, vd& low) const {
    two_sum(splat(from.a[p0]) * from.number(p0, h), splat(from.a[p0 + 1]) * from.number(p0 + 1, h), high, low);
  }
};

class ExactSum {
 public:
  explicit ExactSum(const Spec& s) : L_(s.L) {}

  // Where any L products sum exactly in float64, by the exponents that occur. With `q` such that all
  // products and c are multiples of 2^q, so are all sums; those below 2^(53+q) = limit are then exact,
  // and rounding them to float32 is the only rounding. True if all were that small.
  template <class From> bool quickly(const From& from, i64 groups, float* c, double limit) const {
    if (L_ == 4) return quickly<4>(from, groups, c, limit);
    if (L_ == 2) return quickly<2>(from, groups, c, limit);
    return quickly<0>(from, groups, c, limit);
  }
  // The same with any c.
  template <class From> void with_any_c(const From& from, i64 groups, float* c) const {
    if (L_ == 4) chain(from, groups, c, OneDouble<4>{L_});
    else if (L_ == 2) chain(from, groups, c, OneDouble<2>{L_});
    else chain(from, groups, c, OneDouble<0>{L_});
  }
  // Any exponents, and any specials: those of c, and of each group by special_sums, if there are any.
  template <class From> void carefully(const From& from, i64 groups, float* c, const float* special = nullptr) const {
    if (L_ == 4) chain(from, groups, c, OnGrid<4>{L_}, special);
    else if (L_ == 2) chain(from, groups, c, TwoSum{L_}, special);
    else chain(from, groups, c, OnGrid<0>{L_}, special);
  }

 private:
  static constexpr int at_once = 4;  // independent chains, to hide latency

  template <int L0, class From> bool quickly(const From& from, i64 groups, float* c, double limit) const {
    bool all = true;
    for (int h0 = 0; h0 < halves; h0 += at_once) {
      vd d[at_once], largest[at_once] = {};
      for (int h = 0; h < at_once; ++h) d[h] = to_double(load<hf>(c + (h0 + h) * D));
      for (i64 g = 0; g < groups; ++g)
        unroll<at_once>([&](auto h) __attribute__((always_inline)) {
          vd sum, none;
          OneDouble<L0>{L_}(from, g * L_, h0 + h, sum, none);
          vd s = sum + d[h];
          vd size = bits<vd>(bits<vl>(s) & i64(0x7FFFFFFFFFFFFFFF));
          largest[h] = max(size, largest[h]);
          d[h] = to_double(to_float(s));
        });
      for (int h = 0; h < at_once; ++h) {
        store(c + (h0 + h) * D, to_float(d[h]));
        all &= !any((vl)(largest[h] >= limit));
      }
    }
    return all;
  }

  // d = the float nearest to T = high + low + d. Two additions come within two units in the last place
  // of T, in doubles: if high + d is inexact, it did not cancel, and is at least half of high, so that
  // low is nothing to it; each addition then is off by half a unit, the first perhaps of twice the
  // size. So both T and r round to the same float unless the middle between two floats is as near, which
  // 29 bits show: a one, then zeros. (Subnormal floats lie wider apart: all of these count as near.) Near
  // ones are rounded to odd. A sum -0 becomes +0, as low never is -0. An Inf, which d may become, stays.
  template <class From, class Sum>
  static void chain(const From& from, i64 groups, float* c, Sum products, const float* special = nullptr) {
    for (int h0 = 0; h0 < halves; h0 += at_once) {
      vd d[at_once];
      unroll<at_once>([&](auto h) { d[h] = to_double(load<hf>(c + (h0 + h) * D)); });
      for (i64 g = 0; g < groups; ++g) {
        vd high[at_once], low[at_once], r[at_once];
        vl near{};
        unroll<at_once>([&](auto h) __attribute__((always_inline)) {
          products(from, g * products.L, h0 + h, high[h], low[h]);
          r[h] = (high[h] + d[h]) + low[h];
          near |= near_middle<Sum::subnormal_results>(r[h]);
        });
        if (__builtin_expect(any(near), false)) {
          unroll<at_once>([&](auto h) __attribute__((always_inline)) {
            vd s, e;
            two_sum(high[h], d[h], s, e);
            vd odd = add_odd(s, add_odd(e, low[h]));
            r[h] = near_middle<Sum::subnormal_results>(r[h]) ? odd : r[h];
          });
        }
        unroll<at_once>([&](auto h) __attribute__((always_inline)) {
          const vd before = d[h];
          d[h] = to_double(to_float(r[h]));
          if (special) d[h] = decide(to_double(load<hf>(special + g * columns + (h0 + h) * D)), before, d[h]);
        });
      }
      for (int h = 0; h < at_once; ++h) store(c + (h0 + h) * D, to_float(d[h]));
    }
  }
  template <bool subnormals> BITMMA_INLINE static vl near_middle(vd r) {
    vl w = bits<vl>(r), near = (vl)(((w - ((1 << 28) - 2)) & ((1 << 29) - 1)) <= 4);
    if (!subnormals) return near;
    vl size = w & i64(0x7FFFFFFFFFFFFFFF);
    return near | ((vl)(size != 0) & (vl)(size < i64(1023 - 126) << 52));
  }

  i64 L_;
};

// The walk is shared with the fused kernels in spirit, but an exact sum needs no exponents.
class ExactSumWalk {
 public:
  explicit ExactSumWalk(const Job& job)
      : job_(job), s_(*job.spec), layout_(s_, job.K), kernel_(s_),
        rows_(job.a, s_.a, job.M), cols_(job.b.transposed(), s_.b, job.N), codes_(s_.b, job.N) {
    i64 unit = layout_.padded_step > 512 ? s_.group : layout_.padded_step;
    chunk_ = std::max<i64>(1, (job.M > few_rows ? 128 : few_rows_chunk(job.b, s_.b.bytes())) / unit) * unit;
  }
  void run() {
    rows_.read(job_.a), cols_.read(job_.b.transposed());
    const i64 first = job_.M <= few_rows ? columns_to_line(job_.b.transposed(), s_.b.bytes(), job_.N) : columns;
    for (i64 p0 = 0; p0 < layout_.total; p0 += chunk_) {
      i64 p1 = std::min(layout_.total, p0 + chunk_);
      bool contiguous = layout_.positions(p0, p1, pos_);
      rows_.set_chunk(p0, p1, pos_.data(), contiguous), cols_.set_chunk(p0, p1, pos_.data(), contiguous);
      for (i64 i0 = 0; i0 < job_.M; i0 += row_block) {
        i64 rows = std::min<i64>(row_block, job_.M - i0);
        rows_.pack_rows(i0, rows, a_, false);
        std::vector<Span>& spans = spans_;
        spans.assign(size_t(rows), Span{});
        for (i64 r = 0; r < rows; ++r) {
          rows_.wide_row(r, a_);
          spans[size_t(r)] = span_of(&a_.wide_exponent[size_t(r * rows_.stride())], rows_.stride());
        }
        for (i64 j0 = 0, cols = first; j0 < job_.N; j0 += cols, cols = columns) {
          cols = std::min(cols, job_.N - j0);
          block(i0, rows, j0, cols, p0, p1);
          if (!advance(job_, {i0, rows, j0, cols}, p1 - p0, p1 == layout_.total)) return;
        }
      }
    }
  }

 private:
  static constexpr i64 row_block = 256;
  struct Span {
    int low = 1 << 20, high = -(1 << 20);
    int width() const { return high < low ? 0 : high - low; }
  };
  static Span span_of(const short* e, i64 n) {
    Span x;
    for (i64 i = 0; i < n; ++i) {
      x.low = std::min<int>(x.low, e[i] > -4096 ? e[i] : 1 << 20);
      x.high = std::max<int>(x.high, e[i] > -4096 ? e[i] : -(1 << 20));
    }
    return x;
  }

  // A row of C, or of what D has come to, and what the sums start from.
  struct Start {
    alignas(64) float before[columns], finite[columns];
    Start(const Job& job, i64 i, i64 j0, i64 cols, bool start) {
      vf c[NV];
      Tile<float>::load_c<NV>(job, i, j0, cols, start, c);
      for (int v = 0; v < NV; ++v) {
        const vf old = c[v];
        store(before + v * W, old);
        // Inf and NaN stay as they are for now. -0 is +0: a zero sum is +0, even of zeros that are all -0.
        store(finite + v * W, bits<vf>(bits<vi>(old) & (vi)(old - old == 0.0f)) + vf{});
      }
    }
  };
  void store_row(i64 i, i64 j0, i64 cols, const float* in) const {
    vf c[NV];
    for (int v = 0; v < NV; ++v) c[v] = load<vf>(in + v * W);
    Tile<float>::store_c<NV>(job_, i, j0, cols, c);
  }
  // Whether every sum of L products is a double, where B's exponents span so many binades: from the lowest
  // bit to the highest, significands, exponents' spread, carries.
  bool near_enough(const Span& row, int span_b) const {
    return row.width() + span_b + fraction() + 2 + log2_ceil(s_.L) <= 52;
  }
  int fraction() const { return s_.a.mantissa_bits + s_.b.mantissa_bits; }
  // Then: no exponent of B is below lowest_b.
  template <class From> void add_up(const From& from, i64 groups, const Span& row, int lowest_b, const float* finite, float* c) const {
    std::memcpy(c, finite, sizeof(float) * columns);
    int q = std::max(row.low + lowest_b - fraction(), -1000);
    double limit = std::ldexp(1.0, 53 + q), grid = std::ldexp(1.0, std::clamp(-q, -1000, 1000));
    bool on_grid = row.low < 0 && q >= -149;
    vl off_grid{};
    for (int h = 0; h < halves; ++h) {
      vd y = to_double(load<hf>(c + h * D)) * splat(grid);
      off_grid |= (vl)(truncate(y) != y);
    }
    on_grid &= !any(off_grid);
    if (on_grid && kernel_.quickly(from, groups, c, limit)) return;
    std::memcpy(c, finite, sizeof(float) * columns);
    kernel_.with_any_c(from, groups, c);
  }

  static constexpr i64 few_rows = 16;  // to which reading B is much of what they cost
#if defined(BITMMA_HALF_CONVERSION)
  // Rows whose numbers are near enough to the whole tile's, by one look at B's codes; how many were done, up
  // to the first that is not. One row straight from the codes, as in fused.hpp; more by a panel of doubles,
  // filled in one pass: there are neither Infs nor NaNs to be left out, and the tile's exponents are known.
  i64 straight(i64 i0, i64 rows, i64 j0, i64 cols, i64 p0, i64 p1) {
    if (!codes_.are_16_bits()) return 0;
    if (!codes_.take(job_.b.transposed(), j0, cols, pos_.data(), p1 - p0) || !codes_.find_top()) return 0;
    const i64 groups = (p1 - p0) / s_.L;
    for (i64 r = 0; r < rows && !stopped(job_); ++r) {
      const Span& row = spans_[size_t(r)];
      if (a_.special[size_t(r)] || !near_enough(row, codes_.top() - codes_.low())) return r;
      const Start start(job_, i0 + r, j0, cols, p0 == 0);
      alignas(64) float c[columns];
      const auto from_row = [&](const auto& from) { add_up(from, groups, row, std::min(codes_.low(), 0), start.finite, c); };
      codes_.with_fields([&](auto f) {
        if constexpr (sizeof(typename decltype(f)::Code) == 2) {
          if (rows == 1) return from_row(DoublesFromCodes<decltype(f)>{rows_.wide_row(r, a_), codes_.lines(), f});
          if (r == 0) fill_panel(f, p1 - p0);
          from_row(DoublePanel{rows_.wide_row(r, a_), b_.wide_value.data()});
        }
      });
      for (int v = 0; v < NV; ++v) {  // an Inf or NaN of c stays
        vf old = load<vf>(start.before + v * W);
        store(c + v * W, old - old != 0.0f ? old : load<vf>(c + v * W));
      }
      store_row(i0 + r, j0, cols, c);
    }
    return rows;
  }
  template <class Fields> void fill_panel(const Fields& f, i64 n) {
    b_.wide_value.resize(size_t(n * columns));
    const Found line = codes_.lines();
    double* to = b_.wide_value.data();
    for (i64 p = 0; p < n; ++p, to += columns) {
      line.template fetch<columns * i64(sizeof(typename Fields::Code))>(p);
      const auto numbers = f.numbers(line[p]);
      unroll<halves>([&](auto h) __attribute__((always_inline)) { store(to + h * D, to_double(half(numbers(h / 2), h % 2))); });
    }
  }
#else
  i64 straight(i64, i64, i64, i64, i64, i64) { return 0; }
#endif

  void block(i64 i0, i64 rows, i64 j0, i64 cols, i64 p0, i64 p1) {
    const i64 n = p1 - p0;
    const i64 done = straight(i0, rows, j0, cols, p0, p1);
    if (done == rows) return;
    cols_.pack_panel(j0, cols, b_, false);
    cols_.wide_panel(b_);
    int widest_col = 0, lowest_col = 0;
    for (int v = 0; v < columns / (2 * W); ++v) {
      vs low = vs{} + short(20000), high = vs{} + short(-20000);
      for (i64 p = 0; p < n; ++p) {
        vs e = load<vs>(&b_.wide_exponent[size_t(p * columns + v * 2 * W)]), some = e > short(-4096);
        low = min(low, (some & e) | (~some & short(20000)));
        high = max(high, (some & e) | (~some & short(-20000)));
      }
      for (int l = 0; l < 2 * W; ++l)
        if (high[l] >= low[l]) {
          widest_col = std::max<int>(widest_col, high[l] - low[l]);
          lowest_col = std::min<int>(lowest_col, low[l]);
        }
    }
    const i64 groups = n / s_.L;
    for (i64 r = done; r < rows && !stopped(job_); ++r) {
      i64 i = i0 + r;
      const Start start(job_, i, j0, cols, p0 == 0);
      alignas(64) float c[columns];
      const DoublePanel from{rows_.wide_row(r, a_), b_.wide_value.data()};
      const bool special = a_.special[size_t(r)] || b_.special[0], near = near_enough(spans_[size_t(r)], widest_col);
      if (near) {
        add_up(from, groups, spans_[size_t(r)], lowest_col, start.finite, c);
      } else if (!special) {
        std::memcpy(c, start.finite, sizeof c);
        kernel_.carefully(from, groups, c);
      }
      if (special) cols_.special_panel(b_);
      if ((special && !near) || !apply_specials(r, n, special, start.before, c)) {  // group by group
        special_sums(rows_.special_row(r, a_), b_.special_value.data(), groups, s_.L, special_groups_);
        for (int v = 0; v < NV; ++v) store(c + v * W, load<vf>(start.before + v * W) + vf{});
        kernel_.carefully(from, groups, c, special_groups_.data());
      }
      store_row(i, j0, cols, c);
    }
  }
  // An Inf or NaN among products decides (special_sum). One of c stays, or meets it. False, and nothing
  // done, if the sum of the others has overflowed to the other Inf meanwhile: only the order tells which
  // came first.
  bool apply_specials(i64 r, i64 n, bool special, const float* before, float* c) {
    vf sum[NV] = {}, result[NV];
    if (special) special_sum(rows_.special_row(r, a_), b_.special_value.data(), n, sum);
    vi both{};
    for (int v = 0; v < NV; ++v) {
      const vf s = sum[v], now = load<vf>(c + v * W), old = load<vf>(before + v * W);
      const vi decides = (vi)(s - s != 0.0f), had = (vi)(old - old != 0.0f);
      result[v] = had ? (decides ? old + s : old) : decides ? s : now;
      both |= (vi)(now - now != 0.0f) & (vi)(now != s) & (vi)(s == s) & decides & ~had;
    }
    if (any(both)) return false;
    for (int v = 0; v < NV; ++v) store(c + v * W, result[v]);
    return true;
  }

  const Job& job_;
  const Spec& s_;
  Layout layout_;
  ExactSum kernel_;
  Operand rows_, cols_;
  Packed a_, b_;
  std::vector<i64> pos_;
  std::vector<Span> spans_;
  Array<float> special_groups_;
  Codes codes_;
  i64 chunk_;
};

// c, d f32 by RNE; products of f16 (or narrower, on f16's grid) for any L up to 4 whatever their
// exponents, of anything else with 16 or fewer bits for L = 2.
inline bool exact_sum_holds(const Spec& s) {
  auto small = [](const Format& f) { return f.min_exponent() - f.mantissa_bits >= -24 && f.max_exponent() <= 15; };
  bool single = s.c.width == 32 && s.c.mantissa_bits == 23 && s.d.width == 32 && s.mode == Mode::rne && s.mantissa_bits == 23;
  return single && ((s.L <= 4 && small(s.a) && small(s.b)) || (s.L == 2 && s.a.width <= 16 && s.b.width <= 16));
}
inline void run_exact_sum(const Job& job, Again again) { each<ExactSumWalk>(again, job); }

}  // namespace bitmma::BITMMA_ISA
