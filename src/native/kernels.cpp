// Built once per instruction set: the choice of a kernel for a model, and the exact evaluator.
#ifndef BITMMA_ISA
#error "BITMMA_ISA must name the instruction set: plain, avx2, avx512 or avx512vbmi"
#endif
#include "environment.hpp"
#include "kernels.hpp"
#include "rows.hpp"
#include "truncated.hpp"
#include "rounded_down.hpp"
#include "plain_float.hpp"
#include "exact_sum.hpp"
#include "grouped.hpp"

namespace bitmma::BITMMA_ISA {

extern const int lanes = W;

bool has_kernel(const Spec& s) {
  if (s.overflow != Overflow::inf) return false;
  switch (s.family) {
    case Family::t:
    case Family::st:
    case Family::lowered: return truncated_holds(s);
    case Family::tr:
    case Family::gtr: return rounded_down_holds(s);
    case Family::fma: return fma_holds(s);
    case Family::ftz: return ftz_holds(s);
    case Family::e: return exact_sum_holds(s);
    case Family::gst: return grouped_holds(s);
    default: return false;
  }
}

namespace {

__attribute__((noinline)) void chains_exactly(Batch& batch) {
  Environment environment(Rounding::nearest);
  ExactBlock block(batch.job);
  do look_at_codes(batch.job, true), block.run();
  while (!stopped(batch.job) && batch.next(batch));
}

// The environment must be set outside: a compiler may move arithmetic across a change of mode within
// one function, never across this call.
__attribute__((noinline)) void run_kernel(const Job& job, Again again) {
  switch (job.spec->family) {
    case Family::t:
    case Family::st:
    case Family::lowered: return run_truncated(job, again);
    case Family::tr:
    case Family::gtr: return run_rounded_down(job, again);
    case Family::fma: return run_fma(job, again);
    case Family::ftz: return run_ftz(job, again);
    case Family::e: return run_exact_sum(job, again);
    case Family::gst: return run_grouped(job, again);
    default: return;  // has no kernel
  }
}

// The mode the kernels of a family convert in: see Truncated; the others round to nearest.
Rounding rounding(const Spec& s) {
  bool truncated = s.family == Family::t || s.family == Family::st || s.family == Family::lowered;
  if (s.family == Family::gst || (truncated && s.d.width == 16)) return Rounding::toward_zero;
  if (!truncated) return Rounding::nearest;
  switch (s.mode) {
    case Mode::rz: return Rounding::toward_zero;
    case Mode::rd: return Rounding::down;
    case Mode::ru: return Rounding::up;
    default: return Rounding::nearest;
  }
}

void chains(Batch& batch) {
  const Job& given = batch.job;
  const Spec& spec = *given.spec;
  // A single dot product fills no vector: the exact evaluator is as fast.
  if (!has_kernel(spec) || given.M * given.N <= 2) return chains_exactly(batch);
  const Family family = spec.family;
  Environment environment(rounding(spec), family == Family::ftz);
  // Outputs lie side by side in a vector along N: with few columns, the transpose is computed.
  bool turn = given.N < columns && given.M > given.N;
  Spec s = spec;
  if (turn) std::swap(s.a, s.b);
  Job job = turn ? given.transposed(&s) : given;
  run_kernel(job, Again{batch, job, turn});
}

}  // namespace

namespace {
// Products of a batch follow each other at equal distances: fetches the operand of the next one but this.
// Worth while for C and D, of which all is wanted at once; A and B processors fetch as fast by themselves.
void fetch(const Mat& before, const Mat& now, i64 rows, i64 cols) {
  const i64 bytes = (rows - 1) * std::abs(now.row) + (cols - 1) * std::abs(now.col);
  if (!now.data || now.data == before.data || now.row < 0 || now.col < 0 || bytes > 4096) return;
  const auto next = 2 * reinterpret_cast<std::uintptr_t>(now.data) - reinterpret_cast<std::uintptr_t>(before.data);
  for (i64 at = 0; at <= bytes; at += 64) __builtin_prefetch(reinterpret_cast<const u8*>(next) + at);
}
}  // namespace

bool Again::operator()() const {
  const Mat c = batch.job.c, d = batch.job.d;
  if (stopped(batch.job) || !batch.next(batch)) return false;
  const Job& now = batch.job;
  fetch(c, now.c, now.M, now.N), fetch(d, now.d, now.M, now.N);
  job = turned ? now.transposed(job.spec) : now;
  return true;
}

namespace {
void run_all(Batch& batch, Run& some_chains) {
  untold = 0;
  by_parts(batch, some_chains);
  tell(batch.job);
}
}  // namespace
void run(Batch& batch) { run_all(batch, chains); }
void run_exact(Batch& batch) { run_all(batch, chains_exactly); }

}  // namespace bitmma::BITMMA_ISA
