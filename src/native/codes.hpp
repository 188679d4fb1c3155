// Columns of B as codes, position after position: where they lie, if they lie so, else brought together
// in a buffer that stays in the cache.
//
// A product with few rows uses each element of B a few times only, and what it costs is to read and to
// decode B. Kernels take numbers straight from such lines: nothing is written but the results. For the
// fused sums `Codes` finds what is to be known of them, and `FromCodes` reads exponents and values.
// `Operand` (pack.hpp) unpacks its panels from the same lines where there are more rows.
#pragma once
#include <algorithm>
#include <vector>

#include "decode.hpp"

namespace bitmma::BITMMA_ISA {

// Into the cache, the lines of memory in which these bytes lie.
BITMMA_INLINE void fetch(const u8* p, i64 bytes) {
  for (i64 at = 0; at <= bytes; at += 64) __builtin_prefetch(p + at);
}

// Codes of T, `width` columns at each of some positions. Those beyond the matrix are +0.
template <class T, i64 width> class CodeLines {
 public:
  // `count` columns from j0 on (the lines of m) at n positions.
  void find(const Mat& m, i64 j0, i64 count, const i64* pos, i64 n) {
    line_.resize(size_t(n));
    buffered_ = 0;
    if (m.row == sizeof(T) && count == width) {
      for (i64 p = 0; p < n; ++p) line_[size_t(p)] = pos[p] < 0 ? zeros() : m.at(j0, pos[p]);
      return;
    }
    auto [first, last] = range(pos, n);
    const bool along_k = m.col == sizeof(T) && last - first <= n;
    buffered_ = along_k ? last - first : n;
    buffer_.resize(size_t(n * width));
    if (along_k) turn(m, j0, count, first, last - first);
    else gather(m, j0, count, pos, n);
    const u8** line = line_.data();
    const u8* const start = row(0);
    for (i64 p = 0; p < n; ++p) line[p] = pos[p] < 0 ? zeros() : start + (along_k ? pos[p] - first : p) * bytes;
  }
  // Codes that lie elsewhere too, each vector as `change` makes it.
  template <class Change> void change(Change change) {
    if (buffered_) {
      for (i64 i = 0; i < buffered_; ++i) copy(row(i), row(i), change);
      return;
    }
    buffered_ = i64(line_.size());
    buffer_.resize(line_.size() * size_t(width));
    for (i64 p = 0; p < buffered_; ++p) {
      fetch(line_[size_t(p)] + bytes, bytes);
      copy(line_[size_t(p)], row(p), change), line_[size_t(p)] = row(p);
    }
  }
  const u8* const* lines() const { return line_.data(); }
  // How far the codes that are wanted next lie behind these; 0 if they are not to be fetched.
  i64 ahead() const { return buffered_ ? 0 : bytes; }
  // Each vector of codes, in any order.
  template <class Look> void look(Look look) const {
    const size_t n = buffered_ ? size_t(buffered_) : line_.size();
    for (size_t i = 0; i < n; ++i) {
      const u8* from = buffered_ ? reinterpret_cast<const u8*>(&buffer_[i * size_t(width)]) : line_[i];
      for (i64 b = 0; b < bytes; b += i64(sizeof(vb))) look(from + b);
    }
  }

 private:
  static constexpr i64 bytes = width * i64(sizeof(T));

  u8* row(i64 i) { return reinterpret_cast<u8*>(&buffer_[size_t(i * width)]); }
  template <class Change> static void copy(const u8* from, u8* to, Change change) {
    for (i64 b = 0; b < bytes; b += i64(sizeof(vb))) store(to + b, change(load<vb>(from + b)));
  }
  static std::pair<i64, i64> range(const i64* pos, i64 n) {
    i64 first = i64(1) << 62, last = 0;
    for (i64 p = 0; p < n; ++p)
      if (pos[p] >= 0) first = std::min(first, pos[p]), last = std::max(last, pos[p] + 1);
    return {std::min(first, last), last};
  }
  void gather(const Mat& m, i64 j0, i64 count, const i64* pos, i64 n) {
    for (i64 p = 0; p < n; ++p) {
      T* to = &buffer_[size_t(p * width)];
      if (pos[p] >= 0 && m.row == sizeof(T)) std::memcpy(to, m.at(j0, pos[p]), size_t(count) * sizeof(T));
      else for (i64 j = 0; pos[p] >= 0 && j < count; ++j) std::memcpy(to + j, m.at(j0 + j, pos[p]), sizeof(T));
      std::fill(to + (pos[p] < 0 ? 0 : count), to + width, T(0));
    }
  }

  // Columns that lie along k, in words of four bytes (eight, where a code has as many). Squares of words
  // are transposed, each of every `per_word`-th column, so that in the end codes of neighbours join.
  using Word = std::conditional_t<sizeof(T) == 8, vl, vu>;
  static constexpr int lanes = int(sizeof(Word) / std::max<size_t>(4, sizeof(T)));
  static constexpr i64 per_word = std::max<i64>(1, 4 / i64(sizeof(T))), across = lanes * per_word;
  void turn(const Mat& m, i64 j0, i64 count, i64 k0, i64 n) {
    for (i64 j = 0; j < width; j += across) {
      i64 k = 0;
      if (j >= count) {
        for (; k < n; ++k) std::memset(row(k) + j * i64(sizeof(T)), 0, size_t(across) * sizeof(T));
        continue;
      }
      for (; k + lanes * per_word <= n; k += lanes * per_word) turn_words<lanes>(m, j0, j, count, k0, k);
      if constexpr (lanes == 16)
        for (; k + 8 * per_word <= n; k += 8 * per_word) turn_words<8>(m, j0, j, count, k0, k);
      for (; k < n; ++k)
        for (i64 i = j; i < j + across; ++i) {
          T code(0);
          if (i < count) std::memcpy(&code, m.at(j0 + i, k0 + k), sizeof(T));
          buffer_[size_t(k * width + i)] = code;
        }
    }
  }
  template <int N> void turn_words(const Mat& m, i64 j0, i64 j, i64 count, i64 k0, i64 k) {
    const u8* base = m.at(j0 + j, k0 + k);
    Word word[N][per_word];
    unroll<int(per_word)>([&](auto set) __attribute__((always_inline)) {
      Word x[N];
      unroll<N>([&](auto i) __attribute__((always_inline)) {
        x[i] = load_runs<N, Word>([&](int run) __attribute__((always_inline)) {
          const i64 line = per_word * (run * N + i) + set;
          const u8* from = j + line < count ? base + line * m.row : zeros();
          __builtin_prefetch(from + 128);
          return from;
        });
      });
      transpose<N>(x);
      unroll<N>([&](auto i) __attribute__((always_inline)) { word[i][set] = x[i]; });
    });
    unroll<N>([&](auto i) __attribute__((always_inline)) {
      exchange(word[i]);
      unroll<int(per_word)>([&](auto t) __attribute__((always_inline)) {
        store(row(k + i * per_word + t) + j * i64(sizeof(T)), word[i][t]);
      });
    });
  }
  // Lane by lane, the codes of `per_word` words transposed.
  BITMMA_INLINE static void exchange(Word x[per_word]) {
    if constexpr (per_word == 2) cross<16, 0xFFFFu>(x[0], x[1]);
    if constexpr (per_word == 4) {
      cross<16, 0xFFFFu>(x[0], x[2]), cross<16, 0xFFFFu>(x[1], x[3]);
      cross<8, 0xFF00FFu>(x[0], x[1]), cross<8, 0xFF00FFu>(x[2], x[3]);
    }
  }
  template <int shift, u32 low> BITMMA_INLINE static void cross(vu& x, vu& y) {
    const vu a = (x & low) | (y & low) << shift, b = (x >> shift & low) | (y & ~low);
    x = a, y = b;
  }

  std::vector<const u8*> line_;
  Array<T> buffer_;
  i64 buffered_ = 0;  // lines of the buffer in use: all or none
};

// The least and the largest of some bytes, column by column.
struct ByteExtent {
  vb least = ~vb{}, most{};
  BITMMA_INLINE void take(vb x) { least = minu(least, x), most = maxu(most, x); }
  std::pair<int, int> over(i64 cols) const {
    alignas(64) u8 low[columns], high[columns];
    store(low, least), store(high, most);
    return {*std::min_element(low, low + cols), *std::max_element(high, high + cols)};
  }
};

// How wide the first tile is to be for all that follow it to begin at a line of memory, where codes of
// every position do so together: a vector across two lines costs twice. What a narrow tile costs more is
// little where it is one of many.
inline i64 columns_to_line(const Mat& m, i64 bytes, i64 count) {
  constexpr i64 line = 64;
  const i64 lead = i64(-reinterpret_cast<std::uintptr_t>(m.data) % line);
  if (m.row != bytes || m.col % line || count < 16 * columns) return columns;
  const i64 first = lead / bytes % columns;
  return first ? first : columns;
}

// With few rows B is read once: by few lines of memory at a time, so that fetching follows; along k, by
// as many positions as a buffer in the cache holds.
inline i64 few_rows_chunk(const Mat& b, int bytes) { return b.row < b.col ? 1024 : bytes == 1 ? 64 : 32; }

#if defined(BITMMA_HALF_CONVERSION)

// How exponents and values are read from codes. Without the sign, a code's upper byte holds the exponent
// field and as many bits `below` it; Inf and NaN, and no other, are `special` or more by `suspect`.
struct WholeFields {  // of 16 bits, all of them sign, exponent and significand
  using Code = u16;
  static constexpr u32 magnitude = 0x7FFF;
  BITMMA_INLINE vb suspect(vb upper, vb) const { return upper; }
};
struct HalfFields : WholeFields {  // f16
  static constexpr int below = 3, special = 0xF8, mantissa = 10;
  BITMMA_INLINE auto numbers(const u8* p) const {
    return [p](int v) __attribute__((always_inline)) { return from_half(p + v * 2 * W); };
  }
};
struct UpperFields : WholeFields {  // bf16
  static constexpr int below = 0, special = 0xFF, mantissa = 7;
  BITMMA_INLINE auto numbers(const u8* p) const {
    return [p](int v) __attribute__((always_inline)) { return bits<vf>(widen_codes<u16>(p + v * 2 * W) << 16); };
  }
};
struct WordFields {  // tf32: a float of which low bits do not count
  using Code = u32;
  static constexpr int below = 0, special = 0xFF, mantissa = 23;
  u32 magnitude;
  BITMMA_INLINE vb suspect(vb upper, vb) const { return upper; }
  BITMMA_INLINE auto numbers(const u8* p) const {
    const u32 mask = magnitude | 0x80000000u;
    return [p, mask](int v) __attribute__((always_inline)) { return bits<vf>(load<vu>(p + v * 4 * W) & mask); };
  }
};
// Eight bits, or fewer shifted up to eight. As a half with the same fields the number is 2^(bias - 15)
// times as large, subnormal or not.
struct ByteFields {
  using Code = u8;
  int below, special, mantissa;
  u32 magnitude;
  vb kept, flipped;  // of codes, for `suspect`
  u16 up;            // times this, the lowest bit of the exponent is in its place
  vw half;           // what is then kept, of the sign's copies only the highest

