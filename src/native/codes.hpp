// Columns of B as 16-bit codes, position after position: where they lie, if they lie so, else brought
// together in a buffer that stays in the cache.
//
// A product with few rows uses each element of B a few times only, and what it costs is to read and to
// decode B. `FromCodes` gives kernels the numbers straight from such codes: nothing is written but the
// results. `Operand` (pack.hpp) unpacks its panels from them where there are more rows.
#pragma once
#include <algorithm>
#include <vector>

#include "decode.hpp"

namespace bitmma::BITMMA_ISA {

#if defined(BITMMA_HALF_CONVERSION)

// The fields that codes have, or get: f16's, or bf16's. Twice a code loses its sign; then its upper
// byte holds the exponent field and as many bits `below` it, and is `special` or more of Inf and NaN.
struct HalfFields {
  static constexpr int mantissa = 10, below = 3, special = 0xF8;
  BITMMA_INLINE static vf value(const u8* p) { return from_half(p); }
};
struct UpperFields {
  static constexpr int mantissa = 7, below = 0, special = 0xFF;
  BITMMA_INLINE static vf value(const u8* p) { return bits<vf>(widen_codes<u16>(p) << 16); }
};

// Beside these `bytes`, what comes next: to the end of a line of memory that begins among it.
BITMMA_INLINE void fetch_next(const u8* p, i64 bytes) {
  for (i64 line = 0; line <= bytes; line += 64) __builtin_prefetch(p + bytes + line);
}

class Codes {
 public:
  explicit Codes(const Format& f) : f_(f), dec_(f) {
    const bool signed_whole = dec_.has_sign && !dec_.dropped && dec_.bytes <= 2;
    half_ = signed_whole && dec_.mantissa <= 10 && (dec_.exponent < 5 || (dec_.exponent == 5 && dec_.specials == Specials::ieee));
    upper_ = signed_whole && dec_.mantissa == 7 && dec_.exponent == 8 && dec_.bias == 127 && dec_.specials == Specials::ieee;
    native_ = upper_ || (half_ && dec_.mantissa == 10 && dec_.exponent == 5);
  }
  bool serve() const { return half_ || upper_; }
  bool are_half() const { return half_; }
  bool native() const { return native_; }

  // `count` columns from j0 on (the lines of m) at n positions. False if some code is special, or if
  // exponents of bf16 lie too far apart, or from 0, for one `top`: then nothing else is to be asked. Only
  // the specials of f16 itself are left to those who read the codes: see the fields' `special`.
  bool take(const Mat& m, i64 j0, i64 count, const i64* pos, i64 n) {
    bool clean = false;
    with_decoder(dec_, [&](const auto& dec) { clean = dec_.bytes == 1 ? bring<u8>(dec, m, j0, count, pos, n) : bring<u16>(dec, m, j0, count, pos, n); });
    return clean && find_top();
  }
  // The same of codes that are f16's or bf16's own (`native`), whatever their values.
  void find(const Mat& m, i64 j0, i64 count, const i64* pos, i64 n) { lines_of<u16>(m, j0, count, pos, n); }
  // Position p's codes, of `columns` columns. Those beyond the matrix are +0.
  const u8* const* lines() const { return line_.data(); }
  i32 top() const { return top_; }      // no exponent is above
  i32 low() const { return low_; }      // nor below, but zeros'
  int top_field() const { return top_ + f_.bias; }
  // What makes of the float that the fields stand for the number times 2^-top.
  float factor() const { return std::ldexp(1.0f, (half_ ? 15 - f_.bias : 0) - top_); }

 private:
  static constexpr int S = 2 * W;  // codes of a vector

