#include "net/tls.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <mutex>
#include <utility>

#include "base/unique_fd.hpp"
#include "net/tls_setup.hpp"
#include "net/tls_stream.hpp"

namespace kvferry::net {
namespace {

// What tells one state of a file from the next. A missing file is all zeros.
struct FileMark {
  dev_t device = 0;
  ino_t inode = 0;
  off_t size = 0;
  std::int64_t modified_ns = 0;

  bool operator==(const FileMark&) const = default;
};
using FileMarks = std::array<FileMark, 3>;

FileMarks marks_of(const TlsConfig& config) {
  FileMarks marks;
  std::size_t index = 0;
  for (const auto* path : {&config.ca_file, &config.cert_file, &config.key_file}) {
    FileMark& mark = marks[index++];
    struct stat found{};
    if (path->empty() || ::stat(path->c_str(), &found) != 0) continue;
    mark = {found.st_dev, found.st_ino, found.st_size,
            found.st_mtim.tv_sec * 1'000'000'000 + found.st_mtim.tv_nsec};
  }
  return marks;
}

class FileTlsContext final : public TlsContext {
 public:
  FileTlsContext(TlsConfig config, Notify notify, TlsRole role, const FileMarks& marks,
                 std::shared_ptr<TlsSetup> setup)
      : config_(std::move(config)),
        notify_(std::move(notify)),
        role_(role),
        ktls_(config_.ktls && probe_ktls().openssl && probe_ktls().kernel),
        marks_(marks),
        setup_(std::move(setup)) {}

  Result<std::unique_ptr<Stream>> open_stream(const Address& address,
                                              std::string_view host) override {
    auto stream = net::open_stream(address);
    if (!stream) return stream;
    return open_over(std::move(*stream), host, address.text());
  }

  Result<std::unique_ptr<Stream>> open_over(std::unique_ptr<Stream> stream, std::string_view host,
                                            std::string_view peer) override {
    TlsStream::Target target{
        .name = config_.server_name.empty() ? std::string(host) : config_.server_name,
        .peer = {},
        .verify = config_.verify,
        .ktls = ktls_};
    if (target.name.ends_with('.')) target.name.pop_back();
    if (target.name.empty() && target.verify == TlsVerify::kFull) {
      return Error{Errc::kInvalidArgument, "TLS needs a host name to verify the server by"};
    }
    target.peer = target.name + " " + std::string(peer);
    return TlsStream::open(current(), std::move(stream), std::move(target));
  }

  Result<std::unique_ptr<Stream>> accept_over(std::unique_ptr<Stream> stream) override {
    return TlsStream::open(current(), std::move(stream), {.role = TlsRole::kServer, .ktls = ktls_});
  }

 private:
  std::shared_ptr<TlsSetup> current() {
    const std::lock_guard lock(mutex_);
    // Before the files are read: what changes while they are is seen at the next dial.
    const FileMarks marks = marks_of(config_);
    if (marks == marks_) return setup_;
    marks_ = marks;
    auto loaded = TlsSetup::load(config_, role_);
    if (loaded) setup_ = std::move(*loaded);
    if (!notify_) return setup_;
    if (loaded) {
      notify_(LogLevel::kInfo, "the TLS files have changed and are in use");
    } else {
      notify_(LogLevel::kWarning, "the TLS files have changed, but the earlier ones stay in use: " +
                                      loaded.error().context);
    }
    return setup_;
  }

  const TlsConfig config_;
  const Notify notify_;
  const TlsRole role_;
  const bool ktls_;
  std::mutex mutex_;  // held while files are loaded
  FileMarks marks_;
  std::shared_ptr<TlsSetup> setup_;  // owners: this, and streams made under it
};

bool kernel_offers() noexcept {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // An unconnected socket cannot have it, but the kernel looks for the module first.
  return fd && (::setsockopt(fd.get(), IPPROTO_TCP, TCP_ULP, "tls", sizeof "tls") == 0 ||
                errno == ENOTCONN);
}

}  // namespace

KtlsOffer probe_ktls() noexcept {
#ifdef OPENSSL_NO_KTLS
  constexpr bool kBuiltIn = false;
#else
  constexpr bool kBuiltIn = true;
#endif
  static const bool kernel = kernel_offers();  // asking may start modprobe, so once
  return {.openssl = kBuiltIn, .kernel = kernel};
}

Result<std::shared_ptr<TlsContext>> TlsContext::open(TlsConfig config, Notify notify,
                                                     TlsRole role) {
  const FileMarks marks = marks_of(config);
  auto setup = TlsSetup::load(config, role);
  if (!setup) return setup.error();
  return std::shared_ptr<TlsContext>(std::make_shared<FileTlsContext>(
      std::move(config), std::move(notify), role, marks, std::move(*setup)));
}

}  // namespace kvferry::net
