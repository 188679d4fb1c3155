// GST-FDPA on e2m1 operands: section 6 of the models. Twice an e2m1 number is one of 0, 1, 2, 3, 4, 6,
// 8, 12 with a sign, so a product is an integer up to 144 in units of 1/4 and a group's dot product is
// integer arithmetic, four products a lane. The fused step sees one number a group, in float64.
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
        pack(job_.a, job_.scale_a, i0, rows, 1, bias, a_);
        for (i64 j0 = 0; j0 < job_.N; j0 += columns) {
          i64 cols = std::min<i64>(columns, job_.N - j0);
          pack(job_.b.transposed(), job_.scale_b.transposed(), j0, cols, columns, 0, b_);
          correct();
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

  // Lines of one side: rows one after another (`side` 1) or `columns` of them side by side.
  struct Lines {
    std::vector<u32> quad;      // four doubled numbers as signed bytes; of rows, 12 more, unsigned
    std::vector<u32> nonzero;   // a bit for each product that counts; none under a zero scale
    std::vector<i32> exponent;  // of the scale
    std::vector<float> factor;  // its significand
    std::vector<u8> nan;        // whether some scale of a line is NaN
  };

  void pack(const Mat& m, const Mat& scales, i64 l0, i64 lines, i64 side, u32 plus, Lines& out) {
    static const u8 doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, 255, 254, 253, 252, 250, 248, 244};
    const i64 total = side == 1 ? lines : side;
    out.quad.assign(size_t(total * n_ / 4), 0), out.nonzero.assign(size_t(total * groups_ * words_), 0);
    out.exponent.assign(size_t(total * groups_), 0), out.factor.assign(size_t(total * groups_), 1.0f);
    out.nan.assign(size_t(total), 0);
    const i64 blocks = s_.block ? (job_.K + s_.block - 1) / s_.block : 0;
    for (i64 l = 0; l < lines; ++l) {
      auto at = [&](i64 item, i64 items) { return size_t(side == 1 ? l * items + item : item * side + l); };
      const u8* line = m.data + (l0 + l) * m.row;
      for (i64 g = 0; g < groups_; ++g) {
        bool counts = true;
        if (scales.data && block_[size_t(g)] < blocks) {
          exact::Number y = exact::decode(s_.scale, *scales.at(l0 + l, block_[size_t(g)]));
          out.nan[size_t(l)] |= y.kind == exact::nan;
          counts = y.kind != exact::zero;
          out.exponent[at(g, groups_)] = y.e;
          out.factor[at(g, groups_)] = float(y.significand) * significand_unit();
        }
        for (i64 q = 0; q < quads_; ++q) {
          u32 w = 0, some = 0;
          for (int t = 0; t < 4; ++t) {
            i64 k = pos_[size_t(g * s_.G + 4 * q + t)];
            u32 x = k < 0 ? 0 : doubled[line[k * m.col] & 15];
            w |= ((x + plus) & 255) << 8 * t;
            some |= u32(x != 0) << t;
          }
          out.quad[at(g * quads_ + q, n_ / 4)] = w;
          if (counts) out.nonzero[at(g * words_ + q / 8, groups_ * words_)] |= some << q % 8 * 4;
        }
      }
    }
  }
  float significand_unit() const { return bits<float>(u32(127 - s_.scale.mantissa_bits) << 23); }

  void correct() {  // 12 * the sum of a group's doubled b
    correction_.assign(size_t(groups_ * columns), 0);
    for (i64 g = 0; g < groups_; ++g)
      for (i64 q = 0; q < quads_; ++q)
        for (int j = 0; j < columns; ++j) {
          u32 w = b_.quad[size_t((g * quads_ + q) * columns + j)];
          for (int t = 0; t < 4; ++t) correction_[size_t(g * columns + j)] += bias * (i32(w << (24 - 8 * t)) >> 24);
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
  BITMMA_INLINE static vi pair_sum(vi x) { return ((vi)((vu)x << 16) >> 16) + (x >> 16); }

  // The dot product of a group in units of 1/4, for one vector of columns.
  template <class Shape> BITMMA_INLINE static vi dot(Shape shape, const u32* a, const u32* b) {
    vi sum{};
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
    for (int v = 0; v < NV && v * W < cols; ++v)
      for (i64 step = 0; step < groups_ / per_step_; ++step)
{
        const i32 lowest = start_ && step == 0 && s_.c.width == 16 ? -14 : -126;
        c[v] = usual_ ? fused(Usual{}, r, v, step, lowest, c[v])
                      : fused(Any{quads_, words_, per_step_}, r, v, step, lowest, c[v]);
      }
    for (i64 j = 0; j < cols; ++j)
      if (a_.nan[size_t(r)] || b_.nan[size_t(j)]) c[j / W][j % W] = NAN;
    store_c(job_, i, j0, cols, c);
  }

  // How a step divides: four groups of 16 in the catalogue, known to the compiler.
  struct Usual { static constexpr i64 quads = 4, words = 1, per_step = 4; };
  struct Any { i64 quads, words, per_step; };

  template <class Shape> BITMMA_INLINE vf fused(Shape shape, i64 r, int v, i64 step, i32 lowest, vf c) const {
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
      vi p = dot(shape, &a_.quad[size_t(r * (n_ / 4) + g * shape.quads)], &b_.quad[size_t(g * shape.quads * columns + v * W)]) -
             load<vi>(&correction_[size_t(g * columns + v * W)]);
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
  i32 e_zero_, mask_;
  bool usual_, start_ = true;
  i64 chunk_, n_ = 0, groups_ = 0;
  std::vector<i64> pos_, block_;
  Lines a_, b_;
  std::vector<i32> correction_;
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
