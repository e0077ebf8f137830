#include "net/transport.hpp"

namespace kvferry::net {
namespace {

class PlainTransport final : public Transport {
 public:
  Result<std::unique_ptr<Stream>> open(const Address& address, std::string_view) override {
    return open_stream(address);
  }
};

}  // namespace

std::shared_ptr<Transport> plain_transport() { return std::make_shared<PlainTransport>(); }

}  // namespace kvferry::net