  BITMMA_INLINE vb suspect(vb, vb code) const { return (code & kept) ^ flipped; }
  struct Numbers {
    alignas(64) u16 half[columns];
    BITMMA_INLINE vf operator()(int v) const { return from_half(reinterpret_cast<const u8*>(half + v * W)); }
  };
  BITMMA_INLINE Numbers numbers(const u8* p) const {
    Numbers x;
    unroll<2>([&](auto h) __attribute__((always_inline)) {
      store(x.half + h * 2 * W, (extend_to_16(p + h * 2 * W) * up) & half);
    });
    return x;
  }
};

// A line's distances from the top as a panel has them; and what of it is suspect.
template <class Fields> BITMMA_INLINE vb codes_distances(const Fields& f, const u8* line, u8* out, u32 top_field) {
  using Code = typename Fields::Code;
  if constexpr (sizeof(Code) == 1) {
    const vb code = load<vb>(line), size = code & u8(f.magnitude);
    const vb field = bits<vb>(bits<vw>(size) >> u16(f.mantissa) & splat16((0xFFu >> f.mantissa) * 0x101u));
    store(out, size == 0 ? ~vb{} : vb{} + u8(top_field) - maxu(field, vb{} + u8(1)));
    return f.suspect(size, code);
  } else {
    using Lane = std::conditional_t<sizeof(Code) == 2, vw, vu>;
    Lane most{};
    unroll<int(sizeof(Code))>([&](auto h) __attribute__((always_inline)) {
      const Lane size = load<Lane>(line + h * 4 * W) & Code(f.magnitude), field = size >> f.mantissa, one = Lane{} + Code(1);
      const Lane far = size == 0 ? Lane{} + Code(255) : Lane{} + Code(top_field) - max(field, one);
      most = max(most, size);
      store_bytes(out + h * 4 * W / int(sizeof(Code)), bits<std::conditional_t<sizeof(Code) == 2, vw, vi>>(far));
    });
    return bits<vb>(most >> (8 * sizeof(Code) - 9));  // upper bytes, among others that are less
  }
}

// Of sizeof(Code) lines' codes, from `byte` on, the upper bytes without signs: those of one column in one
// lane. And the codes themselves, if they are bytes.
template <class Code> BITMMA_INLINE vb upper_bytes(const u8* const* line, i64 byte, vb& code) {
  if constexpr (sizeof(Code) == 1) {
    code = load<vb>(line[0] + byte);
    return code + code;
  } else if constexpr (sizeof(Code) == 2) {
    vw even = load<vw>(line[0] + byte), odd = load<vw>(line[1] + byte);
    even += even, odd += odd;
    return bits<vb>(even >> 8 | (odd & 0xFF00));
  } else {
    const vu x0 = load<vu>(line[0] + byte), x1 = load<vu>(line[1] + byte);
    const vu x2 = load<vu>(line[2] + byte), x3 = load<vu>(line[3] + byte);
    return bits<vb>((x0 >> 23 & 0xFF) | (x1 >> 15 & 0xFF00) | (x2 >> 7 & 0xFF0000) | (x3 << 1 & 0xFF000000u));
  }
}

class Codes {
 public:
  explicit Codes(const Format& f) : f_(f), kind_(kind(f)) {
    if (kind_ == bytes) {
      const int E = f.exponent_bits, M = f.mantissa_bits;
      const bool fnuz = f.specials == Specials::fnuz;
      const int infinity = ((1 << E) - 1) << (7 - E), last = ((1 << (E + M)) - 1) << (7 - E - M);
      byte_.below = 8 - E, byte_.mantissa = 7 - E, byte_.magnitude = 0x7F;
      byte_.special = f.specials == Specials::none ? 256 : fnuz ? 255 : f.specials == Specials::fn ? last : infinity;
      const u8 kept = fnuz ? 0xFF : 0x7F, flipped = fnuz ? 0x7F : 0;
      byte_.kept = vb{} + kept, byte_.flipped = vb{} + flipped;
      byte_.up = u16(1u << (3 + E)), byte_.half = splat16(0x8000 | ((1u << (10 + E)) - 1));
    }
    word_.magnitude = 0x7FFFFFFFu & (~0u << f.dropped_bits);
  }
  bool serve() const { return kind_ != others; }

