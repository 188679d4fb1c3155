// The kernels against the exact evaluator, without Python: for instruction sets that only an emulator
// runs here (scripts/aarch64.sh). Linked with one build of kernels.cpp, it draws products of all
// families, compares run with run_exact bit for bit, and both under control words that a caller may
// have left. The digest of the first products must be the same on every machine.
//   selfcheck [--seconds 10] [--seed 0] [--only PRODUCT]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "environment.hpp"
#include "exact.hpp"
#include "kernels.hpp"

using namespace bitmma;
using namespace bitmma::BITMMA_ISA;

namespace {
constexpr const char* names[] = {"FMA", "FTZ", "E", "T", "ST", "GST", "TR", "GTR", "Lowered"};
constexpr int families = 9, digested = 600;  // products in the digest; fewer are never run
using Long = unsigned long long;             // for printf

using enum Specials;
constexpr Format f64{64, 11, 52, 1023, ieee, 1, 0}, f32{32, 8, 23, 127, ieee, 1, 0},
    tf32{32, 8, 10, 127, ieee, 1, 13}, f16{16, 5, 10, 15, ieee, 1, 0}, bf16{16, 8, 7, 127, ieee, 1, 0},
    e4m3{8, 4, 3, 7, fn, 1, 0}, e5m2{8, 5, 2, 15, ieee, 1, 0}, fp8{8, 4, 3, 8, fnuz, 1, 0},
    bf8{8, 5, 2, 16, fnuz, 1, 0}, e3m2{6, 3, 2, 3, none, 1, 0}, e2m3{6, 2, 3, 1, none, 1, 0},
    e2m1{4, 2, 1, 1, none, 1, 0}, scale8{8, 8, 0, 127, ue8m0, 0, 0}, ue4m3{8, 4, 3, 7, fn, 0, 0};

struct Random {  // splitmix64: the same everywhere, which <random>'s distributions are not
  u64 state;
  u64 bits() {
    u64 x = state += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u, x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
  }
  i64 in(i64 low, i64 high) { return low + i64(bits() % u64(high - low + 1)); }
  bool chance(int percent) { return in(0, 99) < percent; }
  template <class T, size_t N> T of(const T (&from)[N]) { return from[bits() % N]; }
};

void convert_to(Spec& s, const Format& d, Mode mode, int kept) { s.d = d, s.mode = mode, s.mantissa_bits = kept; }
// What T-FDPA units convert by: the catalogue's roundings, and others that kernels serve.
void draw_conversion(Random& r, Spec& s) {
  switch (r.in(0, 4)) {
    case 0: return convert_to(s, f32, Mode::rz, 23);
    case 1: return convert_to(s, f32, Mode::rz, r.of({13, 13, 8, 22}));
    case 2: return convert_to(s, f32, r.of({Mode::rne, Mode::rd, Mode::ru}), 23);
    default: return convert_to(s, f16, Mode::rne, 10);
  }
}
Spec draw_spec(Random& r) {
  Spec s{};
  s.family = Family(r.in(0, families - 1));
  s.L = 1, s.nan_ones = s.family >= Family::t && s.family <= Family::gst;
  convert_to(s, f32, Mode::rne, 23);
  s.e_zero = int(r.chance(30) ? r.in(-21, -19) : r.in(-133, -131));
  s.F = r.chance(80) ? r.of({13, 23, 24, 25}) : int(r.in(1, 35));
  const Format operands[] = {f16, bf16, tf32, e4m3, e5m2, fp8, bf8, e3m2, e2m3, e2m1};
  s.a = r.of(operands), s.b = r.chance(80) ? s.a : r.of(operands);
  switch (s.family) {
    case Family::fma:
      s.a = s.b = r.of({f16, bf16, f32, f64});
      if (s.a.width == 64 || r.chance(30)) convert_to(s, f64, Mode::rne, 52);
      break;
    case Family::ftz: s.P = s.group = r.of({2, 4}), s.a = s.b = r.of({f16, bf16, bf16, e4m3}); break;
    case Family::e: s.L = r.of({2, 4}), s.a = s.b = s.L == 4 ? r.of({f16, e5m2}) : r.of({f16, bf16}); break;
    case Family::t: s.L = r.chance(80) ? r.of({4, 8, 16, 32}) : int(r.in(1, 64)), draw_conversion(r, s); break;
    case Family::st:
      s.L = r.of({16, 32}), s.scale = scale8, s.block = s.L * int(r.in(1, 2)), draw_conversion(r, s);
      s.a = s.b = r.of({e4m3, e5m2, e3m2, e2m3, e2m1}); break;
    case Family::gst:
      s.G = s.block = r.of({8, 16, 16, 32}), s.L = s.G * r.of({2, 4}), s.F = 35, s.e_zero = -139;
      s.a = s.b = e2m1, s.scale = r.of({scale8, ue4m3}), convert_to(s, f32, Mode::rz, 23); break;
    case Family::tr:
    case Family::gtr: s.L = r.of({4, 8, 16}), s.F = r.of({24, 24, 22}), s.F2 = s.F + r.of({7, 7, 3}); break;
    case Family::lowered:
      s.L = r.of({8, 16}), s.group = 4 * s.L, s.nan_ones = 1, draw_conversion(r, s);
      s.period = 4, s.parts = 2, s.part_of[2] = s.part_of[3] = 1;
  }
  if (!s.group) s.group = s.L;
  s.c = s.nan_ones && r.chance(20) ? r.of({f16, f32}) : s.d;
  s.step = s.group * int(r.in(1, 3));
  if (!s.block && s.step > 1 && r.chance(20)) --s.step;  // the last group is filled up
  return s;
}

// Two matrices, of the products of a batch: `plane` bytes apart.
struct Matrix {
  std::vector<u8> memory;
  Mat mat;
  i64 plane = 0;
  int bytes = 1;
  u8* at(i64 i, i64 j, i64 item) { return mat.at(i, j) + item * plane; }
  u64 code(i64 i, i64 j, i64 item) { return load_code(at(i, j, item), bytes); }
};
Matrix allocate(Random& r, const Format& f, i64 rows, i64 cols) {  // rows, columns, gaps, backward
  Matrix m;
  m.bytes = f.bytes();
  const i64 unit = m.bytes * r.of({1, 1, 3}), back = r.chance(15) ? -1 : 1, turned = r.chance(30);
  m.mat.row = (turned ? unit : unit * cols) * back, m.mat.col = (turned ? unit * rows : unit) * back;
  m.plane = unit * rows * cols;
  m.memory.resize(size_t(2 * m.plane + 1));
  m.mat.data = m.memory.data() + (back < 0 && m.plane ? m.plane - unit : 0);
  return m;
}
// Codes with exponents near each other, or any bits; specials, zeros, subnormals.
Matrix draw(Random& r, const Format& f, i64 rows, i64 cols) {
  Matrix m = allocate(r, f, rows, cols);
  const i64 top = (i64(1) << f.exponent_bits) - 1, spread = r.of({0, 1, 3, 8, 25, 100, 2000});
  const i64 middle = r.chance(40) ? f.bias : r.chance(20) ? 0 : r.in(0, top);
  const bool any_bits = r.chance(15), specials = r.chance(25);
  const u64 few = r.chance(20) && f.mantissa_bits > 3 ? ~u64(0) << (f.mantissa_bits - 3) : ~u64(0);
  const int zeros = r.of({0, 0, 10, 60});
  for (i64 n = 0; n < 2 * rows * cols; ++n) {
    u64 x = r.bits() >> (64 - f.width), sign = f.has_sign && r.chance(50) ? u64(1) << (f.width - 1) : 0;
    u64 field = u64(std::clamp<i64>(middle + r.in(-spread, spread), 0, top));
    u64 mantissa = x & few & ((u64(1) << f.mantissa_bits) - 1);
    if (!any_bits) x = sign | (field << f.mantissa_bits | mantissa) << f.dropped_bits;
    if (exact::decode(f, x).kind >= exact::inf && !(specials && r.chance(20))) x = 0;
    if (r.chance(zeros)) x = f.specials == fnuz ? 0 : sign;
    store_code(m.at(n / 2 / cols, n / 2 % cols, n % 2), m.bytes, x);
  }
  return m;
}

// Rounding modes and flush-to-zero of inputs and outputs, as callers leave them.
using Word = Environment::Word;
Word draw_word(Random& r) {
#if defined(__aarch64__)
  return Word(r.in(0, 3)) << 22 | Word(r.in(0, 1)) << 24 | Word(r.in(0, 1)) << 25;  // RMode, FZ, DN
#else
  return Word(0x1F80 | r.in(0, 3) << 13 | r.in(0, 1) << 15 | r.in(0, 1) << 6);  // RC, FTZ, DAZ
#endif
}
struct Problem {
  Spec s;
  i64 M, N, K;
  Matrix a, b, c, scale_a, scale_b, promote_a, promote_b;
  bool with_c;
  Promotion promotion;  // of half of the products
  Format sum;           // of c and d
  int items;  // products of the batch, 1 or 2

