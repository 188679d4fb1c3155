// Vectors: GCC and Clang vector types, and the few operations that they do not spell well.
// A tile is `columns` wide: one register of bytes, four of floats, eight of doubles.
#pragma once
#include <cmath>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "spec.hpp"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace bitmma::BITMMA_ISA {

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif
constexpr int NV = 4;            // float vectors of a tile row
constexpr int columns = NV * W;  // outputs computed side by side

typedef float vf __attribute__((vector_size(4 * W)));
typedef i32 vi __attribute__((vector_size(4 * W)));
typedef u32 vu __attribute__((vector_size(4 * W)));
typedef double vd __attribute__((vector_size(4 * W)));
typedef i64 vl __attribute__((vector_size(4 * W)));
typedef u8 vb __attribute__((vector_size(4 * W)));
typedef u16 vw __attribute__((vector_size(4 * W)));  // 2W lanes
typedef short vs __attribute__((vector_size(4 * W)));  // int16, half a tile row
// Half-width vectors, the other side of conversions between 32 and 64 bits.
typedef float hf __attribute__((vector_size(2 * W)));
typedef i32 hi __attribute__((vector_size(2 * W)));
constexpr int D = W / 2;  // doubles of a vector

// Small blocks that a thread gave back, for its next product: a single instruction takes a dozen, and to
// allocate them, aligned, would take as long as to compute.
class Kept {
 public:
  static constexpr std::align_val_t line{64};
#if defined(__SANITIZE_ADDRESS__)
  static constexpr std::size_t largest = 0;  // which is to see every block come and go
#else
  static constexpr std::size_t largest = 1 << 14;
#endif
  ~Kept() {
    for (void* p : first_)
      for (void* next; p; p = next) next = *static_cast<void**>(p), ::operator delete(p, line);
  }
  void* take(std::size_t bytes) {
    if (bytes > largest) return ::operator new(bytes, line);
    void*& first = first_[size_class(bytes)];
    void* p = first;
    if (!p) return ::operator new(std::size_t(64) << size_class(bytes), line);
    first = *static_cast<void**>(p);
    return p;
  }
  void give(void* p, std::size_t bytes) {
    if (bytes > largest) return ::operator delete(p, line);
    void*& first = first_[size_class(bytes)];
    *static_cast<void**>(p) = first, first = p;
  }

 private:
  static int size_class(std::size_t bytes) {  // 64 bytes, 128, ...
    return bytes <= 64 ? 0 : 58 - __builtin_clzll(bytes - 1);
  }
  void* first_[9] = {};
};
inline thread_local Kept kept;

// What vectors are read from starts at a line of memory: a vector of 64 bytes across two costs twice.
template <class T> struct Lines {
  using value_type = T;
  Lines() = default;
  template <class U> Lines(const Lines<U>&) {}
  T* allocate(std::size_t n) { return static_cast<T*>(kept.take(n * sizeof(T))); }
  void deallocate(T* p, std::size_t n) { kept.give(p, n * sizeof(T)); }
  bool operator==(const Lines&) const { return true; }
};
template <class T> using Array = std::vector<T, Lines<T>>;

template <class V, class T> BITMMA_INLINE V load(const T* p) { V v; std::memcpy(&v, p, sizeof v); return v; }
template <class V, class T> BITMMA_INLINE void store(T* p, V v) { std::memcpy(p, &v, sizeof v); }
template <class To, class From> BITMMA_INLINE To bits(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To y; std::memcpy(&y, &x, sizeof y); return y;
}
BITMMA_INLINE vf splat(float x) { return x - vf{}; }  // and not x + 0, which loses the sign of -0
BITMMA_INLINE vi splat(i32 x) { return vi{} + x; }
BITMMA_INLINE vd splat(double x) { return x - vd{}; }
BITMMA_INLINE vl splat64(i64 x) { return vl{} + x; }
BITMMA_INLINE vw splat16(u32 x) {
  const u16 y = u16(x);
  return vw{} + y;
}

