#pragma once
// open_channel(): the kind of connection that the options ask for, up and authenticated.

#include <memory>
#include <string>

#include "bench/channel.hpp"
#include "bench/channel_stream.hpp"
#include "bench/channel_tls.hpp"

namespace kvferry::bench {

// AUTH with KVFERRY_RESP_PASSWORD (and KVFERRY_RESP_USERNAME), where they are set.
inline void authenticate(Channel& channel) {
  const char* password = std::getenv("KVFERRY_RESP_PASSWORD");
  if (password == nullptr || *password == '\0') return;
  const char* user = std::getenv("KVFERRY_RESP_USERNAME");
  std::string command = user != nullptr ? "*3\r\n$4\r\nAUTH\r\n" : "*2\r\n$4\r\nAUTH\r\n";
  for (const char* text : {user, password}) {
    if (text == nullptr) continue;
    command.append("$").append(std::to_string(std::strlen(text)));
    command.append("\r\n").append(text).append("\r\n");
  }
  channel.send_all(command);
  char reply[5];
  channel.receive_reply(reply, sizeof reply, "+OK\r\n");
}

// Connects to `where` as the options say, and authenticates.
inline std::unique_ptr<Channel> open_channel(const Options& o, const net::Endpoint& where) {
  std::unique_ptr<Channel> channel;
  const bool tls = o.has("--tls");
  if (o.has("--stream")) {
    const auto addresses = net::resolve(where);
    if (!addresses) die(addresses.error().context);
    channel = std::make_unique<StreamChannel>(
        tls ? stream_context(o).open_stream(addresses->front(), where.host)
            : net::open_stream(addresses->front()));
  } else if (tls) {
    channel = std::make_unique<TlsChannel>(dial(where), tls_context(o));
  } else {
    channel = std::make_unique<SocketChannel>(dial(where), o.has("--waitall") ? MSG_WAITALL : 0);
  }
  authenticate(*channel);
  return channel;
}

}  // namespace kvferry::bench
