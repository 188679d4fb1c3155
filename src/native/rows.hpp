// The exact evaluator over whole matrices: operands are decoded once a block of rows and columns.
#pragma once
#include <algorithm>
#include <vector>

#include "exact.hpp"
#include "promote.hpp"

namespace bitmma::BITMMA_ISA {

// Moves a kernel's job, in place, to the next of the batch; false at the end.
struct Again {
  Batch& batch;
  Job& job;
  bool turned;  // the job is the batch's transposed
  bool operator()() const;
};

// Runs a kernel's walk, made once, over every job of the batch.
template <class W, class... Args> void each(Again again, const Job& job, Args... args) {
  W walk(job, args...);
  do walk.run();
  while (again());
}

// Decoded operands of a block, K in chunks so that memory stays flat; c travels through D.
class ExactBlock {
 public:
  explicit ExactBlock(const Job& job) : job_(job), s_(*job.spec), layout_(s_, job.K), eval_(s_) {
    per_group_ = s_.family == Family::gst ? s_.L / s_.G : 1;
    chunk_ = std::max<i64>(1, 4096 / s_.group) * s_.group;
  }

  void run() {
    constexpr i64 rows = 64, cols = 64;
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
    eval_.chain(&a_[size_t(row * n)], &b_[size_t(col * n)], groups, exact::decode(f, c), code,
                sa_.empty() ? nullptr : &sa_[size_t(row * groups * per_group_)],
                sb_.empty() ? nullptr : &sb_[size_t(col * groups * per_group_)], p0 / s_.group,
                layout_.padded_step / s_.group);
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
    i64 every = s_.family == Family::gst ? s_.G : s_.group, blocks = (job_.K + s_.block - 1) / s_.block;
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
  i64 per_group_, chunk_, pos_start_ = -1;
  std::vector<i64> pos_;
  std::vector<exact::Number> a_, b_, sa_, sb_;
};

}  // namespace bitmma::BITMMA_ISA
