// Codecs of values for Python: what `kvferry bench codec` measures, and tests look at.
//
// Threads: any; both buffers are held for the call, and the bytes are read and written without the
// GIL.

#include "codec/coded.hpp"

#include <nanobind/nanobind.h>

#include <algorithm>
#include <string>

#include "buffers.hpp"
#include "errors.hpp"
#include "gil.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvferry {
namespace {

std::size_t encode_value(int codec, const nb::object& content, const nb::object& payload) {
  Lease leases(2);
  const MutableBytes from = leases.add(content.ptr(), false);
  const MutableBytes to = leases.add(payload.ptr(), true);
  const std::size_t needed = codec::coded_size_max(from.size());
  if (to.size() < needed) {
    raise_bad_buffer("the payload needs room for " + std::to_string(needed) + " bytes");
  }
  leases.check_disjoint();
  const GilRelease unlocked;
  return codec::encode_stripe(static_cast<codec::Codec>(codec), from, to);
}

bool decode_value(const nb::object& payload, const nb::object& content) {
  Lease leases(2);
  MutableBytes from = leases.add(payload.ptr(), false);
  const MutableBytes to = leases.add(content.ptr(), true);
  leases.check_disjoint();
  const GilRelease unlocked;
  codec::StripeDecoder decoder;
  decoder.start(to, from.size());
  while (!from.empty()) {
    const MutableBytes space = decoder.space();
    std::ranges::copy(from.first(space.size()), space.begin());
    from = from.subspan(space.size());
    if (!decoder.received(space.size())) return false;
  }
  return decoder.filled() == to.size();
}

}  // namespace

void bind_codec(nb::module_& m) {
  m.def(
      "codecs",
      [] {
        nb::list all;
        for (const auto& [name, dtype, auto_below, method] : codec::kCodecs) {
          all.append(nb::make_tuple(nb::str(name.data(), name.size()),
                                    nb::str(dtype.data(), dtype.size()), auto_below));
        }
        return nb::tuple(all);
      },
      nb::sig("def codecs() -> tuple[tuple[str, str, float], ...]"),
      "By their numbers: the name of each, the numbers that it takes with loss, and the share of a "
      "thread below which a link gets it; see codec/codecs.hpp.");
  m.def("encode_value", &encode_value, "codec"_a, "content"_a, "payload"_a,
        nb::sig("def encode_value(codec: int, content: typing.Any, payload: typing.Any) -> int"),
        "Writes what the frame would have behind it and returns its length; 0: it does not pay. "
        "The payload has room for 4 bytes more for each 64 KiB.");
  m.def("decode_value", &decode_value, "payload"_a, "content"_a,
        nb::sig("def decode_value(payload: typing.Any, content: typing.Any) -> bool"),
        "The way back; False: it is damaged.");
}

}  // namespace kvferry
