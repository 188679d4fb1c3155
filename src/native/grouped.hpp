// GST-FDPA on e2m1 operands: section 6 of the models. A dot product of a group is an integer: twice
// an e2m1 number is one of 0, 1, 2, 3, 4, 6, 8, 12 with a sign, so products are integers up to 144 in
// units of 1/4. The fused step works on one number a group, in float64.
#pragma once
#include "fused.hpp"

namespace bitmma::BITMMA_ISA {

class Grouped {
 public:
  explicit Grouped(const Job& job)
      : job_(job), s_(*job.spec), layout_(s_, job.K), quads_(s_.G / 4),
        per_step_(s_.L / s_.G), e_zero_(std::max(s_.e_zero, -900)),
        mask_(i32(~0u << (23 - std::min(s_.mantissa_bits, 23)))) {
    i64 unit = layout_.padded_step;
    chunk_ = std::max<i64>(1, 512 / unit) * unit;
    if (unit > 4096) chunk_ = s_.L;
  }

  void run() {
    for (i64 p0 = 0; p0 < layout_.total; p0 += chunk_) {
      p0_ = p0, n_ = std::min(layout_.total, p0 + chunk_) - p0;
      groups_ = n_ / s_.G;
      for (i64 i0 = 0; i0 < job_.M; i0 += row_block) {
        i64 rows = std::min(row_block, job_.M - i0);
        pack(job_.a, job_.scale_a, i0, rows, a_);
        for (i64 j0 = 0; j0 < job_.N; j0 += columns) {
          i64 cols = std::min<i64>(columns, job_.N - j0);
          pack(job_.b.transposed(), job_.scale_b.transposed(), j0, cols, b_);
          interleave(cols);
          for (i64 r = 0; r < rows; ++r) row(i0 + r, r, j0, cols);
        }
      }
    }
  }

 private:
  static constexpr i64 row_block = 64;

  // Lines of one side: numbers doubled as bytes, a bit for each non-zero, scales by group.
  struct Lines {
    std::vector<signed char> x;   // [line][n]
    std::vector<u32> nonzero;     // [line][group][ceil(G/32)]
    std::vector<i32> exponent;    // [line][group]
    std::vector<float> factor;    // [line][group]: the scale's significand, 0 for a zero scale
    std::vector<u8> nan;          // [line]
  };

  void pack(const Mat& m, const Mat& scales, i64 l0, i64 lines, Lines& out) {
    static const signed char doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const i64 words = words_per_group();
    out.x.assign(size_t(lines * n_), 0);
    out.nonzero.assign(size_t(lines * groups_ * words), 0);
    out.exponent.assign(size_t(lines * groups_), 0), out.factor.assign(size_t(lines * groups_), 1.0f);
    out.nan.assign(size_t(lines), 0);
    for (i64 l = 0; l < lines; ++l) {
      for (i64 p = 0; p < n_; ++p) {
        i64 k = layout_.position(p0_ + p);
        signed char x = k < 0 ? 0 : doubled[*m.at(l0 + l, k) & 15];
        out.x[size_t(l * n_ + p)] = x;
        i64 g = p / s_.G, bit = p % s_.G;
        out.nonzero[size_t((l * groups_ + g) * words + bit / 32)] |= u32(x != 0) << bit % 32;
      }
      if (!scales.data) continue;
      i64 blocks = (job_.K + s_.block - 1) / s_.block;
      for (i64 g = 0; g < groups_; ++g) {
        i64 block = layout_.scale_block(p0_ + g * s_.G, s_.block);
        if (block >= blocks) continue;
        exact::Number y = exact::decode(s_.scale, load_code(scales.at(l0 + l, block), 1));
        out.nan[size_t(l)] |= y.kind == exact::nan;
        out.exponent[size_t(l * groups_ + g)] = y.e;
        out.factor[size_t(l * groups_ + g)] = float(std::ldexp(double(y.significand), -s_.scale.mantissa_bits));
      }
    }
  }
  i64 words_per_group() const { return (s_.G + 31) / 32; }