  // Lines of codes as they are, of T where that is where they lie, else of 16 bits. How many lines of
  // the buffer they take.
  template <class T> i64 lines_of(const Mat& m, i64 j0, i64 count, const i64* pos, i64 n) {
    line_.resize(size_t(n));
    if (in_place<T>(m, count)) {
      for (i64 p = 0; p < n; ++p) line_[size_t(p)] = pos[p] < 0 ? zeros() : m.at(j0, pos[p]);
      return 0;
    }
    auto [first, last] = range(pos, n);
    const bool along_k = m.col == sizeof(T) && last - first <= n;
    buffer_.resize(size_t(n * columns));
    if (along_k) turn<T>(m, j0, count, first, last - first);
    else gather<T>(m, j0, count, pos, n);
    for (i64 p = 0; p < n; ++p) line_[size_t(p)] = pos[p] < 0 ? zeros() : row(along_k ? pos[p] - first : p);
    return along_k ? last - first : n;
  }
  template <class T> static bool in_place(const Mat& m, i64 count) { return m.row == sizeof(T) && count == columns; }
  // The same, and a look at each of them.
  template <class T, class Dec> bool bring(const Dec& dec, const Mat& m, i64 j0, i64 count, const i64* pos, i64 n) {
    const i64 buffered = lines_of<T>(m, j0, count, pos, n);
    if (native_ && half_) return true;
    Seen seen;
    if (in_place<T>(m, count)) {
      if (!native_) buffer_.resize(size_t(n * columns));
      for (i64 p = 0; p < n; ++p) {
        const u8*& from = line_[size_t(p)];
        fetch_next(from, columns * sizeof(T));
        native_ ? look(dec, from, seen) : move<T>(dec, from, row(p), seen);
        if (!native_) from = row(p);
      }
    } else {
      for (i64 i = 0; i < buffered; ++i) native_ ? look(dec, row(i), seen) : move<u16>(dec, row(i), row(i), seen);
    }
    high_ = 0, low_code_ = 0x10000;
    for (int l = 0; l < S; ++l)
      high_ = std::max<u32>(high_, seen.most[l]), low_code_ = std::min<u32>(low_code_, seen.least[l] + 1u);
    if (dec.specials == Specials::fnuz) return !any(seen.nan);
    const u32 limit = dec.specials == Specials::ieee ? ((1u << dec.exponent) - 1) << dec.mantissa
                      : dec.specials == Specials::fn ? dec.magnitude_mask() : 0x8000u;
    return high_ < limit;
  }
  // Magnitudes of codes: the largest, and the least but 0, less 1; and fnuz's NaNs.
  struct Seen { vw most{}, least = ~vw{}, nan{}; };
  template <class Dec> BITMMA_INLINE static void look(const Dec& dec, const u8* from, Seen& seen) {
    for (int v = 0; v < columns / S; ++v) {
      vw m = load<vw>(from + v * 2 * S) & splat16(dec.magnitude_mask());
      seen.most = max(seen.most, m), seen.least = min(seen.least, m - 1);  // zeros wrap
    }
  }
  // The codes of a line to f16's fields.
  template <class T, class Dec> BITMMA_INLINE static void move(const Dec& dec, const u8* from, u8* to, Seen& seen) {
    const vw all = splat16(dec.magnitude_mask()), sign = splat16(dec.sign_mask());
    const int up = std::max(0, 10 - dec.mantissa), sign_up = std::max(0, 15 - dec.exponent - dec.mantissa);
    for (int v = 0; v < columns / S; ++v) {
      vw c = widen_to_16<T>(from + v * S * i64(sizeof(T))), m = c & all;
      seen.most = max(seen.most, m);
      if (dec.specials == Specials::fnuz) seen.nan |= (vw)(c == sign);
      store(to + v * 2 * S, m << up | (c & sign) << sign_up);
    }
  }
  // A format's own exponents do; bf16's block by block.
  bool find_top() {
    top_ = f_.max_exponent(), low_ = f_.min_exponent();
    if (half_) return true;
    if (!high_) return top_ = low_ = 0, true;
    top_ = i32(high_ >> 7) - 127, low_ = std::max(1, i32(low_code_ >> 7)) - 127;
    return top_ - low_ <= widest && std::abs(top_) <= farthest;
  }
  static constexpr i32 farthest = 60;  // rows times 2^-top stay normal floats

  static std::pair<i64, i64> range(const i64* pos, i64 n) {
    i64 first = i64(1) << 62, last = 0;
    for (i64 p = 0; p < n; ++p)
      if (pos[p] >= 0) first = std::min(first, pos[p]), last = std::max(last, pos[p] + 1);
    return {std::min(first, last), last};
  }
  u8* row(i64 i) { return reinterpret_cast<u8*>(&buffer_[size_t(i * columns)]); }

  template <class T> void gather(const Mat& m, i64 j0, i64 count, const i64* pos, i64 n) {
    for (i64 p = 0; p < n; ++p) {
      u16* to = &buffer_[size_t(p * columns)];
      for (i64 j = 0; pos[p] >= 0 && j < count; ++j) to[j] = code_at<T>(m.at(j0 + j, pos[p]));
      std::fill(to + (pos[p] < 0 ? 0 : count), to + columns, u16(0));
    }
  }
  // Columns that lie along k.
  template <class T> void turn(const Mat& m, i64 j0, i64 count, i64 k0, i64 n) {
    constexpr i64 per_word = 4 / sizeof(T);
    for (i64 j = 0; j < columns; j += S) {
      i64 k = 0;
      if (j >= count) {
        for (; k < n; ++k) std::memset(row(k) + 2 * j, 0, 2 * S);
        continue;
      }
      for (; k + W * per_word <= n; k += W * per_word) turn_words<T, W>(m, j0, j, count, k0, k);
      for (; k + 8 * per_word <= n; k += 8 * per_word) turn_words<T, 8>(m, j0, j, count, k0, k);
      for (; k < n; ++k)
        for (i64 i = j; i < j + S; ++i) buffer_[size_t(k * columns + i)] = i < count ? code_at<T>(m.at(j0 + i, k0 + k)) : 0;
    }
  }
  // N words of a few codes each, of 2W columns from j on. Even columns and odd ones apart, so that their
  // codes join in one vector in order.
  template <class T, int N> BITMMA_INLINE void turn_words(const Mat& m, i64 j0, i64 j, i64 count, i64 k0, i64 k) {
    const u8* base = m.at(j0 + j, k0 + k);
    auto words = [&](int parity, int i) __attribute__((always_inline)) {
      return load_runs<N>([&](int run) __attribute__((always_inline)) {
        const i64 line = 2 * (run * N + i) + parity;
        const u8* from = j + line < count ? base + line * m.row : zeros();
        __builtin_prefetch(from + 128);
        return from;
      });
    };
    vu even[N], odd[N];
    unroll<N>([&](auto i) __attribute__((always_inline)) { even[i] = words(0, i), odd[i] = words(1, i); });
    transpose<N>(even), transpose<N>(odd);
    constexpr u32 mask = u32(T(~T(0)));
    constexpr i64 per_word = 4 / sizeof(T);
    for (int i = 0; i < N; ++i)
      unroll<per_word>([&](auto t) __attribute__((always_inline)) {
        constexpr int shift = 8 * int(sizeof(T)) * t;
        store(row(k + i * per_word + t) + 2 * j, (even[i] >> shift & mask) | (odd[i] >> shift & mask) << 16);
      });
  }

