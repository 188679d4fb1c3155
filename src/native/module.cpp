// The Python face of the engine: checks that shapes and memory agree, releases the GIL, runs.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <optional>
#include <stdexcept>
#include <string>

#include "kernels.hpp"

namespace nb = nanobind;
using namespace bitmma;

namespace {

using Array = nb::ndarray<nb::ro, nb::device::cpu>;
using Output = nb::ndarray<nb::device::cpu>;

struct Isa {
  const char* name;
  Run *run, *run_exact;
  HasKernel* has_kernel;
  bool available;
};

const std::array<Isa, 3>& isas() {
  static const std::array<Isa, 3> table = {{
      {"plain", plain::run, plain::run_exact, plain::has_kernel, true},
#ifdef BITMMA_HAVE_AVX2
      {"avx2", avx2::run, avx2::run_exact, avx2::has_kernel,
       __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c")},
#else
      {"avx2", nullptr, nullptr, nullptr, false},
#endif
#ifdef BITMMA_HAVE_AVX512
      {"avx512", avx512::run, avx512::run_exact, avx512::has_kernel,
       __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")},
#else
      {"avx512", nullptr, nullptr, nullptr, false},
#endif
  }};
  return table;
}

const Isa& best_isa() {
  const Isa* best = &isas()[0];
  for (const Isa& x : isas())
    if (x.available) best = &x;
  return *best;
}

const Isa& isa_named(const std::string& name) {
  if (name.empty()) return best_isa();
  for (const Isa& x : isas())
    if (x.available && x.name == name) return x;
  throw std::invalid_argument("no instruction set '" + name + "' on this machine");
}

// The spec comes as a flat array of int64; bitmma.engine.cpu writes it in this order.
class Reader {
 public:
  Reader(const i64* p, size_t n) : p_(p), n_(n) {}
  int next(i64 low, i64 high, const char* what) {
    if (at_ >= n_) throw std::invalid_argument("spec is too short");
    i64 x = p_[at_++];
    if (x < low || x > high)
      throw std::invalid_argument(std::string("spec: ") + what + " out of range");
    return int(x);
  }
  bool done() const { return at_ == n_; }

 private:
  const i64* p_;
  size_t n_, at_ = 0;
};

Format read_format(Reader& r) {
  Format f;
  f.width = r.next(1, 64, "width");
  f.exponent_bits = r.next(1, 11, "exponent_bits");
  f.mantissa_bits = r.next(0, 52, "mantissa_bits");
  f.bias = r.next(0, 1 << f.exponent_bits, "bias");
  f.specials = Specials(r.next(0, 4, "specials"));
  f.has_sign = r.next(0, 1, "has_sign");
  f.dropped_bits = r.next(0, 63, "dropped_bits");
  // Only scales have no sign, and theirs may be a bit that is ignored.
  int fields = f.has_sign + f.exponent_bits + f.mantissa_bits + f.dropped_bits;
  bool ok = f.has_sign ? fields == f.width
                       : f.width == 8 && (fields == 8 || (fields == 7 && f.dropped_bits == 0));
  if (!ok) throw std::invalid_argument("spec: a format's fields do not make its width");
  return f;
}

bool same(const Format& f, const Format& g) {
  return f.width == g.width && f.exponent_bits == g.exponent_bits;
}
// Kernels and the exact evaluator write results of d's bytes: of IEEE's formats and bf16.
bool is_result(const Format& f) {
  auto is = [&](int width, int exponent_bits) {
    return f.width == width && f.exponent_bits == exponent_bits;
  };
  return f.specials == Specials::ieee && f.dropped_bits == 0 &&
         (is(64, 11) || is(32, 8) || is(16, 5) || is(16, 8));
}

Rho read_rho(Reader& r) {
  Rho rho{};
  rho.present = r.next(0, 1, "rho");
  if (!rho.present) return rho;
  rho.mode = Mode(r.next(0, 5, "mode"));
  rho.kept = r.next(1, 52, "mantissa_bits");
  rho.overflow = Overflow(r.next(0, 2, "overflow"));
  rho.format = read_format(r);
  if (!is_result(rho.format) || rho.kept > rho.format.mantissa_bits)
    throw std::invalid_argument("spec: a conversion's fields do not fit together");
  return rho;
}

Open read_open(Reader& r, int products) {
  Open o{};
  for (int* F : {&o.F, &o.F_c, &o.F_groups, &o.F2, &o.F_sum}) *F = r.next(-1, 65, "F");
  for (Mode* cut : {&o.cut, &o.cut_c, &o.cut_groups, &o.cut2, &o.cut_sum})
    *cut = Mode(r.next(0, 5, "cut"));
  o.late = r.next(0, 1, "late"), o.renormalise = r.next(0, 1, "renormalise");
  o.groups = r.next(1, 4096, "groups"), o.pairwise = r.next(0, 1, "pairwise");
  o.has_e_zero = r.next(0, 1, "has_e_zero");
  o.has_e_sum = r.next(0, 1, "has_e_sum"), o.e_sum = r.next(-200000, 2000, "e_sum");
  o.drop_c = r.next(-1, 10000, "drop_c");
  o.has_product_overflow = r.next(0, 1, "has_product_overflow");
  o.product_overflow = r.next(-10000, 10000, "product_overflow");
  for (Flush* flush : {&o.flush_in, &o.flush_c, &o.flush_out, &o.flush_last}) *flush = Flush(r.next(0, 2, "flush"));
  o.zero = ZeroRule(r.next(0, 3, "zero"));
  o.rho = read_rho(r), o.products = read_rho(r), o.out = read_rho(r), o.rho2 = read_rho(r);
  // Each node's children come before it: products, c, other nodes.
  const int nodes = r.next(0, 1 << 15, "nodes");
  for (int j = 0; j < nodes; ++j) {
    o.second.push_back(u8(r.next(0, o.rho2.present, "second")));
    const int children = r.next(1, 1 << 15, "children");
    o.tree.push_back(children);
    for (int i = 0; i < children; ++i) o.tree.push_back(r.next(0, products + j, "child"));
  }
  return o;
}

Spec read_spec(const i64* p, size_t n) {
  Reader r(p, n);
  Spec s{};
  s.family = Family(r.next(0, 10, "family"));
  s.L = r.next(1, 4096, "L");
  s.F = r.next(0, 64, "F");
  s.F2 = r.next(0, 64, "F2");
  s.G = r.next(0, 4096, "G");
  s.P = r.next(0, 4, "P");
  s.e_zero = r.next(-200000, 2000, "e_zero");
  s.mode = Mode(r.next(0, 5, "mode"));
  s.mantissa_bits = r.next(1, 52, "mantissa_bits");
  s.group = r.next(1, 4096, "group");
  s.period = r.next(0, 64, "period");
  s.parts = r.next(0, 64, "parts");
  for (int i = 0; i < s.period; ++i) s.part_of[i] = r.next(0, s.parts - 1, "part");
  s.nan_ones = r.next(0, 1, "nan_ones");
  s.overflow = Overflow(r.next(0, 2, "overflow"));
  s.step = r.next(1, i64(1) << 30, "step");
  s.block = r.next(0, i64(1) << 30, "block");
  s.a = read_format(r), s.b = read_format(r), s.c = read_format(r), s.d = read_format(r);
  if (s.block) s.scale = read_format(r);
  if (s.family >= Family::fdpa) s.open = read_open(r, s.group);
  if (!r.done()) throw std::invalid_argument("spec is too long");
  bool ok = is_result(s.d) && s.mantissa_bits <= s.d.mantissa_bits;
  switch (s.family) {
    case Family::fma:
      ok &= s.group == 1 && s.d.width >= 32 && s.mode == Mode::rne &&
            s.mantissa_bits == s.d.mantissa_bits;
      break;
    case Family::ftz:
      ok &= (s.P == 2 || s.P == 4) && s.group == s.P && s.d.width == 32 && s.d.mantissa_bits == 23;
      break;
    case Family::gst:
      // Products of a group lie in one int128: at most e5m2's exponents.
      ok &= s.G > 0 && s.L % s.G == 0 && s.group == s.L && s.a.width <= 8 && s.b.width <= 8 &&
            s.a.exponent_bits <= 5 && s.b.exponent_bits <= 5;
      break;
    case Family::lowered: ok &= s.period > 0 && s.parts > 0 && s.group % s.period == 0; break;
    case Family::fdpa:
      // A pairwise instruction is evaluated as a whole.
      ok &= s.group == s.L && s.open.rho.present && same(s.open.rho.format, s.d) &&
            (!s.open.pairwise || s.step <= 1 << 20);
      break;
    case Family::sum_tree: {
      const Open& o = s.open;
      ok &= s.group == s.step && o.rho.present && !o.tree.empty() && !s.block && !o.pairwise;
      if (ok) ok = same((o.out.present ? o.out : o.second.back() ? o.rho2 : o.rho).format, s.d);
      break;
    }
    default: ok &= s.group == s.L;
  }
  const bool cuts = s.family >= Family::t && s.family <= Family::lowered;
  if (cuts) ok &= s.F >= 1;
  if (!ok) throw std::invalid_argument("spec: the fields do not fit together");
  return s;
}

// One operand with leading dimensions, walked batch item by batch item.
struct Walker {
  Mat mat;
  const i64* stride = nullptr;  // leading strides, in elements
  i64 size = 0;                 // bytes of an element
  u8* base = nullptr;
};

std::array<Mat*, 8> mats_of(Job& job) {
  Promotion& p = job.promotion;
  return {&job.a, &job.b, &job.c, &job.d, &job.scale_a, &job.scale_b, &p.scale_a, &p.scale_b};
}

template <class A>
Walker walker(const A& x, const char* name, size_t ndim, const i64* lead, i64 rows, i64 cols, int bytes) {
  auto fail = [&](const char* why) {
    throw std::invalid_argument(std::string(name) + " " + why);
  };
  if (x.ndim() != ndim) fail("has another number of dimensions");
  if (x.dtype().lanes != 1 || x.dtype().bits != bytes * 8 ||
      x.dtype().code != u8(nb::dlpack::dtype_code::UInt))
    fail("is not an array of unsigned codes of its format");
  for (size_t i = 0; i + 2 < ndim; ++i)
    if (i64(x.shape(i)) != lead[i]) fail("has other leading dimensions");
  if (i64(x.shape(ndim - 2)) != rows || i64(x.shape(ndim - 1)) != cols) fail("has another shape");
  Walker w;
  w.base = static_cast<u8*>(const_cast<void*>(static_cast<const void*>(x.data())));
  if (reinterpret_cast<std::uintptr_t>(w.base) % size_t(bytes)) fail("is not aligned");
  w.size = bytes;
  w.stride = x.stride_ptr();
  w.mat = {w.base, x.stride(ndim - 2) * bytes, x.stride(ndim - 1) * bytes};
  return w;
}

using Watched = nb::ndarray<i64, nb::shape<2>, nb::c_contig, nb::device::cpu>;

void mma(nb::ndarray<const i64, nb::ndim<1>, nb::c_contig, nb::device::cpu> spec_array, Array a,
         Array b, std::optional<Array> c, Output d, std::optional<Array> scale_a,
         std::optional<Array> scale_b, const std::string& isa_name, bool exact, i64 promote,
         bool promote_fused, std::optional<Array> promote_scale_a,
         std::optional<Array> promote_scale_b, std::optional<Watched> watch) {
  Spec s = read_spec(spec_array.data(), spec_array.shape(0));
  const Isa& isa = isa_named(isa_name);
  size_t ndim = d.ndim();
  if (ndim < 2 || ndim > 32) throw std::invalid_argument("d must have 2 to 32 dimensions");
  if (a.ndim() != ndim) throw std::invalid_argument("a has another number of dimensions");
  std::array<i64, 32> lead{};
  i64 batch = 1;
  for (size_t i = 0; i + 2 < ndim; ++i) batch *= lead[i] = i64(d.shape(i));
  Job job{};
  job.spec = &s;
  job.M = i64(d.shape(ndim - 2)), job.N = i64(d.shape(ndim - 1)), job.K = i64(a.shape(ndim - 1));
  if (s.block && !(scale_a && scale_b)) throw std::invalid_argument("scales are missing");
  if (!s.block && (scale_a || scale_b)) throw std::invalid_argument("scales are superfluous");
  if (promote < 0 || promote % s.step || (s.block && promote % s.block))
    throw std::invalid_argument("promote is no multiple of the step and the block");
  if ((promote_scale_a || promote_scale_b) && (!promote || s.d.width == 64))
    throw std::invalid_argument("promote_scale_a or promote_scale_b is superfluous");
  if (batch == 0 || job.M == 0 || job.N == 0) return;
  // Repeated elements can claim any length; beyond this, filled-up positions could overflow.
  if (job.K > i64(1) << 47) throw std::invalid_argument("a has too many products");
  i64 blocks = s.block ? (job.K + s.block - 1) / s.block : 0;
  i64 parts = promote ? job.K / promote + (job.K % promote != 0) : 0;
  const int single = 4, sum = std::max(single, s.d.bytes());  // bytes of promoted numbers
  job.promotion.every = promote, job.promotion.fused = promote_fused;
  if (watch) job.watch = reinterpret_cast<Watch*>(watch->data());

  std::array<Walker, 8> all{};
  all[0] = walker(a, "a", ndim, lead.data(), job.M, job.K, s.a.bytes());
  all[1] = walker(b, "b", ndim, lead.data(), job.K, job.N, s.b.bytes());
  if (c) all[2] = walker(*c, "c", ndim, lead.data(), job.M, job.N, promote ? sum : s.c.bytes());
  all[3] = walker(d, "d", ndim, lead.data(), job.M, job.N, promote ? sum : s.d.bytes());
  if (scale_a) all[4] = walker(*scale_a, "scale_a", ndim, lead.data(), job.M, blocks, s.scale.bytes());
  if (scale_b) all[5] = walker(*scale_b, "scale_b", ndim, lead.data(), blocks, job.N, s.scale.bytes());
  if (promote_scale_a) all[6] = walker(*promote_scale_a, "promote_scale_a", ndim, lead.data(), job.M, parts, single);
  if (promote_scale_b) all[7] = walker(*promote_scale_b, "promote_scale_b", ndim, lead.data(), parts, job.N, single);
  for (size_t o = 0; o < all.size(); ++o) *mats_of(job)[o] = all[o].mat;

  // Walks the leading dimensions, the last fastest.
  struct Position {
    std::array<Walker, 8>& all;
    std::array<i64, 32>& lead;
    size_t dims;
    std::array<i64, 32> index{};
  } position{all, lead, ndim - 2};
  Batch items{job, [](Batch& b) {
    Position& at = *static_cast<Position*>(b.state);
    size_t i = at.dims;
    while (i-- > 0) {
      if (++at.index[i] < at.lead[i]) break;
      at.index[i] = 0;
      if (i == 0) return false;
    }
    if (at.dims == 0) return false;
    const auto mats = mats_of(b.job);
    for (size_t o = 0; o < mats.size(); ++o) {
      const Walker& w = at.all[o];
      if (!w.base) continue;
      i64 offset = 0;
      for (size_t j = 0; j < at.dims; ++j) offset += at.index[j] * w.stride[j];
      mats[o]->data = w.base + offset * w.size;
    }
    return true;
  }, &position};
  nb::gil_scoped_release release;
  (exact ? isa.run_exact : isa.run)(items);
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Executes arithmetic models on arrays of raw codes. Private: use bitmma.engine.";
  m.def("mma", &mma, nb::arg("spec"), nb::arg("a"), nb::arg("b"), nb::arg("c").none(), nb::arg("d"),
        nb::arg("scale_a").none(), nb::arg("scale_b").none(), nb::arg("isa") = "",
        nb::arg("exact") = false, nb::arg("promote") = 0, nb::arg("promote_fused") = true,
        nb::arg("promote_scale_a").none() = nb::none(), nb::arg("promote_scale_b").none() = nb::none(),
        nb::arg("watch").none() = nb::none(),
        "D = A B + C into d (..., M, N); all arrays have the same leading dimensions.");
  m.def("has_kernel",
        [](nb::ndarray<const i64, nb::ndim<1>, nb::c_contig, nb::device::cpu> spec,
           const std::string& isa) {
          return isa_named(isa).has_kernel(read_spec(spec.data(), spec.shape(0)));
        },
        nb::arg("spec"), nb::arg("isa") = "", "Whether a vector kernel serves this model.");
  m.def("in_default_environment", [](nb::callable f) {
    // A caller may have set flush-to-zero or another rounding mode: NumPy's arithmetic would obey.
#if defined(__x86_64__) || defined(_M_X64)
    struct Restore {
      unsigned saved = __builtin_ia32_stmxcsr();
      Restore() { __builtin_ia32_ldmxcsr(0x1F80); }
      ~Restore() { __builtin_ia32_ldmxcsr(saved); }
    } restore;
#elif defined(__aarch64__)
    struct Restore {
      u64 saved;
      Restore() {
        asm volatile("mrs %0, fpcr" : "=r"(saved));
        asm volatile("msr fpcr, %0" ::"r"(u64(0)));
      }
      ~Restore() { asm volatile("msr fpcr, %0" ::"r"(saved)); }
    } restore;
#endif
    return f();
  }, nb::arg("f"), "f() with the floating-point environment of a new thread.");
  m.def("isas", [] {
    nb::list names;
    for (const Isa& x : isas())
      if (x.available) names.append(x.name);
    return names;
  }, "The instruction sets usable here, the best last.");
}
