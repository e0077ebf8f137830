#pragma once
// TlsBio: how OpenSSL reaches the stream below it, in few system calls.
//
// A record is at most 16 KiB, and OpenSSL's own socket BIO makes two calls to receive one (head and
// body) and one to send it. Here a body is received into OpenSSL's memory together with what
// follows it, up to kAheadBytes, and records to send are gathered up to kGatherBytes.
//
// Sending never fails for want of room: what the stream does not take waits here, and blocked()
// says so. Whoever writes stops then, and calls flush() before anything else. Nor does OpenSSL hear
// of a stream that takes nothing any more (send_failure()), because a server that refuses us says
// why and closes: what it said is still to be read.
//
// Inside one call OpenSSL goes on as long as it finds bytes that are not for us: requests to begin
// anew, tickets, empty records. A peer that sends nothing else would keep it there; so after
// kIdleBytes of them the stream counts as drained, and the caller can look at its clock.
//
// Threads: one. Lifetime: outlives the SSL that uses it; the stream outlives this.

#include <openssl/types.h>

#include <cstddef>
#include <memory>

#include "base/bytes.hpp"
#include "net/stream.hpp"

namespace kvferry::net {

class TlsBio {
 public:
  static constexpr std::size_t kAheadBytes = 64 * kKiB;
  static constexpr std::size_t kGatherBytes = 64 * kKiB;
  static constexpr std::size_t kIdleBytes = 256 * kKiB;

  explicit TlsBio(Stream& stream) noexcept : stream_(stream) {}
  TlsBio(const TlsBio&) = delete;
  TlsBio& operator=(const TlsBio&) = delete;

  // A BIO of its own reference count for SSL_set0_rbio() or SSL_set0_wbio(). Null: no memory.
  [[nodiscard]] BIO* make_bio();

  // Before each series of reads: the stream may have bytes again.
  void begin_reading() noexcept {
    drained_ = false;
    begin_record();
  }
  // Before each call to OpenSSL of such a series.
  void begin_record() noexcept { idle_bytes_ = 0; }
  // Sends what is gathered. False: the stream takes nothing any more.
  bool flush() noexcept;
  // While held, nothing leaves but by flush(): not when OpenSSL answers the peer by itself.
  void hold(bool held) noexcept { held_ = held; }
  [[nodiscard]] std::size_t pending() const noexcept { return gathered_end_ - gathered_begin_; }
  // Nothing more should be written for now.
  [[nodiscard]] bool blocked() const noexcept { return blocked_; }
  // How the stream below ended, each way; kOk while it did not.
  [[nodiscard]] const IoResult& receive_failure() const noexcept { return receive_failure_; }
  [[nodiscard]] const IoResult& send_failure() const noexcept { return send_failure_; }

 private:
  // One more record, and answers of the protocol, fit behind a full gather.
  static constexpr std::size_t kRecordBytesMax = 17 * kKiB;
  static constexpr std::size_t kOutBytes = kGatherBytes + 2 * kRecordBytesMax;
  friend struct TlsBioMethod;

  bool read(std::byte* out, std::size_t size, std::size_t& count) noexcept;
  bool write(const std::byte* data, std::size_t size) noexcept;
  void stop_sending(const IoResult& why) noexcept;

  Stream& stream_;
  std::unique_ptr<std::byte[]> ahead_;  // made when first used, as is gathered_
  std::size_t ahead_begin_ = 0;
  std::size_t ahead_end_ = 0;
  bool drained_ = false;
  std::size_t idle_bytes_ = 0;  // received since begin_record()
  std::unique_ptr<std::byte[]> gathered_;
  std::size_t gathered_begin_ = 0;
  std::size_t gathered_end_ = 0;
  bool blocked_ = false;
  bool held_ = false;
  IoResult receive_failure_;
  IoResult send_failure_;
};

}  // namespace kvferry::net
