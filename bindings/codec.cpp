// Codecs and frames of values for Python: what `kvferry bench codec` measures, and what drivers
// need that move the bytes of a value themselves.
//
// Threads: any; both buffers are held for the call, and the bytes are read and written without the
// GIL.

#include "codec/coded.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "buffers.hpp"
#include "codec/checksum.hpp"
#include "codec/frame.hpp"
#include "codec/little_endian.hpp"
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

codec::FrameExpectation expected(const nb::bytes& key, const nb::bytes& identity,
                                 std::size_t size_bytes) {
  if (identity.size() < sizeof(std::uint64_t)) raise({Errc::kInvalidArgument, "no identity"});
  return {.identity = codec::load_le<std::uint64_t>(static_cast<const std::byte*>(identity.data())),
          .key_digest = codec::xxh3_64({static_cast<const std::byte*>(key.data()), key.size()}),
          .payload_size_bytes = size_bytes,
          .original_size_bytes = size_bytes};
}

nb::bytes frame_header(const nb::bytes& key, const nb::bytes& identity, std::size_t size_bytes,
                       std::uint64_t checksum) {
  const auto known = expected(key, identity, size_bytes);
  std::array<std::byte, codec::kFrameSizeBytes> header{};
  codec::encode_frame({.payload_size_bytes = size_bytes,
                       .original_size_bytes = size_bytes,
                       .payload_checksum = checksum,
                       .identity = known.identity,
                       .key_digest = known.key_digest,
                       .generation = codec::generation_of(std::span(&checksum, 1))},
                      header);
  return nb::bytes(header.data(), header.size());
}

std::string value_fault(const nb::bytes& headers, const nb::bytes& key, const nb::bytes& identity,
                        std::size_t size_bytes, const std::vector<std::uint64_t>& checksums) {
  const auto fault =
      codec::check_value({static_cast<const std::byte*>(headers.data()), headers.size()}, checksums,
                         expected(key, identity, size_bytes));
  if (fault == codec::FrameFault::kNone) return "";
  std::string word(codec::name(fault));
  std::ranges::replace(word, ' ', '_');
  return word;
}

std::vector<std::pair<std::size_t, std::size_t>> stripe_extents(std::size_t size_bytes) {
  const auto plan = codec::stripe_plan(size_bytes);
  std::vector<std::pair<std::size_t, std::size_t>> extents;
  for (std::size_t index = 0; index < plan.count; ++index) {
    const auto extent = codec::stripe_extent(plan, index);
    extents.emplace_back(extent.offset, extent.size_bytes);
  }
  return extents;
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
  m.def("frame_header", &frame_header, "key"_a, "identity"_a, "size_bytes"_a, "checksum"_a,
        "What stands before a value that is stored whole; its length is FRAME_BYTES.");
  m.def("value_fault", &value_fault, "headers"_a, "key"_a, "identity"_a, "size_bytes"_a,
        "checksums"_a,
        nb::sig("def value_fault(headers: bytes, key: bytes, identity: bytes, size_bytes: int, "
                "checksums: typing.Sequence[int]) -> str"),
        "What is wrong with a value, by the headers and checksums of its stripes; empty: nothing.");
  m.def("stripe_extents", &stripe_extents, "size_bytes"_a,
        nb::sig("def stripe_extents(size_bytes: int) -> list[tuple[int, int]]"),
        "Offsets and lengths of the stripes of a value.");
  m.attr("FRAME_BYTES") = codec::kFrameSizeBytes;
}

}  // namespace kvferry
