#include "redis/handshake.hpp"

#include <algorithm>

#include "redis/server_error.hpp"
#include "resp/writer.hpp"

namespace kvferry::redis {
namespace {

constexpr std::size_t kWordsMax = 64;
constexpr std::size_t kWordBytesMax = 128;  // what a server says of itself is shown to people
constexpr std::size_t kPendingBytesMax = 64 * kKiB;

// A user with an empty password is still that user and not the default one.
bool has_credentials(const Greeting& greeting) noexcept {
  return !greeting.password.empty() || !greeting.username.empty();
}

std::string short_word(std::string_view text) { return printable(text.substr(0, kWordBytesMax)); }

// A server's refusal for people. Servers repeat arguments, which hold the password, whole or cut.
std::string refusal_text(std::string text, const std::string& password) {
  if (const auto echo = text.find(", with args beginning with"); echo != std::string::npos) {
    text.resize(echo);
  }
  if (!password.empty()) {
    for (auto at = text.find(password); at != std::string::npos; at = text.find(password, at)) {
      text.replace(at, password.size(), "***");
      at += 3;
    }
  }
  return printable(text);
}

}  // namespace

void Handshake::begin(Outbox& outbox) {
  const bool plain = greeting_.protocol == 2;
  write(!plain ? Step::kHello : has_credentials(greeting_) ? Step::kAuth : Step::kName, outbox);
}

void Handshake::write(Step step, Outbox& outbox) {
  step_ = step;
  resp::Writer writer(outbox.text_space());
  const std::string_view user =
      greeting_.username.empty() ? std::string_view("default") : greeting_.username;
  const bool authenticated = has_credentials(greeting_);
  const bool named = !greeting_.client_name.empty();
  switch (step) {
    case Step::kHello:
      writer.command(2u + (authenticated ? 3u : 0u) + (named ? 2u : 0u));
      writer.bulk("HELLO").bulk("3");
      if (authenticated) writer.bulk("AUTH").bulk(user).bulk(greeting_.password);
      if (named) writer.bulk("SETNAME").bulk(greeting_.client_name);
      break;
    case Step::kAuth:
      if (greeting_.username.empty() || password_alone_) {
        writer.command(2).bulk("AUTH").bulk(greeting_.password);
      } else {
        writer.command(3).bulk("AUTH").bulk(greeting_.username).bulk(greeting_.password);
      }
      break;
    case Step::kName:
      // An empty name is legal: it takes the name away.
      writer.command(3).bulk("CLIENT").bulk("SETNAME").bulk(greeting_.client_name);
      break;
    case Step::kSelect:
      writer.command(2).bulk("SELECT").number(greeting_.database);
      break;
    case Step::kReadOnly:
      writer.command(1).bulk("READONLY");
      break;
    case Step::kDone:
      break;
  }
  outbox.take_text(writer.written().size());
}

Handshake::State Handshake::receive(ByteView input, Outbox& outbox) {
  pending_ += as_text(input);
  if (pending_.size() > kPendingBytesMax) return fail(Errc::kProtocol, "the greeting is too long");
  std::size_t offset = 0;
  State state = State::kRunning;
  while (state == State::kRunning) {
    const std::string_view rest = std::string_view(pending_).substr(offset);
    if (const std::uint64_t owed = parser_.payload_remaining(); owed > 0) {
      if (rest.empty()) break;
      const std::size_t part = std::min<std::uint64_t>(owed, rest.size());
      payload_ += rest.substr(0, part);
      parser_.take_payload(part);
      offset += part;
      continue;
    }
    std::size_t consumed = 0;
    const resp::Token token = parser_.next(as_bytes(rest), consumed);
    if (token.type == resp::Type::kNeedMore) break;
    offset += consumed;
    if (token.type == resp::Type::kBad) {
      return fail(Errc::kProtocol, "the greeting is not RESP: " + std::string(token.text));
    }
    if (token.in_extra) {
      payload_.clear();  // of no interest, and not to be collected
      continue;
    }
    collect(token);
    if (token.ends_reply) state = on_reply(outbox);
  }
  pending_.erase(0, offset);
  return state;
}

void Handshake::collect(const resp::Token& token) {
  using resp::Type;
  switch (token.type) {
    case Type::kBulk:
    case Type::kVerbatim:
      payload_.clear();
      return;
    case Type::kBulkError:
      payload_.clear();
      refused_ = true;
      return;
    case Type::kError:
      refused_ = true;
      refusal_ = token.text;
      return;
    case Type::kPayloadEnd:
      if (refused_) refusal_ = payload_;
      if (token.depth == 1 && words_.size() < kWordsMax) words_.push_back(short_word(payload_));
      return;
    default:
      if (token.depth == 1 && words_.size() < kWordsMax) words_.push_back(short_word(token.text));
  }
}

Handshake::State Handshake::on_reply(Outbox& outbox) {
  const std::vector<std::string> words = std::exchange(words_, {});
  const bool refused = std::exchange(refused_, false);
  if (refused && !ends_greeting(refusal_)) {
    if (step_ == Step::kHello && (has_credentials(greeting_) || !refusal_.starts_with("NOAUTH"))) {
      return next(has_credentials(greeting_) ? Step::kAuth : Step::kName, outbox);
    }
    if (step_ == Step::kAuth && greeting_.username == "default" && !password_alone_) {
      password_alone_ = true;  // the only form before Redis 6, and it means this user
      return next(Step::kAuth, outbox);
    }
  }
  // A name is a courtesy; servers that do not know the command still serve.
  const bool optional = step_ == Step::kName && !ends_greeting(refusal_) &&
                        classify(refusal_) != ServerErrorKind::kReconnect;
  if (refused && !optional) {
    return fail(error_code(refusal_), refusal_text(refusal_, greeting_.password));
  }
  if (step_ == Step::kHello) {
    for (std::size_t index = 0; index + 1 < words.size(); index += 2) {
      if (words[index] == "server") info_.server = words[index + 1];
      if (words[index] == "version") info_.version = words[index + 1];
      if (words[index] == "mode") info_.mode = words[index + 1];
      if (words[index] == "role") info_.role = words[index + 1];
      if (words[index] == "availability_zone") info_.zone = words[index + 1];
    }
    info_.protocol = 3;
  }
  if (step_ == Step::kAuth) return next(Step::kName, outbox);
  const bool selected = step_ == Step::kSelect || step_ == Step::kReadOnly;
  if (!selected && greeting_.database != 0) return next(Step::kSelect, outbox);
  if (step_ != Step::kReadOnly && greeting_.read_only) return next(Step::kReadOnly, outbox);
  step_ = Step::kDone;
  return State::kReady;
}

Handshake::State Handshake::next(Step step, Outbox& outbox) {
  write(step, outbox);
  return State::kRunning;
}

Handshake::State Handshake::fail(Errc code, std::string context) {
  error_ = {code, std::move(context)};
  return State::kFailed;
}

}  // namespace kvferry::redis