  explicit Problem(Random& r) : s(draw_spec(r)) {
    M = r.chance(10) ? 1 : r.in(1, 20), N = r.chance(10) ? 1 : r.in(1, 70);
    K = r.in(0, 3 * s.step + 20), items = int(r.in(1, 2));
    if (r.chance(50)) promotion.every = std::lcm(s.step, std::max(1, s.block)) * r.in(1, 3);
    const bool promoted = promotion.every, doubled = s.d.width == 64;
    sum = promoted && !doubled ? f32 : s.d;
    a = draw(r, s.a, M, K), b = draw(r, s.b, K, N), c = draw(r, promoted ? sum : s.c, M, N);
    with_c = r.chance(80);
    if (promoted && !doubled && r.chance(70)) {
      const i64 parts = (K + promotion.every - 1) / promotion.every;
      promotion.fused = r.chance(50);
      promote_a = draw(r, f32, M, parts), promotion.scale_a = promote_a.mat;
      if (r.chance(70)) promote_b = draw(r, f32, parts, N), promotion.scale_b = promote_b.mat;
    }
    if (!s.block) return;
    const i64 blocks = (K + s.block - 1) / s.block;
    scale_a = draw(r, s.scale, M, blocks), scale_b = draw(r, s.scale, blocks, N);
  }
  // Codes of D, item after item. Under `word`, as the caller's; false if it is not there afterwards.
  bool compute(Random& r, Run* how, Word word, std::vector<u64>& codes) {
    Matrix d = allocate(r, sum, M, N);
    Matrix none, *all[] = {&a, &b, with_c ? &c : &none, &d, &scale_a, &scale_b, &promote_a, &promote_b};
    struct Walk { Matrix** all; int left; } walk{all, items - 1};
    auto next = [](Batch& x) {
      Walk& w = *static_cast<Walk*>(x.state);
      Mat* mats[] = {&x.job.a, &x.job.b, &x.job.c, &x.job.d, &x.job.scale_a, &x.job.scale_b,
                     &x.job.promotion.scale_a, &x.job.promotion.scale_b};
      for (int i = 0; w.left && i < 8; ++i)
        if (mats[i]->data) mats[i]->data += w.all[i]->plane;
      return w.left-- > 0;
    };
    Batch batch{{&s, M, N, K, a.mat, b.mat, all[2]->mat, d.mat, scale_a.mat, scale_b.mat, promotion}, next, &walk};
    const Word saved = Environment::read();
    Environment::write(word);
    how(batch);
    const Word after = Environment::read();
    Environment::write(saved);
    codes.clear();
    for (int item = 0; item < items; ++item)
      for (i64 i = 0; i < M; ++i)
        for (i64 j = 0; j < N; ++j) codes.push_back(d.code(i, j, item));
    return after == word;
  }
  void report(const char* what, i64 at, u64 got, u64 want) {
    const i64 item = at / (M * N), i = at / N % M, j = at % N, blocks = s.block ? (K + s.block - 1) / s.block : 0;
    std::printf("DIFFERENCE %s, %s: %#llx, exactly %#llx\n", names[int(s.family)], what, Long(got), Long(want));
    std::printf("  L %d F %d F2 %d G %d P %d e_zero %d mode %d mantissa_bits %d group %d step %d block %d", s.L, s.F,
                s.F2, s.G, s.P, s.e_zero, int(s.mode), s.mantissa_bits, s.group, s.step, s.block);
    std::printf(" M %d N %d K %d at %d, %d\n", int(M), int(N), int(K), int(i), int(j));
    auto line = [](const char* name, const Format& f, i64 n, auto code) {
      std::printf("  %s (e%dm%d, bias %d):", name, f.exponent_bits, f.mantissa_bits, f.bias);
      for (i64 k = 0; k < n; ++k) std::printf(" %#llx", Long(code(k)));
      std::puts("");
    };
    line("a", s.a, K, [&](i64 k) { return a.code(i, k, item); });
    line("b", s.b, K, [&](i64 k) { return b.code(k, j, item); });
    std::printf("  promotion every %d, fused %d\n", int(promotion.every), promotion.fused);
    line("c", promotion.every ? sum : s.c, with_c, [&](i64) { return c.code(i, j, item); });
    line("scale_a", s.scale, blocks, [&](i64 k) { return scale_a.code(i, k, item); });
    line("scale_b", s.scale, blocks, [&](i64 k) { return scale_b.code(k, j, item); });
  }
};

struct Count { u64 outputs, plain_numbers, by_kernel; };

bool agrees(u64 seed, u64 index, Count* counts, u64& digest) {
  Random r{seed * 0x9E3779B97F4A7C15u ^ index * 0xD1B54A32D192ED03u};
  Problem p(r);
  std::vector<u64> want, got;
  const Word usual = Environment::value(Rounding::nearest, false), word = draw_word(r);
  const struct { const char* what; Run* how; Word word; } runs[] = {
      {"exact", run_exact, usual}, {"kernel", run, usual},
      {"exact, the caller's mode", run_exact, word}, {"kernel, the caller's mode", run, word}};
  for (const auto& x : runs) {
    bool restored = p.compute(r, x.how, x.word, got);
    if (&x == runs) want = got;
    if (!restored) return std::printf("%s: %#llx is not restored\n", x.what, Long(x.word)), false;
    auto at = std::mismatch(got.begin(), got.end(), want.begin());
    if (at.first != got.end()) return p.report(x.what, at.first - got.begin(), *at.first, *at.second), false;
  }
  Count& n = counts[int(p.s.family)];
  for (u64 x : want) {
    ++n.outputs, n.plain_numbers += exact::decode(p.sum, x).kind == exact::finite;
    n.by_kernel += has_kernel(p.s) && p.M * p.N > 2;
    if (index < u64(digested)) digest = (digest ^ x) * 0x100000001B3u;  // FNV-1a, a code at a time
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  auto option = [&](const char* name, u64 otherwise) {
    for (int i = 1; i + 1 < argc; ++i)
      if (std::string(argv[i]) == name) return u64(std::strtoull(argv[i + 1], nullptr, 10));
    return otherwise;
  };
  const u64 seed = option("--seed", 0), none = ~u64(0), only = option("--only", none);
  Count counts[families] = {};
  u64 digest = 0xCBF29CE484222325u, index = 0;
  if (only != none) return agrees(seed, only, counts, digest) ? 0 : 1;
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::seconds(option("--seconds", 10));
  for (; index < u64(digested) || Clock::now() < end; ++index)
    if (!agrees(seed, index, counts, digest))
      return std::printf("  again: --seed %llu --only %llu\n", Long(seed), Long(index)), 1;
  bool vacuous = false;
  std::printf("%-8s%12s%15s%12s\n", "", "outputs", "plain numbers", "by kernel");
  for (int f = 0; f < families; ++f) {
    const Count& n = counts[f];
    std::printf("%-8s%12llu%15llu%12llu\n", names[f], Long(n.outputs), Long(n.plain_numbers), Long(n.by_kernel));
    vacuous |= !n.plain_numbers || n.by_kernel < n.outputs / 2;
  }
  std::printf("%llu products, %d lanes, no difference; digest %016llx\n", Long(index), lanes, Long(digest));
  if (vacuous) std::puts("but some family was hardly tried");
  return vacuous;
}
