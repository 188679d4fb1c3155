// Built once per instruction set: the choice of a kernel for a model, and the exact evaluator.
#ifndef BITMMA_ISA
#error "BITMMA_ISA must name the instruction set: plain, avx2 or avx512"
#endif
#include "environment.hpp"
#include "kernels.hpp"
#include "rows.hpp"

namespace bitmma::BITMMA_ISA {

extern const int lanes = 4;

bool has_kernel(const Spec&) { return false; }

__attribute__((noinline)) void run_exact(const Job& job) {
  Environment environment(Rounding::nearest);
  ExactBlock(job).run();
}

void run(const Job& job) { run_exact(job); }

}  // namespace bitmma::BITMMA_ISA