// Keeps a compiler from reading x again from memory wherever it is used, where registers abound.
BITMMA_INLINE void keep(vf& x) {
#if defined(__AVX512F__)
  asm("" : "+v"(x));
#elif defined(__aarch64__)
  asm("" : "+w"(x));
#else
  (void)x;
#endif
}

// f(0) ... f(N-1) written out, so that arrays indexed by it live in registers.
template <int N, class F> BITMMA_INLINE void unroll(F f) {
  [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
    (f(std::integral_constant<int, I>{}), ...);
  }(std::make_integer_sequence<int, N>{});
}

// Vector by vector: of a loop GCC makes a copy of memory in pieces of 16 bytes, and a vector that is
// loaded from pieces waits until they have been written.
template <int n, class V> BITMMA_INLINE void copy(const V from[n], V to[n]) {
  unroll<n>([&](auto v) __attribute__((always_inline)) { to[v] = from[v]; });
}

// One instruction on two vectors of integers (i) or doubles (d), and what it does, lane by lane.
#if defined(__AVX512BW__)
#define BITMMA_TWO(V, name, instruction, of, plain) \
  BITMMA_INLINE V name(V a, V b) { return (V)_mm512_##instruction((__m512##of)a, (__m512##of)b); }
#elif defined(__AVX2__)
#define BITMMA_TWO(V, name, instruction, of, plain) \
  BITMMA_INLINE V name(V a, V b) { return (V)_mm256_##instruction((__m256##of)a, (__m256##of)b); }
#else
#define BITMMA_TWO(V, name, instruction, of, plain) \
  BITMMA_INLINE V name(V a, V b) { return plain; }
#endif
BITMMA_TWO(vi, max, max_epi32, i, a > b ? a : b)
BITMMA_TWO(vi, min, min_epi32, i, a < b ? a : b)
BITMMA_TWO(vu, max, max_epu32, i, a > b ? a : b)
BITMMA_TWO(vu, min, min_epu32, i, a < b ? a : b)
BITMMA_TWO(vs, max, max_epi16, i, a > b ? a : b)
BITMMA_TWO(vs, min, min_epi16, i, a < b ? a : b)
BITMMA_TWO(vw, max, max_epu16, i, a > b ? a : b)
BITMMA_TWO(vw, min, min_epu16, i, a < b ? a : b)
BITMMA_TWO(vb, maxu, max_epu8, i, a > b ? a : b)
BITMMA_TWO(vb, minu, min_epu8, i, a < b ? a : b)
// Of doubles, where either is a NaN or both are zeros, the second one.
BITMMA_TWO(vd, max, max_pd, d, a > b ? a : b)
BITMMA_TWO(vd, min, min_pd, d, a < b ? a : b)
BITMMA_TWO(vb, add_saturating, adds_epu8, i, (a + b) | (vb)(a + b < a))
BITMMA_TWO(vb, subtract_saturating, subs_epu8, i, (a - b) & (vb)(a > b))
#undef BITMMA_TWO
// Bytes of four lines, those of one place in one lane.
BITMMA_INLINE void bring_together(const u8* const line[4], vu out[NV]) {
#if defined(__AVX512BW__)
  // Unpacking takes a register's quarters each by itself: first, words go where this leads them home.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  __m512i x[4];
  for (int t = 0; t < 4; ++t) x[t] = _mm512_permutexvar_epi32(order, _mm512_loadu_si512(line[t]));
  const __m512i a = _mm512_unpacklo_epi8(x[0], x[1]), b = _mm512_unpackhi_epi8(x[0], x[1]);
  const __m512i c = _mm512_unpacklo_epi8(x[2], x[3]), d = _mm512_unpackhi_epi8(x[2], x[3]);
  out[0] = (vu)_mm512_unpacklo_epi16(a, c), out[1] = (vu)_mm512_unpackhi_epi16(a, c);
  out[2] = (vu)_mm512_unpacklo_epi16(b, d), out[3] = (vu)_mm512_unpackhi_epi16(b, d);
#elif defined(__AVX2__)
  const __m256i order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
  __m256i x[4];
  for (int t = 0; t < 4; ++t) x[t] = _mm256_permutevar8x32_epi32(_mm256_loadu_si256((const __m256i*)line[t]), order);
  const __m256i a = _mm256_unpacklo_epi8(x[0], x[1]), b = _mm256_unpackhi_epi8(x[0], x[1]);
  const __m256i c = _mm256_unpacklo_epi8(x[2], x[3]), d = _mm256_unpackhi_epi8(x[2], x[3]);
  out[0] = (vu)_mm256_unpacklo_epi16(a, c), out[1] = (vu)_mm256_unpackhi_epi16(a, c);
  out[2] = (vu)_mm256_unpacklo_epi16(b, d), out[3] = (vu)_mm256_unpackhi_epi16(b, d);
#else
  for (int i = 0; i < columns; ++i)
    out[i / W][i % W] = u32(line[0][i]) | u32(line[1][i]) << 8 | u32(line[2][i]) << 16 | u32(line[3][i]) << 24;
#endif
}
// Of bytes below 16, what a table has in their places; of others, something.
BITMMA_INLINE vb look_up(const signed char table[16], vb index) {
#if defined(__AVX512BW__)
  return (vb)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table)), (__m512i)index);
