// The exact evaluator over whole matrices: operands are decoded once a block of rows and columns.
#pragma once
#include <algorithm>
#include <vector>

#include "general.hpp"
#include "promote.hpp"

namespace bitmma::BITMMA_ISA {

// Moves a kernel's job, in place, to the next of the batch; false at the end.
struct Again {
  Batch& batch;
  Job& job;
  bool turned;  // the job is the batch's transposed
  bool operator()() const;
};

// Codes narrower than a byte lie in its low bits. Those of A and B are looked at, whether the bits above are
// 0, before a product reads them; but B's where its kernel does so on the way: what it costs to read B is all
// that a product with few rows costs.
template <class V> BITMMA_INLINE u8 joined(V x) {
  u8 all = 0;
  for (size_t i = 0; i < sizeof x; ++i) all |= x[i];
  return all;
}
inline void tell_beyond(const Job& job, const Format& f, vb seen) {
  if (job.beyond && f.width < 8 && joined(seen) >> f.width) *job.beyond = true;
}
inline void look_at(const Job& job, const Mat& m, const Format& f, i64 rows, i64 cols) {
  if (!job.beyond || f.width >= 8) return;
  if (std::abs(m.row) < std::abs(m.col)) return look_at(job, m.transposed(), f, cols, rows);  // along memory
  if (m.col == 1 && m.row == cols) cols *= rows, rows = 1;
  vb seen{};
  for (i64 i = 0; i < rows; ++i) {
    i64 j = 0;
    if (m.col == 1)
      for (; j + i64(sizeof seen) <= cols; j += i64(sizeof seen)) seen |= load<vb>(m.at(i, j));
    for (; j < cols; ++j) seen[0] |= *m.at(i, j);
  }
  tell_beyond(job, f, seen);
}
inline void look_at_codes(const Job& job, bool columns_too) {
  look_at(job, job.a, job.spec->a, job.M, job.K);
  if (columns_too) look_at(job, job.b, job.spec->b, job.K, job.N);
}

// Runs a kernel's walk, made once, over every job of the batch.
template <class W, class... Args> void each(Again again, const Job& job, Args... args) {
  W walk(job, args...);
  bool columns_too = true;
  if constexpr (requires { walk.looks_at_columns(); }) columns_too = !walk.looks_at_columns();
  do look_at_codes(job, columns_too), walk.run();
  while (again());
}

// Decoded operands of a block, K in chunks so that memory stays flat; c travels through D.
class ExactBlock {
 public:
  explicit ExactBlock(const Job& job)
      : job_(job), s_(*job.spec), layout_(s_, job.K), eval_(s_), general_(s_),
        is_general_(s_.family >= Family::fdpa) {
    per_group_ = s_.group / s_.scale_every();
    // Whole instructions, where their steps are not a chain.
    const i64 unit = s_.open.pairwise ? layout_.padded_step : s_.group;
    chunk_ = std::max<i64>(1, 4096 / unit) * unit;
  }

  void run() {
    const i64 rows = std::clamp<i64>(64 * 4096 / chunk_, 1, 64), cols = rows;
    for (i64 p0 = 0; p0 < layout_.total; p0 += chunk_) {
      i64 p1 = std::min(layout_.total, p0 + chunk_);
      for (i64 i0 = 0; i0 < job_.M; i0 += rows) {
        i64 i1 = std::min(job_.M, i0 + rows);
        decode_lines(job_.a, s_.a, job_.scale_a, i0, i1, p0, p1, a_, sa_);
        for (i64 j0 = 0; j0 < job_.N; j0 += cols) {
          i64 j1 = std::min(job_.N, j0 + cols);
          decode_lines(job_.b.transposed(), s_.b, job_.scale_b.transposed(), j0, j1, p0, p1, b_, sb_);
          for (i64 i = i0; i < i1 && !stopped(job_); ++i)
            for (i64 j = j0; j < j1; ++j) one(i, j, i - i0, j - j0, p0, p1);
          if (!advance(job_, {i0, i1 - i0, j0, j1 - j0}, p1 - p0, p1 == layout_.total)) return;
        }
      }
    }
  }

  // One output over the positions [p0, p1): what a vector kernel calls for what it cannot hold.
  // c is what has come so far (job.c's code if p0 is 0, else D's).
  u64 redo(i64 i, i64 j, i64 p0, i64 p1, u64 c) {
    decode_lines(job_.a, s_.a, job_.scale_a, i, i + 1, p0, p1, a_, sa_);
    decode_lines(job_.b.transposed(), s_.b, job_.scale_b.transposed(), j, j + 1, p0, p1, b_, sb_);
    return value(0, 0, p0, p1, c);
  }

 private:
  void one(i64 i, i64 j, i64 row, i64 col, i64 p0, i64 p1) {
    u64 c = 0;
    if (p0) c = load_code(job_.d.at(i, j), s_.d.bytes());
    else if (job_.c.data) c = load_code(job_.c.at(i, j), s_.c.bytes());
    store_code(job_.d.at(i, j), s_.d.bytes(), value(row, col, p0, p1, c));
  }

  u64 value(i64 row, i64 col, i64 p0, i64 p1, u64 c) {
    i64 n = p1 - p0, groups = n / s_.group;
    const Format& f = p0 ? s_.d : s_.c;
    u64 code = 0;
    auto chain = [&](auto& evaluator) {
      evaluator.chain(&a_[size_t(row * n)], &b_[size_t(col * n)], groups, exact::decode(f, c), code,
                      sa_.empty() ? nullptr : &sa_[size_t(row * groups * per_group_)],
                      sb_.empty() ? nullptr : &sb_[size_t(col * groups * per_group_)], p0 / s_.group,
                      layout_.padded_step / s_.group);
    };
    is_general_ ? chain(general_) : chain(eval_);
    return code;
  }

  void decode_lines(const Mat& m, const Format& f, const Mat& scales, i64 i0, i64 i1, i64 p0, i64 p1,
                    std::vector<exact::Number>& out, std::vector<exact::Number>& out_scales) {
    i64 n = p1 - p0;
    if (p0 != pos_start_ || i64(pos_.size()) != n) layout_.positions(p0, p1, pos_), pos_start_ = p0;
    out.resize(size_t((i1 - i0) * n));
    exact::Number* x = out.data();
    exact::Number none = exact::decode(f, 0);
    none.kind = exact::zero;
    for (i64 i = i0; i < i1; ++i)
      for (i64 k : pos_) {
        *x++ = k < 0 ? none : exact::decode(f, load_code(m.at(i, k), f.bytes()));
      }
    if (!scales.data) return;
    i64 every = s_.scale_every(), blocks = (job_.K + s_.block - 1) / s_.block;
    out_scales.resize(size_t((i1 - i0) * (n / every)));
    x = out_scales.data();
    for (i64 i = i0; i < i1; ++i)
      for (i64 p = p0; p < p1; p += every) {
        i64 block = layout_.scale_block(p, s_.block);
        // Where K is filled up there is no scale: any number does, the products are zero.
        exact::Number one{1, 0, 0, exact::finite, 0};
        *x++ = block < blocks
                   ? exact::decode(s_.scale, load_code(scales.at(i, block), s_.scale.bytes()))
                   : one;
      }
  }

  const Job& job_;
  const Spec& s_;
  Layout layout_;
  exact::Evaluator eval_;
  exact::General general_;
  bool is_general_;
  i64 per_group_, chunk_, pos_start_ = -1;
  std::vector<i64> pos_;
  std::vector<exact::Number> a_, b_, sa_, sb_;
};

}  // namespace bitmma::BITMMA_ISA
