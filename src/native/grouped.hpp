// GST-FDPA on e2m1 operands: section 6 of the models. Twice an e2m1 number is one of 0, 1, 2, 3, 4, 6,
// 8, 12 with a sign, so a product is an integer up to 144 in units of 1/4 and a group's dot product is
// integer arithmetic, four products a lane. The fused step sees one number a group, in float64: exactly,
// without alignment, where no term can lose a bit (`plain`); otherwise cut one by one (`fused`).
#pragma once
#include "fused.hpp"

namespace bitmma::BITMMA_ISA {

class Grouped {
 public:
  explicit Grouped(const Job& job)
      : job_(job), s_(*job.spec), layout_(s_, job.K), quads_(s_.G / 4), words_((s_.G + 31) / 32),
        per_step_(s_.L / s_.G), e_zero_(std::max(s_.e_zero, -900)),
        mask_(i32(~0u << (23 - std::min(s_.mantissa_bits, 23)))),
        usual_(quads_ == 4 && per_step_ == 4) {
    for (u32 code = 0; s_.block && code < 256; ++code) {
      exact::Number y = exact::decode(s_.scale, code);
      const float factor = float(y.significand) * significand_unit();
      const float weight = factor * bits<float>(u32(std::clamp(y.e, -moderate, moderate) + 127) << 23);
      scale_[code] = {y.e, factor, weight, y.kind != exact::zero, y.kind == exact::nan};
    }
    i64 unit = layout_.padded_step > 4096 ? s_.L : layout_.padded_step;
    chunk_ = std::max<i64>(1, 512 / unit) * unit;
  }

  void run() {
    for (i64 p0 = 0; p0 < layout_.total; p0 += chunk_) {
      start_ = p0 == 0;
      n_ = std::min(layout_.total, p0 + chunk_) - p0;
      groups_ = n_ / s_.G;
      layout_.positions(p0, p0 + n_, pos_);
      block_.resize(size_t(groups_));
      if (s_.block)
        for (i64 g = 0; g < groups_; ++g) block_[size_t(g)] = layout_.scale_block(p0 + g * s_.G, s_.block);
      for (i64 i0 = 0; i0 < job_.M; i0 += row_block) {
        i64 rows = std::min(row_block, job_.M - i0);
        pack<1>(job_.a, job_.scale_a, i0, rows, bias, a_);
        for (i64 j0 = 0; j0 < job_.N; j0 += columns) {
          i64 cols = std::min<i64>(columns, job_.N - j0);
          pack<columns>(job_.b.transposed(), job_.scale_b.transposed(), j0, cols, 0, b_);
          correct();
          panel_low_ = *std::min_element(b_.low.begin(), b_.low.begin() + cols);
          panel_high_ = *std::max_element(b_.high.begin(), b_.high.begin() + cols);
          for (i64 r = 0; r < rows; ++r) row(i0 + r, r, j0, cols);
          if (!advance(job_, {i0, rows, j0, cols}, n_, p0 + n_ == layout_.total)) return;
        }
      }
    }
  }

 private:
  static constexpr i64 row_block = 256;
  // x86 multiplies unsigned by signed bytes: a goes in as 2a + 12, and 12 * sum(2b) comes off again.
  static constexpr int bias = 12;

  struct Scale { i32 exponent; float factor, weight; bool counts, nan; };  // weight: see Lines

  // Lines of one side: rows one after another (`side` 1) or `columns` of them side by side.
  struct Lines {
    Array<u32> quad;       // four doubled numbers as signed bytes; of rows, 12 more, unsigned
    Array<u32> nonzero;    // a bit for each product that counts; none under a zero scale
    Array<i32> exponent;   // of the scale
    Array<float> factor;   // its significand
    Array<float> weight;   // the whole scale, where `low` and `high` are moderate
    Array<u8> nan;         // whether some scale of a line is NaN
    Array<i32> low, high;  // exponents of a line's scales that count; 0 if none does
  };