#elif defined(__AVX2__)
  return (vb)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table)), (__m256i)index);
#else
  for (int i = 0; i < 4 * W; ++i) index[i] = u8(table[index[i] & 15]);
  return index;
#endif
}
// How many times lanes of x, as signed bytes, exceeded those of `limit`, counted on.
BITMMA_INLINE vb count_greater(vb count, vb x, vb limit) {
#if defined(__AVX512BW__)
  const __mmask64 greater = _mm512_cmpgt_epi8_mask((__m512i)x, (__m512i)limit);
  return (vb)_mm512_mask_sub_epi8((__m512i)count, greater, (__m512i)count, _mm512_set1_epi8(-1));
#else
  typedef signed char bytes __attribute__((vector_size(4 * W)));
  return count - (vb)((bytes)x > (bytes)limit);
#endif
}
#if defined(__AVX512BW__)
// What sums of 16-bit products need, of which most has no equal in narrower instruction sets.
#define BITMMA_SHORT_SUMS
// Words of two vectors by turns, of the lower (0) or the upper (1) half of every 16 bytes.
template <int half> BITMMA_INLINE vb interleave_words(vb a, vb b) {
  return (vb)(half ? _mm512_unpackhi_epi16((__m512i)a, (__m512i)b) : _mm512_unpacklo_epi16((__m512i)a, (__m512i)b));
}
// Products of bytes, unsigned and signed, neighbours added.
BITMMA_INLINE vw multiply_pairs(vb a, vb b) { return (vw)_mm512_maddubs_epi16((__m512i)a, (__m512i)b); }
// Products of 16-bit integers, neighbours added, and added to `sum`.
BITMMA_INLINE vi add_products(vi sum, vw a, vw b) {
#if defined(__AVX512VNNI__)
  return (vi)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#else
  return sum + (vi)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#endif
}
// Lane by lane; counts of 16 and more (read as unsigned) give 0.
BITMMA_INLINE vw shift_right(vw a, vw count) { return (vw)_mm512_srlv_epi16((__m512i)a, (__m512i)count); }
BITMMA_INLINE vw shift_left(vw a, vw count) { return (vw)_mm512_sllv_epi16((__m512i)a, (__m512i)count); }
// -x where `of` and `bit` have bits in common.
BITMMA_INLINE vw negate_where(vw x, vb of, vw bit) {
  const __mmask32 negative = _mm512_test_epi16_mask((__m512i)of, (__m512i)bit);
  return (vw)_mm512_mask_sub_epi16((__m512i)x, negative, __m512i{}, (__m512i)x);
}
// Bytes of `columns` numbers, brought to -128 or 127 where they are beyond.
BITMMA_INLINE vb to_signed_bytes(const vi x[NV]) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i low = _mm512_packs_epi32((__m512i)x[0], (__m512i)x[1]), high = _mm512_packs_epi32((__m512i)x[2], (__m512i)x[3]);
  return (vb)_mm512_permutexvar_epi32(order, _mm512_packs_epi16(low, high));
}
// Numbers of columns that lie as `interleave_words` brings them: in x[2 half + i] those of bytes i and i + 2.
BITMMA_INLINE void restore_order(const vi x[NV], vi out[NV]) {
  __m512i q[NV], r[NV];  // by fours, of every sixteen columns the same four; then of two sixteens
  for (int h = 0; h < 2; ++h) {
    q[2 * h] = _mm512_unpacklo_epi32((__m512i)x[2 * h], (__m512i)x[2 * h + 1]);
    q[2 * h + 1] = _mm512_unpackhi_epi32((__m512i)x[2 * h], (__m512i)x[2 * h + 1]);
    r[h] = _mm512_shuffle_i32x4(q[2 * h], q[2 * h + 1], 0x44), r[2 + h] = _mm512_shuffle_i32x4(q[2 * h], q[2 * h + 1], 0xEE);
  }
  for (int h = 0; h < 2; ++h) {
    out[2 * h] = (vi)_mm512_shuffle_i32x4(r[2 * h], r[2 * h + 1], 0x88);
    out[2 * h + 1] = (vi)_mm512_shuffle_i32x4(r[2 * h], r[2 * h + 1], 0xDD);
  }
}
#endif
// Logical right shift lane by lane; counts of 32 and more (read as unsigned) give 0.
BITMMA_INLINE vu shift_right(vu a, vi count) {
#if defined(__AVX512F__)
  return (vu)_mm512_srlv_epi32((__m512i)a, (__m512i)count);
#elif defined(__AVX2__)
  return (vu)_mm256_srlv_epi32((__m256i)a, (__m256i)count);
#else
  vu r;
  for (int i = 0; i < W; ++i) r[i] = u32(count[i]) < 32 ? a[i] >> count[i] : 0;
  return r;
#endif
}
// Left shift lane by lane; counts of 32 and more (read as unsigned) give 0.
BITMMA_INLINE vu shift_left(vu a, vi count) {
#if defined(__AVX512F__)
  return (vu)_mm512_sllv_epi32((__m512i)a, (__m512i)count);
#elif defined(__AVX2__)
  return (vu)_mm256_sllv_epi32((__m256i)a, (__m256i)count);
#else
  vu r;
  for (int i = 0; i < W; ++i) r[i] = u32(count[i]) < 32 ? a[i] << count[i] : 0;
  return r;
#endif
}
// Arithmetic right shift lane by lane; counts of 32 and more (read as unsigned) give 0 or -1.
BITMMA_INLINE vi shift_right(vi a, vi count) {
#if defined(__AVX512F__)
  return (vi)_mm512_srav_epi32((__m512i)a, (__m512i)count);
#elif defined(__AVX2__)
  return (vi)_mm256_srav_epi32((__m256i)a, (__m256i)count);
#else
  vi r;
  for (int i = 0; i < W; ++i) r[i] = a[i] >> (u32(count[i]) < 32 ? count[i] : 31);
  return r;
#endif
}
// n, made odd where a > b.
BITMMA_INLINE vi odd_where_greater(vi n, vi a, vi b) {
#if defined(__AVX512F__)
  const __mmask16 greater = _mm512_cmpgt_epi32_mask((__m512i)a, (__m512i)b);
  return (vi)_mm512_mask_or_epi32((__m512i)n, greater, (__m512i)n, _mm512_set1_epi32(1));
#else
  return n | (vi)((vu)(vi)(a > b) >> 31);
#endif
}
// The two halves of a vector, in order.
BITMMA_INLINE hi half(vi x, int h) {
#if defined(__AVX512F__)
  return (hi)(h ? _mm512_extracti64x4_epi64((__m512i)x, 1) : _mm512_castsi512_si256((__m512i)x));
#elif defined(__AVX2__)
  return (hi)(h ? _mm256_extracti128_si256((__m256i)x, 1) : _mm256_castsi256_si128((__m256i)x));
#endif
  hi r;
  std::memcpy(&r, reinterpret_cast<const char*>(&x) + h * int(sizeof r), sizeof r);
  return r;
}
BITMMA_INLINE hf half(vf x, int h) { return bits<hf>(half(bits<vi>(x), h)); }
BITMMA_INLINE vf join(hf low, hf high) {
#if defined(__AVX512F__)
  return (vf)_mm512_insertf64x4(_mm512_castpd256_pd512((__m256d)low), (__m256d)high, 1);
#elif defined(__AVX2__)
  return (vf)_mm256_insertf128_ps(_mm256_castps128_ps256((__m128)low), (__m128)high, 1);
#endif
  vf r;
  std::memcpy(&r, &low, sizeof low);
  std::memcpy(reinterpret_cast<char*>(&r) + sizeof low, &high, sizeof high);
  return r;
}
BITMMA_INLINE bool any(vi mask) {  // lanes are 0 or have the sign bit set
#if defined(__AVX512F__)
  return _mm512_movepi32_mask((__m512i)mask) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_ps((__m256)mask) != 0;
#else
  int r = 0;
  for (int i = 0; i < W; ++i) r |= mask[i];
  return r < 0;
#endif
}
BITMMA_INLINE bool any(vw mask) {  // lanes are 0 or all ones
  vi m = bits<vi>(mask);
  return any(m | (m << 16));
}
BITMMA_INLINE bool any(vl mask) {
  vi m = bits<vi>(mask);
  return any(m);
}
BITMMA_INLINE vi widen(const u8* p) {  // W bytes, zero-extended
#if defined(__AVX512F__)
  return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
#elif defined(__AVX2__)
  return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
#else
  vi r;
  for (int i = 0; i < W; ++i) r[i] = p[i];
  return r;
#endif
}
// W unsigned codes of T, zero-extended.
template <class T> BITMMA_INLINE vu widen_codes(const u8* p) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 1) return (vu)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
  if constexpr (sizeof(T) == 2) return (vu)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p));