  // The panel: four consecutive k of a column in one int32 lane, and per group rows of the rest.
  void interleave(i64 cols) {
    panel_.assign(size_t(n_ / 4 * columns), 0);
    correction_.assign(size_t(groups_ * columns), 0);
    const i64 words = words_per_group();
    nonzero_.assign(size_t(groups_ * words * columns), 0);
    exponent_.assign(size_t(groups_ * columns), 0), factor_.assign(size_t(groups_ * columns), 0.0f);
    for (i64 j = 0; j < cols; ++j)
      for (i64 q = 0; q < n_ / 4; ++q) {
        u32 w;
        std::memcpy(&w, &b_.x[size_t(j * n_ + 4 * q)], 4);
        panel_[size_t(q * columns + j)] = i32(w);
        for (int t = 0; t < 4; ++t)
          correction_[size_t(4 * q / s_.G * columns + j)] += bias * b_.x[size_t(j * n_ + 4 * q + t)];
      }
    for (i64 g = 0; g < groups_; ++g)
      for (i64 j = 0; j < cols; ++j) {
        for (i64 w = 0; w < words; ++w)
          nonzero_[size_t((g * words + w) * columns + j)] = b_.nonzero[size_t((j * groups_ + g) * words + w)];
        exponent_[size_t(g * columns + j)] = b_.exponent[size_t(j * groups_ + g)];
        factor_[size_t(g * columns + j)] = b_.factor[size_t(j * groups_ + g)];
      }
  }

  // Integer dot products of four signed bytes a lane. x86 multiplies unsigned by signed bytes: a goes
  // in as a + 12, and 12 times the sum of b comes off again.
  static constexpr int bias = 12;
  BITMMA_INLINE static vi dot4(u32 a_biased, vi b) {
#if defined(__AVX512BW__)
    __m512i x = _mm512_maddubs_epi16(_mm512_set1_epi32(i32(a_biased)), (__m512i)b);
    return (vi)x;  // int16 pairs, widened by the caller
#elif defined(__AVX2__)
    return (vi)_mm256_maddubs_epi16(_mm256_set1_epi32(i32(a_biased)), (__m256i)b);
#else
    vi r;
    for (int l = 0; l < W; ++l) {
      u32 w = u32(b[l]);
      i32 low = 0, high = 0;
      for (int t = 0; t < 2; ++t) {
        low += i32(a_biased >> 8 * t & 255) * i32((signed char)(w >> 8 * t & 255));
        high += i32(a_biased >> 8 * (t + 2) & 255) * i32((signed char)(w >> 8 * (t + 2) & 255));
      }
      r[l] = i32(u32(low & 0xFFFF) | u32(high) << 16);
    }
    return r;
#endif
  }
  // int16 lane by lane; a pair is at most 2 * 24 * 12 = 576 in magnitude, so 56 quads fit.
  BITMMA_INLINE static vi add16(vi a, vi b) { return bits<vi>(vs(bits<vs>(a) + bits<vs>(b))); }
  BITMMA_INLINE static vi pair_sum(vi x) {  // the sum of the two int16 of each lane
    return ((vi)((vu)x << 16) >> 16) + (x >> 16);
  }