  // `count` columns from j0 on (the lines of m) at n positions. False if exponents of bf16 or tf32 lie
  // too far apart, or from 0, for one `top`, or if there are specials among them: then nothing else is to
  // be asked. Specials of other formats are left to those who read the codes.
  bool take(const Mat& m, i64 j0, i64 count, const i64* pos, i64 n) {
    top_ = f_.max_exponent(), low_ = f_.min_exponent();
    switch (kind_) {
      case bytes:
        bytes_.find(m, j0, count, pos, n);
        if (f_.width < 8) bytes_.change([&](vb x) { return shifted_up(x); });
        return true;
      case half: return halves_.find(m, j0, count, pos, n), true;
      case upper: return halves_.find(m, j0, count, pos, n), find_top() && usable_top();
      case words: return words_.find(m, j0, count, pos, n), find_top() && usable_top();
      default: return false;
    }
  }
  // `top` and `low` of these codes, if they have 16 bits or more. False if there are specials.
  bool find_top() {
    if (kind_ == words) return find_top<vu>(words_, word_);
    return kind_ == half ? find_top<vw>(halves_, HalfFields{}) : find_top<vw>(halves_, UpperFields{});
  }
  bool are_16_bits() const { return kind_ == half || kind_ == upper; }
  // The way to read them.
  template <class Each> auto with_fields(Each each) const {
    switch (kind_) {
      case bytes: return each(byte_);
      case half: return each(HalfFields{});
      case upper: return each(UpperFields{});
      default: return each(word_);
    }
  }
  // Position p's codes, of `columns` columns, and where the next lie.
  const u8* const* lines() const { return kind_ == bytes ? bytes_.lines() : kind_ == words ? words_.lines() : halves_.lines(); }
  i64 ahead() const { return kind_ == bytes ? bytes_.ahead() : kind_ == words ? words_.ahead() : halves_.ahead(); }
  i32 top() const { return top_; }  // no exponent is above
  i32 low() const { return low_; }  // nor below, but zeros'
  u32 top_field() const { return u32(top_ + f_.bias); }
  // What makes of the float that the fields stand for the number times 2^-top.
  float factor() const { return std::ldexp(1.0f, (kind_ == bytes ? 15 - f_.bias : 0) - top_); }