#elif defined(__AVX2__)
  if constexpr (sizeof(T) == 1) return (vu)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
  if constexpr (sizeof(T) == 2) return (vu)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
#endif
  vu r;
  for (int i = 0; i < W; ++i) {
    T x;
    std::memcpy(&x, p + i * int(sizeof x), sizeof x);
    r[i] = x;
  }
  return r;
}
BITMMA_INLINE vi widen(const short* p) {  // W int16
#if defined(__AVX512F__)
  return (vi)_mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i*)p));
#elif defined(__AVX2__)
  return (vi)_mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i*)p));
#else
  vi r;
  for (int i = 0; i < W; ++i) r[i] = p[i];
  return r;
#endif
}
#if defined(__F16C__)
#define BITMMA_HALF_CONVERSION
// 2W bytes, their signs extended to 16 bits.
BITMMA_INLINE vw extend_to_16(const u8* p) {
#if defined(__AVX512BW__)
  return (vw)_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)p));
#else
  return (vw)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p));
#endif
}
// The floats of half h of 2W f16 codes.
BITMMA_INLINE vf from_half(vw x, int h) {
#if defined(__AVX512F__)
  return (vf)_mm512_cvtph_ps(h ? _mm512_extracti64x4_epi64((__m512i)x, 1) : _mm512_castsi512_si256((__m512i)x));
#else
  return (vf)_mm256_cvtph_ps(h ? _mm256_extracti128_si256((__m256i)x, 1) : _mm256_castsi256_si128((__m256i)x));
#endif
}
// W f16 codes in memory as floats, and back: of floats that are halves, or NaNs, whose highest bits stay.
BITMMA_INLINE vf from_half(const u8* p) {
#if defined(__AVX512F__)
  return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#else
  return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#endif
}
BITMMA_INLINE void store_half(u8* p, vf x) {
#if defined(__AVX512F__)
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT));
#endif
}
BITMMA_INLINE void store_bytes(u8* p, vw x) {  // of lanes 0..255
#if defined(__AVX512BW__)
  _mm512_mask_cvtepi16_storeu_epi8(p, ~0u, (__m512i)x);
#else
  __m128i low = _mm256_castsi256_si128((__m256i)x), high = _mm256_extracti128_si256((__m256i)x, 1);
  _mm_storeu_si128((__m128i*)p, _mm_packus_epi16(low, high));
#endif
}
// Lanes 0..255 of both, as bytes.
BITMMA_INLINE vb to_bytes(vw low, vw high) {
#if defined(__AVX512BW__)
  return (vb)_mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), _mm512_packus_epi16((__m512i)low, (__m512i)high));