  void row(i64 i, i64 r, i64 j0, i64 cols) {
    alignas(64) float c[columns];
    load_c(i, j0, cols, c);
    const i64 words = words_per_group();
    const i64 steps = n_ / s_.L;
    alignas(64) double value[8][columns];
    for (i64 step = 0; step < steps; ++step) {
      vi e_max[NV];
      for (int v = 0; v < NV; ++v)
        e_max[v] = c_term(load<vf>(c + v * W), p0_ == 0 && step == 0 && s_.c.width == 16 ? -14 : -126, e_zero_).exponent;
      for (i64 u = 0; u < per_step_; ++u) {
        i64 g = step * per_step_ + u;
        vi sum[NV];
        for (int v = 0; v < NV; ++v) sum[v] = -load<vi>(&correction_[size_t(g * columns + v * W)]);
        const signed char* x = &a_.x[size_t(r * n_ + g * s_.G)];
        const i32* y = &panel_[size_t(g * quads_ * columns)];
        for (i64 q0 = 0; q0 < quads_; q0 += 32) {  // int16 accumulators hold 32 quads
          vi part[NV] = {};
          for (i64 q = q0; q < std::min(quads_, q0 + 32); ++q) {
            const u32 a = biased(x + 4 * q);
            for (int v = 0; v < NV; ++v) part[v] = add16(part[v], dot4(a, load<vi>(y + q * columns + v * W)));
          }
          for (int v = 0; v < NV; ++v) sum[v] += pair_sum(part[v]);
        }
        float fa = a_.factor[size_t(r * groups_ + g)];
        i32 ea = a_.exponent[size_t(r * groups_ + g)];
        for (int v = 0; v < NV; ++v) {
          vi any_product{};
          for (i64 w = 0; w < words; ++w)
            any_product |= load<vi>(&nonzero_[size_t((g * words + w) * columns + v * W)]) & i32(a_.nonzero[size_t((r * groups_ + g) * words + w)]);
          vf f = load<vf>(&factor_[size_t(g * columns + v * W)]) * splat(fa);
          vi empty = (vi)(any_product == 0) | (vi)(f == 0.0f);
          vi e = load<vi>(&exponent_[size_t(g * columns + v * W)]) + ea;
          e_max[v] = max(e_max[v], (empty & e_zero_) | (~empty & e));
          // p/4 * f, a multiple of 2^-8 below 2^14, exact; times 2^e later.
          alignas(64) float t[W]; alignas(64) i32 es[W];
          store(t, to_float(sum[v]) * f * 0.25f), store(es, e);
          for (int h = 0; h < 2; ++h)
            store(&value[u][v * W + h * D], to_double(load<hf>(t + h * D)) * power(to_long(load<hi>(es + h * D))));
        }
      }
      for (int v = 0; v < NV; ++v) {
        alignas(64) i32 es[W];
        store(es, max(e_max[v], splat(-900)));
        for (int h = 0; h < 2; ++h) {
          int at = v * W + h * D;
          vl e = to_long(load<hi>(es + h * D));
          vd up = power(splat64(s_.F) - e);
          vd sum = truncate(to_double(load<hf>(c + at)) * up);
          for (i64 u = 0; u < per_step_; ++u) sum += truncate(load<vd>(&value[u][at]) * up);
          sum *= power(e - splat64(s_.F));
          vd size = bits<vd>(bits<vl>(sum) & i64(0x7FFFFFFFFFFFFFFF));
          hf f = bits<hf>(bits<hi>(to_float(sum)) & i32(mask_));
          store(c + at, f + hf{});
          vl huge = (vl)(size >= 0x1p128);
          if (any(huge))
            for (int l = 0; l < D; ++l)
              if (huge[l]) c[at + l] = float(std::copysign(INFINITY, sum[l]));
        }
      }
    }
    for (i64 j = 0; j < cols; ++j)
      if (a_.nan[size_t(r)] || b_.nan[size_t(j)]) c[j] = NAN;
    store_c(i, j0, cols, c);
  }
  static u32 biased(const signed char* x) {
    u32 a = 0;
    for (int t = 0; t < 4; ++t) a |= u32(u8(x[t] + bias)) << 8 * t;
    return a;
  }

  void load_c(i64 i, i64 j0, i64 cols, float* c) const {
    const Format& f = p0_ == 0 ? s_.c : s_.d;
    const Mat& m = p0_ == 0 ? job_.c : job_.d;
    std::memset(c, 0, sizeof(float) * columns);
    if (!m.data) return;
    for (i64 j = 0; j < cols; ++j) {
      u32 code = u32(load_code(m.at(i, j0 + j), f.bytes()));
      c[j] = f.width == 16 ? half_to_float(code) : bits<float>(code);
    }
  }
  void store_c(i64 i, i64 j0, i64 cols, const float* c) const {
    for (i64 j = 0; j < cols; ++j)
      store_code(job_.d.at(i, j0 + j), 4, c[j] != c[j] ? 0x7FFFFFFFu : bits<u32>(c[j]));
  }

  const Job& job_;
  const Spec& s_;
  Layout layout_;
  i64 quads_, per_step_;
  i32 e_zero_, mask_;
  i64 chunk_, p0_ = 0, n_ = 0, groups_ = 0;
  Lines a_, b_;
  std::vector<i32> panel_, correction_, exponent_;
  std::vector<u32> nonzero_;
  std::vector<float> factor_;
};

// e2m1 operands; groups of whole quads, at most eight a step; results toward zero to f32.
// A term is below G * 36 * 4 * 2^F in its units, the sum of them and c must stay below 2^53.
inline bool grouped_holds(const Spec& s) {
  auto e2m1 = [](const Format& f) { return f.width == 4 && f.exponent_bits == 2 && f.mantissa_bits == 1; };
  return e2m1(s.a) && e2m1(s.b) && s.G % 4 == 0 && s.G <= 512 && s.L / s.G <= 8 && half_or_single(s.c) &&
         s.mode == Mode::rz && s.d.width == 32 && s.e_zero <= 900 && 
         s.F + log2_ceil(s.G * 36) + 2 + log2_ceil(s.L / s.G + 1) <= 52 &&
         (!s.block || s.scale.width == 8);
}
inline void run_grouped(const Job& job, Again again) { each<Grouped>(again, job); }

}  // namespace bitmma::BITMMA_ISA
