// E-FDPA: section 3 of the models. Sums of L products and c rounded once, in float64 arithmetic that
// carries along what each addition loses.
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
BITMMA_INLINE vd add_odd(vd a, vd b, vd& lost) {
  vd sum;
  two_sum(a, b, sum, lost);
  vl w = bits<vl>(sum);
  vl inexact = (vl)(lost != 0), even = (vl)((w & 1) == 0);
  // Toward the lost part: one step up in magnitude if it has the sum's sign, else one down.
  vl apart = (bits<vl>(lost) ^ w) >> 63;           // 0 or -1
  vl step = (apart | 1) & inexact & even;          // +1 or -1
  return bits<vd>(w + step);
}

class ExactSum {
 public:
  explicit ExactSum(const Spec& s) : L_(s.L) {}

  // Where any L products sum exactly in float64, by the exponents that occur. With `q` such that all
  // products and c are multiples of 2^q, so are all sums; those below 2^(53+q) are then exact, and
  // rounding them to float32 is the only rounding. True if all were that small. Otherwise, and with
  // `odd` set, sums are rounded to odd first.
  template <int L0, bool odd> bool quickly(const Strip& x, float* c, double limit) const {
    const i64 L = L0 ? L0 : L_;
    constexpr int at_once = 4;  // independent chains, to hide latency
    bool all = true;
    for (int h0 = 0; h0 < halves; h0 += at_once) {
      vd d[at_once], largest[at_once] = {};
      for (int h = 0; h < at_once; ++h) d[h] = to_double(load<hf>(c + (h0 + h) * D));
      for (i64 g = 0; g < x.groups; ++g) {
        const double *a = x.a_wide + g * L, *b = x.b_wide + g * L * columns + h0 * D;
        vd sum[at_once];
        for (int h = 0; h < at_once; ++h) sum[h] = splat(a[0]) * load<vd>(b + h * D);
        for (i64 p = 1; p < L; ++p)
          for (int h = 0; h < at_once; ++h)
            sum[h] = multiply_add(splat(a[p]), load<vd>(b + p * columns + h * D), sum[h]);
        for (int h = 0; h < at_once; ++h) {
          vd s, lost;
          if constexpr (odd) {
            s = add_odd(sum[h], d[h], lost) + vd{};
          } else {
            s = sum[h] + d[h];
            vd size = bits<vd>(bits<vl>(s) & i64(0x7FFFFFFFFFFFFFFF));
            largest[h] = size > largest[h] ? size : largest[h];
          }
          d[h] = to_double(to_float(s));
        }
      }
      for (int h = 0; h < at_once; ++h) {
        store(c + (h0 + h) * D, to_float(d[h]));
        if (!odd) all &= !any((vl)(largest[h] >= limit));
      }
    }
    return all;
  }

  // Any exponents: what each addition loses is carried along.
  void carefully(const Strip& x, float* c, u8* redo) const {
    constexpr int at_once = 4;  // independent chains, to hide latency
    for (int h0 = 0; h0 < halves; h0 += at_once) {
      vd d[at_once];
      vl bad[at_once] = {};
      unroll<at_once>([&](auto h) { d[h] = to_double(load<hf>(c + (h0 + h) * D)); });
      for (i64 g = 0; g < x.groups; ++g) {
        const double *a = x.a_wide + g * L_, *b = x.b_wide + g * L_ * columns + h0 * D;
        vd high[at_once] = {}, low[at_once] = {};
        // Two numbers hold the products' sum: multiples of 2^grid and what is below, each exact; or,
        // for two products, their sum and its loss.
        if (L_ == 2) {
          unroll<at_once>([&](auto h) __attribute__((always_inline)) {
            two_sum(splat(a[0]) * load<vd>(b + h * D), splat(a[1]) * load<vd>(b + columns + h * D), high[h], low[h]);
          });
        } else {
          for (i64 p = 0; p < L_; ++p)
            unroll<at_once>([&](auto h) __attribute__((always_inline)) {
              vd y = splat(a[p]) * load<vd>(b + p * columns + h * D);
              vd big = (y + splat(split)) - splat(split);
              high[h] += big, low[h] += y - big;
            });
        }
        unroll<at_once>([&](auto h) __attribute__((always_inline)) {
          vd s, e, lost_u, lost_r;
          two_sum(high[h], d[h], s, e);
          vd u = add_odd(e, low[h], lost_u);
          vd r = add_odd(s, u, lost_r);
          // u was rounded far below r's precision, unless s and u cancelled: then do it exactly.
          vd size_u = bits<vd>(bits<vl>(u) & i64(0x7FFFFFFFFFFFFFFF));
          vd size_r = bits<vd>(bits<vl>(r) & i64(0x7FFFFFFFFFFFFFFF));
          bad[h] |= (vl)(lost_u != 0) & (vl)(size_u > size_r * 0x1p20);
          d[h] = to_double(to_float(r + vd{}));
        });
      }
      for (int h = 0; h < at_once; ++h) {
        store(c + (h0 + h) * D, to_float(d[h]));
        for (int l = 0; l < D; ++l) redo[(h0 + h) * D + l] = bad[h][l] != 0;
      }
    }
  }