  template <i64 side> void pack(const Mat& m, const Mat& scales, i64 l0, i64 lines, u32 plus, Lines& out) {
    const i64 total = side == 1 ? lines : side, quads = n_ / 4;
    auto at = [&](i64 line, i64 item, i64 items) { return size_t(side == 1 ? line * items + item : item * side + line); };
    out.quad.resize(size_t(total * quads)), some_.resize(size_t(total * quads));
    // Codes of the products of a quad, four bytes a lane, lanes along k or across lines.
    const i64 across = side == 1 ? quads : columns;
    codes_.assign(size_t(across), 0);
    for (i64 outer = 0; outer < (side == 1 ? lines : quads); ++outer) {
      if (side == 1) {
        const u8* line = m.data + (l0 + outer) * m.row;
        for (i64 q = 0; q < quads; ++q) codes_[size_t(q)] = four(line, m.col, &pos_[size_t(4 * q)]);
      } else {
        const i64* k = &pos_[size_t(4 * outer)];
        if (m.row == 1 && *std::min_element(k, k + 4) >= 0) {
          const u8 *x0 = m.at(l0, k[0]), *x1 = m.at(l0, k[1]), *x2 = m.at(l0, k[2]), *x3 = m.at(l0, k[3]);
          for (i64 l = 0; l < lines; ++l) codes_[size_t(l)] = u32(x0[l]) | u32(x1[l]) << 8 | u32(x2[l]) << 16 | u32(x3[l]) << 24;
        } else {
          for (i64 l = 0; l < lines; ++l) codes_[size_t(l)] = four(m.data + (l0 + l) * m.row, m.col, k);
        }
      }
      for (i64 i = 0; i < across; i += W) {
        vu x{}, w{}, some{};
        std::memcpy(&x, &codes_[size_t(i)], sizeof(u32) * size_t(std::min<i64>(W, across - i)));
        unroll<4>([&](auto t) __attribute__((always_inline)) {
          vu code = x >> (8 * t), size = shift_right(splat_bits(0xC8643210), (vi)(code & 7) << 2) & 15;  // doubled
          vu number = (code & 8) == 0 ? size : -size;
          w |= ((number + plus) & 255) << (8 * t);
          some |= size == 0 ? vu{} : splat_bits(1u << t);
        });
        const size_t to = size_t(outer * across + i);
        std::memcpy(&out.quad[to], &w, sizeof(u32) * size_t(std::min<i64>(W, across - i)));
        std::memcpy(&some_[to], &some, sizeof(u32) * size_t(std::min<i64>(W, across - i)));
      }
    }
    out.nonzero.assign(size_t(total * groups_ * words_), 0);
    out.exponent.assign(size_t(total * groups_), 0), out.factor.assign(size_t(total * groups_), 1.0f);
    out.weight.assign(size_t(total * groups_), 1.0f), out.nan.assign(size_t(total), 0);
    out.low.assign(size_t(total), 1 << 20), out.high.assign(size_t(total), -(1 << 20));
    const i64 blocks = s_.block ? (job_.K + s_.block - 1) / s_.block : 0;
    counts_.resize(size_t(lines));
    for (i64 g = 0; g < groups_; ++g) {
      const bool scaled = scales.data && block_[size_t(g)] < blocks;
      std::fill(counts_.begin(), counts_.end(), ~0u);
      for (i64 l = 0; scaled && l < lines; ++l) {
        const Scale& y = scale_[*scales.at(l0 + l, block_[size_t(g)])];
        const size_t to = at(l, g, groups_);
        out.nan[size_t(l)] |= y.nan, counts_[size_t(l)] = y.counts ? ~0u : 0;
        out.exponent[to] = y.exponent, out.factor[to] = y.factor, out.weight[to] = y.weight;
        if (y.counts && !y.nan) {
          out.low[size_t(l)] = std::min(out.low[size_t(l)], y.exponent);
          out.high[size_t(l)] = std::max(out.high[size_t(l)], y.exponent);
        }
      }
      for (i64 q = 0; q < quads_; ++q) {
        const u32* some = &some_[at(0, g * quads_ + q, quads)];
        u32* to = &out.nonzero[at(0, g * words_ + q / 8, groups_ * words_)];
        const i64 next = side == 1 ? quads : 1, to_next = side == 1 ? groups_ * words_ : 1;
        for (i64 l = 0; l < lines; ++l) to[l * to_next] |= (some[l * next] & counts_[size_t(l)]) << q % 8 * 4;
      }
    }
    for (i64 l = 0; l < total; ++l)
      if (out.low[size_t(l)] > out.high[size_t(l)]) out.low[size_t(l)] = out.high[size_t(l)] = 0;
  }
  static constexpr i32 moderate = 40;
  BITMMA_INLINE static vu splat_bits(u32 x) { return vu{} + x; }
  BITMMA_INLINE static u32 four(const u8* line, i64 stride, const i64* k) {
    if (stride == 1 && k[0] >= 0 && k[3] == k[0] + 3) return load<u32>(line + k[0]);
    u32 w = 0;
    for (int t = 0; t < 4; ++t) w |= k[t] < 0 ? 0 : u32(line[k[t] * stride]) << 8 * t;
    return w;
  }
  float significand_unit() const { return bits<float>(u32(127 - s_.scale.mantissa_bits) << 23); }

