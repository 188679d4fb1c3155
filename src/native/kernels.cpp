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

__attribute__((noinline)) void run_exact(const Job& job) {
  Environment environment(Rounding::nearest);
  ExactBlock(job).run();
}

namespace {

// The environment must be set outside: a compiler may move arithmetic across a change of mode within
// one function, never across this call.
__attribute__((noinline)) void run_kernel(const Job& job) {
  switch (job.spec->family) {
    case Family::t:
    case Family::st:
    case Family::lowered: return run_truncated(job);
    case Family::tr:
    case Family::gtr: return run_rounded_down(job);
    case Family::fma: return run_fma(job);
    case Family::ftz: return run_ftz(job);
    case Family::e: return run_exact_sum(job);
    case Family::gst: return run_grouped(job);
    default: return;
  }
}

}  // namespace

void run(const Job& job) {
  const Family family = job.spec->family;
  if (!has_kernel(*job.spec)) return run_exact(job);
  bool to_zero = family == Family::t || family == Family::st || family == Family::lowered ||
                 family == Family::gst;
  Environment environment(to_zero ? Rounding::toward_zero : Rounding::nearest, family == Family::ftz);
  // Outputs lie side by side in a vector along N. The models treat A and B alike, so a product with
  // few columns is computed as its transpose.
  if (job.N >= columns || job.M <= job.N) return run_kernel(job);
  Spec s = *job.spec;
  std::swap(s.a, s.b);
  run_kernel({&s, job.N, job.M, job.K, job.b.transposed(), job.a.transposed(), job.c.transposed(),
              job.d.transposed(), job.scale_b.transposed(), job.scale_a.transposed()});
}

}  // namespace bitmma::BITMMA_ISA
