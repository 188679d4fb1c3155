// Built once per instruction set: the choice of a kernel for a model, and the exact evaluator.
#ifndef BITMMA_ISA
#error "BITMMA_ISA must name the instruction set: plain, avx2 or avx512"
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

__attribute__((noinline)) void run_exact(Batch& batch) {
  Environment environment(Rounding::nearest);
  ExactBlock block(batch.job);
  do block.run();
  while (batch.next(batch));
}

namespace {

// Outputs lie side by side in a vector along N. The models treat A and B alike, so a product with few
// columns is computed as its transpose.
Job transposed(const Job& job, const Spec* spec) {
  return {spec, job.N, job.M, job.K, job.b.transposed(), job.a.transposed(), job.c.transposed(),
          job.d.transposed(), job.scale_b.transposed(), job.scale_a.transposed()};
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

}  // namespace

bool Again::operator()() const {
  if (!batch.next(batch)) return false;
  job = turned ? transposed(batch.job, job.spec) : batch.job;
  return true;
}

void run(Batch& batch) {
  const Job& given = batch.job;
  const Spec& spec = *given.spec;
  // A single dot product fills no vector: the exact evaluator is as fast.
  if (!has_kernel(spec) || given.M * given.N <= 2) return run_exact(batch);
  const Family family = spec.family;
  Environment environment(rounding(spec), family == Family::ftz);
  bool turn = given.N < columns && given.M > given.N;
  Spec s = spec;
  if (turn) std::swap(s.a, s.b);
  Job job = turn ? transposed(given, &s) : given;
  run_kernel(job, Again{batch, job, turn});
}

}  // namespace bitmma::BITMMA_ISA