  // What takes 12 times the sum of a group's doubled b off again: an int16, the lower half of a lane.
  void correct() {
    correction_.resize(size_t(groups_ * columns));
    for (i64 g = 0; g < groups_; ++g)
      for (int v = 0; v < NV; ++v) {
        vi sum{};
        for (i64 q = 0; q < quads_; ++q) {
          vi w = load<vi>(&b_.quad[size_t((g * quads_ + q) * columns + v * W)]);
          sum += (w << 24 >> 24) + (w << 16 >> 24) + (w << 8 >> 24) + (w >> 24);
        }
        store(&correction_[size_t(g * columns + v * W)], -bias * sum);
      }
  }

  // Two int16 a lane: the products of four bytes, by pairs, at most 2 * 24 * 12 each.
  BITMMA_INLINE static vi dot4(u32 a, vi b) {
#if defined(__AVX512BW__)
    return (vi)_mm512_maddubs_epi16(_mm512_set1_epi32(i32(a)), (__m512i)b);
#elif defined(__AVX2__)
    return (vi)_mm256_maddubs_epi16(_mm256_set1_epi32(i32(a)), (__m256i)b);
#else
    vi even = (b << 24) >> 24, odd = (b << 16) >> 24, third = (b << 8) >> 24, last = b >> 24;
    vi low = even * i32(a & 255) + odd * i32(a >> 8 & 255);
    vi high = third * i32(a >> 16 & 255) + last * i32(a >> 24);
    return (low & 0xFFFF) | (vi)((vu)high << 16);
#endif
  }
  BITMMA_INLINE static vi add16(vi a, vi b) { return bits<vi>(vs(bits<vs>(a) + bits<vs>(b))); }
  BITMMA_INLINE static vi pair_sum(vi x) {
#if defined(__AVX512BW__)
    return (vi)_mm512_madd_epi16((__m512i)x, _mm512_set1_epi16(1));
#elif defined(__AVX2__)
    return (vi)_mm256_madd_epi16((__m256i)x, _mm256_set1_epi16(1));
#else
    return ((vi)((vu)x << 16) >> 16) + (x >> 16);
#endif
  }

  // The dot product of a group in units of 1/4, for one vector of columns.
  template <class Shape> BITMMA_INLINE static vi dot(Shape shape, const u32* a, const u32* b, vi correction) {
    if (shape.quads <= 8) {  // beside an int16 of correction
      vi part = correction & 0xFFFF;
      for (i64 q = 0; q < shape.quads; ++q) part = add16(part, dot4(a[q], load<vi>(b + q * columns)));
      return pair_sum(part);
    }
    vi sum = correction;
    for (i64 q0 = 0; q0 < shape.quads; q0 += 32) {  // an int16 holds 56 of them
      vi part{};
      for (i64 q = q0; q < std::min(shape.quads, q0 + 32); ++q) part = add16(part, dot4(a[q], load<vi>(b + q * columns)));
      sum += pair_sum(part);
    }
    return sum;
  }