  Format f_;
  Decoder dec_;
  bool half_, upper_, native_;
  i32 top_ = 0, low_ = 0;
  u32 high_ = 0, low_code_ = 0;  // magnitudes of codes: the largest, and the least but 0
  std::vector<const u8*> line_;
  Array<u16> buffer_;
};

// A row against such columns: `Panel`'s counterpart in fused.hpp.
template <class Fields> struct FromCodes {
  const float* a;         // row values, times Codes::factor
  const u32* a4;          // row distances, four times each; 255 for zeros
  const u32* pairs;       // of two neighbours, what distances have above `least`, times 2^Fields::below, twice
  const u8* const* line;
  u32 top_field, least;
  mutable vb most{};      // of the bytes that were seen

  // Whether no special value was among them.
  BITMMA_INLINE bool clean() const { return !any(bits<vi>(subtract_saturating(most, vb{} + u8(Fields::special - 1))) != 0); }

  BITMMA_INLINE vf value(i64 p, int v) const { return Fields::value(line[p] + v * 2 * W); }

  // The lowest distance of n products (an even number, from an even p on) from the top: 255 where all
  // are zero. In a byte for each code, two positions side by side, the largest of field minus distance,
  // with some of the significand below. It saturates at 0, where zeros and subnormal numbers are, too:
  // what comes out a whole field above is right.
  BITMMA_INLINE vb nearest(i64 p, i64 n) const {
    vb best[halves] = {}, seen = most;
#pragma GCC unroll 4
    for (i64 i = p; i < p + n; i += 2) {
      const vb by = bits<vb>(vu{} + pairs[i / 2]);
      unroll<halves>([&](auto h) __attribute__((always_inline)) {
        vw even = load<vw>(line[i] + h * 4 * W), odd = load<vw>(line[i + 1] + h * 4 * W);
        even += even, odd += odd;
        const vb upper = bits<vb>(even >> 8 | (odd & 0xFF00));
        seen = maxu(seen, upper), best[h] = maxu(best[h], subtract_saturating(upper, by));
      });
      fetch_next(line[i], 2 * columns), fetch_next(line[i + 1], 2 * columns);
    }
    most = seen;
    vw distance[halves], unsure{};
    unroll<halves>([&](auto h) __attribute__((always_inline)) {
      vw most = bits<vw>(maxu(best[h], bits<vb>(bits<vw>(best[h]) >> 8))) & 0xFF;
      unsure |= (vw)(most < splat16(1 << Fields::below));
      distance[h] = splat16(top_field + least) - (most >> Fields::below);
    });
    if (any(unsure)) [[unlikely]] return look_closely(p, n);
    return to_bytes(distance[0], distance[1]);
  }

 private:
  static constexpr int halves = 2;
  static_assert(columns == halves * 2 * W);
  __attribute__((noinline)) vb look_closely(i64 p, i64 n) const {
    const vs none = vs{} + short(-1024);
    vw distance[halves];
    for (int h = 0; h < halves; ++h) {
      vs best = none;
      for (i64 i = p; i < p + n; ++i) {
        const int by = a4[i] & 255;
        if (by == 255) continue;
        vw size = load<vw>(line[i] + h * 4 * W) & 0x7FFF;
        vs field = max((vs)(size >> Fields::mantissa), vs{} + short(1)) - short(by);
        best = max(best, size == 0 ? none : field);
      }
      distance[h] = best == none ? splat16(255) : (vw)(short(top_field) - best);
    }
    return to_bytes(distance[0], distance[1]);
  }
};

#else

struct Codes {
  explicit Codes(const Format&) {}
  bool serve() const { return false; }
  bool native() const { return false; }
  void find(const Mat&, i64, i64, const i64*, i64) {}
  const u8* const* lines() const { return nullptr; }
};

#endif

}  // namespace bitmma::BITMMA_ISA