#else
  return (vb)_mm256_permute4x64_epi64(_mm256_packus_epi16((__m256i)low, (__m256i)high), 0xD8);
#endif
}
#endif
template <class V> constexpr int lanes_of = int(sizeof(V) / sizeof(V{}[0]));
// A vector of one or two runs of N lanes, each where from(run) says, and back.
template <int N, class V = vu, class From> BITMMA_INLINE V load_runs(From from) {
  static_assert(lanes_of<V> == N || lanes_of<V> == 2 * N);
  if constexpr (lanes_of<V> == N) return load<V>(from(0));
  else return bits<V>(join(load<hf>(from(0)), load<hf>(from(1))));
}
// The same of codes of T, zero-extended.
template <int N, class T, class From> BITMMA_INLINE vu widen_runs(From from) {
  static_assert(W == N || W == 2 * N);
  if constexpr (W == N) return widen_codes<T>(from(0));
  typedef T codes __attribute__((vector_size(N * sizeof(T))));
  typedef u32 words __attribute__((vector_size(N * sizeof(u32))));
  auto run = [&](int i) { return __builtin_convertvector(load<codes>(from(i)), words); };
  if constexpr (W == 2 * N) return bits<vu>(join(bits<hf>(run(0)), bits<hf>(run(1))));
}
template <int N, class To> BITMMA_INLINE void store_runs(To to, vu x) {
  static_assert(W == N || W == 2 * N);
  if constexpr (W == N) store(to(0), x);
  else store(to(0), half(bits<vf>(x), 0)), store(to(1), half(bits<vf>(x), 1));
}
// N vectors become their columns, run of N lanes by run. First squares that lie within 16 bytes of each
// vector, by rounds of interleaving, for which CPUs have one instruction; then squares change places.
template <int N, class V> BITMMA_INLINE void transpose(V x[N]) {
  constexpr int all = lanes_of<V>, per_16 = 16 * all / int(sizeof(V)), S = N < per_16 ? N : per_16;
  V y[N];
  for (int round = 1; round < S; round *= 2) {
    unroll<N / 2>([&](auto i) __attribute__((always_inline)) {
      constexpr int in = i % (S / 2), from = i / (S / 2) * S + in, to = from + in;
      [&]<int... L>(std::integer_sequence<int, L...>) __attribute__((always_inline)) {
        y[to] = __builtin_shufflevector(x[from], x[from + S / 2], (L / S * S + L % S / 2 + (L % 2) * all)...);
        y[to + 1] = __builtin_shufflevector(x[from], x[from + S / 2], (L / S * S + S / 2 + L % S / 2 + (L % 2) * all)...);
      }(std::make_integer_sequence<int, all>{});
    });
    for (int i = 0; i < N; ++i) x[i] = y[i];
  }
  constexpr int exchanges = __builtin_ctz(N / S);
  unroll<exchanges>([&](auto e) __attribute__((always_inline)) {
    constexpr int d = S << e;
    unroll<N / 2>([&](auto i) __attribute__((always_inline)) {
      constexpr int at = i / d * 2 * d + i % d;
      const V a = x[at], b = x[at + d];
      [&]<int... L>(std::integer_sequence<int, L...>) __attribute__((always_inline)) {
        x[at] = __builtin_shufflevector(a, b, (L & d ? L - d + all : L)...);
        x[at + d] = __builtin_shufflevector(a, b, (L & d ? L + all : L + d)...);
      }(std::make_integer_sequence<int, all>{});
    });
  });
}
BITMMA_INLINE void store_bytes(u8* p, vi x) {  // of lanes 0..255
#if defined(__AVX512F__)
  _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8((__m512i)x));