  void row(i64 i, i64 r, i64 j0, i64 cols) {
    vf c[NV];
    load_c(job_, i, j0, cols, start_, c);
    const Span span = plain_span(r);
    for (i64 step = 0; step < groups_ / per_step_; ++step)  // vectors of columns side by side: chains overlap
      for (int v = 0; v < NV && v * W < cols; ++v) {
        const i32 lowest = start_ && step == 0 && s_.c.width == 16 ? -14 : -126;
        if (usual_ && span.holds(c[v])) c[v] = plain(r, v, step, c[v]);
        else if (usual_) c[v] = fused(Usual{}, r, v, step, lowest, c[v]);
        else c[v] = fused(Any{quads_, words_, per_step_}, r, v, step, lowest, c[v]);
      }
    for (i64 j = 0; j < cols; ++j)
      if (a_.nan[size_t(r)] || b_.nan[size_t(j)]) c[j / W][j % W] = NAN;
    store_c(job_, i, j0, cols, c);
  }

  // How a step divides: four groups of 16 in the catalogue, known to the compiler.
  struct Usual { static constexpr i64 quads = 4, words = 1, per_step = 4; };
  struct Any { i64 quads, words, per_step; };

  template <class Shape> BITMMA_INLINE vi product(Shape shape, i64 r, i64 g, int v) const {
    return dot(shape, &a_.quad[size_t(r * (n_ / 4) + g * shape.quads)], &b_.quad[size_t(g * shape.quads * columns + v * W)],
               load<vi>(&correction_[size_t(g * columns + v * W)]));
  }

  // Sizes of c, as a float's bits, that let a step's terms with it lose nothing; 0 always does.
  struct Span {
    i32 low, high;
    BITMMA_INLINE bool holds(vf c) const {
      vi size = bits<vi>(c) & 0x7FFFFFFF;
      return !any((vi)(size >= high) | ((vi)(size < low) & (vi)(size != 0)));
    }
  };
  // Terms are multiples of 2^lowest, with exponents up to `most` (a group that is zero does not raise
  // e_max above: e_zero is far below). Nothing is cut off them if e_max - F <= lowest, nor off c, of 24
  // bits, if e_max <= e_c - 23 + F; and their sum, below 2^(e_max + 14), is exact in float64.
  Span plain_span(i64 r) const {
    const i32 low = panel_low_, high = panel_high_;
    const i32 row_low = a_.low[size_t(r)], row_high = a_.high[size_t(r)];
    const i32 most = high + row_high, lowest = low + row_low - 2 - 2 * (s_.block ? s_.scale.mantissa_bits : 0);
    const i32 reach = std::min(s_.F, 36);
    const bool moderate_scales = std::min(low, row_low) >= -moderate && std::max(high, row_high) <= moderate;
    if (!moderate_scales || most - lowest > reach || e_zero_ > lowest - 40 || s_.F < 23 || (start_ && s_.c.width == 16))
      return {0, 0};
    return {(most - s_.F + 23 + 127) << 23, (lowest + reach + 127) << 23};
  }
  BITMMA_INLINE vf plain(i64 r, int v, i64 step, vf c) const {
    vd sum[2];
    for (int h = 0; h < 2; ++h) sum[h] = to_double(half(c, h));
    unroll<Usual::per_step>([&](auto u) __attribute__((always_inline)) {
      const i64 g = step * Usual::per_step + u;
      vf weight = load<vf>(&b_.weight[size_t(g * columns + v * W)]) * (a_.weight[size_t(r * groups_ + g)] * 0.25f);
      vf t = to_float(product(Usual{}, r, g, v)) * weight;  // an integer below 2^13 times 8 bits: exact
      for (int h = 0; h < 2; ++h) sum[h] += to_double(half(t, h));
    });
    vf d = join(to_float(sum[0]), to_float(sum[1]));
    return bits<vf>(bits<vi>(d) & mask_) + vf{};
  }

