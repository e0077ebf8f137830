// TLS streams once they are up: bytes both ways, records, ends. Handshakes are tested apart.
#include "net/tls.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "net/tls_test_client.hpp"
#include "net/tls_test_peer.hpp"

namespace kvferry::net {
namespace {

using tls_test::Certificates;
using tls_test::Client;
using tls_test::noise;
using tls_test::Peer;
using tls_test::Talk;

TEST(Tls, MovesMegabytesBothWays) {
  const Certificates certificates;
  constexpr std::size_t kSize = 20 << 20;
  const std::string request = noise(kSize, 1);
  const std::string reply = noise(kSize, 2);
  std::string seen;
  const Peer peer(certificates.server, [&](const Talk& talk) {
    seen = talk.read(kSize);
    EXPECT_TRUE(talk.write(reply));
  });
  auto context = TlsContext::open(certificates.config());
  ASSERT_TRUE(context) << context.error().context;
  Client client((*context)->open_stream(peer.address(), "localhost"));
  const IoResult io = client.connect();
  ASSERT_EQ(io.state, IoState::kOk) << client.why(io);
  std::mt19937 random(3);
  ASSERT_EQ(client.send(request, random).state, IoState::kOk);
  EXPECT_EQ(client.receive(kSize, random) == reply, true);
  EXPECT_EQ(seen == request, true);
}

}  // namespace
}  // namespace kvferry::net