 private:
  BITMMA_INLINE vb shifted_up(vb x) const {
    const int by = 8 - f_.width;
    return bits<vb>(bits<vw>(x) << u16(by) & splat16((0xFFu << by & 0xFF) * 0x101u));
  }
  enum Kind { others, bytes, half, upper, words };
  static Kind kind(const Format& f) {
    const bool ieee = f.specials == Specials::ieee, single = f.exponent_bits == 8 && f.bias == 127 && ieee;
    if (!f.has_sign) return others;
    if (f.width == 32 && single) return words;
    if (f.dropped_bits) return others;
    if (f.width == 16 && single) return upper;
    if (f.width == 16 && f.exponent_bits == 5 && f.bias == 15 && ieee) return half;
    // A half's highest exponent field is not a number's.
    return f.width <= 8 && (f.exponent_bits < 5 || (f.exponent_bits == 5 && ieee)) ? bytes : others;
  }
  bool usable_top() const { return top_ - low_ <= widest && std::abs(top_) <= farthest; }
  // By the largest magnitude, and the least but 0.
  template <class V, class Lines, class Fields> bool find_top(const Lines& lines, const Fields& f) {
    using Code = typename Fields::Code;
    V most{}, least = ~V{};
    lines.look([&](const u8* from) __attribute__((always_inline)) {
      const V m = load<V>(from) & Code(f.magnitude);
      most = max(most, m), least = min(least, m - 1);  // zeros wrap
    });
    u32 high = 0, low = ~0u;
    for (int l = 0; l < int(sizeof(V) / sizeof(Code)); ++l)
      high = std::max<u32>(high, most[l]), low = std::min<u32>(low, Code(least[l]));
    if (!high) return top_ = low_ = 0, true;
    top_ = i32(high >> f.mantissa) - f_.bias, low_ = std::max(1, i32((low + 1) >> f.mantissa)) - f_.bias;
    return top_ <= f_.max_exponent();
  }
  static constexpr i32 farthest = 60;  // rows times 2^-top stay normal floats