  template <class Shape> __attribute__((noinline)) vf fused(Shape shape, i64 r, int v, i64 step, i32 lowest, vf c) const {
    const i64 g0 = step * shape.per_step;
    vi e[8], e_max = c_term(c, lowest, e_zero_).exponent;
    for (i64 u = 0; u < shape.per_step; ++u) {
      const i64 g = g0 + u;
      vi some{};
      for (i64 w = 0; w < shape.words; ++w)
        some |= load<vi>(&b_.nonzero[size_t((g * shape.words + w) * columns + v * W)]) &
                i32(a_.nonzero[size_t((r * groups_ + g) * shape.words + w)]);
      e[u] = load<vi>(&b_.exponent[size_t(g * columns + v * W)]) + a_.exponent[size_t(r * groups_ + g)];
      e_max = max(e_max, some == 0 ? splat(e_zero_) : e[u]);
    }
    // In units of 2^(e_max - F). A factor 2^(e + F - e_max) out of a double's range is one of a term
    // that is zero, or cut to zero.
    vd sum[2];
    for (int h = 0; h < 2; ++h)
      sum[h] = truncate(to_double(half(c, h)) * from_field(half((s_.F + 1023) - e_max, h)));
    for (i64 u = 0; u < shape.per_step; ++u) {
      const i64 g = g0 + u;
      vi p = product(shape, r, g, v);
      vf f = load<vf>(&b_.factor[size_t(g * columns + v * W)]) * splat(a_.factor[size_t(r * groups_ + g)]);
      vf t = to_float(p) * f;  // an integer below 2^13 times 8 bits: exact
      vi shift = min(max(e[u] - e_max + (s_.F - 2 + 1023), splat(1)), splat(2000));
      for (int h = 0; h < 2; ++h) sum[h] += truncate(to_double(half(t, h)) * from_field(half(shift, h)));
    }
    hf out[2];
    for (int h = 0; h < 2; ++h) {
      vd x = sum[h] * from_field(half(e_max + (1023 - s_.F), h));
      vd size = bits<vd>(bits<vl>(x) & i64(0x7FFFFFFFFFFFFFFF));
      hf f = bits<hf>(bits<hi>(to_float(x)) & mask_);
      out[h] = f + hf{};
      vl huge = (vl)(size >= 0x1p128);
      if (any(huge))
        for (int l = 0; l < D; ++l)
          if (huge[l]) out[h][l] = float(std::copysign(INFINITY, x[l]));
    }
    return join(out[0], out[1]);
  }

  const Job& job_;
  const Spec& s_;
  Layout layout_;
  i64 quads_, words_, per_step_;
  i32 e_zero_, mask_, panel_low_ = 0, panel_high_ = 0;
  bool usual_, start_ = true;
  i64 chunk_, n_ = 0, groups_ = 0;
  std::vector<i64> pos_, block_;
  Lines a_, b_;
  Array<u32> codes_, some_, counts_;
  Array<i32> correction_;
  Scale scale_[256];
};

// e2m1 operands; groups of whole quads, at most eight a step; results toward zero to f32.
// A term is below G * 36 * 4 * 2^F in its units, the sum of them and c must stay below 2^53.
inline bool grouped_holds(const Spec& s) {
  auto e2m1 = [](const Format& f) { return f.width == 4 && f.exponent_bits == 2 && f.mantissa_bits == 1; };
  return e2m1(s.a) && e2m1(s.b) && s.G % 4 == 0 && s.G <= 128 && s.L / s.G <= 8 && half_or_single(s.c) &&
         s.mode == Mode::rz && s.d.width == 32 && s.e_zero <= 900 &&
         s.F + log2_ceil(s.G * 36) + 2 + log2_ceil(s.L / s.G + 1) <= 52 &&
         (!s.block || (s.scale.width == 8 && s.scale.mantissa_bits <= 3));
}
inline void run_grouped(const Job& job, Again again) { each<Grouped>(again, job); }

}  // namespace bitmma::BITMMA_ISA
