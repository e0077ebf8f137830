#include "net/transport.hpp"

#include <utility>

#include "net/tls.hpp"

namespace kvferry::net {
namespace {

class PlainTransport final : public Transport {
 public:
  Result<std::unique_ptr<Stream>> open(const Address& address, std::string_view) override {
    return open_stream(address);
  }
};

class TlsTransport final : public Transport {
 public:
  explicit TlsTransport(std::shared_ptr<TlsContext> context) : context_(std::move(context)) {}
  Result<std::unique_ptr<Stream>> open(const Address& address, std::string_view host) override {
    return context_->open_stream(address, host);
  }

 private:
  const std::shared_ptr<TlsContext> context_;
};

}  // namespace

std::shared_ptr<Transport> tls_transport(std::shared_ptr<TlsContext> context) {
  return std::make_shared<TlsTransport>(std::move(context));
}

std::shared_ptr<Transport> plain_transport() { return std::make_shared<PlainTransport>(); }

}  // namespace kvferry::net
