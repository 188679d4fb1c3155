// Built once per instruction set: the choice of a kernel for a model, and the exact evaluator.
#ifndef BITMMA_ISA
#error "BITMMA_ISA must name the instruction set: plain, avx2 or avx512"
#endif
#include "environment.hpp"
#include "kernels.hpp"
#include "rows.hpp"
#include "truncated.hpp"

namespace bitmma::BITMMA_ISA {

extern const int lanes = W;

bool has_kernel(const Spec& s) {
  switch (s.family) {
    case Family::t:
    case Family::st:
    case Family::lowered: return truncated_holds(s);
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
    default: return;
  }
}

}  // namespace

void run(const Job& job) {
  if (!has_kernel(*job.spec)) return run_exact(job);
  // Outputs lie side by side in a vector along N. The models treat A and B alike, so a product with
  // few columns is computed as its transpose.
  if (job.N < columns && job.M > job.N) {
    Spec s = *job.spec;
    std::swap(s.a, s.b);
    Job t{&s, job.N, job.M, job.K, job.b.transposed(), job.a.transposed(), job.c.transposed(),
          job.d.transposed(), job.scale_b.transposed(), job.scale_a.transposed()};
    Environment environment(Rounding::toward_zero);
    return run_kernel(t);
  }
  Environment environment(Rounding::toward_zero);
  run_kernel(job);
}

}  // namespace bitmma::BITMMA_ISA