#elif defined(__AVX2__)
  __m128i low = _mm256_castsi256_si128((__m256i)x), high = _mm256_extracti128_si256((__m256i)x, 1);
  __m128i words = _mm_packus_epi32(low, high);
  _mm_storel_epi64((__m128i*)p, _mm_packus_epi16(words, words));
#else
  typedef u8 narrow __attribute__((vector_size(W)));
  store(p, __builtin_convertvector(x, narrow));
#endif
}
BITMMA_INLINE void store_shorts(short* p, vi x) {
#if defined(__AVX512F__)
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16((__m512i)x));
#else
  typedef short narrow __attribute__((vector_size(2 * W)));
  store(p, __builtin_convertvector(x, narrow));
#endif
}
// Toward zero whatever the rounding mode; callers keep |x| < 2^31.
BITMMA_INLINE vi truncate(vf x) { return __builtin_convertvector(x, vi); }
BITMMA_INLINE vi round_down(vf x) {
#if defined(__AVX512F__)
  return (vi)_mm512_cvt_roundps_epi32((__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
#elif defined(__AVX2__)
  return (vi)_mm256_cvttps_epi32(_mm256_floor_ps((__m256)x));
#else
  vi n = truncate(x);
  return (vi)((vu)n + (vu)(__builtin_convertvector(n, vf) > x));
#endif
}
BITMMA_INLINE vf to_float(vi x) { return __builtin_convertvector(x, vf); }  // by the rounding mode

BITMMA_INLINE vd truncate(vd x) {
#if defined(__AVX512F__)
  return (vd)_mm512_roundscale_pd((__m512d)x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
#elif defined(__AVX2__)
  return (vd)_mm256_round_pd((__m256d)x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
#else
  for (int i = 0; i < D; ++i) x[i] = std::trunc(x[i]);
  return x;
#endif
}
BITMMA_INLINE vd floor(vd x) {
#if defined(__AVX512F__)
  return (vd)_mm512_roundscale_pd((__m512d)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
#elif defined(__AVX2__)
  return (vd)_mm256_round_pd((__m256d)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
#else
  for (int i = 0; i < D; ++i) x[i] = std::floor(x[i]);
  return x;
#endif
}
#if defined(__AVX512F__)  // what GCC 12 makes of __builtin_convertvector here takes three times as many
BITMMA_INLINE vd to_double(hf x) { return (vd)_mm512_cvtps_pd((__m256)x); }
BITMMA_INLINE vd to_double(hi x) { return (vd)_mm512_cvtepi32_pd((__m256i)x); }
BITMMA_INLINE vl to_long(hi x) { return (vl)_mm512_cvtepi32_epi64((__m256i)x); }
BITMMA_INLINE hf to_float(vd x) { return (hf)_mm512_cvtpd_ps((__m512d)x); }  // by the rounding mode
#elif defined(__AVX2__)
BITMMA_INLINE vd to_double(hf x) { return (vd)_mm256_cvtps_pd((__m128)x); }
BITMMA_INLINE vd to_double(hi x) { return (vd)_mm256_cvtepi32_pd((__m128i)x); }
BITMMA_INLINE vl to_long(hi x) { return (vl)_mm256_cvtepi32_epi64((__m128i)x); }
BITMMA_INLINE hf to_float(vd x) { return (hf)_mm256_cvtpd_ps((__m256d)x); }
#else
BITMMA_INLINE vd to_double(hf x) { return __builtin_convertvector(x, vd); }
BITMMA_INLINE vd to_double(hi x) { return __builtin_convertvector(x, vd); }
BITMMA_INLINE vl to_long(hi x) { return __builtin_convertvector(x, vl); }
BITMMA_INLINE hf to_float(vd x) { return __builtin_convertvector(x, hf); }
#endif
// Integers below 2^51 in magnitude, in any rounding mode: added to 1.5 * 2^52, they are its last places.
BITMMA_INLINE vd to_double(vl x) {
  const double origin = 0x1.8p52;
  return bits<vd>(x + bits<i64>(origin)) - splat(origin);
}
// The lower halves of 64-bit lanes.
BITMMA_INLINE vi low_words(vl a, vl b) {
  return [&]<int... L>(std::integer_sequence<int, L...>) __attribute__((always_inline)) {
    return __builtin_shufflevector(bits<vi>(a), bits<vi>(b), (2 * L)...);
  }(std::make_integer_sequence<int, W>{});
}
// A double of exponent field x.
BITMMA_INLINE vd from_field(hi x) { return bits<vd>(to_long(x) << 52); }
// One rounding or two: products are exact wherever these are used.
BITMMA_INLINE vf multiply_add(vf a, vf b, vf c) {
#if defined(__AVX512F__)
  return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
  return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}
BITMMA_INLINE vd multiply_add(vd a, vd b, vd c) {
#if defined(__AVX512F__)
  return (vd)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__AVX2__)
  return (vd)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#else
  return a * b + c;
#endif
}
BITMMA_INLINE vf fused_multiply_add(vf a, vf b, vf c) {
#if defined(__AVX512F__)
  return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
  return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  for (int i = 0; i < W; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
#endif
}
BITMMA_INLINE vd fused_multiply_add(vd a, vd b, vd c) {
#if defined(__AVX512F__)
  return (vd)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__AVX2__)
  return (vd)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#else
  for (int i = 0; i < D; ++i) c[i] = __builtin_fma(a[i], b[i], c[i]);
  return c;
#endif
}
// 2^e as a double, -1022 <= e <= 1023.
BITMMA_INLINE vd power(vl e) { return bits<vd>((e + 1023) << 52); }
BITMMA_INLINE vf power(vi e) { return bits<vf>((e + 127) << 23); }  // -126 <= e <= 127

// The nearest f16 (ties to even, overflow to Inf) of each lane, as a float.
BITMMA_INLINE vf round_to_half(vf x) {
#if defined(__AVX512F__)
  return (vf)_mm512_cvtph_ps(_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__AVX2__)
  return (vf)_mm256_cvtph_ps(_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT));
#else
  // Integer rounding of the float's bits: 13 bits for normal halves, more below 2^-14.
  vf r;
  for (int i = 0; i < W; ++i) {
    u32 w = bits<u32>(float(x[i])), sign = w & 0x80000000u, m = w ^ sign;
    if (m < 0x7F800000u) {
      int e = int(m >> 23) - 127;
      int drop = e >= -14 ? 13 : -14 - e + 13;
      if (drop > 24) {
        m = 0;
      } else {
        u32 s = (m & 0x7FFFFFu) | 0x800000u, half = 1u << (drop - 1), rest = s & (2 * half - 1);
        s -= rest;
        if (rest > half || (rest == half && (s >> drop & 1))) s += 2 * half;
        // s * 2^(e-23): exact, s has at most 12 significant bits
        m = s ? bits<u32>(float(s)) + (u32(e - 23) << 23) : 0;
        if (m >= 0x47800000u) m = 0x7F800000u;
      }
    }
    r[i] = bits<float>(m | sign);
  }
  return r;
#endif
}

BITMMA_INLINE float half_to_float(u32 h) {
  u32 sign = (h & 0x8000u) << 16, m = h & 0x7FFFu;
  if (m >= 0x7C00u) return bits<float>(sign | 0x7F800000u | (m & 0x3FFu) << 13);
  float f = m < 0x400u ? float(int(m)) * 0x1p-24f : bits<float>((m << 13) + (112u << 23));
  return bits<float>(bits<u32>(f) | sign);
}
// Of a float that is a half already.
BITMMA_INLINE u32 float_to_half(float x) {
  u32 w = bits<u32>(x), sign = w >> 16 & 0x8000u, m = w & 0x7FFFFFFFu;
  if (m > 0x7F800000u) return 0x7FFFu;
  if (m == 0x7F800000u) return sign | 0x7C00u;
  if (m < 0x38800000u) return sign | u32(int(bits<float>(m) * 0x1p24f));
  return sign | ((m - (112u << 23)) >> 13);
}

}  // namespace bitmma::BITMMA_ISA
