// The Python face of the engine: checks that shapes and memory agree, releases the GIL, runs.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.hpp"

namespace nb = nanobind;
using namespace bitmma;

namespace {

struct Isa {
  const char* name;
  Run *run, *run_exact;
  HasKernel* has_kernel;
  bool available;
};

#ifdef BITMMA_HAVE_X86_64
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}
#endif

// From the narrowest on: the last that the machine has is the best.
const std::vector<Isa>& isas() {
  static const std::vector<Isa> table = {
      {"plain", plain::run, plain::run_exact, plain::has_kernel, true},
#ifdef BITMMA_HAVE_X86_64
      {"avx2", avx2::run, avx2::run_exact, avx2::has_kernel, has_avx2()},
      {"avx512", avx512::run, avx512::run_exact, avx512::has_kernel, has_avx512()},
      {"avx512vbmi", avx512vbmi::run, avx512vbmi::run_exact, avx512vbmi::has_kernel,
       has_avx512() && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni")},
#endif
  };
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
  o.zero = ZeroRule(r.next(0, 3, "zero")), o.tiny = Tiny(r.next(0, 2, "tiny"));
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

// NumPy's arrays are read from their own fields: whatever goes through Python's protocols takes as long
// as a small instruction.
PyArrayObject* as_array(nb::handle x, const std::string& name) {
  if (!PyArray_Check(x.ptr())) throw nb::type_error((name + " is no NumPy array").c_str());
  return reinterpret_cast<PyArrayObject*>(x.ptr());
}
// The elements of a vector of int64.
i64* int64s(nb::handle x, const std::string& name) {
  PyArrayObject* array = as_array(x, name);
  if (!PyArray_ISSIGNED(array) || PyArray_ITEMSIZE(array) != 8 || PyArray_NDIM(array) != 1 || !PyArray_ISCARRAY_RO(array))
    throw nb::type_error((name + " is no vector of int64").c_str());
  return static_cast<i64*>(PyArray_DATA(array));
}
Spec read_spec(nb::handle x) {
  const i64* fields = int64s(x, "spec");
  return read_spec(fields, size_t(PyArray_SIZE(reinterpret_cast<PyArrayObject*>(x.ptr()))));
}

// Leading dimensions, or strides along them in bytes: copies, as threads may change what is an array's.
constexpr int most_dims = 30;  // NumPy's iterators take 32, two of them the matrix's
using Dims = std::array<npy_intp, most_dims>;
struct Lead {
  int count = 0;
  Dims size;
  void take(const npy_intp* from, int n) { count = n, std::copy(from, from + n, size.data()); }
  bool same(const npy_intp* other) const { return std::equal(other, other + count, size.data()); }
  i64 product() const {
    i64 p = 1;
    for (int i = 0; i < count; ++i) p *= size[size_t(i)];
    return p;
  }
};
// One operand with leading dimensions, walked batch item by batch item.
struct Walker {
  Mat mat;
  Dims stride;
  void take(const Mat& m, const npy_intp* from, int n) { mat = m, std::copy(from, from + n, stride.data()); }
};
using Walkers = std::array<Walker, 8>;

std::array<Mat*, 8> mats_of(Job& job) {
  Promotion& p = job.promotion;
  return {&job.a, &job.b, &job.c, &job.d, &job.scale_a, &job.scale_b, &p.scale_a, &p.scale_b};
}

// Runs the product of every index of the leading dimensions, of which the last varies fastest.
void run_all(Run* run, Job& job, const Walkers& all, const Lead& lead) {
  struct Position {
    const Walkers& all;
    const Lead& lead;
    Dims index;
  } position{all, lead, {}};
  for (size_t o = 0; o < all.size(); ++o) *mats_of(job)[o] = all[o].mat;
  Batch items{job, [](Batch& b) {
    Position& at = *static_cast<Position*>(b.state);
    int i = at.lead.count;
    while (i-- > 0) {
      if (++at.index[size_t(i)] < at.lead.size[size_t(i)]) break;
      at.index[size_t(i)] = 0;
    }
    if (i < 0) return false;
    const auto mats = mats_of(b.job);
    for (size_t o = 0; o < mats.size(); ++o) {
      const Walker& w = at.all[o];
      if (!w.mat.data) continue;
      i64 offset = 0;
      for (size_t j = 0; j < size_t(at.lead.count); ++j) offset += at.index[j] * w.stride[j];
      mats[o]->data = w.mat.data + offset;
    }
    return true;
  }, &position};
  nb::gil_scoped_release release;
  run(items);
}

bool mma(nb::handle spec, nb::handle a, nb::handle b, nb::handle c, nb::handle d, nb::handle scale_a,
         nb::handle scale_b, const std::string& isa_name, bool exact, i64 promote, bool promote_fused,
         nb::handle promote_scale_a, nb::handle promote_scale_b, nb::handle watch) {
  const Spec s = read_spec(spec);
  const Isa& isa = isa_named(isa_name);
  PyArrayObject *of_a = as_array(a, "a"), *of_d = as_array(d, "d");
  const int ndim = PyArray_NDIM(of_d), dims = ndim - 2;
  if (dims < 0 || dims > most_dims) throw std::invalid_argument("d must have 2 to 32 dimensions");
  if (PyArray_NDIM(of_a) != ndim) throw std::invalid_argument("a has another number of dimensions");
  if (!PyArray_ISWRITEABLE(of_d)) throw nb::type_error("d is read-only");
  Lead lead;
  lead.take(PyArray_DIMS(of_d), dims);
  Job job{};
  job.spec = &s;
  job.M = PyArray_DIM(of_d, dims), job.N = PyArray_DIM(of_d, dims + 1), job.K = PyArray_DIM(of_a, dims + 1);
  if (s.block && (scale_a.is_none() || scale_b.is_none())) throw std::invalid_argument("scales are missing");
  if (!s.block && !(scale_a.is_none() && scale_b.is_none())) throw std::invalid_argument("scales are superfluous");
  if (promote < 0 || promote % s.step || (s.block && promote % s.block))
    throw std::invalid_argument("promote is no multiple of the step and the block");
  if (!(promote_scale_a.is_none() && promote_scale_b.is_none()) && (!promote || s.d.width == 64))
    throw std::invalid_argument("promote_scale_a or promote_scale_b is superfluous");
  if (!watch.is_none()) {
    job.watch = reinterpret_cast<Watch*>(int64s(watch, "watch"));
    auto* of_watch = reinterpret_cast<PyArrayObject*>(watch.ptr());
    if (PyArray_SIZE(of_watch) != 2 || !PyArray_ISWRITEABLE(of_watch))
      throw nb::type_error("watch is not two numbers that can be written");
  }
  bool beyond = false;
  job.beyond = &beyond;
  if (lead.product() == 0 || job.M == 0 || job.N == 0) return true;
  // Repeated elements can claim any length; beyond this, filled-up positions could overflow.
  if (job.K > i64(1) << 47) throw std::invalid_argument("a has too many products");
  i64 blocks = s.block ? (job.K + s.block - 1) / s.block : 0;
  i64 parts = promote ? job.K / promote + (job.K % promote != 0) : 0;
  const int single = 4, sum = std::max(single, s.d.bytes());  // bytes of promoted numbers
  job.promotion.every = promote, job.promotion.fused = promote_fused;

  Walkers all;
  auto take = [&](size_t o, nb::handle given, const char* name, i64 rows, i64 cols, int bytes) {
    if (given.is_none()) return;
    auto fail = [&](const char* why) { throw std::invalid_argument(std::string(name) + " " + why); };
    PyArrayObject* x = as_array(given, name);
    if (PyArray_NDIM(x) != ndim) fail("has another number of dimensions");
    if (!PyArray_ISUNSIGNED(x) || PyArray_ITEMSIZE(x) != bytes || !PyArray_ISNOTSWAPPED(x))
      fail("is not an array of unsigned codes of its format");
    if (!lead.same(PyArray_DIMS(x))) fail("has other leading dimensions");
    if (PyArray_DIM(x, dims) != rows || PyArray_DIM(x, dims + 1) != cols) fail("has another shape");
    if (!PyArray_ISALIGNED(x)) fail("is not aligned");
    const npy_intp* stride = PyArray_STRIDES(x);
    all[o].take({static_cast<u8*>(PyArray_DATA(x)), stride[dims], stride[dims + 1]}, stride, dims);
  };
  take(0, a, "a", job.M, job.K, s.a.bytes());
  take(1, b, "b", job.K, job.N, s.b.bytes());
  take(2, c, "c", job.M, job.N, promote ? sum : s.c.bytes());
  take(3, d, "d", job.M, job.N, promote ? sum : s.d.bytes());
  take(4, scale_a, "scale_a", job.M, blocks, s.scale.bytes());
  take(5, scale_b, "scale_b", blocks, job.N, s.scale.bytes());
  take(6, promote_scale_a, "promote_scale_a", job.M, parts, single);
  take(7, promote_scale_b, "promote_scale_b", parts, job.N, single);
  run_all(exact ? isa.run_exact : isa.run, job, all, lead);
  return !beyond;
}

// Calls of one kind on NumPy's arrays as callers have them: what there is to know of the kind is known
// beforehand, and arrays that are as expected are told from a few fields. Of all others nothing is said:
// the answer is None, and it is for the caller to find out why.
class Direct {
 public:
  // `dtypes` of A, B, C, the scales (None without block scaling) and D; `outputs` of one instruction, or
  // () for dot products; `most` of them in one call.
  Direct(nb::handle spec, nb::tuple dtypes, nb::tuple outputs, i64 most, const std::string& isa_name)
      : spec_(read_spec(spec)), run_(isa_named(isa_name).run), dtypes_(dtypes), most_(most) {
    const bool vector = outputs.size() == 0;
    if (dtypes.size() != given + 1 || !(vector || outputs.size() == 2))
      throw std::invalid_argument("dtypes are six, outputs two or none");
    const Spec& s = spec_;
    const i64 m = vector ? 1 : nb::cast<i64>(outputs[0]), n = vector ? 1 : nb::cast<i64>(outputs[1]);
    const i64 k = s.step, blocks = s.block ? (k + s.block - 1) / s.block : 0, none = -1;
    if (m < 1 || n < 1) throw std::invalid_argument("there must be outputs");
    const i64 rows = vector ? none : m, cols = vector ? none : n;
    operand_ = {{{rows, k}, {k, cols}, {rows, cols}, {rows, blocks}, {blocks, cols}, {rows, cols}}};
    const std::array<const Format*, given + 1> formats = {&s.a, &s.b, &s.c, &s.scale, &s.scale, &s.d};
    for (size_t o = 0; o <= given; ++o) {
      const bool scale = o == 3 || o == 4;
      if (scale && !s.block) continue;
      if (!PyArray_DescrCheck(dtypes[o].ptr())) throw nb::type_error("dtypes are NumPy's");
      operand_[o].dtype = reinterpret_cast<PyArray_Descr*>(nb::handle(dtypes[o]).ptr());
      if (PyDataType_ELSIZE(operand_[o].dtype) != formats[o]->bytes() || PyDataType_REFCHK(operand_[o].dtype))
        throw std::invalid_argument("a dtype has not its format's bytes");
    }
    job_.spec = &spec_, job_.M = m, job_.N = n, job_.K = k;
  }
  Direct(const Direct&) = delete;

  nb::object compute(nb::handle a, nb::handle b, nb::handle c, nb::handle scale_a, nb::handle scale_b) const {
    const std::array<nb::handle, given> x = {a, b, c, scale_a, scale_b};
    static constexpr std::array<size_t, given> place = {0, 1, 2, 4, 5};  // among a job's matrices
    Walkers all;
    Lead lead;
    for (size_t o = 0; o < given; ++o) {
      const Operand& wanted = operand_[o];
      if (x[o].is_none()) {
        if (o == 2 || !wanted.dtype) continue;
        return nb::none();
      }
      auto* array = reinterpret_cast<PyArrayObject*>(x[o].ptr());
      if (!PyArray_CheckExact(x[o].ptr()) || PyArray_DESCR(array) != wanted.dtype || !PyArray_ISALIGNED(array))
        return nb::none();
      const npy_intp *shape = PyArray_DIMS(array), *stride = PyArray_STRIDES(array);
      const int dims = PyArray_NDIM(array) - wanted.dims();
      if (dims < 0 || dims > most_dims) return nb::none();
      if (o == 0) lead.take(shape, dims);
      if (dims != lead.count || !lead.same(shape)) return nb::none();
      Mat mat{static_cast<u8*>(PyArray_DATA(array))};
      int at = dims;
      if (wanted.rows >= 0 && shape[at] != wanted.rows) return nb::none();
      if (wanted.rows >= 0) mat.row = stride[at++];
      if (wanted.cols >= 0 && shape[at] != wanted.cols) return nb::none();
      if (wanted.cols >= 0) mat.col = stride[at];
      all[place[o]].take(mat, stride, dims);
    }
    const i64 batch = lead.product();
    if (batch == 0 || batch > most_) return nb::none();

    const Operand& of_d = operand_[given];
    std::array<npy_intp, most_dims + 2> shape;
    npy_intp* end = std::copy_n(lead.size.data(), lead.count, shape.data());
    if (of_d.dims()) *end++ = of_d.rows, *end++ = of_d.cols;
    Py_INCREF(reinterpret_cast<PyObject*>(of_d.dtype));  // which the array takes
    const int ndim = int(end - shape.data());
    nb::object d = nb::steal(PyArray_NewFromDescr(&PyArray_Type, of_d.dtype, ndim, shape.data(), nullptr, nullptr, 0, nullptr));
    if (!d.is_valid()) throw nb::python_error();
    auto* made = reinterpret_cast<PyArrayObject*>(d.ptr());
    const npy_intp size = PyArray_ITEMSIZE(made);
    all[3].take({static_cast<u8*>(PyArray_DATA(made)), job_.N * size, size}, PyArray_STRIDES(made), lead.count);
    Job job = job_;
    run_all(run_, job, all, lead);
    return d;
  }

 private:
  static constexpr size_t given = 5;
  struct Operand {
    i64 rows, cols;  // trailing dimensions; -1: it has none
    PyArray_Descr* dtype = nullptr;
    int dims() const { return (rows >= 0) + (cols >= 0); }
  };
  Spec spec_;
  Run* run_;
  nb::tuple dtypes_;  // keeps them
  i64 most_;
  std::array<Operand, given + 1> operand_;
  Job job_{};
};

}  // namespace

NB_MODULE(_native, m) {
  if (PyArray_ImportNumPyAPI() < 0) throw nb::python_error();
  nb::set_leak_warnings(false);  // instructions, and what they keep ready, last as long as the interpreter
  m.doc() = "Executes arithmetic models on arrays of raw codes. Private: use bitmma.engine.";
  m.def("mma", &mma, nb::arg("spec"), nb::arg("a"), nb::arg("b"), nb::arg("c").none(), nb::arg("d"),
        nb::arg("scale_a").none(), nb::arg("scale_b").none(), nb::arg("isa") = "",
        nb::arg("exact") = false, nb::arg("promote") = 0, nb::arg("promote_fused") = true,
        nb::arg("promote_scale_a").none() = nb::none(), nb::arg("promote_scale_b").none() = nb::none(),
        nb::arg("watch").none() = nb::none(),
        "D = A B + C into d (..., M, N); all arrays have the same leading dimensions. False: a code of a or b\n"
        "has bits above its format's, and d is not to be used. (What is empty is not looked at.)");
  nb::class_<Direct>(m, "Direct", "Calls of one kind on NumPy's arrays as they come.")
      .def(nb::init<nb::handle, nb::tuple, nb::tuple, i64, const std::string&>(), nb::arg("spec"),
           nb::arg("dtypes"), nb::arg("outputs"), nb::arg("most"), nb::arg("isa") = "")
      .def("compute", &Direct::compute, nb::arg("a").none(), nb::arg("b").none(), nb::arg("c").none(),
           nb::arg("scale_a").none(), nb::arg("scale_b").none(),
           "D, new; or None, where an operand is not of the kind or there are too many instructions.");
  m.def("has_kernel",
        [](nb::handle spec, const std::string& isa) { return isa_named(isa).has_kernel(read_spec(spec)); },
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
