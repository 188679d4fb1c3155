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
        usual_(quads_ == 4 && per_step_ == 4), lines_(job.N), scale_lines_(job.N), quad_lines_(job.N) {
    const double most = s_.block ? 2 - std::ldexp(1.0, -s_.scale.mantissa_bits) : 1;
    largest_scales_ = most * most;
    for (u32 code = 0; s_.block && code < 256; ++code) {
      exact::Number y = exact::decode(s_.scale, code);
      const float factor = float(y.significand) * significand_unit();
      const float weight = factor * bits<float>(u32(std::clamp(y.e, -moderate, moderate) + 127) << 23);
      scale_[code] = {y.e, factor, weight, y.kind != exact::zero, y.kind == exact::nan};
    }
    i64 unit = layout_.padded_step > 4096 ? s_.L : layout_.padded_step;
    chunk_ = std::max<i64>(1, (job.M > few_rows ? 512 : few_rows_chunk(job.b, 1)) / unit) * unit;
  }

  bool looks_at_columns() const { return true; }

  void run() {
    walk();
    tell_beyond(job_, s_.b, bits<vb>(seen_));
  }

 private:
  void walk() {
    const i64 first = job_.M <= few_rows ? columns_to_line(job_.b.transposed(), 1, job_.N) : columns;
    for (i64 p0 = 0; p0 < layout_.total; p0 += chunk_) {
      start_ = p0 == 0;
      n_ = std::min(layout_.total, p0 + chunk_) - p0;
      groups_ = n_ / s_.G;
      contiguous_ = layout_.positions(p0, p0 + n_, pos_);
      block_.resize(size_t(groups_));
      if (s_.block)
        for (i64 g = 0; g < groups_; ++g) {
          const i64 block = layout_.scale_block(p0 + g * s_.G, s_.block);
          block_[size_t(g)] = block < (job_.K + s_.block - 1) / s_.block ? block : -1;
        }
      for (i64 i0 = 0; i0 < job_.M; i0 += row_block) {
        i64 rows = std::min(row_block, job_.M - i0);
        pack_rows(i0, rows);
        for (i64 j0 = 0, cols = first; j0 < job_.N; j0 += cols, cols = columns) {
          cols = std::min(cols, job_.N - j0);
          pack_columns(j0, cols);
          for (i64 r = 0; r < rows; ++r) row(i0 + r, r, j0, cols);
          if (!advance(job_, {i0, rows, j0, cols}, n_, p0 + n_ == layout_.total)) return;
        }
      }
    }
  }

  static constexpr i64 row_block = 256, few_rows = 16;
  // x86 multiplies unsigned by signed bytes: b goes in as 2b + 12, and 12 * sum(2a) comes off again.
  static constexpr int bias = 12;

  struct Scale { i32 exponent; float factor, weight; bool counts, nan; };  // weight: see Lines

  // Rows one after another, or `columns` columns side by side.
  struct Lines {
    Array<u32> quad;       // four doubled numbers as signed bytes; of columns, 12 more, unsigned
    Array<u32> nonzero;    // a bit for each product that counts; none under a zero scale
    Array<i32> exponent;   // of the scale
    Array<float> factor;   // its significand
    Array<float> weight;   // the whole scale, where `low` and `high` are moderate
    Array<u8> nan;         // whether some scale of a line is NaN
    Array<i32> low, high;  // of rows: exponents of a line's scales that count; 0 if none does
  };

  // Four codes a lane: the doubled numbers in their place, `more` added to each. (Of a code with bits above the
  // format's, which is told of in the end, any number will do.)
  template <int more> BITMMA_INLINE static vu doubled(vu codes) {
    alignas(16) static constexpr signed char number[16] = {
        more,     more + 1, more + 2, more + 3, more + 4, more + 6, more + 8, more + 12,
        more - 0, more - 1, more - 2, more - 3, more - 4, more - 6, more - 8, more - 12};
    return bits<vu>(look_up(number, bits<vb>(codes)));
  }
  // A bit for each of four bytes that is not 0.
  BITMMA_INLINE static vu not_zero(vu x) {
    x = (((x & 0x7F7F7F7F) + 0x7F7F7F7F) | x) >> 7 & 0x01010101;
    return (x | x >> 7 | x >> 14 | x >> 21) & 15;
  }

  void pack_rows(i64 i0, i64 rows) {
    const i64 quads = n_ / 4;
    a_.quad.resize(size_t(rows * quads + W)), codes_.resize(size_t(quads + W));
    a_.nonzero.assign(size_t(rows * groups_ * words_), 0), correction_.resize(size_t(rows * groups_));
    a_.exponent.assign(size_t(rows * groups_), 0), a_.factor.assign(size_t(rows * groups_), 1.0f);
    a_.weight.assign(size_t(rows * groups_), 1.0f), a_.nan.assign(size_t(rows), 0);
    a_.low.assign(size_t(rows), 0), a_.high.assign(size_t(rows), 0);
    for (i64 r = 0; r < rows; ++r) {
      const u8* line = job_.a.data + (i0 + r) * job_.a.row;
      for (i64 q = 0; q < quads; ++q) codes_[size_t(q)] = four(line, job_.a.col, &pos_[size_t(4 * q)]);
      i32 low = 1 << 20, high = -(1 << 20);
      for (i64 g = 0; g < groups_; ++g) {
        const i64 to = r * groups_ + g;
        if (has_scale(g)) {
          const Scale& y = scale_[*job_.scale_a.at(i0 + r, block_[size_t(g)])];
          a_.nan[size_t(r)] |= y.nan;
          a_.exponent[size_t(to)] = y.exponent, a_.factor[size_t(to)] = y.factor, a_.weight[size_t(to)] = y.weight;
          if (y.counts && !y.nan) low = std::min(low, y.exponent), high = std::max(high, y.exponent);
          if (!y.counts) continue;
        }
        for (i64 q = 0; q < quads_; ++q) {
          const u32 x = codes_[size_t(g * quads_ + q)];
          u32 some = 0;
          for (int t = 0; t < 4; ++t) some |= u32((x >> (8 * t) & 7) != 0) << t;
          a_.nonzero[size_t(to * words_ + q / 8)] |= some << q % 8 * 4;
        }
      }
      if (low <= high) a_.low[size_t(r)] = low, a_.high[size_t(r)] = high;
      for (i64 q = 0; q < quads; q += W)
        store(&a_.quad[size_t(r * quads + q)], doubled<0>(load<vu>(&codes_[size_t(q)])));
      for (i64 g = 0; g < groups_; ++g) {
        i32 sum = 0;
        for (i64 q = g * quads_; q < (g + 1) * quads_; ++q)
          for (int t = 0; t < 4; ++t) sum += i8(a_.quad[size_t(r * quads + q)] >> 8 * t);
        correction_[size_t(r * groups_ + g)] = -bias * sum;
      }
    }
  }
  bool has_scale(i64 g) const { return job_.scale_a.data && block_[size_t(g)] >= 0; }

  // What `plain` needs of columns. Where they lie along k, four codes are a word.
  void pack_columns(i64 j0, i64 cols) {
    const i64 quads = n_ / 4;
    const Mat b = job_.b.transposed();
    b_.quad.resize(size_t(quads * columns));
    const bool along_k = contiguous_ && b.col == 1;
    if (along_k) {
      word_.resize(size_t(quads));
      for (i64 q = 0; q < quads; ++q) word_[size_t(q)] = q;
      quad_lines_.find({b.data + pos_[0], b.row, 4}, j0, cols, word_.data(), quads);
    } else {
      lines_.find(b, j0, cols, pos_.data(), n_);
    }
    const Found line = lines_.lines();
    vu seen = seen_;
    u32* const quad = b_.quad.data();
    for (i64 q = 0; q < quads; ++q) {
      vu x[NV];
      if (along_k) {
        for (int v = 0; v < NV; ++v) x[v] = load<vu>(quad_lines_.lines()[q] + v * 4 * W);
      } else {
        const u8* const four[] = {line[4 * q], line[4 * q + 1], line[4 * q + 2], line[4 * q + 3]};
        bring_together(four, x);
        line.fetch<columns, 4>(4 * q);
      }
      unroll<NV>([&](auto v) __attribute__((always_inline)) {
        store(quad + q * columns + v * W, doubled<bias>(x[v]));
      });
      seen |= (x[0] | x[1]) | (x[2] | x[3]);
    }
    seen_ = seen;
    pack_column_scales(j0, cols);
    detailed_ = false;
  }
  // Exponents grow with the codes, so that the least and the largest code tell how far they reach.
  void pack_column_scales(i64 j0, i64 cols) {
    panel_low_ = panel_high_ = 0, any_nan_ = false;
    b_.weight.resize(size_t(groups_ * columns)), b_.nan.assign(columns, 0);
    if (!job_.scale_b.data) return std::fill(b_.weight.begin(), b_.weight.end(), 1.0f);
    const Format& f = s_.scale;
    if (f.exponent_bits == 4 && f.mantissa_bits == 3 && f.bias == 7 && f.specials == Specials::fn && !f.has_sign)
      pack_column_scales(FixedDecoder<4, 3, 7, Specials::fn, 0, 0>{}, j0, cols);
    else
      pack_column_scales(Decoder(f), j0, cols);
  }
  template <class Dec> void pack_column_scales(const Dec& dec, i64 j0, i64 cols) {
    const vb all = vb{} + u8(dec.magnitude_mask()), one = bits<vb>(vu{} + (scale_[0].counts ? 0 : 0x01010101u));
    const bool has_nan = scale_[dec.magnitude_mask()].nan;
    ByteExtent extent;  // of codes less one where 0 does not count: it wraps
    vb nan{};
    scale_lines_.find(job_.scale_b.transposed(), j0, cols, block_.data(), groups_);
    for (i64 g = 0; g < groups_; ++g) {
      float* weight = &b_.weight[size_t(g * columns)];
      if (!has_scale(g)) {
        std::fill(weight, weight + columns, 1.0f);
        continue;
      }
      const Found line = scale_lines_.lines();
      const u8* code = line[g];
      line.fetch<columns>(g);
      for (int v = 0; v < NV; ++v) store(weight + v * W, dec.value(widen_codes<u8>(code + v * W)));
      const vb x = load<vb>(code) & all, is_nan = has_nan ? (vb)(x == all) : vb{};
      nan |= is_nan;
      extent.most = maxu(extent.most, x & ~is_nan), extent.least = minu(extent.least, (x - one) | is_nan);
    }
    store(b_.nan.data(), nan);
    any_nan_ = any(bits<vi>(nan) != 0);  // beyond the matrix there is none
    auto [first, last] = extent.over(cols);
    first += one[0];
    if (first <= last) panel_low_ = scale_[first].exponent, panel_high_ = scale_[last].exponent;
  }
  // And what `fused` does.
  void pack_details() {
    if (detailed_) return;
    detailed_ = true;
    const size_t all = size_t(groups_ * columns);
    b_.nonzero.assign(all * size_t(words_), 0), b_.exponent.assign(all, 0), b_.factor.assign(all, 1.0f);
    for (i64 g = 0; g < groups_; ++g)
      for (i64 q = 0; q < quads_; ++q)
        for (int v = 0; v < NV; ++v) {
          u32* to = &b_.nonzero[size_t((g * words_ + q / 8) * columns + v * W)];
          const vu x = load<vu>(&b_.quad[size_t((g * quads_ + q) * columns + v * W)]) ^ bias * 0x01010101u;
          store(to, load<vu>(to) | not_zero(x) << (q % 8 * 4));
        }
    for (i64 g = 0; g < groups_; ++g)
      for (i64 j = 0; has_scale(g) && j < columns; ++j) {
        const Scale& y = scale_[scale_lines_.lines()[g][j]];
        b_.exponent[size_t(g * columns + j)] = y.exponent, b_.factor[size_t(g * columns + j)] = y.factor;
        for (i64 w = 0; !y.counts && w < words_; ++w) b_.nonzero[size_t((g * words_ + w) * columns + j)] = 0;
      }
  }
  static constexpr i32 moderate = 40;
  BITMMA_INLINE static u32 four(const u8* line, i64 stride, const i64* k) {
    if (stride == 1 && k[0] >= 0 && k[3] == k[0] + 3) return load<u32>(line + k[0]);
    u32 w = 0;
    for (int t = 0; t < 4; ++t) w |= k[t] < 0 ? 0 : u32(line[k[t] * stride]) << 8 * t;
    return w;
  }
  float significand_unit() const { return bits<float>(u32(127 - s_.scale.mantissa_bits) << 23); }

  // Two int16 a lane: the products of four bytes, by pairs, at most 2 * 12 * 24 each.
  BITMMA_INLINE static vi dot4(u32 a, vi b) {
#if defined(__AVX512BW__)
    return (vi)_mm512_maddubs_epi16((__m512i)b, _mm512_set1_epi32(i32(a)));
#elif defined(__AVX2__)
    return (vi)_mm256_maddubs_epi16((__m256i)b, _mm256_set1_epi32(i32(a)));
#else
    const vu x = (vu)b;
    vi even = (vi)(x & 255) * i8(a), odd = (vi)(x >> 8 & 255) * i8(a >> 8);
    vi third = (vi)(x >> 16 & 255) * i8(a >> 16), last = (vi)(x >> 24) * i8(a >> 24);
    return ((even + odd) & 0xFFFF) | (vi)((vu)(third + last) << 16);
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
  template <class Shape> BITMMA_INLINE static vi dot(Shape shape, const u32* a, const u32* b, i32 correction) {
#if defined(__AVX512VNNI__)
    vi all = splat(correction);
    for (i64 q = 0; q < shape.quads; ++q)
      all = (vi)_mm512_dpbusd_epi32((__m512i)all, (__m512i)load<vi>(b + q * columns), _mm512_set1_epi32(i32(a[q])));
    return all;
#endif
    if (shape.quads <= 8) {  // beside an int16 of correction
      vi part = splat(correction & 0xFFFF);
      for (i64 q = 0; q < shape.quads; ++q) part = add16(part, dot4(a[q], load<vi>(b + q * columns)));
      return pair_sum(part);
    }
    vi sum = splat(correction);
    for (i64 q0 = 0; q0 < shape.quads; q0 += 32) {  // an int16 holds 56 of them
      vi part{};
      for (i64 q = q0; q < std::min(shape.quads, q0 + 32); ++q) part = add16(part, dot4(a[q], load<vi>(b + q * columns)));
      sum += pair_sum(part);
    }
    return sum;
  }

  // Sizes of c, as a float's bits, that let a step's terms with it lose nothing; 0 always does. And how many of the
  // terms a float32 holds the sum of.
  struct Span {
    i32 low, high;
    int together;
    BITMMA_INLINE bool holds(vf c) const {
      vi size = bits<vi>(c) & 0x7FFFFFFF;
      return !any((vi)(size >= high) | ((vi)(size < low) & (vi)(size != 0)));
    }
  };

  void row(i64 i, i64 r, i64 j0, i64 cols) {
    vf c[NV];
    load_c(job_, i, j0, cols, start_, c);
    for (int v = 0; v < NV; ++v) c[v] += vf{};  // no -0, then: no step gives one
    const Span span = plain_span(r);
    if (!usual_ || span.together == 1) steps<1>(span, r, cols, c);
    else if (span.together == 2) steps<2>(span, r, cols, c);
    else steps<4>(span, r, cols, c);
    for (i64 j = 0; (any_nan_ || a_.nan[size_t(r)]) && j < cols; ++j)
      if (a_.nan[size_t(r)] || b_.nan[size_t(j)]) c[j / W][j % W] = NAN;
    store_c(job_, i, j0, cols, c);
  }

  template <int together> __attribute__((noinline)) void steps(const Span span, i64 r, i64 cols, vf c[NV]) {
    const i64 all = groups_ / per_step_;
    for (i64 step = 0; step < all; ++step)  // vectors of columns side by side: chains overlap
      for (int v = 0; v < NV && v * W < cols; ++v) {
        const i32 lowest = start_ && step == 0 && s_.c.width == 16 ? -14 : -126;
        if (usual_ && span.holds(c[v])) c[v] = plain<together>(r, v, step, c[v]);
        else if (pack_details(); usual_) c[v] = fused(Usual{}, r, v, step, lowest, c[v]);
        else c[v] = fused(Any{quads_, words_, per_step_}, r, v, step, lowest, c[v]);
      }
  }

  // How a step divides: four groups of 16 in the catalogue, known to the compiler.
  struct Usual { static constexpr i64 quads = 4, words = 1, per_step = 4; };
  struct Any { i64 quads, words, per_step; };

  template <class Shape> BITMMA_INLINE vi product(Shape shape, i64 r, i64 g, int v) const {
    return dot(shape, &a_.quad[size_t(r * (n_ / 4) + g * shape.quads)], &b_.quad[size_t(g * shape.quads * columns + v * W)],
               correction_[size_t(r * groups_ + g)]);
  }

  // Terms are multiples of 2^lowest, with exponents up to `most` (a group that is zero does not raise
  // e_max above: e_zero is far below). Nothing is cut off them if e_max - F <= lowest, nor off c, of 24
  // bits, if e_max <= e_c - 23 + F; and their sum, below 2^(e_max + 14), is exact in float64. A term is at most 16
  // products of 36 times the largest significands of scales times 2^most: as many as stay below 2^24 of their last
  // places, 2^lowest, are exact in float32.
  Span plain_span(i64 r) const {
    const i32 low = panel_low_, high = panel_high_;
    const i32 row_low = a_.low[size_t(r)], row_high = a_.high[size_t(r)];
    const i32 most = high + row_high, lowest = low + row_low - 2 - 2 * (s_.block ? s_.scale.mantissa_bits : 0);
    const i32 reach = std::min(s_.F, 36);
    const bool moderate_scales = std::min(low, row_low) >= -moderate && std::max(high, row_high) <= moderate;
    if (!moderate_scales || most - lowest > reach || e_zero_ > lowest - 40 || s_.F < 23 || (start_ && s_.c.width == 16))
      return {0, 0, 1};
    const double largest = std::ldexp(16 * 36 * largest_scales_, most - lowest);
    return {(most - s_.F + 23 + 127) << 23, (lowest + reach + 127) << 23, 4 * largest <= 0x1p24 ? 4 : 2 * largest <= 0x1p24 ? 2 : 1};
  }
  template <int together> BITMMA_INLINE vf plain(i64 r, int v, i64 step, vf c) const {
    vf part[4];
    unroll<4>([&](auto u) __attribute__((always_inline)) {
      const i64 g = step * 4 + u;
      vf weight = load<vf>(&b_.weight[size_t(g * columns + v * W)]) * (a_.weight[size_t(r * groups_ + g)] * 0.25f);
      part[u] = to_float(product(Usual{}, r, g, v)) * weight;  // an integer below 2^13 times 8 bits: exact
    });
    if (together >= 2) part[0] += part[1], part[2] += part[3];
    vf d;
    if constexpr (together == 4) {
      d = c + (part[0] + part[2]);
    } else {  // c last: the next step waits for nothing else
      vd sum[2];
      for (int h = 0; h < 2; ++h) {
        sum[h] = to_double(half(part[0], h)) + to_double(half(part[2], h));
        if (together == 1) sum[h] += to_double(half(part[1], h)) + to_double(half(part[3], h));
        sum[h] += to_double(half(c, h));
      }
      d = join(to_float(sum[0]), to_float(sum[1]));
    }
    return bits<vf>(bits<vi>(d) & mask_);
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
  double largest_scales_;  // of two significands
  bool usual_, start_ = true;
  i64 chunk_, n_ = 0, groups_ = 0;
  vu seen_{};  // all bits of B's codes
  std::vector<i64> pos_, block_, word_;  // block_: -1 where there is no scale
  bool contiguous_ = false, detailed_ = false, any_nan_ = false;
  Lines a_, b_;
  CodeLines<u8, columns> lines_, scale_lines_;
  CodeLines<u32, columns> quad_lines_;
  Array<u32> codes_;
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