  Format f_;
  Kind kind_;
  i32 top_ = 0, low_ = 0;
  ByteFields byte_{};
  WordFields word_{};
  CodeLines<u8, columns> bytes_;
  CodeLines<u16, columns> halves_;
  CodeLines<u32, columns> words_;
};

// A row against such columns: `Panel`'s counterpart in fused.hpp.
template <class Fields> struct FromCodes {
  const float* a;         // row values, times Codes::factor
  const u32* a4;          // row distances, four times each; 255 for zeros
  const u32* by;          // what distances have above `least`, times 2^below: see Walk::join_rows
  const u8* const* line;
  i64 ahead;
  u32 top_field, least;
  Fields f;
  mutable vb most{};      // of the bytes that were seen

  // Whether no special value was among them.
  BITMMA_INLINE bool clean() const { return !any(bits<vi>(subtract_saturating(most, vb{} + u8(f.special - 1))) != 0); }

  // Also fetches what is wanted next: faster than memory gives it, products would wait for each other.
  BITMMA_INLINE auto numbers(i64 p) const {
    fetch(line[p] + ahead, columns * together);
    return f.numbers(line[p]);
  }

  // The lowest distance of n products (a multiple of `together`, as is p) from the top: 255 where all
  // are zero. In a byte for each code, those of some positions side by side, the largest of field minus
  // distance, with some of the significand below. It saturates at 0, where zeros and subnormal numbers
  // are, too: what comes out a whole field above is right.
  BITMMA_INLINE vb nearest(i64 p, i64 n) const {
    vb best[together] = {}, seen = most;
#pragma GCC unroll 4
    for (i64 i = p; i < p + n; i += together) {
      const vb less = bits<vb>(vu{} + by[i / together]);
      unroll<together>([&](auto h) __attribute__((always_inline)) {
        vb code, upper = upper_bytes<Code>(line + i, h * 4 * W, code);
        seen = maxu(seen, f.suspect(upper, code)), best[h] = maxu(best[h], subtract_saturating(upper, less));
      });
    }
    most = seen;
    alignas(64) u8 near[columns];
    const u32 origin = top_field + least;
    vb unsure{};
    unroll<together>([&](auto h) __attribute__((always_inline)) {
      if constexpr (together == 1) {
        const vb field = bits<vb>(bits<vw>(best[h]) >> u16(f.below) & splat16((0xFFu >> f.below) * 0x101u));
        unsure |= (vb)(field == 0);
        store(near, vb{} + u8(origin) - field);
      } else {
        using Lane = std::conditional_t<together == 2, vw, vi>;
        vb x = best[h];
        if constexpr (together == 4) x = maxu(x, bits<vb>(bits<vu>(x) >> 16));
        const Lane field = (bits<Lane>(maxu(x, bits<vb>(bits<std::conditional_t<together == 2, vw, vu>>(x) >> 8))) & 0xFF) >> f.below;
        unsure |= bits<vb>((Lane)(field == 0));
        store_bytes(near + h * 4 * W / together, Lane(Lane{} + std::conditional_t<together == 2, u16, i32>(origin) - field));
      }
    });
    if (any(bits<vi>(unsure) != 0)) [[unlikely]] look_closely(p, n, near);
    return load<vb>(near);
  }

 private:
  using Code = typename Fields::Code;
  static constexpr int together = sizeof(Code);

  __attribute__((noinline)) void look_closely(i64 p, i64 n, u8* near) const {
    const vi none = splat(-1024);
    for (int v = 0; v < NV; ++v) {
      vi best = none;
      for (i64 i = p; i < p + n; ++i) {
        const i32 far = a4[i] & 255;
        if (far == 255) continue;
        const vi size = (vi)(widen_codes<Code>(line[i] + v * W * together) & f.magnitude);
        best = max(best, size == 0 ? none : max(size >> f.mantissa, splat(1)) - far);
      }
      store_bytes(near + v * W, best == none ? splat(255) : i32(top_field) - best);
    }
  }
};

#else

struct Codes {
  explicit Codes(const Format&) {}
  bool serve() const { return false; }
};

#endif

}  // namespace bitmma::BITMMA_ISA