  // f16 products are multiples of 2^-48 below 2^32: split at 2^-10, both halves' sums are exact.
  static constexpr double split = 0x1.8p42;

 private:
  i64 L_;
};

// The walk is shared with the fused kernels in spirit, but an exact sum needs no exponents, and lanes
// can ask to be done again.
class ExactSumWalk {
 public:
  explicit ExactSumWalk(const Job& job)
      : job_(job), s_(*job.spec), layout_(s_, job.K), kernel_(s_), exact_(job),
        rows_(job.a, s_.a), cols_(job.b.transposed(), s_.b) {
    i64 unit = layout_.padded_step > 512 ? s_.group : layout_.padded_step;
    chunk_ = std::max<i64>(1, 128 / unit) * unit;
  }
  void run() {
    rows_.read(job_.a), cols_.read(job_.b.transposed());
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
        for (i64 j0 = 0; j0 < job_.N; j0 += columns) {
          block(i0, rows, j0, p0, p1, spans);
          if (!advance(job_, {i0, rows, j0, std::min<i64>(columns, job_.N - j0)}, p1 - p0, p1 == layout_.total)) return;
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

  void block(i64 i0, i64 rows, i64 j0, i64 p0, i64 p1, const std::vector<Span>& spans) {
    i64 cols = std::min<i64>(columns, job_.N - j0), n = p1 - p0;
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
    Strip x{};
    x.groups = n / s_.L, x.b_wide = b_.wide_value.data();
    const bool start = p0 == 0;
    for (i64 r = 0; r < rows && !stopped(job_); ++r) {
      i64 i = i0 + r;
      alignas(64) float c[columns], before[columns];
      u8 redo[columns] = {};
      Tile<float>::load_c(job_, i, j0, cols, start, c);
      for (float& y : c) y += 0.0f;  // -0 is +0 here: a zero sum is +0, even of zeros that are all -0
      std::memcpy(before, c, sizeof c);
      x.a_wide = rows_.wide_row(r, a_);
      // Lowest bit to highest of a sum of L products: significands, exponents' spread, carries.
      const Span& row = spans[size_t(r)];
      const int fraction = s_.a.mantissa_bits + s_.b.mantissa_bits;
      if (row.width() + widest_col + fraction + 2 + log2_ceil(s_.L) <= 52) {
        int q = std::max(row.low + lowest_col - fraction, -1000);
        double limit = std::ldexp(1.0, 53 + q), grid = std::ldexp(1.0, std::clamp(-q, -1000, 1000));
        bool on_grid = row.low < 0 && q >= -149;
        vl off_grid{};
        for (int h = 0; h < halves; ++h) {
          vd y = to_double(load<hf>(c + h * D)) * splat(grid);
          off_grid |= (vl)(truncate(y) != y);
        }
        on_grid &= !any(off_grid);
        if (!on_grid || !exact_chain<false>(x, c, limit)) {
          std::memcpy(c, before, sizeof c);
          exact_chain<true>(x, c, limit);
        }
      } else {
        kernel_.carefully(x, c, redo);
      }
      const bool specials = a_.special[size_t(r)] || b_.special[0];
      bool check = specials || std::memchr(redo, 1, columns);
      for (int v = 0; v < NV; ++v) {
        vf now = load<vf>(c + v * W), old = load<vf>(before + v * W);
        check |= any((vi)(now - now != 0.0f) | (vi)(old - old != 0.0f));
      }
      alignas(64) float special[columns] = {};
      if (specials) special_sums(r, n, special);
      for (i64 j = 0; check && j < cols; ++j) {
        // Inf and NaN have no two-sum: whatever is not finite is settled by the rules.
        const bool finite = std::isfinite(c[j]) && std::isfinite(before[j]);
        if (before[j] != before[j] || special[j] != special[j]) {
          c[j] = NAN;
        } else if (finite && std::isinf(special[j])) {
          c[j] = special[j];
        } else if (redo[j] || !finite) {
          u64 code = start ? (job_.c.data ? load_code(job_.c.at(i, j0 + j), 4) : 0) : load_code(job_.d.at(i, j0 + j), 4);
          c[j] = bits<float>(u32(exact_.redo(i, j0 + j, p0, p1, code)));
        }
      }
      Tile<float>::store_c(job_, i, j0, cols, c);
    }
  }
  template <bool odd> bool exact_chain(const Strip& x, float* c, double limit) const {
    if (s_.L == 4) return kernel_.quickly<4, odd>(x, c, limit);
    if (s_.L == 2) return kernel_.quickly<2, odd>(x, c, limit);
    return kernel_.quickly<0, odd>(x, c, limit);
  }
  void special_sums(i64 r, i64 n, float* out) {
    cols_.special_panel(b_);
    const float *a = rows_.special_row(r, a_), *b = b_.special_value.data();
    vf sum[NV];
    special_sum(a, b, n, sum);
    std::memcpy(out, sum, sizeof sum);
  }

  const Job& job_;
  const Spec& s_;
  Layout layout_;
  ExactSum kernel_;
  ExactBlock exact_;
  Operand rows_, cols_;
  Packed a_, b_;
  std::vector<i64> pos_;
  std::vector<Span> spans_;
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
