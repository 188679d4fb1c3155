// Codes of a format as exponents and floats, a vector of them at a time.
#pragma once
#include "simd.hpp"

namespace bitmma::BITMMA_ISA {

constexpr int widest = 50;  // binades a line may span; 2 * widest + F + 2 < 127

template <class T> BITMMA_INLINE u32 code_at(const u8* p) {
  T x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

// A line of +0 in any format.
inline const u8* zeros() {
  alignas(64) static const u8 none[columns * sizeof(double)] = {};
  return none;
}

// Decoding codes of a format of at most 32 bits. `Self` has the format's numbers, as constants where
// that is worth a specialisation (see with_decoder).
template <class Self> struct Decoding {
  BITMMA_INLINE const Self& f() const { return static_cast<const Self&>(*this); }
  BITMMA_INLINE u32 magnitude_mask() const { return (1u << (f().exponent + f().mantissa)) - 1; }
  BITMMA_INLINE u32 sign_mask() const { return f().has_sign ? 1u << (f().exponent + f().mantissa) : 0; }
  BITMMA_INLINE vu magnitude(vu code) const { return (code >> f().dropped) & magnitude_mask(); }

  // Lanes with Inf or NaN: all ones.
  BITMMA_INLINE vi special(vu code) const {
    vu m = magnitude(code);
    switch (f().specials) {
      case Specials::ieee: return (vi)(m >= ((1u << f().exponent) - 1) << f().mantissa);
      case Specials::fn: return (vi)(m == magnitude_mask());
      case Specials::fnuz: return (vi)(code >> f().dropped == sign_mask());
      default: return vi{};
    }
  }
  // Exponents of the unnormalised numbers; zeros and specials get what their fields say.
  BITMMA_INLINE vi exponents(vu code) const {
    return max((vi)(magnitude(code) >> f().mantissa), splat(1)) - f().bias;
  }
  BITMMA_INLINE vi is_zero(vu code) const { return (vi)(magnitude(code) == 0); }
  // The finite number as a float; zeros keep their sign. Exact for every format of up to 24 bits'
  // significand and f32's exponents.
  BITMMA_INLINE vf value(vu code) const {
    vu m = magnitude(code);
    vu sign = ((code >> f().dropped) & sign_mask()) << (31 - f().exponent - f().mantissa);
    vu normal = (m << (23 - f().mantissa)) + (u32(127 - f().bias) << 23);
    if (f().bias == 127) return bits<vf>(normal | sign);  // subnormals are subnormal floats
    vf small = to_float((vi)m) * bits<float>(u32(128 - f().bias - f().mantissa) << 23);
    vu x = m < (1u << f().mantissa) ? bits<vu>(small) : normal;
    return bits<vf>(x | sign);
  }
};
struct Decoder : Decoding<Decoder> {
  int mantissa, exponent, bias, dropped, has_sign, bytes;
  Specials specials;
  explicit Decoder(const Format& x)
      : mantissa(x.mantissa_bits), exponent(x.exponent_bits), bias(x.bias), dropped(x.dropped_bits),
        has_sign(x.has_sign), bytes(x.bytes()), specials(x.specials) {}
};
template <int E, int M, int B, Specials S, int Dropped = 0, int Sign = 1>
struct FixedDecoder : Decoding<FixedDecoder<E, M, B, S, Dropped, Sign>> {
  static constexpr int exponent = E, mantissa = M, bias = B, dropped = Dropped, has_sign = Sign;
  static constexpr Specials specials = S;
};
template <class Each> void with_decoder(const Decoder& d, Each each) {
  auto is = [&](int e, int m, int b, Specials s, int dropped) {
    return d.has_sign && d.exponent == e && d.mantissa == m && d.bias == b && d.specials == s && d.dropped == dropped;
  };
  if (is(5, 10, 15, Specials::ieee, 0)) each(FixedDecoder<5, 10, 15, Specials::ieee>{});
  else if (is(8, 7, 127, Specials::ieee, 0)) each(FixedDecoder<8, 7, 127, Specials::ieee>{});
  else if (is(8, 10, 127, Specials::ieee, 13)) each(FixedDecoder<8, 10, 127, Specials::ieee, 13>{});
  else if (is(4, 3, 7, Specials::fn, 0)) each(FixedDecoder<4, 3, 7, Specials::fn>{});
  else if (is(5, 2, 15, Specials::ieee, 0)) each(FixedDecoder<5, 2, 15, Specials::ieee>{});
  else each(d);
}

}  // namespace bitmma::BITMMA_ISA
