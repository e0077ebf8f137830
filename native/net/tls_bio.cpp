#include "net/tls_bio.hpp"

#include <openssl/bio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace kvferry::net {

// The table of functions by which OpenSSL calls a TlsBio.
struct TlsBioMethod {
  static TlsBio& self(BIO* bio) { return *static_cast<TlsBio*>(BIO_get_data(bio)); }

  static int read(BIO* bio, char* out, std::size_t size, std::size_t* count) {
    BIO_clear_retry_flags(bio);
    TlsBio& target = self(bio);
    if (target.read(reinterpret_cast<std::byte*>(out), size, *count)) return 1;
    if (target.receive_failure().state == IoState::kOk) BIO_set_retry_read(bio);
    return 0;
  }

  static int write(BIO* bio, const char* data, std::size_t size, std::size_t* count) {
    BIO_clear_retry_flags(bio);
    if (!self(bio).write(reinterpret_cast<const std::byte*>(data), size)) return 0;
    *count = size;
    return 1;
  }

  static long control(BIO* bio, int command, long, void*) {
    switch (command) {
      case BIO_CTRL_FLUSH:  // what the stream does not take now waits for the next flush()
        if (!self(bio).held_) self(bio).flush();
        return 1;
      case BIO_CTRL_EOF:
        return self(bio).receive_failure().state == IoState::kClosed ? 1 : 0;
      default:
        return 0;
    }
  }

  static BIO_METHOD* make() {
    BIO_METHOD* method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "kvferry");
    if (method == nullptr) return nullptr;
    BIO_meth_set_read_ex(method, read);
    BIO_meth_set_write_ex(method, write);
    BIO_meth_set_ctrl(method, control);
    return method;
  }
};

BIO* TlsBio::make_bio() {
  static BIO_METHOD* const method = TlsBioMethod::make();  // lives as long as the process
  BIO* bio = method == nullptr ? nullptr : BIO_new(method);
  if (bio == nullptr) return nullptr;
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  return bio;
}

bool TlsBio::read(std::byte* out, std::size_t size, std::size_t& count) noexcept {
  if (ahead_begin_ < ahead_end_) {
    count = std::min(size, ahead_end_ - ahead_begin_);
    std::memcpy(out, ahead_.get() + ahead_begin_, count);
    ahead_begin_ += count;
    return true;
  }
  if (idle_bytes_ > kIdleBytes) drained_ = true;
  if (drained_) return false;
  if (!ahead_) ahead_ = std::make_unique_for_overwrite<std::byte[]>(kAheadBytes);
  const std::array<iovec, 2> pieces{iovec{out, size}, iovec{ahead_.get(), kAheadBytes}};
  const IoResult io = stream_.receive(pieces);
  // The call that would say "nothing left" is saved: the poller knows when there is more.
  drained_ = io.state != IoState::kOk || io.bytes < size + kAheadBytes;
  if (io.state == IoState::kWouldBlock) return false;
  if (io.state != IoState::kOk) {
    receive_failure_ = io;
    return false;
  }
  idle_bytes_ += io.bytes;
  count = std::min(size, io.bytes);
  ahead_begin_ = 0;
  ahead_end_ = io.bytes - count;
  return true;
}

bool TlsBio::write(const std::byte* data, std::size_t size) noexcept {
  if (!gathered_) gathered_ = std::make_unique_for_overwrite<std::byte[]>(kOutBytes);
  if (!blocked_ && !held_ && pending() + size > kGatherBytes) {
    const std::array<iovec, 2> pieces{iovec{gathered_.get() + gathered_begin_, pending()},
                                      iovec{const_cast<std::byte*>(data), size}};
    const IoResult io = stream_.send(pieces);
    if (io.state != IoState::kOk && io.state != IoState::kWouldBlock) stop_sending(io);
    blocked_ = io.bytes < pending() + size;
    const std::size_t old = std::min(io.bytes, pending());
    gathered_begin_ += old;
    data += io.bytes - old;
    size -= io.bytes - old;
  }
  if (send_failure_.state != IoState::kOk) return true;
  if (pending() == 0) gathered_begin_ = gathered_end_ = 0;
  if (size > kOutBytes - gathered_end_) {  // not at the end: move what is there to the front
    std::memmove(gathered_.get(), gathered_.get() + gathered_begin_, pending());
    gathered_end_ -= gathered_begin_;
    gathered_begin_ = 0;
  }
  if (size > kOutBytes - gathered_end_) {  // a peer that demands answers and takes none
    stop_sending({.state = IoState::kFailed, .sys_errno = ENOBUFS});
    return false;
  }
  std::memcpy(gathered_.get() + gathered_end_, data, size);
  gathered_end_ += size;
  return true;
}

bool TlsBio::flush() noexcept {
  if (send_failure_.state != IoState::kOk) return false;
  blocked_ = false;
  while (pending() > 0 && !blocked_) {
    const iovec piece{gathered_.get() + gathered_begin_, pending()};
    const IoResult io = stream_.send({&piece, 1});
    if (io.state == IoState::kWouldBlock) {
      blocked_ = true;
    } else if (io.state != IoState::kOk) {
      stop_sending(io);
      return false;
    }
    gathered_begin_ += io.bytes;
  }
  return true;
}

void TlsBio::stop_sending(const IoResult& why) noexcept {
  send_failure_ = why;
  gathered_begin_ = gathered_end_ = 0;
  blocked_ = true;
  drained_ = false;  // the same event may have brought a last word
}

}  // namespace kvferry::net
